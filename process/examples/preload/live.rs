//! The two ends of a move: the program that is sent, and the fresh one that becomes it.
//!
//! The sender connects to a socket in the file system, and sends parts: two words, and pages. After the pages come the
//! state, the descriptors and the pages that were left out.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use process::capture::{Held, HeldOutcome, Mode, Options, Prepared};
use process::declared::Declared;
use process::files::Policy;
use process::live::Rounds;
use process::restore::{Ids, Staging};
use process::state::files::What;
use process::state::memory::PageRun;
use process::state::{Files, ProcessState, VERSION};

use crate::handed_in;

/// In place of an address: what follows is no page.
const END: u64 = u64::MAX;

/// Pages in a part, at most.
const PART_BYTES: usize = 1 << 20;

/// How long the decider of a move may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a program is moved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Tracked,
    /// With room for one page.
    WithoutRoom,
    Untracked,
}

/// Nothing is summed.
struct NoSum;

impl process::Sum for NoSum {
    fn update(&mut self, _: &[u8]) {}

    fn value(&self) -> u64 {
        0
    }
}

fn clock_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a time of this frame.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

fn put(line: &mut UnixStream, words: [u64; 2], bytes: &[u8]) -> io::Result<()> {
    let [first, second] = words.map(u64::to_le_bytes);
    line.write_all(&[first, second].concat())?;
    line.write_all(bytes)
}

/// Sends this program: `move PATH ROUNDS HOW WAIT`. The answer is `released`, or `restored` in the one that it became.
/// Meanwhile, `held` on the control line; then a line from there lets the program go on.
pub(crate) fn send(words: &[&str], control: &mut UnixStream) -> io::Result<String> {
    let [path, rounds_count, how, wait] = words else { return Err(io::Error::other("move: four words")) };
    let how = match *how {
        "tracked" => How::Tracked,
        "without-room" => How::WithoutRoom,
        "untracked" => How::Untracked,
        other => return Err(io::Error::other(format!("no move {other:?}"))),
    };
    let failed = |errno: process::Errno| io::Error::from_raw_os_error(errno.0);
    let mut line = UnixStream::connect(path)?;
    let mut declared = Declared { handed_in: handed_in(control.as_raw_fd()), ..Declared::new() };
    declared.remade.push(("the line of the move".to_owned(), line.as_raw_fd()));
    let mut rounds = if how == How::Untracked { None } else { Some(Rounds::open().map_err(failed)?) };
    let mut round_bytes = Vec::new();
    for _ in 0..rounds_count.parse::<u32>().map_err(io::Error::other)? {
        let Some(rounds) = &mut rounds else { break };
        let mut around = declared.clone();
        rounds.declare(&mut around);
        let mut each = |address, pages: &[u8]| put(&mut line, [address, pages.len() as u64], pages);
        let round = rounds.round(&around, &mut each).map_err(io::Error::other)?;
        round_bytes.push(format!("{}:{}", round.bytes, round.took_ns / 1000));
    }
    let mut options = Options { mode: Mode::Sync, ..Options::default() };
    if let Some(rounds) = &rounds {
        rounds.declare(&mut declared);
        let left = rounds.left(&declared).map_err(failed)?;
        let copy_bytes = if how == How::WithoutRoom { 4096 } else { left * 2 + (8 << 20) };
        options = Options { mode: Mode::Scan, copy_bytes, ..options };
    }
    let mut prepared = Prepared::look(&declared, options).map_err(io::Error::other)?;
    if let Some(rounds) = &rounds {
        prepared.handed_over(rounds.handed_over());
    }
    let waits = *wait == "wait";
    let mut outcome = Ok(());
    let began = clock_ns();
    let mut hold = |held: &mut Held<'_>| {
        outcome = finish(&mut line, held, waits, began).and_then(|()| wait_for_word(control, held));
    };
    let was_held = prepared.capture_held(&mut NoSum, &mut hold);
    match was_held.map_err(io::Error::other)? {
        HeldOutcome::Restored => {
            let now = clock_ns();
            // Of the process that was moved; `outcome` may be in part what came after the stop.
            std::mem::forget((line, outcome));
            if let Some(rounds) = rounds {
                rounds.forget();
            }
            Ok(format!("restored {now}"))
        }
        HeldOutcome::Released(_) => outcome.map(|()| format!("released after rounds of {round_bytes:?}")),
    }
}

