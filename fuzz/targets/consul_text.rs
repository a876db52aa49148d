#![no_main]

#[path = "../properties/consul_text.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|data: &[u8]| property::consul_text(data));
