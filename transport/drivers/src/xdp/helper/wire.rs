//! The messages between a rank and the helper: one message each, of a fixed length, and descriptors beside it.

use core::fmt;

use crate::error::{Errno, Operation};
use crate::limits::XDP_QUEUES_MAX;
use crate::xdp::Attach;

/// Bytes of a request.
pub const REQUEST_BYTES: usize = 40;

/// Bytes of an answer.
pub const ANSWER_BYTES: usize = 16 + 4 * XDP_QUEUES_MAX;

/// Bytes of the longest name of a device (IFNAMSIZ less the end).
const NAME_BYTES_MAX: usize = 15;

const MAGIC: [u8; 4] = *b"SWNH";
const VERSION: u16 = 1;

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
    /// Queues of a device. Two descriptors come along: a UDP socket, whose address becomes that of the rail, and the
    /// file of the memory for frames.
    Open(Wanted),
}

/// A rank's request: the device, and the queues to open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The device.
    pub device: Name,
    /// How to attach the program; `None`: as the device can.
    pub attach: Option<Attach>,
    /// Queues to give, not fewer.
    pub queues_min: u8,
    /// Queues to give, not more.
    pub queues_max: u8,
    /// Bytes of the longest frame, headers included.
    pub wire_bytes_max: u32,
    /// Bytes of a chunk of the memory.
    pub chunk_bytes: u32,
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
                &wanted.device
            }
        };
        bytes[24..].copy_from_slice(&device.0);
        bytes
    }

    /// Reads a request that [`Request::emit`] has written.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<Request, Malformed> {
        let bytes: &[u8; REQUEST_BYTES] = begin(bytes)?;
        zero("what is unused", &bytes[18..24])?;
        let name = &bytes[24..];
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        zero("the end of the device's name", &name[end..])?;
        let device = core::str::from_utf8(&name[..end]).ok().and_then(Name::new);
        let device = device.ok_or(Malformed::Field { name: "device", found: u64::from(name[0]) })?;
        if bytes[6] == 0 {
            zero("what a probe has no use for", &bytes[7..24])?;
            return Ok(Request::Probe { device });
        }
        let field = |name, is_right: bool, found: u64| {
            if is_right { Ok(()) } else { Err(Malformed::Field { name, found }) }
        };
        field("kind", bytes[6] == 1, bytes[6].into())?;
        let wanted = Wanted {
            device,
            attach: attach_of(bytes[7])?,
            queues_min: bytes[16],
            queues_max: bytes[17],
            wire_bytes_max: number(bytes, 8),
            chunk_bytes: number(bytes, 12),
        };
        field("queues", usize::from(wanted.queues_max) <= XDP_QUEUES_MAX, wanted.queues_max.into())?;
        let least = wanted.queues_min >= 1 && wanted.queues_min <= wanted.queues_max;
        field("fewest queues", least, wanted.queues_min.into())?;
        field("bytes of a chunk", [2048, 4096].contains(&wanted.chunk_bytes), wanted.chunk_bytes.into())?;
        let longest = (64..=u32::from(u16::MAX)).contains(&wanted.wire_bytes_max);
        field("bytes of a frame", longest, wanted.wire_bytes_max.into())?;
        Ok(Request::Open(wanted))
    }
}

/// The helper's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// To a probe: it would be served.
    Would,
    /// A bound socket for each of these queues comes along.
    Given {
        /// How the program is attached.
        attach: Attach,
        /// The queues, in the order of the sockets.
        queues: Vec<u32>,
    },
    /// Nothing is given.
    Refused(Refusal),
}

/// Why the helper gives nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// The user is not among those that are served.
    #[error("this user is not among those that it serves (--uid of `stillwire nic-helper`)")]
    User,
    /// The device is not among those that are served.
    #[error("the device is not among those that it serves (--interface of `stillwire nic-helper`)")]
    Device,
    /// The message is no request of this version.
    #[error("it does not understand the request: is it of another version of stillwire?")]
    Request,
    /// The socket that came along is none whose frames may be taken.
    #[error(
        "the rail's own socket is not one of UDP that is bound to an address of the device, in the network namespace of the helper"
    )]
    Address,
    /// Another rail has the address.
    #[error("another rail has this address and port already")]
    Port,
    /// The file that came along is none of memory, or too long.
    #[error("the memory sent along is not a sealed memory file of at most {max} bytes", max = super::MEMORY_BYTES_MAX)]
    Memory,
    /// Too few queues are left.
    #[error(
        "other rails have the queues of the device that it has ({left} left of {all}); each rail takes one at least"
    )]
    Queues {
        /// Free queues.
        left: u32,
        /// Queues of the device.
        all: u32,
    },
    /// The program is attached to the device in the other way, for others.
    #[error("the program is attached to the device already, in another mode than requested")]
    Attached,
    /// It serves as many as it can.
    #[error("it serves as many rails as it can")]
    Full,
    /// The system.
    #[error("{operation} failed there ({errno})")]
    Failed {
        /// The step.
        operation: Operation,
        /// The system's error.
        errno: Errno,
    },
}

