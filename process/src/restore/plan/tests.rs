//! The calls, in order, for a small state.

use super::*;
use crate::state::machine::Machine;
use crate::state::memory::{MappedFile, Memory, Parts, SharedObject};
use crate::state::signals::{Action, IntervalTimer, Pending, Signals, Timer};
use crate::state::threads::{At, Rseq, Thread};
use crate::state::{Program, Resume, VERSION};

const PAGE: u64 = 4096;

fn region(start: u64, pages: u64, protection: Protection, backing: Backing, advice: Advice) -> Region {
    Region { start: start * PAGE, end: (start + pages) * PAGE, protection, backing, advice }
}

fn run(page: u64, pages: u64) -> PageRun {
    PageRun { address: page * PAGE, pages }
}

fn state() -> ProcessState {
    let (read, write, execute) = (Protection::READ, Protection::WRITE, Protection::EXECUTE);
    let file = |offset, is_shared| Backing::File { file: 0, offset, is_shared };
    let none = Advice::empty();
    let parts = [0x10_000; 11];
    let [start_code, end_code, start_data, end_data, start_brk, brk, start_stack, ..] = parts;
    let memory = Memory {
        parts: Parts {
            start_code,
            end_code,
            start_data,
            end_data,
            start_brk,
            brk,
            start_stack,
            arg_start: 1,
            arg_end: 2,
            env_start: 3,
            env_end: 4,
        },
        auxiliary: vec![6, 4096, 0, 0],
        regions: vec![
            region(0x100, 4, read | execute, file(0, false), none),
            region(0x104, 2, read, file(4 * PAGE, false), none),
            region(0x106, 8, read | write, Backing::Anonymous, Advice::HUGE | Advice::DONT_FORK),
            region(0x200, 4, read | write, Backing::Shared { object: 0, offset: PAGE }, Advice::LOCKED),
            region(0x300, 4, read | write, file(0, true), none),
            region(0x400, 16, Protection::empty(), Backing::Anonymous, Advice::NO_RESERVE),
            region(0x500, 8, read | write, Backing::Anonymous, Advice::GROWS_DOWN),
            region(0x600, 4, read, Backing::Vvar, none),
            region(0x604, 2, read | execute, Backing::Vdso, none),
        ],
        files: vec![MappedFile {
            path: b"/lib/x".to_vec(),
            bytes: 30_000,
            modified_ns: 5,
            build_id: None,
            is_held: false,
        }],
        shared: vec![SharedObject { bytes: 9 * PAGE, name: b"/dev/shm/pool".to_vec() }],
        // Over the border of two regions; then more.
        runs: vec![run(0x105, 4), run(0x10c, 1), run(0x201, 2), run(0x507, 1), run(0x604, 2)],
        guards: vec![run(0x107, 1)],
    };
    let thread = Thread {
        tid: 10,
        at: At::Agent { registers: vec![1; 8], mask: 0 },
        tls_base: 1,
        gs_base: 2,
        tid_address: 3,
        robust_list: (4, 24),
        rseq: Some(Rseq { address: 5, bytes: 32, signature: 6 }),
        name: [b'n'; 16],
        parent_death_signal: 9,
        timer_slack_ns: 50_000,
        processors: None,
        scheduling: None,
    };
    let time = IntervalTimer { left_ns: 7, interval_ns: 8 };
    ProcessState {
        machine: Machine {
            architecture: "x86_64".into(),
            kernel: "6.18".into(),
            page_bytes: 4096,
            features: vec![1, 2],
            vector_components: 7,
            vector_bytes: 832,
        },
        program: Program {
            pid: 10,
            executable: b"/bin/true".to_vec(),
            directory: b"/".to_vec(),
            personality: 0,
            umask: 0o22,
            limits: vec![(1, 2), (3, 4)],
            dumpable: 1,
            huge_pages_disabled: false,
            is_subreaper: false,
            barriers: 0,
        },
        memory,
        threads: vec![thread],
        signals: Signals {
            actions: vec![Action { handler: 1, flags: 2, restorer: 3, mask: 4 }; 64],
            pending: vec![Pending { tid: None, signal: 3, info: None }],
            interval_timers: [time; 3],
            timers: vec![Timer { id: 1, clock: 1, notify: 4, signal: 3, value: 2, tid: 10, time }],
        },
        resume: Resume { entry: 0x100 * PAGE },
    }
}

