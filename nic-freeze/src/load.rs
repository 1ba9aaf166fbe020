//! From bytes to a frozen port.

use alloc::vec::Vec;

use transport::port::KeyChange;
use transport::{FrozenPort, JobKey, OpId, PortConfig};

use crate::dump::filled;
use crate::error::LoadError;
use crate::parse::{SavedPayload, parse};

/// A port from an image.
#[derive(Debug)]
pub struct Loaded {
    /// The port; it can only be restarted in a new life.
    pub port: FrozenPort,
    /// Memory of the user that was saved with it.
    pub carried: Carried,
    /// New keys of the messages that the program had claimed.
    pub claimed: Vec<KeyChange>,
}

/// Memory of the user from an image: the shell owns it from now on, under the same operations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Carried {
    /// Payloads of sends, whole.
    pub sends: Vec<(OpId, Vec<u8>)>,
    /// Buffers of receives.
    pub receives: Vec<CarriedReceive>,
}

/// The buffer of a receive, as far as it was filled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CarriedReceive {
    /// The receive.
    pub op: OpId,
    /// The bytes placed in it, from its start on.
    pub filled: Vec<u8>,
    /// Length of the whole buffer. It comes from the image: allocate it only for a verified image.
    pub buffer_bytes: u64,
}

/// Reads a section that [`crate::dump`] has written. `config` and `key` are those of the job, as for a new port.
///
/// # Errors
/// [`LoadError`]: for no bytes a panic, or an allocation beyond their length.
///
/// # Panics
/// If `config` asks for authentication and there is no key, like [`transport::Port::new`].
pub fn load(
    version: u16,
    bytes: &[u8],
    config: PortConfig,
    key: Option<&JobKey>,
) -> Result<Loaded, LoadError> {
    let section = parse(version, bytes)?;
    let (port, claimed) = FrozenPort::from_state(config, key, section.state)?;
    let carried = carry(&port, &section.payloads)?;
    Ok(Loaded { port, carried, claimed })
}

fn carry(port: &FrozenPort, payloads: &[SavedPayload<'_>]) -> Result<Carried, LoadError> {
    let mut carried = Carried::default();
    let sends = port.sends();
    let mut receives = filled(port);
    for payload in payloads {
        let SavedPayload { op, send, bytes, buffer_bytes } = *payload;
        let refused = LoadError::Payload { op, bytes: bytes.len() as u64 };
        if send {
            let place = sends.binary_search_by_key(&op, |send| send.envelope.op).map_err(|_| refused)?;
            let (wanted, owned) = (sends[place].envelope.total, sends[place].owned.is_some());
            let earlier = carried.sends.last().is_some_and(|(last, _)| *last >= op);
            if owned || earlier || wanted != bytes.len() as u64 {
                return Err(refused);
            }
            carried.sends.push((op, bytes.to_vec()));
        } else {
            if receives.remove(&op) != Some(bytes.len() as u64) {
                return Err(refused);
            }
            carried.receives.push(CarriedReceive { op, filled: bytes.to_vec(), buffer_bytes });
        }
    }
    Ok(carried)
}
