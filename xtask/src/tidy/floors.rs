//! The advisory floor: the lowest version of each crate in `Cargo.lock` in which the holes we know of are closed.
//!
//! The table stands in the tree because a check that needs the network to fetch a database passes or fails by the
//! weather (docs/adr/0005). Whoever reads of an advisory raises a floor here and runs `cargo update -p CRATE`.
//! The list of forbidden crates is `deny.toml`'s; here it is held against the lock file, which takes no second.

use anyhow::Context;
use cargo_metadata::semver::Version;

use super::line_of;
use crate::finding::Finding;

struct Floor {
    name: &'static str,
    /// The lowest good version of each compatible line (`0.8`, `1`, …) that was repaired.
    at_least: &'static [&'static str],
    why: &'static str,
}

const FLOORS: &[Floor] = &[
    Floor {
        name: "aws-lc-sys",
        at_least: &["0.39.0"],
        why: "RUSTSEC-2026-0046 (PKCS7 chain validation), RUSTSEC-2026-0048 (CRL distribution points)",
    },
    Floor { name: "bytes", at_least: &["1.11.1"], why: "RUSTSEC-2026-0007 (out-of-bounds access in reserve)" },
    Floor { name: "crossbeam-channel", at_least: &["0.5.15"], why: "RUSTSEC-2025-0024 (double free on drop)" },
    Floor { name: "h2", at_least: &["0.4.16"], why: "RUSTSEC-2026-0258 (empty DATA frames queued without limit)" },
    Floor { name: "hashbrown", at_least: &["0.15.1"], why: "RUSTSEC-2024-0402 (unsound serialisation)" },
    Floor {
        name: "hickory-proto",
        at_least: &["0.26.2"],
        why: "RUSTSEC-2026-0119 and -0120, closed in 0.26.1; the design asks for 0.26.2",
    },
    Floor {
        name: "rand",
        at_least: &["0.8.6", "0.9.3", "0.10.1"],
        why: "RUSTSEC-2026-0097 (aliased mutable reference from a custom logger)",
    },
    Floor { name: "ring", at_least: &["0.17.12"], why: "RUSTSEC-2025-0009 (panic in AES with overflow checks)" },
    Floor {
        name: "rustls",
        at_least: &["0.23.46"],
        why: "RUSTSEC-2026-0285 (messages across encryption levels), -0346 (secrets in Debug), -0347, -0348, \
              -0349 (unauthenticated downgrade)",
    },
    Floor {
        name: "rustls-webpki",
        at_least: &["0.103.16"],
        why: "RUSTSEC-2026-0049, -0098, -0099 (name constraints), -0104 (panic on a CRL), -0382",
    },
    Floor { name: "slab", at_least: &["0.4.11"], why: "RUSTSEC-2025-0047 (out-of-bounds access)" },
    Floor { name: "time", at_least: &["0.3.47"], why: "RUSTSEC-2026-0009 (stack exhaustion while parsing)" },
    Floor { name: "tokio", at_least: &["1.44.2"], why: "RUSTSEC-2025-0023 (unsound broadcast clone)" },
    Floor { name: "tonic", at_least: &["0.12.3"], why: "RUSTSEC-2024-0376 (remotely ended accept loop)" },
    Floor { name: "tracing-subscriber", at_least: &["0.3.20"], why: "RUSTSEC-2025-0055 (terminal escapes in logs)" },
];

struct Locked {
    name: String,
    version: Version,
    line: usize,
}

/// Holds the lock file against the floors, the forbidden crates of `deny`, and the rule against pre-releases.
pub(crate) fn check(lock: &str, deny: &str) -> anyhow::Result<Vec<Finding>> {
    let forbidden = forbidden_crates(deny)?;
    let mut findings = Vec::new();
    for locked in read_lock(lock)? {
        if let Some(floor) = FLOORS.iter().find(|floor| floor.name == locked.name)
            && let Some(needed) = too_low(&locked.version, floor)?
        {
            findings.push(locked.finding(
                format!("{} {} is below the floor {needed}", locked.name, locked.version),
                floor.why,
                format!("cargo update -p {}", locked.name),
            ));
        }
        if let Some((_, reason)) = forbidden.iter().find(|(name, _)| *name == locked.name) {
            findings.push(locked.finding(
                format!("{} is forbidden", locked.name),
                reason,
                format!("cargo tree -i {} -e all says who wants it; choose another crate or feature", locked.name),
            ));
        }
        if !locked.version.pre.is_empty() {
            findings.push(locked.finding(
                format!("{} {} is a pre-release", locked.name, locked.version),
                "pre-releases (rustls 0.24-dev is the one that tempts) get no advisories and no fixes",
                "take the last released version".to_owned(),
            ));
        }
    }
    Ok(findings)
}

impl Locked {
    fn finding(&self, what: String, why: &str, fix: String) -> Finding {
        Finding {
            path: "Cargo.lock".to_owned(),
            line: self.line,
            rule: "advisory-floor",
            what,
            why: why.to_owned(),
            fix,
        }
    }
}

