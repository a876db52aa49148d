//! Requests and their answers, byte for byte, as transcripts. `STARLING_GOLDEN=rewrite` writes the answers anew.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/world.rs"]
mod world;

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use world::World;

/// Headers that every answer has; `tests/transcripts/headers.txt` shows them, elsewhere they would be noise.
const EVERYWHERE: &[&str] = &["vary", "x-consul-default-acl-policy", "content-length"];

/// The headers of a read, likewise.
const OF_READS: &[&str] =
    &["x-consul-knownleader", "x-consul-lastcontact", "x-consul-effective-consistency", "x-consul-query-backend"];

/// Lines: `# …` comment, `> METHOD TARGET`, then body lines, then the answer in lines that begin with `<` and `|`.
async fn replay(text: &str, all_headers: bool) -> String {
    let world = World::new();
    let mut out = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(request) = line.strip_prefix("> ") else {
            match line {
                "! deny by default" => world.deny_by_default(),
                "! a change with receipts" => {
                    world.settle_a_change();
                }
                _ => {}
            }
            if !line.starts_with(['<', '|']) {
                writeln!(out, "{line}").unwrap();
            }
            continue;
        };
        writeln!(out, "{line}").unwrap();
        let mut body = String::new();
        while let Some(line) = lines.next_if(|line| !line.is_empty() && !line.starts_with(['<', '|', '>', '#', '!'])) {
            writeln!(out, "{line}").unwrap();
            writeln!(body, "{line}").unwrap();
        }
        let (method, target) = request.split_once(' ').unwrap();
        answer(&world, method, target, &body, all_headers, &mut out).await;
    }
    out
}

async fn answer(world: &Arc<World>, method: &str, target: &str, body: &str, all_headers: bool, out: &mut String) {
    let (head, text) = world.send(method, target, body).await;
    writeln!(out, "< {}", head.status().as_u16()).unwrap();
    let mut headers: Vec<_> = head.headers().iter().collect();
    headers.sort_by_key(|(name, _)| name.as_str());
    for (name, value) in headers {
        let json = name == "content-type" && value == "application/json";
        let noise = json || EVERYWHERE.contains(&name.as_str()) || OF_READS.contains(&name.as_str());
        if all_headers || !noise {
            writeln!(out, "< {name}: {}", value.to_str().unwrap()).unwrap();
        }
    }
    for line in text.lines() {
        writeln!(out, "| {line}").unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn answers_are_those_of_the_transcripts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts");
    let rewrite = std::env::var("STARLING_GOLDEN").is_ok_and(|value| value == "rewrite");
    let mut names: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    assert!(!names.is_empty());
    for path in names {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let wanted = std::fs::read_to_string(&path).unwrap();
        let found = replay(&wanted, name == "headers.txt").await;
        if rewrite {
            std::fs::write(&path, found).unwrap();
        } else {
            let differs = wanted.lines().zip(found.lines()).position(|(wanted, found)| wanted != found);
            assert_eq!(wanted, found, "{name}, first difference in line {:?}", differs.map(|index| index + 1));
        }
    }
}
