//! A peer whose counters contradict ours, as after a restart from the wrong state: all operations that wait for it end
//! with an error.

use std::ptr::null_mut;

use drivers::udp::{UdpConfig, UdpDriver};
use endpoint::{Completion, Endpoint, EndpointConfig};
use stillwire_fi::abi::*;
use transport::{
    Epoch, FrozenPort, Instant, JobId, JobKey, Life, Port, PortConfig, PortId, RawAddress, Restart,
};

use crate::processes::at;
use crate::rig::{ADDRESS_BYTES, Done, Rig, accepted, pair, pattern};

const LIFE: Life = Life { counter: 1, nonce: 0 };

/// Bytes that need a payload of their own.
const LONG: usize = 300_000;
/// Bytes that are asked for in pieces.
const PIECES: usize = 10 << 20;

/// Port and first rail of an address, as `rank/provider/src/address.rs` lays it out.
fn parse(address: &[u8; ADDRESS_BYTES]) -> (PortId, RawAddress) {
    let port = PortId(u64::from_le_bytes(address[2..10].try_into().unwrap()));
    // The rails are the same on all endpoints; the one with UDP is found by trying.
    let bytes = usize::from(address[10]);
    (port, RawAddress::new(&address[11..11 + bytes]).unwrap())
}

fn address(port: PortId, rail: &RawAddress) -> [u8; ADDRESS_BYTES] {
    let mut address = [0; ADDRESS_BYTES];
    address[..2].copy_from_slice(b"S\x02");
    address[2..10].copy_from_slice(&port.0.to_le_bytes());
    address[10] = rail.len();
    address[11..11 + rail.as_bytes().len()].copy_from_slice(rail.as_bytes());
    address
}

/// A peer of the job with a port that reports that it has had `expected` frames of `other`. It is silent
/// until that is known to it.
struct Restarted {
    frozen: FrozenPort,
    rail: UdpDriver,
    id: PortId,
}

impl Restarted {
    fn new(other: PortId, expected: u64) -> Restarted {
        let key = std::fs::read(std::env::var_os("STILLWIRE_KEY_FILE").unwrap()).unwrap();
        let config = PortConfig::new(JobId(xxhash_rust::xxh3::xxh3_128(&key)).tag());
        let key = JobKey(key.try_into().unwrap());
        let id = PortId(0x4000_0000_0000_0777);
        let mut port = Port::new(config.clone(), id, LIFE, Epoch(0), Some(&key));
        port.connect(other);
        let mut state = port.freeze(Instant::from_nanos(0)).state();
        state.links[0].expected = expected;
        let frozen = FrozenPort::from_state(config, Some(&key), state).unwrap().0;
        let rail = UdpDriver::open(&UdpConfig::new("127.0.0.1:0".parse().unwrap())).unwrap();
        Restarted { frozen, rail, id }
    }

    fn address(&self) -> [u8; ADDRESS_BYTES] {
        use drivers::Driver as _;
        address(self.id, &self.rail.local_address())
    }

    /// It speaks from now on.
    fn start(self, rig: &Rig) -> Endpoint {
        let config = EndpointConfig { helper: false, ..EndpointConfig::default() };
        let restart = Restart::in_life(LIFE);
        let endpoint =
            Endpoint::restart(self.frozen, Default::default(), vec![Box::new(self.rail)], restart, config)
                .unwrap();
        let bytes = rig.address();
        let (port, first) = parse(&bytes);
        // Behind the first rail follows the second.
        let behind = 11 + usize::from(first.len());
        let second = usize::from(bytes[behind]);
        let second = RawAddress::new(&bytes[behind + 1..behind + 1 + second]).unwrap();
        endpoint.connect(port, &[first, second]).unwrap();
        endpoint
    }
}

