//! What fuzzing starts from, and what it has found and kept: the files of `fuzz/corpus`.

use std::path::{Path, PathBuf};

fn files(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = files.map(|file| file.expect("an entry of the folder").path()).collect();
    files.sort();
    assert!(files.len() > 10, "only {} files in {}", files.len(), folder.display());
    files
}

/// Holds a property against all that is kept for a target; the one that breaks it is the last that is named.
pub fn replay(target: &str, property: fn(&[u8])) {
    for file in files(target) {
        println!("{}", file.display());
        property(&std::fs::read(&file).expect("a readable file"));
    }
}

/// All that is kept for a target, in the order of its names.
#[allow(dead_code, reason = "not everybody who replays damages")]
pub fn kept(target: &str) -> Vec<Vec<u8>> {
    files(target).iter().map(|file| std::fs::read(file).expect("a readable file")).collect()
}
