//! One defect a test. Each test passes where no tool looks.

use std::cell::UnsafeCell;
use std::hint::black_box;
use std::sync::Arc;

#[test]
fn sound() {
    let shared = Arc::new(std::sync::Mutex::new(vec![1, 2, 3]));
    let other = Arc::clone(&shared);
    std::thread::spawn(move || other.lock().unwrap().push(4)).join().unwrap();
    assert_eq!(shared.lock().unwrap().len(), 4);
}

#[test]
fn use_after_free() {
    let bytes = Box::new([7u8; 64]);
    let place: *const u8 = bytes.as_ptr();
    drop(bytes);
    // SAFETY: none; this is the defect.
    black_box(unsafe { place.read() });
}

#[test]
fn read_beyond_the_end() {
    let bytes = black_box(vec![7u8; 64]);
    // SAFETY: none; this is the defect.
    black_box(unsafe { bytes.as_ptr().wrapping_add(64).read() });
}

#[test]
fn uninitialised_byte() {
    let bytes = black_box(Box::new(std::mem::MaybeUninit::<[u8; 64]>::uninit()));
    // SAFETY: none; this is the defect.
    black_box(unsafe { bytes.as_ptr().cast::<u8>().read() } == 7);
}

#[test]
fn leak() {
    black_box(Box::into_raw(Box::new([7u8; 64])));
}

struct Shared(UnsafeCell<u64>);

// SAFETY: none; this is the defect.
unsafe impl Sync for Shared {}

#[test]
fn data_race() {
    let shared = Arc::new(Shared(UnsafeCell::new(0)));
    let other = Arc::clone(&shared);
    // SAFETY: none; this is the defect.
    let thread = std::thread::spawn(move || unsafe { *other.0.get() += 1 });
    // SAFETY: none; this is the defect.
    unsafe { *shared.0.get() += 1 };
    thread.join().unwrap();
}
