//! What a mesh costs: latency, CPU time and memory that proxies add to requests, with how sure that is.
//!
//! Every scenario is a set of points (connections, rate) at which every variant (no mesh, and each kind of proxies in each
//! mode) is measured in each round, in random order. What was measured becomes `cells`; how sure they are is a matter of
//! `statistics`; `report` is what is written.

mod arguments;
mod cells;
mod churn;
pub(crate) mod compare;
mod descriptors;
mod many;
mod measure;
mod points;
pub(crate) mod report;
pub(crate) mod smp;
mod statistics;
pub(crate) mod subjects;
pub(crate) mod text;

use std::collections::BTreeSet;
use std::process::ExitCode;

use crate::html;
use crate::machine::Machine;
use crate::plane::Plane;
use crate::progress::Progress;
use crate::report::Versions;
pub(crate) use arguments::Args;
use cells::Measurements;
use churn::Changing;
use measure::{Measured, Timing, Variant, measure};
pub(crate) use report::CostScenario;
use report::{Churn, CostReport, Point, SCHEMA};
pub(crate) use statistics::median;
use subjects::Subjects;

/// Measures a scenario.
///
/// # Errors
/// When nothing can be measured, or the report cannot be written. What is merely missing is in the report.
pub(crate) async fn run(scenario: CostScenario, args: Args) -> anyhow::Result<ExitCode> {
    args.verify(scenario)?;
    let (settings, progress) = (args.settings(), Progress::new());
    let points = if args.asks_for_services_alone() {
        Vec::new()
    } else {
        points::points(scenario, args.connections(), args.rates(), args.changes())
    };
    let (points, too_many) = fitting(points);
    let mut subjects = Subjects::start(scenario, &args, &settings, &progress).await?;
    let mut all = empty(scenario, &points, &subjects);
    let total = u64::from(settings.rounds) * u64::try_from(all.len()).unwrap_or(u64::MAX);
    let timing = args.timing(scenario);
    let each = timing.warm_up + timing.length;
    if total > 0 {
        progress.say(&format!("{total} measurements of {:.1} s each", each.as_secs_f64()));
    }
    let mut phase = progress.phase("measurements", total);
    for round in 0..settings.rounds {
        let mut past_knee = BTreeSet::new();
        for (place, point) in points.iter().enumerate() {
            let turn = round.wrapping_mul(u32::try_from(points.len()).unwrap_or(1)) + u32::try_from(place)?;
            let order = statistics::order(subjects.variants.len(), turn, settings.seed);
            for (place_in_round, variant) in (0..).zip(order) {
                let skip = past_knee.contains(&(variant, point.connections));
                let measurements = &mut all[place * subjects.variants.len() + variant];
                if !skip && !turn_of(measurements, &mut subjects, variant, timing, (round, place_in_round)).await {
                    // A mesh that does not keep up with a rate does not keep up with a higher one.
                    let is_curve = scenario == CostScenario::Throughput;
                    past_knee.extend(is_curve.then_some((variant, point.connections)));
                }
                phase.step();
            }
        }
    }
    drop(phase);
    all.extend(many::measure_all(&mut subjects, &args.services(scenario), timing, &progress).await);
    let (cells, floors) = cells::cells(&all, settings.seed);
    let mut missing: Vec<_> = too_many.into_iter().chain(subjects.missing.iter().cloned()).collect();
    missing.extend(text::complaints(&cells, settings.rounds));
    let report = CostReport {
        schema: SCHEMA.to_owned(),
        command: std::env::args().collect(),
        machine: Machine::read(),
        versions: Versions::of(subjects.envoy.as_ref()),
        settings,
        cells,
        floors,
        missing,
    };
    drop(subjects);
    args.output.write_page(|| html::page_of_one(name(scenario), html::Report::Cost(&report)))?;
    let delivered = args.output.deliver(&report, &[], || text::text(&report))?;
    Ok(if report.missing.is_empty() { delivered } else { ExitCode::FAILURE })
}

/// Its name on the command line.
fn name(scenario: CostScenario) -> &'static str {
    match scenario {
        CostScenario::Latency => "latency",
        CostScenario::Cpu => "cpu",
        CostScenario::Throughput => "throughput",
        CostScenario::Memory => "memory",
        CostScenario::Ingress => "ingress",
        CostScenario::Churn => "churn",
    }
}

/// The points whose connections fit into what may be open, and why the others do not.
fn fitting(points: Vec<Point>) -> (Vec<Point>, BTreeSet<String>) {
    let mut too_many = BTreeSet::new();
    let fits = |point: &Point| {
        let complaint = descriptors::too_few_for(point.connections);
        let fits = complaint.is_none();
        too_many.extend(complaint);
        fits
    };
    let fitting = points.into_iter().filter(fits).collect();
    (fitting, too_many)
}

/// Nothing measured yet, of each variant at each point: variants of a point follow each other.
fn empty(scenario: CostScenario, points: &[Point], subjects: &Subjects) -> Vec<Measurements> {
    let at = |point: &Point| {
        let point = *point;
        subjects.variants.iter().map(move |variant| Measurements {
            scenario,
            proxy: variant.proxy,
            mode: variant.mode,
            point,
            rounds: Vec::new(),
            problems: Vec::new(),
        })
    };
    points.iter().flat_map(at).collect()
}

/// Measures a variant, while its mesh changes if that is asked for.
async fn measure_changing(
    variant: &Variant,
    plane: Option<&Plane>,
    point: Point,
    timing: Timing,
    turn: (u32, u32),
) -> anyhow::Result<Measured> {
    let per_second = point.changes_per_second.filter(|per_second| *per_second > 0.0);
    let changing = match plane.zip(per_second) {
        Some((plane, per_second)) => Some(Changing::begin(plane, per_second).await?),
        None => None,
    };
    let mut measured = measure(variant, point, timing, turn).await?;
    if let Some(changing) = changing {
        let (made, refused, void) = changing.end().await?;
        let round = &mut measured.round;
        round.churn = round.churn.take().map(|churn| Churn { made, refused, ..churn });
        round.void = round.void.take().or(void);
    }
    Ok(measured)
}

/// Measures a variant once; whether that counts.
async fn turn_of(
    measurements: &mut Measurements,
    subjects: &mut Subjects,
    variant: usize,
    timing: Timing,
    (round, place): (u32, u32),
) -> bool {
    let of = &subjects.variants[variant];
    let plane = subjects.planes.iter().find(|(kind, _)| *kind == of.proxy).map(|(_, plane)| plane);
    let counts = match measure_changing(of, plane, measurements.point, timing, (round, place)).await {
        Ok(measured) => {
            let counts = measured.round.void.is_none();
            measurements.rounds.push(measured);
            counts
        }
        Err(error) => {
            measurements.problems.push(format!("round {round}: {error:#}"));
            false
        }
    };
    if !counts && let Some(how) = subjects.ended() {
        measurements.problems.push(format!("round {round}: {how}"));
    }
    counts
}
