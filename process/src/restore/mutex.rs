//! Thread ids in the locks of the C library.
//!
//! A held mutex names its owner, and a lock of the kind that has readers and writers its writer, by thread id. Threads of a restored
//! process have new ids; without mending, the owner of a recursive mutex would wait for itself, and the others could not
//! be unlocked. They are found by their shape in the restored memory (glibc, x86-64 and other 64-bit machines). The owner of a
//! plain mutex is left as it is: nothing in the library reads it, and its shape, zeros but for a few small numbers, is
//! that of many an array of integers.
//!
//! This runs in the restored process before its threads do: no allocation, no panic, no thread-local storage.

/// Bits of a mutex's kind: everything that `pthread_mutexattr_*` can set.
const KINDS: u32 = 0x3 | ROBUST | PRIORITY_INHERIT | PRIORITY_PROTECT | SHARED | ELISION;
const ROBUST: u32 = 16;
const PRIORITY_INHERIT: u32 = 32;
const PRIORITY_PROTECT: u32 = 64;
const SHARED: u32 = 128;
/// `PTHREAD_MUTEX_ELISION_NP` and `PTHREAD_MUTEX_NO_ELISION_NP`.
const ELISION: u32 = 256 | 512;
/// `PTHREAD_MUTEX_RECURSIVE_NP`.
const RECURSIVE: u32 = 1;
/// `PTHREAD_MUTEX_ERRORCHECK_NP`.
const ERROR_CHECKING: u32 = 2;
/// In the lock word of robust and priority-inheriting mutexes beside the owner: `FUTEX_WAITERS`.
const WAITERS: u32 = 1 << 31;
/// `FUTEX_TID_MASK`: bit 30 says that the owner died.
const OWNER_BITS: u32 = (1 << 30) - 1;
/// In the owner's place, until somebody makes the mutex consistent.
const INCONSISTENT: u32 = i32::MAX as u32;

/// Words of four bytes of a mutex up to its list, and where its owner lies.
const MUTEX_WORDS: usize = 10;
const OWNER: usize = 2;
/// The same of a lock for readers and writers.
const LOCK_WORDS: usize = 14;
const WRITER: usize = 6;

/// Known facts about the threads.
pub(super) trait Tids {
    /// The new id of a thread that had the id `old`.
    fn renamed(&self, old: u32) -> Option<u32>;
    /// The lowest and the highest old id.
    fn bounds(&self) -> (u32, u32);
    /// How many threads there are.
    fn threads(&self) -> usize;
}

/// Puts the new ids into all locks that threads held. Returns how many.
pub(super) fn mend(memory: &mut [u32], tids: &impl Tids) -> usize {
    let (lowest, highest) = tids.bounds();
    let width = highest.wrapping_sub(lowest);
    let mut mended = 0;
    // Locks are aligned to eight bytes, so the owner is the first half of such a word.
    for at in (0..memory.len()).step_by(2) {
        let Some(old) = memory.get(at) else { break };
        if old.wrapping_sub(lowest) > width {
            continue;
        }
        let Some(new) = tids.renamed(*old) else { continue };
        if is_mutex_of(memory, at, *old, tids.threads()) {
            let lock = at - OWNER;
            let is_named = memory.get(lock + 4).is_some_and(|kind| kind & (ROBUST | PRIORITY_INHERIT) != 0);
            if let Some(word) = memory.get_mut(lock).filter(|_| is_named) {
                *word = *word & !(WAITERS - 1) | new;
            }
        } else if !is_lock_of(memory, at) {
            continue;
        }
        if let Some(owner) = memory.get_mut(at) {
            *owner = new;
            mended += 1;
        }
    }
    mended
}

