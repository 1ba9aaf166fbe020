//! A wrapper that writes down every frame of any driver, as a pcapng file.
//!
//! Sent frames are written at their commit, received ones when they are passed on. Frames that the kernel loses are not
//! in the file; frames that a `drain` discards are. A payload that the receiver fetches by itself is not in the file,
//! only its length. A file that cannot be written, or has become too long, ends; the rail goes on.

pub mod pcapng;

use core::ops::Range;
use core::task::Poll;
use core::time::Duration;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path as FilePath, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use transport::{AddressId, RawAddress};

use crate::counters::Counters;
use crate::driver::{Armed, Caps, Driver, EachFrame, Notice, Path, Wake};
use crate::error::DriverError;
use crate::limits::CAPTURE_BYTES_MAX;
use crate::payload::Payload;
use crate::udp::UdpAddress;
use pcapng::{Direction, Packet};

/// Names the folder to which every rail of the process is captured.
pub const CAPTURE_VARIABLE: &str = "STILLWIRE_PCAP";

/// No file to capture to.
#[derive(Debug, thiserror::Error)]
#[error(
    "{path} cannot be written ({error}): {CAPTURE_VARIABLE} (--pcap) needs an existing folder",
    path = path.display()
)]
pub struct CaptureError {
    /// The file.
    pub path: PathBuf,
    /// The system's error.
    pub error: std::io::Error,
}

/// A driver whose frames are written down.
pub struct CaptureDriver<D> {
    inner: D,
    record: Record,
    /// The address of each peer, as comments give it.
    peers: Vec<String>,
    /// A buffer is leased; a commit without one is no frame.
    leased: bool,
}

impl<D: Driver> CaptureDriver<D> {
    /// Captures `inner` to a file of its own in `folder`: `PROCESS-N-KIND.pcapng`, with the first N for which there is none.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn open(inner: D, folder: &FilePath) -> Result<CaptureDriver<D>, CaptureError> {
        let (process, kind) = (std::process::id(), inner.caps().kind);
        let mut number = 0;
        let (path, file) = loop {
            let path = folder.join(format!("{process}-{number}-{kind}.pcapng"));
            match create_new(&path) {
                Ok(file) => break (path, file),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(CaptureError { path, error }),
            }
        };
        let name = format!("{kind} {}", place(&inner.local_address()));
        let mut record = Record::new(path, file, CAPTURE_BYTES_MAX);
        pcapng::emit_head(&name, &mut record.block);
        record.write();
        Ok(CaptureDriver { inner, record, peers: Vec::new(), leased: false })
    }
}

/// A file that only its owner may read: it holds what the ranks send.
fn create_new(path: &FilePath) -> std::io::Result<File> {
    File::options().write(true).create_new(true).mode(0o600).open(path)
}

fn place(address: &RawAddress) -> String {
    match UdpAddress::try_from(address) {
        Ok(UdpAddress(address)) => address.to_string(),
        Err(_) => format!("{address:?}"),
    }
}

/// The file.
struct Record {
    path: PathBuf,
    /// `None`: it has ended.
    to: Option<BufWriter<File>>,
    /// The frame and the block that are written just now.
    frame: Vec<u8>,
    block: Vec<u8>,
    /// The remaining limit of the file.
    left_bytes: u64,
}

impl Record {
    fn new(path: PathBuf, file: File, left_bytes: u64) -> Record {
        Record { path, to: Some(BufWriter::new(file)), frame: Vec::new(), block: Vec::new(), left_bytes }
    }

    fn packet(&mut self, direction: Direction, pieces: [&[u8]; 2], fetched_bytes: usize, to: Option<&str>) {
        if self.to.is_none() {
            return;
        }
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.frame.clear();
        pieces.iter().for_each(|piece| self.frame.extend_from_slice(piece));
        let packet = Packet {
            at_ns: u64::try_from(at.as_nanos()).unwrap_or(u64::MAX),
            direction: Some(direction),
            whole_bytes: u32::try_from(self.frame.len() + fetched_bytes).unwrap_or(u32::MAX),
            bytes: &self.frame,
            to,
        };
        pcapng::emit_packet(&packet, &mut self.block);
        self.write();
    }

    fn write(&mut self) {
        let left_bytes = self.left_bytes.checked_sub(self.block.len() as u64);
        if let (Some(left_bytes), Some(to)) = (left_bytes, self.to.as_mut()) {
            self.left_bytes = left_bytes;
            if let Err(error) = to.write_all(&self.block) {
                self.fail(&error);
            }
        } else if self.to.is_some() {
            self.flush();
            self.end("it is as long as a capture may become");
        }
        self.block.clear();
    }

    /// Lets others read all packets so far.
    fn flush(&mut self) {
        if let Some(Err(error)) = self.to.as_mut().map(BufWriter::flush) {
            self.fail(&error);
        }
    }

    /// Stops all writing, even of buffered packets.
    fn fail(&mut self, error: &std::io::Error) {
        if let Some(to) = self.to.take() {
            let _ = to.into_parts();
        }
        self.end(&error.to_string());
    }

    fn end(&mut self, why: &str) {
        tracing::warn!(path = %self.path.display(), why, "a capture ends here; its rail goes on");
        self.to = None;
    }
}

impl<D: Driver> Driver for CaptureDriver<D> {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn counters(&self) -> &Counters {
        self.inner.counters()
    }

    fn local_address(&self) -> RawAddress {
        self.inner.local_address()
    }

    fn resolve(&mut self, address: &RawAddress) -> Result<AddressId, DriverError> {
        let id = self.inner.resolve(address)?;
        let at = id.0 as usize;
        if at >= self.peers.len() {
            self.peers.resize(at + 1, String::new());
        }
        self.peers[at] = place(address);
        Ok(id)
    }

