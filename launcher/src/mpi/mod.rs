//! Programs of MPI libraries: which library a program uses, and its needs to run over the provider.
//!
//! MPICH and Intel MPI take their peers from the launcher's PMI server and their network from libfabric, so `run` starts
//! such programs itself. Open MPI wants a launcher of its own kind (PMIx): without one each process is a job of one rank, in
//! silence. So `run` must know before it starts anything.

pub mod environment;
mod imports;
pub(crate) mod library;
pub(crate) mod loader;
pub(crate) mod mappings;
pub mod openmpi;
pub mod program;
pub mod provider;
mod python;
pub mod replacement;

use std::path::{Path, PathBuf};

use clap::ValueEnum;

use crate::Program;
use crate::error::LauncherError;
use library::Traits;
use loader::Library;
use program::Detected;
use replacement::{MpiFrom, Replacement};

/// How the processes of an MPI library find each other, and the library's needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// MPICH, and others with its binary interface and its ways: PMI-1.
    Mpich,
    /// Intel MPI: as MPICH, and a libfabric that it opens while it runs.
    Intel,
    /// MVAPICH: as MPICH. MVAPICH2 has networks of its own, and no libfabric.
    Mvapich,
    /// Open MPI: PMIx, from its own launcher.
    OpenMpi,
}

/// The MPI library of a program, as the command line names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum MpiChoice {
    /// The library that the program loads
    #[default]
    Auto,
    /// None: processes that do not talk to each other
    None,
    /// MPICH, or a library with its interface
    Mpich,
    /// Intel MPI
    Intel,
    /// Open MPI, started by its own mpirun
    Openmpi,
}

impl MpiChoice {
    /// The family that is named, and the library of it that programs load.
    fn family(self) -> Option<(Family, &'static str)> {
        match self {
            MpiChoice::Auto | MpiChoice::None => None,
            MpiChoice::Mpich => Some((Family::Mpich, "libmpi.so.12")),
            MpiChoice::Intel => Some((Family::Intel, "libmpi.so.12")),
            MpiChoice::Openmpi => Some((Family::OpenMpi, "libmpi.so.40")),
        }
    }

    fn name(self) -> &'static str {
        match self {
            MpiChoice::Auto => "auto",
            MpiChoice::None => "none",
            MpiChoice::Mpich => "mpich",
            MpiChoice::Intel => "intel",
            MpiChoice::Openmpi => "openmpi",
        }
    }

    /// The MPI library of a program in which `found` was found.
    pub(crate) fn settle(self, found: Option<Mpi>) -> Result<Option<Mpi>, LauncherError> {
        let Some((family, name)) = self.family() else {
            return Ok(found.filter(|_| self == MpiChoice::Auto));
        };
        let is_open = |family| family == Family::OpenMpi;
        match found {
            Some(found) if is_open(found.family) != is_open(family) => {
                Err(LauncherError::OtherMpi { named: self.name(), library: found.library })
            }
            Some(found) if is_open(family) => Ok(Some(found)),
            Some(found) => Ok(Some(Mpi { family, ..found })),
            None => Ok(Some(Mpi::unseen(family, name))),
        }
    }
}

/// The MPI library of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mpi {
    /// Whose it is.
    pub family: Family,
    /// `libmpi`, as the loader finds it; its name alone, if only a person has named it.
    pub library: PathBuf,
    /// The libfabric that it is linked to. Some open theirs while they run.
    pub fabric: Option<PathBuf>,
    /// Open MPI 4, whose launcher has other options.
    pub(crate) is_old_openmpi: bool,
    /// It can load providers of libfabric.
    pub(crate) takes_providers: bool,
}

/// Names of MPI libraries of MPICH's binary interface, all of one number: MPICH 3.1 and newer, Intel MPI, MVAPICH; and as Debian names MPICH's.
pub(crate) const MPICH_ABI: [&str; 2] = ["libmpi.so.12", "libmpich.so.12"];

/// The interface of the MPI 5 standard, which MPICH and Open MPI have.
const STANDARD_ABI: &str = "libmpi_abi.so";

/// Names of MPI libraries, and of which family they are, the surest first. `libmpi.so` without a number is the name that python may load of either;
/// the libraries that it needs show its family, and the family behind the standard interface.
const NAMES: [(&str, Family); 5] = [
    (MPICH_ABI[0], Family::Mpich),
    (MPICH_ABI[1], Family::Mpich),
    ("libmpi.so.40", Family::OpenMpi),
    (STANDARD_ABI, Family::Mpich),
    ("libmpi.so", Family::Mpich),
];

/// MPICH before 3.1, and MVAPICH2 before 2.0, had this name with other numbers, and other interfaces.
const MPICH_OF_OLD: &str = "libmpich.so.";

/// Whether a library of this name, or a version of it, is an MPI library.
pub(crate) fn is_mpi_library(name: &str) -> bool {
    ["libmpi.so", "libmpich.so", STANDARD_ABI].iter().any(|start| name.starts_with(start))
}

