//! Verdicts on made-up figures.

use super::*;
use crate::cost::report::tests::sample;
use crate::cost::report::{MachineUsage, ProxyUsage};

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
