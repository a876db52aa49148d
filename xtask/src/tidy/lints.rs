//! The lints that clippy and rustc hold for us are switched on, everywhere, as strictly as the house style says.

use anyhow::Context;

use super::dependencies::Crate;
use super::line_of;
use crate::finding::Finding;

/// Lines in a function, as clippy counts them; past this it is two functions.
const FUNCTION_LINES_MAX: i64 = 70;

/// The lints the workspace must switch on, by table of `[workspace.lints]`.
const REQUIRED: &[(&str, &str)] = &[
    ("rust", "missing_docs"),
    ("clippy", "unwrap_used"),
    ("clippy", "wildcard_enum_match_arm"),
    ("clippy", "too_many_lines"),
    ("clippy", "dbg_macro"),
    ("clippy", "todo"),
    ("clippy", "unimplemented"),
];

/// Checks the root manifest, the clippy configuration and each crate's manifest.
pub(crate) fn check(root_manifest: &str, clippy: &str, crates: &[Crate]) -> anyhow::Result<Vec<Finding>> {
    let root: toml::Table = root_manifest.parse().context("parse Cargo.toml")?;
    let clippy: toml::Table = clippy.parse().context("parse clippy.toml")?;
    let mut findings = Vec::new();
    for (table, lint) in REQUIRED {
        let level = root.get("workspace").and_then(|t| t.get("lints")).and_then(|t| t.get(*table)?.get(*lint));
        let on = level.and_then(toml::Value::as_str).is_some_and(|level| ["warn", "deny", "forbid"].contains(&level));
        if !on {
            findings.push(finding(
                "Cargo.toml",
                line_of(root_manifest, |line| line.starts_with(&format!("[workspace.lints.{table}"))),
                format!("the {table} lint {lint} is off"),
                &format!("add `{lint} = \"warn\"` to [workspace.lints.{table}]"),
            ));
        }
    }
    let threshold = clippy.get("too-many-lines-threshold").and_then(toml::Value::as_integer);
    if threshold.is_none_or(|lines| lines > FUNCTION_LINES_MAX) {
        findings.push(finding(
            "clippy.toml",
            1,
            "functions may be too long".to_owned(),
            &format!("too-many-lines-threshold = {FUNCTION_LINES_MAX}"),
        ));
    }
    for member in crates {
        let manifest: toml::Table =
            member.manifest.parse().with_context(|| format!("parse {}", member.manifest_path()))?;
        let inherits = manifest.get("lints").and_then(|t| t.get("workspace")).and_then(toml::Value::as_bool);
        if inherits != Some(true) {
            findings.push(finding(
                &member.manifest_path(),
                line_of(&member.manifest, |line| line.starts_with("[lints")),
                format!("{} does not take the workspace lints", member.name),
                "[lints] with workspace = true",
            ));
        }
    }
    Ok(findings)
}

fn finding(path: &str, line: usize, what: String, fix: &str) -> Finding {
    Finding {
        path: path.to_owned(),
        line,
        rule: "lints",
        what,
        why: "the house style leaves these rules to rustc and clippy".to_owned(),
        fix: fix.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "[workspace.lints.rust]\nmissing_docs = \"warn\"\n[workspace.lints.clippy]\n\
        unwrap_used = \"warn\"\nwildcard_enum_match_arm = \"warn\"\ntoo_many_lines = \"deny\"\ndbg_macro = \"warn\"\n\
        todo = \"warn\"\nunimplemented = \"warn\"\n";

    fn member(manifest: &str) -> Crate {
        Crate {
            name: "starling-model".to_owned(),
            folder: "core/model".to_owned(),
            manifest: manifest.to_owned(),
            dependencies: Vec::new(),
        }
    }

    fn found(root: &str, clippy: &str, manifest: &str) -> Vec<String> {
        let findings = check(root, clippy, &[member(manifest)]).expect("valid TOML");
        findings.into_iter().map(|finding| format!("{}:{} {}", finding.path, finding.line, finding.what)).collect()
    }

    const CLIPPY: &str = "too-many-lines-threshold = 70\n";
    const MEMBER: &str = "[lints]\nworkspace = true\n";

    #[test]
    fn all_on_passes() {
        assert_eq!(found(ROOT, CLIPPY, MEMBER), [""; 0]);
    }

    #[test]
    fn a_lint_switched_off_fails() {
        let root = ROOT.replace("todo = \"warn\"", "todo = \"allow\"");
        assert_eq!(found(&root, CLIPPY, MEMBER), ["Cargo.toml:3 the clippy lint todo is off"]);
        let root = ROOT.replace("missing_docs = \"warn\"\n", "");
        assert_eq!(found(&root, CLIPPY, MEMBER), ["Cargo.toml:1 the rust lint missing_docs is off"]);
    }

    #[test]
    fn a_laxer_function_limit_fails() {
        assert_eq!(found(ROOT, "too-many-lines-threshold = 71\n", MEMBER), ["clippy.toml:1 functions may be too long"]);
        assert_eq!(found(ROOT, "", MEMBER).len(), 1);
    }

    #[test]
    fn a_crate_that_goes_without_fails() {
        let expected = ["core/model/Cargo.toml:1 starling-model does not take the workspace lints"];
        assert_eq!(found(ROOT, CLIPPY, "[package]\nname = \"starling-model\"\n"), expected);
    }
}
