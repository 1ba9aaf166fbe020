//! Rings with a kernel of our own on their other side, because no device here reads and writes chunks itself: it asks
//! to be called, or does not. The rings lie in a file in memory, and one end of a pair stands for the socket, whose
//! other end sees each call.

use std::os::unix::net::UnixDatagram;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

use super::*;

const CHUNK_BYTES: usize = 2048;
/// Where the words of a ring are, and then its entries.
const AT: libc::xdp_ring_offset = libc::xdp_ring_offset { producer: 0, consumer: 64, flags: 128, desc: 192 };
/// Room for any ring, in pages.
const RING_BYTES: usize = 64 << 10;

/// The kernel's side of a ring, in the file behind the same page.
struct Other<T>(Mapping, core::marker::PhantomData<T>);

impl<T: Copy> Other<T> {
    fn word(&self, at: u64) -> &AtomicU32 {
        // SAFETY: an aligned word of the mapping, which both sides access atomically.
        unsafe { &*self.0.start.as_ptr().add(usize::try_from(at).expect("near")).cast::<AtomicU32>() }
    }

    fn produced(&self) -> u32 {
        self.word(AT.producer).load(Ordering::Acquire)
    }

    fn consumed(&self) -> u32 {
        self.word(AT.consumer).load(Ordering::Acquire)
    }

    fn ask(&self, is_wakeup_needed: bool) {
        let flags = if is_wakeup_needed { libc::XDP_RING_NEED_WAKEUP } else { 0 };
        self.word(AT.flags).store(flags, Ordering::Relaxed);
    }

    fn entry(&self, index: u32, entries: u32) -> *mut T {
        let at = usize::try_from(AT.desc).expect("near") + (index & (entries - 1)) as usize * size_of::<T>();
        assert!(at + size_of::<T>() <= self.0.bytes);
        self.0.start.as_ptr().wrapping_add(at).cast()
    }

    fn produce(&self, value: T) {
        let at = self.produced();
        assert!(at.wrapping_sub(self.consumed()) < RING_ENTRIES, "full");
        // SAFETY: an entry of the mapping that the rail does not read before the store below.
        unsafe { self.entry(at, RING_ENTRIES).write(value) };
        self.word(AT.producer).store(at.wrapping_add(1), Ordering::Release);
    }

    fn consume(&self, entries: u32) -> Option<T> {
        let at = self.consumed();
        if at == self.produced() {
            return None;
        }
        // SAFETY: an entry of the mapping that the rail has published, and does not write before the store below.
        let value = unsafe { self.entry(at, entries).read() };
        self.word(AT.consumer).store(at.wrapping_add(1), Ordering::Release);
        Some(value)
    }
}

struct Kernel {
    fill: Other<u64>,
    completion: Other<u64>,
    receive: Other<libc::xdp_desc>,
    transmit: Other<libc::xdp_desc>,
    calls: UnixDatagram,
}

impl Kernel {
    /// With a queue that it is the other side of.
    fn new() -> (Kernel, Queue) {
        let file = memfd_create(c"rings", MFdFlags::MFD_CLOEXEC).expect("a file");
        ftruncate(&file, 4 * i64::try_from(RING_BYTES).expect("small")).expect("room");
        let page = |ring: usize| i64::try_from(ring * RING_BYTES).expect("small");
        let (ours, calls) = UnixDatagram::pair().expect("a pair");
        calls.set_nonblocking(true).expect("a socket");
        fn other<T>(file: &OwnedFd, page: i64) -> Other<T> {
            let mapping = Mapping::ring(file.as_fd(), page, RING_BYTES).expect("memory");
            Other(mapping, core::marker::PhantomData)
        }
        let queue = Queue {
            fill: Ring::map(file.as_fd(), page(0), &AT).expect("memory"),
            completion: Ring::map(file.as_fd(), page(1), &AT).expect("memory"),
            receive: Ring::map(file.as_fd(), page(2), &AT).expect("memory"),
            transmit: Ring::map(file.as_fd(), page(3), &AT).expect("memory"),
            parts: Vec::new(),
            fd: ours.into(),
        };
        let kernel = Kernel {
            fill: other(&file, page(0)),
            completion: other(&file, page(1)),
            receive: other(&file, page(2)),
            transmit: other(&file, page(3)),
            calls,
        };
        (kernel, queue)
    }

