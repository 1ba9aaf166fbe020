//! The terminal that a job gives to its only rank: its settings, as they were at the cut.
//!
//! They lie in this process's own memory, and so in its image. The restored process has a new terminal, which it sets accordingly.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use nix::libc;

/// Standard input is a terminal of the job.
static IS_TERMINAL: AtomicBool = AtomicBool::new(false);

/// Words of a `struct termios`, rounded up.
const WORDS: usize = size_of::<libc::termios>().div_ceil(size_of::<u32>());

/// The settings, rows and columns that [`note`] found.
static SETTINGS: [AtomicU32; WORDS] = [const { AtomicU32::new(0) }; WORDS];
static ROWS: AtomicU32 = AtomicU32::new(0);
static COLUMNS: AtomicU32 = AtomicU32::new(0);
static IS_NOTED: AtomicBool = AtomicBool::new(false);

#[derive(Clone, Copy)]
#[repr(C)]
union Settings {
    termios: libc::termios,
    words: [u32; WORDS],
}

impl Settings {
    fn read(terminal: RawFd) -> Option<Settings> {
        let mut settings = Settings { words: [0; WORDS] };
        // SAFETY: the kernel writes the structure, and fails if no terminal is open there. All bits of both members are plain numbers.
        let read = unsafe { libc::tcgetattr(terminal, &raw mut settings.termios) };
        (read == 0).then_some(settings)
    }
}

fn size(terminal: RawFd) -> Option<libc::winsize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the kernel writes four numbers, and fails if no terminal is open there.
    (unsafe { libc::ioctl(terminal, libc::TIOCGWINSZ, &raw mut size) } == 0).then_some(size)
}

pub(crate) fn adopt(is_terminal: bool) {
    IS_TERMINAL.store(is_terminal, Ordering::Relaxed);
}

/// How a program reads from a terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Lines,
    Keys,
}

/// The mode of standard input; `None`: it is no terminal of the job. Has the kernel first take in typed bytes.
pub(crate) fn mode(terminal: RawFd) -> Option<Mode> {
    if !IS_TERMINAL.load(Ordering::Relaxed) {
        return None;
    }
    let mut ready = libc::pollfd { fd: terminal, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which the kernel writes to. Asked this way, a terminal handles what its other end has written.
    unsafe { libc::poll(&raw mut ready, 1, 0) };
    let settings = Settings::read(terminal)?;
    // SAFETY: both members are plain numbers.
    let flags = unsafe { settings.termios.c_lflag };
    Some(if flags & libc::ICANON == 0 { Mode::Keys } else { Mode::Lines })
}

/// Notes the current settings. Allocates nothing, takes no lock.
pub(crate) fn note(terminal: RawFd) {
    if !IS_TERMINAL.load(Ordering::Relaxed) {
        return;
    }
    let Some((settings, size)) = Settings::read(terminal).zip(size(terminal)) else { return };
    // SAFETY: all bits are plain numbers.
    for (place, word) in SETTINGS.iter().zip(unsafe { settings.words }) {
        place.store(word, Ordering::Relaxed);
    }
    ROWS.store(size.ws_row.into(), Ordering::Relaxed);
    COLUMNS.store(size.ws_col.into(), Ordering::Relaxed);
    IS_NOTED.store(true, Ordering::Relaxed);
}

/// Sets the noted settings. The new terminal has the size of the launcher's: where that has changed, the
/// program hears of it as usual.
pub(crate) fn restore(terminal: RawFd) {
    if !IS_NOTED.load(Ordering::Relaxed) {
        return;
    }
    let mut settings = Settings { words: [0; WORDS] };
    // SAFETY: all bits are plain numbers.
    for (word, place) in unsafe { &mut settings.words }.iter_mut().zip(&SETTINGS) {
        *word = place.load(Ordering::Relaxed);
    }
    // SAFETY: the kernel reads the structure. A process in the background would be stopped; this one is its terminal's foreground.
    let _ = unsafe { libc::tcsetattr(terminal, libc::TCSANOW, &raw const settings.termios) };
    let is_same = |size: libc::winsize| {
        (u32::from(size.ws_row), u32::from(size.ws_col))
            == (ROWS.load(Ordering::Relaxed), COLUMNS.load(Ordering::Relaxed))
    };
    if size(terminal).is_some_and(|size| !is_same(size)) {
        // SAFETY: system calls on numbers. Without a group in its foreground nobody shows anything.
        unsafe {
            let group = libc::tcgetpgrp(terminal);
            if group > 0 {
                libc::killpg(group, libc::SIGWINCH);
            }
        }
    }
}
