//! Errors that keep MPI stacks from being measured at all. A failure of a single stack is its reason in the report.

use std::path::PathBuf;

/// Why no stack can be measured.
#[derive(Debug, thiserror::Error)]
pub enum MpiError {
    /// No MPI to build and start the measuring program with.
    #[error(
        "no mpicc and mpiexec in {}: set MPICH up (python3 -m venv DIR, then DIR/bin/pip install mpich==5.0.2; tests/mpi/run does \
         the same) and name its folder (--mpich DIR) or have its bin in PATH", looked_in(.looked)
    )]
    NoMpich {
        /// Where they were looked for.
        looked: Vec<PathBuf>,
    },
    /// The measuring program does not compile.
    #[error(
        "{mpicc} could not compile the measuring program: {what}; it needs a C compiler (Debian: apt-get install gcc)"
    )]
    Compile {
        /// The compiler.
        mpicc: PathBuf,
        /// The compiler's message.
        what: String,
    },
    /// The provider has not been built.
    #[error(
        "no {path}: build it (cargo build --release --package stillwire-provider), or name the folder that has it: --provider DIR"
    )]
    NoProvider {
        /// Where it should be.
        path: PathBuf,
    },
    /// There is no such stack.
    #[error("no stack '{name}': there are {known}")]
    UnknownStack {
        /// The requested value.
        name: String,
        /// The stacks that exist.
        known: String,
    },
    /// No stack of ours could be measured.
    #[error("no stack could be measured: {reasons}")]
    Nothing {
        /// Of each stack.
        reasons: String,
    },
    /// The program to be frozen does not run over ours at all.
    #[error("the program does not run without freezes either: {reason}")]
    Program {
        /// Why.
        reason: String,
    },
    /// No folder for the measuring program.
    #[error(
        "no folder for the measuring program: set HOME or XDG_CACHE_HOME to a folder that may be written to"
    )]
    NoFolder,
    /// The folder for the measuring program cannot be written to.
    #[error("{path} could not be made: {error}; set XDG_CACHE_HOME to a folder that may be written to")]
    Folder {
        /// Which folder or file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
}

fn looked_in(folders: &[PathBuf]) -> String {
    folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(" or ")
}
