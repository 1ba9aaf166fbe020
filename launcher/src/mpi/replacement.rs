//! The MPI library that a program gets in place of its own, whose network cannot be the provider.
//!
//! MPICH 3.1 and newer, Intel MPI and MVAPICH have one binary interface, so that a program of any of them runs with any other one. Where its own has no libfabric, a folder
//! with links under the names that it asks for, first in `LD_LIBRARY_PATH`, has the loader find an MPICH that has. The loader itself is asked for the
//! result, before anything runs.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::library::Traits;
use super::loader;
use super::program::{Detected, Python, ask_python};
use super::{Family, MPICH_ABI, Mpi, MpiChoice, STANDARD_ABI, file_name, is_named};
use crate::Program;
use crate::error::LauncherError;

/// The loader's folders, which count before its own and after those that programs name themselves in RPATH.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// Name of the folder with links in a job's directory.
const LINKS: &str = "mpi-lib";

/// Libraries between a program and an MPI library of MPICH's interface: for each language, under the names of MPICH and of Debian. A program's own go on with another
/// MPI library, as they use its public functions alone.
const BINDINGS: [[&str; 2]; 2] =
    [["libmpifort.so.12", "libmpichfort.so.12"], ["libmpicxx.so.12", "libmpichcxx.so.12"]];

/// Where a program's MPI library is to come from, if not from where its loader finds it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum MpiFrom {
    /// From an MPICH with libfabric that is found here, if its own has none.
    #[default]
    Auto,
    /// From here, instead of the program's own.
    Place(PathBuf),
}

impl FromStr for MpiFrom {
    type Err = String;

    fn from_str(text: &str) -> Result<MpiFrom, String> {
        match text {
            "" => Err("expected a folder, or auto".to_owned()),
            "auto" => Ok(MpiFrom::Auto),
            folder => Ok(MpiFrom::Place(folder.into())),
        }
    }
}

/// The MPI library that a program gets in place of its own.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Replacement {
    /// The MPI library.
    pub library: PathBuf,
    /// Names that a program asks for, and the files that it gets.
    links: Vec<(String, PathBuf)>,
    /// Folders of the library's own libraries that it finds from its place, and not from a link.
    folders: Vec<PathBuf>,
    /// Libraries that the program asks for: the name, and the file that it would have had.
    replaced: Vec<(String, Option<PathBuf>)>,
}

/// One replaced library: its name, the program's own file, and the replacement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exchange {
    /// The library's name.
    pub name: String,
    /// The program's own file, if the loader finds one.
    pub own: Option<PathBuf>,
    /// The file that it gets.
    pub given: PathBuf,
}

/// The replacement that a program needs, or that a person wants; `detected` has its library then.
pub fn plan(
    program: &Program,
    detected: &mut Detected,
    choice: MpiChoice,
    from: &MpiFrom,
) -> Result<Option<Replacement>, LauncherError> {
    let own = detected.mpi.as_ref().filter(|mpi| mpi.is_seen());
    if own.is_none()
        && let Some(old) = detected.libraries.iter().find(|library| Mpi::old(&library.name).is_some())
    {
        return Err(LauncherError::OldMpich { program: detected.last(), library: old.name.clone() });
    }
    let is_other =
        |mpi: &Mpi| mpi.family == Family::OpenMpi && !file_name(&mpi.library).starts_with(STANDARD_ABI);
    let library = match from {
        MpiFrom::Place(place) => match &detected.mpi {
            Some(mpi) if is_other(mpi) => {
                return Err(LauncherError::NotReplaceable { library: mpi.library.clone() });
            }
            _ => library_in(place)?,
        },
        MpiFrom::Auto if choice == MpiChoice::None => return Ok(None),
        MpiFrom::Auto => match (own, detected.missing()) {
            (Some(mpi), _) if mpi.family == Family::OpenMpi || mpi.takes_providers => return Ok(None),
            (Some(mpi), _) => match search(program, detected) {
                Some(found) => found,
                None => return Err(LauncherError::NoFabric { library: mpi.library.clone() }),
            },
            (None, Some(missing)) if is_replaceable(missing) => match search(program, detected) {
                Some(found) => found,
                None => return Ok(None),
            },
            (None, _) => return Ok(None),
        },
    };
    let replacement = Replacement::new(library, program, detected)?;
    detected.mpi = Some(replacement.mpi(detected));
    Ok(Some(replacement))
}

