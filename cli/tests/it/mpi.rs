//! `stillwire run` of programs of MPI libraries: programs that speak PMI-1, programs that are linked to an MPI library, and clients that
//! misbehave. The real libraries are run by `tests/mpi/run`; here a small C program speaks, and libraries are
//! empty files with the right names.

use std::fs;
use std::io::{Read as _, Write as _};
use std::num::NonZero;
use std::os::fd::FromRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::pmi::{BARRIER, END, INIT, cc, client, clients, ends, provider};
use crate::support::{Done, Running, children, done, runs, stillwire, wait_until};
use ckpt_glue::control::{ClosedLink, Control, ControlKey, ControlReader, ControlWriter, Message};
use ckpt_glue::names::Party;
use client::launch::Launch;
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use tempfile::TempDir;
use transport::{Epoch, PortId, Rank};

#[test]
fn ranks_find_each_other_and_finish() {
    let done = ends(
        3,
        &["--json"],
        &[
            &["map", "say:cmd=get_my_kvsname", "hear:cmd=my_kvsname kvsname=stillwire-"],
            &["say:cmd=publish_name service=s%r port=p%r", "hear:cmd=publish_result rc=0"],
            &BARRIER,
            &["say:cmd=lookup_name service=s2", "hear:cmd=lookup_result rc=0 info=ok port=p2"],
            &BARRIER,
            &["env:PMI_SIZE", "env:MPI_LOCALNRANKS", "env:FI_PROVIDER", "env:MPIR_CVAR_NOLOCAL"],
            &END,
        ],
    );
    let report = done.json();
    assert_eq!((done.code, &report["outcome"]), (Some(0), &"finished".into()), "{done:?}");
    for line in
        ["[2] PMI_SIZE=3", "[0] MPI_LOCALNRANKS=3", "[1] FI_PROVIDER=stillwire", "[1] MPIR_CVAR_NOLOCAL=1"]
    {
        assert!(done.stderr.lines().any(|seen| seen == line), "{line}: {done:?}");
    }
}

#[test]
fn a_rank_is_part_of_no_other_job() {
    let provider = provider();
    let mut command = clients(
        provider.path(),
        1,
        &["--quiet"],
        &[&["map", "env:PMIX_RANK", "env:PMI_SIZE", "env:PMI_PORT"], &END],
    );
    let done = done(command.env("PMIX_RANK", "7").env("PMI_SIZE", "99").env("PMI_PORT", "host:1"));
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (Some(0), "PMIX_RANK=\nPMI_SIZE=1\nPMI_PORT=\n"),
        "{done:?}"
    );
}

/// R12: the state that a rank's provider leaves with the keeper when it closes a port goes to another rank's provider.
#[test]
fn the_keeper_answers_for_ports_that_providers_have_closed() {
    let provider = provider();
    let this = std::env::current_exe().unwrap();
    let mut run = stillwire(&["run", "-n", "2", "--"]);
    run.env("STILLWIRE_PROVIDER", provider.path()).arg(this).args([
        "--exact",
        "mpi::a_rank_that_closes_or_asks",
        "--ignored",
        "--nocapture",
    ]);
    let done = done(&mut run);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stdout.contains("it has everything before 41"), "{done:?}");
}

