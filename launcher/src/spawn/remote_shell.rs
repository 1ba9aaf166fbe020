//! Keepers, started here or behind a remote shell.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::process::Command;

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
    use std::process::Command;

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
