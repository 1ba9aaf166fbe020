//! Where the provider's library lies.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::error::LauncherError;

/// The library, as cargo names it. libfabric takes files whose names end in `fi.so`.
pub(crate) const LIBRARY: &str = "libstillwire_fi.so";

/// Names the variable with the library, or with the folder that it lies in.
pub(crate) const VARIABLE: &str = "STILLWIRE_PROVIDER";

/// The library: at the place that a person gave, else beside this program, else in the folder `lib` beside that one.
pub fn find(given: Option<&Path>) -> Result<PathBuf, LauncherError> {
    let places = match (given, std::env::var_os(VARIABLE)) {
        (Some(given), _) => vec![given.to_owned()],
        (None, Some(given)) if !given.is_empty() => vec![PathBuf::from(given)],
        (None, _) => {
            let own = std::env::current_exe()?;
            let folder = own.parent().unwrap_or(Path::new("/"));
            vec![folder.to_owned(), folder.join("../lib")]
        }
    };
    let file = |place: &PathBuf| if place.is_dir() { place.join(LIBRARY) } else { place.clone() };
    let found = places.iter().map(file).find(|file| file.is_file());
    let Some(found) = found else {
        let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        return Err(LauncherError::NoProvider { places: places.join(", ") });
    };
    let found = found.canonicalize()?;
    if !found.to_string_lossy().ends_with("fi.so") {
        return Err(LauncherError::ProviderName { path: found });
    }
    if found.to_string_lossy().contains(':') {
        return Err(LauncherError::ProviderPath { path: found });
    }
    Ok(found)
}

/// The folder in which libfabric looks.
pub(crate) fn folder(library: &Path) -> OsString {
    library.parent().unwrap_or(Path::new("/")).as_os_str().to_owned()
}
