//! The first message of a launcher to the process of a rank.
//!
//! The process inherits one end of a Unix socket pair; the environment variable [`SOCKET_VARIABLE`] has its number and
//! nothing else. The first bytes on it are the launch record, which holds the job's key: it never stands in an argument,
//! an environment variable or a file, where others could read it. After the record the socket carries control messages.
//!
//! | at | bytes | field     | meaning                                                        |
//! |----|-------|-----------|----------------------------------------------------------------|
//! | 0  | 8     | magic     | `SWLAUNCH`                                                     |
//! | 8  | 2     | version   | this layout is 3                                               |
//! | 10 | 4     | length    | bytes that follow, at most [`LAUNCH_BYTES_MAX`]                |
//! | 14 | 16    | job       | its id                                                         |
//! | 30 | 16    | key       | of control messages and data frames                            |
//! | 46 | 12    | life      | counter, nonce                                                 |
//! | 58 | 4, 4  | rank      | this rank, and how many there are                              |
//! | 66 | 1     | restore   | 1: restore the generation that follows; 0: it is zero          |
//! | 67 | 16    | generation | life (counter, nonce) and epoch                               |
//! | 83 | 1     | auth      | coverage of data frames' tags: 1 header, 2 the payload too     |
//! | 84 | 1     | family    | 4 or 6: of the address that follows                            |
//! | 85 | 16, 2 | bind      | where to receive: IP (IPv4 in the first four bytes), UDP port  |
//! | 103 | 4     | ranks here | ranks of the job on this host                                 |
//! | 107 | 1     | encrypts  | 1: images are, with the key that follows; 0: it is zero        |
//! | 108 | 32    | image key |                                                                |
//! | 140 | 8     | limit     | bytes of images that this rank may write in a second; 0: as many as it can |
//! | 148 | 1, n  | NIC       | length and text of the NIC that is wished for ([`drivers::NicChoice`]) |
//! | .. | ..    | directory | path of the job's directory                                    |

use std::ffi::OsStr;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use drivers::{NicChoice, NicRequest};
use nix::errno::Errno;
use nix::libc;
use store::image::ImageKey;
use store::{GenerationId, Key};
use transport::config::AuthLevel;
use transport::{Epoch, JobId, Life, Rank};

use crate::limits::{LAUNCH_BYTES_MAX, PATH_BYTES_MAX};

/// Names the environment variable with the number of the inherited socket.
pub const SOCKET_VARIABLE: &str = "STILLWIRE_SOCKET";

/// Exit status of a process whose launcher is gone: it ends by itself, as it cannot be saved or recovered any more.
pub const EXIT_LAUNCHER_GONE: i32 = 113;

/// Stands in the file of every program that links this crate, so that the launcher can recognise it: such a program is
/// saved at its own points, and others as whole processes.
pub const NATIVE_MARK: &[u8] = b"\nstillwire: this program names the points at which it is saved\n";

/// The first bytes of a launch record.
pub const MAGIC: [u8; 8] = *b"SWLAUNCH";
const VERSION: u16 = 5;
const HEAD_BYTES: usize = 14;
const FIXED_BYTES: usize = 135;

/// Facts that the process of a rank needs before it can communicate.
#[derive(Clone, PartialEq, Eq)]
pub struct Launch {
    /// The job.
    pub job: JobId,
    /// The job's secret.
    pub key: [u8; 16],
    /// The life that the process belongs to.
    pub life: Life,
    /// Its rank.
    pub rank: Rank,
    /// Ranks of the job.
    pub ranks: u32,
    /// The generation to restore; `None`: the program starts from its beginning.
    pub restore: Option<GenerationId>,
    /// The bytes that tags of data frames cover.
    pub auth: AuthLevel,
    /// Where to receive; port 0 takes a free one.
    pub bind: SocketAddr,
    /// Over which NIC to reach other hosts, and how many ranks share this one.
    pub nic: NicRequest,
    /// The key with which images are encrypted, if they are.
    pub encryption: Option<Key>,
    /// Bytes of images that this rank may write in a second while its program runs: its part of the node's limit.
    pub disk_bytes_per_s: Option<u64>,
    /// The job's directory.
    pub directory: PathBuf,
}

impl core::fmt::Debug for Launch {
    /// Without the keys.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Launch { job, life, rank, ranks, restore, .. } = self;
        write!(f, "Launch({job}, {life}, rank {rank} of {ranks}, restore {restore:?})")
    }
}

