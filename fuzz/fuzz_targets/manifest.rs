//! See `properties::manifest`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::manifest(bytes));
