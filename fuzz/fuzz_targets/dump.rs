//! See `properties::dump`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::dump(bytes));
