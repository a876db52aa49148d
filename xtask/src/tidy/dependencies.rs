//! The dependency table: which crate of ours may use which, and what the core may never use.
//!
//! One table, so that an architecture change is one visible line in a review. Everything not in it is forbidden.
//! Normal, build and test dependencies are treated alike: a test that reaches across an arrow ties the crates as firmly.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;

use super::line_of;
use crate::finding::Finding;

/// A crate and those of ours that it may use.
struct Row {
    folder: &'static str,
    may_use: &'static [&'static str],
}

/// The arrows. Crates by folder; the crate's name is the last component with [`PREFIX`] in front.
const TABLE: &[Row] = &[
    // Core: the nouns, then what is decided about them. `plan` never sees the store, only the catalog's snapshot.
    Row { folder: "core/model", may_use: &[] },
    Row { folder: "core/identity", may_use: &["core/model"] },
    Row { folder: "core/catalog", may_use: &["core/model"] },
    Row { folder: "core/attach", may_use: &["core/model", "core/catalog"] },
    Row { folder: "core/traffic", may_use: &["core/model"] },
    Row { folder: "core/backup", may_use: &["core/model"] },
    Row { folder: "core/http1", may_use: &[] },
    Row { folder: "core/admission", may_use: &[] },
    // Of `attach` plan knows in tests only: a replica's plans are a snapshot's.
    Row {
        folder: "core/plan",
        may_use: &["core/model", "core/identity", "core/catalog", "core/attach", "core/traffic"],
    },
    Row { folder: "core/xds", may_use: &["core/model", "core/identity", "core/traffic", "core/plan"] },
    // Adapters: one outside thing each; of each other they may use only telemetry, tls and sockets.
    // The store keeps bytes by key and knows no noun (docs/adr/0002).
    Row { folder: "adapters/store", may_use: &["adapters/telemetry"] },
    Row { folder: "adapters/telemetry", may_use: &[] },
    // Shared by all listeners: admission of connections, and detection of dead peers.
    Row { folder: "adapters/sockets", may_use: &["core/admission"] },
    Row { folder: "adapters/tls", may_use: &["core/model", "core/identity", "adapters/telemetry"] },
    Row { folder: "adapters/vault", may_use: &["core/model", "core/identity", "adapters/tls"] },
    Row {
        folder: "adapters/dns",
        may_use: &["core/model", "core/admission", "core/catalog", "adapters/telemetry", "adapters/sockets"],
    },
    Row {
        folder: "adapters/rpc",
        may_use: &[
            "core/admission",
            "core/model",
            "core/identity",
            "core/catalog",
            "core/attach",
            "core/traffic",
            "core/plan",
            "core/xds",
            "adapters/sockets",
            "adapters/telemetry",
            "adapters/tls",
        ],
    },
    Row {
        folder: "adapters/http-api",
        may_use: &[
            "core/model",
            "core/admission",
            "core/identity",
            "core/catalog",
            "core/traffic",
            "adapters/telemetry",
            "adapters/tls",
            "adapters/sockets",
        ],
    },
    // Programs: wiring. They do not know each other, bar three; `starling`, the binary, knows all of them.
    Row {
        folder: "programs/server",
        may_use: &[
            "core/model",
            "core/identity",
            "core/catalog",
            "core/attach",
            "core/traffic",
            "core/plan",
            "core/xds",
            "core/backup",
            "adapters/store",
            "adapters/rpc",
            "adapters/http-api",
            "adapters/dns",
            "adapters/tls",
            "adapters/vault",
            "adapters/telemetry",
        ],
    },
    // The data plane: it is given plans, and never sees where they come from.
    Row {
        folder: "programs/proxy",
        may_use: &[
            "core/admission",
            "core/model",
            "core/identity",
            "core/traffic",
            "core/http1",
            "core/plan",
            "adapters/sockets",
            "adapters/tls",
            "adapters/telemetry",
        ],
    },
    Row {
        folder: "programs/agent",
        may_use: &[
            "programs/proxy",
            "core/model",
            "core/identity",
            "core/catalog",
            "core/attach",
            "core/traffic",
            "core/plan",
            "core/xds",
            "adapters/rpc",
            "adapters/tls",
            "adapters/telemetry",
        ],
    },
    // A relay joins and finds servers as an agent does, by the same code.
    Row {
        folder: "programs/relay",
        may_use: &[
            "core/model",
            "core/identity",
            "core/catalog",
            "core/attach",
            "adapters/rpc",
            "adapters/tls",
            "adapters/telemetry",
            "programs/agent",
        ],
    },
    Row { folder: "programs/fake-service", may_use: &["adapters/telemetry"] },
    // Nodes of its fleets are the agent's own code: what runs on ten thousand machines is what is measured.
    // The store is measured bare, beside etcd's own benchmark.
    Row {
        folder: "programs/bench",
        may_use: &["core/model", "core/catalog", "core/http1", "adapters/store", "programs/agent"],
    },
    Row {
        folder: "programs/starling",
        may_use: &[
            "core/admission",
            "core/model",
            "core/identity",
            "core/catalog",
            "core/attach",
            "core/traffic",
            "core/plan",
            "core/xds",
            "core/backup",
            "adapters/store",
            "adapters/rpc",
            "adapters/http-api",
            "adapters/dns",
            "adapters/tls",
            "adapters/vault",
            "adapters/telemetry",
            "programs/server",
            "programs/relay",
            "programs/agent",
            "programs/proxy",
            "programs/fake-service",
            "programs/bench",
        ],
    },
    // White box: the production code of both ends, and a network in between that the seed holds in its hand.
    Row { folder: "testing/sim", may_use: &["core/model", "core/catalog", "core/attach", "programs/agent"] },
    // Black box: it runs the binary and speaks its public protocols, so a wrong type cannot be right on both sides.
    Row { folder: "testing/e2e", may_use: &[] },
    // The same, from several machines: it borrows the HTTP client.
    Row { folder: "testing/chaos", may_use: &["testing/e2e"] },
    // Floods against the real binary, started by the same harness.
    Row { folder: "testing/attack", may_use: &["testing/e2e"] },
    Row { folder: "xtask", may_use: &[] },
];

