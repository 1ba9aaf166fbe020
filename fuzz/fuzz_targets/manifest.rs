//! Any bytes as a text record: manifest, commit record, decision, job file.
#![no_main]

#[path = "../../store/corpus/properties.rs"]
#[expect(dead_code, reason = "each target uses its part")]
mod properties;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    properties::manifest(bytes);
});
