#![no_main]

#[path = "../properties/snapshot.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|data: &[u8]| property::snapshot(data));