/// What our crates are called in front of their folder's name.
const PREFIX: &str = "starling-";

/// Folders whose crates are called like the folder: the binary users type, and the tool contributors type.
const UNPREFIXED: &[&str] = &["programs/starling", "xtask"];

/// Crates that bring a runtime, a socket, a file, a clock, the environment or randomness, so never in the core.
const FORBIDDEN_IN_CORE: &[&str] = &[
    "async-trait",
    "axum",
    "chrono",
    "etcd-client",
    "fastrand",
    "futures",
    "getrandom",
    "h2",
    "hickory-proto",
    "hickory-server",
    "hyper",
    "hyper-rustls",
    "hyper-util",
    "kube",
    "mio",
    "nix",
    "parking_lot",
    "prometheus-client",
    "rand",
    "rcgen",
    "redb",
    "reqwest",
    "rustls",
    "socket2",
    "tempfile",
    "time",
    "tokio",
    "tokio-rustls",
    "tokio-stream",
    "tokio-util",
    "tonic",
    "tower",
    "tracing",
    "uuid",
];

/// Crates that only the named folders may use: the idea they carry has one home.
const ONE_HOME: &[(&str, &[&str])] =
    &[("axum", &["adapters/http-api"]), ("etcd-client", &["adapters/store"]), ("redb", &["adapters/store"])];

/// Crates that, within the core, only the named folders may use.
const ONE_HOME_IN_CORE: &[(&str, &[&str])] = &[("envoy-types", &["core/xds"]), ("prost", &["core/attach", "core/xds"])];

/// A member of the workspace, as its manifest tells.
#[derive(Debug)]
pub(crate) struct Crate {
    /// Package name.
    pub name: String,
    /// Folder relative to the root, with forward slashes.
    pub folder: String,
    /// The text of its `Cargo.toml`.
    pub manifest: String,
    /// Package names of its direct dependencies of every kind.
    pub dependencies: Vec<String>,
}

impl Crate {
    pub(crate) fn manifest_path(&self) -> String {
        format!("{}/Cargo.toml", self.folder)
    }

    fn line_of(&self, dependency: &str) -> usize {
        line_of(&self.manifest, |line| {
            line.strip_prefix(dependency).is_some_and(|rest| rest.starts_with(['.', ' ', '=']))
                || line.contains(&format!("package = \"{dependency}\""))
        })
    }

    fn finding(&self, line: usize, what: String, why: &str, fix: &str) -> Finding {
        Finding {
            path: self.manifest_path(),
            line,
            rule: "dependencies",
            what,
            why: why.to_owned(),
            fix: fix.to_owned(),
        }
    }
}

