//! The core touches nothing outside: no clock, file, socket, environment, thread, output, randomness or hash order.
//!
//! Holds for `core/*/src`. Integration tests of the core (`core/*/tests`) may read their scenario files.

use crate::finding::Finding;
use crate::source::Source;
use crate::tokens::{paths, tokens};

struct Banned {
    /// Consecutive segments of a path.
    path: &'static [&'static str],
    why: &'static str,
    fix: &'static str,
}

const HASH_ORDER: &str = "its iteration order differs from run to run, so plans and bytes would too";
const ORDERED: &str = "BTreeMap, BTreeSet or imbl::OrdMap";
const CLOCK: &str = "decisions must be replayable at any time of day";
const PASS_NOW: &str = "take `now` as a parameter";
const OUTSIDE: &str = "the core returns effects, it does not have them";
const TO_SHELL: &str = "do it in adapters/ or programs/ and pass the value in";
const CHANCE: &str = "a decision with ambient randomness cannot be replayed";
const PASS_SEED: &str = "take the random number, or a seed, as a parameter";

const BANNED: &[Banned] = &[
    Banned { path: &["HashMap"], why: HASH_ORDER, fix: ORDERED },
    Banned { path: &["HashSet"], why: HASH_ORDER, fix: ORDERED },
    Banned { path: &["RandomState"], why: HASH_ORDER, fix: ORDERED },
    Banned { path: &["Instant", "now"], why: CLOCK, fix: PASS_NOW },
    Banned { path: &["SystemTime", "now"], why: CLOCK, fix: PASS_NOW },
    Banned { path: &["Timestamp", "now"], why: CLOCK, fix: PASS_NOW },
    Banned { path: &["std", "env"], why: OUTSIDE, fix: TO_SHELL },
    Banned { path: &["std", "fs"], why: OUTSIDE, fix: TO_SHELL },
    Banned { path: &["std", "process"], why: OUTSIDE, fix: TO_SHELL },
    Banned { path: &["std", "thread"], why: OUTSIDE, fix: TO_SHELL },
    Banned { path: &["std", "os"], why: OUTSIDE, fix: TO_SHELL },
    Banned { path: &["TcpListener"], why: OUTSIDE, fix: TO_SHELL },
    Banned { path: &["TcpStream"], why: OUTSIDE, fix: TO_SHELL },
    Banned { path: &["UdpSocket"], why: OUTSIDE, fix: TO_SHELL },
    Banned { path: &["println"], why: OUTSIDE, fix: TO_SHELL },
    Banned { path: &["eprintln"], why: OUTSIDE, fix: TO_SHELL },
    Banned { path: &["thread_rng"], why: CHANCE, fix: PASS_SEED },
    Banned {
        path: &["unsafe"],
        why: "outside bytes reach the core; memory safety there is not a matter of review",
        fix: "safe code, or a crate of its own outside the core with its proof",
    },
];

/// Checks one file; only those of the core can fail.
pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let in_core = source.path.starts_with("core/") && source.path.split('/').nth(2) == Some("src");
    if !in_core {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for path in paths(&tokens(source)) {
        for banned in BANNED.iter().filter(|banned| path.contains(banned.path)) {
            findings.push(Finding {
                path: source.path.clone(),
                line: path.line,
                rule: "core-purity",
                what: format!("{} in the core", banned.path.join("::")),
                why: banned.why.to_owned(),
                fix: banned.fix.to_owned(),
            });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        check(&Source::parse(path, text)).into_iter().map(|finding| (finding.line, finding.what)).collect()
    }

    const CORE: &str = "core/catalog/src/log.rs";

    #[test]
    fn each_way_out_is_refused() {
        for (text, what) in [
            ("use std::collections::HashMap;", "HashMap in the core"),
            ("use std::collections::{BTreeMap, HashSet};", "HashSet in the core"),
            ("let t = Instant::now();", "Instant::now in the core"),
            ("let t = std::time::SystemTime::now();", "SystemTime::now in the core"),
            ("use std::{fmt, env};", "std::env in the core"),
            ("std::fs::read(path)", "std::fs in the core"),
            ("use std::net::{IpAddr, UdpSocket};", "UdpSocket in the core"),
            ("let r = rand::thread_rng();", "thread_rng in the core"),
            ("println!(\"{x}\");", "println in the core"),
            ("unsafe { x }", "unsafe in the core"),
        ] {
            assert_eq!(found(CORE, &format!("//! Log.\n{text}\n")), [(2, what.to_owned())], "{text}");
        }
    }

    #[test]
    fn the_pure_relatives_pass() {
        let text = "use std::net::IpAddr;\nuse std::time::{Duration, Instant, SystemTime};\n\
                    use std::collections::BTreeMap;\n// std::fs, HashMap\nconst A: &str = \"std::env\";\n\
                    const V: &str = env!(\"CARGO_PKG_VERSION\");\n";
        assert_eq!(found(CORE, text), []);
    }

    #[test]
    fn only_the_core_is_held_to_it() {
        let text = "use std::fs;\n";
        assert_eq!(found("adapters/store/src/lib.rs", text), []);
        assert_eq!(found("core/plan/tests/scenarios.rs", text), []);
        assert_eq!(found("core/plan/src/lib.rs", text).len(), 1);
    }
}
