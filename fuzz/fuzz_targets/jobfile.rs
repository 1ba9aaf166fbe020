//! See `properties::jobfile`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::jobfile(bytes));
