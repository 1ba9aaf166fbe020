//! Thread ids on their way into a lock.
//!
//! A thread that takes a robust or priority-inheriting mutex has read its own id before it waits, and writes
//! it into the mutex afterwards. So the id of such a thread is corrected in its registers and on top of its
//! stack, too; and only of such a one: it is in the C library, and its list of robust mutexes shows that it takes one, or a register
//! points to one. In a container ids are small, and so are many numbers that a program has in registers and on its stack.
//!
//! This runs in the restored process before its threads do, as `mutex` does.

use super::mutex;
use super::table::Span;

/// Bytes of the stack that are searched: the frame of the C library's function, and those below.
const STACK_BYTES: u64 = 512;
/// Below the stack pointer a function may keep data, too.
const RED_ZONE_BYTES: u64 = 128;
/// Offset of the pointer to the next mutex in a list of robust mutexes. The list's head holds the address of
/// this pointer for a mutex that is being taken.
const NEXT: u64 = 32;
const MUTEX_BYTES: u64 = 40;

/// Memory that may be looked at.
pub(super) struct Memory<'a> {
    pub(super) spans: &'a [Span],
    /// All that the process has mapped, rising.
    pub(super) mapped: &'a [Span],
    /// The code that takes locks.
    pub(super) lock_code: &'a [Span],
}

impl Memory<'_> {
    /// The words of `start..end` that lie in a span with `at`.
    ///
    /// # Safety
    ///
    /// The spans are mapped, may be written, and nothing else uses them for as long as the words live.
    unsafe fn words(&mut self, at: u64, start: u64, end: u64) -> Option<&mut [u32]> {
        let after = self.spans.partition_point(|span| span.start <= at);
        let span = self.spans.get(after.checked_sub(1)?).filter(|span| at < span.end)?;
        let (start, end) = (start.max(span.start), end.min(span.end));
        let words = end.checked_sub(start)? as usize / size_of::<u32>();
        // SAFETY: inside of a span; the caller's promise.
        (start % 4 == 0).then(|| unsafe { std::slice::from_raw_parts_mut(start as *mut u32, words) })
    }

    /// Whether this value may be used as an address.
    fn is_address(&self, value: u64) -> bool {
        let after = self.mapped.partition_point(|span| span.start <= value);
        // The end, too: behind a function's last call, and behind an array.
        after.checked_sub(1).and_then(|last| self.mapped.get(last)).is_some_and(|span| value <= span.end)
    }

    /// Whether a mutex that names its owner while it is being taken lies at `address`.
    ///
    /// # Safety
    ///
    /// As above.
    unsafe fn is_named_mutex(&mut self, address: u64, threads: usize) -> bool {
        let end = address.saturating_add(MUTEX_BYTES);
        // SAFETY: the caller's promise.
        let words = unsafe { self.words(address, address, end) };
        words.is_some_and(|words| mutex::is_named_by_waiters(words, threads))
    }
}