fn opened() -> Opened {
    Opened {
        files: vec![Some(50)],
        shared: vec![60],
        pages: (70, 8192),
        base_pages: None,
        staged: None,
        populates: false,
        are_freed: false,
    }
}

const SAME_KERNEL: Kernel =
    Kernel { group: Some((0x600 * PAGE, 6 * PAGE)), code_bytes: 2 * PAGE, redirected: None };

/// The calls of `number`, with their required results.
fn calls_of(number: i64, state: &ProcessState, kernel: &Kernel) -> Vec<([u64; 6], u64)> {
    let mut calls = Calls::new(0x5000_0000);
    memory(&mut calls, state, &opened(), kernel);
    let steps = calls.steps().iter().filter(|step| step.number == number.cast_unsigned());
    steps.map(|step| (step.arguments, step.want)).collect()
}

#[test]
fn regions_are_mapped_where_they_were_and_nowhere_else() {
    let maps = calls_of(libc::SYS_mmap, &state(), &SAME_KERNEL);
    let addresses: Vec<u64> = maps.iter().map(|(arguments, _)| arguments[0] / PAGE).collect();
    assert_eq!(addresses, [0x100, 0x104, 0x106, 0x200, 0x300, 0x400, 0x500]);
    for (arguments, want) in &maps {
        assert_eq!(arguments[0], *want);
        assert_ne!(arguments[3] & libc::MAP_FIXED_NOREPLACE as u64, 0);
    }
    let flags = |index: usize| (maps[index].0[3] & !(libc::MAP_FIXED_NOREPLACE as u64)) as i32;
    // Protection: that of the region, or the one that reading pages needs.
    let protections: Vec<u64> = maps.iter().map(|(arguments, _)| arguments[2]).collect();
    assert_eq!(protections, [5, 3, 3, 3, 3, 0, 3]);
    assert_eq!((flags(0), maps[0].0[4], maps[0].0[5]), (libc::MAP_PRIVATE, 50, 0));
    assert_eq!((flags(1), maps[1].0[4], maps[1].0[5]), (libc::MAP_PRIVATE, 50, 4 * PAGE));
    assert_eq!((flags(3), maps[3].0[4], maps[3].0[5]), (libc::MAP_SHARED, 60, PAGE));
    assert_eq!((flags(4), maps[4].0[4]), (libc::MAP_SHARED, 50));
    assert_eq!(flags(5), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    assert_eq!(flags(6), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_GROWSDOWN);
    let protected = calls_of(libc::SYS_mprotect, &state(), &SAME_KERNEL);
    assert_eq!(protected, [([0x104 * PAGE, 2 * PAGE, 1, 0, 0, 0], 0)]);
}

#[test]
fn advice_locks_and_guards_come_back() {
    let advised = calls_of(libc::SYS_madvise, &state(), &SAME_KERNEL);
    let wanted = [
        (0x106, 8, libc::MADV_HUGEPAGE as u64),
        (0x106, 8, libc::MADV_DONTFORK as u64),
        (0x107, 1, MADV_GUARD_INSTALL),
    ];
    assert_eq!(advised, wanted.map(|(at, pages, code)| ([at * PAGE, pages * PAGE, code, 0, 0, 0], 0)));
    let locked = calls_of(libc::SYS_mlock, &state(), &SAME_KERNEL);
    assert_eq!(locked, [([0x200 * PAGE, 4 * PAGE, 0, 0, 0, 0], 0)]);
}

#[test]
fn pages_are_read_with_one_call_for_many_places() {
    let mut calls = Calls::new(0x5000_0000);
    memory(&mut calls, &state(), &opened(), &SAME_KERNEL);
    let reads: Vec<Step> = calls
        .steps()
        .iter()
        .copied()
        .filter(|step| step.number == libc::SYS_preadv.cast_unsigned())
        .collect();
    let [read] = reads[..] else { panic!("{} reads", reads.len()) };
    let [fd, vector, places, offset, ..] = read.arguments;
    assert_eq!((fd, places, offset, read.want), (70, 4, 8192, 8 * PAGE));
    let at = usize::try_from(vector - 0x5000_0000).expect("inside");
    let words: Vec<u64> = calls.bytes[at..at + 64]
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("eight")))
        .collect();
    let wanted = [0x105, 4, 0x10c, 1, 0x201, 2, 0x507, 1].map(|pages| pages * PAGE);
    assert_eq!(words, wanted);
}

