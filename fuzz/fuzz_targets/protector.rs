//! See `properties::protector`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::protector(bytes));
