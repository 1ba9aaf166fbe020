//! The identity of this process and its peers: job, life, key, rank, own IP address.
//!
//! Under a foreign launcher (an MPI's own mpiexec) there is no job key. There the key is the user's: 16 random bytes in
//! a file that only the user can read, made on first use. It keeps other users and strayed datagrams out; it does not
//! keep one job of a user from another one's, nor a job from a process that can read its user's files. Port ids are
//! random there, and every tag covers both ids, so a datagram of an earlier job that reaches a later one at the same
//! address is dropped.
//!
//! A rank that is saved as a whole process has all this of its launcher, in each life anew.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use session::launch::Launch;
use session::parent_job::{PARENT_JOB_VARIABLE, ParentJob};
use transport::{AuthLevel, JobId, JobKey, Life, PortId, RawAddress};

use crate::boundary::complain;
use crate::keeper::this_rank;

/// Names a file with the key, 16 bytes, readable by its owner alone.
pub(crate) const KEY_FILE_VARIABLE: &str = "STILLWIRE_KEY_FILE";
/// Names the IP address on which endpoints receive.
pub(crate) const ADDRESS_VARIABLE: &str = "STILLWIRE_ADDRESS";

const KEY_BYTES: usize = 16;

/// The common settings of all processes of a job.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) job: JobId,
    pub(crate) life: Life,
    pub(crate) key: JobKey,
    /// What the tags of frames cover at least, if the launcher says it.
    pub(crate) auth: AuthLevel,
}

impl Identity {
    /// In a process that is saved as a whole: another one in each life.
    pub(crate) fn of(launch: &Launch) -> Identity {
        Identity { job: launch.job, life: launch.life, key: JobKey(launch.key), auth: launch.auth }
    }
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyError {
    #[error("{}: {source}; set {KEY_FILE_VARIABLE} to a file in a directory of your own", .path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error(
        "{} belongs to user {owner} with mode {mode:o}, expected user {user} and 600: remove it, or set {KEY_FILE_VARIABLE}",
        .path.display()
    )]
    Exposed { path: PathBuf, owner: u32, user: u32, mode: u32 },
    #[error("{} has {found} bytes, expected {KEY_BYTES}: remove it, and a new one is made", .path.display())]
    Length { path: PathBuf, found: usize },
    #[error(
        "{PARENT_JOB_VARIABLE} is {text:?}, expected JOB.COUNTER.NONCE.LEVEL and ports as `stillwire run` sets it for processes that ranks spawn: unset it"
    )]
    ParentJob { text: std::ffi::OsString },
    #[error("the system gives no random numbers")]
    Random,
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

fn find() -> Result<Identity, KeyError> {
    let key = key_at(&key_path())?;
    if let Some(ParentJob { job, life, auth, .. }) = parent_job()? {
        return Ok(Identity { job: *job, life: *life, key: JobKey(key), auth: *auth });
    }
    // Everybody with the key is of one job: programs that meet later (connect, spawn) have to understand each other.
    let job = JobId(xxhash_rust::xxh3::xxh3_128(&key));
    Ok(Identity { job, life: Life { counter: 1, nonce: 0 }, key: JobKey(key), auth: AuthLevel::Header })
}

/// The ranks that have spawned this process, if any have.
fn parent_job() -> Result<Option<&'static ParentJob>, KeyError> {
    static PARENT_JOB: OnceLock<Result<Option<ParentJob>, std::ffi::OsString>> = OnceLock::new();
    let parent_job = PARENT_JOB.get_or_init(|| match std::env::var_os(PARENT_JOB_VARIABLE) {
        Some(text) => text.to_str().and_then(ParentJob::parse).map(Some).ok_or(text),
        None => Ok(None),
    });
    parent_job.as_ref().map(Option::as_ref).map_err(|text| KeyError::ParentJob { text: text.clone() })
}

/// Where a port of those ranks is, if it is not where its rank says.
pub(crate) fn moved(port: PortId) -> Option<&'static [RawAddress]> {
    let parent_job = parent_job().ok()??;
    parent_job.moved.get(&port).map(Vec::as_slice)
}

fn key_path() -> PathBuf {
    if let Some(path) = std::env::var_os(KEY_FILE_VARIABLE) {
        return path.into();
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute() && home.is_dir());
    match home {
        Some(home) => home.join(".stillwire").join("key"),
        None => PathBuf::from(format!("/tmp/stillwire-{}", nix::unistd::geteuid())).join("key"),
    }
}

/// Reads the key, making it first if there is none. Several processes may try at once: one wins, all read the same.
pub(crate) fn key_at(path: &Path) -> Result<[u8; KEY_BYTES], KeyError> {
    let failed = |source| KeyError::File { path: path.to_owned(), source };
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            make_key(path)?;
            fs::File::open(path).map_err(failed)?
        }
        Err(error) => return Err(failed(error)),
    };
    let metadata = file.metadata().map_err(failed)?;
    let (owner, user) = (metadata.uid(), nix::unistd::geteuid().as_raw());
    let mode = metadata.mode() & 0o777;
    if owner != user || mode & 0o077 != 0 {
        return Err(KeyError::Exposed { path: path.to_owned(), owner, user, mode });
    }
    let mut bytes = Vec::new();
    file.take(KEY_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    bytes.as_slice().try_into().map_err(|_| KeyError::Length { path: path.to_owned(), found: bytes.len() })
}

fn make_key(path: &Path) -> Result<(), KeyError> {
    let failed = |source| KeyError::File { path: path.to_owned(), source };
    let mut key = [0; KEY_BYTES];
    getrandom::fill(&mut key).map_err(|_| KeyError::Random)?;
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    }
    let draft =
        path.with_extension(format!("{}.{:08x}", std::process::id(), crate::address::random_port().0));
    let written = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)
        .and_then(|mut file| file.write_all(&key));
    // A link appears whole or not at all, and never in the place of another one.
    let linked = written.and_then(|()| match fs::hard_link(&draft, path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    });
    let _ = fs::remove_file(&draft);
    linked.map_err(failed)
}

/// The IP address at which peers find this process.
///
/// What a person says counts. Else, if the launcher says that all ranks are on this host, the loopback address, which no
/// stranger reaches; else the address of the interface that leads out of this host, or loopback if none does.
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

/// Ranks on this host and ranks of the job, as launchers say it: hydra (MPICH, Intel MPI), Open MPI.
const LOCAL_AND_ALL: [(&str, &str); 2] =
    [("MPI_LOCALNRANKS", "PMI_SIZE"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE")];

fn all_on_this_host() -> bool {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    LOCAL_AND_ALL
        .iter()
        .any(|(local, all)| number(local).zip(number(all)).is_some_and(|(local, all)| local == all))
}

/// The source address of the default route; nothing is sent for it.
fn outward_ip() -> Option<IpAddr> {
    // RFC 5737: an address for documentation, which no host has.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_unspecified()).then_some(ip)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_key_is_made_once_and_for_the_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep").join("key");
        let keys: Vec<_> = std::thread::scope(|scope| {
            let readers: Vec<_> = (0..8).map(|_| scope.spawn(|| key_at(&path).unwrap())).collect();
            readers.into_iter().map(|reader| reader.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0]) && keys[0] != [0; KEY_BYTES]);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no draft stays");
    }

    #[test]
    fn a_key_that_others_can_read_or_that_is_damaged_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        key_at(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(key_at(&path), Err(KeyError::Exposed { mode: 0o644, .. })));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, b"short").unwrap();
        assert!(matches!(key_at(&path), Err(KeyError::Length { found: 5, .. })));
    }
}