#[test]
fn more_places_than_a_call_may_name_are_several_calls() {
    let mut state = state();
    let protection = Protection::READ | Protection::WRITE;
    let many = region(0x10_0000, 5000, protection, Backing::Anonymous, Advice::empty());
    state.memory.regions = vec![many];
    state.memory.runs = (0..2500).map(|page| run(0x10_0000 + 2 * page, 1)).collect();
    let reads = calls_of(libc::SYS_preadv, &state, &Kernel::default());
    let sizes: Vec<(u64, u64, u64)> = reads.iter().map(|(a, want)| (a[2], a[3], *want)).collect();
    let page = |pages: u64| pages * PAGE;
    let second = 8192 + page(1024);
    let wanted =
        [(1024, 8192, page(1024)), (1024, second, page(1024)), (452, second + page(1024), page(452))];
    assert_eq!(sizes, wanted);

    // And more bytes than a call reads.
    state.memory.regions[0].end = state.memory.regions[0].start + (5 << 30);
    state.memory.runs = vec![run(0x10_0000, (5 << 30) / PAGE)];
    let reads = calls_of(libc::SYS_preadv, &state, &Kernel::default());
    assert_eq!(reads.iter().map(|(_, want)| *want).collect::<Vec<_>>(), [READ_BYTES_MAX; 5]);
    assert_eq!(reads[4].0[3], 8192 + (4 << 30));
}

#[test]
fn large_pieces_are_made_and_filled_in_turn() {
    let mut state = state();
    let protection = Protection::READ | Protection::WRITE;
    let region = |start, pages| region(start, pages, protection, Backing::Anonymous, Advice::empty());
    state.memory.regions = vec![region(0x10_0000, 2000)];
    state.memory.runs = vec![run(0x10_0000, 3), run(0x10_0010, 1300), run(0x10_0700, 2)];
    state.memory.guards.clear();
    let mut calls = Calls::new(0x5000_0000);
    memory(&mut calls, &state, &Opened { populates: true, ..opened() }, &Kernel::default());
    let at_once = POPULATED_BYTES / PAGE;
    let done: Vec<(i64, u64)> = calls
        .steps()
        .iter()
        .filter_map(|step| match step.number.cast_signed() {
            libc::SYS_preadv => Some((libc::SYS_preadv, step.want / PAGE)),
            libc::SYS_madvise => Some((libc::SYS_madvise, step.arguments[1] / PAGE)),
            _ => None,
        })
        .collect();
    let (made, read) = (libc::SYS_madvise, libc::SYS_preadv);
    let rest = 1300 - 2 * at_once;
    let wanted = [
        (read, 3),
        (made, at_once),
        (read, at_once),
        (made, at_once),
        (read, at_once),
        (made, rest),
        (read, rest),
        (read, 2),
    ];
    assert_eq!(done, wanted);
}