#[test]
#[ignore = "a rank that the test before runs"]
fn a_rank_that_closes_or_asks() {
    let pmi: i32 = std::env::var("PMI_FD").expect("a rank of a job").parse().unwrap();
    // SAFETY: the launcher opened the descriptor for this process, and nothing else here knows of it.
    let mut pmi = unsafe { UnixStream::from_raw_fd(pmi) };
    let mut pmi_says = |line: &str| {
        pmi.write_all(format!("{line}\n").as_bytes()).unwrap();
        assert!(pmi.read(&mut [0; 1024]).unwrap() > 0);
    };
    let library = Path::new(&std::env::var_os("FI_PROVIDER_PATH").unwrap()).join("libstillwire_fi.so");
    let library = fs::File::open(library).unwrap();
    // SAFETY: a mapping that nobody reads; the launcher looks whether it is there.
    let mapped = unsafe {
        mmap(None, NonZero::new(4096).unwrap(), ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE, library, 0)
    };
    mapped.unwrap();
    let number: i32 = std::env::var("STILLWIRE_SOCKET").unwrap().parse().unwrap();
    // SAFETY: as above.
    let mut keeper = unsafe { UnixStream::from_raw_fd(number) };
    let launch = Launch::read(&mut keeper).unwrap();
    let key = ControlKey::new(&launch.key);
    let (mut writer, mut reader) = (ControlWriter::new(key.clone()), ControlReader::new(key));
    let (closed, asker) = (PortId::of_rank(Rank(0), 1), PortId::of_rank(Rank(1), 1));
    let mut say = |message| {
        let Launch { job, life, rank, .. } = launch;
        let mut bytes = Vec::new();
        let sender = Party::Rank(rank);
        writer.emit(&Control { job, life, epoch: Epoch(0), sender, message }, &mut bytes);
        (&keeper).write_all(&bytes).unwrap();
    };
    pmi_says(INIT[0].strip_prefix("say:").unwrap());
    pmi_says("cmd=barrier_in");
    if launch.rank == Rank(0) {
        let links = vec![ClosedLink { peer: asker, next: 7, expected: 41 }];
        say(Message::Closed { port: closed, links, last: true });
    } else {
        let started = Instant::now();
        let mut chunk = [0; 4096];
        loop {
            say(Message::ClosedQuery { port: closed, peer: asker });
            let got = (&keeper).read(&mut chunk).unwrap();
            reader.feed(&chunk[..got]);
            match reader.next().unwrap().map(|control| control.message) {
                Some(Message::ClosedAnswer { link: Some(link), .. }) => {
                    break println!("it has everything before {}", link.expected);
                }
                _ => assert!(started.elapsed() < Duration::from_secs(30), "no answer"),
            }
        }
    }
    pmi_says("cmd=finalize");
    // The keeper's socket closes with the process.
    std::mem::forget((pmi, keeper));
}

#[test]
fn a_program_that_fails_passes_its_code_on() {
    for (steps, code, words) in [
        (&["only:1", "say:cmd=abort exitcode=7", "sleep:60"][..], 7, "rank 1 aborted the job (code 7)"),
        (&["only:1", "exit:3", "sleep:60"], 3, "rank 1 exited with code 3"),
        (&["only:1", "signal:9", "sleep:60"], 137, "rank 1 died (signal 9)"),
        (&["only:1", "exit:5", "say:cmd=barrier_in", "hear:x"], 5, "rank 1 exited with code 5"),
    ] {
        let done = ends(2, &[], &[steps]);
        assert_eq!(done.code, Some(code), "{done:?}");
        done.says(&[words, "the job ends"]);
        assert!(!done.stderr.contains("rolling back"), "{done:?}");
    }
    let failed_after_all = ends(2, &["--json"], &[&["map"], &END, &["exit:6"]]);
    assert_eq!((failed_after_all.code, &failed_after_all.json()["exit_code"]), (Some(6), &6.into()));
    // The others have their time, as under MPICH's own mpiexec.
    let one = ["only:1", "say:cmd=finalize", "only:1", "hear:cmd=finalize_ack", "only:1", "exit:6"];
    let others_go_on = ends(2, &[], &[&["map"], &one, &["sleep:1", "env:PMI_RANK"], &END]);
    assert_eq!((others_go_on.code, others_go_on.stdout.as_str()), (Some(6), "[0] PMI_RANK=0\n"));
    others_go_on.says(&["rank 1 ended with exit code 6"]);
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    for (ranks, steps, words) in [
        // Its process ended well, but it never spoke: nobody else can know.
        (
            3,
            vec!["say:cmd=barrier_in", "hear:cmd=barrier_out"],
            "rank 2 is ended: it ended without reaching a barrier",
        ),
        (
            2,
            vec!["only:0", "say:cmd=barrier_in", "sleep:60"],
            "rank 1 did not reach the first barrier of MPI_Init within 1",
        ),
    ] {
        let provider = provider();
        let mut command = stillwire(&["run", "-n", &ranks.to_string(), "--start-timeout", "1s", "--"]);
        if ranks == 3 {
            // The last rank is a program that has nothing to do with MPI.
            let script = format!("[ $PMI_RANK = 2 ] || exec {} \"$@\"", client());
            command.args(["sh", "-c", &script, "client"]);
        } else {
            command.arg(client());
        }
        let done = done(command.env("STILLWIRE_PROVIDER", provider.path()).args(INIT).args(steps));
        assert_eq!(done.code, Some(4), "{done:?}");
        done.says(&[words]);
    }
    let provider = provider();
    let script = format!("[ $PMI_RANK = 1 ] && exec sleep 60; exec {} \"$@\" sleep:60", client());
    let mut command =
        stillwire(&["run", "-n", "3", "--start-timeout", "1s", "--", "sh", "-c", &script, "client"]);
    let done = done(command.env("STILLWIRE_PROVIDER", provider.path()).args(INIT));
    assert_eq!(done.code, Some(4), "{done:?}");
    done.says(&["rank 1 did not call MPI_Init within 1", "(--start-timeout); those that have wait for it"]);
}