/// The steps that can fail there, by number.
const STEPS: [Operation; 7] = [
    Operation::FindDevice,
    Operation::OpenSocket,
    Operation::RegisterFrames,
    Operation::MapRings,
    Operation::LoadProgram,
    Operation::AttachProgram,
    Operation::BindQueue,
];

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
            Answer::Refused(refusal) => bytes[6..24].copy_from_slice(&refusal.emit()),
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
            0 => zero("what is unused", &bytes[7..]).map(|()| Answer::Would),
            1 => {
                zero("what is unused", &bytes[8..12])?;
                zero("what is unused", &bytes[13..16])?;
                let attach = attach_of(bytes[7])?;
                let attach = attach.ok_or(Malformed::Field { name: "attached", found: 0 })?;
                let count = usize::from(bytes[12]);
                if count == 0 || count > XDP_QUEUES_MAX {
                    return Err(Malformed::Field { name: "queues", found: count as u64 });
                }
                let end = 16 + 4 * count;
                zero("what is unused", &bytes[end..])?;
                Ok(Answer::Given {
                    attach,
                    queues: (16..end).step_by(4).map(|at| number(bytes, at)).collect(),
                })
            }
            _ => {
                zero("what is unused", &bytes[24..])?;
                Refusal::parse(bytes).map(Answer::Refused)
            }
        }
    }
}

impl Refusal {
    /// Number, step, two unused bytes, the system's error, two numbers.
    fn emit(self) -> [u8; 18] {
        let mut bytes = [0; 18];
        bytes[0] = match self {
            Refusal::User => 2,
            Refusal::Device => 3,
            Refusal::Request => 4,
            Refusal::Address => 5,
            Refusal::Port => 6,
            Refusal::Memory => 7,
            Refusal::Queues { .. } => 8,
            Refusal::Attached => 9,
            Refusal::Full => 10,
            Refusal::Failed { .. } => 11,
        };
        match self {
            Refusal::Queues { left, all } => {
                bytes[10..14].copy_from_slice(&left.to_le_bytes());
                bytes[14..].copy_from_slice(&all.to_le_bytes());
            }
            Refusal::Failed { operation, errno } => {
                let step = STEPS.iter().position(|step| *step == operation).unwrap_or(STEPS.len());
                bytes[1] = u8::try_from(step).unwrap_or(u8::MAX);
                bytes[2..6].copy_from_slice(&errno.0.to_le_bytes());
            }
            _ => {}
        }
        bytes
    }

    fn parse(bytes: &[u8; ANSWER_BYTES]) -> Result<Refusal, Malformed> {
        if bytes[6] != 11 {
            zero("what is unused", &bytes[7..16])?;
        }
        if bytes[6] != 8 {
            zero("what is unused", &bytes[16..24])?;
        }
        Ok(match bytes[6] {
            2 => Refusal::User,
            3 => Refusal::Device,
            4 => Refusal::Request,
            5 => Refusal::Address,
            6 => Refusal::Port,
            7 => Refusal::Memory,
            8 => Refusal::Queues { left: number(bytes, 16), all: number(bytes, 20) },
            9 => Refusal::Attached,
            10 => Refusal::Full,
            11 => {
                zero("what is unused", &bytes[12..16])?;
                let operation = STEPS.get(usize::from(bytes[7]));
                let operation =
                    *operation.ok_or(Malformed::Field { name: "step", found: bytes[7].into() })?;
                Refusal::Failed { operation, errno: Errno(number(bytes, 8).cast_signed()) }
            }
            found => return Err(Malformed::Field { name: "answer", found: found.into() }),
        })
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

fn zero(name: &'static str, bytes: &[u8]) -> Result<(), Malformed> {
    match bytes.iter().find(|byte| **byte != 0) {
        None => Ok(()),
        Some(found) => Err(Malformed::Field { name, found: u64::from(*found) }),
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
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
        let refusals = [
            Refusal::User,
            Refusal::Device,
            Refusal::Request,
            Refusal::Address,
            Refusal::Port,
            Refusal::Memory,
            Refusal::Queues { left: 1, all: 4 },
            Refusal::Attached,
            Refusal::Full,
            Refusal::Failed { operation: Operation::BindQueue, errno: Errno(16) },
        ];
        let given = [vec![0], vec![3, 1, 2], (0..16).collect()];
        let given = given.map(|queues| Answer::Given { attach: Attach::Generic, queues });
        [Answer::Would].into_iter().chain(given).chain(refusals.map(Answer::Refused)).collect()
    }

    fn requests() -> [Request; 2] {
        let device = Name::new("eth0").expect("a name");
        let wanted = Wanted {
            device,
            attach: Some(Attach::Native),
            queues_min: 1,
            queues_max: 4,
            wire_bytes_max: 1514,
            chunk_bytes: 2048,
        };
        [Request::Probe { device }, Request::Open(wanted)]
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