fn is_replaceable(name: &str) -> bool {
    MPICH_ABI.iter().any(|known| is_named(name, known)) || name.starts_with(STANDARD_ABI)
}

/// MPI libraries of MPICH's interface in a folder, or in those of its libraries.
fn candidates(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let folders = ["", "lib", "lib64"].map(|inside| folder.join(inside));
    folders
        .into_iter()
        .flat_map(|folder| MPICH_ABI.map(|name| folder.join(name)))
        .filter(|file| file.is_file())
}

/// The library that a person means.
fn library_in(place: &Path) -> Result<PathBuf, LauncherError> {
    let refused = |problem| LauncherError::MpiFrom { path: place.to_owned(), problem };
    let found = if place.is_file() { Some(place.to_owned()) } else { candidates(place).next() };
    let found = found
        .and_then(|file| std::path::absolute(file).ok())
        .ok_or_else(|| refused(format!("no {} is there, nor in lib or lib64 of it", MPICH_ABI[0])))?;
    match Traits::of(&found) {
        Ok(traits) if traits.takes_providers => Ok(found),
        Ok(_) => Err(refused(format!("{} has no libfabric either", found.display()))),
        Err(error) => Err(refused(format!("{}: {error}", found.display()))),
    }
}

/// An MPICH with libfabric: beside the program and its interpreter, in the environment of python or conda that is active, beside the folders of PATH,
/// beside this program, and where pip installs for one user.
fn search(program: &Program, detected: &Detected) -> Option<PathBuf> {
    let above = |file: &Path| file.parent().and_then(Path::parent).map(Path::to_owned);
    let variable = |name: &str| program.variable(name).filter(|value| !value.is_empty());
    let path = variable("PATH").unwrap_or_default();
    let mut prefixes: Vec<PathBuf> = detected.steps.iter().filter_map(|step| above(step)).collect();
    prefixes
        .extend(["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|name| variable(name)).map(PathBuf::from));
    prefixes.extend(std::env::split_paths(&path).filter_map(|folder| folder.parent().map(Path::to_owned)));
    prefixes.extend(std::env::current_exe().ok().and_then(|own| above(&own)));
    prefixes.extend(variable("HOME").map(|home| PathBuf::from(home).join(".local")));
    let is_fit = |file: &PathBuf| {
        Traits::of(file).is_ok_and(|traits| traits.is_mpich && !traits.is_mvapich && traits.takes_providers)
    };
    let absolute = prefixes.into_iter().filter(|prefix| prefix.is_absolute());
    absolute.flat_map(|prefix| candidates(&prefix).collect::<Vec<_>>()).find(is_fit)
}

impl Replacement {
    /// With bindings of the library's own where the program asks for some and they have all that it needs.
    fn new(library: PathBuf, program: &Program, detected: &Detected) -> Result<Replacement, LauncherError> {
        let folder = library.parent().unwrap_or(Path::new("/"));
        let mut links: Vec<_> = MPICH_ABI.map(|name| (name.to_owned(), library.clone())).into();
        let mut bindings = Vec::new();
        let mut replaced = Vec::new();
        for asked in &detected.libraries {
            let name = &asked.name;
            let of = BINDINGS.iter().find(|names| names.iter().any(|known| is_named(name, known)));
            if MPICH_ABI.iter().any(|known| is_named(name, known)) {
                replaced.push((name.clone(), asked.path.clone()));
            } else if name.starts_with(STANDARD_ABI) {
                let given = folder.join(name);
                if !given.is_file() {
                    let problem = format!(
                        "the program asks for {name}, and no such library is beside {}",
                        library.display()
                    );
                    return Err(LauncherError::MpiFrom { path: folder.to_owned(), problem });
                }
                links.push((name.clone(), given));
                replaced.push((name.clone(), asked.path.clone()));
            } else if let Some(given) = of
                .and_then(|names| names.map(|name| folder.join(name)).into_iter().find(|file| file.is_file()))
            {
                bindings.push((name.clone(), given, asked.path.clone()));
            }
        }
        if library.to_str().is_none() {
            let problem = "its path is no text; put it elsewhere".to_owned();
            return Err(LauncherError::MpiFrom { path: library, problem });
        }
        let loader = detected.loader.clone().or_else(own_loader);
        let folders = loader.as_ref().map_or_else(Vec::new, |loader| folders_of(&library, loader));
        let mut replacement = Replacement { library, links, folders, replaced };
        let alone = replacement.clone();
        replacement.links.extend(bindings.iter().map(|(name, given, _)| (name.clone(), given.clone())));
        replacement.replaced.extend(bindings.iter().map(|(name, _, own)| (name.clone(), own.clone())));
        match replacement.verify(program, detected) {
            Err(LauncherError::Incompatible { .. }) if !bindings.is_empty() => {
                alone.verify(program, detected)?;
                Ok(alone)
            }
            verified => verified.map(|()| replacement),
        }
    }

    /// As a job's file keeps it.
    pub fn emit(&self) -> String {
        // Its paths are text, or it was not made.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses a job file's setting.
    pub fn parse(text: &str) -> Result<Replacement, LauncherError> {
        serde_json::from_str(text).map_err(|_| LauncherError::MpiFromUnread)
    }

    /// The program's MPI library after the replacement.
    fn mpi(&self, detected: &Detected) -> Mpi {
        let traits = Traits::of(&self.library).unwrap_or_default();
        let libraries = |loader: PathBuf| {
            loader::libraries(&loader, &self.library, &[], Path::new("/")).unwrap_or_default()
        };
        let all = detected.loader.clone().or_else(own_loader).map_or_else(Vec::new, libraries);
        Mpi {
            family: traits.family(),
            library: self.library.clone(),
            fabric: all
                .into_iter()
                .find(|library| library.name.starts_with("libfabric.so"))
                .and_then(|found| found.path),
            is_old_openmpi: false,
            takes_providers: true,
        }
    }

    /// The replaced libraries; of a program whose libraries are not known, all that it might ask for.
    pub fn exchanges(&self) -> Vec<Exchange> {
        let given = |name: &str| {
            let link = self.links.iter().find(|(link, _)| link == name);
            link.map_or_else(|| self.library.clone(), |(_, file)| file.clone())
        };
        let each = self.replaced.iter().map(|(name, own)| Exchange {
            name: name.clone(),
            own: own.clone(),
            given: given(name),
        });
        each.collect()
    }

    /// In a line.
    pub fn words(&self) -> String {
        let of = |own: &Option<PathBuf>| {
            own.as_ref().map_or_else(|| "which is not found".to_owned(), |own| own.display().to_string())
        };
        let name = |Exchange { name, own, .. }: &Exchange| format!("{name} ({})", of(own));
        let names: Vec<String> = self.exchanges().iter().map(name).collect();
        if names.is_empty() {
            return format!("the MPI library that the program loads is {}", self.library.display());
        }
        let verb = if names.len() == 1 { "is" } else { "are" };
        format!(
            "{} {verb} replaced by {}, which can load the provider",
            names.join(" and "),
            self.library.display()
        )
    }

    /// Why it is not available on this host.
    pub(crate) fn problem(&self) -> Option<String> {
        let missing = self.links.iter().map(|(_, file)| file).find(|file| !file.is_file())?;
        Some(format!(
            "the MPI library {}, on which the job runs, is not there; put it back, or install the same (pip install mpich) in the same place",
            missing.display()
        ))
    }

    /// Makes the links in a directory of a job, and has a program find them.
    pub fn equip(&self, program: &mut Program, directory: &Path) -> io::Result<()> {
        let links = directory.join(LINKS);
        self.link_in(&links)?;
        let variable = self.variable(&links, program)?;
        program.environment.push((LIBRARY_PATH.into(), variable));
        Ok(())
    }

    fn link_in(&self, folder: &Path) -> io::Result<()> {
        match std::fs::DirBuilder::new().mode(0o755).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        for (name, file) in &self.links {
            let link = folder.join(name);
            if std::fs::read_link(&link).is_ok_and(|found| found == *file) {
                continue;
            }
            // Other nodes of the job may do the same in the same directory at this moment.
            let fresh = folder.join(format!("{name}.{}", std::process::id()));
            match std::fs::remove_file(&fresh) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            symlink(file, &fresh)?;
            std::fs::rename(&fresh, &link)?;
        }
        Ok(())
    }

    /// The loader's folders: the links, the library's own folders, and the program's folders from before.
    fn variable(&self, links: &Path, program: &Program) -> io::Result<OsString> {
        let mut value = OsString::new();
        for folder in core::iter::once(links).chain(self.folders.iter().map(PathBuf::as_path)) {
            if folder.as_os_str().as_bytes().iter().any(|byte| b":;$".contains(byte)) {
                let problem = format!(
                    "{}: a path with a colon, a semicolon or a dollar cannot be given to the loader (LD_LIBRARY_PATH); put it elsewhere",
                    folder.display()
                );
                return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
            }
            if !value.is_empty() {
                value.push(":");
            }
            value.push(folder);
        }
        if let Some(before) = program.variable(LIBRARY_PATH).filter(|before| !before.is_empty()) {
            value.push(":");
            value.push(before);
        }
        Ok(value)
    }

    /// Asks the loader which libraries the program would get, and python which ones mpi4py would.
    fn verify(&self, program: &Program, detected: &Detected) -> Result<(), LauncherError> {
        let folder = Temporary::new()?;
        let mut program = program.clone();
        self.equip(&mut program, &folder.0)?;
        let links = folder.0.join(LINKS);
        let path = detected.last();
        match (&detected.python, &detected.loader) {
            (Some(Python::Asked), _) => {
                let mut again = Detected::default();
                ask_python(&program, &path, &mut again);
                self.verify_python(&again)
            }
            (None, Some(loader)) => {
                let found = loader::libraries(loader, &path, &program.environment, &program.directory)?;
                self.verify_found(&found, &links, &path)?;
                let undefined = |all| {
                    let found =
                        loader::undefined(loader, &path, &program.environment, &program.directory, all);
                    found.map(|found| {
                        found.into_iter().filter(|missing| is_of_mpi(&missing.symbol)).collect::<Vec<_>>()
                    })
                };
                // Data is bound when a program starts, a function when it is called: a missing function that nobody calls is no fault.
                let now = undefined(false)?;
                let own = undefined(true)?.into_iter().filter(|missing| same_file(&missing.object, &path));
                let missing: Vec<String> = now.into_iter().chain(own).map(|missing| missing.symbol).collect();
                if missing.is_empty() {
                    return Ok(());
                }
                Err(LauncherError::Incompatible {
                    program: path,
                    library: self.library.clone(),
                    symbols: missing.join(", "),
                })
            }
            // It opens its library while it runs, if it does: the job sees then which it is.
            _ => Ok(()),
        }
    }

    fn verify_found(
        &self,
        found: &[loader::Library],
        links: &Path,
        program: &Path,
    ) -> Result<(), LauncherError> {
        for library in found {
            let is_linked = self.links.iter().any(|(name, _)| *name == library.name);
            let is_right = library.path.as_ref().is_some_and(|path| path.parent() == Some(links));
            if is_linked && !is_right {
                return Err(LauncherError::Overruled {
                    program: program.to_owned(),
                    name: library.name.clone(),
                    found: library.path.clone().unwrap_or_default(),
                });
            }
            if library.name.starts_with("libfabric.so") && library.path.is_none() {
                let problem = format!(
                    "the loader does not find {}, which {} needs",
                    library.name,
                    self.library.display()
                );
                return Err(LauncherError::MpiFrom { path: self.library.clone(), problem });
            }
        }
        Ok(())
    }

    fn verify_python(&self, again: &Detected) -> Result<(), LauncherError> {
        let is_ours = |path: &PathBuf| self.links.iter().any(|(_, file)| same_file(path, file));
        let mut loaded = again.libraries.iter().filter_map(|library| library.path.as_ref());
        if loaded.any(is_ours) {
            return Ok(());
        }
        let problem = match (&again.python_says, Mpi::among(&again.libraries)) {
            (Some(words), _) => format!("python with it says: {words}"),
            (None, Some(mpi)) => format!("mpi4py loads {} instead", mpi.library.display()),
            (None, None) => "mpi4py loads no MPI library with it".to_owned(),
        };
        Err(LauncherError::MpiFrom { path: self.library.clone(), problem })
    }
}

fn is_of_mpi(symbol: &str) -> bool {
    let start = symbol.get(..4).unwrap_or_default().to_ascii_lowercase();
    start.starts_with("mpi") || start == "pmpi"
}

fn same_file(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// That of this program, which serves where a program's own is not known.
fn own_loader() -> Option<PathBuf> {
    match loader::image(&std::env::current_exe().ok()?).ok()? {
        loader::Image::Dynamic(loader) => Some(loader),
        _ => None,
    }
}

/// Folders of the libraries that a library is linked to, in the same installation: it may name them from its own place.
fn folders_of(library: &Path, loader: &Path) -> Vec<PathBuf> {
    let real = library.canonicalize().unwrap_or_else(|_| library.to_owned());
    let Some(prefix) = real.parent().and_then(Path::parent) else { return Vec::new() };
    // Folders that the loader gets elsewhere are not the library's own.
    let alone = [(OsString::from(LIBRARY_PATH), OsString::new())];
    let found = loader::libraries(loader, &real, &alone, Path::new("/")).unwrap_or_default();
    let mut folders: Vec<PathBuf> = Vec::new();
    for path in found.into_iter().filter_map(|library| library.path) {
        let real = path.canonicalize().unwrap_or(path);
        let folder = real.parent().filter(|folder| folder.starts_with(prefix) && prefix != Path::new("/usr"));
        if let Some(folder) = folder
            && !folders.iter().any(|known| known == folder)
        {
            folders.push(folder.to_owned());
        }
    }
    folders
}

/// A folder that is removed when this is dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn new() -> io::Result<Temporary> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        let name = format!("stillwire-mpi-{:016x}", u64::from_le_bytes(bytes));
        let path = std::env::temp_dir().join(OsStr::new(&name));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Temporary(path))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // A failure leaves links in a folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replacement(folder: &Path) -> Replacement {
        let library = folder.join("lib/libmpi.so.12");
        Replacement {
            links: MPICH_ABI.map(|name| (name.to_owned(), library.clone())).into(),
            folders: vec![folder.join("lib/mpich")],
            replaced: vec![("libmpich.so.12".into(), Some("/usr/lib/libmpich.so.12".into()))],
            library,
        }
    }

    fn program(folder: &Path) -> Program {
        Program {
            command: vec!["prog".into()],
            directory: folder.to_owned(),
            environment: vec![(LIBRARY_PATH.into(), "/before:/last".into())],
            inherited: None,
        }
    }

    #[test]
    fn links_come_first_then_what_the_library_needs_then_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().canonicalize().unwrap();
        let (given, mut program) = (replacement(&place), program(&place));
        given.equip(&mut program, &place).unwrap();
        let path = place.display();
        let expected = format!("{path}/mpi-lib:{path}/lib/mpich:/before:/last");
        assert_eq!(program.variable(LIBRARY_PATH).unwrap(), expected.as_str());
        for name in MPICH_ABI {
            assert_eq!(std::fs::read_link(place.join(LINKS).join(name)).unwrap(), given.library);
        }
        // A job that goes on finds them, or other ones, there.
        std::fs::remove_file(place.join(LINKS).join(MPICH_ABI[0])).unwrap();
        symlink("/elsewhere", place.join(LINKS).join(MPICH_ABI[0])).unwrap();
        given.link_in(&place.join(LINKS)).unwrap();
        assert_eq!(std::fs::read_dir(place.join(LINKS)).unwrap().count(), 2);
        assert_eq!(std::fs::read_link(place.join(LINKS).join(MPICH_ABI[0])).unwrap(), given.library);
    }

    #[test]
    fn what_the_loader_cannot_be_reported_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let odd = folder.path().join("a:b");
        std::fs::create_dir(&odd).unwrap();
        let refused = replacement(folder.path()).equip(&mut program(&odd), &odd).unwrap_err();
        assert!(refused.to_string().contains("LD_LIBRARY_PATH"), "{refused}");
    }

    #[test]
    fn a_library_that_is_gone_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let given = replacement(folder.path());
        assert!(given.problem().unwrap().contains("lib/libmpi.so.12"));
        std::fs::create_dir(folder.path().join("lib")).unwrap();
        std::fs::write(&given.library, b"").unwrap();
        assert_eq!(given.problem(), None);
        assert_eq!(Replacement::parse(&given.emit()).unwrap(), given);
        assert!(Replacement::parse("{}").is_err());
        let words = given.words();
        assert!(words.starts_with("libmpich.so.12 (/usr/lib/libmpich.so.12) is replaced by"), "{words}");
    }

    #[test]
    fn a_place_without_an_mpich_that_can_load_a_provider_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let of = || library_in(folder.path()).map_err(|error| error.to_string());
        assert!(of().unwrap_err().contains("no libmpi.so.12 is there"));
        std::fs::create_dir(folder.path().join("lib")).unwrap();
        let file = folder.path().join("lib/libmpi.so.12");
        std::fs::write(&file, b"MPICH Version libucp.so").unwrap();
        assert!(of().unwrap_err().contains("has no libfabric either"));
        std::fs::write(&file, b"MPICH Version libfabric.so.1").unwrap();
        assert_eq!(of().unwrap(), file);
    }
}
