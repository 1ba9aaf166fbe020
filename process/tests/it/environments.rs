//! Programs of every kind are saved, killed and restored, three generations long, where less is allowed: as an ordinary user without new
//! privileges, and under limits of memory.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{PROGRAMS, compile, preload, restart_with, start_with};

/// All of them but `without`, where `enter` is called in the child that becomes the program, before and after every restore.
fn all_programs(without: &[&str], enter: impl Fn() -> io::Result<()> + Clone + Send + Sync + 'static) {
    let folder = tempfile::tempdir().expect("a folder");
    let open_to_all = |path: &Path| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).expect("ours");
    };
    open_to_all(folder.path());
    let copy = |from: &Path, name: &str| {
        let to = folder.path().join(name);
        std::fs::copy(from, &to).expect("room for a copy");
        to
    };
    let library = copy(preload(), "libpreload.so");
    let command = |executable: &Path| {
        let mut command = Command::new(executable);
        let enter = enter.clone();
        // SAFETY: system calls alone, between fork and exec.
        unsafe { command.pre_exec(enter) };
        command
    };
    for (name, has_place, question, last) in PROGRAMS {
        if without.contains(&name) {
            continue;
        }
        let executable = copy(&compile(name, &[]), name);
        let image = folder.path().join(format!("{name}.image"));
        let mut start = command(&executable);
        if has_place {
            let place = folder.path().join(format!("{name}.place"));
            std::fs::create_dir(&place).expect("room");
            open_to_all(&place);
            start.arg(if name == "files" { place } else { place.join("data") });
        }
        let mut program = start_with(&mut start, &library);
        let first = program.line();
        assert!(first.starts_with("ready"), "{name}: {first}");
        for mode in ["fork", "sync", "fork"] {
            program.poke(question);
            let answer = program.line();
            assert!(!answer.starts_with("FAULT"), "{name}: {answer}");
            program.capture(&image, mode);
            program.kill();
            program = restart_with(&image, &library, &command);
        }
        assert_eq!(program.finish(), last, "{name}");
    }
}

#[test]
fn an_ordinary_user_without_new_privileges() {
    all_programs(&[], || {
        const NOBODY: u32 = 65_534;
        let ok = |answer: i32| if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
        // SAFETY: system calls.
        unsafe {
            if libc::geteuid() == 0 {
                ok(libc::setgroups(0, std::ptr::null()))?;
                ok(libc::setgid(NOBODY))?;
                ok(libc::setuid(NOBODY))?;
            }
            ok(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        }
    });
}

/// 14 threads have stacks of 8 MiB.
#[test]
fn a_limit_of_address_space() {
    const BYTES: u64 = 1 << 30;
    // It maps far more than that, and uses little of it.
    all_programs(&["mappings"], || {
        let limit = libc::rlimit { rlim_cur: BYTES, rlim_max: BYTES };
        // SAFETY: a limit of this frame.
        match unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    });
}

/// A control group with a limit of memory.
struct Group(PathBuf);

impl Group {
    /// In the group of this process; `None` where that may not be done.
    fn new(bytes: u64) -> Option<Group> {
        let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = |start: &str| {
            own.lines().find_map(|line| line.split_once(start)).map(|(_, path)| path.trim_start_matches('/'))
        };
        let name = format!("stillwire-test-{}", std::process::id());
        let (version_1, version_2) = (path(":memory:"), path("0::"));
        let places = [
            version_1.map(|path| (Path::new("/sys/fs/cgroup/memory").join(path), "memory.limit_in_bytes")),
            version_1.map(|_| (PathBuf::from("/sys/fs/cgroup/memory"), "memory.limit_in_bytes")),
            version_2.map(|path| (Path::new("/sys/fs/cgroup").join(path), "memory.max")),
        ];
        places.into_iter().flatten().find_map(|(parent, limit)| {
            let group = Group(parent.join(&name));
            std::fs::create_dir(&group.0).ok()?;
            let is_set = std::fs::write(group.0.join(limit), bytes.to_string()).is_ok();
            is_set.then_some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Without processes; the last one may still be on its way out.
        for _ in 0..1000 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

#[test]
fn a_limit_of_memory() {
    let Some(group) = Group::new(256 << 20) else {
        return crate::skipped::skipped("a_limit_of_memory", "a control group of memory that may be divided");
    };
    let members = group.0.join("cgroup.procs");
    let members = CString::new(members.as_os_str().as_bytes()).expect("no zero in it");
    all_programs(&[], move || {
        // SAFETY: a path that ends with a zero; the kernel reads one byte.
        unsafe {
            let fd = libc::open(members.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if fd < 0 || libc::write(fd, c"0".as_ptr().cast(), 1) != 1 {
                return Err(io::Error::last_os_error());
            }
            libc::close(fd);
        }
        Ok(())
    });
}
