//! The one place of this crate that starts threads: packets are independent of each other, so many are unpacked at once.

use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;
use std::thread;

use super::{PacketReader, PacketsError, Source, Unpacker};

/// Does `work` for each number below `jobs`, in rising order on so many threads; each has a state of its own from `state`. The first error ends
/// all.
pub fn each<T, E: Send>(
    jobs: u64,
    threads: NonZeroUsize,
    state: impl Fn() -> T + Sync,
    work: impl Fn(&mut T, u64) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let (next, is_over, failed) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::new(None));
    let run = || {
        let mut own = state();
        while !is_over.load(Ordering::Relaxed) {
            let job = next.fetch_add(1, Ordering::Relaxed);
            if job >= jobs {
                return;
            }
            if let Err(error) = work(&mut own, job) {
                is_over.store(true, Ordering::Relaxed);
                failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(error);
                return;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.get() {
            // A thread that cannot be started is one less.
            let _ = thread::Builder::new().spawn_scoped(scope, run);
        }
        run();
    });
    failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).map_or(Ok(()), Err)
}

/// The whole content: `write` gets each packet's, with its offset.
pub fn restore<S: Source + Sync + ?Sized>(
    reader: &PacketReader,
    source: &S,
    threads: NonZeroUsize,
    write: impl Fn(u64, &[u8]) -> Result<(), PacketsError> + Sync,
) -> Result<(), PacketsError> {
    let packet_bytes = u64::from(reader.footer().cut.packet_bytes());
    each(
        reader.footer().packets,
        threads,
        || (Unpacker::new(), Vec::new()),
        |(unpacker, content), packet| {
            reader.read_packet(source, unpacker, packet, content)?;
            write(packet * packet_bytes, content)
        },
    )
}
