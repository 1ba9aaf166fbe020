//! A rank's entry into its life: it sends its addresses and waits for those of all others.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use transport::{Epoch, PortId, RawAddress};

use crate::control::{Message, Registration};
use crate::limits::{PORTS_PER_RANK_MAX, RANKS_MAX};
use crate::names::GenerationId;

/// Everybody's addresses.
pub type AddressTable = BTreeMap<PortId, Vec<RawAddress>>;

/// A rank's facts when it may run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Started {
    /// The epoch in which its life begins.
    pub epoch: Epoch,
    /// The generation that all ranks have restored, or none.
    pub restore: Option<GenerationId>,
    /// Where every port of the job is.
    pub addresses: AddressTable,
}

/// A rank that is not yet running.
///
/// ```text
///  new --Hello--> Gathering --Addresses*--> Gathering --Start--> Started
/// ```
#[derive(Clone, Debug, Default)]
pub struct Enrolment {
    addresses: AddressTable,
}

/// Why a rank cannot come into its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EnrolmentError {
    /// The keeper started the run, but part of the address table never came.
    #[error("the address table has {found} ports, the keeper counted {expected}: a control message was lost")]
    PortsMissing {
        /// Ports that the keeper counted.
        expected: u32,
        /// Ports that came.
        found: u32,
    },
    /// More ports than a job can have.
    #[error("the address table has more than {expected} ports")]
    TooManyPorts {
        /// The bound.
        expected: usize,
    },
}

impl Enrolment {
    /// Begins: the message to send first, and the machine that takes the answers.
    #[must_use]
    pub fn new(registration: Registration) -> (Enrolment, Message) {
        (Enrolment::default(), Message::Hello { registration })
    }

    /// Takes a message of the keeper. The caller has checked job and life (R7).
    ///
    /// # Errors
    /// If the address table is not whole; the rank cannot run and should end.
    pub fn handle(&mut self, message: Message) -> Result<Option<Started>, EnrolmentError> {
        match message {
            Message::Addresses { ports } => {
                self.addresses.extend(ports.into_iter().map(|entry| (entry.port, entry.rails)));
                let expected = usize::try_from(RANKS_MAX).unwrap_or(usize::MAX) * PORTS_PER_RANK_MAX;
                if self.addresses.len() > expected {
                    return Err(EnrolmentError::TooManyPorts { expected });
                }
                Ok(None)
            }
            Message::Start { epoch, restore, ports } => {
                let found = u32::try_from(self.addresses.len()).unwrap_or(u32::MAX);
                if found != ports {
                    return Err(EnrolmentError::PortsMissing { expected: ports, found });
                }
                Ok(Some(Started { epoch, restore, addresses: core::mem::take(&mut self.addresses) }))
            }
            // Anything else is for the participant, which does not exist yet; a cut cannot come before everybody runs.
            _ => Ok(None),
        }
    }
}
