//! The model checker's atomics, with one addition: the ordering of each access can be weakened from outside. So the
//! runner (tests/ordering) learns which orderings a model needs, without a list that somebody has to keep.

use core::panic::Location;
use core::sync::atomic::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::sync::{LazyLock, Mutex as StdMutex, MutexGuard as StdMutexGuard, PoisonError};

pub use loom::hint::spin_loop;
pub use loom::sync::{Condvar, Mutex, MutexGuard};

/// Threads. The model knows no time: a sleep lets others run.
pub mod thread {
    pub use loom::thread::{Builder, JoinHandle, current, yield_now};

    /// Lets others run.
    pub fn sleep(_: core::time::Duration) {
        yield_now();
    }
}

/// One ordering that can be weakened: where the access stands, and which half of it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Site {
    /// Path of the source file, as the compiler was given it.
    pub file: String,
    /// Line and column of the access.
    pub line: u32,
    /// Column of the access.
    pub column: u32,
    /// What of it is weakened.
    pub half: Half,
}

/// What of an access can be weakened.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Half {
    /// What it reads orders nothing behind it.
    Acquire,
    /// What it writes orders nothing before it.
    Release,
    /// The reading of an exchange that fails orders nothing.
    Failure,
    /// The fence is left out.
    Fence,
}

fn locked<T>(mutex: &StdMutex<T>) -> StdMutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

static MET: StdMutex<BTreeSet<Site>> = StdMutex::new(BTreeSet::new());
static WEAKENED: StdMutex<Option<Site>> = StdMutex::new(None);

/// The orderings that could have been weakened so far.
#[must_use]
pub fn met() -> Vec<Site> {
    locked(&MET).iter().cloned().collect()
}

/// Weakens one ordering from now on.
pub fn weaken(site: Site) {
    *locked(&WEAKENED) = Some(site);
}

#[track_caller]
fn is_weakened(half: Half) -> bool {
    let at = Location::caller();
    let site = Site { file: at.file().to_owned(), line: at.line(), column: at.column(), half };
    let weakened = locked(&WEAKENED).as_ref() == Some(&site);
    locked(&MET).insert(site);
    weakened
}

/// The ordering in use: `order`, or a weaker one.
#[track_caller]
fn used(order: Ordering) -> Ordering {
    let acquires = matches!(order, Ordering::Acquire | Ordering::AcqRel | Ordering::SeqCst);
    let releases = matches!(order, Ordering::Release | Ordering::AcqRel | Ordering::SeqCst);
    of_halves(acquires && !is_weakened(Half::Acquire), releases && !is_weakened(Half::Release), order)
}

fn of_halves(acquires: bool, releases: bool, order: Ordering) -> Ordering {
    match (acquires, releases) {
        (true, true) => order,
        (true, false) => Ordering::Acquire,
        (false, true) => Ordering::Release,
        (false, false) => Ordering::Relaxed,
    }
}

/// The ordering of a load: it has one half.
#[track_caller]
fn used_by_load(order: Ordering, half: Half) -> Ordering {
    if order == Ordering::Relaxed || !is_weakened(half) { order } else { Ordering::Relaxed }
}

/// The ordering of a store: it has one half.
#[track_caller]
fn used_by_store(order: Ordering) -> Ordering {
    if order == Ordering::Relaxed || !is_weakened(Half::Release) { order } else { Ordering::Relaxed }
}

/// As the standard library's.
#[track_caller]
pub fn fence(order: Ordering) {
    if !is_weakened(Half::Fence) {
        loom::sync::atomic::fence(order);
    }
}

/// The cheap half of an asymmetric fence: with the other half it orders as two whole fences do (P1202 of WG21).
#[track_caller]
pub fn light_fence() {
    fence(Ordering::SeqCst);
}

macro_rules! atomics {
    ($($name:ident($value:ty) { $($arithmetic:ident)* })*) => {$(
        /// As the standard library's.
        #[derive(Debug)]
        pub struct $name(loom::sync::atomic::$name);

        impl $name {
            /// As the standard library's.
            #[must_use]
            #[track_caller]
            pub fn new(value: $value) -> $name {
                $name(loom::sync::atomic::$name::new(value))
            }

            /// As the standard library's.
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                self.0.load(used_by_load(order, Half::Acquire))
            }

            /// As the standard library's.
            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                self.0.store(value, used_by_store(order));
            }

            /// As the standard library's.
            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                self.0.swap(value, used(order))
            }

            /// As the standard library's.
            ///
            /// # Errors
            /// The value, if it was not `current`.
            #[track_caller]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                let (success, failure) = (used(success), used_by_load(failure, Half::Failure));
                self.0.compare_exchange(current, new, success, failure)
            }

            /// Says that plain memory accesses touch the same place: a race with an access of this kind is a fault.
            #[allow(dead_code, reason = "of the two widths of a word, plain accesses touch one")]
            #[track_caller]
            pub(crate) fn is_touched(&self) {
                // SAFETY: the checker's own value is read, on its one thread, and thrown away.
                let _ = unsafe { self.0.unsync_load() };
            }

            $(
                /// As the standard library's.
                #[track_caller]
                pub fn $arithmetic(&self, value: $value, order: Ordering) -> $value {
                    self.0.$arithmetic(value, used(order))
                }
            )*
        }
    )*};
}

atomics! {
    AtomicBool(bool) {}
    AtomicU32(u32) {}
    AtomicU64(u64) { fetch_add fetch_sub fetch_and fetch_or }
    AtomicUsize(usize) { fetch_add fetch_sub }
}

/// Marks of reads of memory that the kernel copies for us, by address.
static READS: LazyLock<StdMutex<HashMap<u64, std::sync::Arc<AtomicBool>>>> = LazyLock::new(StdMutex::default);

/// The memory at `address` is about to be read by another process, which does not see the mark.
pub(crate) fn kernel_reads(address: u64) {
    let mark = locked(&READS).get(&address).cloned();
    if let Some(mark) = mark {
        mark.store(true, Ordering::Relaxed);
    }
}

/// Begins an execution, without the accesses of an earlier one.
pub fn begin() {
    locked(&READS).clear();
}

/// A mark that is set, without any ordering, before each read of the memory at `address`: an owner that must not write before such a read is over
/// has to see it.
#[must_use]
pub fn watch_reads(address: u64) -> std::sync::Arc<AtomicBool> {
    let mark = std::sync::Arc::new(AtomicBool::new(false));
    locked(&READS).insert(address, mark.clone());
    mark
}

/// Whether barriers in all processes are available to the models.
static BARRIERS: core::sync::atomic::AtomicBool = core::sync::atomic::AtomicBool::new(false);

/// Has drivers opened from now on rely on barriers in all processes, or not.
pub fn set_barriers(available: bool) {
    BARRIERS.store(available, Ordering::Relaxed);
}

pub(crate) fn barriers() -> bool {
    BARRIERS.load(Ordering::Relaxed)
}
