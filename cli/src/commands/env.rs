//! `stillwire env`: the variables with which a person's own mpiexec finds the provider.

use std::path::PathBuf;

use launcher::mpi::{environment, provider};
use serde::Serialize;

use super::say;
use crate::error::CliError;
use crate::exit::Exit;

#[derive(Serialize)]
struct Variable {
    name: &'static str,
    value: String,
}

/// Prints the variables as a shell reads them: `eval "$(stillwire env)"`.
pub(crate) fn env(folder: Option<PathBuf>, json: bool) -> Result<Exit, CliError> {
    let library = provider::find(folder.as_deref())?;
    let variable = |(name, value): (&'static str, std::ffi::OsString)| Variable {
        name,
        value: value.to_string_lossy().into_owned(),
    };
    let variables: Vec<Variable> = environment::variables(&library).into_iter().map(variable).collect();
    if json {
        super::print_json(&variables)?;
        return Ok(Exit::Success);
    }
    for Variable { name, value } in variables {
        say!("export {name}='{}'", value.replace('\'', r"'\''"))?;
    }
    Ok(Exit::Success)
}
