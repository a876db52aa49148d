//! Reports as one page that needs nothing else: no script, no font, no picture from elsewhere.
//!
//! A page begins with the answers, one line each, and has a section for each question that its reports answer: of what a
//! mesh costs by scenario, whichever report a figure is from; of a fleet, and of the two data planes, by report.

mod chart;
mod cost;
mod fleet;
mod key;
mod proxies;

use crate::cost::report::CostReport;
use crate::fleet_report::FleetReport;
use crate::proxy::Findings;
use crate::published::{Published, Study};
use crate::table;

const STYLE: &str = include_str!("html/page.css");

/// What stands where there is no figure.
const NO_FIGURE: &str = "–";

/// A cell of a table: its text, and its CSS class if it has one.
type Cell = (String, &'static str);

/// A report of a page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Titled<'a> {
    /// Tells it from the others of the page.
    pub(crate) title: &'a str,
    pub(crate) report: Report<'a>,
}

/// What pages are made of.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Report<'a> {
    Fleet(&'a FleetReport),
    Cost(&'a CostReport),
    Proxies(&'a Findings),
}

/// A part of the page under a heading of its own.
struct Section {
    /// Where the contents lead.
    id: String,
    title: String,
    body: String,
}

/// The page of one report, named after its scenario.
pub(crate) fn page_of_one(scenario: &str, report: Report) -> String {
    page(&format!("starling bench {scenario}"), &[Titled { title: scenario, report }], &[])
}

/// The page of several reports, in their order; `problems` are told at its top.
pub(crate) fn page(title: &str, reports: &[Titled], problems: &[String]) -> String {
    let published = Published::read();
    let sections = sections(reports, &published);
    let (title, problems) = (escape(title), complaints("What is missing, or went wrong:", problems));
    let (key, contents) = (key::table(reports, &published), contents(&sections));
    let sections: String = sections
        .iter()
        .map(|Section { id, title, body }| {
            format!("<section id=\"{id}\">\n<h2>{}</h2>\n{body}</section>\n", escape(title))
        })
        .collect();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width\"/>\n<title>{title}</title>\n<style>\n{STYLE}</style>\n\
         </head>\n<body>\n<h1>{title}</h1>\n{problems}{key}{contents}{sections}</body>\n</html>\n"
    )
}

fn sections(reports: &[Titled], published: &Published) -> Vec<Section> {
    let (mut sections, mut costs, mut proxies) = (Vec::new(), Vec::new(), Vec::new());
    for Titled { title, report } in reports {
        match report {
            Report::Fleet(report) => {
                let id = fleet_place(sections.len() + 1);
                sections.push(fleet::section(id, title, report, published));
            }
            Report::Cost(report) => costs.push(cost::Run { title, report }),
            Report::Proxies(findings) => {
                proxies.push(proxies::section(format!("proxies-{}", proxies.len() + 1), title, findings));
            }
        }
    }
    sections.extend(cost::sections(&costs, published));
    sections.extend(proxies);
    sections.extend(cost::origin(&costs));
    sections
}

/// Where the page has the fleet of a number, from 1.
fn fleet_place(number: usize) -> String {
    format!("fleet-{number}")
}

fn contents(sections: &[Section]) -> String {
    if sections.len() < 2 {
        return String::new();
    }
    let lines = sections.iter().map(|Section { id, title, .. }| {
        let title = escape(title);
        format!("<li><a href=\"#{id}\">{title}</a></li>\n")
    });
    format!("<nav aria-label=\"Contents\">\n<ol>\n{}</ol>\n</nav>\n", lines.collect::<String>())
}

/// What is wrong, as a list under a line that says how; nothing, if nothing is.
fn complaints(how: &str, problems: &[String]) -> String {
    if problems.is_empty() {
        return String::new();
    }
    let lines: String = problems.iter().map(|problem| format!("<li>{}</li>\n", escape(problem))).collect();
    format!("<p class=\"missing\">{how}</p>\n<ul class=\"missing\">\n{lines}</ul>\n")
}

/// Who published the figures beside ours, and what they were measured on.
fn study(study: &Study) -> String {
    let Study { id, title, system, hardware, note, .. } = study;
    let note = note.as_ref().map_or_else(String::new, |note| format!(" {note}"));
    format!(
        "<p class=\"published\" title=\"{}\">Published figures: {}; {}; measured on {}.{}</p>\n",
        escape(id),
        escape(title),
        escape(system),
        escape(hardware),
        escape(&note)
    )
}

fn table(header: &[Cell], rows: &[Vec<Cell>]) -> String {
    let line = |cells: &[Cell], tag: &str| {
        let cells: String = cells
            .iter()
            .map(|(text, class)| match *class {
                "" => format!("<{tag}>{text}</{tag}>"),
                class => format!("<{tag} class=\"{class}\">{text}</{tag}>"),
            })
            .collect();
        format!("<tr>{cells}</tr>\n")
    };
    let rows: String = rows.iter().map(|row| line(row, "td")).collect();
    let header = line(header, "th");
    format!("<div class=\"wide\">\n<table>\n<thead>\n{header}</thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>\n")
}

fn plain(text: &str) -> Cell {
    (text.to_owned(), "")
}

fn milliseconds(value: Option<f64>) -> String {
    value.map_or_else(|| NO_FIGURE.to_owned(), table::milliseconds)
}

/// Text as it may stand between tags, and in an attribute.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests;