#[test]
fn unchanged_pages_come_from_the_image_below_and_the_others_after_them() {
    let mut state = state();
    let protection = Protection::READ | Protection::WRITE;
    let region = |start, pages| region(start, pages, protection, Backing::Anonymous, Advice::empty());
    // The image below has more than is left, and a run over the border of two regions.
    state.memory.regions = vec![region(0x1000, 8), region(0x1008, 8), region(0x2000, 4)];
    state.memory.guards.clear();
    state.memory.runs = vec![run(0x1003, 1), run(0x2001, 2)];
    let runs = [run(0x1000, 12), run(0x1800, 5), run(0x2000, 2), run(0x2003, 1)];
    let unchanged = [run(0x1001, 2), run(0x1004, 6), run(0x2000, 1), run(0x2003, 1)];
    let pieces = pieces_of_base(&state, &runs, &unchanged).expect("all is there");
    let from = FromBase { pages: (71, 4096), pieces };
    let opened = Opened { base_pages: Some(from), ..opened() };
    let mut calls = Calls::new(0x5000_0000);
    memory(&mut calls, &state, &opened, &Kernel::default());
    let reads: Vec<[u64; 3]> = calls
        .steps()
        .iter()
        .filter(|step| step.number == libc::SYS_preadv.cast_unsigned())
        .map(|step| [step.arguments[0], step.arguments[3] / PAGE, step.want / PAGE])
        .collect();
    // The image's own are one run in its file, wherever they go.
    assert_eq!(reads, [[71, 2, 2], [71, 5, 6], [71, 18, 1], [71, 20, 1], [70, 2, 3]]);
}

#[test]
fn an_image_below_that_does_not_have_the_pages_is_reported() {
    let state = state();
    let damaged =
        |runs: &[PageRun], unchanged: &[PageRun]| pieces_of_base(&state, runs, unchanged).unwrap_err();
    let runs = [run(0x106, 2), run(0x109, 2)];
    for unchanged in [run(0x105, 1), run(0x108, 1), run(0x106, 3), run(0x10a, 2), run(0x4000, 1)] {
        let reported = damaged(&runs, &[unchanged]);
        assert!(reported.ends_with("are not in the image below"), "{reported}");
    }
    assert!(damaged(&[run(0x4000, 1)], &[run(0x4000, 1)]).ends_with("lie in no region"));
    assert!(damaged(&[run(0x106, 6)], &[run(0x109, 1), run(0x109, 1)]).contains("come twice"));
    assert!(damaged(&[run(0x106, 6)], &[run(0x108, 1)]).ends_with("are changed and unchanged"));
    let huge = PageRun { address: 0x109 * PAGE, pages: u64::MAX };
    assert!(damaged(&[huge], &[huge]).ends_with("are not in the image below"));
    assert!(pieces_of_base(&state, &[huge], &[run(0x10a, 1)]).is_err());
}

#[test]
fn the_kernels_code_is_mapped_first_and_looked_for() {
    let mut calls = Calls::new(0x5000_0000);
    memory(&mut calls, &state(), &opened(), &SAME_KERNEL);
    let [first, second, ..] = calls.steps() else { panic!("calls") };
    assert_eq!((first.number, first.want), (libc::SYS_arch_prctl.cast_unsigned(), 2 * PAGE));
    assert_eq!(first.arguments[..2], [MAP_VDSO, 0x600 * PAGE]);
    assert_eq!(second.number, libc::SYS_msync.cast_unsigned());
    assert_eq!(second.arguments[..2], [0x600 * PAGE, 6 * PAGE]);
}

#[test]
fn another_kernels_code_stays_where_it_was_beside_zeros() {
    let kernel = Kernel {
        group: Some((0x9000 * PAGE, 7 * PAGE)),
        code_bytes: 2 * PAGE,
        redirected: Some(0x7777_0000),
    };
    let moved = calls_of(libc::SYS_mremap, &state(), &kernel);
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    assert_eq!(moved, [([0x7777_0000, 2 * PAGE, 2 * PAGE, flags, 0x604 * PAGE, 0], 0x604 * PAGE)]);
    let maps = calls_of(libc::SYS_mmap, &state(), &kernel);
    assert!(maps.iter().any(|(arguments, _)| arguments[..3] == [0x600 * PAGE, 4 * PAGE, 1]));
}

