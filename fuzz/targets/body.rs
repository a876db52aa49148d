#![no_main]

#[path = "../properties/http1.rs"]
#[expect(dead_code, reason = "one property of four")]
mod http1;

libfuzzer_sys::fuzz_target!(|data: &[u8]| http1::body(data));
