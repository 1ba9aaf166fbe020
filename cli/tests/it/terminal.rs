//! Jobs on a terminal: prompts, the shell's Ctrl-Z, `fg` and `bg`, and whose turn it is to read.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, STILLWIRE, children, children_of, runs, wait_until};

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

    /// Waits until this has been printed since the last wait.
    fn wait_for(&mut self, words: &str) {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.seen.find(words) {
                self.seen.drain(..at + words.len());
                return;
            }
            let left = until.saturating_duration_since(Instant::now());
            let chunk = self.screen.recv_timeout(left);
            let chunk = chunk.unwrap_or_else(|error| panic!("no {words:?} ({error}): {:?}", self.seen));
            self.seen.push_str(&String::from_utf8_lossy(&chunk));
        }
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
    let is_rank = |pid: &u32| crate::support::rank_of(*pid).is_some() && is_shell(*pid);
    let of_ranks: Vec<u32> = ranks.into_iter().filter(is_rank).collect();
    assert_eq!(of_ranks.len(), 2, "{of_ranks:?}");
    // The second time for longer than it takes nodes to miss each other.
    for (pause, again) in [(100, "fg\n"), (7000, "fg\n"), (100, "bg\n")] {
        terminal.type_in("\x1a");
        terminal.wait_for("Stopped");
        wait_until("all stand still", || of_ranks.iter().all(|pid| state(*pid) == Some('T')));
        assert_eq!(state(launcher), Some('T'));
        std::thread::sleep(Duration::from_millis(pause));
        assert!(of_ranks.iter().all(|pid| state(*pid) == Some('T')));
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
