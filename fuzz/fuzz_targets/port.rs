//! See `properties::port`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::port(bytes));
