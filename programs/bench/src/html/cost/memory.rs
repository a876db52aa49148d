//! Memory of a proxy: by connections, by rate, and by how many services there are.

use super::asked::Asked;
use super::figures::{
    By, Reading, Sweep, Variant, digits, header, line, listed, name_cells, published_line, reading_text, variants,
};
use crate::cost::report::{Cell, ProxyUsage};
use crate::html::chart::{Chart, Dimension, Hue, Line, Look, Scale, Stroke};
use crate::html::{Cell as TableCell, NO_FIGURE, escape, table};
use crate::published::{SidecarStudy, Sidecars};

/// Reads the memory of one of the proxies on the way.
type Read = fn(&ProxyUsage) -> Option<f64>;

/// Whose proxy, how its line is drawn, and where its memory is.
const PROXIES: [(&str, Stroke, Read); 2] = [
    ("caller's", Stroke::Solid, |it| it.caller_resident_mb),
    ("service's", Stroke::Dashed, |it| it.service_resident_mb),
];

pub(super) fn body(cells: &[Asked], published: &Sidecars) -> String {
    let sweeps: Vec<String> = [By::Connections, By::Rate]
        .into_iter()
        .filter_map(|by| Sweep::new(by, cells))
        .map(|sweep| chart(&sweep, published))
        .collect();
    format!(
        "<p>Resident memory of each proxy near the end of a round, in 10<sup>6</sup> bytes, by the kernel's account. A line \
         is the median over the rounds; the band around it reaches from the lowest round to the highest.</p>\n{}{}{}",
        sweeps.concat(),
        services(cells),
        figures(cells, published)
    )
}

fn chart(sweep: &Sweep, published: &Sidecars) -> String {
    let across = |cell: &Cell| match sweep.by {
        By::Connections => Some(f64::from(cell.point.connections)),
        By::Rate => cell.point.rate,
    };
    let mut lines: Vec<Line> = variants(&sweep.cells)
        .iter()
        .flat_map(|variant| {
            PROXIES.map(|(whose, stroke, read)| {
                let look = Look { stroke, ..variant.look() };
                line(&format!("{}, {whose}", variant.name), look, &variant.cells, across, |cell| resident(cell, read))
            })
        })
        .flatten()
        .collect();
    if lines.is_empty() {
        return String::new();
    }
    for (study, hue) in published.studies().into_iter().zip([Hue::Purple, Hue::Olive]) {
        let figures =
            sweep.cells.iter().filter_map(|cell| Some((across(cell)?, study.memory_mb_at(cell.point.connections))));
        let mut figures: Vec<(f64, f64)> = figures.collect();
        figures.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
        figures.dedup();
        lines.push(published_line(&format!("{} sidecar", study.study.name), hue, figures.into_iter()));
    }
    sweep.chart("Resident memory of a proxy", "10⁶ bytes", lines)
}

fn resident(cell: &Cell, read: Read) -> Option<Reading> {
    Reading::of(cell, |round| read(round.proxies.as_ref()?))
}

/// The caller's proxy beside services that it is told of, and that it is not.
fn services(cells: &[Asked]) -> String {
    let (_, _, read) = PROXIES[0];
    let lines: Vec<Line> = variants(cells)
        .iter()
        .flat_map(|variant| {
            [(true, "scoped", Stroke::Solid), (false, "permissive", Stroke::Dashed)].map(|(scoped, word, stroke)| {
                let cells = of_scope(variant, scoped);
                let across = |cell: &Cell| cell.point.services.map(f64::from);
                let look = Look { stroke, ..variant.look() };
                line(&format!("{}, {word}", variant.name), look, &cells, across, |cell| resident(cell, read))
            })
        })
        .flatten()
        .collect();
    let picture = Chart {
        name: "Resident memory of the caller's proxy, by services in the catalog".to_owned(),
        x: Dimension::new("services", Scale::Logarithmic),
        y: Dimension::new("10⁶ bytes", Scale::Fitting),
        lines,
    }
    .render();
    if picture.is_empty() {
        return picture;
    }
    picture
        + "<p>Scoped, a proxy knows of the services that it is told to call alone; permissive, of all. Each was measured \
           once.</p>\n"
}

fn of_scope<'a>(variant: &Variant<'a>, scoped: bool) -> Vec<Asked<'a>> {
    variant.cells.iter().copied().filter(|cell| cell.point.scoped == Some(scoped)).collect()
}

fn figures(cells: &[Asked], published: &Sidecars) -> String {
    let mut header = header(&["caller's proxy, MB", "service's proxy, MB"]);
    let studies = published.studies();
    header.extend(studies.iter().map(|it| (format!("{} sidecar, MB", escape(&it.study.name)), "published")));
    let row = |cell: Asked| {
        let measured = PROXIES.map(|(_, _, read)| reading_text(resident(&cell, read), &cell));
        let beside = studies.iter().map(|study| (beside(study, &cell), "published"));
        name_cells(cell).into_iter().chain(measured).chain(beside).collect()
    };
    let rows: Vec<Vec<TableCell>> = listed(cells).map(row).collect();
    table(&header, &rows)
}

/// Studies have no figure by services.
fn beside(study: &SidecarStudy, cell: &Cell) -> String {
    let Cell { point, .. } = cell;
    if point.services.is_some() { NO_FIGURE.to_owned() } else { digits(study.memory_mb_at(point.connections)) }
}
