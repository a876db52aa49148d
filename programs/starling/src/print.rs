//! Standard output: tables for people, JSON for programs.

use std::fmt;
use std::io::{ErrorKind, IsTerminal, Write};

use clap::ValueEnum;
use comfy_table::presets::NOTHING;
use comfy_table::{Cell, Color, ContentArrangement, Table};
use serde::Serialize;

use crate::consul::worded;

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// Columns for people, one line an item, nothing cut off.
    #[default]
    #[value(alias = "pretty", alias = "text")]
    Table,
    /// One JSON document.
    Json,
}

/// `-o` of every command that lists or tells something.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct OutputArgs {
    /// Form of the output
    #[arg(short = 'o', long = "output", alias = "format", value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) format: Format,
}

/// Whoever reads standard output has closed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutputClosed;

impl fmt::Display for OutputClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("standard output is closed")
    }
}

impl std::error::Error for OutputClosed {}

/// Writes text and a line's end to standard output.
///
/// # Errors
/// [`OutputClosed`] if nobody reads any more, or what the operating system says.
pub(crate) fn line(text: &str) -> anyhow::Result<()> {
    bytes_line(text.as_bytes())
}

/// The same of bytes that need not be text.
///
/// # Errors
/// As [`line()`].
pub(crate) fn bytes_line(bytes: &[u8]) -> anyhow::Result<()> {
    let mut output = std::io::stdout().lock();
    match output.write_all(bytes).and_then(|()| writeln!(output)).and_then(|()| output.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(OutputClosed.into()),
        Err(error) => Err(anyhow::Error::new(error).context("cannot write to standard output")),
    }
}

/// Writes a value as indented JSON.
///
/// # Errors
/// As [`line()`].
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(&serde_json::to_string_pretty(value)?)
}

/// Tells people something on standard error, which may be closed: that is no reason to end.
pub(crate) fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", worded(text));
}

/// An empty table with these headings.
pub(crate) fn table(headings: &[&str]) -> Table {
    let mut table = Table::new();
    // No frame and no wrapping: columns that `awk` and `sort` understand.
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    if !in_colour() {
        table.force_no_tty();
    }
    table.set_header(headings.iter().copied());
    for column in table.column_iter_mut() {
        column.set_padding((0, COLUMN_GAP));
    }
    table
}

/// Blanks between columns.
const COLUMN_GAP: u16 = 2;

/// Writes a table.
///
/// # Errors
/// As [`line()`].
pub(crate) fn rows(table: &Table) -> anyhow::Result<()> {
    line(&table.trim_fmt())
}

/// Whether standard output is a terminal that wants colours (<https://no-color.org>).
fn in_colour() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A cell that is good news.
pub(crate) fn good(text: impl ToString) -> Cell {
    Cell::new(text).fg(Color::Green)
}

/// A cell that wants attention.
pub(crate) fn bad(text: impl ToString) -> Cell {
    Cell::new(text).fg(Color::Red)
}

/// A cell on the way.
pub(crate) fn unsettled(text: impl ToString) -> Cell {
    Cell::new(text).fg(Color::Yellow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_plain_columns_without_trailing_blanks() {
        let mut table = table(&["Node", "Address"]);
        table.force_no_tty();
        table.add_row(["one", "10.0.0.1"]);
        table.add_row([good("fourteen"), Cell::new("10.0.0.2")]);
        assert_eq!(table.trim_fmt(), "Node      Address\none       10.0.0.1\nfourteen  10.0.0.2");
    }
}