/// Why the bytes on the inherited socket are no launch record.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The socket gave an error or ended.
    #[error(
        "the launch record could not be read from the inherited socket: {0}; start the program with `stillwire run`"
    )]
    Read(#[from] std::io::Error),
    /// Something else.
    #[error(
        "the inherited socket begins with {found:02x?}, expected {MAGIC:02x?}: {SOCKET_VARIABLE} names another descriptor"
    )]
    Magic {
        /// The first bytes.
        found: [u8; 8],
    },
    /// A record of another time.
    #[error(
        "the launch record has version {found}, this program reads {VERSION}; link the program with the launcher's version"
    )]
    Version {
        /// The record's.
        found: u16,
    },
    /// A length that no record has.
    #[error(
        "the launch record has {found} bytes, expected {FIXED_BYTES} to {LAUNCH_BYTES_MAX}; link the program with the launcher's version"
    )]
    Length {
        /// Its length.
        found: usize,
    },
    /// A NIC that there is not.
    #[error(
        "the launch record names no NIC that this program knows: {0}; link the program with the launcher's version"
    )]
    Nic(#[from] drivers::nic::UnknownNic),
    /// A field with a value that it cannot have.
    #[error("the launch record's {field} is {found}; link the program with the launcher's version")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
    },
}

impl Launch {
    /// The record's bytes, to be written to the socket before the process starts.
    ///
    /// # Panics
    /// If the directory's path is longer than [`PATH_BYTES_MAX`]: no system call would take it; or if the name of a NIC is longer than 200 bytes.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let path = self.directory.as_os_str().as_bytes();
        assert!(path.len() <= PATH_BYTES_MAX, "a path of {} bytes", path.len());
        let nic = self.nic.choice.to_string();
        let nic_bytes = u8::try_from(nic.len()).expect("names of NICs have been read, and are short");
        let length = u32::try_from(FIXED_BYTES + nic.len() + path.len()).unwrap_or(u32::MAX);
        let mut out = Vec::with_capacity(HEAD_BYTES + FIXED_BYTES + path.len());
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend(length.to_le_bytes());
        out.extend(self.job.0.to_le_bytes());
        out.extend(self.key);
        put_life(&mut out, self.life);
        out.extend(self.rank.0.to_le_bytes());
        out.extend(self.ranks.to_le_bytes());
        out.push(u8::from(self.restore.is_some()));
        let nothing = GenerationId { life: Life { counter: 0, nonce: 0 }, epoch: Epoch(0) };
        let generation = self.restore.unwrap_or(nothing);
        put_life(&mut out, generation.life);
        out.extend(generation.epoch.0.to_le_bytes());
        out.push(if self.auth == AuthLevel::Full { 2 } else { 1 });
        match self.bind.ip() {
            IpAddr::V4(ip) => {
                out.push(4);
                out.extend(ip.octets());
                out.extend([0; 12]);
            }
            IpAddr::V6(ip) => {
                out.push(6);
                out.extend(ip.octets());
            }
        }
        out.extend(self.bind.port().to_le_bytes());
        out.extend(self.nic.ranks_here.unwrap_or(0).to_le_bytes());
        out.push(u8::from(self.encryption.is_some()));
        out.extend(self.encryption.as_ref().map_or([0; 32], |key| key.0));
        out.extend(self.disk_bytes_per_s.unwrap_or(0).to_le_bytes());
        out.push(nic_bytes);
        out.extend(nic.bytes());
        out.extend(path);
        out
    }

    /// For the job's directory: the key of images, and random bytes to go with it.
    #[must_use]
    pub fn image_key(&self) -> Option<ImageKey> {
        self.encryption.clone().map(|key| ImageKey { key, salt })
    }

    /// Reads a record.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub fn read(from: &mut impl Read) -> Result<Launch, LaunchError> {
        let mut head = [0; HEAD_BYTES];
        from.read_exact(&mut head)?;
        let mut fields = Fields(&head);
        let magic = fields.array::<8>();
        if magic != MAGIC {
            return Err(LaunchError::Magic { found: magic });
        }
        let version = u16::from_le_bytes(fields.array());
        if version != VERSION {
            return Err(LaunchError::Version { found: version });
        }
        let length = usize::try_from(fields.u32()).unwrap_or(usize::MAX);
        if !(FIXED_BYTES..=LAUNCH_BYTES_MAX).contains(&length) {
            return Err(LaunchError::Length { found: length });
        }
        let mut body = vec![0; length];
        from.read_exact(&mut body)?;
        parse(&body)
    }
}

/// Random bytes for encryption; `None`: the system gives none.
///
/// Straight from the kernel. libc's getrandom(3) keeps state between calls (glibc 2.41 and later), which lies
/// in memory of the process, so in its image. A restored process would be given once more the numbers that
/// the one before has used.
#[must_use]
pub fn salt() -> Option<[u8; 24]> {
    let mut salt = [0u8; 24];
    loop {
        // SAFETY: the kernel writes as many bytes as there are, at most.
        let given = unsafe { libc::syscall(libc::SYS_getrandom, salt.as_mut_ptr(), salt.len(), 0) };
        // So few come whole (getrandom(2)).
        if usize::try_from(given) == Ok(salt.len()) {
            return Some(salt);
        }
        if Errno::last() != Errno::EINTR {
            return None;
        }
    }
}

