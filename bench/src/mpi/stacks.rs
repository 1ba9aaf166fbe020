//! The network layers under the MPI library: ours, and those that it ships with.

use serde::Serialize;

use super::error::MpiError;

/// How far a stack reaches. Ours is compared with those that reach as far.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// Shared memory.
    Host,
    /// Sockets.
    Network,
}

/// One way of MPICH to move messages.
#[derive(Debug)]
pub(crate) struct Stack {
    pub(crate) name: &'static str,
    pub(crate) reach: Reach,
    /// Ours needs the provider: its library, the job key, and that MPICH takes it.
    pub(crate) ours: bool,
    /// Environment that selects it.
    pub(crate) variables: &'static [(&'static str, &'static str)],
    /// Text that MPICH then prints (`MPIR_CVAR_DEBUG_SUMMARY`): a stack that was requested but not selected is not measured.
    pub(crate) summary: &'static str,
}

/// The network peer that every machine has.
pub(crate) const TCP: &str = "ofi-tcp";
pub(crate) const RXD: &str = "ofi-rxd";
pub(crate) const OURS_SHM: &str = "stillwire-shm";
pub(crate) const OURS_UDP: &str = "stillwire-udp";

const OFI: (&str, &str) = ("MPIR_CVAR_CH4_NETMOD", "ofi");
const UCX: (&str, &str) = ("MPIR_CVAR_CH4_NETMOD", "ucx");
/// MPICH's own shared memory is switched off: peers on the host are reached through the stack too.
const NOLOCAL: (&str, &str) = ("MPIR_CVAR_NOLOCAL", "1");

/// All that can be measured, in the order of a round.
pub(crate) const STACKS: [Stack; 8] = [
    Stack {
        name: OURS_SHM,
        reach: Reach::Host,
        ours: true,
        variables: &[("STILLWIRE_RAILS", "shm")],
        summary: "libfabric provider: stillwire",
    },
    Stack {
        name: "ofi-shm",
        reach: Reach::Host,
        ours: false,
        variables: &[OFI, NOLOCAL, ("FI_PROVIDER", "shm")],
        summary: "libfabric provider: shm",
    },
    Stack {
        name: "ucx-shm",
        reach: Reach::Host,
        ours: false,
        variables: &[UCX, NOLOCAL, ("UCX_TLS", "self,shm")],
        summary: "UCX netmod",
    },
    Stack {
        name: "mpich-shm",
        reach: Reach::Host,
        ours: false,
        variables: &[OFI, ("FI_PROVIDER", "tcp")],
        summary: "libfabric provider: tcp",
    },
    Stack {
        name: OURS_UDP,
        reach: Reach::Network,
        ours: true,
        variables: &[("STILLWIRE_RAILS", "udp")],
        summary: "libfabric provider: stillwire",
    },
    Stack {
        name: TCP,
        reach: Reach::Network,
        ours: false,
        variables: &[OFI, NOLOCAL, ("FI_PROVIDER", "tcp")],
        summary: "libfabric provider: tcp",
    },
    Stack {
        name: RXD,
        reach: Reach::Network,
        ours: false,
        variables: &[OFI, NOLOCAL, ("FI_PROVIDER", "udp;ofi_rxd")],
        summary: "libfabric provider: udp;ofi_rxd",
    },
    Stack {
        name: "ucx-tcp",
        reach: Reach::Network,
        ours: false,
        variables: &[UCX, NOLOCAL, ("UCX_TLS", "self,tcp")],
        summary: "UCX netmod",
    },
];

/// The stacks of these names, in the order of [`STACKS`]; all, if none is named.
pub(crate) fn named(names: &[String]) -> Result<Vec<&'static Stack>, MpiError> {
    if let Some(name) = names.iter().find(|name| !STACKS.iter().any(|stack| stack.name == name.as_str())) {
        let known = STACKS.map(|stack| stack.name).join(", ");
        return Err(MpiError::UnknownStack { name: name.clone(), known });
    }
    let asked = |stack: &&Stack| names.is_empty() || names.iter().any(|name| name == stack.name);
    Ok(STACKS.iter().filter(asked).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_found_by_name_and_an_unknown_one_is_reported_what_there_is() {
        let names = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            named(&names).map(|stacks| stacks.iter().map(|stack| stack.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["ofi-tcp", "stillwire-shm"]).expect("known"), [OURS_SHM, TCP]);
        assert_eq!(names(&[]).expect("all").len(), STACKS.len());
        let refused = names(&["tcp"]).expect_err("unknown").to_string();
        assert!(refused.starts_with("no stack 'tcp': there are stillwire-shm, ofi-shm"), "{refused}");
    }
}
