//! The port's section of an image: the frozen port with every payload that it refers to.

use endpoint::{Carried, Frozen};
use store::kinds;
use transport::FrozenPort;
use transport::auth::JobKey;
use transport::config::PortConfig;

use crate::writer::OwnedSection;

pub(crate) struct Loaded {
    pub(crate) frozen: FrozenPort,
    pub(crate) carried: Carried,
}

pub(crate) fn dump(_frozen: &Frozen<'_>) -> OwnedSection {
    OwnedSection { kind: kinds::PORT, version: 1, id: 0, bytes: Vec::new() }
}

pub(crate) fn load(
    _config: &PortConfig,
    _key: &JobKey,
    _version: u16,
    _bytes: &[u8],
) -> Result<Loaded, nic_freeze::LoadError> {
    Err(nic_freeze::LoadError)
}
