//! The policy of a job: what counts as which fault, and the recovery protocols for each model.
//!
//! ```toml
//! [thresholds]
//! repeated-faults = 3
//! repeated-within = "10m"
//! transient-within = "0s"
//! network-after = "1m"
//!
//! [on]
//! process = "restart"
//! repeated = "migration, restart"
//! ```
//!
//! The format of the file is the caller's: here are the types, with serde.

use alloc::boxed::Box;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Components, Fallback, FaultModel, RecoveryProtocol};
use crate::duration::text;
use crate::limits::{NETWORK_AFTER_MIN, REPEATED_FAULTS_MAX, TRANSIENT_WITHIN_MAX};

/// What counts as which fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Thresholds {
    /// So many faults of processes of one node are a fault of the node; 1 to [`REPEATED_FAULTS_MAX`].
    pub repeated_faults: u32,
    /// Within this time.
    #[serde(with = "text")]
    pub repeated_within: Duration,
    /// A node whose ranks have ended is waited for so much longer, before it is lost for good; at most [`TRANSIENT_WITHIN_MAX`].
    #[serde(with = "text")]
    pub transient_within: Duration,
    /// Ranks of a node that answers and those of others that have not heard each other for so long are a fault of the network; at least [`NETWORK_AFTER_MIN`].
    #[serde(with = "text")]
    pub network_after: Duration,
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds {
            repeated_faults: 3,
            repeated_within: Duration::from_secs(600),
            transient_within: Duration::ZERO,
            network_after: Duration::from_secs(60),
        }
    }
}

/// Recovery protocols in the order in which they are tried. Written with commas: `migration, restart`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Order(Vec<RecoveryProtocol>);

impl Order {
    /// The first to be tried.
    #[must_use]
    pub fn first(&self) -> RecoveryProtocol {
        self.0.first().copied().unwrap_or(RecoveryProtocol::Stop)
    }

    /// What follows a migration for which there is no host, or a rank that cannot be ignored.
    #[must_use]
    pub fn fallback(&self) -> Fallback {
        match self.0.get(1) {
            Some(RecoveryProtocol::Restart) => Fallback::Restart,
            _ => Fallback::Stop,
        }
    }

    /// The same order, if this protocol begins it; else one that it begins.
    pub(super) fn put_first(&mut self, protocol: RecoveryProtocol) {
        use RecoveryProtocol::{Migration, Restart};
        match protocol {
            _ if self.first() == protocol => {}
            Migration => *self = Order::named(&[Migration, Restart]),
            _ => *self = Order::named(&[protocol]),
        }
    }

    fn named(protocols: &[RecoveryProtocol]) -> Order {
        Order(protocols.to_vec())
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, protocol) in self.0.iter().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            write!(f, "{comma}{protocol}")?;
        }
        Ok(())
    }
}

impl FromStr for Order {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Order, PolicyError> {
        let named = |name: &str| {
            let protocol = RecoveryProtocol::ALL.into_iter().find(|protocol| protocol.name() == name);
            protocol.ok_or_else(|| PolicyError::Protocol { found: name.chars().take(40).collect() })
        };
        let all: Vec<RecoveryProtocol> =
            text.split(',').map(|name| named(name.trim())).collect::<Result<_, _>>()?;
        match all[..] {
            [_]
            | [
                RecoveryProtocol::Migration | RecoveryProtocol::Ignore,
                RecoveryProtocol::Restart | RecoveryProtocol::Stop,
            ] => Ok(Order(all)),
            _ => Err(PolicyError::Order { found: text.chars().take(80).collect() }),
        }
    }
}

impl Serialize for Order {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Order {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Order, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The protocols for each model.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Protocols {
    /// [`FaultModel::Network`].
    pub network: Order,
    /// [`FaultModel::Process`].
    pub process: Order,
    /// [`FaultModel::Repeated`].
    pub repeated: Order,
    /// [`FaultModel::Transient`].
    pub transient: Order,
    /// [`FaultModel::Permanent`].
    pub permanent: Order,
}

impl Default for Protocols {
    fn default() -> Protocols {
        use RecoveryProtocol::{Migration, Restart, Wait};
        Protocols {
            network: Order::named(&[Wait]),
            process: Order::named(&[Restart]),
            repeated: Order::named(&[Migration, Restart]),
            transient: Order::named(&[Restart]),
            permanent: Order::named(&[Migration, Restart]),
        }
    }
}

impl Protocols {
    /// The protocols for a model; `None`: not a policy's to say.
    #[must_use]
    pub fn of(&self, model: FaultModel) -> Option<&Order> {
        match model {
            FaultModel::Network => Some(&self.network),
            FaultModel::Process => Some(&self.process),
            FaultModel::Repeated => Some(&self.repeated),
            FaultModel::Transient => Some(&self.transient),
            FaultModel::Permanent => Some(&self.permanent),
            FaultModel::Program | FaultModel::Inconsistent => None,
        }
    }