    /// Calls to send since the last question.
    fn sends(&self) -> usize {
        core::iter::from_fn(|| self.calls.recv(&mut []).ok()).count()
    }

    /// A call to receive takes this away.
    fn await_receive(&self) {
        assert_eq!(self.calls.send(&[]).ok(), Some(0));
    }

    fn completes(&self, frames: usize) {
        for _ in 0..frames {
            let sent = self.transmit.consume(RING_ENTRIES).expect("a frame to send");
            self.completion.produce(sent.addr);
        }
    }

    fn delivers(&self, chunk: u64, len: u32) {
        self.receive.produce(libc::xdp_desc { addr: chunk + 256, len, options: 0 });
    }
}

/// Whether the call to receive that was awaited has been made.
fn was_called_to_receive(queue: &Queue) -> bool {
    // SAFETY: no buffer.
    let rc = unsafe { libc::recv(queue.fd.as_raw_fd(), core::ptr::null_mut(), 0, libc::MSG_DONTWAIT) };
    rc < 0
}

fn open(queues: usize, zero_copy: bool) -> (Vec<Kernel>, Socket, Vec<u64>) {
    open_for(Layout::new(1500, queues, false), zero_copy)
}

fn open_for(layout: Layout, zero_copy: bool) -> (Vec<Kernel>, Socket, Vec<u64>) {
    let umem = Mapping::anonymous(layout.bytes()).expect("memory");
    let (kernels, mut mapped): (Vec<Kernel>, Vec<Queue>) = (0..layout.queues).map(|_| Kernel::new()).unzip();
    let slots: Vec<u64> = layout.send_slots().collect();
    let socket = Socket {
        front: mapped.remove(0),
        others: mapped,
        umem,
        chunk_bytes: layout.chunk_bytes,
        slots_at: usize::try_from(slots[0]).expect("near"),
        slot_bytes: layout.slot_bytes(),
        slot_shift: layout.slot_bytes().trailing_zeros(),
        unsent: vec![0; slots.len()],
        whole: Vec::new(),
        zero_copy,
    };
    (kernels, socket, slots)
}

#[test]
fn a_device_that_sends_by_itself_is_called_only_when_it_asks() {
    let (kernels, mut socket, slots) = open(1, true);
    let [kernel] = &kernels[..] else { unreachable!() };
    assert!(socket.submit(slots[0], 128, 60));
    assert_eq!(kernel.transmit.produced(), 0, "nothing is seen before the kick");
    assert_eq!(socket.kick(false), Ok(()));
    assert_eq!((kernel.transmit.produced(), kernel.sends()), (1, 0));
    kernel.transmit.ask(true);
    assert!(socket.submit(slots[1], 128, 61));
    assert_eq!(socket.kick(false), Ok(()));
    assert_eq!((kernel.transmit.produced(), kernel.sends()), (2, 1));
    kernel.transmit.ask(false);
    assert_eq!((socket.kick(true), kernel.sends()), (Ok(()), 1), "whether the device is there still");
    assert!(socket.has_unsent());
    kernel.completes(2);
    assert!(!socket.has_unsent());
    let mut sent = Vec::new();
    socket.take_sent(|slot, number| sent.push((slot, number)));
    assert_eq!(sent, [(slots[0], 0), (slots[1], 1)]);
    assert_eq!(kernel.completion.consumed(), 2);
}

#[test]
fn a_kernel_that_copies_is_called_each_time() {
    let (kernels, mut socket, slots) = open(1, false);
    let [kernel] = &kernels[..] else { unreachable!() };
    assert!(socket.submit(slots[0], 128, 60));
    assert_eq!((socket.kick(false), kernel.sends()), (Ok(()), 1));
    // And asks for nothing when chunks are offered, regardless of its flags.
    kernel.fill.ask(true);
    kernel.await_receive();
    socket.offer(2);
    assert!(!was_called_to_receive(&socket.front));
}

