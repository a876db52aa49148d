//! What fuzzing has found and kept, again: every file of a folder of `fuzz/corpus` holds what must hold.

#[path = "../../../fuzz/properties/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/properties/path.rs"]
mod path;
#[path = "../../../fuzz/properties/proxy_protocol.rs"]
mod proxy_protocol;
#[path = "../../../fuzz/properties/trace.rs"]
mod trace;

use corpus::replay;

#[test]
fn paths() {
    replay("path", path::path);
}

#[test]
fn proxy_headers() {
    replay("proxy_protocol", proxy_protocol::proxy_protocol);
}

#[test]
fn traces() {
    replay("trace", trace::trace);
}

proptest::proptest! {
    /// The same of trace context: fields of the right names, of parts that are right, nearly right and wrong.
    #[test]
    fn traces_at_random(fields in proptest::collection::vec((0..7_usize, proptest::collection::vec(0..14_usize, 0..8)), 0..5)) {
        let names = ["traceparent", "b3", "x-b3-traceid", "x-b3-spanid", "x-b3-sampled", "x-b3-flags", "tracestate"];
        let parts = [
            "00", "-", "-", "-", "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "01", "1", "0", "d", "ff", "true",
            "0000000000000000", "x",
        ];
        let line = |(name, chosen): &(usize, Vec<usize>)| {
            let value: String = chosen.iter().map(|part| parts[*part]).collect();
            format!("{}: {value}\n", names[*name])
        };
        trace::trace(fields.iter().map(line).collect::<String>().as_bytes());
    }


    /// What a fuzzer would try first, where there is none.
    #[test]
    fn proxy_headers_at_random(begin in 0..3_usize, head in proptest::array::uniform4(0..64_u8), rest in proptest::collection::vec(proptest::num::u8::ANY, 0..80)) {
        let begins: [&[u8]; 3] = [b"", b"PROXY TCP4 1.2.3.4 5.6.7.8 1 ", b"\r\n\r\n\0\r\nQUIT\n"];
        let [command, family, _, length] = head;
        proxy_protocol::proxy_protocol(&[begins[begin], &[command, family, 0, length], &rest].concat());
        proxy_protocol::proxy_protocol(&[begins[begin], &[0x20 | (command & 1), [0x11, 0x21, 0x31, 0][usize::from(family) % 4], 0, length], &rest].concat());
    }
}
