//! CPU time by rate.

use super::asked::Asked;
use super::figures::{By, Reading, Sweep, digits, header, listed, name_cells, published_line, reading_text};
use crate::cost::report::Mode;
use crate::html::chart::Hue;
use crate::html::{Cell as TableCell, NO_FIGURE, escape, table};
use crate::published::Sidecars;

pub(super) fn body(cells: &[Asked], published: &Sidecars) -> String {
    let charts = Sweep::new(By::Rate, cells).map(|sweep| charts(&sweep, published)).unwrap_or_default();
    format!(
        "<p>CPU time of all proxies on the way of a request, user and system, by the kernel's account of their processes; \
         with both sidecars that is of two proxies, where the studies have one. A line is the median over the rounds; the \
         band around it reaches from the lowest round to the highest.</p>\n{charts}{}",
        figures(cells, published)
    )
}

fn charts(sweep: &Sweep, published: &Sidecars) -> String {
    let each = sweep.lines(|cell| Reading::of(cell, |round| round.proxies?.cpu_us_per_request));
    let each = sweep.chart("CPU time of all proxies for a request", "microseconds", each);
    let mut cores = sweep.lines(|cell| Reading::of(cell, |round| Some(round.proxies?.cores)));
    if cores.is_empty() {
        return each;
    }
    let rates = sweep.values();
    for (study, hue) in published.studies().into_iter().zip([Hue::Purple, Hue::Olive]) {
        let listed = study.sidecar_cores.iter().map(|it| it.rate);
        // Where a rule was published there is a figure for every rate.
        let ruled = rates.iter().copied().filter(|_| study.sidecar_cores_growing.is_some());
        let figures = listed.chain(ruled).filter_map(|rate| Some((rate, study.cores_at(rate)?)));
        cores.push(published_line(&format!("{}, one sidecar", study.study.name), hue, figures));
    }
    each + &sweep.chart("Cores that all proxies keep busy", "cores", cores)
}

fn figures(cells: &[Asked], published: &Sidecars) -> String {
    let mut header = header(&["answered/s", "proxies, µs/request", "proxies, cores", "machine, µs/request"]);
    let studies = published.studies();
    header.extend(studies.iter().map(|it| (format!("{}, one sidecar, cores", escape(&it.study.name)), "published")));
    let row = |cell: Asked| {
        let measured = [
            Reading::of(&cell, |round| Some(round.rate)),
            Reading::of(&cell, |round| round.proxies?.cpu_us_per_request),
            Reading::of(&cell, |round| Some(round.proxies?.cores)),
            Reading::of(&cell, |round| round.machine?.cpu_us_per_request),
        ];
        let rate = cell.point.rate.filter(|_| cell.mode != Mode::Baseline);
        let beside = studies.iter().map(|study| rate.and_then(|rate| study.cores_at(rate)));
        let beside = beside.map(|cores| (cores.map_or_else(|| NO_FIGURE.to_owned(), digits), "published"));
        name_cells(cell).into_iter().chain(measured.map(|it| reading_text(it, &cell))).chain(beside).collect()
    };
    let rows: Vec<Vec<TableCell>> = listed(cells).map(row).collect();
    format!(
        "{}<p>The machine's time is that of proxies, application, generator, and whatever else ran.</p>\n",
        table(&header, &rows)
    )
}
