#![no_main]

#[path = "../properties/path.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|data: &[u8]| property::path(data));
