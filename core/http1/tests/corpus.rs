//! What fuzzing has found and kept, again: every file of `fuzz/corpus` holds what must hold.

#[path = "../../../fuzz/properties/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/properties/http1.rs"]
mod http1;

use corpus::replay;

#[test]
fn requests() {
    replay("request", http1::request);
}

#[test]
fn first_bytes() {
    replay("first_bytes", http1::first_bytes);
    // Whatever begins a request or a response begins a connection, too.
    replay("request", http1::first_bytes);
    replay("response", http1::first_bytes);
}

#[test]
fn responses() {
    replay("response", http1::response);
}

#[test]
fn bodies() {
    replay("body", http1::body);
}