fn read_lock(lock: &str) -> anyhow::Result<Vec<Locked>> {
    let table: toml::Table = lock.parse().context("parse Cargo.lock")?;
    let packages = table.get("package").and_then(toml::Value::as_array).context("Cargo.lock: an array `package`")?;
    packages
        .iter()
        .map(|package| {
            let field = |name: &str| {
                let value = package.get(name).and_then(toml::Value::as_str);
                value.with_context(|| format!("Cargo.lock: a package without {name}"))
            };
            let (name, version) = (field("name")?, field("version")?);
            // The version follows the name on the next line; that is how cargo writes the file.
            let heading = format!("name = \"{name}\"\nversion = \"{version}\"");
            let line = lock.find(&heading).map_or(1, |start| lock[..start].lines().count() + 1);
            Ok(Locked {
                name: name.to_owned(),
                version: version.parse().with_context(|| format!("Cargo.lock: version of {name}"))?,
                line,
            })
        })
        .collect()
}

/// The floor that `version` lies below, if it does.
///
/// A version is compared with the floor of its own compatible line; in a line without one, with the highest floor.
fn too_low(version: &Version, floor: &Floor) -> anyhow::Result<Option<Version>> {
    let floors = floor
        .at_least
        .iter()
        .map(|text| text.parse::<Version>().with_context(|| format!("floor of {}", floor.name)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let own_line = floors.iter().find(|candidate| compatible_line(candidate) == compatible_line(version));
    let needed = own_line.or(floors.iter().max());
    Ok(needed.filter(|needed| version < needed).cloned())
}

fn compatible_line(version: &Version) -> (u64, u64) {
    if version.major > 0 { (version.major, 0) } else { (0, version.minor) }
}

/// The crates that `[bans] deny` in `deny.toml` names without a version, with its reason.
fn forbidden_crates(deny: &str) -> anyhow::Result<Vec<(String, String)>> {
    let table: toml::Table = deny.parse().context("parse deny.toml")?;
    let entries = table.get("bans").and_then(|bans| bans.get("deny")).and_then(toml::Value::as_array);
    entries
        .context("deny.toml: an array `deny` in [bans]")?
        .iter()
        .enumerate()
        .map(|(index, entry)| {
            let name = entry.get("crate").and_then(toml::Value::as_str);
            let reason = entry.get("reason").and_then(toml::Value::as_str);
            match (name, reason) {
                (Some(name), Some(reason)) => Ok((name.to_owned(), reason.to_owned())),
                (_, _) => {
                    let line = line_of(deny, |line| line.starts_with("deny"));
                    anyhow::bail!("deny.toml:{line}: entry {} of bans.deny needs a crate and a reason", index + 1)
                }
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DENY: &str = "[bans]\ndeny = [{ crate = \"openssl-sys\", reason = \"rustls is our TLS\" }]\n";

    fn lock(packages: &[(&str, &str)]) -> String {
        let mut text = "version = 4\n".to_owned();
        for (name, version) in packages {
            text.push_str(&format!("\n[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n"));
        }
        text
    }

    fn found(packages: &[(&str, &str)]) -> Vec<(usize, String)> {
        let findings = check(&lock(packages), DENY).expect("valid fixtures");
        findings.into_iter().map(|finding| (finding.line, finding.what)).collect()
    }

    #[test]
    fn versions_at_the_floor_pass_and_below_it_fail() {
        assert_eq!(found(&[("h2", "0.4.16"), ("rustls-webpki", "0.104.0"), ("serde", "1.0.0")]), []);
        assert_eq!(
            found(&[("serde", "1.0.0"), ("h2", "0.4.15")]),
            [(8, "h2 0.4.15 is below the floor 0.4.16".to_owned())]
        );
    }

    #[test]
    fn each_compatible_line_has_its_own_floor() {
        assert_eq!(found(&[("rand", "0.8.6"), ("rand", "0.9.4"), ("rand", "0.10.1")]), []);
        let low = found(&[("rand", "0.8.5"), ("rand", "0.9.2"), ("rand", "0.7.3")]);
        let lines: Vec<usize> = low.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [4, 8, 12]);
        assert!(low[2].1.ends_with("0.10.1"), "{low:?}");
    }

    #[test]
    fn forbidden_crates_fail_with_the_reason_of_deny_toml() {
        let findings = check(&lock(&[("openssl-sys", "0.9.1")]), DENY).expect("valid fixtures");
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].why, "rustls is our TLS");
    }

    #[test]
    fn pre_releases_fail_and_build_metadata_passes() {
        assert_eq!(found(&[("rustls", "0.24.0-dev.1")]), [(4, "rustls 0.24.0-dev.1 is a pre-release".to_owned())]);
        assert_eq!(found(&[("jemalloc-sys", "0.6.1+5.3.0-1-ge13")]), []);
    }

    #[test]
    fn a_ban_without_a_reason_is_an_error() {
        assert!(check(&lock(&[]), "[bans]\ndeny = [\"openssl-sys\"]\n").is_err());
    }

    #[test]
    fn every_floor_is_a_version() {
        for floor in FLOORS {
            assert!(!floor.at_least.is_empty() && !floor.why.is_empty(), "{}", floor.name);
            too_low(&Version::new(0, 0, 0), floor).expect(floor.name);
        }
    }
}
