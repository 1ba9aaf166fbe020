//! See `properties::control`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::control(bytes));
