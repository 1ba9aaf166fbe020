//! Descriptors, described in one process and made anew in another one.
//!
//! Every scenario opens something in a forked child and describes it. A second child makes it anew, and looks
//! whether it behaves as the first one's would. This process has one thread, so that its forks may do as they
//! like.

#![expect(clippy::host_endian_bytes, reason = "the kernel speaks in the machine's order")]

mod act;
mod ends;
mod named;
mod refused;
mod waiting;

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// An allocator that ends the process where nothing may allocate.
struct Guarded;

static FORBIDDEN: AtomicBool = AtomicBool::new(false);

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Guarded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if FORBIDDEN.load(Ordering::Relaxed) {
            std::process::abort();
        }
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if FORBIDDEN.load(Ordering::Relaxed) {
            std::process::abort();
        }
        // SAFETY: the caller's.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Guarded = Guarded;

/// A scenario, by name.
type Scenario = (&'static str, fn(&Path));

/// Arguments are those of libtest that `cargo test` and nextest give: parts of names, `--skip PART`, `--exact`, and `--list`.
fn main() {
    let scenarios: Vec<Scenario> = [named::ALL, ends::ALL, refused::ALL, waiting::ALL].concat();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |option: &str| words.iter().any(|word| word == option);
    let is_skip = |at: usize| at > 0 && words[at - 1] == "--skip";
    let names = |skip: bool| {
        let parts =
            words.iter().enumerate().filter(move |(at, word)| !word.starts_with('-') && is_skip(*at) == skip);
        parts.map(|(_, word)| word.as_str()).collect::<Vec<_>>()
    };
    if has("--list") {
        let listed = scenarios.iter().filter(|_| !has("--ignored"));
        listed.for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    let (wanted, skipped, exact) = (names(false), names(true), has("--exact"));
    let matches = |name: &str, part: &str| if exact { name == part } else { name.contains(part) };
    let is_wanted = |name: &str| {
        (wanted.is_empty() || wanted.iter().any(|part| matches(name, part)))
            && !skipped.iter().any(|part| matches(name, part))
    };
    let mut run = 0;
    for (name, scenario) in scenarios {
        if !is_wanted(name) {
            continue;
        }
        let directory = tempfile::tempdir().expect("a directory for files");
        scenario(directory.path());
        println!("test {name} ... ok");
        run += 1;
    }
    println!("\ntest result: ok. {run} passed");
}
