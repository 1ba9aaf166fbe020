//! Sections of processes with one of everything.

use process::state::files::{Descriptor, Lock, LockKind, Marks, OpenFile, Regular, Tail, Watched, What};
use process::state::machine::Machine;
use process::state::memory::{
    Advice, Backing, MappedFile, Memory, PageRun, Parts, Protection, Region, SharedObject,
};
use process::state::signals::{Action, IntervalTimer, Pending, Signals, Timer};
use process::state::threads::{At, Rseq, Scheduling, Thread};
use process::state::{Files, ProcessState, Program, Resume, Unchanged};

use crate::corpora::seeds::Seed;

pub(crate) fn all() -> Vec<Seed> {
    let seed = |name: &str, bytes: Vec<u8>| (name.to_owned(), bytes);
    let mut large = state();
    large.memory.regions = (1..200u64)
        .map(|at| region(at << 20, (at << 20) + (at << 12), Backing::Anonymous))
        .chain([region(1 << 40, 1 << 41, Backing::Anonymous)])
        .collect();
    large.memory.runs = (1..200u64).map(|at| PageRun { address: at << 20, pages: at.div_ceil(2) }).collect();
    large.memory.guards = vec![PageRun { address: 1 << 40, pages: 1 << 28 }];
    large.resume.entry = 1 << 40;
    vec![
        seed("state", state().encode()),
        seed("state-of-many-regions", large.encode()),
        seed("files", Files { open: open(), descriptors: descriptors() }.encode()),
        seed("files-none", Files::default().encode()),
        seed("unchanged", Unchanged { runs: state().memory.runs }.encode()),
        seed("unchanged-many", Unchanged { runs: large.memory.runs }.encode()),
    ]
}

fn region(start: u64, end: u64, backing: Backing) -> Region {
    let protection = Protection::READ | Protection::EXECUTE;
    Region { start, end, protection, backing, advice: Advice::HUGE | Advice::DONT_FORK }
}

fn thread(tid: u32, at: At) -> Thread {
    Thread {
        tid,
        at,
        tls_base: 0x7000_0000_0000,
        gs_base: 1,
        tid_address: 0x7010,
        robust_list: (0x7020, 24),
        rseq: (tid == 10).then_some(Rseq { address: 0x7040, bytes: 32, signature: 0x5305_3053 }),
        name: *b"worker\0\0\0\0\0\0\0\0\0\0",
        parent_death_signal: 9,
        timer_slack_ns: 50_000,
        processors: (tid == 10).then(|| vec![1, 0, u64::MAX]),
        scheduling: (tid == 10).then_some(Scheduling([48, 0, 19, 0, 0, 0])),
    }
}

