//! Where the MPI library, the provider and the measuring program are.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::error::MpiError;

/// The provider's library, as cargo names it.
const LIBRARY: &str = "libstillwire_fi.so";

/// Programs and folders of a run.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) mpiexec: PathBuf,
    mpicc: PathBuf,
    /// Folder of the provider's library, if ours is measured.
    pub(crate) provider: Option<PathBuf>,
    /// Folder for programs and temporary files of a bench.
    pub(crate) folder: PathBuf,
    /// Job key of our runs.
    pub(crate) key: PathBuf,
}

impl Setup {
    /// Finds everything.
    pub(crate) fn find(mpich: Option<&Path>, provider: Option<&Path>, ours: bool) -> Result<Setup, MpiError> {
        let tools = tools(mpich)?;
        let provider = if ours { Some(library_folder(provider)?) } else { None };
        let folder = cache()?;
        std::fs::create_dir_all(&folder).map_err(|error| MpiError::Folder { path: folder.clone(), error })?;
        let [mpiexec, mpicc] = ["mpiexec", "mpicc"].map(|tool| tools.join(tool));
        Ok(Setup { mpiexec, mpicc, provider, key: folder.join("key"), folder })
    }

    /// Compiles a measuring program.
    pub(crate) fn compile(&self, name: &str, source: &str) -> Result<PathBuf, MpiError> {
        compile(&self.mpicc, &self.folder, name, source)
    }
}

/// The folder with mpicc and mpiexec.
fn tools(mpich: Option<&Path>) -> Result<PathBuf, MpiError> {
    let looked: Vec<PathBuf> = match mpich {
        Some(folder) => vec![folder.join("bin"), folder.to_owned()],
        None => {
            let package = Path::new(env!("CARGO_MANIFEST_DIR"));
            let target = std::env::var_os("CARGO_TARGET_DIR")
                .map_or_else(|| package.parent().unwrap_or(package).join("target"), PathBuf::from);
            let path = std::env::var_os("PATH").unwrap_or_default();
            // Other MPIs have an mpiexec too.
            let mpichs = std::env::split_paths(&path).filter(|folder| folder.join("mpichversion").is_file());
            std::iter::once(target.join("mpi/mpich/bin")).chain(mpichs).collect()
        }
    };
    let complete = |folder: &&PathBuf| ["mpicc", "mpiexec"].iter().all(|tool| folder.join(tool).is_file());
    let found = looked.iter().find(complete).cloned();
    // Scripts of a Python environment find their libraries from where they really are.
    found.map(|folder| folder.canonicalize().unwrap_or(folder)).ok_or(MpiError::NoMpich { looked })
}

fn library_folder(provider: Option<&Path>) -> Result<PathBuf, MpiError> {
    let folder = match provider {
        Some(folder) => folder.to_owned(),
        None => std::env::current_exe()
            .ok()
            .and_then(|program| program.parent().map(Path::to_owned))
            .unwrap_or_default(),
    };
    let library = folder.join(LIBRARY);
    match library.canonicalize() {
        Ok(library) => Ok(library.parent().unwrap_or(&folder).to_owned()),
        Err(_) => Err(MpiError::NoProvider { path: library }),
    }
}

/// Where the measuring program and the key are kept: the same place each time, so that nothing piles up.
fn cache() -> Result<PathBuf, MpiError> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let caches = named("XDG_CACHE_HOME").or_else(|| named("HOME").map(|home| home.join(".cache")));
    Ok(caches.ok_or(MpiError::NoFolder)?.join("stillwire/bench-mpi"))
}

/// Compiles, under a name that belongs to this compiler: benches with other libraries may run at the same time.
fn compile(mpicc: &Path, folder: &Path, name: &str, text: &str) -> Result<PathBuf, MpiError> {
    let mut hasher = DefaultHasher::new();
    mpicc.as_os_str().as_bytes().hash(&mut hasher);
    let program = folder.join(format!("{name}-{:016x}", hasher.finish()));
    let source = program.with_extension("c");
    let fresh = program.with_extension(std::process::id().to_string());
    std::fs::write(&source, text).map_err(|error| MpiError::Folder { path: source.clone(), error })?;
    let failed = |what: String| MpiError::Compile { mpicc: mpicc.to_owned(), what };
    let output = Command::new(mpicc)
        .args(["-O2", "-std=gnu11", "-o"])
        .arg(&fresh)
        .arg(&source)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(failed(said.trim().lines().take(5).collect::<Vec<_>>().join(" / ")));
    }
    std::fs::rename(&fresh, &program).map_err(|error| MpiError::Folder { path: program.clone(), error })?;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_reported_with_what_to_do() {
        let nowhere = Path::new("/nonexistent");
        let missing = tools(Some(nowhere)).expect_err("no tools").to_string();
        assert!(missing.contains("/nonexistent/bin or /nonexistent"), "{missing}");
        assert!(missing.contains("pip install mpich==5.0.2") && missing.contains("--mpich DIR"), "{missing}");
        let missing = library_folder(Some(nowhere)).expect_err("no library").to_string();
        assert!(missing.contains("/nonexistent/libstillwire_fi.so"), "{missing}");
        assert!(missing.contains("cargo build --release --package stillwire-provider"), "{missing}");
    }
}