#[test]
fn what_is_no_pmi_ends_the_job_with_a_reason() {
    for (step, words) in [
        ("raw:5000", "a line of more than 2048 bytes"),
        ("say:GET / HTTP/1.1", "a line that begins with `GET / HTTP/1.1`"),
        ("say:cmd=get_rich", "the command `get_rich`"),
        ("say:cmd=put key=k", "`put` has no `kvsname`"),
        ("flood:200000", "does not read the answers"),
    ] {
        let done = ends(2, &[], &[&["only:0", step, "sleep:60"]]);
        assert_eq!(done.code, Some(4), "{done:?}");
        done.says(&["rank 0 is ended", words]);
    }
}

/// Rank 0's messages that spawn so many clients with these steps after `init`; the next step comes when they run.
fn spawning(processes: u32, hints: &[(&str, &str)], program: &str, steps: &[&str]) -> Vec<String> {
    let mut lines =
        vec!["mcmd=spawn".to_owned(), format!("nprocs={processes}"), format!("execname={program}")];
    let steps = INIT.iter().chain(steps);
    lines.extend((1..).zip(steps).map(|(at, step)| format!("arg{at}={step}")));
    lines.push(format!("argcnt={}", lines.len() - 3));
    lines.extend(["preput_num=1", "preput_key_0=PORT", "preput_val_0=here"].map(String::from));
    lines.push(format!("info_num={}", hints.len()));
    for (at, (key, value)) in hints.iter().enumerate() {
        lines.extend([format!("info_key_{at}={key}"), format!("info_val_{at}={value}")]);
    }
    lines.push("endcmd".to_owned());
    lines.into_iter().flat_map(|line| ["only:0".to_owned(), format!("say:{line}")]).collect()
}

/// Runs two ranks, of which the first spawns two clients with these steps, is answered so, and goes on.
fn spawns(options: &[&str], child: &[&str], answer: &str, then: &[&str]) -> Done {
    let spawn = spawning(2, &[], &client(), child);
    let spawn: Vec<&str> = spawn.iter().map(String::as_str).collect();
    let answer = format!("hear:cmd=spawn_result {answer}");
    ends(2, options, &[&["map"], &BARRIER, &spawn, &["only:0", &answer], then])
}

#[test]
fn spawned_processes_are_a_world_of_their_own() {
    let child = [
        "map",
        "say:cmd=get_my_kvsname",
        "hear:cmd=my_kvsname kvsname=stillwire-",
        "say:cmd=publish_name service=up port=p",
        "hear:cmd=publish_result",
        "say:cmd=barrier_in",
        "hear:cmd=barrier_out",
        "env:PMI_SPAWNED",
        "env:PMI_RANK",
        "env:PMI_SIZE",
        "env:FI_PROVIDER",
        "say:cmd=finalize",
        "hear:cmd=finalize_ack",
    ];
    // The ranks end first: the job is over when the last of all has ended.
    let done = spawns(&["--json"], &[&child[..], &["sleep:1", "env:PMI_FD"]].concat(), "rc=0", &END);
    let report = done.json();
    assert_eq!((done.code, &report["outcome"]), (Some(0), &"finished".into()), "{done:?}");
    for line in ["[1:0] PMI_SPAWNED=1", "[1:1] PMI_RANK=1", "[1:0] PMI_SIZE=2", "[1:1] FI_PROVIDER=stillwire"]
    {
        assert!(done.stderr.lines().any(|seen| seen == line), "{line}: {done:?}");
    }
    assert_eq!(done.stderr.matches("PMI_FD=").count(), 2, "{done:?}");
    let reported = spawns(&[], &[&child[..], &["sleep:1"]].concat(), "rc=0", &END);
    reported.says(&["rank 0 has spawned world 1, 2 processes", "waiting for 2 spawned processes"]);
}

