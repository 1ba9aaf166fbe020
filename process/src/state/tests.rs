//! Sections read back as they were written, and other bytes are refused.

use super::files::{Descriptor, OpenFile, Watched, What};
use super::machine::Machine;
use super::memory::{Advice, Backing, Memory, PageRun, Parts, Protection, Region};
use super::signals::{Action, IntervalTimer, Signals};
use super::threads::{At, Thread};
use super::{DecodeError, Files, ProcessState, Program, Resume, Unchanged, VERSION};

fn region(start: u64, end: u64, protection: Protection) -> Region {
    Region { start, end, protection, backing: Backing::Anonymous, advice: Advice::empty() }
}

fn thread(tid: u32, at: At) -> Thread {
    Thread {
        tid,
        at,
        tls_base: 0x7000,
        gs_base: 0,
        tid_address: 0x7010,
        robust_list: (0x7020, 24),
        rseq: None,
        name: *b"main\0\0\0\0\0\0\0\0\0\0\0\0",
        parent_death_signal: 0,
        timer_slack_ns: 50_000,
        processors: None,
        scheduling: None,
    }
}

fn state() -> ProcessState {
    let parts = Parts {
        start_code: 0x1000,
        end_code: 0x1800,
        start_data: 0x3000,
        end_data: 0x3100,
        start_brk: 0x8000,
        brk: 0x8000,
        start_stack: 0x6000,
        arg_start: 0x6100,
        arg_end: 0x6110,
        env_start: 0x6110,
        env_end: 0x6120,
    };
    let memory = Memory {
        parts,
        auxiliary: vec![6, 4096, 0, 0],
        regions: vec![
            region(0x1000, 0x3000, Protection::READ | Protection::EXECUTE),
            region(0x3000, 0x8000, Protection::READ | Protection::WRITE),
            region(0xa000, 0xb000, Protection::READ),
        ],
        files: Vec::new(),
        shared: Vec::new(),
        runs: vec![PageRun { address: 0x2000, pages: 2 }, PageRun { address: 0xa000, pages: 1 }],
        guards: Vec::new(),
    };
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
            limits: vec![(1, 2)],
            dumpable: 1,
            huge_pages_disabled: false,
            is_subreaper: false,
            barriers: 0,
        },
        memory,
        threads: vec![
            thread(10, At::Handler { frame: 0x5000 }),
            thread(11, At::Agent { registers: vec![0; 8], mask: u64::MAX }),
        ],
        signals: Signals {
            actions: vec![Action::default(); 64],
            pending: Vec::new(),
            interval_timers: [IntervalTimer::default(); 3],
            timers: Vec::new(),
        },
        resume: Resume { entry: 0x1010 },
    }
}

#[test]
fn a_state_reads_back_as_it_was() {
    let state = state();
    assert_eq!(ProcessState::decode(VERSION, &state.encode()), Ok(state));
}

#[test]
fn every_shorter_or_longer_section_is_refused() {
    let mut bytes = state().encode();
    for length in 0..bytes.len() {
        assert!(ProcessState::decode(VERSION, &bytes[..length]).is_err(), "{length} bytes");
    }
    bytes.push(0);
    assert!(matches!(ProcessState::decode(VERSION, &bytes), Err(DecodeError::Malformed { .. })));
}

#[test]
fn another_version_is_reported() {
    assert_eq!(
        ProcessState::decode(VERSION + 1, &state().encode()),
        Err(DecodeError::Version { found: VERSION + 1 })
    );
}

/// The sentence that `spoil` leads to.
fn fault(spoil: impl FnOnce(&mut ProcessState)) -> String {
    let mut state = state();
    spoil(&mut state);
    ProcessState::decode(VERSION, &state.encode()).expect_err("refused").to_string()
}

#[test]
fn what_contradicts_itself_is_refused() {
    assert!(fault(|state| state.threads.clear()).contains("no threads"));
    assert!(fault(|state| state.program.pid = 12).contains("first thread is 10, the process is 12"));
    assert!(fault(|state| state.threads.truncate(1)).contains("0 of its threads took the checkpoint"));
    assert!(fault(|state| state.resume.entry = 0x3000).contains("goes on at 0x3000, where no code is"));
    assert!(fault(|state| state.memory.regions.swap(0, 1)).contains("region 0x1000..0x3000 after"));
    assert!(fault(|state| state.memory.regions[2].end += 1).contains("region 0xa000"));
    assert!(fault(|state| state.memory.runs[0].pages = 7).contains("pages 7 from 0x2000"));
    assert!(fault(|state| state.memory.runs[0].pages = u64::MAX).contains("lie in no region"));
    assert!(fault(|state| state.memory.runs.swap(0, 1)).contains("pages 2 from 0x2000"));
    assert!(fault(|state| state.machine.page_bytes = 0).contains("pages of 0 bytes"));
    let file = Backing::File { file: 0, offset: 0, is_shared: false };
    assert!(fault(|state| state.memory.regions[0].backing = file).contains("entry 0 of 0"));
}