#[test]
fn a_held_file_that_is_gone_is_memory() {
    let mut calls = Calls::new(0x5000_0000);
    let opened = Opened { files: vec![None], ..opened() };
    memory(&mut calls, &state(), &opened, &SAME_KERNEL);
    let map = calls.steps().iter().find(|step| step.arguments[0] == 0x104 * PAGE).expect("mapped");
    assert_ne!(map.arguments[3] & libc::MAP_ANONYMOUS as u64, 0);
}

#[test]
fn locks_are_looked_for_in_written_memory_without_guards() {
    let spans: Vec<(u64, u64)> =
        written(&state(), &[]).into_iter().map(|span| (span.start, span.end)).collect();
    let page = |page: u64| page * PAGE;
    let wanted = [
        (page(0x106), page(0x107)),
        (page(0x108), page(0x109) + LOCK_BYTES),
        (page(0x10c) - LOCK_BYTES, page(0x10d) + LOCK_BYTES),
        (page(0x201) - LOCK_BYTES, page(0x203) + LOCK_BYTES),
        (page(0x507) - LOCK_BYTES, page(0x508)),
    ];
    assert_eq!(spans, wanted);
}

#[test]
fn whatever_the_decoder_lets_through_can_be_planned() {
    let good = state().encode();
    let mut passed = 0;
    for at in 0..good.len() {
        for value in 0..=255u8 {
            let mut bytes = good.clone();
            bytes[at] = value;
            let Ok(state) = ProcessState::decode(VERSION, &bytes) else { continue };
            passed += 1;
            let mut calls = Calls::new(0x5000_0000);
            memory(&mut calls, &state, &opened(), &SAME_KERNEL);
            parts(&mut calls, &state);
            let _ = written(&state, &[]);
        }
    }
    assert!(passed > 1000, "{passed}");
}

proptest::proptest! {
    #[test]
    fn a_damaged_state_is_an_error_or_a_state(cut in 0usize..2000, at in 0usize..2000, with in proptest::collection::vec(proptest::num::u8::ANY, 1..40)) {
        let mut bytes = state().encode();
        let at = at.min(bytes.len());
        let end = (at + with.len()).min(bytes.len());
        bytes.splice(at..end, with);
        bytes.truncate(cut.max(8));
        if let Ok(state) = ProcessState::decode(VERSION, &bytes) {
            let mut calls = Calls::new(0x5000_0000);
            memory(&mut calls, &state, &opened(), &SAME_KERNEL);
        }
    }
}

// Only there, a thread may be about to write its id into a lock.
#[test]
fn the_code_that_takes_locks_is_the_c_librarys() {
    let spans = |path: &str| {
        let mut state = state();
        state.memory.files[0].path = path.as_bytes().to_vec();
        lock_code(&state)
    };
    let library = [Span { start: 0x100 * PAGE, end: 0x104 * PAGE }];
    for path in ["/lib/libc.so.6", "/lib/x86_64-linux-gnu/libc-2.31.so", "/lib/libpthread.so.0"] {
        assert_eq!(spans(path), library);
    }
    // A program that is linked statically has the library in itself; the kernel's code takes no locks.
    assert_eq!(spans("/bin/static"), library);
    let mut both = state();
    both.memory.files.push(MappedFile { path: b"/lib/libc.so.6".to_vec(), ..both.memory.files[0].clone() });
    let (read, execute) = (Protection::READ, Protection::EXECUTE);
    let backing = Backing::File { file: 1, offset: 0, is_shared: false };
    both.memory.regions.push(region(0x900, 2, read | execute, backing, Advice::empty()));
    assert_eq!(lock_code(&both), [Span { start: 0x900 * PAGE, end: 0x902 * PAGE }]);
}
