//! A process that the test describes by hand, from outside, is restored in another one.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::state::files::{Descriptor, OpenFile, What};
use crate::state::machine::Machine;
use crate::state::memory::{Advice, MappedFile, Memory, PageRun, Parts, Region};
use crate::state::signals::IntervalTimer;
use crate::state::signals::{Action, Signals};
use crate::state::threads::{At, Thread};
use crate::state::{Program as ProgramState, Resume, VERSION};

const FOLDER: &str = "STILLWIRE_TEST_RESTORE";
/// The exit code of the saved process when it continues correctly.
const GOOD: i32 = 42;

/// Filled by the saved process, read by the code that describes it.
static REGISTERS: [AtomicU64; arch::REGISTERS] = [const { AtomicU64::new(0) }; arch::REGISTERS];
static TID_ADDRESS: AtomicU64 = AtomicU64::new(0);
static BASE: AtomicU64 = AtomicU64::new(0);
/// Changed in the saved process alone.
static MARK: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn sleep_for_ever(_: *mut std::ffi::c_void) -> u64 {
    MARK.store(77, Ordering::SeqCst);
    loop {
        // SAFETY: touches no memory.
        unsafe { arch::syscall(libc::SYS_pause, [0; 6]) };
    }
}

/// The saved process: a fork of the test, with one thread.
fn saved_process() -> ! {
    let big: Vec<u64> = (0..300_000).collect();
    let mut address = 0u64;
    // SAFETY: the kernel writes one word; the registers have room; `sleep_for_ever` does not unwind.
    let value = unsafe {
        arch::syscall(
            libc::SYS_prctl,
            [libc::PR_GET_TID_ADDRESS as usize, &raw mut address as usize, 0, 0, 0, 0],
        );
        TID_ADDRESS.store(address, Ordering::SeqCst);
        BASE.store(arch::segment_bases().0, Ordering::SeqCst);
        arch::call_noting_registers(REGISTERS.as_ptr() as *mut u64, sleep_for_ever, std::ptr::null_mut())
    };
    let sum: u64 = big.iter().sum();
    let file = std::fs::read_link("/proc/self/exe").is_ok_and(|path| path.ends_with(env_exe_name()));
    let time = std::time::SystemTime::now().elapsed().is_ok();
    let good = value == arch::RESTORED
        && MARK.load(Ordering::SeqCst) == 77
        && sum == 300_000 * 299_999 / 2
        && file
        && time
        && std::thread::spawn(|| std::thread::current().id()).join().is_ok();
    // SAFETY: ends the process without the test's own ends.
    unsafe { libc::_exit(if good { GOOD } else { 1 }) }
}

fn env_exe_name() -> std::path::PathBuf {
    let path = std::env::current_exe().expect("its own path");
    path.file_name().expect("a name").into()
}

