//! tmp
pub(crate) mod program;
use crate::arguments::DemoArguments;
use crate::error::CliError;
use crate::exit::Exit;
pub(crate) fn demo(_arguments: &DemoArguments, _json: bool) -> Result<Exit, CliError> {
    Err(CliError::NoResult)
}