    fn forget(&mut self, address: AddressId) {
        self.inner.forget(address);
    }

    fn path(&self, to: AddressId) -> Option<Path> {
        self.inner.path(to)
    }

    fn lease(&mut self) -> Option<&mut [u8]> {
        let buffer = self.inner.lease();
        self.leased = buffer.is_some();
        buffer
    }

    fn commit(&mut self, to: AddressId, frame_bytes: usize, payload: Payload) {
        // Until the commit, a lease gives the same buffer with its contents.
        if core::mem::take(&mut self.leased)
            && let Some(frame) = self.inner.lease()
        {
            let pieces = [&frame[..frame_bytes.min(frame.len())], payload.as_slice()];
            let peer = self.peers.get(to.0 as usize).map(String::as_str);
            self.record.packet(Direction::Out, pieces, 0, peer);
        }
        self.inner.commit(to, frame_bytes, payload);
    }

    fn send_fast(&mut self, to: AddressId, frame: &[u8]) -> bool {
        let sent = self.inner.send_fast(to, frame);
        if sent {
            let peer = self.peers.get(to.0 as usize).map(String::as_str);
            self.record.packet(Direction::Out, [frame, &[]], 0, peer);
        }
        sent
    }

    fn flush(&mut self) -> Result<usize, DriverError> {
        self.inner.flush()
    }

    fn receive(&mut self, frames_max: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, DriverError> {
        let record = &mut self.record;
        self.inner.receive(frames_max, &mut |frame| {
            record.packet(Direction::In, [frame, &[]], 0, None);
            each(frame);
        })
    }

    fn receive_deferred(
        &mut self,
        frames_max: usize,
        each: &mut EachFrame<'_>,
    ) -> Result<usize, DriverError> {
        let record = &mut self.record;
        self.inner.receive_deferred(frames_max, &mut |frame, deferred| {
            let fetched_bytes = deferred.as_ref().map_or(0, |deferred| deferred.bytes());
            record.packet(Direction::In, [frame, &[]], fetched_bytes, None);
            each(frame, deferred);
        })
    }

    fn pull(&mut self, from: AddressId, place: u64, to: &mut [u8]) -> bool {
        self.inner.pull(from, place, to)
    }

    fn is_quiet(&self) -> bool {
        self.inner.is_quiet()
    }

    fn staged_total(&self) -> u64 {
        self.inner.staged_total()
    }

    fn completed_total(&self) -> u64 {
        self.inner.completed_total()
    }

    fn drain(&mut self) -> Result<Poll<()>, DriverError> {
        self.record.flush();
        self.inner.drain()
    }

    fn device_mappings(&self) -> Vec<Range<usize>> {
        self.inner.device_mappings()
    }

    fn descriptors(&self) -> Vec<RawFd> {
        let file = self.record.to.iter().map(|to| to.get_ref().as_raw_fd());
        self.inner.descriptors().into_iter().chain(file).collect()
    }

    fn poll_notice(&mut self) -> Option<Notice> {
        self.inner.poll_notice()
    }

    fn arm(&mut self) -> Result<Armed, DriverError> {
        self.record.flush();
        self.inner.arm()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }

    fn wait(&mut self, timeout: Duration) -> Result<Wake, DriverError> {
        self.record.flush();
        self.inner.wait(timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file without a name.
    fn unnamed() -> File {
        let path = std::env::temp_dir().join(format!("stillwire-record-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).expect("a new file");
        std::fs::remove_file(&path).expect("just made");
        file
    }

    #[test]
    fn a_file_ends_before_it_is_too_long_and_what_it_has_is_whole() {
        const LEFT_BYTES: u64 = 1000;
        let file = unnamed();
        let written = file.try_clone().expect("a descriptor");
        let mut record = Record::new(PathBuf::new(), file, LEFT_BYTES);
        pcapng::emit_head("a rail", &mut record.block);
        record.write();
        let mut packets = 0;
        while record.to.is_some() {
            record.packet(Direction::Out, [&[7; 60], &[]], 0, None);
            packets += 1;
            assert!(packets < 100, "the file does not end");
        }
        let mut bytes = vec![0; written.metadata().expect("a file").len().try_into().expect("a short file")];
        std::os::unix::fs::FileExt::read_exact_at(&written, &mut bytes, 0).expect("its bytes");
        assert!(bytes.len() as u64 <= LEFT_BYTES, "{} bytes", bytes.len());
        let capture = pcapng::read(&bytes).expect("a capture");
        assert_eq!((capture.packets.len(), capture.damage), (packets - 1, None));
    }

    #[test]
    fn a_capture_is_its_owner_s_alone_and_replaces_nothing() {
        use std::os::unix::fs::PermissionsExt as _;
        let path = std::env::temp_dir().join(format!("stillwire-capture-{}", std::process::id()));
        let file = create_new(&path).expect("a new file");
        let again = create_new(&path).map(drop);
        std::fs::remove_file(&path).expect("just made");
        assert_eq!(file.metadata().expect("a file").permissions().mode() & 0o777, 0o600);
        assert!(again.is_err(), "somebody else's file is not written to");
    }

    #[test]
    fn after_an_error_nothing_is_tried_again() {
        let full = File::options().write(true).open("/dev/full").expect("a device of every Linux");
        let mut record = Record::new(PathBuf::from("/dev/full"), full, u64::MAX);
        record.packet(Direction::In, [&[1], &[2]], 0, None);
        assert!(record.to.is_some(), "one packet is only buffered");
        record.flush();
        assert!(record.to.is_none(), "the device is full");
        record.packet(Direction::In, [&[1], &[2]], 0, None);
    }
}
