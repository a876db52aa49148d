//! Verdicts on made-up figures.

use super::*;
use crate::cost::report::tests::sample;
use crate::cost::report::{CostScenario, MachineUsage, ProxyKind, ProxyUsage, Quantiles, Round};

/// A report with one cell, of these medians round by round.
fn report(p50: &[f64]) -> CostReport {
    let mut report = sample();
    let mut cell = report.cells.swap_remove(0);
    let template = Round {
        errors: 0,
        void: None,
        failures: std::collections::BTreeMap::new(),
        requests: 1000,
        ..cell.rounds.swap_remove(0)
    };
    let of = |(number, p50): (u32, &f64)| {
        let latency_ms = Quantiles { mean: *p50, p50: *p50, p90: 2.0, p99: 3.0, p999: 4.0, max: 5.0 };
        Round { number, latency_ms: Some(latency_ms), ..template.clone() }
    };
    cell.rounds = (0..).zip(p50).map(of).collect();
    report.missing.clear();
    report.cells = vec![cell];
    report
}

const QUIET: [f64; 5] = [1.00, 1.01, 0.99, 1.02, 1.00];

fn verdict(before: &[f64], after: &[f64]) -> Verdict {
    let comparison = compare(&report(before), &report(after), 5.0).unwrap();
    comparison.changes.iter().find(|change| change.figure == "p50_ms").unwrap().verdict
}

#[test]
fn a_change_is_judged_by_interval_floor_and_tolerance() {
    assert_eq!(verdict(&QUIET, &QUIET), Verdict::Noise);
    assert_eq!(verdict(&QUIET, &QUIET.map(|it| it + 0.5)), Verdict::Regression);
    assert_eq!(verdict(&QUIET.map(|it| it + 0.5), &QUIET), Verdict::Better);
    // Above 0 in every resample, but below the floor of 0.125 ms.
    assert_eq!(verdict(&QUIET, &QUIET.map(|it| it + 0.1)), Verdict::Noise);
    // A third of a millisecond of ten is within 5 %.
    assert_eq!(verdict(&QUIET.map(|it| it * 10.0), &QUIET.map(|it| it * 10.0 + 0.33)), Verdict::Worse);
    // The medians differ by half, but the rounds of each by more.
    assert_eq!(verdict(&[1.0, 0.2, 3.0, 0.5, 2.0], &[1.5, 0.3, 2.9, 0.6, 1.9]), Verdict::Noise);
    assert_eq!(verdict(&[1.0], &[2.0]), Verdict::Unsure);
}

/// With so many of its last rounds void.
fn losing(mut report: CostReport, void: usize) -> CostReport {
    let rounds = &mut report.cells[0].rounds;
    let kept = rounds.len() - void;
    rounds[kept..].iter_mut().for_each(|round| round.void = Some("the generator was late".to_owned()));
    if kept == 0 {
        report.cells[0].void = Some("no round counts".to_owned());
    }
    report
}

#[test]
fn rounds_that_b_lost_do_not_pass_and_those_that_were_not_asked_of_it_are_not_lost() {
    let verdict = |before: &CostReport, after: &CostReport| {
        let comparison = compare(before, after, 5.0).unwrap();
        let change = comparison.changes.iter().find(|change| change.figure == "p50_ms").unwrap();
        (change.verdict, comparison.regressions > 0)
    };
    let whole = report(&QUIET);
    assert_eq!(verdict(&whole, &losing(report(&QUIET), 1)), (Verdict::Noise, false));
    for void in 2..5 {
        assert_eq!(verdict(&whole, &losing(report(&QUIET), void)), (Verdict::Missing, true), "{void} of 5 void");
    }
    // Less than half of what A had, also where A had too few to be judged.
    let three = losing(report(&QUIET), 2);
    assert_eq!(verdict(&three, &losing(report(&QUIET), 3)), (Verdict::Unsure, false));
    assert_eq!(verdict(&three, &losing(report(&QUIET), 4)), (Verdict::Missing, true));
    let mut asked_for_less = report(&[9.0, 9.1]);
    asked_for_less.settings.rounds = 2;
    assert_eq!(verdict(&whole, &asked_for_less), (Verdict::Unsure, false));
    let text = compare(&whole, &asked_for_less, 5.0).unwrap().text();
    assert!(text.contains("note: nothing was judged"), "{text}");
    assert!(text.contains("not judged") && text.contains("5 and 2"), "{text}");
}

#[test]
fn fewer_than_four_rounds_are_not_judged() {
    assert_eq!(verdict(&[1.0, 1.01], &[2.0, 2.01]), Verdict::Unsure);
    assert_eq!(verdict(&[1.0, 1.01, 0.99], &QUIET.map(|it| it * 2.0)), Verdict::Unsure);
    assert_eq!(verdict(&QUIET[..4], &[2.0, 2.01, 1.99, 2.0]), Verdict::Regression);
}

