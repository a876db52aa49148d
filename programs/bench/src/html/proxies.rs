//! The part of the page of a report of `starling bench proxy`.

use super::{Section, complaints, escape, plain, table};
use crate::proxy::{FIGURES_HEADER, Findings};

pub(super) fn section(id: String, title: &str, findings: &Findings) -> Section {
    let mut header = FIGURES_HEADER.map(plain);
    header[0] = plain("what");
    let rows: Vec<_> = findings
        .rows()
        .into_iter()
        .map(|(cells, met)| {
            let mut row: Vec<_> = cells.iter().map(|cell| plain(&escape(cell))).collect();
            if let Some(verdict) = row.last_mut().filter(|_| !met) {
                verdict.1 = "missing";
            }
            row
        })
        .collect();
    let body = format!(
        "<p>Two hops, mutual TLS, authorisation by path; one worker each.</p>\n{}{}<p>{}</p>\n",
        complaints("Not to be believed:", findings.problems()),
        table(&header, &rows),
        escape(&findings.origin())
    );
    Section { id, title: format!("Both data planes: {title}"), body }
}
