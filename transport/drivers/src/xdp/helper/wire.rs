//! The messages between a rank and the helper: one each, of a fixed length. Only the answer has descriptors beside it.

use core::fmt;
use std::net::{IpAddr, SocketAddr};

use super::MEMORY_BYTES_MAX;
use super::refusal::REFUSAL_BYTES;
pub use super::refusal::{Limit, Refusal};
use crate::limits::XDP_QUEUES_MAX;
use crate::xdp::Attach;

/// Bytes of a request.
pub const REQUEST_BYTES: usize = 64;

/// Bytes of an answer.
pub const ANSWER_BYTES: usize = 16 + 4 * XDP_QUEUES_MAX;

/// Bytes of the longest name of a device (IFNAMSIZ less the end).
const NAME_BYTES_MAX: usize = 15;

const MAGIC: [u8; 4] = *b"SWNH";
const VERSION: u16 = 2;

/// A message that cannot be one, or is one of another version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// Of another length.
    #[error("a message of {found} bytes, expected {expected}")]
    Length {
        /// Bytes that came.
        found: usize,
        /// Bytes of a message.
        expected: usize,
    },
    /// It does not begin as messages do.
    #[error("not a message to or from a nic-helper")]
    Magic,
    /// Of another version of this program.
    #[error(
        "a message of version {found}, expected {VERSION}: rank and nic-helper are of different versions of stillwire"
    )]
    Version {
        /// The found value.
        found: u16,
    },
    /// A field has a value that it cannot have.
    #[error("the field '{name}' of a message cannot be {found}")]
    Field {
        /// Which.
        name: &'static str,
        /// The found value.
        found: u64,
    },
}

/// The name of a device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name([u8; NAME_BYTES_MAX + 1]);

impl Name {
    /// `None`: no device can have it.
    #[must_use]
    pub fn new(name: &str) -> Option<Name> {
        let mut bytes = [0; NAME_BYTES_MAX + 1];
        let fits = !name.is_empty() && name.len() <= NAME_BYTES_MAX;
        if !fits || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return None;
        }
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Some(Name(bytes))
    }

    /// As it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let bytes = self.0.split(|byte| *byte == 0).next().unwrap_or_default();
        core::str::from_utf8(bytes).unwrap_or_default()
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

/// A rank's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Whether it would be served at this device. Nothing is taken.
    Probe {
        /// The device.
        device: Name,
    },
    /// Queues of a device, a UDP port and memory for frames.
    Open(Wanted),
}

/// A rank's request: the device, and the queues to open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The device.
    pub device: Name,
    /// The address that the rail receives on; port 0 takes a free one.
    pub address: SocketAddr,
    /// How the program has to be attached; `None`: as the helper does it.
    pub attach: Option<Attach>,
    /// Queues to give, not fewer.
    pub queues_min: u8,
    /// Queues to give, not more.
    pub queues_max: u8,
    /// Bytes of the longest frame, headers included.
    pub wire_bytes_max: u32,
    /// Bytes of a chunk of the memory.
    pub chunk_bytes: u32,
    /// Bytes of the memory.
    pub memory_bytes: u32,
}