/// Corrects a stopped thread's copies of its own id. `registers` are all but `stack` pointer and program
/// counter (`at`), `pending` is the entry of its list of robust mutexes for the one that it takes. Returns how many
/// words were changed.
///
/// # Safety
///
/// The memory is mapped, may be written, and nothing else uses it meanwhile.
pub(super) unsafe fn mend(
    memory: &mut Memory<'_>,
    registers: &mut [u64],
    (stack, at): (u64, u64),
    pending: u64,
    (old, new): (u32, u32),
    threads: usize,
) -> usize {
    if !memory.lock_code.iter().any(|span| (span.start..span.end).contains(&at)) {
        return 0;
    }
    let pending = (pending & !1).wrapping_sub(NEXT);
    // SAFETY: the caller's promise.
    let takes = unsafe {
        memory.is_named_mutex(pending, threads)
            || registers.iter().any(|register| memory.is_named_mutex(*register, threads))
    };
    if !takes {
        return 0;
    }
    let mut mended = 0;
    for register in registers.iter_mut().filter(|register| **register == u64::from(old)) {
        *register = u64::from(new);
        mended += 1;
    }
    let (start, end) = (stack.saturating_sub(RED_ZONE_BYTES) & !7, stack.saturating_add(STACK_BYTES) & !7);
    let addresses = Memory { ..*memory };
    // SAFETY: the caller's promise.
    let words = unsafe { memory.words(stack, start, end) };
    for pair in words.into_iter().flat_map(|words| words.chunks_exact_mut(2)) {
        // Half of an address may look like an id: 0x55ab and 0x7ff0 are ids, and the upper halves of many an address, a return address among them.
        if let [low, high] = pair
            && addresses.is_address(u64::from(*high) << 32 | u64::from(*low))
        {
            continue;
        }
        for word in pair.iter_mut().filter(|word| **word == old) {
            *word = new;
            mended += 1;
        }
    }
    mended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C, align(8))]
    struct Lock([u32; 10]);

    #[repr(C, align(8))]
    struct Stack([u32; 400]);

    /// Somewhere in its upper half is the id.
    const CODE: Span = Span { start: (700 << 32) + 0x1000, end: (700 << 32) + 0x2000 };

    fn span<T>(of: &T) -> Span {
        let start = std::ptr::from_ref(of) as u64;
        Span { start, end: start + size_of::<T>() as u64 }
    }

    const LIBRARY: Span = Span { start: 0x7000, end: 0x8000 };

    /// A held mutex of this kind.
    fn held(kind: u32) -> [u32; 10] {
        // Robust ones are linked.
        let next = if kind & 16 == 0 { 0 } else { 8 };
        [700, 0, 700, 1, kind, 0, next, next, next, next]
    }

    fn mended(kind: u32, by_list: bool) -> ([u64; 3], [u32; 400]) {
        mended_at(LIBRARY.start, held(kind), by_list)
    }

    /// Registers and stack after mending: a thread with the id 700, now 41, whose first register points to these words.
    fn mended_at(code: u64, words: [u32; 10], by_list: bool) -> ([u64; 3], [u32; 400]) {
        let lock = Box::new(Lock(words));
        let mut stack = Box::new(Stack([5; 400]));
        stack.0[100] = 700;
        stack.0[103] = 700;
        stack.0[300] = 700;
        // A return address.
        [stack.0[120], stack.0[121]] = [0x1639, 700];
        let at = &raw const stack.0[99] as u64;
        let mut spans = [span(&*lock), span(&*stack)];
        spans.sort_unstable_by_key(|span| span.start);
        let address = std::ptr::from_ref(&*lock) as u64;
        let mut registers = [if by_list { 3 } else { address }, 700, 0xff_0000_0000 | 700];
        let pending = if by_list { (address + NEXT) | 1 } else { 0 };
        let mut memory = Memory { spans: &spans, mapped: &[CODE], lock_code: &[LIBRARY] };
        // SAFETY: the test's own memory.
        unsafe { mend(&mut memory, &mut registers, (at, code), pending, (700, 41), 3) };
        registers[0] = 0;
        (registers, stack.0)
    }

    #[test]
    fn a_thread_that_takes_a_named_mutex_gets_its_new_id() {
        for (kind, by_list) in [(16, true), (16, false), (33, false), (50, true)] {
            let (registers, stack) = mended(kind, by_list);
            assert_eq!(registers, [0, 41, 0xff_0000_0000 | 700]);
            assert_eq!((stack[100], stack[103], stack[300]), (41, 41, 700), "only the top of the stack");
            assert_eq!([stack[120], stack[121]], [0x1639, 700], "half of an address is no id");
        }
    }

    #[test]
    fn others_are_left_alone() {
        for kind in [0, 1, 2, 3, 64, 1 << 20] {
            let (registers, stack) = mended(kind, false);
            assert_eq!((registers[1], stack[100]), (700, 700));
        }
        let mut registers = [u64::MAX, 0, 8, 700];
        let mut nothing = Memory { spans: &[], mapped: &[], lock_code: &[LIBRARY] };
        // SAFETY: no memory may be looked at.
        let mended = unsafe { mend(&mut nothing, &mut registers, (9, LIBRARY.start), u64::MAX, (700, 1), 1) };
        assert_eq!(mended, 0);
    }

    // In a container an id is as small as a length: `8` in a register was once replaced in a program that took no lock.
    #[test]
    fn a_thread_outside_of_the_c_library_takes_no_lock() {
        for code in [LIBRARY.start - 1, LIBRARY.end, 0] {
            for by_list in [false, true] {
                let (registers, stack) = mended_at(code, held(16), by_list);
                assert_eq!((registers[1], stack[100]), (700, 700));
            }
        }
    }

    #[test]
    fn memory_that_is_no_mutex_shows_no_taker() {
        for words in [
            [0, 0, 5, 0, 48, 0, 0, 0, 0, 0],
            [1, 7, 0, 0, 16, 0, 0, 0, 0, 0],
            [0, 0, 0, 0, 32, 9, 0, 0, 0, 0],
            [0, 0, 0, 0, 32, 0, 0, 0, 1, 0],
            [0, 0, 0, 4, 32, 0, 0, 0, 0, 0],
        ] {
            let (registers, stack) = mended_at(LIBRARY.start, words, false);
            assert_eq!((registers[1], stack[100]), (700, 700), "{words:?}");
        }
    }
}
