//! `stillwire env`: the variables with which a person's own mpiexec finds the provider.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::CliError;
use crate::exit::Exit;

/// The provider's library, as cargo names it.
const LIBRARY: &str = "libstillwire_fi.so";

#[derive(Serialize)]
struct Variable {
    name: &'static str,
    value: String,
}

/// Prints the variables as a shell reads them: `eval "$(stillwire env)"`.
pub(crate) fn env(folder: Option<PathBuf>, json: bool) -> Result<Exit, CliError> {
    let folder = match folder {
        Some(folder) => folder,
        None => std::env::current_exe()?.parent().map(Path::to_owned).unwrap_or_default(),
    };
    let library = folder.join(LIBRARY);
    let library = library.canonicalize().map_err(|error| CliError::NoProvider { path: library, error })?;
    let folder = library.parent().map(Path::to_owned).unwrap_or_default();
    let variables = variables(&folder.to_string_lossy());
    if json {
        super::print_json(&variables)?;
        return Ok(Exit::Success);
    }
    for Variable { name, value } in variables {
        println!("export {name}='{}'", value.replace('\'', r"'\''"));
    }
    Ok(Exit::Success)
}

fn variables(folder: &str) -> Vec<Variable> {
    [
        ("FI_PROVIDER_PATH", folder),
        ("FI_PROVIDER", "stillwire"),
        // MPICH: its libfabric device, for peers on the same host too.
        ("MPIR_CVAR_CH4_NETMOD", "ofi"),
        ("MPIR_CVAR_NOLOCAL", "1"),
        // Open MPI: likewise; its mpirun passes variables of this form on by itself, and the others with -x.
        ("OMPI_MCA_pml", "cm"),
        ("OMPI_MCA_mtl", "ofi"),
        ("OMPI_MCA_mtl_ofi_provider_include", "stillwire"),
    ]
    .map(|(name, value)| Variable { name, value: value.to_owned() })
    .into()
}
