//! Keepers, started here or behind a remote shell.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::Node;
use crate::error::LauncherError;

/// The command that starts the keeper of a node.
pub(crate) fn keeper_command(node: &Node) -> Result<Command, LauncherError> {
    let program =
        std::env::current_exe().map_err(|error| LauncherError::Keeper { host: node.name(), error })?;
    let mut command = match &node.host {
        None => Command::new(program),
        Some(host) => {
            let (shell, arguments) = node.remote_shell.split_first().expect("a remote shell has a name");
            let mut command = Command::new(shell);
            command.args(arguments).arg(host).arg(quoted(program.as_os_str()));
            command
        }
    };
    command.arg("__keeper");
    Ok(command)
}

/// The exit code of ssh if it has failed itself, and not the program on the other host.
const CONNECTION_FAILED: i32 = 255;

/// Messages of ssh about problems that are there at the next attempt, too.
const LASTING: [&str; 6] = [
    "Permission denied",
    "Too many authentication failures",
    "Host key verification failed",
    "Unable to negotiate",
    "Bad configuration option",
    "Could not resolve hostname",
];

/// The reason of a resolver that cannot be reached itself. It follows the last of [`LASTING`].
const NO_RESOLVER: &str = "Temporary failure in name resolution";

/// Bytes of a remote shell's messages that are kept, the last ones.
const KEPT_BYTES_MAX: usize = 4096;

/// Messages of a remote shell on standard error. A thread prints them as they come, because a terminal that stands still must not hold up the launcher.
#[derive(Debug)]
pub(crate) struct ShellMessages {
    last: Arc<Mutex<Vec<u8>>>,
    thread: JoinHandle<()>,
}

impl ShellMessages {
    /// Prints all messages that come from now on. The thread ends when no process has the other end any more.
    pub(crate) fn print(mut from: impl Read + Send + 'static) -> io::Result<ShellMessages> {
        let last = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&last);
        let thread = std::thread::Builder::new().name("remote-shell".to_owned()).spawn(move || {
            let mut chunk = [0; KEPT_BYTES_MAX];
            while let Ok(read @ 1..) = from.read(&mut chunk) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&chunk[..read]);
                let over = kept.len().saturating_sub(KEPT_BYTES_MAX);
                kept.drain(..over);
                drop(kept);
                // Nobody may read it.
                let _ = io::stderr().lock().write_all(&chunk[..read]);
            }
        })?;
        Ok(ShellMessages { last, thread })
    }

    /// Whether all have been printed.
    pub(crate) fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// The last ones.
    pub(crate) fn last(&self) -> String {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&last).into_owned()
    }
}

/// Whether a remote shell has failed for a reason that may pass, such as a cable that is out.
pub(crate) fn may_pass(status: ExitStatus, messages: &str) -> bool {
    let is_lasting = LASTING.iter().any(|problem| messages.contains(problem));
    status.code() == Some(CONNECTION_FAILED) && (!is_lasting || messages.contains(NO_RESOLVER))
}

/// A word that a POSIX shell reads as exactly these bytes: ssh joins its arguments with spaces, and the shell of the other host splits them again. A word
/// of ordinary characters stays as it is, also for programs that use no shell.
fn quoted(word: &OsStr) -> OsString {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_./:=,@+%".contains(byte);
    if !word.is_empty() && word.as_bytes().iter().all(is_plain) {
        return word.to_owned();
    }
    let quoted = shlex::bytes::try_quote(word.as_bytes()).expect("a path has no zero bytes");
    OsString::from_vec(quoted.into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use proptest::prelude::*;

    use super::*;

    /// The words that a shell passes on, as ssh has it started on another host: all words joined by spaces.
    fn through_a_shell(words: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut line = b"printf '%s\\0'".to_vec();
        for word in words {
            line.push(b' ');
            line.extend_from_slice(quoted(OsStr::from_bytes(word)).as_bytes());
        }
        let output = Command::new("sh").arg("-c").arg(OsStr::from_bytes(&line)).output().expect("sh");
        assert!(output.status.success(), "{output:?}");
        let mut passed: Vec<Vec<u8>> = output.stdout.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
        assert_eq!(passed.pop(), Some(Vec::new()), "each ends with a zero");
        passed
    }

    /// As OpenSSH 9.2 prints them.
    #[test]
    fn a_refused_login_and_an_unknown_host_do_not_pass() {
        let code = |code: i32| ExitStatus::from_raw(code << 8);
        for passing in [
            "ssh: connect to host b port 22: No route to host\r\n",
            "ssh: connect to host b port 22: Connection refused\r\n",
            "kex_exchange_identification: Connection closed by remote host\r\n",
            "ssh: Could not resolve hostname b: Temporary failure in name resolution\r\n",
            "",
        ] {
            assert!(may_pass(code(255), passing), "{passing}");
            assert!(!may_pass(code(127), passing), "no such command: {passing}");
        }
        for lasting in [
            "me@b: Permission denied (publickey,password).\r\n",
            "ssh: Could not resolve hostname bb: Name or service not known\r\n",
            "Host key verification failed.\r\n",
        ] {
            assert!(!may_pass(code(255), lasting), "{lasting}");
        }
        assert!(!may_pass(ExitStatus::from_raw(9), ""), "killed");
    }

    #[test]
    fn the_last_messages_are_kept() {
        let bytes = [vec![b'x'; 3 * KEPT_BYTES_MAX], b"the end\n".to_vec()].concat();
        let messages = ShellMessages::print(io::Cursor::new(bytes)).expect("a thread");
        while !messages.is_over() {
            std::thread::yield_now();
        }
        let last = messages.last();
        assert!(last.len() == KEPT_BYTES_MAX && last.ends_with("xthe end\n"), "{last}");
    }

    #[test]
    fn a_plain_path_stays_as_it_is() {
        let plain = OsStr::new("/opt/x,y=13%/bin/stillwire-0.2_x86:64");
        assert_eq!(quoted(plain), plain);
        assert_eq!(quoted(OsStr::new("")), "''");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn a_shell_passes_every_word_on_unharmed(words in prop::collection::vec(word(), 1..6)) {
            prop_assert_eq!(through_a_shell(&words), words);
        }
    }

    /// Any bytes but zeros, and often those that mean something to a shell.
    fn word() -> impl Strategy<Value = Vec<u8>> {
        let special = prop::sample::select(b" '\"\\$`\n\t*?[]{}~#!&|;<>()=%-".to_vec());
        let byte = prop_oneof![3 => special, 1 => 1u8..=255, 1 => Just(0xff)];
        prop::collection::vec(byte, 0..20)
    }
}