fn parse(body: &[u8]) -> Result<Launch, LaunchError> {
    let mut fields = Fields(body);
    let job = JobId(u128::from_le_bytes(fields.array()));
    let job_key = fields.array();
    let life = fields.life();
    let rank = Rank(fields.u32());
    let ranks = fields.u32();
    if rank.0 >= ranks {
        return Err(LaunchError::Field { field: "rank", found: rank.0.into() });
    }
    let [restores] = fields.array();
    let generation = GenerationId { life: fields.life(), epoch: Epoch(fields.u32()) };
    let restore = match restores {
        0 => None,
        1 => Some(generation),
        found => return Err(LaunchError::Field { field: "restore flag", found: found.into() }),
    };
    let [auth] = fields.array();
    let auth = match auth {
        1 => AuthLevel::Header,
        2 => AuthLevel::Full,
        found => return Err(LaunchError::Field { field: "authentication level", found: found.into() }),
    };
    let [family] = fields.array();
    let octets: [u8; 16] = fields.array();
    let ip = match family {
        4 => IpAddr::V4(Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3])),
        6 => IpAddr::V6(Ipv6Addr::from(octets)),
        found => return Err(LaunchError::Field { field: "address family", found: found.into() }),
    };
    let bind = SocketAddr::new(ip, u16::from_le_bytes(fields.array()));
    let ranks_here = Some(fields.u32()).filter(|ranks| *ranks > 0);
    let [encrypts] = fields.array();
    let key = Key(fields.array());
    let encryption = match encrypts {
        0 => None,
        1 => Some(key),
        found => return Err(LaunchError::Field { field: "encryption flag", found: found.into() }),
    };
    let disk_bytes_per_s = Some(u64::from_le_bytes(fields.array())).filter(|rate| *rate > 0);
    let [nic_bytes] = fields.array();
    let Some((nic, path)) = fields.0.split_at_checked(usize::from(nic_bytes)) else {
        return Err(LaunchError::Field { field: "length of a NIC's name", found: nic_bytes.into() });
    };
    let choice: NicChoice = String::from_utf8_lossy(nic).parse()?;
    let directory = PathBuf::from(OsStr::from_bytes(path));
    let nic = NicRequest { choice, ranks_here };
    let launch = Launch {
        job,
        key: job_key,
        life,
        rank,
        ranks,
        restore,
        auth,
        bind,
        nic,
        encryption,
        disk_bytes_per_s,
        directory,
    };
    Ok(launch)
}

fn put_life(out: &mut Vec<u8>, life: Life) {
    out.extend(life.counter.to_le_bytes());
    out.extend(life.nonce.to_le_bytes());
}

/// Fields in order. The caller has checked that the fixed ones are all there.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        let (array, rest) = self.0.split_first_chunk().expect("the fixed fields have been counted");
        self.0 = rest;
        *array
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    fn life(&mut self) -> Life {
        let counter = self.u32();
        Life { counter, nonce: u64::from_le_bytes(self.array()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch() -> Launch {
        Launch {
            job: JobId(0x0123_4567_89ab_cdef_0011_2233_4455_6677),
            key: [7; 16],
            life: Life { counter: 3, nonce: 0xdead_beef },
            rank: Rank(2),
            ranks: 4,
            restore: Some(GenerationId { life: Life { counter: 2, nonce: 9 }, epoch: Epoch(5) }),
            auth: AuthLevel::Header,
            bind: "127.0.0.1:0".parse().unwrap(),
            nic: NicRequest { choice: "xdp:eth0".parse().unwrap(), ranks_here: Some(2) },
            encryption: Some(Key([9; 32])),
            disk_bytes_per_s: Some(50_000_000),
            directory: PathBuf::from("/tmp/job"),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let full = Launch {
            restore: None,
            auth: AuthLevel::Full,
            bind: "[fe80::1]:4000".parse().unwrap(),
            nic: NicRequest::default(),
            encryption: None,
            disk_bytes_per_s: None,
            directory: PathBuf::new(),
            ..launch()
        };
        for launch in [launch(), full] {
            let bytes = launch.emit();
            let mut from = bytes.as_slice();
            assert_eq!(Launch::read(&mut from).unwrap(), launch);
            assert!(from.is_empty(), "control messages follow at once");
        }
    }

    #[test]
    fn no_truncation_and_no_flipped_head_is_read() {
        let bytes = launch().emit();
        for length in 0..bytes.len() {
            assert!(Launch::read(&mut &bytes[..length]).is_err(), "{length} bytes");
        }
        for place in 0..HEAD_BYTES - 4 {
            let mut damaged = bytes.clone();
            damaged[place] ^= 1;
            assert!(Launch::read(&mut damaged.as_slice()).is_err(), "byte {place}");
        }
    }

    #[test]
    fn a_key_is_never_printed() {
        let text = format!(
            "{:?}",
            Launch {
                key: *b"SECRETSECRETSECR",
                encryption: Some(Key(*b"SECRETSECRETSECRSECRETSECRETSECR")),
                ..launch()
            }
        );
        assert!(!text.contains("83") && !text.contains("SECRET"), "{text}");
    }
}