#[test]
fn descriptors_rise_and_refer_to_what_there_is() {
    let open = OpenFile { flags: 2, what: What::Event { count: 3, is_semaphore: false } };
    let descriptor = |number, open| Descriptor { number, open, closes_on_exec: true };
    let files = Files { open: vec![open], descriptors: vec![descriptor(3, 0), descriptor(5, 0)] };
    assert_eq!(Files::decode(VERSION, &files.encode()), Ok(files.clone()));
    let wrong = |spoil: fn(&mut Files)| {
        let mut files = files.clone();
        spoil(&mut files);
        Files::decode(VERSION, &files.encode()).expect_err("refused").to_string()
    };
    assert!(wrong(|files| files.descriptors[1].number = 3).contains("descriptor 3 comes after 3"));
    assert!(wrong(|files| files.descriptors[1].open = 1).contains("descriptor 5 refers to open file 1 of 1"));
}

#[test]
fn what_open_files_say_of_each_other_fits_together() {
    let poll = |open| What::Poll { watched: vec![Watched { number: 9, open, events: 1, data: 7 }] };
    let socket = |socket, peer| What::SocketPair {
        socket,
        peer,
        kind: 1,
        content: vec![b"waiting".to_vec()],
        shut: 0,
        buffer_bytes: (1, 2),
        passes_credentials: false,
        timeouts_ns: (5, 0),
    };
    let decoded = |whats: &[What]| {
        let open = whats.iter().map(|what| OpenFile { flags: 2, what: what.clone() }).collect();
        let files = Files { open, descriptors: Vec::new() };
        Files::decode(VERSION, &files.encode()).map(|again| assert_eq!(again, files))
    };
    let fault = |whats: &[What]| decoded(whats).expect_err("refused").to_string();
    assert_eq!(decoded(&[poll(0)]), Ok(()));
    assert!(fault(&[poll(1)]).contains("descriptor 9 is watched, open file 1 is not there"));
    assert_eq!(decoded(&[socket(5, 6), socket(6, 5), socket(7, 0)]), Ok(()));
    assert!(fault(&[socket(5, 6)]).contains("socket 5 is connected to 6"));
    assert!(fault(&[socket(5, 0), socket(5, 0)]).contains("socket 5 is there twice"));
    assert!(fault(&[socket(5, 6), socket(6, 7), socket(7, 6)]).contains("socket 5 is connected to 6"));
}

#[test]
fn the_document_names_kinds_and_version() {
    let document = include_str!("../../../docs/reference/image-format.md");
    for kind in [super::STATE_KIND, super::PAGES_KIND, super::FILES_KIND] {
        assert!(document.contains(&format!("| {kind:#06x} | ")), "{kind:#06x}");
        assert!(document.contains(&format!("### {kind:#06x}: ")), "{kind:#06x}");
    }
    assert!(document.contains(&format!("Their version is {VERSION} ")));
}

#[test]
fn unchanged_pages_are_read_back_and_out_of_order_refused() {
    let run = |address, pages| PageRun { address, pages };
    let unchanged = |runs: &[PageRun]| Unchanged { runs: runs.to_vec() };
    for good in [&[][..], &[run(0x1000, 2), run(0x3000, 1), run(1 << 40, 1 << 20)]] {
        let good = unchanged(good);
        assert_eq!(Unchanged::decode(VERSION, &good.encode()), Ok(good));
    }
    for bad in [
        &[run(0x1000, 0)][..],
        &[run(0x1000, 2), run(0x2000, 1)],
        &[run(0x3000, 1), run(0x1000, 1)],
        &[run(0, u64::MAX)],
    ] {
        let refused = Unchanged::decode(VERSION, &unchanged(bad).encode());
        assert!(matches!(refused, Err(DecodeError::Inconsistent { .. })), "{refused:?}");
    }
}
