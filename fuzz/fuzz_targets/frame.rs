//! See `properties::frame`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::frame(bytes));
