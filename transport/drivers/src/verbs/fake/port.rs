//! The port of the fake device.

use core::ffi::c_uint;

use crate::verbs::abi;

/// IBV_PORT_DOWN.
pub(in crate::verbs) const PORT_DOWN: c_uint = 1;

/// IBV_LINK_LAYER_INFINIBAND.
const LINK_LAYER_INFINIBAND: u8 = 1;

/// The device's only port that is not down, as it is now. Earlier objects stay on the port of their time, so
/// that rails opened one after the other are on several ports.
#[derive(Clone)]
pub(in crate::verbs) struct Port {
    pub(in crate::verbs) state: c_uint,
    pub(in crate::verbs) link_layer: u8,
    pub(in crate::verbs) flags: u8,
    pub(in crate::verbs) lid: u16,
    pub(in crate::verbs) mtu: c_uint,
    /// By index; zeros are an empty place.
    pub(in crate::verbs) gids: Vec<abi::Gid>,
}

impl Default for Port {
    fn default() -> Port {
        let gid = std::net::Ipv4Addr::new(10, 9, 0, 1).to_ipv6_mapped().octets();
        let (state, link_layer) = (abi::PORT_ACTIVE, abi::LINK_LAYER_ETHERNET);
        Port { state, link_layer, flags: 0, lid: 0, mtu: 5, gids: vec![gid] }
    }
}

impl Port {
    /// In the subnet of that prefix. As real ones do, the port has a GID in which its own number follows the prefix.
    pub(in crate::verbs) fn infiniband(prefix: u64, lid: u16) -> Port {
        let gid = (u128::from(prefix) << 64 | u128::from(lid) << 16 | 0x0002_c903_0000_0001).to_be_bytes();
        Port { link_layer: LINK_LAYER_INFINIBAND, lid, gids: vec![gid], ..Port::default() }
    }

    pub(super) fn gid(&self, index: usize) -> Option<abi::Gid> {
        self.gids.get(index).copied().filter(|gid| *gid != [0; 16])
    }
}