#[test]
fn a_device_that_waits_for_chunks_is_woken() {
    let (kernels, mut socket, _) = open(1, true);
    let [kernel] = &kernels[..] else { unreachable!() };
    kernel.await_receive();
    socket.offer(2);
    assert_eq!(kernel.fill.produced(), 2);
    assert!(!was_called_to_receive(&socket.front), "it does not ask");
    let chunks: Vec<u64> = core::iter::from_fn(|| kernel.fill.consume(FILL_ENTRIES)).collect();
    assert_eq!(chunks, [0, CHUNK_BYTES as u64]);
    for chunk in chunks {
        kernel.delivers(chunk, 60);
    }
    kernel.fill.ask(true);
    kernel.await_receive();
    let (chunk, frame) = socket.take().expect("a frame");
    assert_eq!((chunk, frame.len()), (0, 60));
    socket.give_back(chunk);
    assert_eq!((kernel.fill.produced(), kernel.receive.consumed()), (2, 0), "not told yet");
    socket.end_taking();
    assert_eq!((kernel.fill.produced(), kernel.receive.consumed()), (3, 1));
    assert!(was_called_to_receive(&socket.front));
}

#[test]
fn a_device_that_is_gone_is_noticed_only_by_a_call() {
    let (mut kernels, mut socket, slots) = open(1, true);
    kernels.clear();
    assert!(socket.submit(slots[0], 128, 60));
    assert_eq!(socket.kick(false), Ok(()));
    let gone = socket.kick(true).expect_err("nobody is there");
    assert_eq!(gone, Errno(libc::ECONNREFUSED));
}

#[test]
fn of_several_queues_those_that_ask_are_called() {
    let (mut kernels, mut socket, slots) = open(3, true);
    // One frame to send for each queue: a frame that comes to the next brings that to the front.
    for (place, kernel) in kernels.iter().enumerate() {
        assert!(socket.submit(slots[place], 128, 60));
        assert_eq!(socket.kick(false), Ok(()));
        let next = &kernels[(place + 1) % 3];
        next.delivers((place * CHUNK_BYTES) as u64, 60);
        assert!(socket.take().is_some());
        assert_eq!(kernel.sends(), 0);
    }
    for kernel in &kernels {
        assert_eq!(kernel.transmit.produced(), 1);
    }
    kernels[1].transmit.ask(true);
    assert_eq!(socket.kick(false), Ok(()));
    assert_eq!(kernels.iter().map(Kernel::sends).collect::<Vec<_>>(), [0, 1, 0]);
    // A queue whose device takes nothing any more leaves its place to the next, and frames submitted to it are reported
    // each time.
    kernels[0].transmit.ask(true);
    kernels.remove(0);
    assert_eq!(socket.kick(false), Err(Errno(libc::ECONNREFUSED)));
    assert!(socket.submit(slots[3], 128, 60));
    assert!(socket.kick(false).is_err());
    assert_eq!(kernels.iter().map(|kernel| kernel.transmit.produced()).sum::<u32>(), 2 + 1);
}

#[test]
fn rings_go_on_where_their_numbers_begin_again() {
    let (kernels, mut socket, slots) = open(1, true);
    let [kernel] = &kernels[..] else { unreachable!() };
    let start = u32::MAX - 700;
    for (word, own, known) in [
        (&kernel.transmit, &mut socket.front.transmit.own, &mut socket.front.transmit.known),
        (&kernel.receive, &mut socket.front.receive.own, &mut socket.front.receive.known),
    ] {
        (*own, *known) = (start, start);
        word.word(AT.producer).store(start, Ordering::Release);
        word.word(AT.consumer).store(start, Ordering::Release);
    }
    for round in 0..3 {
        let mut submitted = 0;
        while socket.submit(slots[submitted % slots.len()], 128, 60) {
            submitted += 1;
        }
        assert_eq!(submitted, RING_ENTRIES as usize, "round {round}");
        assert_eq!(socket.kick(false), Ok(()));
        let sent: Vec<u64> =
            core::iter::from_fn(|| kernel.transmit.consume(RING_ENTRIES)).map(|sent| sent.addr).collect();
        let expected: Vec<u64> = (0..submitted).map(|number| slots[number % slots.len()] + 128).collect();
        assert!(sent == expected, "round {round}");
        for length in 1..=RING_ENTRIES {
            kernel.delivers(0, length);
        }
        for length in 1..=RING_ENTRIES {
            assert!(socket.has_frames());
            assert_eq!(socket.take().map(|(_, frame)| frame.len()), Some(length as usize));
        }
        assert!(!socket.has_frames() && socket.take().is_none());
        socket.end_taking();
    }
}

