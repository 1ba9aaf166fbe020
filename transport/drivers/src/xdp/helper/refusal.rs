//! Why the helper gives nothing: as an error for people, and as bytes.

use core::fmt;

use super::wire::{Malformed, number, zero};
use crate::error::{Errno, Operation};

/// Bytes of a refusal in an answer: number, kind or step, two unused bytes, the system's error, two numbers, sixteen bytes of a name or of queues.
pub(super) const REFUSAL_BYTES: usize = 34;

/// Bytes of the name of a program (`BPF_OBJ_NAME_LEN`).
const NAME_BYTES: usize = 16;

/// The name of a program at a device; empty: it has none, or the kernel does not report it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProgramName(pub(crate) [u8; NAME_BYTES]);

impl fmt::Display for ProgramName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0.split(|byte| *byte == 0).next().unwrap_or_default();
        match core::str::from_utf8(bytes).ok().filter(|name| !name.is_empty()) {
            Some(name) => write!(f, " ('{}')", name.escape_default()),
            None => Ok(()),
        }
    }
}

/// Numbers of queues, of the first 128 of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Queues(pub(crate) u128);

impl FromIterator<u32> for Queues {
    fn from_iter<T: IntoIterator<Item = u32>>(queues: T) -> Queues {
        Queues(queues.into_iter().filter_map(|queue| 1_u128.checked_shl(queue)).fold(0, |all, one| all | one))
    }
}

impl fmt::Display for Queues {
    /// As the end of a sentence about queues; nothing if there are none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut numbers = (0..128_u32).filter(|queue| self.0 >> queue & 1 == 1);
        let Some(first) = numbers.next() else { return Ok(()) };
        write!(f, "; AF_XDP sockets outside this helper hold queue {first}")?;
        numbers.try_for_each(|queue| write!(f, ", {queue}"))
    }
}

/// A bound on the resources of one user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// Rails.
    Rails,
    /// MiB of locked memory for frames.
    Memory,
    /// Connections, those of rails included.
    Connections,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::Rails => "rails (--user-rails",
            Limit::Memory => "MiB of memory for frames (--user-memory",
            Limit::Connections => "connections (--user-connections",
        })
    }
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
    /// The address is none whose frames may be taken.
    #[error(
        "the rail's address is not one of the device, or the rail is in another network namespace than the helper"
    )]
    Address,
    /// Another socket has the address.
    #[error("another socket has this address and port already")]
    Port,
    /// The port is among those that only a privileged process may bind.
    #[error("it gives no port below {least} (net.ipv4.ip_unprivileged_port_start)")]
    LowPort {
        /// The least port that any process may bind.
        least: u32,
    },
    /// Too few queues are left.
    #[error(
        "other rails have the queues of the device that it has ({left} left of {all}{elsewhere}); each rail takes one at least"
    )]
    Queues {
        /// Free queues.
        left: u32,
        /// Queues of the device.
        all: u32,
        /// Those that other processes have bound.
        elsewhere: Queues,
    },
    /// The program is attached to the device in the other way.
    #[error("it attaches its program to the device in another mode than requested")]
    Attached,
    /// Another program is at the device.
    #[error(
        "another XDP program is attached to the device: number {id}{name}; detach it (`ip link set dev INTERFACE xdp off`), \
         or use another interface"
    )]
    Program {
        /// The kernel's number of the program, as `ip link show` prints it.
        id: u32,
        /// Its name.
        name: ProgramName,
    },
    /// The program was attached too often.
    #[error(
        "it has attached its program to the device {times} times within an hour, and attaching can reset the link; it tries again later"
    )]
    Attaches {
        /// How often.
        times: u32,
    },
    /// It serves as many as it can.
    #[error("it serves as many rails as it can")]
    Full,
    /// The user has as much as it gets.
    #[error("this user has {max} {limit} of `stillwire nic-helper`), and gets no more")]
    Limit {
        /// The resource.
        limit: Limit,
        /// The bound.
        max: u32,
    },
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
const STEPS: [Operation; 9] = [
    Operation::FindDevice,
    Operation::OpenSocket,
    Operation::RegisterFrames,
    Operation::MapRings,
    Operation::LoadProgram,
    Operation::AttachProgram,
    Operation::BindQueue,
    Operation::Bind,
    Operation::AskRoutes,
];

/// The bounds, by number.
const LIMITS: [Limit; 3] = [Limit::Rails, Limit::Memory, Limit::Connections];

fn place_of<T: PartialEq>(all: &[T], one: &T) -> u8 {
    all.iter().position(|other| other == one).and_then(|place| u8::try_from(place).ok()).unwrap_or(u8::MAX)
}

