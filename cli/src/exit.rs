//! Exit codes on which a script can rely.

use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    /// Done.
    Success,
    /// It could not be done; the message has the reason.
    Failed,
    /// The command line is wrong; the message names the expected form.
    Usage,
    /// It was done, and the result is wrong: a verification failed, a generation is damaged.
    Unverified,
    /// The job ended for a reason that is no exit code of its program.
    JobFailed,
    /// The time limit ended the job, which is saved.
    TimeLimit,
    /// A person ended the job.
    Stopped,
    /// The code with which the program ended itself, or 128 and the signal that killed a rank.
    Program(u8),
}

impl Exit {
    /// For `--help`.
    pub(crate) const HELP: &'static str = "\
Exit codes:
  0    success
  1    the command failed; the message says why
  2    the command line is wrong; the message says what was expected
  3    the result is wrong: a verification failed, a generation is damaged, or `doctor` found a problem
  4    the job failed for a reason that is no exit code of its program; the message names it
  5    the job's time limit (--time-limit) has come, and its state is saved: `stillwire restart` continues it
  130  a user ended the job (Ctrl-C, `stillwire kill`, SIGTERM)
The code of a failed program is passed on: that of the first rank that exited with one, or of MPI_Abort. If the job did not recover \
from a signal that killed a rank, it is 128 plus the signal's number.";

    /// The number that a shell sees.
    pub(crate) fn code(self) -> u8 {
        match self {
            Exit::Success => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Unverified => 3,
            Exit::JobFailed => 4,
            Exit::TimeLimit => 5,
            Exit::Stopped => 130,
            Exit::Program(code) => code,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}