impl Request {
    /// As bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        let device = match self {
            Request::Probe { device } => device,
            Request::Open(wanted) => {
                bytes[6] = 1;
                bytes[7] = attach_number(wanted.attach);
                bytes[8..12].copy_from_slice(&wanted.wire_bytes_max.to_le_bytes());
                bytes[12..16].copy_from_slice(&wanted.chunk_bytes.to_le_bytes());
                (bytes[16], bytes[17]) = (wanted.queues_min, wanted.queues_max);
                bytes[18..20].copy_from_slice(&wanted.address.port().to_le_bytes());
                match wanted.address.ip() {
                    IpAddr::V4(ip) => {
                        bytes[20] = 4;
                        bytes[40..44].copy_from_slice(&ip.octets());
                    }
                    IpAddr::V6(ip) => {
                        bytes[20] = 6;
                        bytes[40..56].copy_from_slice(&ip.octets());
                    }
                }
                bytes[56..60].copy_from_slice(&wanted.memory_bytes.to_le_bytes());
                &wanted.device
            }
        };
        bytes[24..40].copy_from_slice(&device.0);
        bytes
    }

    /// Reads a request that [`Request::emit`] has written.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<Request, Malformed> {
        let bytes: &[u8; REQUEST_BYTES] = begin(bytes)?;
        zero("the unused bytes", &bytes[21..24])?;
        zero("the unused bytes", &bytes[60..])?;
        let name = &bytes[24..40];
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        zero("the end of the device's name", &name[end..])?;
        let device = core::str::from_utf8(&name[..end]).ok().and_then(Name::new);
        let device = device.ok_or(Malformed::Field { name: "device", found: u64::from(name[0]) })?;
        if bytes[6] == 0 {
            zero("the unused bytes of a probe", &bytes[7..24])?;
            zero("the unused bytes of a probe", &bytes[40..])?;
            return Ok(Request::Probe { device });
        }
        let field = |name, is_right: bool, found: u64| {
            if is_right { Ok(()) } else { Err(Malformed::Field { name, found }) }
        };
        field("kind", bytes[6] == 1, bytes[6].into())?;
        let wanted = Wanted {
            device,
            address: SocketAddr::new(ip_of(bytes)?, u16::from_le_bytes([bytes[18], bytes[19]])),
            attach: attach_of(bytes[7])?,
            queues_min: bytes[16],
            queues_max: bytes[17],
            wire_bytes_max: number(bytes, 8),
            chunk_bytes: number(bytes, 12),
            memory_bytes: number(bytes, 56),
        };
        field("queues", usize::from(wanted.queues_max) <= XDP_QUEUES_MAX, wanted.queues_max.into())?;
        let least = wanted.queues_min >= 1 && wanted.queues_min <= wanted.queues_max;
        field("fewest queues", least, wanted.queues_min.into())?;
        field("bytes of a chunk", [2048, 4096].contains(&wanted.chunk_bytes), wanted.chunk_bytes.into())?;
        let longest = (64..=u32::from(u16::MAX)).contains(&wanted.wire_bytes_max);
        field("bytes of a frame", longest, wanted.wire_bytes_max.into())?;
        let memory = usize::try_from(wanted.memory_bytes).unwrap_or(usize::MAX);
        let in_chunks = memory > 0 && wanted.memory_bytes.is_multiple_of(wanted.chunk_bytes);
        field("bytes of memory", in_chunks && memory <= MEMORY_BYTES_MAX, wanted.memory_bytes.into())?;
        Ok(Request::Open(wanted))
    }
}

/// The helper's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// To a probe: it would be served.
    Would,
    /// Descriptors come along: the bound UDP socket, the file of the memory for frames, and a bound AF_XDP socket for each of these queues.
    Given {
        /// How the program is attached.
        attach: Attach,
        /// The queues, in the order of the sockets.
        queues: Vec<u32>,
    },
    /// Nothing is given.
    Refused(Refusal),
}

impl Answer {
    /// As bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        match self {
            Answer::Would => {}
            Answer::Given { attach, queues } => {
                bytes[6] = 1;
                bytes[7] = attach_number(Some(*attach));
                bytes[12] = u8::try_from(queues.len()).unwrap_or(u8::MAX);
                for (to, queue) in bytes[16..].chunks_exact_mut(4).zip(queues) {
                    to.copy_from_slice(&queue.to_le_bytes());
                }
            }
            Answer::Refused(refusal) => bytes[6..6 + REFUSAL_BYTES].copy_from_slice(&refusal.emit()),
        }
        bytes
    }

    /// Reads an answer that [`Answer::emit`] has written.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<Answer, Malformed> {
        let bytes: &[u8; ANSWER_BYTES] = begin(bytes)?;
        match bytes[6] {
            0 => zero("the unused bytes", &bytes[7..]).map(|()| Answer::Would),
            1 => {
                zero("the unused bytes", &bytes[8..12])?;
                zero("the unused bytes", &bytes[13..16])?;
                let attach = attach_of(bytes[7])?;
                let attach = attach.ok_or(Malformed::Field { name: "attached", found: 0 })?;
                let count = usize::from(bytes[12]);
                if count == 0 || count > XDP_QUEUES_MAX {
                    return Err(Malformed::Field { name: "queues", found: count as u64 });
                }
                let end = 16 + 4 * count;
                zero("the unused bytes", &bytes[end..])?;
                Ok(Answer::Given {
                    attach,
                    queues: (16..end).step_by(4).map(|at| number(bytes, at)).collect(),
                })
            }
            _ => {
                let mut refusal = [0; REFUSAL_BYTES];
                refusal.copy_from_slice(&bytes[6..6 + REFUSAL_BYTES]);
                zero("the unused bytes", &bytes[6 + REFUSAL_BYTES..])?;
                Refusal::parse(&refusal).map(Answer::Refused)
            }
        }
    }
}

/// Length, magic and version.
fn begin<const BYTES: usize>(bytes: &[u8]) -> Result<&[u8; BYTES], Malformed> {
    let whole = bytes.try_into().map_err(|_| Malformed::Length { found: bytes.len(), expected: BYTES })?;
    if bytes[..4] != MAGIC {
        return Err(Malformed::Magic);
    }
    match u16::from_le_bytes([bytes[4], bytes[5]]) {
        VERSION => Ok(whole),
        found => Err(Malformed::Version { found }),
    }
}

