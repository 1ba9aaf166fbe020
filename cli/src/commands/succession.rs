//! The reaction to the loss of a job's launcher: the same for `run` and `restart`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use launcher::Node;
use launcher::succession::{LauncherLoss, Succession, SuccessorOptions};
use store::JobFile;

use super::key::{KeyArgument, SignArgument};
use super::print_message;
use super::run::setting;
use crate::arguments::duration_argument;
use crate::error::CliError;

/// With fewer hosts no majority is left when one is lost.
const HOSTS_MIN: usize = 3;

/// How long a host tries to continue a job: about as long as a host needs that starts anew.
const TRIES_FOR: Duration = Duration::from_secs(600);

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct SuccessionArguments {
    /// When the launcher of a detached job is lost together with its watcher, such as with its host: another host continues the job from its newest checkpoint (`continue`), or the job ends (`end`) [default: continue over at least 3 hosts on whose own disks images lie (`--parity`, `--node-dir`), else end].
    ///
    /// More than half of the nodes must be left, so 3 hosts are the least. All hosts must reach one another by the remote shell. Key files (--key-file, --sign) must be at the same path on each host.
    #[arg(long, value_enum, value_name = "WHAT", requires = "detach")]
    pub(crate) on_launcher_loss: Option<LauncherLossArgument>,
    /// How long a host tries to continue the job before it gives up
    #[arg(long, value_name = "TIME", value_parser = duration_argument, hide = true)]
    pub(crate) successor_tries: Option<Duration>,
}

/// The reaction to a lost launcher.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum LauncherLossArgument {
    Continue,
    End,
}

impl From<LauncherLossArgument> for LauncherLoss {
    fn from(argument: LauncherLossArgument) -> LauncherLoss {
        match argument {
            LauncherLossArgument::Continue => LauncherLoss::Continue,
            LauncherLossArgument::End => LauncherLoss::End,
        }
    }
}

/// The job for which a reaction is chosen.
#[derive(Debug)]
pub(crate) struct SuccessionJob<'a> {
    /// It is detached.
    pub(crate) detached: bool,
    /// The reaction that its file names.
    pub(crate) before: Option<LauncherLoss>,
    pub(crate) nodes: &'a [Node],
    /// Its nodes have directories of their own.
    pub(crate) has_own_directories: bool,
    /// Images or copies are encrypted, or copies are signed.
    pub(crate) needs_key: bool,
    pub(crate) key: &'a KeyArgument,
    pub(crate) sign: &'a SignArgument,
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
}

impl SuccessionArguments {
    /// The reaction to the loss of this job's launcher.
    pub(crate) fn succession(&self, job: &SuccessionJob<'_>) -> Result<Succession, CliError> {
        let said = self.on_launcher_loss.map(LauncherLoss::from);
        let named = said.or(job.before);
        let nobody = Succession { named, options: None };
        if !job.detached || named == Some(LauncherLoss::End) {
            return Ok(nobody);
        }
        if let Some(problem) = job.problem() {
            return match said {
                Some(_) => Err(CliError::LauncherLoss { problem }),
                None => Ok(nobody),
            };
        }
        let key_is_elsewhere = job.key.is_named() || job.sign.is_named();
        if job.needs_key && !key_is_elsewhere {
            let problem = "the key is in STILLWIRE_KEY, which no other host has: put it into a file at the same path on each (--key-file)";
            if said.is_some() {
                return Err(CliError::LauncherLoss { problem: problem.to_owned() });
            }
            print_message(format_args!(
                "warning: no other host continues this job if its launcher is lost: {problem}"
            ));
            return Ok(nobody);
        }
        let options = SuccessorOptions {
            quiet: job.quiet,
            verbose: job.verbose,
            key_file: job.key.absolute()?.map(PathBuf::into_os_string),
            sign_file: job.sign.absolute()?.map(PathBuf::into_os_string),
            tries_for: self.successor_tries.unwrap_or(TRIES_FOR),
        };
        Ok(Succession { named, options: Some(options) })
    }
}

impl SuccessionJob<'_> {
    /// Why no other host can continue the job.
    fn problem(&self) -> Option<String> {
        let hosts: BTreeSet<&str> = self.nodes.iter().filter_map(Node::named_host).collect();
        if !self.has_own_directories {
            return Some(
                "images lie in the job's directory alone: begin the job with --parity or --node-dir"
                    .to_owned(),
            );
        }
        (hosts.len() < HOSTS_MIN).then(|| {
            format!(
                "the job has {} hosts, and more than half of its nodes must be left: name at least {HOSTS_MIN} (--hosts)",
                hosts.len()
            )
        })
    }
}

/// The reaction that a job file names.
pub(crate) fn read(file: &JobFile) -> Option<LauncherLoss> {
    file.settings.get(setting::ON_LAUNCHER_LOSS).and_then(|text| LauncherLoss::read(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::hosts::HostArguments;
    use launcher::Addresses;

    fn nodes(hosts: &str) -> Vec<Node> {
        let arguments = HostArguments::read(Some(hosts), None, None, None);
        arguments.nodes(4, &Addresses::one([127, 0, 0, 1].into())).expect("hosts with addresses")
    }

    fn choose(
        said: Option<LauncherLossArgument>,
        hosts: &str,
        change: impl FnOnce(&mut SuccessionJob<'_>),
    ) -> Result<bool, String> {
        let (nodes, key, sign) = (nodes(hosts), KeyArgument::default(), SignArgument::default());
        let mut job = SuccessionJob {
            detached: true,
            before: None,
            nodes: &nodes,
            has_own_directories: true,
            needs_key: false,
            key: &key,
            sign: &sign,
            quiet: false,
            verbose: false,
        };
        change(&mut job);
        let arguments = SuccessionArguments { on_launcher_loss: said, ..SuccessionArguments::default() };
        let chosen = arguments.succession(&job).map_err(|error| error.to_string())?;
        Ok(chosen.options.is_some())
    }

    const THREE: &str = "localhost:2@10.0.0.1,b:1@10.0.0.2,c:1@10.0.0.3";
    const TWO: &str = "localhost:2@10.0.0.1,b:1@10.0.0.2,b:1@10.0.0.2";

    #[test]
    fn detached_jobs_over_three_hosts_are_continued_by_default() {
        let by_default = |hosts, change: fn(&mut SuccessionJob<'_>)| choose(None, hosts, change).unwrap();
        assert!(by_default(THREE, |_| {}));
        assert!(!by_default(TWO, |_| {}), "no majority is left");
        assert!(!by_default(THREE, |job| job.detached = false));
        assert!(!by_default(THREE, |job| job.has_own_directories = false));
        assert!(!by_default(THREE, |job| job.needs_key = true), "the key is nowhere else");
        assert!(!by_default(THREE, |job| job.before = Some(LauncherLoss::End)));
        assert_eq!(choose(Some(LauncherLossArgument::End), THREE, |_| {}), Ok(false));
        let again = |job: &mut SuccessionJob<'_>| job.before = Some(LauncherLoss::End);
        assert_eq!(choose(Some(LauncherLossArgument::Continue), THREE, again), Ok(true));
    }

    #[test]
    fn a_wish_that_cannot_be_met_is_refused() {
        let wish = |hosts, change: fn(&mut SuccessionJob<'_>)| {
            choose(Some(LauncherLossArgument::Continue), hosts, change).unwrap_err()
        };
        assert!(wish(TWO, |_| {}).contains("the job has 2 hosts"));
        assert!(wish(THREE, |job| job.has_own_directories = false).contains("--parity"));
        assert!(wish(THREE, |job| job.needs_key = true).contains("--key-file"));
    }
}
