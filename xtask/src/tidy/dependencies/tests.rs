//! Tests of the dependency table and of what it refuses.

use super::*;

fn member(folder: &str, dependencies: &[&str]) -> Crate {
    let mut manifest = format!("[package]\nname = \"{}\"\n\n[dependencies]\n", crate_name(folder));
    for dependency in dependencies {
        manifest.push_str(&format!("{dependency}.workspace = true\n"));
    }
    Crate {
        name: crate_name(folder),
        folder: folder.to_owned(),
        manifest,
        dependencies: dependencies.iter().map(|&name| name.to_owned()).collect(),
    }
}

/// The whole workspace, in which the crate in `folder` has `dependencies` and the others have none.
fn workspace(folder: &str, dependencies: &[&str]) -> Vec<Crate> {
    TABLE.iter().map(|row| member(row.folder, if row.folder == folder { dependencies } else { &[] })).collect()
}

fn refused(folder: &str, dependencies: &[&str]) -> Vec<String> {
    check(&workspace(folder, dependencies)).into_iter().map(|finding| finding.what).collect()
}

#[test]
fn allowed_arrows_pass() {
    assert_eq!(refused("core/plan", &["starling-model", "starling-catalog", "thiserror"]), [""; 0]);
    assert_eq!(refused("adapters/rpc", &["starling-xds", "starling-telemetry", "tokio", "tonic"]), [""; 0]);
    assert_eq!(refused("programs/starling", &["starling-server", "starling-agent", "starling-bench"]), [""; 0]);
}

#[test]
fn forbidden_arrows_name_file_line_and_what_is_allowed() {
    let findings = check(&workspace("core/plan", &["starling-model", "starling-store"]));
    assert_eq!(findings.len(), 1);
    assert_eq!((findings[0].path.as_str(), findings[0].line), ("core/plan/Cargo.toml", 6));
    assert_eq!(findings[0].what, "starling-plan may not use starling-store");
    assert!(findings[0].why.contains("starling-catalog"), "{}", findings[0].why);
}

#[test]
fn every_kind_of_wrong_arrow_is_refused() {
    for (folder, dependency) in [
        ("core/model", "starling-identity"),
        ("core/catalog", "starling-store"),
        ("core/xds", "starling-catalog"),
        ("adapters/store", "starling-model"),
        ("adapters/rpc", "starling-http-api"),
        ("programs/server", "starling-agent"),
        ("programs/agent", "starling-store"),
        ("programs/fake-service", "starling-bench"),
        ("testing/e2e", "starling-model"),
        ("xtask", "starling-model"),
    ] {
        assert_eq!(refused(folder, &[dependency]).len(), 1, "{folder} -> {dependency}");
    }
}

#[test]
fn the_core_knows_nothing_of_the_outside() {
    for dependency in ["tokio", "hyper", "axum", "tonic", "rustls", "redb", "nix", "rand", "fastrand"] {
        assert_eq!(refused("core/catalog", &[dependency]), [format!("{dependency} in the core")]);
    }
}

#[test]
fn some_crates_have_one_home() {
    assert_eq!(refused("core/xds", &["prost", "envoy-types"]), [""; 0]);
    assert_eq!(refused("core/plan", &["envoy-types"]), ["envoy-types in core/plan"]);
    assert_eq!(refused("programs/server", &["redb"]), ["redb in programs/server"]);
    assert_eq!(refused("adapters/store", &["redb"]), [""; 0]);
    assert_eq!(refused("programs/agent", &["prost"]), [""; 0]);
}

#[test]
fn a_crate_outside_the_table_fails() {
    let mut crates = workspace("core/model", &[]);
    crates.push(member("core/mystery", &[]));
    let findings = check(&crates);
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].what, "core/mystery is not in the dependency table");
}

#[test]
fn a_row_without_a_crate_fails() {
    let mut crates = workspace("core/model", &[]);
    crates.retain(|member| member.folder != "adapters/rpc");
    let whats: Vec<String> = check(&crates).into_iter().map(|finding| finding.what).collect();
    assert_eq!(whats, ["the table has a row for adapters/rpc, which is no crate"]);
}

#[test]
fn a_crate_is_called_like_its_folder() {
    let mut crates = workspace("core/model", &[]);
    crates[0].name = "starling-nouns".to_owned();
    assert_eq!(check(&crates)[0].what, "crate starling-nouns lies in core/model");
}

#[test]
fn renamed_dependencies_are_found_in_the_manifest() {
    let mut crates = workspace("core/model", &[]);
    crates[0].manifest = "[dependencies]\nrt = { package = \"tokio\", version = \"1\" }\n".to_owned();
    crates[0].dependencies = vec!["tokio".to_owned()];
    assert_eq!(check(&crates)[0].line, 2);
}

/// The table itself keeps to the layers: a row that breaks them cannot slip in as a detail.
#[test]
fn the_table_keeps_to_the_layers() {
    for row in TABLE {
        for used in row.may_use {
            assert!(TABLE.iter().any(|other| other.folder == *used), "{} uses unknown {used}", row.folder);
            let fits = match row.folder.split('/').next().unwrap_or_default() {
                "core" => used.starts_with("core/"),
                "adapters" => {
                    used.starts_with("core/")
                        || ["adapters/telemetry", "adapters/tls", "adapters/sockets"].contains(used)
                }
                "programs" if row.folder == "programs/starling" => true,
                // An agent serves the sidecars of its node itself.
                "programs" if (row.folder, *used) == ("programs/agent", "programs/proxy") => true,
                // A relay reaches servers as an agent does: its list of them, its way in, its identity.
                "programs" if (row.folder, *used) == ("programs/relay", "programs/agent") => true,
                // A simulated node is the real agent.
                "programs" if (row.folder, *used) == ("programs/bench", "programs/agent") => true,
                "programs" => used.starts_with("core/") || used.starts_with("adapters/"),
                // The production code of both ends, with no adapter and so no socket between them.
                "testing" if row.folder == "testing/sim" => used.starts_with("core/") || *used == "programs/agent",
                // It starts and ends real processes, as the end-to-end tests do.
                "testing" if ["testing/chaos", "testing/attack"].contains(&row.folder) => *used == "testing/e2e",
                _ => false,
            };
            assert!(fits, "{} may not use {used}", row.folder);
        }
    }
}