#[test]
fn what_cannot_be_spawned_is_reported_to_the_program() {
    for (program, hints, words) in [
        ("no-such-program", &[][..], "no directory in PATH"),
        ("/etc", &[], "no file that may be executed"),
        ("client", &[("host", "elsewhere.example")], "host 'elsewhere.example' is not this one"),
        ("client", &[("wdir", "/no/such/folder")], "/no/such/folder is not there"),
        ("client", &[("path", "/no/such:/nor/such")], "no directory in PATH"),
    ] {
        let spawn = spawning(2, hints, program, &[]);
        let spawn: Vec<&str> = spawn.iter().map(String::as_str).collect();
        let done = ends(1, &[], &[&["map"], &spawn, &["hear:cmd=spawn_result rc=-1"], &END]);
        assert_eq!(done.code, Some(0), "{done:?}");
        done.says(&["rank 0 asks for more processes", words]);
    }
    let spawn = spawning(100_000, &[], &client(), &[]);
    let spawn: Vec<&str> = spawn.iter().map(String::as_str).collect();
    let done = ends(1, &[], &[&["map"], &spawn, &["hear:cmd=spawn_result rc=-1"], &END]);
    done.says(&["100000 processes beside 0 that run already, at most 1024"]);
}

#[test]
fn hints_say_where_a_spawned_program_is_and_where_it_runs() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().canonicalize().unwrap();
    std::os::unix::fs::symlink(client(), folder.join("a client")).unwrap();
    let text = folder.display().to_string();
    let hints = [("path", text.as_str()), ("wdir", &text), ("host", "localhost"), ("what", "ever")];
    let spawn = spawning(1, &hints, "a client", &["map", "cwd", "say:cmd=finalize", "hear:cmd=finalize_ack"]);
    let spawn: Vec<&str> = spawn.iter().map(String::as_str).collect();
    let done = ends(1, &[], &[&["map"], &spawn, &["hear:cmd=spawn_result rc=0"], &END]);
    assert_eq!((done.code, done.stdout), (Some(0), format!("[1:0] {text}\n")));
}

#[test]
fn a_spawned_process_that_fails_ends_the_job() {
    for (child, code, words) in [
        (
            &["only:1", "say:cmd=abort exitcode=7", "sleep:60"][..],
            7,
            "rank 1 of spawned world 1 aborted the job (code 7)",
        ),
        (&["only:1", "exit:3", "sleep:60"], 3, "rank 1 of spawned world 1 died (exit code 3)"),
        (&["only:0", "signal:9", "sleep:60"], 137, "rank 0 of spawned world 1 died (SIGKILL)"),
        (&["only:1", "exit:0", "sleep:60"], 4, "rank 1 of spawned world 1 died (exit code 0)"),
        (
            &["map", "say:cmd=finalize", "hear:cmd=finalize_ack", "only:1", "exit:6"],
            6,
            "rank 1 of spawned world 1 died (exit code 6)",
        ),
        (
            &["only:0", "say:GET / HTTP/1.1", "sleep:60"],
            4,
            "rank 0 of spawned world 1 is ended: it sent a line",
        ),
    ] {
        let done = spawns(&[], child, "rc=0", &["sleep:60"]);
        assert_eq!(done.code, Some(code), "{done:?}");
        done.says(&[words, "the job ends"]);
    }
    // Also when the ranks have ended well before.
    let late = spawns(
        &[],
        &["map", "say:cmd=barrier_in", "hear:cmd=barrier_out", "sleep:1", "only:1", "exit:9", "sleep:60"],
        "rc=0",
        &END,
    );
    assert_eq!(late.code, Some(9), "{late:?}");
    late.says(&["waiting for 2 spawned processes", "rank 1 of spawned world 1 died (exit code 9)"]);
}

#[test]
fn a_spawned_program_that_is_none_of_mpi_is_found_out() {
    for (program, options, words) in [
        ("true", &[][..], "it ended without calling MPI_Init, for which rank 0, which spawned it, waits"),
        ("sleep", &["--start-timeout", "1s"], "did not call MPI_Init within 1"),
    ] {
        let program = format!("say:execname={program}");
        let spawn = ["say:mcmd=spawn", "say:nprocs=1", &program, "say:argcnt=1", "say:arg1=60", "say:endcmd"];
        let done = ends(1, options, &[&["map"], &spawn, &["hear:cmd=spawn_result rc=0", "sleep:60"]]);
        assert_eq!(done.code, Some(4), "{done:?}");
        done.says(&["rank 0 of spawned world 1 is ended", words]);
    }
}