#[test]
fn what_waits_for_a_peer_that_contradicts_us_ends_with_an_error() {
    let (one, two, to_two, _) = pair();
    let (port, _) = parse(&one.address());
    let restarted = Restarted::new(port, 1000);
    let to = one.insert(&restarted.address());
    let short = [1u8; 8];
    let long = pattern(LONG, 1);
    let many = pattern(PIECES, 2);
    let (mut into, mut read, mut read_long, mut read_many) =
        ([0u8; 8], [0u8; 8], vec![0u8; LONG], vec![0u8; PIECES]);
    let (mut fetched, mut kept) = ([0u64; 1], [0u8; 8]);
    // SAFETY: buffers outlive their completions.
    unsafe {
        let start = short.as_ptr().cast();
        let (plain, tagged, remote) = (one.plain(), one.tagged(), one.remote());
        let mut message: FiMsg = core::mem::zeroed();
        let vector = libc::iovec { iov_base: short.as_ptr().cast_mut().cast(), iov_len: 8 };
        message.msg_iov = &raw const vector;
        message.iov_count = 1;
        message.addr = to;
        message.context = at(1);
        let received = flag::DELIVERY_COMPLETE | flag::COMPLETION;
        accepted(&[], || (plain.sendmsg)(one.ep, &raw const message, received));
        accepted(&[], || (tagged.send)(one.ep, long.as_ptr().cast(), LONG, null_mut(), to, 7, at(2)));
        accepted(&[], || (tagged.recv)(one.ep, into.as_mut_ptr().cast(), 8, null_mut(), to, 7, 0, at(3)));
        accepted(&[], || (remote.write)(one.ep, start, 8, null_mut(), to, 0, 1, at(4)));
        accepted(&[], || (remote.write)(one.ep, long.as_ptr().cast(), LONG, null_mut(), to, 0, 1, at(5)));
        accepted(&[], || (remote.write)(one.ep, many.as_ptr().cast(), PIECES, null_mut(), to, 0, 1, at(6)));
        accepted(&[], || (remote.read)(one.ep, read.as_mut_ptr().cast(), 8, null_mut(), to, 0, 1, at(7)));
        accepted(&[], || {
            (remote.read)(one.ep, read_long.as_mut_ptr().cast(), LONG, null_mut(), to, 0, 1, at(8))
        });
        accepted(&[], || {
            (remote.read)(one.ep, read_many.as_mut_ptr().cast(), PIECES, null_mut(), to, 0, 1, at(9))
        });
        let (uint64, sum) = (7, 2);
        accepted(&[], || {
            let result = fetched.as_mut_ptr().cast();
            let fetch = one.atomics().readwrite;
            fetch(one.ep, start, 1, null_mut(), result, null_mut(), to, 0, 1, uint64, sum, at(10))
        });
        // Anybody's message may come into this one.
        accepted(&[], || {
            (tagged.recv)(one.ep, kept.as_mut_ptr().cast(), 8, null_mut(), ADDR_UNSPEC, 8, 0, at(11))
        });
    }
    assert_eq!(one.poll(), None, "the peer is silent");

    let peer = restarted.start(&one);
    let mut failed = Vec::new();
    let started = std::time::Instant::now();
    while failed.len() < 10 {
        let _: Option<Completion> = peer.poll();
        if let Some(Done { context, error, .. }) = one.poll() {
            assert_eq!(error, Some((libc::ECONNABORTED, 0)), "request {context}");
            failed.push(context);
        }
        assert!(started.elapsed().as_secs() < 60, "only {failed:?} have ended");
    }
    failed.sort_unstable();
    assert_eq!(failed, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    let aborted = -(libc::ECONNABORTED as isize);
    // SAFETY: refused at once.
    unsafe {
        assert_eq!((one.tagged().inject)(one.ep, short.as_ptr().cast(), 8, to, 7), aborted);
        assert_eq!(
            (one.remote().read)(one.ep, read.as_mut_ptr().cast(), 8, null_mut(), to, 0, 1, at(1)),
            aborted
        );
        // A receive from it is accepted, and fails.
        accepted(&[], || {
            (one.tagged().recv)(one.ep, into.as_mut_ptr().cast(), 8, null_mut(), to, 7, 0, at(12))
        });
    }
    let done = one.next(&[]);
    assert_eq!((done.context, done.error), (12, Some((libc::ECONNABORTED, 0))));

    // Others are served as ever.
    let to_one = two.insert(&one.address());
    // SAFETY: injected bytes are copied at once.
    accepted(&[&one], || unsafe { (two.tagged().inject)(two.ep, b"as usual".as_ptr().cast(), 8, to_one, 8) });
    let done = one.next(&[&two]);
    assert_eq!((done.context, done.error, &kept), (11, None, b"as usual"));
    // SAFETY: injected bytes are copied at once.
    accepted(&[&two], || unsafe { (one.plain().inject)(one.ep, short.as_ptr().cast(), 8, to_two) });
}
