//! Exit codes: what a script can rely on.

use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Done.
    Success = 0,
    /// It could not be done; the message says why.
    Failed = 1,
    /// The command line is wrong; the message says what was expected.
    Usage = 2,
    /// It was done, and the result is wrong: a verification failed, a generation is damaged.
    Unverified = 3,
    /// The job ended with a fault that it could not, or was not to, recover from.
    JobFailed = 4,
    /// A person ended the job.
    Stopped = 130,
}

impl Exit {
    /// For `--help`.
    pub(crate) const HELP: &'static str = "\
Exit codes:
  0    done
  1    it could not be done; the message says why
  2    the command line is wrong; the message says what was expected
  3    it was done, and the result is wrong: a verification failed, or a generation is damaged
  4    the job ended with a fault that it could not, or was not to, recover from
  130  somebody ended the job (Ctrl-C, `stillwire kill`, SIGTERM)";
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}
