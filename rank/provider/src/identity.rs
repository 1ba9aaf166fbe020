//! The identity of this process and its peers: job, life, key, rank, own IP address.
//!
//! Under a foreign launcher (an MPI's own mpiexec, or none) nobody hands out a job key. There the key is the user's
//! ([`client::user_key`]). It keeps other users and strayed datagrams out; it does not keep one job of a user from another
//! one's, nor a job from a process that can read its user's files. Port ids are random there, and every tag covers both ids,
//! so a datagram of an earlier job that reaches a later one at the same address is dropped.
//!
//! A rank that is saved as a whole process has all this of its launcher, in each life anew.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use client::launch::Launch;
use client::parent_job::{PARENT_JOB_VARIABLE, ParentJob};
use client::user_key::{KeyError, KeyFile};
use transport::{AuthLevel, JobId, JobKey, Life, PortId, RawAddress};

use crate::boundary::complain;
use crate::keeper::this_rank;
use crate::log;

/// Names the IP address on which endpoints receive.
pub(crate) const ADDRESS_VARIABLE: &str = "STILLWIRE_ADDRESS";

/// The common settings of all processes of a job.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) job: JobId,
    pub(crate) life: Life,
    pub(crate) key: JobKey,
    /// The least coverage of the tags of frames, if the launcher sets it.
    pub(crate) auth: AuthLevel,
}

impl Identity {
    /// In a process that is saved as a whole: another one in each life.
    pub(crate) fn of(launch: &Launch) -> Identity {
        Identity { job: launch.job, life: launch.life, key: JobKey(launch.key), auth: launch.auth }
    }
}

/// Why this process is of no job.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IdentityError {
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(
        "{PARENT_JOB_VARIABLE} is {text:?}, expected JOB.COUNTER.NONCE.LEVEL and ports as `stillwire run` sets it for processes that ranks spawn: unset it"
    )]
    ParentJob { text: std::ffi::OsString },
}

/// The identity of this process; logged once if there is none.
pub(crate) fn identity() -> Option<Identity> {
    if let Some(rank) = this_rank() {
        return Some(Identity::of(&rank.launch()));
    }
    static IDENTITY: OnceLock<Option<Identity>> = OnceLock::new();
    IDENTITY
        .get_or_init(|| match find() {
            Ok(identity) => Some(identity),
            Err(error) => {
                complain(format_args!("no key, so this provider offers nothing: {error}"));
                None
            }
        })
        .clone()
}

static KEY_FILE: OnceLock<PathBuf> = OnceLock::new();

/// The file that this process has its key from; `None` if its launcher gave it the key.
pub(crate) fn key_file() -> Option<&'static Path> {
    KEY_FILE.get().map(PathBuf::as_path)
}

fn find() -> Result<Identity, IdentityError> {
    let file = KeyFile::find(may_span_hosts());
    let key = file.read_or_make()?;
    log::inform(format_args!("key file: {}", file.path().display()));
    KEY_FILE.get_or_init(|| file.path().to_owned());
    if let Some(ParentJob { job, life, auth, .. }) = parent_job()? {
        return Ok(Identity { job: *job, life: *life, key: JobKey(key), auth: *auth });
    }
    // Everybody with the key is of one job: programs that meet later (connect, spawn) have to understand each other.
    let job = JobId(xxhash_rust::xxh3::xxh3_128(&key));
    Ok(Identity { job, life: Life { counter: 1, nonce: 0 }, key: JobKey(key), auth: AuthLevel::Header })
}

/// The ranks that have spawned this process, if any have.
fn parent_job() -> Result<Option<&'static ParentJob>, IdentityError> {
    static PARENT_JOB: OnceLock<Result<Option<ParentJob>, std::ffi::OsString>> = OnceLock::new();
    let parent_job = PARENT_JOB.get_or_init(|| match std::env::var_os(PARENT_JOB_VARIABLE) {
        Some(text) => text.to_str().and_then(ParentJob::parse).map(Some).ok_or(text),
        None => Ok(None),
    });
    parent_job.as_ref().map(Option::as_ref).map_err(|text| IdentityError::ParentJob { text: text.clone() })
}

/// The address of a port of those ranks, if it differs from that of its rank.
pub(crate) fn moved(port: PortId) -> Option<&'static [RawAddress]> {
    let parent_job = parent_job().ok()??;
    parent_job.moved.get(&port).map(Vec::as_slice)
}

/// The IP address at which peers find this process.
///
/// The user's setting counts. Otherwise it is the loopback address, which no stranger reaches, if the
/// launcher reports that all ranks are on this host. Otherwise it is the address of the interface that leads
/// out of this host, or loopback if none does.
pub(crate) fn own_ip() -> IpAddr {
    if let Ok(text) = std::env::var(ADDRESS_VARIABLE) {
        match text.parse() {
            Ok(ip) => return ip,
            Err(_) => complain(format_args!(
                "{ADDRESS_VARIABLE} is '{text}', expected an IP address such as 10.0.0.1; it is ignored"
            )),
        }
    }
    if all_on_this_host() {
        return IpAddr::V4(Ipv4Addr::LOCALHOST);
    }
    outward_ip().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// Variables with the ranks on this host and the ranks of the job: hydra's (MPICH, Intel MPI), Open MPI's.
const LOCAL_AND_ALL: [(&str, &str); 2] =
    [("MPI_LOCALNRANKS", "PMI_SIZE"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE")];

/// The launcher's numbers of ranks on this host and in the job; `None` if it does not set them.
fn local_and_all() -> Option<(u32, u32)> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    LOCAL_AND_ALL.iter().find_map(|(local, all)| number(local).zip(number(all)))
}

fn all_on_this_host() -> bool {
    local_and_all().is_some_and(|(local, all)| local == all)
}

/// Whether a launcher has started this process, and does not report that all ranks are on this host.
fn may_span_hosts() -> bool {
    log::rank().is_some() && !all_on_this_host()
}

/// The source address of the default route; nothing is sent for it.
fn outward_ip() -> Option<IpAddr> {
    // RFC 5737: an address for documentation, which no host has.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_unspecified()).then_some(ip)
}