/// Whether these are the words of a mutex whose takers read their own id before they wait.
pub(super) fn is_named_by_waiters(words: &[u32], threads: usize) -> bool {
    let [lock, count, owner, users, kind, spins, list @ ..] = words else { return false };
    let is_named = kind & !KINDS == 0 && kind & (ROBUST | PRIORITY_INHERIT) != 0;
    // The owner is written after the lock word, and cleared before it. That of a thread which died is INT_MAX, or one less.
    let is_consistent = *owner == 0 || *owner == lock & OWNER_BITS || *owner >= INCONSISTENT - 1;
    let is_counted = *count <= 1 || kind & 3 == RECURSIVE;
    let is_linked = kind & ROBUST != 0 || list.iter().all(|word| *word == 0);
    is_named && is_consistent && is_counted && is_linked && *spins == 0 && *users as usize <= threads
}

fn is_mutex_of(memory: &[u32], at: usize, owner: u32, threads: usize) -> bool {
    let Some(start) = at.checked_sub(OWNER) else { return false };
    let Some([lock, count, _, users, kind, spins, list @ ..]) = memory.get(start..start + MUTEX_WORDS) else {
        return false;
    };
    let (lock, count, kind) = (*lock, *count, *kind);
    // A wait for a condition counts as a use of the mutex.
    if kind & !KINDS != 0 || *users == 0 || *users as usize > threads {
        return false;
    }
    let is_named = matches!(kind & 3, RECURSIVE | ERROR_CHECKING) || kind & (ROBUST | PRIORITY_INHERIT) != 0;
    let is_locked = if kind & (ROBUST | PRIORITY_INHERIT) != 0 {
        lock & !WAITERS == owner
    } else if kind & PRIORITY_PROTECT != 0 {
        matches!(lock & 0x7ffff, 1 | 2)
    } else {
        matches!(lock, 1 | 2)
    };
    let is_counted = match kind & 3 {
        RECURSIVE => (1..=u32::MAX / 2).contains(&count),
        _ => count <= u32::from(kind & (ROBUST | PRIORITY_INHERIT | PRIORITY_PROTECT) != 0),
    };
    // The list links robust mutexes and is empty else.
    let is_linked = kind & ROBUST != 0 || list.iter().all(|word| *word == 0);
    is_named && is_locked && is_counted && is_linked && *spins == 0
}

