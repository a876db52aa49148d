//! Tables for people.

use comfy_table::{CellAlignment, ContentArrangement, Table};

/// Columns of a terminal, or of a page of a mail, that a table takes at most: long words of its header stand below each other.
const WIDTH_MAX: u16 = 100;

/// Sets rows under a header; the first column is text, the others are figures and stand to the right.
pub(crate) fn render(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::ASCII_MARKDOWN).set_header(header.to_vec()).add_rows(rows);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH_MAX);
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
    fn a_table_of_many_columns_is_no_wider_than_its_reader() {
        let kinds = ["alone", "beside slow readers", "beside slow readers again", "with loss", "with loss and resets"];
        let titles = kinds.iter().flat_map(|kind| ["deregister", "register"].map(|what| format!("10 × {what} {kind}")));
        let header: Vec<_> = std::iter::once("workloads that had it".to_owned()).chain(titles).collect();
        let header: Vec<_> = header.iter().map(String::as_str).collect();
        let row = |name: &str| {
            [name.to_owned()].into_iter().chain(kinds.iter().flat_map(|_| ["99.7", "1596"].map(str::to_owned)))
        };
        let text = render(&header, [row("50 %").collect(), row("100 % (the last)").collect()]);
        let width = text.lines().map(|line| line.chars().count()).max();
        assert!(width.is_some_and(|width| width <= usize::from(WIDTH_MAX)), "{text}");
        assert_eq!(text.matches("99.7").count(), 2 * kinds.len(), "{text}");
        assert_eq!(text.matches("1596").count(), 2 * kinds.len(), "{text}");
    }

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