fn describe(pid: i32, folder: &Path) -> ProcessState {
    let text = std::fs::read(format!("/proc/{pid}/maps")).expect("its maps");
    let memory = File::open(format!("/proc/{pid}/mem")).expect("its memory");
    let word = |address: &AtomicU64| {
        let mut bytes = [0; 8];
        memory.read_exact_at(&mut bytes, address.as_ptr() as u64).expect("a static of the child");
        u64::from_le_bytes(bytes)
    };
    let (mut regions, mut files, mut runs, mut pages) =
        (Vec::new(), Vec::<MappedFile>::new(), Vec::new(), Vec::new());
    for line in maps::lines(&text).map(|line| line.expect("a line")) {
        if line.is_everywhere() {
            continue;
        }
        let mut advice = Advice::empty();
        let backing = if line.is_vvar() {
            Backing::Vvar
        } else if line.is_vdso() {
            Backing::Vdso
        } else if line.inode == 0 {
            advice.set(Advice::GROWS_DOWN, line.name == b"[stack]");
            Backing::Anonymous
        } else {
            let path = line.path();
            let file = files.iter().position(|file| file.path == path).unwrap_or_else(|| {
                let there = File::open(std::ffi::OsStr::from_bytes(&path)).expect("a mapped file");
                files.push(MappedFile {
                    path,
                    bytes: there.metadata().expect("its length").len(),
                    modified_ns: 0,
                    build_id: Some(crate::build_id::of(&there).expect("only programs are mapped")),
                    is_held: false,
                });
                files.len() - 1
            });
            Backing::File { file: u32::try_from(file).expect("few"), offset: line.offset, is_shared: false }
        };
        let is_saved = backing != Backing::Vvar && line.protection.contains(Protection::READ);
        if is_saved {
            let at = pages.len();
            pages.resize(at + line.bytes() as usize, 0);
            memory.read_exact_at(&mut pages[at..], line.start).expect("readable");
            runs.push(PageRun { address: line.start, pages: line.bytes() / PAGE_BYTES });
        }
        let (start, end, protection) = (line.start, line.end, line.protection);
        regions.push(Region { start, end, protection, backing, advice });
    }
    std::fs::write(folder.join("pages"), [vec![9; 4096], pages].concat()).expect("written");
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("its stat");
    let fields: Vec<u64> = stat
        .rsplit(") ")
        .next()
        .expect("fields")
        .split(' ')
        .map(|field| field.trim().parse().unwrap_or(0))
        .collect();
    let field = |number: usize| fields[number - 3];
    let auxiliary = std::fs::read(format!("/proc/{pid}/auxv")).expect("its auxiliary vector");
    ProcessState {
        machine: crate::machine(),
        program: ProgramState {
            pid: pid.cast_unsigned(),
            executable: std::env::current_exe().expect("a path").into_os_string().into_encoded_bytes(),
            directory: b"/".to_vec(),
            personality: 0,
            umask: 0o22,
            limits: vec![(u64::MAX, u64::MAX); 3],
            dumpable: 1,
            huge_pages_disabled: false,
            is_subreaper: false,
            barriers: 0,
        },
        memory: Memory {
            parts: Parts {
                start_code: field(26),
                end_code: field(27),
                start_stack: field(28),
                start_data: field(45),
                end_data: field(46),
                start_brk: field(47),
                brk: field(47),
                arg_start: field(48),
                arg_end: field(49),
                env_start: field(50),
                env_end: field(51),
            },
            auxiliary: auxiliary
                .chunks_exact(8)
                .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
                .collect(),
            regions,
            files,
            shared: Vec::new(),
            runs,
            guards: Vec::new(),
        },
        threads: vec![Thread {
            tid: pid.cast_unsigned(),
            at: At::Agent { registers: REGISTERS.iter().map(word).collect(), mask: 0 },
            tls_base: word(&BASE),
            gs_base: 0,
            tid_address: word(&TID_ADDRESS),
            robust_list: (0, 0),
            rseq: None,
            name: *b"saved\0\0\0\0\0\0\0\0\0\0\0",
            parent_death_signal: 0,
            timer_slack_ns: 50_000,
            processors: None,
            scheduling: None,
        }],
        signals: Signals {
            actions: vec![Action::default(); 64],
            pending: Vec::new(),
            interval_timers: [IntervalTimer::default(); 3],
            timers: Vec::new(),
        },
        resume: Resume { entry: entry() },
    }
}

/// A fork of this test, described; it is gone afterwards.
fn saved(folder: &Path) -> ProcessState {
    // SAFETY: the child only computes until it sleeps, and in the restored process it is alone.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        saved_process();
    }
    let is_asleep =
        || std::fs::read_to_string(format!("/proc/{pid}/syscall")).is_ok_and(|text| text.starts_with("34 "));
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !is_asleep() {
        assert!(std::time::Instant::now() < deadline, "the child sleeps after it has noted its registers");
        std::thread::yield_now();
    }
    let state = describe(pid, folder);
    // SAFETY: the test's own child.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
    state
}

/// Before a process of this program has a second thread: restores the image in the folder, if there is one.
#[used]
#[unsafe(link_section = ".init_array")]
static RESTORER: extern "C" fn() = restorer;

extern "C" fn restorer() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    let state = std::fs::read(folder.join("state")).expect("a state");
    let state = ProcessState::decode(VERSION, &state).expect("a good state");
    let pages = File::open(folder.join("pages")).expect("pages");
    let pages = Pages { file: pages.as_fd(), offset: 4096, base_pages: None, are_freed: false };
    let given: Vec<(String, RawFd)> = (0..3).map(|number| (number.to_string(), number)).collect();
    let error = restore(&state, &standard_files(), pages, &given, Policy::default(), Ids::New);
    let error = error.expect_err("it does not come back");
    eprintln!("refused: {error}");
    std::process::exit(2);
}

