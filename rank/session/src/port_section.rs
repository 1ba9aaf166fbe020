//! The port's section of an image: the frozen port with every payload that it refers to.

use endpoint::Frozen;
use nic_freeze::DumpError;

use crate::writer::OwnedSection;

/// Copies a frozen port into `bytes`.
pub(crate) fn dump(frozen: &Frozen<'_>, mut bytes: Vec<u8>) -> Result<OwnedSection, DumpError> {
    let port = frozen.port();
    nic_freeze::dump(port, &mut bytes);
    nic_freeze::append_payloads(port, frozen.buffers(), &mut bytes)?;
    Ok(OwnedSection {
        kind: nic_freeze::SECTION_KIND,
        version: nic_freeze::SECTION_VERSION,
        id: port.id().0,
        bytes,
    })
}