#[test]
fn ctrl_c_ends_spawned_processes_also_when_the_ranks_have_ended() {
    for (then, event) in
        [(&["sleep:60"][..], "has spawned world 1"), (&END[..], "waiting for 2 spawned processes")]
    {
        let provider = provider();
        let spawn =
            spawning(2, &[], &client(), &["map", "say:cmd=barrier_in", "hear:cmd=barrier_out", "sleep:60"]);
        let spawn: Vec<&str> = spawn.iter().map(String::as_str).collect();
        let steps: [&[&str]; 4] = [&["map"], &spawn, &["hear:cmd=spawn_result rc=0"], then];
        let mut job = Running::start(clients(provider.path(), 1, &[], &steps));
        job.wait_for(event);
        let processes = children(job.pid());
        job.signal("INT");
        assert_eq!(job.finish().code, Some(130));
        assert!(processes.iter().all(|process| !runs(*process)));
    }
}

#[test]
fn a_library_that_takes_another_way_is_found_out() {
    let early = ends(2, &[], &[&BARRIER, &END, &["sleep:60"]]);
    let late = ends(2, &[], &[&BARRIER, &["only:0", "map", "sleep:60"]]);
    for (done, rank) in [(early, "rank 0"), (late, "rank 1")] {
        assert_eq!(done.code, Some(4), "{done:?}");
        done.says(&[rank, "has not loaded the provider", "libstillwire_fi.so", "stillwire doctor"]);
    }
    // Spawned ones too, at the end or a while after they have met.
    let early = spawns(&[], &["only:1", "say:cmd=finalize", "hear:cmd=finalize_ack"], "rc=0", &["sleep:60"]);
    let met = ["say:cmd=barrier_in", "hear:cmd=barrier_out", "only:0", "map", "sleep:60"];
    let late = spawns(&[], &met, "rc=0", &["sleep:60"]);
    for done in [early, late] {
        assert_eq!(done.code, Some(4), "{done:?}");
        done.says(&["rank 1 of spawned world 1", "has not loaded the provider"]);
    }
}

#[test]
fn memory_that_ranks_share_past_the_provider_is_in_the_report() {
    let name = |number: u32| format!("mpich_shm_both{}_{number}", std::process::id());
    let same = |number: u32| format!("same:{}", name(number));
    // As libraries make it at first, and much later.
    let early = ends(2, &[], &[&["map", &same(0)], &BARRIER, &END]);
    let late = ends(2, &["--json"], &[&["map"], &BARRIER, &["sleep:2", &same(1)], &BARRIER, &END]);
    let none = ends(2, &["--json"], &[&["map"], &BARRIER, &END]);
    for number in 0..2 {
        // The launcher removes those that it has seen.
        let _ = fs::remove_file(format!("/dev/shm/{}", name(number)));
    }
    assert_eq!((early.code, late.code, none.code), (Some(0), Some(0), Some(0)), "{early:?} {late:?}");
    early.says(&["warning: rank 0 and rank 1 share memory of their MPI library (/dev/shm/mpich_shm_both"]);
    let warnings = |done: &Done| done.json()["warnings"].as_array().expect("a list").clone();
    let said = warnings(&late);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].as_str().is_some_and(|words| words.contains(&name(1))), "{said:?}");
    assert!(warnings(&none).is_empty());
}

#[test]
fn without_a_provider_no_mpi_program_runs() {
    let folder = tempfile::tempdir().unwrap();
    let done = done(&mut clients(folder.path(), 2, &[], &[&["sleep:60"]]));
    assert_eq!(done.code, Some(4), "{done:?}");
    done.says(&["it is an MPI program", "libstillwire_fi.so is not there", "cargo build --release"]);
}

