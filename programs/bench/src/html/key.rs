//! What the page begins with: each question, its answers, and what was published.

use std::collections::BTreeSet;

use super::cost::asked::Asked;
use super::cost::figures::{Reading, Variant, digits, points, variants};
use super::cost::{Run, churn, ingress, latency, place, throughput};
use super::{NO_FIGURE, Report, Titled, escape, fleet_place};
use crate::cost::report::{Added, Cell, CostScenario, Difference, Mode, Point, ProxyKind, ProxyUsage};
use crate::cost::subjects::name;
use crate::cost::text::point;
use crate::fleet_report::FleetReport;
use crate::percentiles::Percentiles;
use crate::published::{AddedMs, Ingress, Pods, Propagation, Published, PublishedRollout, SidecarStudy};

/// Connections and rate of the published studies.
const USUAL: (u32, f64) = (16, 1000.0);

/// A question and its answers.
struct Answer {
    question: String,
    /// Where the page has more.
    place: String,
    lines: Vec<Line>,
}

/// An answer.
struct Line {
    /// Under what it was measured.
    under: String,
    measured: Measured,
    published: Vec<String>,
}

enum Measured {
    /// Of a mesh, whosever its proxies are.
    Mesh(String),
    Proxies(Vec<(ProxyKind, String)>),
}

/// Nothing, if nothing is answered.
pub(super) fn table(reports: &[Titled], published: &Published) -> String {
    let mut answers: Vec<Answer> = Vec::new();
    let mut costs: Vec<Run> = Vec::new();
    let mut fleets = 0;
    for Titled { title, report } in reports {
        match report {
            Report::Fleet(report) => {
                fleets += 1;
                answers.push(of_fleet(fleet_place(fleets), title, report, published));
            }
            Report::Cost(report) => costs.push(Run { title, report }),
            Report::Proxies(_) => {}
        }
    }
    answers.extend(of_costs(&costs, published));
    answers.retain(|answer| !answer.lines.is_empty());
    if answers.is_empty() {
        return String::new();
    }
    let kinds = kinds(&answers);
    let names: Vec<&str> =
        if kinds.is_empty() { vec!["measured"] } else { kinds.iter().map(|kind| name(*kind)).collect() };
    let names: String = names.into_iter().map(|name| format!("<th>{name}</th>")).collect();
    let rows: String = answers.iter().map(|answer| answer.rows(&kinds)).collect();
    format!(
        "<h2>In short</h2>\n<div class=\"wide\">\n<table>\n<thead>\n<tr><th>question</th><th class=\"words\">under</th>{names}\
         <th class=\"words published\">published</th></tr>\n</thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>\n\
         <p>Published figures were measured on other machines, which each section names: they tell the order of \
         magnitude.</p>\n"
    )
}

