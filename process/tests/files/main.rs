//! Descriptors, described in one process and made anew in another one.
//!
//! Every scenario opens something in a forked child and describes it, then makes it anew in a second child, which looks
//! whether it behaves as the first one's would. This process has one thread, so that its forks may do what they like.

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

fn main() {
    let scenarios: Vec<Scenario> = [named::ALL, ends::ALL, refused::ALL, waiting::ALL].concat();
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let mut run = 0;
    for (name, scenario) in scenarios {
        if !wanted.is_empty() && !wanted.iter().any(|word| name.contains(word.as_str())) {
            continue;
        }
        let directory = tempfile::tempdir().expect("a directory for files");
        scenario(directory.path());
        println!("test {name} ... ok");
        run += 1;
    }
    println!("\ntest result: ok. {run} passed");
}