#[test]
fn an_mpi_program_that_was_started_without_checkpoints_has_none_and_says_so() {
    let (provider, runtime) = (provider(), tempfile::tempdir().unwrap());
    let mut command = clients(provider.path(), 2, &[], &[&["map"], &BARRIER, &["sleep:60"]]);
    let mut job = Running::start({
        command.env("XDG_RUNTIME_DIR", runtime.path());
        command
    });
    job.wait_for("all ranks run");
    let refused = done(stillwire(&["checkpoint", ""]).env("XDG_RUNTIME_DIR", runtime.path()));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    refused.says(&["only if they were started so", "--ckpt-every"]);
    job.signal("USR1");
    job.wait_for("no checkpoint");
    let processes = children(job.pid());
    assert_eq!(processes.len(), 3, "two ranks and the guard");
    job.signal("INT");
    assert_eq!(job.finish().code, Some(130));
    assert!(processes.iter().all(|process| !runs(*process)));
}

#[test]
fn what_a_library_leaves_in_memory_goes_when_its_job_is_ended() {
    let provider = provider();
    let name = format!("mpich_shm_test{}_", std::process::id());
    let file = |rank: u32| PathBuf::from(format!("/dev/shm/{name}{rank}"));
    let steps: [&[&str]; 4] = [&["map", &format!("shm:{name}")], &BARRIER, &["env:PMI_RANK"], &["sleep:60"]];
    let mut job = Running::start(clients(provider.path(), 2, &["--json"], &steps));
    // Behind the barrier both have them.
    job.wait_for("PMI_RANK=");
    assert!(file(0).exists() && file(1).exists());
    job.signal("INT");
    assert_eq!(job.finish().code, Some(130));
    assert!(!file(0).exists() && !file(1).exists());
}

#[test]
fn what_a_library_leaves_in_memory_goes_when_its_launcher_is_killed() {
    let provider = provider();
    let name = format!("mpich_shm_kill{}_", std::process::id());
    let others = PathBuf::from(format!("/dev/shm/mpich_shm_others{}", std::process::id()));
    fs::write(&others, b"of another job").unwrap();
    let file = |rank: u32| PathBuf::from(format!("/dev/shm/{name}{rank}"));
    let steps: [&[&str]; 4] = [&["map", &format!("shm:{name}")], &BARRIER, &["env:PMI_RANK"], &["sleep:60"]];
    let mut job = Running::start(clients(provider.path(), 2, &["--json"], &steps));
    job.wait_for("PMI_RANK=");
    assert!(file(0).exists() && file(1).exists());
    // The guard looks several times in the first second.
    std::thread::sleep(std::time::Duration::from_secs(3));
    let processes = children(job.pid());
    job.signal("KILL");
    wait_until("nothing of the job runs", || processes.iter().all(|process| !runs(*process)));
    assert!(!file(0).exists() && !file(1).exists());
    assert!(others.exists(), "a file that no rank had");
    fs::remove_file(others).unwrap();
}

/// The key as the job's ranks see it, one line each, and everything that others can read of the ranks.
fn keys(script: &str, command: &mut Command) -> (Vec<String>, String) {
    let done = done(command.env_remove("STILLWIRE_KEY_FILE").args(["--", "sh", "-c", script]));
    assert_eq!(done.code, Some(0), "{done:?}");
    let lines = |mark: &str| {
        done.stdout
            .lines()
            .filter_map(|line| line.split_once(mark))
            .map(|(_, rest)| rest.to_owned())
            .collect()
    };
    let keys: Vec<String> = lines("] key:");
    (keys, lines("] words:").concat())
}

#[test]
fn each_job_has_a_key_of_its_own_that_stands_nowhere_else() {
    let script =
        "echo key:$(od -An -tx1 < $STILLWIRE_KEY_FILE | tr -d ' ') $(stat -Lc %a $STILLWIRE_KEY_FILE)
        echo words:$(cat /proc/self/cmdline /proc/$PPID/cmdline /proc/self/environ | tr '\\0\\n' '  ')";
    let ((one, words), (other, _)) = (
        keys(script, &mut stillwire(&["run", "-n", "2"])),
        keys(script, &mut stillwire(&["run", "-n", "2"])),
    );
    assert_eq!((one.len(), other.len()), (2, 2));
    assert!(one[0] == one[1] && other[0] == other[1] && one[0] != other[0], "{one:?} {other:?}");
    let (key, mode) = one[0].split_once(' ').unwrap();
    assert_eq!((key.len(), mode), (32, "600"));
    assert!(words.contains("STILLWIRE_KEY_FILE") && !words.contains(key), "{words}");
    // Jobs that are to meet are given a common one.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("common").display().to_string();
    let mut command = stillwire(&["run", "-n", "1", "--env", &format!("STILLWIRE_KEY_FILE={file}")]);
    let named = done(command.args(["--", "sh", "-c", "echo $STILLWIRE_KEY_FILE"]));
    assert!(named.stdout.contains(&file), "{named:?}");
}

