//! Programs that know nothing of checkpoints, under `stillwire run --ckpt-every`: saved as whole processes, killed, and restored, by the
//! launcher itself or by `stillwire restart` in another one. No rank speaks to another here.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::support::programs::{library, steps, sum};
use crate::support::{Done, Place, Running, done, signal, stillwire, verified, wait_until};

fn job(ranks: u32, place: &Place, words: &[&str]) -> Running {
    let mut command = stillwire(&["run", "-n", &ranks.to_string(), "--ckpt-every", "100ms", "--ckpt-dir"]);
    command.arg(place.job()).arg("--").args(words).env("STILLWIRE_PROVIDER", library());
    Running::start(command)
}

/// Every rank has ended well with this as its last line.
fn ended_with(done: &Done, ranks: u32, sum: &str) {
    assert_eq!(done.code, Some(0), "{done:?}");
    for rank in 0..ranks {
        let start = format!("[{rank}] ");
        let own: Vec<&str> = done.stdout.lines().filter_map(|line| line.strip_prefix(&start)).collect();
        assert_eq!(own.last(), Some(&sum), "rank {rank}: {done:?}");
        // Steps that were printed after the checkpoint come again; no earlier step is lost.
        let numbers =
            own.iter().filter_map(|line| line.strip_prefix("step ")?.split(' ').next()?.parse().ok());
        let seen: BTreeSet<u64> = numbers.collect();
        assert!(seen.iter().copied().eq(0..seen.len() as u64), "rank {rank}: {done:?}");
    }
}

/// Whether a generation's image of rank 0 is a delta.
fn is_delta(place: &Place, generation: &str) -> bool {
    let done =
        done(&mut stillwire(&["inspect", place.file(generation, "rank-00000000.image").to_str().unwrap()]));
    assert_eq!(done.code, Some(0), "{done:?}");
    done.stdout.contains("a delta: it needs the image of generation ")
}

