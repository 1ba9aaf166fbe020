//! Any bytes as an image file: header, table, sections, by both readers.
#![no_main]

#[path = "../../store/corpus/properties.rs"]
#[expect(dead_code, reason = "each target uses its part")]
mod properties;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    properties::image(bytes);
});
