#![no_main]

#[path = "../properties/filter.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|data: &[u8]| property::filter(data));