pub(super) fn zero(name: &'static str, bytes: &[u8]) -> Result<(), Malformed> {
    match bytes.iter().find(|byte| **byte != 0) {
        None => Ok(()),
        Some(found) => Err(Malformed::Field { name, found: u64::from(*found) }),
    }
}

pub(super) fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The address of a request. The bytes that its family does not use are zero.
fn ip_of(bytes: &[u8; REQUEST_BYTES]) -> Result<IpAddr, Malformed> {
    let mut octets = [0; 16];
    octets.copy_from_slice(&bytes[40..56]);
    match bytes[20] {
        4 => {
            zero("the end of the address", &octets[4..])?;
            Ok(IpAddr::from([octets[0], octets[1], octets[2], octets[3]]))
        }
        6 => Ok(IpAddr::from(octets)),
        found => Err(Malformed::Field { name: "family", found: found.into() }),
    }
}

fn attach_number(attach: Option<Attach>) -> u8 {
    match attach {
        None => 0,
        Some(Attach::Native) => 1,
        Some(Attach::Generic) => 2,
    }
}

fn attach_of(number: u8) -> Result<Option<Attach>, Malformed> {
    match number {
        0 => Ok(None),
        1 => Ok(Some(Attach::Native)),
        2 => Ok(Some(Attach::Generic)),
        found => Err(Malformed::Field { name: "attach", found: found.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of each kind.
    fn answers() -> Vec<Answer> {
        let given = [vec![0], vec![3, 1, 2], (0..16).collect()];
        let given = given.map(|queues| Answer::Given { attach: Attach::Generic, queues });
        [Answer::Would]
            .into_iter()
            .chain(given)
            .chain(crate::xdp::helper::refusal::tests::one_of_each().map(Answer::Refused))
            .collect()
    }

    fn requests() -> [Request; 3] {
        let device = Name::new("eth0").expect("a name");
        let wanted = Wanted {
            device,
            address: "10.0.0.1:4000".parse().expect("an address"),
            attach: Some(Attach::Native),
            queues_min: 1,
            queues_max: 4,
            wire_bytes_max: 1514,
            chunk_bytes: 2048,
            memory_bytes: 2048 * 1280,
        };
        let v6 = Wanted { address: "[fd00::1:2]:0".parse().expect("an address"), ..wanted };
        [Request::Probe { device }, Request::Open(wanted), Request::Open(v6)]
    }

    /// No number in a request has the helper allocate more than its bounds.
    #[test]
    fn hostile_lengths_are_refused() {
        let bytes = requests()[1].emit();
        for (at, hostile) in
            [(8, u32::MAX), (12, u32::MAX), (12, 0), (56, 0), (56, u32::MAX), (56, 2047), (56, 1 << 26)]
        {
            let mut bytes = bytes;
            bytes[at..at + 4].copy_from_slice(&hostile.to_le_bytes());
            assert!(matches!(Request::parse(&bytes), Err(Malformed::Field { .. })), "{hostile} at {at}");
        }
        for (at, hostile) in [(16, 0), (17, 17), (17, 255), (20, 5)] {
            let mut bytes = bytes;
            bytes[at] = hostile;
            assert!(matches!(Request::parse(&bytes), Err(Malformed::Field { .. })), "{hostile} at {at}");
        }
    }

    #[test]
    fn what_is_said_is_understood() {
        for request in requests() {
            assert_eq!(Request::parse(&request.emit()), Ok(request));
        }
        for answer in answers() {
            assert_eq!(Answer::parse(&answer.emit()), Ok(answer));
        }
    }

    /// Any bytes: no panic, and every understood message has one meaning.
    #[test]
    fn bytes_have_one_meaning_or_none() {
        let said = requests().map(|request| request.emit().to_vec()).into_iter();
        let said: Vec<Vec<u8>> = said.chain(answers().iter().map(|answer| answer.emit().to_vec())).collect();
        let check = |bytes: &[u8]| {
            if let Ok(request) = Request::parse(bytes) {
                assert_eq!(request.emit(), bytes);
            }
            if let Ok(answer) = Answer::parse(bytes) {
                assert_eq!(answer.emit(), bytes);
            }
        };
        for bytes in said {
            (0..bytes.len()).for_each(|end| check(&bytes[..end]));
            for at in 0..bytes.len() {
                for value in 0..=u8::MAX {
                    let mut other = bytes.clone();
                    other[at] = value;
                    check(&other);
                }
            }
        }
    }

    #[test]
    fn names_are_those_of_devices() {
        for name in ["", "longer-than-a-dev", "a b", "a\0b", "ä"] {
            assert_eq!(Name::new(name), None, "{name}");
        }
        assert_eq!(Name::new("br0.100").expect("a name").as_str(), "br0.100");
    }
}
