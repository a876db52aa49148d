//! What fuzzing has found and kept, again: every file of `fuzz/corpus` holds what must hold.

#[path = "../../../fuzz/properties/http1.rs"]
mod http1;

fn replay(target: &str, property: fn(&[u8])) {
    let folder = format!("{}/../../fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let mut count = 0;
    for file in files {
        let path = file.expect("an entry of the folder").path();
        println!("{}", path.display());
        property(&std::fs::read(&path).expect("a readable file"));
        count += 1;
    }
    assert!(count > 10, "only {count} files in {folder}");
}

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
