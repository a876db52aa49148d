#![no_main]

#[path = "../properties/proxy_protocol.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|data: &[u8]| property::proxy_protocol(data));
