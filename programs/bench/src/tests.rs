use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Program {
    #[command(flatten)]
    bench: BenchArgs,
}

fn parse(arguments: &[&str]) -> Result<Scenario, clap::Error> {
    Program::try_parse_from(std::iter::once(&"bench").chain(arguments)).map(|program| program.bench.scenario)
}

#[test]
fn every_scenario_runs_without_arguments() {
    assert!(matches!(parse(&["latency-of-change"]).unwrap(), Scenario::LatencyOfChange(_)));
    assert!(matches!(parse(&["scale"]).unwrap(), Scenario::Scale(_)));
    for scenario in ["propagation", "intention", "rollout", "reconnect", "failover", "churn", "faults"] {
        let text = format!("{:?}", parse(&[scenario]).unwrap());
        assert!(text.contains("nodes: 10000, workloads: 178000, changes: None, servers: None"), "{text}");
    }
}

#[test]
fn kinds_are_a_list() {
    let parsed = parse(&["latency-of-change", "--changes", "5", "--kinds", "deny,health", "-o", "json", "--strict"]);
    let text = format!("{:?}", parsed.unwrap());
    assert!(text.contains("kinds: [Deny, Health]") && text.contains("changes: 5"), "{text}");
}

#[test]
fn instances_come_through_the_agent_unless_told_otherwise() {
    let through = |arguments: &[&str]| format!("{:?}", parse(arguments).unwrap());
    assert!(through(&["scale"]).contains("through: Agent"));
    assert!(through(&["scale", "--through", "catalog"]).contains("through: Catalog"));
}

#[test]
fn what_cannot_be_is_refused() {
    for arguments in [
        &["latency-of-change", "--changes", "0"][..],
        &["latency-of-change", "--kinds", "weather"],
        &["latency-of-change", "--spacing-us", "1"],
        &["scale", "--services", "0"],
        &["scale", "--envoys", "1000"],
        &["scale", "-o", "yaml"],
        &["propagation", "--nodes", "0"],
        &["propagation", "--servers", "0"],
        &["propagation", "--envoys", "51"],
        &["propagation", "--further", "-1"],
        &["rollout", "--changes", "0"],
        &["scale", "--through", "wall"],
        &["everything"],
        &[],
    ] {
        assert!(parse(arguments).is_err(), "{arguments:?}");
    }
}

#[test]
fn the_reports_are_documented_where_users_look() {
    let mut command = <Program as clap::CommandFactory>::command();
    for (scenario, field) in [
        ("latency-of-change", "from_call_ms"),
        ("scale", "server_cpu_ms"),
        ("propagation", "rollout"),
        ("intention", "latency_ms"),
        ("faults", "slow_readers.{nodes"),
    ] {
        let help = command.find_subcommand_mut(scenario).unwrap().render_long_help().to_string();
        assert!(help.contains(field), "{help}");
    }
}