impl Refusal {
    pub(super) fn emit(self) -> [u8; REFUSAL_BYTES] {
        let mut bytes = [0; REFUSAL_BYTES];
        let mut numbers = [0; 2];
        bytes[0] = match self {
            Refusal::User => 2,
            Refusal::Device => 3,
            Refusal::Request => 4,
            Refusal::Address => 5,
            Refusal::Port => 6,
            Refusal::LowPort { least } => {
                numbers[0] = least;
                7
            }
            Refusal::Queues { left, all, elsewhere } => {
                numbers = [left, all];
                bytes[18..].copy_from_slice(&elsewhere.0.to_le_bytes());
                8
            }
            Refusal::Attached => 9,
            Refusal::Full => 10,
            Refusal::Failed { operation, errno } => {
                bytes[1] = place_of(&STEPS, &operation);
                bytes[2..6].copy_from_slice(&errno.0.to_le_bytes());
                11
            }
            Refusal::Program { id, name } => {
                numbers[0] = id;
                bytes[18..].copy_from_slice(&name.0);
                12
            }
            Refusal::Attaches { times } => {
                numbers[0] = times;
                13
            }
            Refusal::Limit { limit, max } => {
                bytes[1] = place_of(&LIMITS, &limit);
                numbers[0] = max;
                14
            }
        };
        bytes[10..14].copy_from_slice(&numbers[0].to_le_bytes());
        bytes[14..18].copy_from_slice(&numbers[1].to_le_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8; REFUSAL_BYTES]) -> Result<Refusal, Malformed> {
        let (first, second) = (number(bytes, 10), number(bytes, 14));
        let mut last = [0; 16];
        last.copy_from_slice(&bytes[18..]);
        let field = |name, found: u8| Malformed::Field { name, found: found.into() };
        let refusal = match bytes[0] {
            2 => Refusal::User,
            3 => Refusal::Device,
            4 => Refusal::Request,
            5 => Refusal::Address,
            6 => Refusal::Port,
            7 => Refusal::LowPort { least: first },
            8 => Refusal::Queues { left: first, all: second, elsewhere: Queues(u128::from_le_bytes(last)) },
            9 => Refusal::Attached,
            10 => Refusal::Full,
            11 => {
                let operation = STEPS.get(usize::from(bytes[1]));
                let operation = *operation.ok_or(field("step", bytes[1]))?;
                Refusal::Failed { operation, errno: Errno(number(bytes, 2).cast_signed()) }
            }
            12 => Refusal::Program { id: first, name: ProgramName(last) },
            13 => Refusal::Attaches { times: first },
            14 => {
                let limit = *LIMITS.get(usize::from(bytes[1])).ok_or(field("limit", bytes[1]))?;
                Refusal::Limit { limit, max: first }
            }
            found => return Err(field("answer", found)),
        };
        // The fields that a refusal does not use are zero, so that it has one form.
        let own = refusal.emit();
        let others: Vec<u8> = bytes.iter().zip(own).map(|(found, own)| found ^ own).collect();
        zero("the unused bytes", &others)?;
        Ok(refusal)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::xdp::helper) fn one_of_each() -> [Refusal; 14] {
        [
            Refusal::User,
            Refusal::Device,
            Refusal::Request,
            Refusal::Address,
            Refusal::Port,
            Refusal::LowPort { least: 1024 },
            Refusal::Queues { left: 1, all: 4, elsewhere: [0, 2, 127].into_iter().collect() },
            Refusal::Attached,
            Refusal::Full,
            Refusal::Failed { operation: Operation::BindQueue, errno: Errno(16) },
            Refusal::Program { id: 42, name: ProgramName(*b"xdp_filter\0\0\0\0\0\0") },
            Refusal::Attaches { times: 6 },
            Refusal::Limit { limit: Limit::Rails, max: 16 },
            Refusal::Limit { limit: Limit::Connections, max: 32 },
        ]
    }

    #[test]
    fn messages_name_holders_and_options() {
        let held = Refusal::Queues { left: 0, all: 4, elsewhere: [0, 3].into_iter().collect() };
        let text = held.to_string();
        assert!(text.contains("0 left of 4; AF_XDP sockets outside this helper hold queue 0, 3)"), "{text}");
        let none = Refusal::Queues { left: 0, all: 1, elsewhere: Queues::default() }.to_string();
        assert!(none.contains("(0 left of 1)"), "{none}");
        let program = Refusal::Program { id: 42, name: ProgramName(*b"xdp_filter\0\0\0\0\0\0") };
        assert!(program.to_string().contains("number 42 ('xdp_filter')"), "{program}");
        let limit = Refusal::Limit { limit: Limit::Memory, max: 128 };
        assert!(
            limit
                .to_string()
                .contains("128 MiB of memory for frames (--user-memory of `stillwire nic-helper`)")
        );
        assert_eq!([200].into_iter().collect::<Queues>(), Queues(0), "beyond those that are named");
    }
}
