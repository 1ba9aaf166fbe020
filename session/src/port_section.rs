//! The port's section of an image: the frozen port with every payload that it refers to.

use endpoint::{BufferTable, Carried, Frozen};
use nic_freeze::{DumpError, LoadError, Payloads};
use transport::auth::JobKey;
use transport::config::PortConfig;
use transport::{FrozenPort, OpId};

use crate::writer::OwnedSection;

/// A port from an image, and the memory of its operations.
pub(crate) struct Loaded {
    pub(crate) frozen: FrozenPort,
    pub(crate) carried: Carried,
}

/// The endpoint's buffers as the dump wants them.
struct Memory<'a>(&'a BufferTable);

impl Payloads for Memory<'_> {
    fn send_payload(&self, op: OpId) -> Option<&[u8]> {
        self.0.send_payload(op)
    }

    fn receive_buffer(&self, op: OpId) -> Option<&[u8]> {
        self.0.receive_buffer(op)
    }
}

/// Copies a frozen port.
pub(crate) fn dump(frozen: &Frozen<'_>) -> Result<OwnedSection, DumpError> {
    let port = frozen.port();
    let mut bytes = Vec::new();
    nic_freeze::dump(port, &mut bytes);
    nic_freeze::append_payloads(port, &Memory(frozen.buffers()), &mut bytes)?;
    Ok(OwnedSection {
        kind: nic_freeze::SECTION_KIND,
        version: nic_freeze::SECTION_VERSION,
        id: port.id().0,
        bytes,
    })
}

/// Reads what [`dump`] wrote.
pub(crate) fn load(
    config: PortConfig,
    key: &JobKey,
    version: u16,
    bytes: &[u8],
) -> Result<Loaded, LoadError> {
    let nic_freeze::Loaded { port, carried, .. } = nic_freeze::load(version, bytes, config, Some(key))?;
    let receives = carried.receives.into_iter().map(|receive| {
        let mut buffer = receive.filled;
        // The image has the digest that was committed, so its lengths are those of buffers that existed.
        buffer.resize(usize::try_from(receive.buffer_bytes).unwrap_or(usize::MAX), 0);
        (receive.op, buffer)
    });
    let carried = Carried { sends: carried.sends, receives: receives.collect() };
    Ok(Loaded { frozen: port, carried })
}