/// Whose proxies were measured.
fn kinds(answers: &[Answer]) -> Vec<ProxyKind> {
    let lines = answers.iter().flat_map(|answer| &answer.lines);
    let mut kinds: Vec<ProxyKind> = lines
        .flat_map(|line| match &line.measured {
            Measured::Mesh(_) => [].iter(),
            Measured::Proxies(figures) => figures.iter(),
        })
        .map(|(kind, _)| *kind)
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

impl Answer {
    fn rows(&self, kinds: &[ProxyKind]) -> String {
        let Self { question, place, lines } = self;
        let count = lines.len();
        let question =
            format!("<td class=\"words\" rowspan=\"{count}\"><a href=\"#{place}\">{}</a></td>", escape(question));
        let rows = lines.iter().enumerate().map(|(number, Line { under, measured, published })| {
            let figures = match measured {
                Measured::Mesh(figure) => format!("<td colspan=\"{}\">{figure}</td>", kinds.len().max(1)),
                Measured::Proxies(figures) => {
                    let of = |kind: &ProxyKind| figures.iter().find(|(of, _)| of == kind).map_or(NO_FIGURE, |(_, it)| it);
                    kinds.iter().map(|kind| format!("<td>{}</td>", of(kind))).collect()
                }
            };
            let question = if number == 0 { question.as_str() } else { "" };
            let published = if published.is_empty() { NO_FIGURE.to_owned() } else { published.join("<br/>") };
            format!(
                "<tr>{question}<td class=\"words\">{}</td>{figures}<td class=\"words published\">{published}</td></tr>\n",
                escape(under)
            )
        });
        rows.collect()
    }
}

fn of_fleet(place: String, title: &str, report: &FleetReport, published: &Published) -> Answer {
    let FleetReport { nodes, workloads, .. } = report;
    let under = format!("{title}: {} workloads on {} nodes", digits(f64::from(*workloads)), digits(f64::from(*nodes)));
    let answer = |question: &str, measured: Option<String>, published: Option<String>| {
        let line =
            |figure| Line { under, measured: Measured::Mesh(figure), published: published.into_iter().collect() };
        Answer { question: question.to_owned(), place, lines: measured.map(line).into_iter().collect() }
    };
    if report.scenario == "rollout" {
        let published = published.rollout_of(*workloads).map(published_rollout);
        return answer("A fleet from nothing, s", Some(format!("{:.1}", report.rollout.seconds)), published);
    }
    let published = &published.propagation;
    let study = escape(&published.study.name);
    let each: Vec<Percentiles> = report.changes.iter().filter_map(|change| change.latency_ms).collect();
    let measured = Percentiles::over_changes(&each)
        .map(|it| format!("{} / {} / {}", digits(it.p50), digits(it.p99), digits(it.max)));
    let result = match report.scenario.as_str() {
        "propagation" => published.results.first(),
        "intention" => published.results.get(1),
        _ => None,
    };
    let published = result.map(|result| {
        let figure = |name: &str| result.latency_ms.get(name).map_or_else(|| NO_FIGURE.to_owned(), |ms| digits(*ms));
        let [p50, p99, max] = ["p50", "p99", "max"].map(figure);
        format!("{study}: {p50} / {p99} / {max}; {}", escape(&result.name))
    });
    answer("Until workloads have a change, ms: p50 / p99 / all", measured, published)
}

fn published_rollout(published: PublishedRollout) -> String {
    match published {
        PublishedRollout::Fleet(Propagation { study, workloads, rollout_minutes, .. }) => format!(
            "{}: nodes in {} s, workloads in {} s; {} workloads",
            escape(&study.name),
            digits(rollout_minutes.nodes_available * 60.0),
            digits(rollout_minutes.workloads_scheduled * 60.0),
            digits(f64::from(*workloads))
        ),
        PublishedRollout::Pods(pods, study) => format!(
            "{}: {} s for each round; sidecars into {}; {} MB of its controller for each pod",
            escape(&study.name),
            digits(pods.round_minutes * 60.0),
            injected(pods),
            digits(pods.control_plane_mb_per_pod)
        ),
    }
}

/// Pods that were given sidecars, by the cores that the control plane had for that.
pub(super) fn injected(pods: &Pods) -> String {
    let each = pods.injected_per_minute.iter();
    let each: Vec<_> = each.map(|it| format!("{} pods/min ({} cores)", digits(it.pods), digits(it.cores))).collect();
    each.join(", ")
}

fn of_costs(runs: &[Run], published: &Published) -> Vec<Answer> {
    let studies = published.sidecars.studies();
    let added = |name: &str, of: fn(&Added) -> Difference, published: fn(&AddedMs) -> f64| {
        let question = format!("Latency that both sidecars add, {name}, ms");
        let published = published_additions(&studies, published);
        usual(runs, CostScenario::Latency, &question, &published, |cell| Some(difference(of(cell.added.as_ref()?))))
    };
    let per_request = studies.iter().filter_map(|study| {
        let microseconds = study.cores_at(USUAL.1)? / USUAL.1 * 1e6;
        Some(format!("{}: {} for one sidecar, at 1,000/s", escape(&study.study.name), digits(microseconds)))
    });
    let per_request: Vec<String> = per_request.collect();
    let sidecars = studies.map(|it| format!("{}: {}", escape(&it.study.name), digits(it.memory_mb_at(USUAL.0))));
    let of_proxies = |scenario, question: &str, published: &[String], read: fn(&ProxyUsage) -> Option<f64>| {
        let figure = |cell: &Cell| Some(Reading::of(cell, |round| read(round.proxies.as_ref()?))?.text());
        usual(runs, scenario, question, published, figure)
    };
    vec![
        added("p50", |it| it.p50, |it| it.p50),
        added("p99", |it| it.p99, |it| it.p99),
        of_proxies(CostScenario::Cpu, "CPU time of all proxies for a request, µs", &per_request, |it| {
            it.cpu_us_per_request
        }),
        of_proxies(CostScenario::Memory, "Memory of the caller's proxy, MB", &sidecars, |it| it.caller_resident_mb),
        of_proxies(CostScenario::Memory, "Memory of the service's proxy, MB", &sidecars, |it| it.service_resident_mb),
        most_requests(runs),
        of_ingress(runs, &published.ingress),
        of_churn(runs),
    ]
}

/// Cells of a report that make one answer, and under what they were measured.
type Group<'a> = (String, Vec<Asked<'a>>);

