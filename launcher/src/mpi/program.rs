//! The program that a command line really runs: through scripts and interpreters to the MPI library.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::imports::Run;
use super::loader::{self, Image, Library};
use super::{Mpi, MpiChoice, python};
use crate::Program;
use crate::error::LauncherError;

/// Scripts that run scripts.
const STEPS_MAX: usize = 4;

/// How a program comes to its MPI library.
#[derive(Clone, Debug, Default)]
pub struct Detected {
    /// From the command's file over interpreters to the last.
    pub steps: Vec<PathBuf>,
    /// The last one's own loader, if it has one.
    pub(crate) loader: Option<PathBuf>,
    /// The last one is python; whether it was asked for the libraries that mpi4py loads.
    pub python: Option<Python>,
    /// Why python has no MPI library, in its words.
    pub python_says: Option<String>,
    /// Why the program cannot be loaded, in its loader's words.
    pub loader_says: Option<String>,
    /// The libraries that it loads: all of them, or with python those that have to do with MPI.
    pub libraries: Vec<Library>,
    /// Its MPI library, if it has one.
    pub mpi: Option<Mpi>,
}

/// The findings about a python program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Python {
    /// Its text imports mpi4py, or a person has named it an MPI program: python was asked which libraries that loads.
    Asked,
    /// Nothing that was read of it imports mpi4py.
    ImportsNone,
    /// It reads its lines when it runs.
    Unread,
}

impl Detected {
    /// The name of an MPI library that the program needs and the loader does not find, where it has no other.
    pub(crate) fn missing(&self) -> Option<&str> {
        Mpi::missing(&self.libraries).filter(|_| !self.mpi.as_ref().is_some_and(Mpi::is_seen))
    }

    /// The error for a program whose MPI library is missing.
    pub fn not_found(&self) -> Option<LauncherError> {
        let library = self.missing()?.to_owned();
        Some(LauncherError::MpiNotFound { program: self.last(), library })
    }

    /// The file that is run in the end.
    pub fn last(&self) -> PathBuf {
        self.steps.last().cloned().unwrap_or_default()
    }
}

/// Follows a program to its MPI library. A program that cannot be followed (a shell script, a program that opens its library while it
/// runs) has none, as far as anybody can know before it runs.
pub fn detect(program: &Program, choice: MpiChoice) -> Result<Detected, LauncherError> {
    let mut detected = Detected::default();
    let mut name = program.command[0].clone();
    for _ in 0..STEPS_MAX {
        let path = match program.find(&name) {
            Ok(path) => path,
            Err(error) if detected.steps.is_empty() => return Err(error),
            // The kernel reports the same for a missing interpreter, when the script is started.
            Err(_) => break,
        };
        let image = loader::image(&path).unwrap_or(Image::Unknown);
        let script = detected.steps.last().cloned();
        detected.steps.push(path.clone());
        match image {
            Image::Script(words) => match interpreter(words) {
                Some(next) => name = next,
                None => break,
            },
            Image::Dynamic(loader) if python::is_python(&path) => {
                detected.loader = Some(loader);
                follow_python(program, &path, script, choice, &mut detected);
                break;
            }
            Image::Dynamic(loader) => {
                let listed = loader::libraries(&loader, &path, &program.environment, &program.directory);
                match listed {
                    Ok(libraries) => detected.libraries = libraries,
                    // It repeats the message when the program is started, for the user who runs it.
                    Err(error) => detected.loader_says = Some(error.to_string()),
                }
                detected.loader = Some(loader);
                break;
            }
            Image::Other | Image::Unknown => break,
        }
    }
    detected.mpi = choice.settle(Mpi::among(&detected.libraries))?;
    Ok(detected)
}

/// `script`: the one that names python in its first line.
fn follow_python(
    program: &Program,
    path: &Path,
    script: Option<PathBuf>,
    choice: MpiChoice,
    detected: &mut Detected,
) {
    let run = script.map_or_else(|| Run::of(&program.command[1..]), Run::Script);
    let paths = program.variable("PYTHONPATH").unwrap_or_default();
    let paths: Vec<PathBuf> =
        std::env::split_paths(&paths).map(|path| program.directory.join(path)).collect();
    let is_named = !matches!(choice, MpiChoice::Auto | MpiChoice::None);
    detected.python = Some(match &run {
        _ if choice == MpiChoice::None => Python::ImportsNone,
        _ if is_named || run.imports_mpi(&program.directory, &paths) => Python::Asked,
        Run::Input => Python::Unread,
        _ => Python::ImportsNone,
    });
    if detected.python == Some(Python::Asked) {
        ask_python(program, path, detected);
    }
}

