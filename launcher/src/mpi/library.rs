//! Properties that the file of an MPI library shows without being run: whose it is, and whether it can load providers.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use memchr::memmem;

use super::Family;

/// Words that stand in the file of each library.
const MPICH: &[u8] = b"MPICH Version";
const INTEL: &[u8] = b"Intel(R) MPI Library";
const MVAPICH: &[u8] = b"MVAPICH";

/// In a file that is linked to libfabric, or opens it by this name; and in a library that libfabric is built into, which reads this variable.
const FABRICS: [&[u8]; 2] = [b"libfabric.so", b"FI_PROVIDER_PATH"];

/// Properties of a library, from its file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Traits {
    pub(crate) is_mpich: bool,
    pub(crate) is_intel: bool,
    pub(crate) is_mvapich: bool,
    /// It uses libfabric, and so can load a provider.
    pub(crate) takes_providers: bool,
}

impl Traits {
    pub(crate) fn of(path: &Path) -> io::Result<Traits> {
        let mut bytes = Vec::new();
        File::open(path)?.read_to_end(&mut bytes)?;
        Ok(Traits::in_bytes(&bytes))
    }

    fn in_bytes(bytes: &[u8]) -> Traits {
        let has = |words: &[u8]| memmem::find(bytes, words).is_some();
        Traits {
            is_mpich: has(MPICH),
            is_intel: has(INTEL),
            is_mvapich: has(MVAPICH),
            takes_providers: FABRICS.iter().any(|words| has(words)),
        }
    }

    /// Among libraries of MPICH's interface.
    pub(crate) fn family(&self) -> Family {
        match self {
            Traits { is_intel: true, .. } => Family::Intel,
            Traits { is_mvapich: true, .. } => Family::Mvapich,
            _ => Family::Mpich,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_show_whose_they_are() {
        let of = |words: &str| Traits::in_bytes(format!("\x7fELF..{words}\0..").as_bytes());
        let mpich = of("MPICH Version:      %s\n\0libfabric.so.1");
        assert_eq!((mpich.family(), mpich.takes_providers), (Family::Mpich, true));
        let debian = of("MPICH Version:\t%s\0libucp.so.0");
        assert_eq!((debian.is_mpich, debian.takes_providers), (true, false));
        let intel = of("Intel(R) MPI Library 2021\0libfabric.so");
        assert_eq!((intel.family(), intel.takes_providers), (Family::Intel, true));
        let mvapich = of("MVAPICH2 Version\0based on MPICH Version\0libibverbs.so.1");
        assert_eq!((mvapich.family(), mvapich.takes_providers), (Family::Mvapich, false));
        assert!(of("FI_PROVIDER_PATH").takes_providers, "one that has libfabric built in");
        assert_eq!(of(""), Traits::default());
    }
}
