//! Resources that cannot be saved are refused before anything is stopped, by name and with a remedy; the program
//! continues. Descriptors have tests of their own.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

use crate::support::{Program, compile, start};

/// The program must be refused with a sentence that has all of `parts`, and go on.
fn refused(mut program: Program, parts: &[&str]) {
    let first = program.line();
    if first == "missing" {
        return crate::skipped::skipped(
            &format!("a refusal of {parts:?}"),
            "a kernel and a processor that have it",
        );
    }
    assert_eq!(first, "ready");
    let answer = program.ask("capture /dev/null fork");
    assert!(answer.starts_with("failed: this process cannot be saved: "), "{answer}");
    for part in parts {
        assert!(answer.contains(part), "{answer}, expected {part}");
    }
    assert_eq!(program.finish(), "");
}

fn holding(kind: &str) -> Program {
    start(Command::new(compile("refused", &[])).arg(kind))
}

#[test]
fn what_holds_nothing_is_saved() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut program = holding("nothing");
    assert_eq!(program.line(), "ready");
    program.capture(&folder.path().join("image"), "fork");
    assert_eq!(program.finish(), "");
}

#[test]
fn memory_that_is_not_the_program_s_alone() {
    for (kind, parts) in [
        ("system-v", ["the mapping ", "/SYSV", "use mmap with MAP_SHARED"]),
        ("secret", ["the mapping ", "/secretmem", "use mlock instead"]),
        ("huge", ["the mapping ", "hugetlbfs", "MADV_HUGEPAGE"]),
        ("asynchronous", ["the mapping ", "/[aio]", "asynchronous I/O"]),
        ("keyed", ["the mapping ", "protection key", "free the key"]),
    ] {
        refused(holding(kind), &parts);
    }
}

#[test]
fn memory_that_another_process_writes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("common");
    std::fs::write(&path, vec![0; 2 << 20]).expect("room");
    let file = File::options().read(true).write(true).open(&path).expect("it is there");
    let both = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, which nothing refers to.
    let at =
        unsafe { libc::mmap(std::ptr::null_mut(), 2 << 20, both, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert_ne!(at, libc::MAP_FAILED);
    let program = start(Command::new(compile("refused", &[])).arg("named").arg(&path));
    let own = format!("process {}", std::process::id());
    refused(program, &["the memory at ", "/common", &own, "let each process have memory of its own"]);
    // SAFETY: the mapping above.
    unsafe { libc::munmap(at, 2 << 20) };
}

#[test]
fn threads_that_cannot_be_made_anew() {
    refused(holding("ended"), &["the main thread has ended", "let main wait"]);
    refused(holding("filtered"), &["thread ", "seccomp filter of its own", "before the process starts"]);
}

#[test]
fn a_program_that_is_traced() {
    let program = holding("nothing");
    let pid = program.child.id().cast_signed();
    // SAFETY: attaches this thread to our own child, without stopping it.
    let traced = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) };
    if traced != 0 {
        return crate::skipped::skipped("a_program_that_is_traced", "leave to trace a child (yama)");
    }
    refused(program, &["a debugger or tracer is attached", "detach it"]);
}

/// An area that the C library knows nothing of, because it was switched off.
#[test]
fn restartable_sequences_of_an_allocator() {
    let mut command = Command::new(compile("refused", &[]));
    let program = start(command.arg("rseq").env("GLIBC_TUNABLES", "glibc.pthread.rseq=0"));
    refused(program, &["rseq", "let the C library do it"]);
}

#[test]
fn processes_that_cannot_be_started_again() {
    refused(holding("ended-child"), &["the child process ", "(refused", "wait for its end"]);
    refused(holding("undumpable"), &["not dumpable", "leave the process dumpable"]);

    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("copy");
    std::fs::copy(compile("refused", &[]), &copy).expect("room");
    let program = start(Command::new(&copy as &Path).arg("nothing"));
    std::fs::remove_file(&copy).expect("it is there");
    refused(program, &["its executable has been removed or replaced", "keep the file"]);
}