fn state() -> ProcessState {
    let file = Backing::File { file: 0, offset: 4096, is_shared: true };
    let parts = Parts {
        start_code: 0x1000,
        end_code: 0x1800,
        start_data: 0x3000,
        end_data: 0x3100,
        start_brk: 0x8000,
        brk: 0x9000,
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
            region(0x1000, 0x3000, file),
            region(0x3000, 0x8000, Backing::Shared { object: 0, offset: 0 }),
            region(0x9000, 0xb000, Backing::Vdso),
            region(0xc000, 0xd000, Backing::Vvar),
        ],
        files: vec![MappedFile {
            path: b"/lib/libc.so".to_vec(),
            bytes: 12_345,
            modified_ns: -1,
            build_id: Some(vec![1; 20]),
            is_held: true,
        }],
        shared: vec![SharedObject { bytes: 0x5000, name: b"/dev/zero".to_vec() }],
        runs: vec![PageRun { address: 0x2000, pages: 2 }, PageRun { address: 0x9000, pages: 1 }],
        guards: vec![PageRun { address: 0xc000, pages: 1 }],
    };
    let timer = Timer {
        id: 3,
        clock: -6,
        notify: 4,
        signal: 34,
        value: u64::MAX,
        tid: 11,
        time: IntervalTimer { left_ns: 1, interval_ns: 1_000_000_000 },
    };
    ProcessState {
        machine: Machine {
            architecture: "x86_64".into(),
            kernel: "6.18".into(),
            page_bytes: 4096,
            features: vec![1, u32::MAX],
            vector_components: 0xe7,
            vector_bytes: 2696,
        },
        program: Program {
            pid: 10,
            executable: b"/bin/true".to_vec(),
            directory: b"/".to_vec(),
            personality: 0x0004_0000,
            umask: 0o22,
            limits: vec![(1, u64::MAX)],
            dumpable: 1,
            huge_pages_disabled: true,
            is_subreaper: false,
            barriers: 1 << 4,
        },
        memory,
        threads: vec![
            thread(10, At::Handler { frame: 0x5000 }),
            thread(11, At::Agent { registers: vec![0; 8], mask: u64::MAX }),
        ],
        signals: Signals {
            actions: vec![Action { handler: 1, flags: 2, restorer: 3, mask: 4 }; 2],
            pending: vec![
                Pending { tid: None, signal: 10, info: Some([u64::MAX; 16]) },
                Pending { tid: Some(11), signal: 64, info: None },
            ],
            interval_timers: [IntervalTimer { left_ns: 5, interval_ns: 6 }; 3],
            timers: vec![timer],
        },
        resume: Resume { entry: 0x1010 },
    }
}

fn descriptors() -> Vec<Descriptor> {
    let numbers = (0..).zip([0, 1, 2, 300]);
    let mut all: Vec<Descriptor> =
        numbers.map(|(open, number)| Descriptor { number, open, closes_on_exec: open % 2 == 0 }).collect();
    all.push(Descriptor { number: 301, open: 3, closes_on_exec: false });
    all
}

fn open() -> Vec<OpenFile> {
    let path = |path: &str| path.as_bytes().to_vec();
    let regular = Regular {
        path: path("/tmp/a (deleted)"),
        position: 7,
        bytes: 3,
        modified_ns: 1,
        identity: (8, 9),
        content: Some(vec![1, 2, 3]),
        seals: 1,
        is_shared: true,
        locks: [LockKind::Whole, LockKind::Process, LockKind::Description]
            .map(|kind| Lock { kind, is_exclusive: true, start: 10, last: Some(14) })
            .to_vec(),
        marks: Some(Marks { born_ns: 5, tail: Some(Tail { bytes: 4096, hash: 1 << 100 }) }),
    };
    let socket = |socket, peer| What::SocketPair {
        socket,
        peer,
        kind: 1,
        content: vec![path("waiting"), Vec::new()],
        shut: 2,
        buffer_bytes: (212_992, 212_992),
        passes_credentials: true,
        timeouts_ns: (40_000_000, 0),
    };
    let whats = [
        What::HandedIn { name: "stdin".to_owned() },
        What::Remade { owner: "transport".to_owned() },
        What::Regular(regular),
        What::Directory { path: path("/tmp"), position: 1 << 62 },
        What::Device { path: path("/dev/null") },
        What::Pipe { pipe: 17, is_reader: true, capacity: 65_536, content: vec![path("in it")] },
        What::Pipe { pipe: 17, is_reader: false, capacity: 65_536, content: Vec::new() },
        socket(20, 21),
        socket(21, 20),
        socket(22, 0),
        What::Event { count: u64::MAX - 1, is_semaphore: true },
        What::Poll { watched: vec![Watched { number: 5, open: 3, events: 1 << 31, data: 9 }] },
        What::Timer { clock: 1, time: IntervalTimer { left_ns: 1, interval_ns: 2 }, ticks: 3 },
        What::Signal { mask: 1 << 63 },
        What::Shared { object: 4, position: 5 },
        What::Kernel { path: path("/proc/self/maps"), position: 6 },
    ];
    whats.into_iter().map(|what| OpenFile { flags: 0o100_002, what }).collect()
}
