//! See `properties::delta`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::delta(bytes));
