//! See `properties::image`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::image(bytes));