/// The members of the workspace below `root`.
pub(crate) fn read_crates(root: &Path) -> anyhow::Result<Vec<Crate>> {
    let metadata = cargo_metadata::MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .no_deps()
        .exec()
        .context("run cargo metadata")?;
    metadata
        .packages
        .iter()
        .map(|package| {
            let folder = package
                .manifest_path
                .parent()
                .and_then(|folder| folder.strip_prefix(&metadata.workspace_root).ok())
                .with_context(|| format!("{}: a folder below {}", package.manifest_path, metadata.workspace_root))?;
            Ok(Crate {
                name: package.name.to_string(),
                folder: folder.as_str().replace('\\', "/"),
                manifest: std::fs::read_to_string(&package.manifest_path)
                    .with_context(|| format!("read {}", package.manifest_path))?,
                dependencies: package.dependencies.iter().map(|dependency| dependency.name.clone()).collect(),
            })
        })
        .collect()
}

/// Holds the crates against the table.
pub(crate) fn check(crates: &[Crate]) -> Vec<Finding> {
    let ours: BTreeSet<&str> = crates.iter().map(|member| member.name.as_str()).collect();
    let mut findings: Vec<Finding> = crates.iter().flat_map(|member| check_crate(member, &ours)).collect();
    findings.extend(TABLE.iter().filter(|row| crates.iter().all(|member| member.folder != row.folder)).map(stale_row));
    findings
}

fn stale_row(row: &Row) -> Finding {
    Finding {
        path: "xtask/src/tidy/dependencies.rs".to_owned(),
        line: 1,
        rule: "dependencies",
        what: format!("the table has a row for {}, which is no crate", row.folder),
        why: "a table with dead rows is not read".to_owned(),
        fix: "delete the row".to_owned(),
    }
}

fn check_crate(member: &Crate, ours: &BTreeSet<&str>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let expected = crate_name(&member.folder);
    if member.name != expected {
        findings.push(member.finding(
            line_of(&member.manifest, |line| line.starts_with("name")),
            format!("crate {} lies in {}", member.name, member.folder),
            "one can go from a crate's name to its folder without looking it up",
            &format!("name it {expected}, or move it"),
        ));
    }
    let Some(row) = TABLE.iter().find(|row| row.folder == member.folder) else {
        findings.push(member.finding(
            1,
            format!("{} is not in the dependency table", member.folder),
            "a crate outside the table has no rules",
            "add a row to TABLE in xtask/src/tidy/dependencies.rs, with as few arrows as it needs",
        ));
        return findings;
    };
    for dependency in &member.dependencies {
        let outside = !ours.contains(dependency.as_str());
        findings.extend(if outside { check_outside(member, dependency) } else { check_arrow(member, row, dependency) });
    }
    findings
}

fn check_arrow(member: &Crate, row: &Row, dependency: &str) -> Option<Finding> {
    let allowed = row.may_use.iter().any(|folder| crate_name(folder) == dependency);
    (!allowed).then(|| {
        let permitted: Vec<String> = row.may_use.iter().map(|folder| crate_name(folder)).collect();
        member.finding(
            member.line_of(dependency),
            format!("{} may not use {dependency}", member.name),
            &format!("its row in xtask/src/tidy/dependencies.rs allows: {}", or_nothing(&permitted)),
            "pass the thing in as a value or a trait, or move the code to where the arrow points; \
             a new arrow needs a reason that fits in a review",
        )
    })
}

fn check_outside(member: &Crate, dependency: &str) -> Option<Finding> {
    let in_core = member.folder.starts_with("core/");
    let line = member.line_of(dependency);
    if in_core && FORBIDDEN_IN_CORE.contains(&dependency) {
        return Some(member.finding(
            line,
            format!("{dependency} in the core"),
            "the core has no clock, socket, file, environment, randomness or runtime; that makes it replayable",
            "take time and randomness as parameters, return effects, and do the rest in adapters/ or programs/",
        ));
    }
    let homes = if in_core { [ONE_HOME, ONE_HOME_IN_CORE].concat() } else { ONE_HOME.to_vec() };
    homes.iter().find(|(name, folders)| *name == dependency && !folders.contains(&member.folder.as_str())).map(
        |(_, folders)| {
            member.finding(
                line,
                format!("{dependency} in {}", member.folder),
                &format!("it has its home in {}", folders.join(", ")),
                "use what that crate offers",
            )
        },
    )
}

/// The name of the crate in `folder`.
fn crate_name(folder: &str) -> String {
    let last = folder.rsplit('/').next().unwrap_or(folder);
    if UNPREFIXED.contains(&folder) { last.to_owned() } else { format!("{PREFIX}{last}") }
}

fn or_nothing(names: &[String]) -> String {
    if names.is_empty() { "nothing of ours".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests;
