//! Programs of MPI libraries: which library a program uses, and what it needs to run over the provider.
//!
//! MPICH and Intel MPI take their peers from the launcher's PMI server and their network from libfabric, so `run` starts
//! such programs itself. Open MPI wants a launcher of its own kind (PMIx): without one each process is a job of one rank, in
//! silence. So `run` must know before it starts anything.

pub(crate) mod environment;
pub(crate) mod loader;
pub(crate) mod openmpi;
pub(crate) mod program;
pub(crate) mod provider;

use std::path::PathBuf;

use loader::Library;

/// How the processes of an MPI library find each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Family {
    /// MPICH, Intel MPI, and others with their binary interface: PMI-1.
    Mpich,
    /// Open MPI: PMIx, from its own launcher.
    OpenMpi,
}

/// The MPI library of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mpi {
    pub(crate) family: Family,
    /// `libmpi`, as the loader finds it.
    pub(crate) library: PathBuf,
    /// The libfabric that it is linked to. Some open theirs while they run.
    pub(crate) fabric: Option<PathBuf>,
    /// Open MPI 4, whose launcher has other options.
    pub(crate) is_old_openmpi: bool,
}

/// Names of MPI libraries, and of which family they are, the surest first. `libmpi_abi` is the standard's own interface, which
/// both have, and `libmpi.so` without a number is what python may load of either; who it is shows in what it needs.
const NAMES: [(&str, Family); 4] = [
    ("libmpi.so.12", Family::Mpich),
    ("libmpi.so.40", Family::OpenMpi),
    ("libmpi_abi.so", Family::Mpich),
    ("libmpi.so", Family::Mpich),
];

impl Mpi {
    /// The MPI library among those that a program loads.
    pub(crate) fn among(libraries: &[Library]) -> Option<Mpi> {
        let path_of = |start: &str| {
            let found = libraries.iter().find(|library| library.name.starts_with(start));
            found.and_then(|library| library.path.clone())
        };
        let (family, library) = NAMES.iter().find_map(|(name, family)| Some((*family, path_of(name)?)))?;
        let is_openmpi = family == Family::OpenMpi || path_of("libopen-pal.so").is_some();
        Some(Mpi {
            family: if is_openmpi { Family::OpenMpi } else { Family::Mpich },
            library,
            fabric: path_of("libfabric.so"),
            is_old_openmpi: is_openmpi && path_of("libopen-rte.so").is_some(),
        })
    }

    /// The name of an MPI library that a program needs and the loader does not find.
    pub(crate) fn missing(libraries: &[Library]) -> Option<&str> {
        let is_mpi = |name: &str| NAMES.iter().any(|(start, _)| name.starts_with(start));
        libraries
            .iter()
            .find(|library| library.path.is_none() && is_mpi(&library.name))
            .map(|library| &*library.name)
    }
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
    fn families_are_told_apart() {
        let family = |names: &[&str]| Mpi::among(&libraries(names)).map(|mpi| mpi.family);
        assert_eq!(family(&["libc.so.6", "libmpi.so.12", "libfabric.so.1"]), Some(Family::Mpich));
        assert_eq!(family(&["libmpi.so.40", "libopen-pal.so.80"]), Some(Family::OpenMpi));
        assert_eq!(family(&["libmpi_abi.so.1"]), Some(Family::Mpich));
        assert_eq!(family(&["libmpi.so"]), Some(Family::Mpich));
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
    }
}
