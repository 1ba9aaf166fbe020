//! The program of a job: where its file is found, and the variables that it gets.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use drivers::fault::Faults;
use drivers::nic::UnknownNic;
use drivers::{FAULTS_VARIABLE, NIC_VARIABLE, NicChoice, RAILS_VARIABLE, RailChoice, RailsError};
use nix::unistd::{AccessFlags, access};

use crate::error::LauncherError;

/// Bytes of a NIC's name, which a launch record has room for.
const NIC_BYTES_MAX: usize = 200;

/// The NIC of this name.
pub fn nic_choice(text: &str) -> Result<NicChoice, UnknownNic> {
    if text.len() > NIC_BYTES_MAX {
        return Err(UnknownNic { found: text.to_owned() });
    }
    text.parse()
}

/// A program to start.
#[derive(Clone, Debug)]
pub struct Program {
    /// Program and arguments.
    pub command: Vec<OsString>,
    /// The working directory.
    pub directory: PathBuf,
    /// Environment beyond the launcher's.
    pub environment: Vec<(OsString, OsString)>,
    /// The launcher's, where it is not that of this process: on another host.
    pub inherited: Option<Vec<(OsString, OsString)>>,
}

impl Program {
    /// Whether it can be started at all, and can open its rails: asked once before anything of a job is made, so that a misspelt
    /// name does not look like a job whose ranks die.
    pub fn check(&self) -> Result<(), LauncherError> {
        self.check_rails()?;
        self.find(&self.command[0]).map(drop)
    }

    /// Over which NIC ranks are to reach other hosts.
    pub fn nic(&self) -> Result<NicChoice, RailsError> {
        let said = self.variable(NIC_VARIABLE);
        Ok(said.map_or(Ok(NicChoice::Auto), |nic| nic_choice(&nic.to_string_lossy()))?)
    }

    /// Has ranks reach other hosts over this NIC; it replaces an earlier choice.
    pub fn set_nic(&mut self, nic: &NicChoice) {
        self.environment.retain(|(name, _)| name != NIC_VARIABLE);
        self.environment.push((NIC_VARIABLE.into(), nic.to_string().into()));
    }

    /// What ranks do at a restore with files that they do not recognise: a name of [`agent::CHANGED_FILES`].
    pub fn set_changed_files(&mut self, name: &str) {
        self.environment.retain(|(name, _)| name != agent::CHANGED_FILES_VARIABLE);
        self.environment.push((agent::CHANGED_FILES_VARIABLE.into(), name.into()));
    }

    /// Checks the variables that the ranks' drivers will read in their environment.
    fn check_rails(&self) -> Result<(), RailsError> {
        let nic = self.nic()?;
        if let Some(rails) = self.variable(RAILS_VARIABLE) {
            rails.to_string_lossy().parse::<RailChoice>()?.check(&nic)?;
        }
        if let Some(faults) = self.variable(FAULTS_VARIABLE) {
            faults.to_string_lossy().parse::<Faults>()?;
        }
        Ok(())
    }

    /// A variable as the program will find it.
    pub fn variable(&self, name: impl AsRef<OsStr>) -> Option<OsString> {
        let name = name.as_ref();
        let find = |all: &[(OsString, OsString)]| {
            all.iter().rev().find(|(found, _)| found == name).map(|(_, value)| value.clone())
        };
        let below = || self.inherited.as_ref().map_or_else(|| std::env::var_os(name), |all| find(all));
        find(&self.environment).or_else(below)
    }

    /// The file that is run for a name.
    pub fn find(&self, name: &OsStr) -> Result<PathBuf, LauncherError> {
        let refused =
            |problem: String| LauncherError::Program { name: name.to_string_lossy().into_owned(), problem };
        if !self.directory.is_dir() {
            return Err(refused(format!("its directory {} is not there", self.directory.display())));
        }
        let runs = |path: &Path| path.is_file() && access(path, AccessFlags::X_OK).is_ok();
        if name.as_bytes().contains(&b'/') {
            let path = self.directory.join(name);
            return match (path.exists(), runs(&path)) {
                (_, true) => Ok(path),
                (true, false) => Err(refused("it is there, but is no file that may be executed".to_owned())),
                (false, false) => Err(refused("there is no such file".to_owned())),
            };
        }
        let path = self.variable("PATH").unwrap_or_default();
        let mut files = std::env::split_paths(&path).map(|folder| self.directory.join(folder).join(name));
        let missing =
            "no directory in PATH has such a program; for a file right here, write ./ before its name";
        files.find(|file| runs(file)).ok_or_else(|| refused(missing.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A launch record has one byte for the length of a NIC's name, which may come from the job file of a copy.
    #[test]
    fn a_name_of_a_nic_that_no_device_has_is_refused() {
        let name = |bytes: usize| format!("verbs:{}", "a".repeat(bytes));
        assert!(nic_choice(&name(64)).is_ok());
        assert!(nic_choice(&name(300)).is_err());
        let environment = vec![(NIC_VARIABLE.into(), name(300).into())];
        let command = vec!["sh".into()];
        let program = Program { command, directory: "/".into(), environment, inherited: None };
        assert!(matches!(program.check(), Err(LauncherError::Rails(RailsError::UnknownNic(_)))));
    }
}