#[test]
fn a_frame_in_parts_waits_for_its_rest_at_its_own_queue() {
    let (kernels, mut socket, _) = open(2, true);
    let chunk = |number: usize| (number * CHUNK_BYTES) as u64;
    for (number, byte) in (0..).zip([1, 2, 3]) {
        socket.chunk(chunk(number)).fill(byte);
    }
    kernels[0].receive.produce(libc::xdp_desc { addr: 256, len: 10, options: PART });
    assert!(socket.take().is_none());
    kernels[1].delivers(chunk(2), 10);
    assert_eq!(socket.take(), Some((chunk(2), [3; 10].as_slice())));
    assert_eq!(kernels[0].fill.consume(FILL_ENTRIES), Some(0), "what was taken of the first goes back");
    kernels[0].receive.produce(libc::xdp_desc { addr: chunk(1), len: 10, options: 0 });
    let whole: Vec<u8> = [[1; 10], [2; 10]].concat();
    assert_eq!(socket.take(), Some((chunk(1), whole.as_slice())));
}

#[test]
fn a_frame_in_parts_is_submitted_whole_or_not_at_all() {
    const BYTES: usize = 9014;
    let (kernels, mut socket, slots) = open_for(Layout::new(9000, 1, true), true);
    let [kernel] = &kernels[..] else { unreachable!() };
    // All but eight entries are with the kernel: no slot's chunks, but they take their room.
    let taken = RING_ENTRIES - 8;
    socket.front.transmit.own = taken;
    assert!(socket.submit(slots[0], 128, BYTES) && socket.submit(slots[1], 128, BYTES));
    assert!(!socket.submit(slots[2], 128, BYTES), "two entries are left, and it needs three");
    assert!(socket.submit(slots[2], 128, 60) && socket.submit(slots[3], 128, 60));
    assert!(!socket.submit(slots[4], 128, 60));
    assert_eq!(socket.kick(false), Ok(()));
    kernel.transmit.word(AT.consumer).store(taken, Ordering::Release);
    let parts: Vec<libc::xdp_desc> = core::iter::from_fn(|| kernel.transmit.consume(RING_ENTRIES)).collect();
    let lengths = |range: Range<usize>| parts[range].iter().map(|part| part.len as usize).sum::<usize>();
    assert_eq!((parts.len(), lengths(0..3), lengths(3..6), lengths(6..8)), (8, BYTES, BYTES, 120));
    let goes_on: Vec<bool> = parts.iter().map(|part| part.options == PART).collect();
    assert_eq!(goes_on, [true, true, false, true, true, false, false, false]);
    assert_eq!(
        (parts[0].addr, parts[1].addr, parts[2].addr),
        (slots[0] + 128, slots[0] + 4096, slots[0] + 8192)
    );
    let mut sent = Vec::new();
    for (part, expected) in parts.iter().zip([0, 0, 1, 1, 1, 2, 3, 4]) {
        kernel.completion.produce(part.addr);
        socket.take_sent(|slot, number| sent.push((slot, number)));
        assert_eq!(sent.len(), expected, "a slot is free when its last part is sent");
    }
    assert_eq!(sent, [(slots[0], 0), (slots[1], 1), (slots[2], 2), (slots[3], 3)]);
}
