//! Jobs on a terminal: prompts, the shell's Ctrl-Z, `fg` and `bg`, whose turn it is to read, and ranks that have a terminal of their own.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::support::programs::{library, program};
use crate::support::{PATIENCE, Place, STILLWIRE, children, children_of, rank_of, runs, signal, wait_until};

/// An interactive shell on a terminal of its own.
struct Terminal {
    shell: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
}

impl Terminal {
    fn new() -> Terminal {
        let (mut master, mut slave) = (-1, -1);
        let nothing = std::ptr::null_mut();
        // SAFETY: two numbers that the call fills in; no name, settings or size are given.
        let opened = unsafe {
            libc::openpty(&raw mut master, &raw mut slave, nothing, nothing.cast(), nothing.cast())
        };
        assert_eq!(opened, 0, "a terminal");
        // SAFETY: both were just opened, and belong to nobody else.
        let (master, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        let mut command = Command::new("bash");
        command.args(["--norc", "--noprofile", "-i"]).env("PS1", "ready> ").env("TERM", "dumb");
        let copy = || slave.try_clone().expect("a descriptor");
        command.stdin(copy()).stdout(copy()).stderr(copy());
        // SAFETY: two system calls between fork and exec: a session of its own, whose terminal this is.
        unsafe {
            command.pre_exec(|| {
                let is_set = libc::setsid() >= 0 && libc::ioctl(0, libc::TIOCSCTTY, 0) == 0;
                if is_set { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            });
        }
        let shell = command.spawn().expect("bash");
        drop(slave);
        let (to, screen) = channel();
        let mut output = master.try_clone().expect("a descriptor");
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(read @ 1..) = output.read(&mut chunk) {
                if to.send(chunk[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        let mut terminal = Terminal { shell, keyboard: master, screen, seen: String::new() };
        terminal.type_in("stty -echo\n");
        terminal.wait_for("ready> ");
        terminal
    }

    fn type_in(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).expect("the terminal takes it");
    }

    /// Waits until this has been printed since the last wait, and returns the text before it.
    fn wait_for(&mut self, words: &str) -> String {
        self.wait_for_all(&[words])
    }

    /// Waits until all of this has been printed since the last wait, in any order, and returns the text before the last of it.
    fn wait_for_all(&mut self, words: &[&str]) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let places = words.iter().map(|words| self.seen.find(words).map(|at| (at, at + words.len())));
            if let Some((at, end)) = places.collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max())
            {
                let before = self.seen[..at].to_owned();
                self.seen.drain(..end);
                return before;
            }
            let left = until.saturating_duration_since(Instant::now());
            let chunk = self.screen.recv_timeout(left);
            let chunk = chunk.unwrap_or_else(|error| panic!("no {words:?} ({error}): {:?}", self.seen));
            self.seen.push_str(&String::from_utf8_lossy(&chunk));
        }
    }

    /// The settings of the terminal, as a shell has them.
    fn settings(&mut self) -> String {
        // An echo of the command reads otherwise.
        self.type_in("echo set''tings=$(stty -g)=\n");
        self.wait_for("settings=");
        self.wait_for("=")
    }

    /// Gives the terminal another size, as a window does.
    fn resize(&mut self, rows: u16, columns: u16) {
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the kernel reads four numbers.
        let set = unsafe { libc::ioctl(self.keyboard.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        assert_eq!(set, 0);
    }

    /// The launcher that the shell has started.
    fn launcher(&self) -> u32 {
        let mut found = None;
        wait_until("the launcher runs", || {
            let named = |pid: &u32| {
                std::fs::read(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|line| line.starts_with(STILLWIRE.as_bytes()))
            };
            found = children_of(self.shell.id()).into_iter().find(named);
            found.is_some()
        });
        found.expect("it was found")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

fn state(pid: u32) -> Option<char> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}

/// Whether a shell does not run. One that has just begun to start a program waits for that in the kernel (vfork), and is not seen as stopped: then
/// what it has started is.
fn stands_still(pid: u32) -> bool {
    let is_stopped = |pid: u32| state(pid) == Some('T');
    let waits = || state(pid) == Some('D') && children_of(pid).into_iter().all(is_stopped);
    is_stopped(pid) || waits()
}

/// The process of the only rank.
fn rank(launcher: u32) -> u32 {
    let mut found = None;
    wait_until("its rank runs", || {
        found = children(launcher).into_iter().find(|pid| rank_of(*pid).is_some());
        found.is_some()
    });
    found.expect("it was found")
}

#[test]
fn a_prompt_is_shown_and_answered() {
    let mut terminal = Terminal::new();
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("ask");
    let text = "printf 'name? '; read name; echo hello $name; printf 'more? '; cat; echo over\n";
    std::fs::write(&script, text).unwrap();
    let script = script.display();
    for (options, name) in [("-q", "name? "), ("", "[0] name? ")] {
        terminal.type_in(&format!("{STILLWIRE} run {options} -n 1 -- sh {script}\n"));
        terminal.wait_for(name);
        terminal.type_in("you\n");
        terminal.wait_for("hello you");
        terminal.wait_for("more? ");
        terminal.type_in("\x04");
        terminal.wait_for("over");
        terminal.wait_for("ready> ");
    }
}

// The answer is a line of the terminal's.
#[test]
fn a_copy_without_a_key_asks_before_it_runs() {
    let mut terminal = Terminal::new();
    let place = Place::new();
    let (folder, job) = (place.folder.path().display().to_string(), place.job_text());
    let shared = format!("{folder}/shared");
    std::fs::create_dir(&shared).unwrap();
    let (options, program) =
        (format!("--ckpt-every 60ms --ckpt-dir {job} --flush-to {shared}"), place.sort().join(" "));
    terminal.type_in(&format!("{STILLWIRE} run -n 2 {options} -- {program}\n"));
    terminal.wait_for(" copied (");
    terminal.wait_for(" copied (");
    signal(terminal.launcher(), "KILL");
    terminal.wait_for("ready> ");
    wait_until("the guard has cleaned up", || place.lock_is_free());
    std::fs::remove_dir_all(place.job()).unwrap();
    place.let_end();
    let restart = format!("{STILLWIRE} restart -q {job} --from {shared}");
    terminal.type_in(&format!("{restart}; echo code $?\n"));
    terminal.wait_for("no key vouches for the copy of generation");
    terminal.wait_for("Run it? [y/N] ");
    terminal.type_in("\n");
    terminal.wait_for("not continued, as you wished");
    terminal.wait_for("code 1");
    assert!(!place.job().exists());
    terminal.type_in(&format!("{restart}; echo code $?\n"));
    terminal.wait_for("Run it? [y/N] ");
    terminal.type_in("y\n");
    terminal.wait_for("code 0");
}

#[test]
fn a_shell_stops_a_job_and_has_it_go_on() {
    let mut terminal = Terminal::new();
    let script = "while sleep 0.05; do echo beat; done";
    terminal.type_in(&format!("{STILLWIRE} run -n 2 --nodes 2 -- sh -c \"{script}\"\n"));
    terminal.wait_for("[1] beat");
    let launcher = terminal.launcher();
    let ranks = children(launcher);
    // The shells alone: each `sleep` below them ends soon.
    let is_shell =
        |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sh\n");
    let is_rank = |pid: &u32| rank_of(*pid).is_some() && is_shell(*pid);
    let of_ranks: Vec<u32> = ranks.into_iter().filter(is_rank).collect();
    assert_eq!(of_ranks.len(), 2, "{of_ranks:?}");
    // The second time for longer than it takes nodes to miss each other.
    for (pause, again) in [(100, "fg\n"), (7000, "fg\n"), (100, "bg\n")] {
        terminal.type_in("\x1a");
        terminal.wait_for("Stopped");
        wait_until("all stand still", || of_ranks.iter().all(|pid| stands_still(*pid)));
        assert_eq!(state(launcher), Some('T'));
        std::thread::sleep(Duration::from_millis(pause));
        assert!(of_ranks.iter().all(|pid| stands_still(*pid)));
        terminal.type_in(again);
        for beat in ["[0] beat", "[1] beat", "[0] beat"] {
            terminal.wait_for(beat);
        }
        assert!(of_ranks.iter().all(|pid| runs(*pid)), "nobody was missed");
    }
    terminal.type_in("fg\n");
    terminal.wait_for("[0] beat");
    terminal.type_in("\x03");
    terminal.wait_for("the job was stopped");
    assert!(of_ranks.iter().all(|pid| !runs(*pid)));
}

// A terminal belongs to whoever is in its foreground; whoever else reads from it is stopped.
#[test]
fn a_job_in_the_background_leaves_the_terminal_alone() {
    let mut terminal = Terminal::new();
    terminal.type_in(&format!("{STILLWIRE} run -q -n 1 -- sh -c 'read line; echo got $line' &\n"));
    let launcher = terminal.launcher();
    wait_until("it has a rank", || !children(launcher).is_empty());
    terminal.type_in("echo mine | tr m f\n");
    terminal.wait_for("fine");
    std::thread::sleep(Duration::from_millis(600));
    assert!(matches!(state(launcher), Some('S' | 'R')), "it is not stopped");
    terminal.type_in("fg\n");
    terminal.wait_for("run -q");
    terminal.type_in("its own\n");
    terminal.wait_for("got its own");
}

#[test]
fn a_rank_with_a_terminal_has_its_size_its_keys_and_its_end() {
    let mut terminal = Terminal::new();
    let before = terminal.settings();
    let keys = program("keys");
    terminal.resize(30, 100);
    terminal.type_in(&format!("{STILLWIRE} run --tty -n 1 -- {keys}; echo code $?\n"));
    terminal.wait_for("size 30 x 100\r\n");
    terminal.resize(31, 90);
    terminal.wait_for("size 31 x 90\r\n");
    terminal.type_in("wrogn\x7f\x7fng\n");
    terminal.wait_for("got <wrong> by line\r\n");
    terminal.type_in("\x04");
    terminal.wait_for("the input ended");
    terminal.wait_for("code 0");
    terminal.wait_for("ready> ");
    assert_eq!(terminal.settings(), before);
}

// It is the program that Ctrl-C ends, and with it the job: not a fault of the machine after which it would begin again.
#[test]
fn ctrl_c_is_the_programs_own() {
    let mut terminal = Terminal::new();
    let before = terminal.settings();
    let keys = program("keys");
    terminal.type_in(&format!("{STILLWIRE} run --tty -n 1 -- {keys}; echo code $?\n"));
    terminal.wait_for("size ");
    terminal.type_in("\x03");
    let said = terminal.wait_for("code 130");
    assert!(!said.contains("begins"), "{said}");
    let script = "trap 'echo not yet' INT; while :; do sleep 0.05; echo beat; done";
    terminal.type_in(&format!("{STILLWIRE} run -q --tty -n 1 -- sh -c \"{script}\"; echo code $?\n"));
    terminal.wait_for("beat\r\n");
    terminal.type_in("\x03");
    terminal.wait_for("not yet");
    terminal.wait_for("beat\r\n");
    terminal.type_in("\x1c");
    terminal.wait_for("code 131");
    terminal.wait_for("ready> ");
    assert_eq!(terminal.settings(), before);
}

#[test]
fn ctrl_z_gives_the_terminal_back_until_the_job_goes_on() {
    let mut terminal = Terminal::new();
    let before = terminal.settings();
    let keys = program("keys");
    terminal.type_in(&format!("{STILLWIRE} run --tty -n 1 -- {keys}\n"));
    terminal.wait_for("size ");
    let launcher = terminal.launcher();
    let rank = rank(launcher);
    terminal.type_in("\x1a");
    terminal.wait_for("Stopped");
    wait_until("it stands still", || stands_still(rank));
    assert_eq!(terminal.settings(), before);
    terminal.resize(33, 77);
    terminal.type_in("fg\n");
    terminal.wait_for("size 33 x 77");
    // A program that reads single keys gets this one, too.
    terminal.type_in("q\n");
    terminal.wait_for("got <q> by line");
    terminal.wait_for("ready> ");
    terminal.type_in(&format!("{STILLWIRE} run --tty -n 1 -- {keys} single\n"));
    terminal.wait_for("size ");
    terminal.type_in("\x1a");
    terminal.wait_for("got <\x1a> by key");
    terminal.type_in("q");
    terminal.wait_for("got <q> by key");
    terminal.wait_for("ready> ");
    assert_eq!(terminal.settings(), before);
}

#[test]
fn a_restored_program_has_the_settings_of_its_terminal() {
    let mut terminal = Terminal::new();
    let before = terminal.settings();
    let (place, keys) = (Place::new(), program("keys"));
    let (job, provider) = (place.job_text(), library());
    terminal.type_in(&format!("export STILLWIRE_PROVIDER={}\n", provider.display()));
    terminal.resize(40, 120);
    let log = place.folder.path().join("log");
    let logged = |words: &str| {
        wait_until(words, || std::fs::read_to_string(&log).is_ok_and(|text| text.contains(words)));
    };
    let to = log.display();
    terminal.type_in(&format!("{STILLWIRE} run --tty -n 1 --ckpt-dir {job} -- {keys} single 2>{to}\n"));
    terminal.wait_for("size 40 x 120");
    let launcher = terminal.launcher();
    terminal.type_in("a");
    terminal.wait_for("got <a> by key");
    logged("all ranks run");
    signal(launcher, "USR1");
    logged("committed");
    // Typed after the cut, and so a second time after the rollback; keys typed before it are not.
    terminal.type_in("b");
    terminal.wait_for("got <b> by key");
    for next in ["c", "d"] {
        signal(rank(launcher), "KILL");
        terminal.wait_for("got <b");
        terminal.type_in(next);
        terminal.wait_for(&format!("{next}> by key"));
    }
    signal(launcher, "TERM");
    terminal.wait_for("ready> ");
    assert_eq!(terminal.settings(), before);
    // Its size is another one, which it hears.
    terminal.resize(41, 121);
    terminal.type_in(&format!("{STILLWIRE} restart {job}; echo code $?\n"));
    terminal.wait_for_all(&["size 41 x 121", "d> by key"]);
    terminal.type_in("q");
    terminal.wait_for("q> by key");
    terminal.wait_for("code 0");
    terminal.wait_for("ready> ");
    assert_eq!(terminal.settings(), before);
}

#[test]
fn a_terminal_is_for_one_rank() {
    let refused =
        crate::support::done(&mut crate::support::stillwire(&["run", "--tty", "-n", "2", "--", "true"]));
    assert_eq!(refused.code, Some(2), "{refused:?}");
    refused.says(&["--tty", "2 ranks", "-n 1"]);
}

// Without a terminal of the launcher's own, as in a batch job.
#[test]
fn a_terminal_needs_no_person() {
    let mut command = crate::support::stillwire(&["run", "-q", "--tty", "-n", "1", "--", &program("keys")]);
    let done = crate::support::done(&mut command);
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (Some(0), "size 24 x 80\r\nthe input ended\r\n"),
        "{done:?}"
    );
}

/// A job of `keys` with a checkpoint before its first key, in a directory of its own.
fn saved_keys(terminal: &mut Terminal, place: &Place, options: &str) -> u32 {
    let log = place.folder.path().join("log");
    let (job, keys, to) = (place.job_text(), program("keys"), log.display());
    terminal.type_in(&format!("export STILLWIRE_PROVIDER={}\n", library().display()));
    terminal.type_in(&format!("{STILLWIRE} run --tty -n 1 --ckpt-dir {job} -- {keys} {options} 2>{to}\n"));
    terminal.wait_for("size ");
    let launcher = terminal.launcher();
    let logged = |words: &str| std::fs::read_to_string(&log).is_ok_and(|text| text.contains(words));
    wait_until("all ranks run", || logged("all ranks run"));
    signal(launcher, "USR1");
    wait_until("it is saved", || logged("committed"));
    launcher
}

#[test]
fn a_restart_after_ctrl_c_is_not_interrupted_again() {
    let mut terminal = Terminal::new();
    let place = Place::new();
    saved_keys(&mut terminal, &place, "");
    terminal.type_in("one\n\x03");
    terminal.wait_for("ready> ");
    terminal.type_in(&format!("{STILLWIRE} restart {}; echo code $?\n", place.job_text()));
    terminal.wait_for("got <one> by line");
    terminal.type_in("q\n");
    terminal.wait_for("code 0");
}

// A window that is closed ends the job. It is not the end of the program's input for ever.
#[test]
fn a_restart_after_a_hang_up_has_a_keyboard() {
    let place = Place::new();
    let (mut master, mut slave) = (-1, -1);
    let nothing = std::ptr::null_mut();
    // SAFETY: two numbers that the call fills in; no name, settings or size are given.
    let opened =
        unsafe { libc::openpty(&raw mut master, &raw mut slave, nothing, nothing.cast(), nothing.cast()) };
    assert_eq!(opened, 0, "a terminal");
    // SAFETY: both were just opened, and belong to nobody else.
    let (mut master, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
    let log = place.folder.path().join("log");
    let keys = program("keys");
    let mut command =
        crate::support::stillwire(&["run", "--tty", "-n", "1", "--ckpt-dir", &place.job_text(), "--", &keys]);
    command.env("STILLWIRE_PROVIDER", library()).stdin(slave);
    command
        .stdout(File::create(place.folder.path().join("shown")).unwrap())
        .stderr(File::create(&log).unwrap());
    // SAFETY: two system calls between fork and exec: a session of its own, whose terminal this is.
    unsafe {
        command.pre_exec(|| {
            let is_set = libc::setsid() >= 0 && libc::ioctl(0, libc::TIOCSCTTY, 0) == 0;
            // The other end, which has this number in the test's process, is closed by the test alone.
            if is_set { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
    // SAFETY: a flag of a descriptor of this process.
    unsafe { libc::fcntl(master.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
    let mut launcher = command.spawn().expect("the launcher");
    drop(command);
    let logged = |words: &str| std::fs::read_to_string(&log).is_ok_and(|text| text.contains(words));
    wait_until("all ranks run", || logged("all ranks run"));
    signal(launcher.id(), "USR1");
    wait_until("it is saved", || logged("committed"));
    master.write_all(b"one\n").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    drop(master);
    launcher.wait().unwrap();
    let mut terminal = Terminal::new();
    terminal.type_in(&format!("export STILLWIRE_PROVIDER={}\n", library().display()));
    terminal.type_in(&format!("{STILLWIRE} restart {}; echo code $?\n", place.job_text()));
    terminal.wait_for("got <one> by line");
    terminal.type_in("two\n");
    terminal.wait_for("got <two> by line");
    terminal.type_in("q\n");
    terminal.wait_for("code 0");
}

#[test]
fn a_job_that_comes_into_the_foreground_gets_the_terminal() {
    let mut terminal = Terminal::new();
    let before = terminal.settings();
    terminal.type_in(&format!("{STILLWIRE} run -q --tty -n 1 -- {} &\n", program("keys")));
    terminal.wait_for("size ");
    terminal.type_in("fg\n");
    terminal.wait_for("run -q");
    // A shell does not say when.
    std::thread::sleep(Duration::from_millis(600));
    terminal.type_in("it\x7fs\n");
    terminal.wait_for("got <is> by line");
    terminal.type_in("q\n");
    terminal.wait_for("got <q> by line");
    terminal.wait_for("ready> ");
    assert_eq!(terminal.settings(), before);
}

#[test]
fn ctrl_z_stops_the_whole_pipeline() {
    let mut terminal = Terminal::new();
    terminal.type_in(&format!("{STILLWIRE} run -q --tty -n 1 -- {} | cat\n", program("keys")));
    terminal.wait_for("size ");
    terminal.type_in("\x1a");
    terminal.wait_for("Stopped");
    terminal.type_in("fg\n");
    terminal.wait_for("size ");
    terminal.type_in("q\n");
    terminal.wait_for("got <q> by line");
    terminal.wait_for("ready> ");
}

// Programs that read single keys and those that read lines; more than a terminal takes at once.
#[test]
fn the_end_of_a_pipe_reaches_a_program_on_a_terminal() {
    let mut terminal = Terminal::new();
    let keys = program("keys");
    for (mode, end) in [("", "the input ended"), ("single", "got <\x04> by key")] {
        let command = format!("seq 1 4000 | {STILLWIRE} run -q --tty -n 1 -- {keys} {mode} | tail -n 3");
        terminal.type_in(&format!("{command}; echo over\n"));
        terminal.wait_for("4000");
        terminal.wait_for(end);
        terminal.wait_for("over");
    }
}

#[test]
fn without_a_reader_the_terminal_stays_the_launchers() {
    let mut terminal = Terminal::new();
    let place = Place::new();
    saved_keys(&mut terminal, &place, "");
    terminal.type_in("\x03");
    terminal.wait_for("ready> ");
    terminal.type_in(&format!("{STILLWIRE} restart --stdin none {}; echo code $?\n", place.job_text()));
    let launcher = terminal.launcher();
    rank(launcher);
    terminal.type_in("\x03");
    terminal.wait_for("code 130");
}
