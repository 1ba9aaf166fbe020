//! Exit codes, the same as those of `stillwire`.

use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    Success,
    /// It could not be done.
    Failed,
    /// The command line is wrong.
    Usage,
    /// It was done, and the result is wrong: a property was violated, a byte was altered.
    Wrong,
    /// A person ended it.
    Stopped,
}

impl Exit {
    /// For `--help`.
    pub(crate) const HELP: &'static str = "\
Exit codes:
  0    done
  1    it could not be done; the message says why
  2    the command line is wrong; the message says what was expected
  3    it was done, and the result is wrong: a property was violated, a rule was not missed, a byte was altered
  130  somebody ended it (Ctrl-C, SIGTERM)";

    fn code(self) -> u8 {
        match self {
            Exit::Success => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Wrong => 3,
            Exit::Stopped => 130,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}