/// Input, output and errors, handed in.
fn standard_files() -> Files {
    let open = |number: u32| OpenFile { flags: 2, what: What::HandedIn { name: number.to_string() } };
    let descriptor = |number: u32| Descriptor { number, open: number, closes_on_exec: false };
    Files { open: (0..3).map(open).collect(), descriptors: (0..3).map(descriptor).collect() }
}

fn restored(state: &ProcessState, folder: &Path) -> Output {
    std::fs::write(folder.join("state"), state.encode()).expect("written");
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.env(FOLDER, folder).output().expect("started")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_process_goes_on_in_another_one_whatever_lies_where() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = saved(folder.path());
    for _ in 0..30 {
        let output = restored(&state, folder.path());
        assert_eq!(output.status.code(), Some(GOOD), "{:?} {}", output.status, text(&output));
    }
}

#[test]
fn the_code_of_another_kernel_is_led_to_this_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = saved(folder.path());
    let index = state.memory.regions.iter().position(|region| region.backing == Backing::Vdso);
    let piece = plan::pieces(&state).into_iter().find(|piece| Some(piece.region) == index).expect("a vdso");
    let path = folder.path().join("pages");
    let mut pages = std::fs::read(&path).expect("pages");
    // A byte that is no code: the last one of the last page.
    pages[4096 + usize::try_from(piece.offset + piece.bytes).expect("short") - 1] ^= 1;
    std::fs::write(&path, pages).expect("written");
    let output = restored(&state, folder.path());
    assert_eq!(output.status.code(), Some(GOOD), "{:?} {}", output.status, text(&output));
}

#[test]
fn what_fails_after_there_is_no_way_back_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut state = saved(folder.path());
    // A page more than the file has. Last of all may be the kernel's code, which is read while there is a way back.
    let whole = state.clone();
    let start = state.memory.regions.last().expect("many").end;
    let (end, protection) = (start + PAGE_BYTES, Protection::READ | Protection::WRITE);
    let (backing, advice) = (Backing::Anonymous, Advice::empty());
    state.memory.regions.push(Region { start, end, protection, backing, advice });
    state.memory.runs.push(PageRun { address: start, pages: 1 });
    let output = restored(&state, folder.path());
    assert_eq!(output.status.code(), Some(EXIT_FAILED.into()), "{}", text(&output));
    assert!(text(&output).contains("restore: cannot read "), "{}", text(&output));
    assert!(text(&output).contains("another answer than the only right one"), "{}", text(&output));

    let mut state = whole;
    state.memory.parts.start_code = 1;
    let output = restored(&state, folder.path());
    assert_eq!(output.status.code(), Some(EXIT_FAILED.into()), "{}", text(&output));
    assert!(text(&output).contains("PR_SET_MM_MAP"), "{}", text(&output));
    assert!(text(&output).contains("Invalid argument (errno 22)"), "{}", text(&output));
}

#[test]
fn another_machine_and_a_changed_file_are_refused_before_anything_is_taken_away() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = saved(folder.path());
    let refusal = |change: &dyn Fn(&mut ProcessState)| {
        let mut state = state.clone();
        change(&mut state);
        let output = restored(&state, folder.path());
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        text(&output)
    };
    let reported = refusal(&|state| state.machine.features[0] = !0);
    assert!(reported.contains("refused: this machine's processor lacks features"), "{reported}");
    let reported = refusal(&|state| {
        let Machine { vector_components, .. } = &mut state.machine;
        *vector_components |= 1 << 62;
    });
    assert!(reported.contains("vector registers"), "{reported}");
    let reported = refusal(&|state| state.memory.files[0].build_id = Some(vec![1, 2, 3]));
    assert!(reported.contains("and was of 010203: put the file back"), "{reported}");
    let reported = refusal(&|state| state.program.directory = b"/nonexistent".to_vec());
    assert!(reported.contains("cannot enter the working directory /nonexistent"), "{reported}");
}
