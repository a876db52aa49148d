//! What fuzzing has found and kept, again: every file of `fuzz/corpus/path` holds what must hold.

#[path = "../../../fuzz/properties/path.rs"]
mod property;

#[test]
fn paths() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/path");
    let mut count = 0;
    for file in std::fs::read_dir(folder).expect("a folder") {
        let path = file.expect("an entry of the folder").path();
        println!("{}", path.display());
        property::path(&std::fs::read(&path).expect("a readable file"));
        count += 1;
    }
    assert!(count > 10, "only {count} files");
}