#[test]
fn memory_that_is_measured_once_is_judged_by_the_tolerance_alone() {
    let with = |megabytes: f64| {
        let mut report = report(&[1.0]);
        let cell = &mut report.cells[0];
        (cell.scenario, cell.point.services) = (CostScenario::Memory, Some(100));
        cell.rounds[0].proxies.as_mut().unwrap().caller_resident_mb = Some(megabytes);
        report
    };
    let verdicts = |after: f64| {
        let comparison = compare(&with(10.0), &with(after), 5.0).unwrap();
        let of = |name| comparison.changes.iter().find(|change| change.figure == name).unwrap().verdict;
        (of("caller_resident_mb"), of("p50_ms"))
    };
    assert_eq!(verdicts(10.4), (Verdict::Noise, Verdict::Unsure));
    assert_eq!(verdicts(9.6), (Verdict::Noise, Verdict::Unsure));
    assert_eq!(verdicts(11.0), (Verdict::Regression, Verdict::Unsure));
    assert_eq!(verdicts(9.0), (Verdict::Better, Verdict::Unsure));
    let text = compare(&with(10.0), &with(11.0), 5.0).unwrap().text();
    let line = text.lines().find(|line| line.contains("REGRESSION")).unwrap();
    assert!(line.contains("measured"), "it says so where others have an interval: {text}");
}

#[test]
fn a_knee_is_judged_by_the_most_that_is_answered() {
    // A keeps up with both rates; B with the first, and answers so many of the second.
    let curve = |of_second: f64, keeps_up: bool| {
        let mut report = report(&QUIET);
        let mut first = report.cells.remove(0);
        first.scenario = CostScenario::Throughput;
        let mut second = first.clone();
        for (cell, rate) in [(&mut first, 1000.0), (&mut second, of_second)] {
            cell.rounds.iter_mut().for_each(|round| round.rate = rate);
        }
        second.point.rate = Some(2000.0);
        report.cells = vec![second];
        let mut report = if keeps_up { report } else { losing(report, 5) };
        report.cells.insert(0, first);
        report
    };
    let verdicts = |after: &CostReport| {
        let comparison = compare(&curve(2000.0, true), after, 5.0).unwrap();
        let second = comparison.changes.iter().filter(|change| change.point.rate == Some(2000.0));
        (second.map(|change| change.verdict).collect::<Vec<_>>(), comparison.regressions)
    };
    let (near, regressions) = verdicts(&curve(1910.0, false));
    assert!(near.iter().all(|verdict| *verdict == Verdict::PastKnee) && regressions == 0, "{near:?}");
    let (far, regressions) = verdicts(&curve(1800.0, false));
    assert!(far.iter().all(|verdict| *verdict == Verdict::Missing) && regressions == far.len(), "{far:?}");
    // Requests that failed are no matter of keeping up.
    let mut failing = curve(1990.0, false);
    failing.cells[1].rounds[0].errors = 1;
    assert!(verdicts(&failing).0.iter().all(|verdict| *verdict == Verdict::Missing));
    // Nor is a rate at which B lost rounds and well below the most that it answers.
    let (mut before, mut after) = (curve(2000.0, true), curve(2000.0, true));
    before.cells.swap(0, 1);
    after.cells.swap(0, 1);
    after.cells[1].rounds.iter_mut().for_each(|round| round.void = Some("the generator was late".to_owned()));
    let comparison = compare(&before, &after, 5.0).unwrap();
    let first = comparison.changes.iter().filter(|change| change.point.rate == Some(1000.0));
    assert!(first.clone().count() > 0 && first.into_iter().all(|change| change.verdict == Verdict::Missing));
    // A rate that was not even asked of B is no knee.
    let mut shorter = curve(1910.0, false);
    shorter.cells.pop();
    shorter.cells[0].rounds.iter_mut().for_each(|round| round.rate = 2000.0);
    assert!(verdicts(&shorter).0.iter().all(|verdict| *verdict == Verdict::Missing));
}

#[test]
fn what_else_is_not_the_same_is_told() {
    let before = report(&QUIET);
    assert!(!compare(&before, &before, 5.0).unwrap().text().contains("differs"));
    let mut after = report(&QUIET);
    after.versions.build = "other".to_owned();
    after.versions.envoy = Some("1.99.0".to_owned());
    (after.machine.kernel, after.settings.seconds) = ("9.9".to_owned(), 0.5);
    let notes = compare(&before, &after, 5.0).unwrap().notes;
    let differing: Vec<_> = notes.iter().filter(|note| note.contains("differs")).collect();
    assert_eq!(differing.len(), 4, "{notes:?}");
    for part in ["other in B", "Envoy differs: none in A, 1.99.0 in B", "9.9 in B", "10 s in A, 0.5 s in B"] {
        assert!(notes.iter().any(|note| note.contains(part)), "{part} in {notes:?}");
    }
    after.versions.build = "debug".to_owned();
    let notes = compare(&after, &after, 5.0).unwrap().notes;
    assert!(notes.iter().any(|note| note.starts_with("B is of a debug build")), "{notes:?}");
}