/// Whether `name` is a library, or a version of it: `libmpi.so.12` is no version of `libmpi.so.1`.
fn is_named(name: &str, library: &str) -> bool {
    name.strip_prefix(library).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

impl Mpi {
    /// The MPI library among those that a program loads.
    pub fn among(libraries: &[Library]) -> Option<Mpi> {
        let path_of = |wanted: &str| {
            let found = libraries.iter().find(|library| is_named(&library.name, wanted));
            found.and_then(|library| library.path.clone())
        };
        let (family, library) = NAMES.iter().find_map(|(name, family)| Some((*family, path_of(name)?)))?;
        let is_openmpi = family == Family::OpenMpi || path_of("libopen-pal.so").is_some();
        let fabric = path_of("libfabric.so");
        let traits = Traits::of(&library).unwrap_or_default();
        Some(Mpi {
            family: if is_openmpi { Family::OpenMpi } else { traits.family() },
            takes_providers: fabric.is_some() || traits.takes_providers,
            library,
            fabric,
            is_old_openmpi: is_openmpi && path_of("libopen-rte.so").is_some(),
        })
    }

    /// One of which only the name is known.
    fn unseen(family: Family, name: &str) -> Mpi {
        let library = PathBuf::from(name);
        Mpi { family, library, fabric: None, is_old_openmpi: false, takes_providers: true }
    }

    /// It was found, and not only named.
    pub fn is_seen(&self) -> bool {
        self.library.is_absolute()
    }

    /// The name of an MPI library that a program needs and the loader does not find.
    pub(crate) fn missing(libraries: &[Library]) -> Option<&str> {
        let is_mpi =
            |name: &str| NAMES.iter().any(|(wanted, _)| is_named(name, wanted)) || Mpi::old(name).is_some();
        libraries
            .iter()
            .find(|library| library.path.is_none() && is_mpi(&library.name))
            .map(|library| &*library.name)
    }

    /// The number of an interface of MPICH that no library of today has.
    pub(crate) fn old(name: &str) -> Option<u32> {
        let number = name.strip_prefix(MPICH_OF_OLD)?.split('.').next()?.parse().ok()?;
        (number < 12).then_some(number)
    }
}

/// Follows a program to its MPI library, and finds another one where that cannot load the provider.
pub fn resolve(
    program: &Program,
    choice: MpiChoice,
    from: &MpiFrom,
) -> Result<(Detected, Option<Replacement>), LauncherError> {
    let mut detected = program::detect(program, choice)?;
    let replacement = replacement::plan(program, &mut detected, choice, from)?;
    match detected.not_found() {
        Some(error) if replacement.is_none() => Err(error),
        _ => Ok((detected, replacement)),
    }
}

/// The name of a library's file.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn libraries(names: &[&str]) -> Vec<Library> {
        let library =
            |name: &&str| Library { name: (*name).to_owned(), path: Some(format!("/l/{name}").into()) };
        names.iter().map(library).collect()
    }

    #[test]
    fn families_are_reported_apart() {
        let family = |names: &[&str]| Mpi::among(&libraries(names)).map(|mpi| mpi.family);
        assert_eq!(family(&["libc.so.6", "libmpi.so.12", "libfabric.so.1"]), Some(Family::Mpich));
        assert_eq!(family(&["libmpi.so.40", "libopen-pal.so.80"]), Some(Family::OpenMpi));
        assert_eq!(family(&["libmpi_abi.so.1"]), Some(Family::Mpich));
        assert_eq!(family(&["libmpi.so"]), Some(Family::Mpich));
        assert_eq!(family(&["libmpichfort.so.12", "libmpich.so.12"]), Some(Family::Mpich), "Debian's");
        assert_eq!(family(&["libmpich.so.10"]), None, "another interface");
        assert_eq!(family(&["libmpi.so", "libopen-pal.so.80"]), Some(Family::OpenMpi));
        assert_eq!(family(&["libmpi_abi.so.0", "libopen-pal.so.0"]), Some(Family::OpenMpi));
        assert_eq!(family(&["libmpifort.so.12", "libc.so.6"]), None);
        let old =
            Mpi::among(&libraries(&["libmpi.so.40", "libopen-rte.so.40", "libopen-pal.so.40"])).unwrap();
        assert!(old.is_old_openmpi && old.fabric.is_none());
    }

    #[test]
    fn a_library_that_is_not_found_is_none() {
        let mut all = libraries(&["libc.so.6", "libmpi.so.12"]);
        all[1].path = None;
        assert_eq!((Mpi::among(&all), Mpi::missing(&all)), (None, Some("libmpi.so.12")));
        all[1].name = "libmpich.so.12".to_owned();
        assert_eq!(Mpi::missing(&all), Some("libmpich.so.12"));
        all[1].name = "libmpichfort.so.12".to_owned();
        assert_eq!(Mpi::missing(&all), None, "what is needed of it is missing, too");
    }

    #[test]
    fn a_person_says_which_library_it_is_unless_another_one_is_there() {
        let found = |name: &str| Mpi::among(&libraries(&[name]));
        let family = |choice: MpiChoice, found| choice.settle(found).map(|mpi| mpi.map(|mpi| mpi.family));
        assert_eq!(family(MpiChoice::Auto, found("libmpi.so.12")).unwrap(), Some(Family::Mpich));
        assert_eq!(family(MpiChoice::None, found("libmpi.so.12")).unwrap(), None);
        assert_eq!(family(MpiChoice::Intel, found("libmpi.so.12")).unwrap(), Some(Family::Intel));
        assert_eq!(family(MpiChoice::Openmpi, None).unwrap(), Some(Family::OpenMpi));
        assert!(family(MpiChoice::Openmpi, found("libmpi.so.12")).is_err());
        assert!(family(MpiChoice::Mpich, found("libmpi.so.40")).is_err());
    }

    #[test]
    fn interfaces_of_old_are_known_by_their_numbers() {
        assert_eq!((Mpi::old("libmpich.so.10"), Mpi::old("libmpich.so.3.2")), (Some(10), Some(3)));
        assert_eq!((Mpi::old("libmpich.so.12"), Mpi::old("libmpi.so.10")), (None, None));
    }
}
