//! Tables for people.

use comfy_table::{CellAlignment, Table};

/// Sets rows under a header; the first column is text, the others are figures and stand to the right.
pub(crate) fn render(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::ASCII_MARKDOWN).set_header(header.to_vec()).add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

/// Milliseconds with as many decimals as tell something.
pub(crate) fn milliseconds(value: f64) -> String {
    if value < 10.0 { format!("{value:.2}") } else { format!("{value:.1}") }
}

/// Bytes in MiB with one decimal.
#[expect(clippy::cast_precision_loss, reason = "one decimal of a MiB is far coarser than what an f64 keeps")]
pub(crate) fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Whether a bar was met.
pub(crate) fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_to_the_right_of_their_columns() {
        let text = render(
            &["kind", "p99"],
            [vec!["deny".to_owned(), "9.5".to_owned()], vec!["all".to_owned(), "12.25".to_owned()]],
        );
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.first(), Some(&"| kind |   p99 |"));
        assert_eq!(lines.last(), Some(&"| all  | 12.25 |"));
    }

    #[test]
    fn units_are_written_out() {
        assert_eq!(milliseconds(3.456), "3.46");
        assert_eq!(milliseconds(123.456), "123.5");
        assert_eq!(mebibytes(3 << 19), "1.5 MiB");
    }
}