/// What tells the reports apart, if more than one has figures of a scenario.
fn titles(runs: &[Run], scenario: CostScenario) -> Vec<String> {
    let with = runs.iter().filter(|run| !run.cells(scenario).is_empty()).count();
    runs.iter().map(|run| if with > 1 { format!("{}: ", run.title) } else { String::new() }).collect()
}

/// Cells by what is said of their points, those of each report by themselves.
fn groups<'a>(runs: &[Run<'a>], scenario: CostScenario, under: impl Fn(&Point) -> String) -> Vec<Group<'a>> {
    let titles = titles(runs, scenario);
    let mut groups: Vec<Group> = Vec::new();
    for (run, title) in runs.iter().zip(titles) {
        let first = groups.len();
        for cell in run.cells(scenario) {
            let under = format!("{title}{}", under(&cell.point));
            match groups[first..].iter_mut().find(|(of, _)| *of == under) {
                Some((_, cells)) => cells.push(cell),
                None => groups.push((under, vec![cell])),
            }
        }
    }
    groups
}

/// The same, told by a part of their points as long as no two of a report are the same by that, and else by all of it.
fn groups_in_short<'a>(runs: &[Run<'a>], scenario: CostScenario, short: impl Fn(&Point) -> String) -> Vec<Group<'a>> {
    let is_short = runs.iter().all(|run| {
        let points = points(&run.cells(scenario));
        points.iter().map(&short).collect::<BTreeSet<_>>().len() == points.len()
    });
    groups(runs, scenario, |at| if is_short { short(at) } else { point(at) })
}

/// The answer of each group of which something can be read.
fn answer<'a>(
    (scenario, question): (CostScenario, &str),
    groups: impl IntoIterator<Item = Group<'a>>,
    published: impl Fn(&Point) -> Vec<String>,
    read: impl Fn(&Variant<'a>) -> Option<String>,
) -> Answer {
    let line = |(under, cells): Group<'a>| {
        let variants = variants(&cells);
        // Through one sidecar is not what is asked here.
        let asked = variants.iter().filter(|it| matches!(it.mode, Mode::Both | Mode::Gateway));
        let figures: Vec<_> = asked.filter_map(|variant| Some((variant.proxy, read(variant)?))).collect();
        let published = cells.first().map(|cell| published(&cell.point)).unwrap_or_default();
        (!figures.is_empty()).then_some(Line { under, measured: Measured::Proxies(figures), published })
    };
    let lines = groups.into_iter().filter_map(line).collect();
    Answer { question: question.to_owned(), place: place(scenario).to_owned(), lines }
}