fn is_lock_of(memory: &[u32], at: usize) -> bool {
    let Some(start) = at.checked_sub(WRITER) else { return false };
    let Some([readers, _, phase, waiting, pads @ .., shared, elision, pad, long_a, long_b, flags, _]) =
        memory.get(start..start + LOCK_WORDS)
    else {
        return false;
    };
    // Written, in the phase of writers.
    let is_written = readers & 3 == 3 && matches!(phase, 1 | 3) && matches!(waiting, 1 | 3);
    let [pad_a, pad_b, _] = pads else { return false };
    let zeros = [pad_a, pad_b, elision, pad, long_a, long_b];
    is_written && zeros.iter().all(|word| **word == 0) && *shared <= 1 && *flags <= 2
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Two;

    impl Tids for Two {
        fn renamed(&self, old: u32) -> Option<u32> {
            match old {
                700 => Some(41),
                712 => Some(42),
                _ => None,
            }
        }
        fn bounds(&self) -> (u32, u32) {
            (700, 712)
        }
        fn threads(&self) -> usize {
            6
        }
    }

    fn mutex(lock: u32, count: u32, owner: u32, users: u32, kind: u32) -> Vec<u32> {
        vec![9, 9, lock, count, owner, users, kind, 0, 0, 0, 0, 0, 9, 9]
    }

    fn mended(mut memory: Vec<u32>) -> (usize, Vec<u32>) {
        let count = mend(&mut memory, &Two);
        (count, memory)
    }

    #[test]
    fn each_kind_of_held_mutex_gets_its_new_owner() {
        assert_eq!(mended(mutex(2, 3, 712, 1, 1)), (1, mutex(2, 3, 42, 1, 1)));
        assert_eq!(mended(mutex(2, 0, 712, 5, 2)), (1, mutex(2, 0, 42, 5, 2)));
        assert_eq!(mended(mutex(700 | WAITERS, 0, 700, 1, 16)), (1, mutex(41 | WAITERS, 0, 41, 1, 16)));
        assert_eq!(mended(mutex(712, 2, 712, 1, 33)), (1, mutex(42, 2, 42, 1, 33)));
        assert_eq!(mended(mutex(5 << 19 | 1, 0, 712, 1, 66)), (1, mutex(5 << 19 | 1, 0, 42, 1, 66)));
    }

    #[test]
    fn what_only_looks_like_one_is_left() {
        for memory in [
            mutex(1, 0, 700, 1, 0),
            mutex(0, 0, 700, 1, 2),
            mutex(1, 0, 701, 1, 2),
            mutex(1, 0, 700, 0, 2),
            mutex(1, 0, 700, 7, 2),
            mutex(1, 0, 700, 1, 1),
            mutex(1, 4, 700, 1, 2),
            mutex(1, 0, 700, 1, 1024),
            mutex(712, 0, 700, 1, 16),
            vec![700; 32],
            vec![1, 0, 700],
            vec![700, 1],
        ] {
            assert_eq!(mended(memory.clone()), (0, memory));
        }
    }

    #[test]
    fn the_locks_of_this_c_library_have_that_shape() {
        // SAFETY: a lock of this thread's own, initialised and released by the library.
        unsafe {
            let mut lock: libc::pthread_rwlock_t = std::mem::zeroed();
            assert_eq!(libc::pthread_rwlock_init(&raw mut lock, std::ptr::null()), 0);
            assert_eq!(libc::pthread_rwlock_wrlock(&raw mut lock), 0);
            assert_held(std::slice::from_raw_parts_mut((&raw mut lock).cast(), size_of_val(&lock) / 4));
            assert_eq!(libc::pthread_rwlock_unlock(&raw mut lock), 0);
        }
        for kind in [libc::PTHREAD_MUTEX_RECURSIVE, libc::PTHREAD_MUTEX_ERRORCHECK] {
            for robust in [libc::PTHREAD_MUTEX_STALLED, libc::PTHREAD_MUTEX_ROBUST] {
                for protocol in [libc::PTHREAD_PRIO_NONE, libc::PTHREAD_PRIO_INHERIT] {
                    // SAFETY: as above.
                    unsafe {
                        let mut attributes: libc::pthread_mutexattr_t = std::mem::zeroed();
                        libc::pthread_mutexattr_init(&raw mut attributes);
                        assert_eq!(libc::pthread_mutexattr_settype(&raw mut attributes, kind), 0);
                        assert_eq!(libc::pthread_mutexattr_setrobust(&raw mut attributes, robust), 0);
                        assert_eq!(libc::pthread_mutexattr_setprotocol(&raw mut attributes, protocol), 0);
                        let mut mutex: libc::pthread_mutex_t = std::mem::zeroed();
                        assert_eq!(libc::pthread_mutex_init(&raw mut mutex, &raw const attributes), 0);
                        assert_eq!(libc::pthread_mutex_lock(&raw mut mutex), 0);
                        assert_held(std::slice::from_raw_parts_mut(
                            (&raw mut mutex).cast(),
                            size_of_val(&mutex) / 4,
                        ));
                        assert_eq!(libc::pthread_mutex_unlock(&raw mut mutex), 0);
                    }
                }
            }
        }
    }

    /// Gives the lock to another thread and back.
    fn assert_held(lock: &mut [u32]) {
        struct One(u32, u32);
        impl Tids for One {
            fn renamed(&self, old: u32) -> Option<u32> {
                (old == self.0).then_some(self.1)
            }
            fn bounds(&self) -> (u32, u32) {
                (self.0, self.0)
            }
            fn threads(&self) -> usize {
                1
            }
        }
        let own = crate::sys::thread_id();
        let before = lock.to_vec();
        assert_eq!(mend(lock, &One(own, 3)), 1, "{before:x?}");
        assert_ne!(lock, before);
        assert_eq!(mend(lock, &One(3, own)), 1, "{lock:x?}");
        assert_eq!(lock, before);
    }
}
