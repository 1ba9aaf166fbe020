//! The variables with which MPI libraries take the provider, and nothing else.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::{Family, Mpi, provider};

/// Variables of the launcher's own surroundings that would make a rank believe it is part of another job.
const FOREIGN: [&str; 8] = [
    "PMI_",
    "PMIX_",
    "PRTE_",
    "OMPI_COMM_WORLD_",
    "HYDRA_",
    "HYDI_",
    "MPI_LOCAL",
    "MPIR_CVAR_OFI_USE_PROVIDER",
];

/// Whether a variable must not reach a rank.
pub fn is_foreign(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    FOREIGN.iter().any(|start| name.starts_with(start.as_bytes()))
}

/// For every MPI library: where the provider is, that it is to be taken, and that peers on one host are reached through it
/// too. A program that is no MPI program has no use for them.
pub fn variables(library: &Path) -> Vec<(&'static str, OsString)> {
    let mut variables =
        vec![("FI_PROVIDER_PATH", provider::folder(library)), ("FI_PROVIDER", "stillwire".into())];
    let fixed = [
        // MPICH: its libfabric device, and no shared memory of its own.
        ("MPIR_CVAR_CH4_NETMOD", "ofi"),
        ("MPIR_CVAR_NOLOCAL", "1"),
        // Intel MPI: likewise.
        ("I_MPI_FABRICS", "ofi"),
        ("I_MPI_OFI_PROVIDER", "stillwire"),
        // Open MPI: likewise. Its mpirun passes variables of this form on by itself, and the others with -x.
        ("OMPI_MCA_pml", "cm"),
        ("OMPI_MCA_mtl", "ofi"),
        ("OMPI_MCA_mtl_ofi_provider_include", "stillwire"),
        ("OMPI_MCA_btl", "^sm,vader,smcuda,tcp,uct"),
        ("OMPI_MCA_coll", "^sm,xhc,acoll"),
        ("OMPI_MCA_osc", "^sm,ucx"),
    ];
    variables.extend(fixed.map(|(name, value)| (name, value.into())));
    variables
}

/// Where Intel MPI keeps the libfabric that it opens while it runs, from the folder of its `libmpi`.
const INTEL_FABRICS: [&str; 4] = [".", "../libfabric/lib", "../../libfabric/lib", "../opt/mpi/libfabric/lib"];

/// Names Intel MPI's installation, where its own environment is set up.
const INTEL_ROOT: &str = "I_MPI_ROOT";

/// Additional variables of a particular library: Intel MPI opens a libfabric by its bare name, which the loader finds only where a
/// person has set up its environment.
pub fn own(mpi: &Mpi, given: &[(OsString, OsString)]) -> Vec<(&'static str, OsString)> {
    let variable = |wanted: &str| {
        let last = given.iter().rev().find(|(name, _)| name == wanted).map(|(_, value)| value.clone());
        last.or_else(|| std::env::var_os(wanted)).filter(|value| !value.is_empty())
    };
    let folder = match mpi.family {
        _ if mpi.fabric.is_some() => None,
        _ if mpi.is_seen() => mpi.library.parent().map(Path::to_owned),
        Family::Intel => variable(INTEL_ROOT).map(|root| Path::new(&root).join("lib")),
        _ => None,
    };
    let Some(folder) = folder else { return Vec::new() };
    let fabric = INTEL_FABRICS
        .iter()
        .map(|place| folder.join(place))
        .find(|place| place.join("libfabric.so.1").is_file());
    let Some(fabric) = fabric.and_then(|fabric| fabric.canonicalize().ok()) else { return Vec::new() };
    let mut path = fabric.into_os_string();
    if let Some(before) = variable("LD_LIBRARY_PATH") {
        path.push(":");
        path.push(before);
    }
    vec![("LD_LIBRARY_PATH", path)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_launcher_has_set_does_not_reach_a_rank() {
        for name in [
            "PMI_FD",
            "PMI_RANK",
            "PMIX_NAMESPACE",
            "HYDI_CONTROL_FD",
            "MPI_LOCALNRANKS",
            "OMPI_COMM_WORLD_RANK",
        ] {
            assert!(is_foreign(OsStr::new(name)), "{name}");
        }
        for name in ["PATH", "OMPI_MCA_btl", "MPIR_CVAR_NOLOCAL", "SLURM_JOB_ID", "PMIUNRELATED"] {
            assert!(!is_foreign(OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn a_libfabric_beside_an_intel_libmpi_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let (lib, fabric) = (folder.path().join("lib/release"), folder.path().join("libfabric/lib"));
        std::fs::create_dir_all(&lib).unwrap();
        std::fs::create_dir_all(&fabric).unwrap();
        let mut mpi = Mpi {
            family: Family::Mpich,
            library: lib.join("libmpi.so.12"),
            fabric: None,
            is_old_openmpi: false,
            takes_providers: true,
        };
        let given = [("LD_LIBRARY_PATH".into(), "/a:/b".into())];
        assert_eq!(own(&mpi, &given), []);
        std::fs::write(fabric.join("libfabric.so.1"), b"").unwrap();
        let expected = format!("{}:/a:/b", fabric.canonicalize().unwrap().display());
        assert_eq!(own(&mpi, &given), [("LD_LIBRARY_PATH", expected.into())]);
        // One that nothing has shown, but a person has named.
        let root = (INTEL_ROOT.into(), folder.path().into());
        let named = Mpi { family: Family::Intel, library: "libmpi.so.12".into(), ..mpi.clone() };
        assert_eq!(own(&named, &[given[0].clone(), root]), own(&mpi, &given));
        mpi.fabric = Some("/usr/lib/libfabric.so.1".into());
        assert_eq!(own(&mpi, &given), []);
    }
}