/// What is read at the point of the studies, or else of each report at the one in the middle of those that have it.
fn usual(
    runs: &[Run],
    scenario: CostScenario,
    question: &str,
    published: &[String],
    read: impl Fn(&Cell) -> Option<String>,
) -> Answer {
    let groups = runs.iter().zip(titles(runs, scenario)).filter_map(|(run, title)| {
        let has = |(_, cells): &Group| cells.iter().any(|cell| read(cell).is_some());
        let mut all: Vec<Group> = groups(std::slice::from_ref(run), scenario, point).into_iter().filter(has).collect();
        let is_usual = |(_, cells): &Group| {
            let usual = Point { connections: USUAL.0, rate: Some(USUAL.1), ..Point::default() };
            cells.first().is_some_and(|cell| cell.point == usual)
        };
        let place = all.iter().position(is_usual).unwrap_or(all.len() / 2);
        let (under, cells) = (place < all.len()).then(|| all.swap_remove(place))?;
        Some((title + &under, cells))
    });
    answer((scenario, question), groups, |_| published.to_vec(), |variant| with_note(variant, &read))
}

/// What is read of the only cell of a variant, and of how many rounds it is, if some do not count.
fn with_note(variant: &Variant, read: impl Fn(&Cell) -> Option<String>) -> Option<String> {
    let cell = variant.cells.first()?;
    Some(read(cell)? + &cell.note())
}

fn difference(Difference { value, low, high, floor, below_floor }: Difference) -> String {
    if below_floor {
        return format!("below noise<br/><small>of {}</small>", digits(floor));
    }
    format!("{}<br/><small>{} to {}</small>", latency::signed(Some(value)), digits(low), digits(high))
}

fn published_additions(studies: &[&SidecarStudy], of: fn(&AddedMs) -> f64) -> Vec<String> {
    let usual = Point { connections: USUAL.0, rate: Some(USUAL.1), ..Point::default() };
    let at_usual = |study: &&SidecarStudy| {
        let added = study.added.iter().find(|added| latency::is_at(added, &usual))?;
        let rate = if added.connections.is_some() { "16 conn., 1,000/s" } else { "1,000/s" };
        Some(format!("{}: {}; {rate}", escape(&study.study.name), latency::signed(Some(of(&added.ms)))))
    };
    studies.iter().filter_map(at_usual).collect()
}

fn most_requests(runs: &[Run]) -> Answer {
    let groups =
        groups(runs, CostScenario::Throughput, |point| format!("{} connections", digits(f64::from(point.connections))));
    let question = (CostScenario::Throughput, "Requests a second that are kept up with, and p99 then");
    answer(
        question,
        groups,
        |_| Vec::new(),
        |variant| {
            let (cell, answered) = throughput::knee(variant)?;
            let p99 =
                cell.latency_ms.map_or_else(String::new, |it| format!("<br/><small>{} ms</small>", digits(it.p99)));
            Some(digits(answered.value) + &p99 + &cell.note())
        },
    )
}

fn of_ingress(runs: &[Run], published: &Ingress) -> Answer {
    let groups = groups_in_short(runs, CostScenario::Ingress, |point| ingress::words(ingress::limits(point)));
    let published = |point: &Point| {
        let of_limits = published.results.iter().filter(|result| ingress::limits(point) == Some(result.limits));
        of_limits.map(|result| format!("{}: {}", escape(&result.name), digits(result.rate))).collect()
    };
    answer((CostScenario::Ingress, "Requests a second through an ingress gateway"), groups, published, |variant| {
        with_note(variant, |cell| Some(Reading::of(cell, |round| Some(round.rate))?.text()))
    })
}

fn of_churn(runs: &[Run]) -> Answer {
    let groups = groups_in_short(runs, CostScenario::Churn, |point| {
        format!("{} changes/s", point.changes_per_second.map_or_else(|| "no".to_owned(), digits))
    });
    let question = (CostScenario::Churn, "Errors while the mesh changes, and the worst second's p99");
    answer(
        question,
        groups,
        |_| Vec::new(),
        |variant| {
            with_note(variant, |cell| {
                let worst = cell.worst_second().and_then(|second| second.p99);
                let worst = worst.map_or_else(String::new, |p99| format!("<br/><small>{} ms</small>", digits(p99)));
                Some(format!("{}{worst}", churn::errors(cell)?.0))
            })
        },
    )
}
