//! What is not the same in two reports beside what was measured, and has to be known to believe a comparison.

use crate::cost::report::{CostReport, ProxyKind};

/// One line each.
pub(super) fn notes(before: &CostReport, after: &CostReport) -> Vec<String> {
    let differing = of(before).into_iter().zip(of(after)).filter(|(was, is)| was != is);
    let mut notes: Vec<String> =
        differing.map(|((name, was), (_, is))| format!("{name} differs: {was} in A, {is} in B")).collect();
    for (name, report) in [("A", before), ("B", after)] {
        if report.versions.build == "debug" {
            notes.push(format!("{name} is of a debug build, whose figures are no measure"));
        }
        notes.extend(report.missing.iter().map(|missing| format!("{name} lacks: {missing}")));
    }
    notes
}

/// What a report says of how it was measured, beside the settings without which it is not compared at all.
fn of(report: &CostReport) -> Vec<(&'static str, String)> {
    let (machine, versions, settings) = (&report.machine, &report.versions, &report.settings);
    vec![
        ("processor", format!("{} ({})", machine.model, machine.cpu)),
        ("number of cores", machine.cores.to_string()),
        ("memory of the machine", format!("{} MiB", machine.memory >> 20)),
        ("kernel", machine.kernel.clone()),
        ("starling", versions.starling.clone()),
        ("build", versions.build.clone()),
        ("Envoy", versions.envoy.clone().unwrap_or_else(|| "none".to_owned())),
        ("target", target(report).unwrap_or("none").to_owned()),
        ("number of rounds", settings.rounds.to_string()),
        ("length of a round", format!("{} s", settings.seconds)),
        ("warm-up", format!("{} s", settings.warm_up_seconds)),
        ("threads of the generator", settings.generator_threads.to_string()),
    ]
}

/// What `--target` was given; reports have it in their command line alone.
fn target(report: &CostReport) -> Option<&str> {
    if !report.cells.iter().any(|cell| cell.proxy == ProxyKind::Target) {
        return None;
    }
    let mut words = report.command.iter().map(String::as_str);
    words
        .find_map(|word| word.strip_prefix("--target=").or((word == "--target").then_some("")))
        .map(|given| if given.is_empty() { words.next().unwrap_or("unknown") } else { given })
}
