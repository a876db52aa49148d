//! The reference page of the command line, `docs/reference/cli.md`, written from clap's own help; and the comparison of
//! such files with what they should be.
//!
//! `STARLING_GOLDEN=rewrite cargo test -p starling` writes them anew.

use std::fmt::Write;
use std::path::Path;

use clap::{Command, CommandFactory};

use crate::arguments::Arguments;

/// Columns of the help text on the page.
const WIDTH: usize = 100;

const OPENING: &str = "\
# The command line

Written from `starling --help` by a test (`make golden` writes it anew).

Flags of Consul's commands may be written with one dash (`-sidecar-for web-1`, `-kind=service-defaults`, `-cas=true`).
Environment: `STARLING_HTTP_ADDR`, `STARLING_HTTP_TOKEN`, `STARLING_HTTP_TOKEN_FILE`, `STARLING_HTTP_SSL`,
`STARLING_CACERT`, `STARLING_CAPATH`, `STARLING_CLIENT_CERT`, `STARLING_CLIENT_KEY`, `STARLING_TLS_SERVER_NAME`,
`STARLING_NAMESPACE`, `STARLING_PARTITION`, `STARLING_GRPC_ADDR`, `STARLING_GRPC_CACERT` and `STARLING_GRPC_CAPATH` win
over the variables with `CONSUL_` in front; flags win over both. `STARLING_LOG` sets what commands log to standard error
(`warn` unless set); `NO_COLOR` switches colours off, which are only ever written to a terminal.

## Exit codes

They do not change from release to release.

| Code | Meaning |
|---|---|
";

/// The page.
fn page() -> String {
    let mut root = Arguments::command().term_width(WIDTH);
    root.build();
    let mut page = OPENING.to_owned();
    let codes = crate::outcome::EXIT_CODES.lines().filter_map(|line| line.trim().split_once("  "));
    for (code, meaning) in codes {
        let _ = writeln!(page, "| {code} | {meaning} |");
    }
    section(&mut page, &mut root, "starling");
    page
}

/// What every command that speaks to the API has; the page has it once, with `starling` itself.
const API_HEADING: &str = "\nAPI:\n";

fn section(page: &mut String, command: &mut Command, path: &str) {
    let mut help = command.render_long_help().to_string();
    if path != "starling"
        && let Some(api) = help.find(API_HEADING)
    {
        help.truncate(api + API_HEADING.len());
        help.push_str("  The flags under this heading at the top of the page");
    }
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _ = write!(page, "\n## `{path}`\n\n```text\n{}\n```\n", help.join("\n").trim_end());
    for child in command.get_subcommands_mut().filter(|child| child.get_name() != "help" && !child.is_hide_set()) {
        let path = format!("{path} {}", child.get_name());
        section(page, child, &path);
    }
}

/// Compares a file of this package with what it should hold, or writes it if that was asked for.
///
/// # Panics
/// If they differ.
#[track_caller]
pub(crate) fn compare(file: &Path, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("STARLING_GOLDEN").is_some_and(|value| value == "rewrite") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, expected).unwrap();
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = found.lines().zip(expected.lines()).position(|(found, expected)| found != expected);
    let line = differs.unwrap_or_else(|| found.lines().count().min(expected.lines().count()));
    assert!(
        found == expected,
        "{} differs from line {} on; `make golden` writes it anew\n  there:    {:?}\n  expected: {:?}",
        file.display(),
        line + 1,
        found.lines().nth(line),
        expected.lines().nth(line),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_page_is_what_help_says() {
        compare(Path::new("../../docs/reference/cli.md"), &page());
    }

    #[test]
    fn every_command_says_what_it_is_for() {
        let mut root = Arguments::command();
        root.build();
        let mut commands = vec![&root];
        while let Some(command) = commands.pop() {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            commands.extend(command.get_subcommands().filter(|child| child.get_name() != "help"));
        }
    }
}