/// Asks python which libraries mpi4py loads.
pub fn ask_python(program: &Program, path: &Path, detected: &mut Detected) {
    let python::Answer { libraries, says } = python::ask(program, path);
    detected.python = Some(Python::Asked);
    detected.libraries = libraries;
    detected.python_says = says;
}

/// The program that a script's first line names; behind `env`, the one that env looks for.
fn interpreter(words: Vec<OsString>) -> Option<OsString> {
    let mut words = words.into_iter();
    let first = words.next()?;
    if Path::new(&first).file_name() != Some(OsStr::new("env")) {
        return Some(first);
    }
    let is_name = |word: &OsString| {
        let bytes = word.as_encoded_bytes();
        !bytes.starts_with(b"-") && !bytes.contains(&b'=')
    };
    words.find(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn program(words: &[&str], folder: &Path) -> Program {
        Program {
            command: words.iter().map(OsString::from).collect(),
            directory: folder.to_owned(),
            environment: vec![("PATH".into(), format!("{}:/usr/bin:/bin", folder.display()).into())],
            inherited: None,
        }
    }

    fn script(folder: &Path, name: &str, text: &str) {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn scripts_lead_to_their_interpreters() {
        let folder = tempfile::tempdir().unwrap();
        script(folder.path(), "one", "#!/bin/sh -e\necho\n");
        script(folder.path(), "two", "#!/usr/bin/env -S A=b one -x\n");
        script(folder.path(), "round", "#!/usr/bin/env round\n");
        let detected = detect(&program(&["two"], folder.path()), MpiChoice::Auto).unwrap();
        let names: Vec<_> = detected.steps.iter().map(|step| step.file_name().unwrap().to_owned()).collect();
        assert_eq!(names, ["two", "one", "sh"]);
        assert!(detected.mpi.is_none() && detected.python.is_none() && !detected.libraries.is_empty());
        assert_eq!(
            detect(&program(&["./round"], folder.path()), MpiChoice::Auto).unwrap().steps.len(),
            STEPS_MAX
        );
    }

    #[test]
    fn python_is_asked_only_about_programs_that_import_mpi4py() {
        let folder = tempfile::tempdir().unwrap();
        // It is found before any installed mpi4py.
        std::fs::write(folder.path().join("mpi4py.py"), "raise ImportError('not today\\nreally')\n").unwrap();
        script(folder.path(), "plain.py", "#!/usr/bin/env python3\nprint('mpi4py')\n");
        script(folder.path(), "uses.py", "#!/usr/bin/env python3\nfrom mpi4py import MPI\n");
        let of = |words: &[&str], choice| {
            let mut program = program(words, folder.path());
            program.environment.push(("PYTHONPATH".into(), folder.path().into()));
            let detected = detect(&program, choice).unwrap();
            assert_eq!(detected.mpi.is_some(), choice == MpiChoice::Mpich);
            (detected.python, detected.python_says)
        };
        let none = |python| (Some(python), None);
        assert_eq!(of(&["python3", "plain.py"], MpiChoice::Auto), none(Python::ImportsNone));
        assert_eq!(of(&["./plain.py"], MpiChoice::Auto), none(Python::ImportsNone));
        assert_eq!(of(&["python3"], MpiChoice::Auto), none(Python::Unread));
        let asked = (Some(Python::Asked), Some("not today".to_owned()));
        assert_eq!(of(&["./uses.py"], MpiChoice::Auto), asked);
        assert_eq!(of(&["python3", "-c", "import mpi4py"], MpiChoice::Auto), asked);
        assert_eq!(of(&["./plain.py"], MpiChoice::Mpich), asked, "a person says so");
        assert_eq!(of(&["./uses.py"], MpiChoice::None), none(Python::ImportsNone), "a person says that not");
    }
}