#[test]
fn another_target_is_told() {
    let to = |words: &[&str]| {
        let mut report = report(&QUIET);
        report.cells[0].proxy = ProxyKind::Target;
        report.command.extend(words.iter().map(|word| (*word).to_owned()));
        report
    };
    let note = |before: &[&str], after: &[&str]| {
        let notes = compare(&to(before), &to(after), 5.0).unwrap().notes;
        notes.into_iter().find(|note| note.starts_with("target"))
    };
    assert_eq!(note(&["--target", "url=http://a"], &["--target=url=http://a"]), None);
    assert_eq!(
        note(&["--target", "url=http://a"], &["--target=url=http://b"]).as_deref(),
        Some("target differs: url=http://a in A, url=http://b in B")
    );
}

#[test]
fn lower_rates_are_worse_and_so_are_errors_that_were_not_there() {
    let (before, mut after) = (report(&QUIET), report(&QUIET));
    for round in &mut after.cells[0].rounds {
        round.rate = 800.0;
        round.errors = 10;
    }
    let comparison = compare(&before, &after, 5.0).unwrap();
    let failing: Vec<_> = comparison.changes.iter().filter(|it| it.verdict.fails()).map(|it| it.figure).collect();
    assert_eq!(failing, ["rate", "failed_percent"]);
    assert_eq!(comparison.regressions, 2);
    let lenient = compare(&before, &after, 50.0).unwrap();
    assert_eq!(lenient.regressions, 1, "from no errors to some is beyond any percentage");
}

#[test]
fn what_is_void_or_gone_in_b_does_not_pass() {
    let before = report(&QUIET);
    let mut after = report(&QUIET);
    after.cells[0].void = Some("the generator was late".to_owned());
    let comparison = compare(&before, &after, 5.0).unwrap();
    assert!(comparison.changes.iter().all(|change| change.verdict == Verdict::Missing));
    assert!(comparison.regressions > 0 && comparison.text().contains("MISSING in B"));
    let mut after = report(&QUIET);
    for round in &mut after.cells[0].rounds {
        round.proxies = Some(ProxyUsage {
            cpu_us_per_request: None,
            cores: 0.0,
            caller_resident_mb: Some(9.5),
            service_resident_mb: None,
        });
        round.machine = Some(MachineUsage { cpu_us_per_request: None, cores: 0.0 });
    }
    let comparison = compare(&before, &after, 5.0).unwrap();
    let failing: Vec<_> = comparison.changes.iter().filter(|it| it.verdict.fails()).map(|it| it.figure).collect();
    assert_eq!(failing, ["cpu_us_per_request"]);
}

#[test]
fn reports_that_do_not_fit_together_are_refused_with_what_differs() {
    let before = report(&QUIET);
    let mut after = report(&QUIET);
    after.settings.mtls = false;
    after.settings.payload_bytes = 7;
    let refused = compare(&before, &after, 5.0).unwrap_err().to_string();
    assert!(refused.contains("mtls (true and false)") && refused.contains("payload_bytes (1024 and 7)"), "{refused}");
    let mut after = report(&QUIET);
    after.cells[0].point.connections = 99;
    assert!(compare(&before, &after, 5.0).unwrap_err().to_string().contains("no measurement in common"));
    // How often it was measured may differ.
    let mut after = report(&QUIET);
    after.settings.rounds = 3;
    assert!(compare(&before, &after, 5.0).is_ok());
}

#[test]
fn files_say_why_they_are_none_and_codes_tell_the_outcomes_apart() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let good = serde_json::to_string(&report(&QUIET)).unwrap();
    let worse = serde_json::to_string(&report(&QUIET.map(|it| it * 2.0))).unwrap();
    let (good, worse) = (file("good", &good), file("worse", &worse));
    let args = |after: &Path| CompareArgs {
        before: good.clone(),
        after: after.to_owned(),
        tolerance: 5.0,
        output: Output::Json,
    };
    let code = |after: &Path| format!("{:?}", run(&args(after)).unwrap());
    let expected = |code: u8| format!("{:?}", ExitCode::from(code));
    assert_eq!((code(&good), code(&worse)), (expected(0), expected(1)));
    for (name, text, said) in [
        ("text", "hello", "is no JSON"),
        ("other", r#"{"schema":"starling-bench-fleet/1"}"#, "starling-bench-fleet/1"),
        ("none", r#"{"a":1}"#, "names no schema"),
        ("part", r#"{"schema":"starling-bench-cost/1"}"#, "is not as"),
    ] {
        let path = file(name, text);
        assert!(format!("{:#}", read(&path).unwrap_err()).contains(said), "{name}");
        assert_eq!(code(&path), expected(2));
    }
}

#[test]
fn the_table_tells_what_changed_and_counts_the_rest() {
    let comparison = compare(&report(&QUIET), &report(&QUIET.map(|it| it * 2.0)), 5.0).unwrap();
    let text = comparison.text();
    assert!(text.contains("latency native, 16") && text.contains("+100.0 %"), "{text}");
    assert!(text.contains("REGRESSION") && text.contains("1 regressions beyond 5 %"), "{text}");
    let json = serde_json::to_value(&comparison).unwrap();
    assert_eq!(
        (&json["changes"][0]["verdict"], &json["changes"][0]["figure"]),
        (&"regression".into(), &"p50_ms".into())
    );
}