/// A folder with an empty MPI library, `lib/NAME`, and a program `prog` that is linked to it.
fn linked(name: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| folder.path().join(path).display().to_string();
    fs::create_dir_all(folder.path().join("lib")).unwrap();
    fs::write(at("lib.c"), "char opens[] = \"libfabric.so\"; int MPI_Init(void) { return 0; }\n").unwrap();
    fs::write(
        at("prog.c"),
        "int MPI_Init(void); int main(int count, char **words) { return count > 1 ? 3 : MPI_Init(); }\n",
    )
    .unwrap();
    let library = at(&format!("lib/{name}"));
    cc(&["-shared", "-fPIC", &format!("-Wl,-soname,{name}"), "-o", &library, &at("lib.c")]);
    cc(&["-o", &at("prog"), &at("prog.c"), &library, "-Wl,-rpath,$ORIGIN/lib"]);
    folder
}

fn program(folder: &TempDir) -> PathBuf {
    folder.path().join("prog")
}

#[test]
fn what_an_mpi_program_cannot_have_is_refused_before_anything_is_made() {
    let (mpich, provider) = (linked("libmpi.so.12"), provider());
    let job = mpich.path().join("job").display().to_string();
    let ckpt_dir = ["--ckpt-dir", &job];
    let refused = |of: &TempDir, options: &[&str], provider: &Path| {
        let mut command = stillwire(&["run", "-n", "2"]);
        command.env("STILLWIRE_PROVIDER", provider).args(options).arg("--").arg(program(of));
        let done = done(&mut command);
        assert!(!Path::new(&job).exists(), "{done:?}");
        done
    };
    for option in [["--on-fault", "restart"], ["--auth", "full"]] {
        let done = refused(&mpich, &option, provider.path());
        assert_eq!(done.code, Some(2), "{done:?}");
        done.says(&[option[0], "is an MPI program", "libmpi.so.12"]);
    }
    let openmpi = linked("libmpi.so.40");
    let options = format!(
        "--ckpt-every 1s;--ckpt-dir {job};--time-limit 1h;--pid-namespace;--parity xor;--node-dir {job};--flush-to /;--hosts localhost;--nodes 2"
    );
    for option in options.split(';').map(|option| option.split(' ').collect::<Vec<_>>()) {
        let run = refused(&openmpi, &option, provider.path());
        assert_eq!(run.code, Some(2), "{run:?}");
        run.says(&[option[0], "is an MPI program", "libmpi.so.40", "own mpirun", "start it without"]);
    }
    let done = refused(&mpich, &ckpt_dir, &mpich.path().join("nowhere"));
    assert_eq!(done.code, Some(1), "{done:?}");
    done.says(&["libstillwire_fi.so is not there", "nowhere", "cargo build"]);
    fs::remove_file(mpich.path().join("lib/libmpi.so.12")).unwrap();
    let done = refused(&mpich, &ckpt_dir, provider.path());
    assert_eq!(done.code, Some(1), "{done:?}");
    done.says(&["needs libmpi.so.12", "LD_LIBRARY_PATH"]);
}

#[test]
fn an_mpi_program_that_dies_before_it_begins_is_not_started_again() {
    let (mpich, provider) = (linked("libmpi.so.12"), provider());
    let run = |words: &[&str]| {
        let mut command = stillwire(&["run", "-n", "2", "--"]);
        done(command.env("STILLWIRE_PROVIDER", provider.path()).arg(program(&mpich)).args(words))
    };
    assert_eq!(run(&[]).code, Some(0));
    let failed = run(&["a word"]);
    assert_eq!(failed.code, Some(3), "{failed:?}");
    failed.says(&["exited with code 3; the job ends with code 3"]);
    assert!(!failed.stderr.contains("rolling back"), "{failed:?}");
}

