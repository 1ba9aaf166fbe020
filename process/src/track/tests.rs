//! The pages that count as written.

use super::*;

const PAGE: usize = 4096;

/// Memory of this test's own, all of whose pages are there.
struct Memory {
    base: *mut u8,
    pages: usize,
}

impl Memory {
    fn new(pages: usize) -> Memory {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, protection, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let memory = Memory { base: base.cast(), pages };
        (0..pages).for_each(|page| memory.write(page));
        memory
    }

    fn write(&self, page: usize) {
        // SAFETY: within the memory.
        unsafe { self.base.add(page * PAGE).write_volatile(1) };
    }

    fn read(&self, page: usize) -> u8 {
        // SAFETY: within the memory.
        unsafe { self.base.add(page * PAGE).read_volatile() }
    }

    fn advise(&self, pages: Range<usize>, advice: i32) {
        // SAFETY: within the memory.
        let advised =
            unsafe { libc::madvise(self.base.add(pages.start * PAGE).cast(), pages.len() * PAGE, advice) };
        assert_eq!(advised, 0);
    }

    fn range(&self) -> Range<u64> {
        self.base as u64..self.base as u64 + (self.pages * PAGE) as u64
    }

    /// Every page as a letter: `w`ritten, `c`lean, `-` not there.
    fn look(&self) -> String {
        look(&self.range())
    }
}

fn look(range: &Range<u64>) -> String {
    let mut letters = vec!['-'; ((range.end - range.start) / PAGE as u64) as usize];
    let mut scanner = Scanner::open().unwrap();
    let each = |pages: Range<u64>, is_written: bool| {
        let place = |address: u64| ((address - range.start) / PAGE as u64) as usize;
        letters[place(pages.start)..place(pages.end)].fill(if is_written { 'w' } else { 'c' });
        Ok(())
    };
    scanner.own(range.clone(), true, each).unwrap();
    letters.into_iter().collect()
}

/// A tracker that watches `memory`. `None`: this kernel has none.
fn tracked(memory: &Memory) -> Option<Tracker> {
    let tracker = match Tracker::open() {
        Ok(tracker) => tracker,
        Err(errno) => {
            eprintln!("SKIPPED: no asynchronous write protection: {errno}");
            return None;
        }
    };
    kernel::register(tracker.descriptor.as_raw_fd(), memory.range()).unwrap();
    let mut scanner = Scanner::open().unwrap();
    arm(&mut scanner, memory.range()).unwrap();
    Some(tracker)
}

#[test]
fn pages_are_clean_until_they_are_written_by_whomever() {
    let memory = Memory::new(8);
    let Some(_tracker) = tracked(&memory) else { return };
    assert_eq!(memory.look(), "cccccccc");
    memory.write(1);
    assert_eq!(memory.read(2), 1);
    // The kernel writes, too.
    // SAFETY: a word within the memory.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, memory.base.add(4 * PAGE).cast()) };
    assert_eq!(result, 0);
    let file = fs::File::open("/dev/zero").unwrap();
    // SAFETY: within the memory.
    let read = unsafe { libc::read(file.as_raw_fd(), memory.base.add(6 * PAGE).cast(), PAGE) };
    assert_eq!(read, PAGE as isize);
    assert_eq!(memory.look(), "cwccwcwc");
    // Nothing is forgotten by looking.
    assert_eq!(memory.look(), "cwccwcwc");
}

#[test]
fn what_was_taken_away_is_not_there_and_comes_back_written() {
    let memory = Memory::new(8);
    let Some(_tracker) = tracked(&memory) else { return };
    memory.advise(2..5, libc::MADV_DONTNEED);
    assert_eq!(memory.look(), "cc---ccc");
    // Read again it is the page of zeros, which no image holds.
    assert_eq!(memory.read(2), 0);
    memory.write(3);
    assert_eq!(memory.look(), "cc-w-ccc");
}

#[test]
fn what_is_moved_or_mapped_anew_counts_as_written() {
    let (memory, target) = (Memory::new(8), Memory::new(2));
    let Some(_tracker) = tracked(&memory) else { return };
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: two pages of the one go to the place of the other, whose own are not used any more.
    let moved =
        unsafe { libc::mremap(memory.base.add(2 * PAGE).cast(), 2 * PAGE, 2 * PAGE, flags, target.base) };
    assert_eq!(moved, target.base.cast());
    assert_eq!(
        (look(&target.range()), look(&(memory.range().start..target_start(&memory)))),
        ("ww".into(), "cc".into())
    );
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    // SAFETY: a page of our own is replaced.
    let again = unsafe { libc::mmap(memory.base.add(5 * PAGE).cast(), PAGE, protection, flags, -1, 0) };
    assert_ne!(again, libc::MAP_FAILED);
    memory.write(5);
    let after = memory.range().start + 4 * PAGE as u64..memory.range().end;
    assert_eq!(look(&after), "cwcc");
}

fn target_start(memory: &Memory) -> u64 {
    memory.range().start + 2 * PAGE as u64
}

#[test]
fn a_fork_and_a_change_of_protection_leave_marks_as_they_are() {
    let memory = Memory::new(4);
    let Some(_tracker) = tracked(&memory) else { return };
    memory.write(0);
    // SAFETY: the child ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends this process.
        unsafe { libc::_exit(0) };
    }
    assert_eq!(memory.look(), "wccc");
    // SAFETY: our own child, and memory of our own.
    unsafe {
        assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
        assert_eq!(libc::mprotect(memory.base.cast(), 4 * PAGE, libc::PROT_READ), 0);
        assert_eq!(libc::mprotect(memory.base.cast(), 4 * PAGE, libc::PROT_READ | libc::PROT_WRITE), 0);
    }
    memory.write(2);
    assert_eq!(memory.look(), "wcwc");
}

#[test]
fn arming_again_starts_anew_and_what_others_watch_is_left_to_them() {
    let (ours, theirs) = (Memory::new(4), Memory::new(4));
    let Some(mut tracker) = tracked(&ours) else { return };
    let Some(_foreign) = tracked(&theirs) else { return };
    let number = tracker.descriptor.as_raw_fd();
    assert_eq!(kernel::register(number, theirs.range()), Err(Errno(libc::EBUSY)));
    ours.write(2);
    assert_eq!(ours.look(), "ccwc");
    kernel::register(number, ours.range()).unwrap();
    arm(&mut Scanner::open().unwrap(), ours.range()).unwrap();
    assert_eq!(ours.look(), "cccc");
    tracker.watches(0x1000..0x2000);
    tracker.watches(0x2000..0x3000);
    tracker.watches(0x5000..0x6000);
    let mut declared = Declared::new();
    tracker.declare(&mut declared);
    assert_eq!(declared.tracked_memory, [0x1000..0x3000, 0x5000..0x6000]);
    assert_eq!(declared.remade, [(OWNER.to_owned(), number)]);
}

#[test]
fn what_nobody_watches_any_more_counts_as_written() {
    let memory = Memory::new(4);
    let Some(tracker) = tracked(&memory) else { return };
    assert_eq!(memory.look(), "cccc");
    drop(tracker);
    assert_eq!(memory.look(), "wwww");
}
