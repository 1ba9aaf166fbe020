//! A thread id can be the upper half of an address. Where ids are mended, addresses stay.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::support::{compile, preload, restart, start_with};

/// Where a program begins that is loaded anywhere, if addresses are not chosen at random: 0x5555_5555_4000.
const UPPER_HALF: u32 = 0x5555;

/// The thread that gets this id waits for a mutex that inherits priority: 9 behind the program's first one, or 8 behind if the library has one.
const BEFORE: u32 = 10;

/// Programs that are started until one has the id, at most: others start processes, too.
const TRIES_MAX: u32 = 100;

/// Has the next process get this id.
fn next_id(id: u32) -> io::Result<()> {
    std::fs::write("/proc/sys/kernel/ns_last_pid", (id - 1).to_string())
}

#[test]
fn a_return_address_with_an_id_in_it_stays() {
    if let Err(error) = next_id(UPPER_HALF) {
        let why = format!("the right to choose the next process id ({error})");
        return crate::skipped::skipped("a_return_address_with_an_id_in_it_stays", &why);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("image");
    let executable = compile("mutexes", &["-fPIE", "-pie"]);
    preload();
    for _ in 0..TRIES_MAX {
        let mut command = Command::new(&executable);
        // SAFETY: a system call, between fork and exec.
        unsafe {
            command.pre_exec(|| match libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) {
                -1 => Err(io::Error::last_os_error()),
                _ => Ok(()),
            });
        }
        next_id(UPPER_HALF - BEFORE).expect("as before");
        let mut program = start_with(&mut command, preload());
        assert!(program.line().starts_with("ready"));
        let tasks = format!("/proc/{}/task/{UPPER_HALF}", program.child.id());
        if !Path::new(&tasks).exists() {
            program.kill();
            continue;
        }
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", program.child.id())).expect("it runs");
        assert!(maps.starts_with(&format!("{UPPER_HALF:x}")), "the program lies elsewhere: {maps}");
        program.capture(&image, "sync");
        program.kill();
        let mut program = restart(&image);
        program.poke("x");
        assert_eq!(program.line(), "alive");
        assert_eq!(program.finish(), "all were owned\n");
        return;
    }
    panic!("no program had the id {UPPER_HALF} in {TRIES_MAX} tries");
}