/// A stand-in for Open MPI's launcher: prints its arguments in that launcher's form, and runs the variable `DO`.
const MPIRUN: &str = "#!/bin/sh
[ \"$1\" = --version ] && echo 'mpirun (Open MPI) 5.0.0' && exit
echo \"[1,0]<stdout>: $*\"
echo \"[1,1]<stdout>: $OMPI_MCA_mtl $OMPI_MCA_pml $FI_PROVIDER\"
echo '[1,1]<stderr>: oops'
echo 'mpirun itself' >&2
eval \"$DO\"
";

fn openmpi(folder: &TempDir, provider: &Path, act: &str) -> Command {
    let bin = folder.path().join("bin");
    fs::create_dir_all(&bin).unwrap();
    fs::write(bin.join("mpirun"), MPIRUN).unwrap();
    fs::set_permissions(bin.join("mpirun"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = stillwire(&["run", "-n", "2", "--"]);
    command
        .env("STILLWIRE_PROVIDER", provider)
        .env("DO", act)
        .arg(program(folder))
        .args(["an argument", "-n"]);
    command
}

#[test]
fn an_open_mpi_program_is_run_by_its_own_mpirun() {
    let (folder, provider) = (linked("libmpi.so.40"), provider());
    // Debian's has another name, and another word for itself.
    let debian = folder.path().join("bin/mpirun.openmpi");
    fs::create_dir_all(folder.path().join("bin")).unwrap();
    let text = MPIRUN.replace("mpirun (Open MPI) 5.0.0", "mpirun.openmpi (OpenRTE) 4.1.4");
    fs::write(&debian, text.replace("mpirun itself", "the one of Debian")).unwrap();
    fs::set_permissions(&debian, fs::Permissions::from_mode(0o755)).unwrap();
    done(&mut openmpi(&folder, provider.path(), "exit 0")).says(&["the one of Debian"]);
    fs::remove_file(debian).unwrap();
    let done = done(&mut openmpi(&folder, provider.path(), "exit 9"));
    assert_eq!(done.code, Some(9), "{done:?}");
    let words = format!("{} an argument -n", program(&folder).display());
    let first = done.stdout.lines().next().unwrap();
    assert!(first.starts_with("[0] --allow-run-as-root") && first.ends_with(&words), "{done:?}");
    assert!(first.contains("-x FI_PROVIDER_PATH") && first.contains(" -n 2 "), "{done:?}");
    assert!(done.stdout.contains("[1] ofi cm stillwire"), "{done:?}");
    done.says(&["[1] oops", "mpirun itself", "Open MPI program", "mpirun ended with exit status: 9"]);
}

#[test]
fn without_its_mpirun_an_open_mpi_program_is_refused() {
    let (folder, provider) = (linked("libmpi.so.40"), provider());
    // A mpirun of another library is none. Folders above the test's own are not looked into: this machine may have one installed there.
    let (bin, deep) = (folder.path().join("bin"), folder.path().join("a/b/c/d"));
    fs::create_dir_all(&bin).unwrap();
    fs::create_dir_all(&deep).unwrap();
    fs::rename(folder.path().join("lib"), deep.join("lib")).unwrap();
    fs::rename(program(&folder), deep.join("prog")).unwrap();
    fs::write(bin.join("mpirun"), "#!/bin/sh\necho HYDRA\n").unwrap();
    fs::set_permissions(bin.join("mpirun"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = stillwire(&["run", "-n", "2", "--"]);
    command.env("STILLWIRE_PROVIDER", provider.path()).env("PATH", &bin);
    let done = done(command.arg(deep.join("prog")));
    assert_eq!(done.code, Some(1), "{done:?}");
    done.says(&["uses Open MPI", "libmpi.so.40", "job of one rank", "PATH"]);
}

#[test]
fn ctrl_c_ends_a_foreign_launcher_also_one_that_does_not_listen() {
    let (folder, provider) = (linked("libmpi.so.40"), provider());
    for act in ["trap 'exit 0' TERM; while :; do sleep 0.1; done", "sleep 600"] {
        let mut job = Running::start(openmpi(&folder, provider.path(), act));
        job.wait_for("mpirun itself");
        let mpirun = children(job.pid());
        assert_eq!(mpirun.len(), 1);
        job.signal("INT");
        let done = job.finish();
        assert_eq!(done.code, Some(130), "{done:?}");
        wait_until("mpirun is gone", || !runs(mpirun[0]));
    }
}
