#![no_main]

#[path = "../properties/trace.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|data: &[u8]| property::trace(data));
