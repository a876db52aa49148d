#![no_main]

#[path = "../properties/dns.rs"]
mod property;
#[path = "../../adapters/dns/tests/support/world.rs"]
mod world;
libfuzzer_sys::fuzz_target!(|data: &[u8]| property::dns(data));
