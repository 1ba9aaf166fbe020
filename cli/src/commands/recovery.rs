//! The reactions to faults: the file of `--recovery`, and the commands `recovery` and `suspect`.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ckpt_glue::recovery::{FaultModel, Policy};
use ckpt_glue::write_duration;
use clap::{Args, Subcommand};
use launcher::components::{self, ComponentKind};
use launcher::registry;
use launcher::requests::{Answer, Request, ask};

use super::{print_json, say};
use crate::error::CliError;
use crate::exit::Exit;

/// The text of `recovery --help`.
pub(crate) const LONG_ABOUT: &str = "\
Show and check the reactions of a job to faults, for `run --recovery FILE`.

A fault has a model, and FILE names the recovery protocols for each model, in the order in which the job tries them:

  network    while all ranks run, a node answers, and its ranks and those of other nodes have not heard each other for network-after
  process    a signal ended a rank, or a rank could not be started or restored
  repeated   repeated-faults process faults of one node within repeated-within
  transient  a node does not answer any more; it may come back
  permanent  no rank of such a node can run any more, and it has not come back within transient-within; or `stillwire suspect` names it

  wait       the job waits until the fault is over (network)
  ignore     the job goes on without the rank, and takes no more checkpoints; operations to it fail (process, repeated)
  restart    all ranks go back to the newest checkpoint, on the same nodes; a node that does not answer is waited for, for transient-within and some 30 s more, and then the job ends
  migration  the same, and another host takes the place of the node (--spare-hosts, --on-host-loss spread); \
its images are rebuilt there, or read from a shared directory
  stop       the job ends, and its checkpoints stay

A silent network moves a node only if the job has at least three, and one of them alone is cut off. A restart brings ranks back to the network that was silent.

Only `migration` can fail, for want of a host, and `ignore`, before all ranks run: `restart` or `stop` behind it says what follows then. \
A rank that ends by itself is no fault of the machine: see --on-exit. With `process = \"ignore\"` the job goes on without it, too. With --on-fault abort every fault ends the job.

`stillwire tune JOB --on MODEL=PROTOCOL` changes the reactions of a running job.

Dynamic libraries can replace built-in parts: FILE names them under [components], with paths from its own folder, and `stillwire_component.h` describes their functions. \
`detector` names the model of faults and suspects nodes; `recovery` chooses the protocol for a fault, and the host that takes the place of a node. `detector-argument` and \
`recovery-argument` are passed to them. Each runs in a process of its own on the launcher's host. If it crashes, does not answer within 3 s, or answers nonsense, the launcher reports it, \
and the built-in part takes over for the rest of the run. `run`, `restart` and `recovery check` load the components of FILE, and refuse one that is built for another version.";

/// The text of `suspect --help`.
pub(crate) const SUSPECT_LONG_ABOUT: &str = "\
Take a node of a running job for one that fails: another host gets its place.

The reaction is that to a permanent fault (`stillwire recovery --help`): by default the job rolls back to its newest checkpoint, and goes on with a spare host \
(--spare-hosts) or another host of the job (--on-host-loss spread) in the place of NODE. Take a checkpoint first (`stillwire checkpoint`), and no work is lost. \
The command fails, and the job goes on as it is, if nothing is saved yet, if no host can take the place, or if the reaction is another one. If the other host then does not come up, NODE goes on.";

/// The largest file of a policy.
const POLICY_BYTES_MAX: u64 = 1 << 16;

/// The policy that holds without a file, as a file.
const DEFAULTS: &str = r#"# Reactions to faults, for `stillwire run --recovery FILE`. These are the defaults; `stillwire recovery --help` explains them.

[thresholds]
# So many process faults of one node within this time are a fault of the node.
repeated-faults = 3
repeated-within = "10m"
# A node that does not answer is waited for so much longer than its ranks can run, before it is lost for good.
transient-within = "0s"
# A silent data network of a node that answers is a fault after this time.
network-after = "1m"

[on]
network = "wait"
process = "restart"
repeated = "migration, restart"
transient = "restart"
permanent = "migration, restart"

# Dynamic libraries in the place of built-in parts; paths from this file's folder.
# [components]
# detector = "libdetector.so"
# detector-argument = ""
# recovery = "librecovery.so"
# recovery-argument = ""
"#;

