//! See `properties::capture`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::capture(bytes));
