//! Rails that are captured: they behave as before, and their frames are in their files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use drivers::capture::CaptureDriver;
use drivers::capture::pcapng::{self, Direction};
use drivers::conformance::Fixture;
use drivers::mem::Hub;
use drivers::shm::{ShmConfig, ShmDriver};
use drivers::udp::{UdpConfig, UdpDriver};
use drivers::{Driver, Payload, Wake};

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("stillwire-capture-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder for temporary files");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Captured<F>(F, Folder);

impl<F: Fixture> Fixture for Captured<F> {
    fn open(&mut self) -> Box<dyn Driver> {
        Box::new(CaptureDriver::open(self.0.open(), &self.1.0).expect("a folder"))
    }
}

struct Memory(Hub);

impl Fixture for Memory {
    fn open(&mut self) -> Box<dyn Driver> {
        Box::new(self.0.open().expect("a port of the hub"))
    }
}

struct Sockets;

impl Fixture for Sockets {
    fn open(&mut self) -> Box<dyn Driver> {
        let here = "127.0.0.1:0".parse().expect("an address");
        Box::new(UdpDriver::open(&UdpConfig::new(here)).expect("a socket"))
    }
}

drivers::conformance_suite!(memory, Ok::<_, String>(Captured(Memory(Hub::new()), Folder::new())));
drivers::conformance_suite!(udp, Ok::<_, String>(Captured(Sockets, Folder::new())));

fn files(folder: &Path) -> Vec<Vec<u8>> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("a file")).collect()
}

#[test]
fn what_goes_over_a_rail_stands_in_its_file() {
    let mut fixture = Captured(Sockets, Folder::new());
    let (mut a, mut b) = (fixture.open(), fixture.open());
    let to = a.resolve(&b.local_address()).expect("on this host");
    for (head, payload) in [("one", ""), ("two", " with a payload")] {
        a.lease().expect("room")[..3].copy_from_slice(head.as_bytes());
        a.commit(to, 3, Payload::from_static(payload.as_bytes()));
    }
    a.flush().expect("a live rail");
    let mut came = 0;
    while came < 2 {
        assert_eq!(b.wait(Duration::from_secs(20)).expect("a live rail"), Wake::Frame);
        came += b.receive(2, &mut |_| ()).expect("a live rail");
    }
    drop((a, b));
    let files = files(&fixture.1.0);
    let [sent, received] = &files[..] else { panic!("{} files", files.len()) };
    for (file, direction) in [(sent, Direction::Out), (received, Direction::In)] {
        let capture = pcapng::read(file).expect("a capture");
        assert_eq!(capture.damage, None);
        assert!(capture.name.starts_with("udp 127.0.0.1:"), "{}", capture.name);
        let bytes: Vec<&[u8]> = capture.packets.iter().map(|packet| packet.bytes).collect();
        assert_eq!(bytes, [&b"one"[..], b"two with a payload"]);
        assert!(capture.packets.iter().all(|packet| packet.direction == Some(direction)));
        assert!(capture.packets.iter().all(|packet| packet.to.is_some() == (direction == Direction::Out)));
        assert!(capture.packets.is_sorted_by_key(|packet| packet.at_ns));
    }
}

/// Frames that leave without a lease, and payloads that the receiver fetches by itself: as shared memory has them.
#[test]
fn every_way_over_a_rail_stands_in_its_file() {
    let folder = Folder::new();
    let open = || {
        let rail = ShmDriver::open(&ShmConfig::default()).expect("shared memory");
        CaptureDriver::open(rail, &folder.0).expect("a folder")
    };
    let (mut a, mut b) = (open(), open());
    let to = a.resolve(&b.local_address()).expect("on this host");
    b.resolve(&a.local_address()).expect("on this host");
    const LARGE_BYTES: u32 = 64 << 10;
    let large = Arc::new(vec![7; LARGE_BYTES as usize]);
    let mut stage = |head: &[u8], payload| {
        a.lease().expect("room")[..head.len()].copy_from_slice(head);
        a.commit(to, head.len(), payload);
        a.flush().expect("a live rail");
    };
    stage(b"the first one claims a ring", Payload::EMPTY);
    stage(b"head", Payload::shared(&large, 0..large.len()).expect("in range"));
    let until = Instant::now() + Duration::from_secs(20);
    let mut came = 0;
    while came < 3 {
        assert!(Instant::now() < until, "{came} frames have come");
        came += b.receive_deferred(8, &mut |_, _| ()).expect("a live rail");
        a.flush().expect("a live rail");
        if came == 2 && a.send_fast(to, b"short") {
            came += b.receive_deferred(8, &mut |_, _| ()).expect("a live rail");
        }
    }
    drop((a, b));
    let whole_bytes = [27, 4 + LARGE_BYTES, 5];
    for (file, direction) in files(&folder.0).iter().zip([Direction::Out, Direction::In]) {
        let capture = pcapng::read(file).expect("a capture");
        assert!(capture.packets.iter().all(|packet| packet.direction == Some(direction)));
        let whole: Vec<u32> = capture.packets.iter().map(|packet| packet.whole_bytes).collect();
        assert_eq!(whole, whole_bytes, "{direction:?}");
    }
}

/// An image of the process must neither hold the file nor take its descriptor for one of the program's.
#[test]
fn the_file_is_one_of_the_rails_descriptors() {
    let folder = Folder::new();
    let rail = Hub::new().open().expect("a port");
    let bare = rail.descriptors().len();
    let captured = CaptureDriver::open(rail, &folder.0).expect("a folder");
    let targets: Vec<PathBuf> = captured
        .descriptors()
        .iter()
        .filter_map(|descriptor| std::fs::read_link(format!("/proc/self/fd/{descriptor}")).ok())
        .collect();
    assert_eq!(targets.len(), bare + 1);
    assert!(targets.iter().any(|target| target.starts_with(&folder.0)), "{targets:?}");
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let hub = Hub::new();
    let rail = hub.open().expect("a port");
    let error = CaptureDriver::open(rail, Path::new("/nonexistent/captures")).err().expect("no folder");
    assert!(error.to_string().contains("/nonexistent/captures/"), "{error}");
}