#[derive(Debug, Subcommand)]
pub(crate) enum RecoveryCommand {
    /// Check a file of reactions, and print all of them
    Check {
        /// The file, in TOML
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Print the default reactions as a file
    Defaults,
}

#[derive(Debug, Args)]
pub(crate) struct SuspectArguments {
    #[command(flatten)]
    pub(crate) job: crate::arguments::JobArgument,
    /// The node: its host, or its number in `stillwire ps --json`
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
}

/// Reads the file of `--recovery`.
///
/// # Errors
/// With the line, the expected value and the found one.
pub(crate) fn policy_file(path: &str) -> Result<Policy, String> {
    read(Path::new(path)).map(|(policy, _)| policy)
}

/// The policy of a file, and a line about each component, which has been loaded once.
fn read(path: &Path) -> Result<(Policy, Vec<String>), String> {
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let mut text = String::new();
    file.take(POLICY_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > POLICY_BYTES_MAX {
        return Err(format!("it is longer than {POLICY_BYTES_MAX} bytes: no file of reactions is"));
    }
    let mut policy = parse(&text)?;
    let named = [&mut policy.components.detector, &mut policy.components.recovery];
    for library in named.into_iter().flatten() {
        // The job keeps it, and is restarted from another folder.
        let path = path.parent().unwrap_or(Path::new("")).join(&*library);
        let absolute = std::path::absolute(&path).map_err(|error| format!("{library}: {error}"))?;
        *library =
            absolute.to_str().ok_or_else(|| format!("{}: its path is not UTF-8", path.display()))?.to_owned();
    }
    let kinds = ComponentKind::ALL.into_iter();
    let named = kinds.filter_map(|kind| kind.of(&policy.components).map(|named| (kind, named)));
    let lines = named.map(|(kind, (library, argument))| described(kind, library, argument));
    let lines = lines.collect::<Result<Vec<String>, String>>()?;
    Ok((policy, lines))
}

/// Loads a component, and ends it.
fn described(kind: ComponentKind, library: &str, argument: &str) -> Result<String, String> {
    let description = components::check(kind, library, argument)
        .map_err(|failure| format!("{kind} {library}: {failure}"))?;
    let polled = match description.period_ms {
        0 => String::new(),
        period => format!(", asked every {}", write_duration(Duration::from_millis(period.into()))),
    };
    Ok(format!("{kind} `{}` ({library}){polled}", description.name))
}

fn parse(text: &str) -> Result<Policy, String> {
    let policy: Policy = toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
    policy.validate().map_err(|error| error.to_string())?;
    Ok(policy)
}

pub(crate) fn recovery(command: &RecoveryCommand, json: bool) -> Result<Exit, CliError> {
    let (policy, components) = match command {
        RecoveryCommand::Check { file } => {
            let wrong = |reason| CliError::Policy { path: file.clone(), reason };
            read(file).map_err(wrong)?
        }
        RecoveryCommand::Defaults if !json => {
            say!("{}", DEFAULTS.trim_end())?;
            return Ok(Exit::Success);
        }
        RecoveryCommand::Defaults => (Policy::default(), Vec::new()),
    };
    if json {
        print_json(&policy)?;
    } else {
        print_table(&policy)?;
        for line in components {
            say!("{line}")?;
        }
    }
    Ok(Exit::Success)
}

/// One line for each model.
pub(crate) fn print_table(policy: &Policy) -> std::io::Result<()> {
    let orders =
        FaultModel::CHOSEN.map(|model| policy.on.of(model).map(ToString::to_string).unwrap_or_default());
    let width = orders.iter().map(String::len).max().unwrap_or(0);
    for (model, order) in FaultModel::CHOSEN.into_iter().zip(orders) {
        say!("{:<10} {order:<width$}  {}", model.name(), meaning(model, policy))?;
    }
    Ok(())
}

/// The faults of a model under these thresholds.
fn meaning(model: FaultModel, policy: &Policy) -> String {
    let thresholds = &policy.thresholds;
    match model {
        FaultModel::Network => {
            let after = write_duration(thresholds.network_after);
            format!("ranks of a node and of others have not heard each other for {after}")
        }
        FaultModel::Repeated => format!(
            "{} process faults of one node within {}",
            thresholds.repeated_faults,
            write_duration(thresholds.repeated_within)
        ),
        FaultModel::Transient => "a node does not answer".to_owned(),
        FaultModel::Permanent if thresholds.transient_within.is_zero() => {
            "no rank of such a node can run any more, or a person suspects it".to_owned()
        }
        FaultModel::Permanent => format!(
            "the same, and it does not come back within {}; or a person suspects it",
            write_duration(thresholds.transient_within)
        ),
        _ => "a rank is gone".to_owned(),
    }
}

pub(crate) fn suspect(arguments: &SuspectArguments, json: bool) -> Result<Exit, CliError> {
    let info = registry::find(&arguments.job.job)?;
    let answer = ask(&info, &Request::Suspect { node: arguments.node.clone() })?;
    if json {
        print_json(&answer)?;
    }
    match answer {
        Answer::Suspected { host, reaction, .. } => {
            if !json {
                say!("{host} is taken for a failing node: {reaction}")?;
            }
            Ok(Exit::Success)
        }
        Answer::Failed { reason } => Err(CliError::NotSuspected { reason }),
        _ => Err(CliError::NotSuspected { reason: "the job is ending".to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_defaults_are_the_defaults() {
        assert_eq!(parse(DEFAULTS), Ok(Policy::default()));
        assert_eq!(parse(""), Ok(Policy::default()));
    }

    #[test]
    fn a_wrong_file_is_refused_with_what_was_expected() {
        let wrong = [
            ("[on]\nproces = \"restart\"", "line 2, column 1"),
            ("[on]\nproces = \"restart\"", "expected one of `network`, `process`"),
            ("[on]\nprocess = \"forget\"", "expected wait, ignore, restart, migration or stop"),
            ("[on]\nprocess = \"restart, stop\"", "expected one, or `migration` or `ignore` with"),
            ("[on]\nprocess = \"wait\"", "on.process is `wait`; expected ignore, restart, migration, stop"),
            ("[on]\ntransient = \"stop\"", "on.transient is `stop`; expected restart, migration"),
            ("[on]\nprocess = [\"restart\"]", "expected a string"),
            ("[thresholds]\nrepeated-faults = 0", "expected 1 to 1000"),
            ("[thresholds]\nrepeated-within = \"10 minutes\"", "is not a duration"),
            ("[thresholds]\nnetwork-after = \"1s\"", "expected at least 5s"),
            ("[thresholds]\ntransient-within = \"2h\"", "expected at most 1h"),
            ("[on", "line 1"),
        ];
        for (text, expected) in wrong {
            match parse(text) {
                Ok(policy) => panic!("{text} is accepted as {policy:?}"),
                Err(error) => assert!(error.contains(expected), "{text}: {error}"),
            }
        }
    }
}
