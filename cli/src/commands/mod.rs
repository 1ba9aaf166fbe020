//! One file for each group of commands.

pub(crate) mod attach;
pub(crate) mod completions;
pub(crate) mod copies;
pub(crate) mod delta;
pub(crate) mod diagnose;
pub(crate) mod doctor;
mod domains;
pub(crate) mod env;
pub(crate) mod files;
pub(crate) mod hosts;
pub(crate) mod inspect;
pub(crate) mod interrupt;
pub(crate) mod interval;
pub(crate) mod jobs;
pub(crate) mod key;
pub(crate) mod mpirun;
pub(crate) mod nic_helper;
mod node_listing;
pub(crate) mod node_placement;
pub(crate) mod outcome;
mod printer;
mod progress;
pub(crate) mod protection;
pub(crate) mod recovery;
mod relayout;
pub(crate) mod repair;
pub(crate) mod restart;
pub(crate) mod run;
pub(crate) mod stdin;
pub(crate) mod succession;
mod trust;
pub(crate) mod verify;

pub(crate) use printer::Stream;
pub(crate) use progress::event_words;

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;

use console::{Progress, Unit};
pub(crate) use launcher::print_message;
use serde::Serialize;

/// Runs an example program with its own arguments.
pub(crate) fn example(arguments: Vec<OsString>) -> ExitCode {
    examples::main([OsString::from("stillwire example")].into_iter().chain(arguments))
}

/// The progress of a command that reads or writes so many bytes; 0: nobody knows how many.
pub(crate) fn progress_of(is_quiet: bool, what: fmt::Arguments<'_>, bytes: u64) -> Progress {
    if is_quiet {
        return Progress::silent();
    }
    Progress::counted(&format!("stillwire: {what}"), Unit::Bytes, bytes)
}

/// Prints a line on standard output, which may be a full disk or closed.
macro_rules! say {
    ($($words:tt)*) => {
        ::std::io::Write::write_fmt(&mut ::std::io::stdout().lock(), format_args!("{}\n", format_args!($($words)*)))
    };
}
pub(crate) use say;

/// Prints one JSON object.
pub(crate) fn print_json(value: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, value).map_err(io::Error::from)?;
    writeln!(out)
}