    pub(super) fn of_mut(&mut self, model: FaultModel) -> Option<&mut Order> {
        match model {
            FaultModel::Network => Some(&mut self.network),
            FaultModel::Process => Some(&mut self.process),
            FaultModel::Repeated => Some(&mut self.repeated),
            FaultModel::Transient => Some(&mut self.transient),
            FaultModel::Permanent => Some(&mut self.permanent),
            FaultModel::Program | FaultModel::Inconsistent => None,
        }
    }
}

/// The policy of a job.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// What counts as which fault.
    pub thresholds: Thresholds,
    /// The protocols for each model.
    pub on: Protocols,
    /// Components in the place of built-in parts.
    #[serde(skip_serializing_if = "Components::is_empty")]
    pub components: Box<Components>,
}

impl Policy {
    /// Checks the rules that the types cannot express.
    ///
    /// # Errors
    /// With the first value that is wrong.
    pub fn validate(&self) -> Result<(), PolicyError> {
        self.components.validate()?;
        let range = |holds: bool, field, expected, found: String| {
            if holds { Ok(()) } else { Err(PolicyError::Range { field, expected, found }) }
        };
        let Thresholds { repeated_faults, transient_within, network_after, .. } = self.thresholds;
        range(
            (1..=REPEATED_FAULTS_MAX).contains(&repeated_faults),
            "thresholds.repeated-faults",
            "1 to 1000",
            repeated_faults.to_string(),
        )?;
        range(
            transient_within <= TRANSIENT_WITHIN_MAX,
            "thresholds.transient-within",
            "at most 1h",
            crate::write_duration(transient_within),
        )?;
        range(
            network_after >= NETWORK_AFTER_MIN,
            "thresholds.network-after",
            "at least 5s: a network that recovers by itself needs some time",
            crate::write_duration(network_after),
        )?;
        for model in FaultModel::CHOSEN {
            if let Some(order) = self.on.of(model) {
                let can = possible(model);
                if let Some(found) = order.0.iter().find(|protocol| !can.contains(protocol)) {
                    return Err(PolicyError::NotFor { model, found: *found, expected: names(can) });
                }
            }
        }
        Ok(())
    }

    /// Whether the job goes on without ranks that end.
    #[must_use]
    pub fn ignores(&self) -> bool {
        [&self.on.process, &self.on.repeated].iter().any(|order| order.first() == RecoveryProtocol::Ignore)
    }

    /// Another reaction to faults of one model: `repeated=migration,restart`.
    ///
    /// # Errors
    /// If the text has no such form, or the protocol is none for the model.
    pub fn change(&mut self, text: &str) -> Result<(), PolicyError> {
        let wrong = || PolicyError::Change { found: text.chars().take(80).collect() };
        let (name, order) = text.split_once('=').ok_or_else(wrong)?;
        let model = FaultModel::CHOSEN.into_iter().find(|model| model.name() == name.trim());
        let of = model.and_then(|model| self.on.of_mut(model)).ok_or_else(wrong)?;
        let before = core::mem::replace(of, order.parse()?);
        if let Err(error) = self.validate() {
            if let Some(of) = model.and_then(|model| self.on.of_mut(model)) {
                *of = before;
            }
            return Err(error);
        }
        Ok(())
    }
}

/// The protocols that a model can have.
pub(super) fn possible(model: FaultModel) -> &'static [RecoveryProtocol] {
    use RecoveryProtocol::{Ignore, Migration, Restart, Stop, Wait};
    match model {
        FaultModel::Network => &[Wait, Restart, Migration, Stop],
        // Processes of a silent node cannot run on.
        FaultModel::Transient => &[Restart, Migration],
        FaultModel::Process | FaultModel::Repeated => &[Ignore, Restart, Migration, Stop],
        _ => &[Restart, Migration, Stop],
    }
}

pub(super) fn names(protocols: &[RecoveryProtocol]) -> String {
    let names: Vec<&str> = protocols.iter().map(|protocol| protocol.name()).collect();
    names.join(", ")
}

/// Why a policy is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PolicyError {
    /// No protocol has this name.
    #[error("`{found}` is no recovery protocol; expected wait, ignore, restart, migration or stop")]
    Protocol {
        /// The name.
        found: String,
    },
    /// Something follows a protocol that always succeeds.
    #[error(
        "`{found}` is no order of recovery protocols; expected one, or `migration` or `ignore` with `restart` or `stop` behind it: only a migration can fail for want of a host, and only a rank that runs can be ignored"
    )]
    Order {
        /// The text.
        found: String,
    },
    /// The model cannot be reacted to in this way.
    #[error("on.{model} is `{found}`; expected {expected}")]
    NotFor {
        /// The model.
        model: FaultModel,
        /// The protocol.
        found: RecoveryProtocol,
        /// Those that it can have.
        expected: String,
    },
    /// A number out of its range.
    #[error("{field} is {found}; expected {expected}")]
    Range {
        /// Path of the field.
        field: &'static str,
        /// The expected value.
        expected: &'static str,
        /// The present contents.
        found: String,
    },
    /// Not a change of a policy.
    #[error(
        "`{found}` is no reaction to a fault; expected MODEL=PROTOCOL[,PROTOCOL] with the model network, process, repeated, transient or permanent, such as repeated=migration,restart"
    )]
    Change {
        /// The text.
        found: String,
    },
}

#[cfg(test)]
mod tests;
