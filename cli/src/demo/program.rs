//! tmp
use crate::arguments::DemoRankArguments;
use std::process::ExitCode;
pub(crate) fn main(_arguments: &DemoRankArguments) -> ExitCode {
    ExitCode::FAILURE
}