/// Has `userfaultfd(2)` fail in a command and all that it starts, as containers do.
fn without_tracking(command: &mut Command) {
    let statement = |code: u32, jf: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).expect("two bytes"),
        jt: 0,
        jf,
        k,
    };
    let (load, equals, answer) = (
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::BPF_RET | libc::BPF_K,
    );
    let number = u32::try_from(libc::SYS_userfaultfd).expect("a small number");
    const FILTER_STATEMENTS: u16 = 4;
    let mut filter = [
        statement(load, 0, 0),
        statement(equals, 1, number),
        statement(answer, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned()),
        statement(answer, 0, libc::SECCOMP_RET_ALLOW),
    ];
    assert_eq!(filter.len(), usize::from(FILTER_STATEMENTS));
    // SAFETY: two system calls between fork and exec; the kernel copies the filter.
    unsafe {
        command.pre_exec(move || {
            let program = libc::sock_fprog { len: FILTER_STATEMENTS, filter: filter.as_mut_ptr() };
            let is_set = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0;
            if is_set { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
}

#[test]
fn deltas_by_a_scan_are_restored_after_the_generation_of_their_base_is_gone() {
    deltas_are_restored(Some("scan"), &|_| {});
}

#[test]
fn deltas_by_content_are_restored_after_the_generation_of_their_base_is_gone() {
    deltas_are_restored(Some("content"), &|_| {});
}

#[test]
fn where_the_kernel_cannot_track_deltas_are_by_content() {
    deltas_are_restored(None, &without_tracking);
}

/// Of 24 MB a step touches a few pages: deltas on top of a whole image, whose generation is collected before they are.
fn deltas_are_restored(capture: Option<&str>, limit: &dyn Fn(&mut Command)) {
    let place = Place::new();
    let (arguments, enough) = (["90", "20000", "24000000"], place.enough().display().to_string());
    let program = steps();
    let words = [&[program.as_str()], &arguments[..], &[&enough, "3"]].concat();
    let job = |restart: bool| {
        let mut command = if restart {
            stillwire(&["restart", &place.job_text()])
        } else {
            let mut command = stillwire(&["run", "-n", "2", "--keep", "1", "--ckpt-every", "100ms"]);
            command.args(capture.iter().flat_map(|capture| ["--capture", capture]));
            command.args(["--ckpt-dir", &place.job_text(), "--"]).args(&words);
            command
        };
        limit(&mut command);
        command.env("STILLWIRE_PROVIDER", library());
        Running::start(command)
    };
    let mut first = job(false);
    for _ in 0..3 {
        // The first one of a life is whole; the third has seen the first one's generation go.
        for _ in 0..4 {
            first.wait_for("committed");
        }
        signal(first.ranks()[1], "KILL");
        first.wait_for("begins from generation");
        first.wait_for("all ranks run again");
    }
    for _ in 0..4 {
        first.wait_for("committed");
    }
    first.signal("KILL");
    let done_first = first.finish_reading();
    wait_until("the guard has cleaned up", || place.lock_is_free());
    let kept = place.generations("committed");
    let newest = kept.last().expect("a generation");
    assert!(is_delta(&place, newest), "{done_first:?}");
    let listed = done(&mut stillwire(&["ls", &place.job_text()]));
    assert!(listed.stdout.contains("2 of its images are deltas, with their bases beside them"), "{listed:?}");
    let image = std::fs::metadata(place.file(newest, "rank-00000000.image")).unwrap().len();
    let base = std::fs::metadata(place.file(newest, "rank-00000000.base")).unwrap().len();
    assert!(image < base / 2, "{image} of {base} bytes");
    assert_eq!(done(&mut stillwire(&["verify", &place.job_text()])).code, Some(0));
    place.let_end();
    let last = job(true).finish_reading();
    assert_eq!(last.code, Some(0), "{last:?}");
    let sum = sum(&[&arguments[..], &["/", "3"]].concat());
    for rank in 0..2 {
        assert!(last.stdout.lines().any(|line| line == format!("[{rank}] {sum}")), "{last:?}");
    }
}

#[test]
fn a_damaged_base_is_reported_and_not_restored() {
    let place = Place::new();
    let mut command =
        stillwire(&["run", "-n", "1", "--capture", "scan", "--keep", "1", "--ckpt-every", "100ms"]);
    command.args([
        "--ckpt-dir",
        &place.job_text(),
        "--",
        &steps(),
        "1000",
        "20000",
        "24000000",
        "/none",
        "3",
    ]);
    command.env("STILLWIRE_PROVIDER", library());
    let mut first = Running::start(command);
    for _ in 0..4 {
        first.wait_for("committed");
    }
    first.signal("KILL");
    drop(first.finish_reading());
    wait_until("the guard has cleaned up", || place.lock_is_free());
    // One file with a name in each of them.
    let newest = place.generations("committed").pop().expect("a generation");
    let base = place.file(&newest, "rank-00000000.base");
    let mut bytes = std::fs::read(&base).expect("a base");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&base, bytes).expect("a file can be written");
    let mut command = stillwire(&["restart", &place.job_text()]);
    let refused = done(command.env("STILLWIRE_PROVIDER", library()));
    assert_eq!(refused.code, Some(3), "{refused:?}");
    refused.says(&["damaged", "rank-00000000.base"]);
}

#[test]
fn killed_ranks_go_on_from_the_last_checkpoint() {
    let place = Place::new();
    let (arguments, enough) = (["200", "20000", "3000000"], place.enough().display().to_string());
    let mut job = job(2, &place, &[&[steps().as_str()], &arguments[..], &[&enough]].concat());
    for rank in [1, 0, 1] {
        job.wait_for("committed");
        job.wait_for("committed");
        signal(job.ranks()[rank], "KILL");
        job.wait_for("begins from generation");
        job.wait_for("all ranks run again");
    }
    place.let_end();
    let done = job.finish_reading();
    ended_with(&done, 2, &sum(&arguments));
    let processes: BTreeSet<&str> =
        done.stdout.lines().filter_map(|line| line.rsplit_once("of process ")).map(|(_, pid)| pid).collect();
    assert!(processes.len() >= 2 * 4, "two ranks in four lives: {done:?}");
}

#[test]
fn killed_ranks_go_on_however_they_were_captured() {
    for capture in ["auto", "fork", "sync"] {
        let place = Place::new();
        let (arguments, enough) = (["60", "20000", "1000000"], place.enough().display().to_string());
        let mut command =
            stillwire(&["run", "-n", "2", "--ckpt-every", "100ms", "--capture", capture, "--ckpt-dir"]);
        command.arg(place.job()).arg("--").arg(steps()).args(arguments).arg(&enough);
        command.env("STILLWIRE_PROVIDER", library());
        let mut job = Running::start(command);
        for rank in [0, 1, 0] {
            job.wait_for("committed");
            job.wait_for("committed");
            signal(job.ranks()[rank], "KILL");
            job.wait_for("begins from generation");
            job.wait_for("all ranks run again");
        }
        place.let_end();
        ended_with(&job.finish_reading(), 2, &sum(&arguments));
    }
}

#[test]
fn a_job_goes_on_after_everything_has_died() {
    let place = Place::new();
    let (arguments, enough) = (["60", "20000", "1000000"], place.enough().display().to_string());
    let mut first = job(2, &place, &[&[steps().as_str()], &arguments[..], &[&enough]].concat());
    first.wait_for("committed");
    first.wait_for("committed");
    first.signal("KILL");
    drop(first.finish_reading());
    wait_until("the guard has cleaned up", || place.lock_is_free());
    place.let_end();
    let mut command = stillwire(&["restart", &place.job_text()]);
    command.env("STILLWIRE_PROVIDER", library());
    let done = Running::start(command).finish_reading();
    assert_eq!(done.code, Some(0), "{done:?}");
    let sum = sum(&arguments);
    for rank in 0..2 {
        assert!(done.stdout.lines().any(|line| line == format!("[{rank}] {sum}")), "{done:?}");
        // It did not begin again.
        assert!(!done.stdout.contains(&format!("[{rank}] step 0 ")), "{done:?}");
    }
}

/// The directory that the job remembers is out of date.
#[test]
fn a_job_whose_directory_was_moved_goes_on_and_is_saved_there() {
    let (place, there) = (Place::new(), Place::new());
    let (arguments, enough) = (["60", "20000", "1000000"], place.enough().display().to_string());
    let mut first = job(1, &place, &[&[steps().as_str()], &arguments[..], &[&enough]].concat());
    first.wait_for("committed");
    first.signal("KILL");
    drop(first.finish_reading());
    wait_until("the guard has cleaned up", || place.lock_is_free());
    std::fs::rename(place.job(), there.job()).unwrap();
    let mut command = stillwire(&["restart", &there.job_text()]);
    command.env("STILLWIRE_PROVIDER", library());
    let mut second = Running::start(command);
    second.wait_for("committed");
    place.let_end();
    let done = second.finish_reading();
    assert_eq!(done.code, Some(0), "{done:?}");
    let sum = sum(&arguments);
    assert!(done.stdout.lines().any(|line| line == format!("[0] {sum}")), "{done:?}");
    assert!(!place.job().exists());
}

#[test]
fn what_a_script_or_a_wrapper_starts_in_its_own_place_is_saved() {
    for wrapper in [&["env", "A=b"][..], &["sh", "-c", "sleep 0.3; exec \"$@\"", "sh"]] {
        let place = Place::new();
        let (arguments, enough) = (["50", "20000", "1000000"], place.enough().display().to_string());
        let mut job = job(1, &place, &[wrapper, &[&steps()], &arguments, &[&enough]].concat());
        job.wait_for("committed");
        signal(job.ranks()[0], "KILL");
        job.wait_for("begins from generation");
        place.let_end();
        ended_with(&job.finish_reading(), 1, &sum(&arguments));
    }
}

#[test]
fn what_a_script_starts_beside_itself_is_not_saved_and_the_reason_is_reported() {
    let place = Place::new();
    let script = format!("{} 10 20000 1000000 {}; true", steps(), place.enough().display());
    let mut command = stillwire(&["run", "-n", "2", "--ckpt-every", "100ms", "--start-timeout", "1s"]);
    command.arg("--ckpt-dir").arg(place.job()).args(["--", "sh", "-c", &script]);
    let mut job = Running::start({
        command.env("STILLWIRE_PROVIDER", library());
        command
    });
    job.wait_for("no checkpoint is taken before all ranks have connected");
    let reported = job.wait_for("rank 0 is a shell");
    for words in [
        "that waits for steps-",
        "only the process that the launcher has started can be saved",
        "`exec steps-",
    ] {
        assert!(reported.contains(words), "{reported}");
    }
    // It runs on, to its own end.
    std::thread::sleep(std::time::Duration::from_secs(2));
    place.let_end();
    let done = job.finish_reading();
    assert_eq!(done.code, Some(0), "{done:?}");
    let said = done.stderr.matches("rank 0 is a shell").count();
    assert_eq!(said, 2, "once, and in the last words: {done:?}");
    done.says(&["warning: no checkpoint was taken, as no rank connected: rank 0 is a shell"]);
}

#[test]
fn a_program_that_takes_no_library_is_not_saved_and_the_reason_is_reported() {
    let place = Place::new();
    let program = place.folder.path().join("static").display().to_string();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/programs/steps.c");
    let built = std::process::Command::new("cc").args(["-static", "-o", &program, source]).output();
    let built = built.expect("a C compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let mut job = job(1, &place, &[&program, "100000", "20000", "1000000"]);
    let reported = job.wait_for("has not loaded");
    assert!(
        reported.contains("rank 0 (static, process ") && reported.contains("linked statically"),
        "{reported}"
    );
    job.signal("INT");
    assert_eq!(job.finish_reading().code, Some(130));
}

#[test]
fn a_program_with_points_of_its_own_is_left_alone_behind_a_script() {
    let place = Place::new();
    let sort = place.sort();
    let words: Vec<&str> =
        ["sh", "-c", "exec \"$@\"", "sh"].into_iter().chain(sort.iter().map(String::as_str)).collect();
    let mut job = job(2, &place, &words);
    job.wait_for("committed");
    job.wait_for("committed");
    signal(job.ranks()[1], "KILL");
    job.wait_for("begins from generation");
    job.wait_for("all ranks run again");
    job.wait_for("committed");
    place.let_end();
    let done = job.finish_reading();
    verified(&done);
    // Its line to the keeper is its own: nothing but the kill has ended a life.
    assert_eq!(done.stderr.matches("died").count(), 1, "{done:?}");
}

/// Descriptors and mappings of a rank that belong to the launcher or the tracker do not keep it from being saved, and `doctor` knows it.
#[test]
fn nothing_speaks_against_saving_a_rank_that_is_saved() {
    let place = Place::new();
    let mut command =
        stillwire(&["run", "-n", "1", "--ckpt-every", "50ms", "--capture", "scan", "--ckpt-dir"]);
    command
        .arg(place.job())
        .arg("--")
        .args([&steps(), "100000", "1000", "16777216"])
        .env("STILLWIRE_PROVIDER", library());
    let mut job = Running::start(command);
    for _ in 0..3 {
        job.wait_for("committed");
    }
    let rank = job.ranks()[0].to_string();
    let reported = done(&mut stillwire(&["doctor", "--pid", &rank]));
    assert!(reported.stdout.contains(&format!("nothing prevents saving process {rank}")), "{reported:?}");
    job.signal("INT");
    job.finish();
}

#[test]
fn what_cannot_be_saved_is_reported_and_the_program_goes_on() {
    let place = Place::new();
    let script = format!(
        "import os, subprocess, time\nchild = subprocess.Popen(['sleep', '1000'])\n\
         while not os.path.exists('{}'): time.sleep(0.02)\nchild.kill(); child.wait(); print('done')",
        place.enough().display()
    );
    let runtime = tempfile::tempdir().expect("a folder");
    let mut command = stillwire(&["run", "-n", "1", "--json", "--ckpt-every", "100ms", "--ckpt-dir"]);
    command.arg(place.job()).args(["--", "env", "python3", "-c", &script]);
    command.env("STILLWIRE_PROVIDER", library()).env("XDG_RUNTIME_DIR", runtime.path());
    let mut job = Running::start(command);
    let said = job.wait_for("was abandoned");
    assert!(said.contains("rank 0 cannot be saved: ") && said.contains("child"), "{said}");
    // It is reported once, and a later `ps` shows it.
    let ps = |option: &[&str]| {
        let words = [&["ps"], option].concat();
        done(stillwire(&words).env("XDG_RUNTIME_DIR", runtime.path()))
    };
    let failing = || ps(&["--json"]).json()["jobs"][0]["status"]["failing"].clone();
    wait_until("several have failed", || failing()["times"].as_u64().is_some_and(|times| times >= 5));
    assert!(failing()["reason"].as_str().expect("words").contains("child"), "{}", failing());
    let shown = ps(&[]).stdout;
    assert!(shown.contains("checkpoints failed since the last commit") && shown.contains("child"), "{shown}");
    place.let_end();
    let done = job.finish_reading();
    assert_eq!(done.code, Some(0), "{done:?}");
    done.says(&["[0] done"]);
    assert_eq!(done.stderr.matches("was abandoned: rank 0 cannot be saved").count(), 1, "{done:?}");
    let report = done.json();
    let failed = report["failed_checkpoints"].as_array().expect("a list");
    assert!(failed.iter().any(|failed| failed["times"].as_u64() >= Some(5)), "{report}");
    let warning = report["warnings"][0].as_str().expect("words");
    assert!(warning.starts_with("the last ") && warning.contains("child"), "{report}");
}

#[test]
fn an_image_that_is_damaged_is_not_restored() {
    let place = Place::new();
    let mut first = job(1, &place, &[&steps(), "1000", "20000", "1000000"]);
    first.wait_for("committed");
    first.signal("KILL");
    drop(first.finish_reading());
    wait_until("the guard has cleaned up", || place.lock_is_free());
    for generation in place.generations("committed") {
        let image = place.file(&generation, "rank-00000000.image");
        let mut bytes = std::fs::read(&image).expect("an image");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&image, bytes).expect("a file can be written");
    }
    let mut command = stillwire(&["restart", &place.job_text()]);
    let done = done(command.env("STILLWIRE_PROVIDER", library()));
    assert_eq!(done.code, Some(3), "{done:?}");
    done.says(&["damaged", "rank-00000000.image"]);
}
