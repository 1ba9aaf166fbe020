//! Rails that are captured: they behave as before, and what went over them stands in their files.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use drivers::capture::CaptureDriver;
use drivers::capture::pcapng::{self, Direction};
use drivers::conformance::Fixture;
use drivers::mem::Hub;
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
        assert_eq!(b.wait(std::time::Duration::from_secs(20)).expect("a live rail"), Wake::Frame);
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

#[test]
fn a_folder_that_is_not_there_is_named() {
    let hub = Hub::new();
    let rail = hub.open().expect("a port");
    let error = CaptureDriver::open(rail, Path::new("/nonexistent/captures")).err().expect("no folder");
    assert!(error.to_string().contains("/nonexistent/captures/"), "{error}");
}
