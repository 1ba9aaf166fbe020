//! The program that runs at a device, as the kernel reports it.

#![expect(clippy::host_endian_bytes, reason = "netlink and bpf speak the host's byte order")]

use std::os::fd::AsFd as _;

use super::helper::ProgramName;
use super::neighbours::Neighbours;
use super::program;
use crate::error::Errno;

const GET_LINK: u16 = 18;
const NEW_LINK: u16 = 16;
/// Bytes of `struct ifinfomsg`.
const FIXED_BYTES: usize = 16;
const NESTED: u16 = 1 << 15;
/// `IFLA_XDP`, and in it `IFLA_XDP_PROG_ID`, or where programs are at a device in several ways `IFLA_XDP_DRV_PROG_ID` to `IFLA_XDP_HW_PROG_ID`.
const XDP: u16 = 43;
const PROGRAM_IDS: [u16; 4] = [4, 5, 6, 7];

/// The number of the program at a device, and its name; `None`: there is none.
pub(super) fn program_at(interface: u32) -> Result<Option<(u32, ProgramName)>, Errno> {
    let mut fixed = [0; FIXED_BYTES];
    fixed[4..8].copy_from_slice(&interface.to_ne_bytes());
    let answer = Neighbours::open(interface)?.ask(GET_LINK, NEW_LINK, &fixed, &[])?;
    let answer = answer.get(FIXED_BYTES..).unwrap_or_default();
    let xdp = attributes(answer).find(|(name, _)| *name == XDP).map(|(_, value)| value);
    let id = attributes(xdp.unwrap_or_default()).find_map(|(name, value)| {
        let id = PROGRAM_IDS.contains(&name).then_some(value)?;
        id.try_into().map(u32::from_ne_bytes).ok().filter(|id| *id != 0)
    });
    Ok(id.map(|id| (id, name_of(id).unwrap_or_default())))
}

/// The kernel reports a name to a process with CAP_SYS_ADMIN alone.
fn name_of(id: u32) -> Option<ProgramName> {
    let program = program::by_id(id).ok()?;
    program::name(program.as_fd()).ok().map(ProgramName)
}

fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let head = rest.first_chunk::<4>()?;
        let bytes = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let value = rest.get(4..bytes)?;
        let name = u16::from_ne_bytes([head[2], head[3]]) & !NESTED;
        rest = rest.get(bytes.next_multiple_of(4)..).unwrap_or_default();
        Some((name, value))
    })
}
