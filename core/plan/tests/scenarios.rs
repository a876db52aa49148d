//! Plays `tests/scenarios/*.txt` and compares what is printed.
//!
//! A file is a list of blocks: commands, `----`, and what they printed, up to an empty line. Lines that begin with `#`
//! before the commands are the story. `STARLING_GOLDEN=rewrite cargo test -p starling-plan --test scenarios` writes what is
//! printed now; the difference is for review.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "story/mesh.rs"]
mod mesh;

use std::fs;
use std::path::{Path, PathBuf};

use starling_model::Action;

use mesh::Mesh;

#[test]
fn every_story_ends_as_told() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut files: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "txt"));
    files.sort();
    assert!(files.len() >= 12, "only {} stories in {}", files.len(), folder.display());
    let rewrite = std::env::var("STARLING_GOLDEN").is_ok_and(|value| value == "rewrite");
    let mut failed = Vec::new();
    for file in files {
        let told = fs::read_to_string(&file).unwrap();
        let played = play(&told);
        if rewrite {
            fs::write(&file, &played).unwrap();
        } else if told != played {
            failed.push(format!("{}\n{}", file.display(), first_difference(&told, &played)));
        }
    }
    assert!(failed.is_empty(), "{}\nSTARLING_GOLDEN=rewrite accepts what is printed now", failed.join("\n"));
}

/// The file as it should read: its commands, and what they print now.
fn play(told: &str) -> String {
    let mut mesh = Mesh::new(Action::Allow);
    let mut out = String::new();
    for block in told.split("\n\n").map(str::trim).filter(|block| !block.is_empty()) {
        let commands: Vec<&str> = block.lines().take_while(|line| *line != "----").collect();
        let mut printed = String::new();
        for command in commands.iter().filter(|line| !line.starts_with('#')) {
            printed.push_str(&mesh.run(command));
        }
        out.push_str(&format!("{}\n----\n{printed}\n", commands.join("\n")));
    }
    out.truncate(out.trim_end().len());
    out + "\n"
}

fn first_difference(told: &str, played: &str) -> String {
    let mut lines = told.lines().zip(played.lines()).enumerate();
    match lines.find(|(_, (a, b))| a != b) {
        Some((number, (a, b))) => format!("  line {}\n  told:   {a}\n  played: {b}", number + 1),
        None => format!("  {} lines told, {} played", told.lines().count(), played.lines().count()),
    }
}
