//! See `properties::scenario`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::scenario(bytes));