/// Sends the rest, while all threads stand still.
fn finish(line: &mut UnixStream, held: &mut Held<'_>, waits: bool, began: u64) -> io::Result<()> {
    for (address, pages) in held.pages() {
        put(line, [address, pages.len() as u64], pages)?;
    }
    let image = held.image();
    let unchanged = postcard::to_allocvec(&image.unchanged).map_err(io::Error::other)?;
    for section in [image.state.encode(), image.files.encode(), unchanged] {
        put(line, [END, section.len() as u64], &section)?;
    }
    put(line, [END, u64::from(waits)], &[])?;
    let is_whole = held.is_in_place();
    let pause = held.pause();
    assert!(image.unchanged.is_empty() || !is_whole, "only a copy leaves out pages");
    let mut control = control_of(image)?;
    let report = format!(
        "held {} bytes={} whole={is_whole} total_ns={} stop_ns={} state_ns={} memory_ns={}\n",
        began, image.pages_bytes, pause.total_ns, pause.stop_ns, pause.state_ns, pause.memory_ns
    );
    control.0.write_all(report.as_bytes())
}

/// Not closed by its drop.
struct Borrowed(std::mem::ManuallyDrop<UnixStream>);

fn borrowed(number: RawFd) -> Borrowed {
    use std::os::fd::FromRawFd;
    // SAFETY: open, and never closed by this value.
    Borrowed(std::mem::ManuallyDrop::new(unsafe { UnixStream::from_raw_fd(number) }))
}

/// The number that the control line has in a process.
fn control_number(files: &Files) -> io::Result<RawFd> {
    let is_control = |what: &What| matches!(what, What::HandedIn { name } if name == "control");
    let found = files.descriptors.iter().find(|one| is_control(&files.open[one.open as usize].what));
    found.map(|one| one.number.cast_signed()).ok_or_else(|| io::Error::other("no control line"))
}

fn control_of(image: &process::capture::Image) -> io::Result<Borrowed> {
    control_number(&image.files).map(borrowed)
}

/// Waits for a line, and shows meanwhile that this thread lives.
fn wait_for_word(control: &mut UnixStream, held: &mut Held<'_>) -> io::Result<()> {
    let mut byte = [0];
    loop {
        let mut poll = libc::pollfd { fd: control.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, of this frame.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 200) };
        if !held.beat() {
            return Err(io::Error::other("the threads went on by themselves"));
        }
        if ready > 0 && (control.read(&mut byte)? == 0 || byte[0] == b'\n') {
            return Ok(());
        }
    }
}

/// Becomes the program that is sent to a socket at `path`. Comes back only if it fails.
pub(crate) fn receive(path: &str, control: RawFd, ids: Ids) -> io::Error {
    let Err(error) = try_to_receive(path, control, ids);
    error
}

fn try_to_receive(path: &str, control: RawFd, ids: Ids) -> io::Result<std::convert::Infallible> {
    let listener = UnixListener::bind(path)?;
    borrowed(control).0.write_all(b"listening\n")?;
    let mut line = listener.accept()?.0;
    let mut staging = Staging::new().map_err(io::Error::other)?;
    let mut pages = vec![0; PART_BYTES];
    let mut sections: Vec<Vec<u8>> = Vec::new();
    let waits = loop {
        let mut words = [0; 16];
        line.read_exact(&mut words)?;
        let (first, second) = words.split_at(8);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let (address, bytes) = (word(first), usize::try_from(word(second)).expect("64-bit"));
        if address == END && sections.len() == 3 {
            break bytes != 0;
        }
        if address == END {
            let mut section = vec![0; bytes];
            line.read_exact(&mut section)?;
            sections.push(section);
            continue;
        }
        let pages = &mut pages[..bytes];
        line.read_exact(pages)?;
        staging.place(address, pages).map_err(io::Error::other)?;
    };
    let state = ProcessState::decode(VERSION, &sections[0]).map_err(io::Error::other)?;
    let files = Files::decode(VERSION, &sections[1]).map_err(io::Error::other)?;
    let unchanged: Vec<PageRun> = postcard::from_bytes(&sections[2]).map_err(io::Error::other)?;
    let number = control_number(&files)?;
    let (staged, received_ns) = (staging.bytes(), clock_ns());
    let mut ready = || {
        let mut control = borrowed(number);
        let mut word = [0; 3];
        let report = format!("ready {staged} {received_ns} {}\n", clock_ns());
        let told = control.0.write_all(report.as_bytes());
        if !waits {
            return told.map_err(|error| error.to_string());
        }
        control.0.set_read_timeout(Some(PATIENCE)).map_err(|error| error.to_string())?;
        told.and_then(|()| control.0.read_exact(&mut word)).map_err(|error| error.to_string())?;
        control.0.set_read_timeout(None).map_err(|error| error.to_string())?;
        if &word == b"go\n" { Ok(()) } else { Err(format!("the word was {word:?}")) }
    };
    let (given, policy) = (handed_in(control), Policy::default());
    process::restore::restore_staged(&state, &files, staging, &unchanged, &given, policy, ids, &mut ready)
        .map_err(io::Error::other)
}
