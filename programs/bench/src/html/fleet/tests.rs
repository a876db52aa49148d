use super::*;
use crate::fleet_report::tests::{example, example_with_everything};
use crate::published::Published;

fn render(report: &FleetReport) -> String {
    section("fleet-1".to_owned(), "propagation", report, &Published::read()).body
}

#[test]
fn the_page_has_the_run_beside_the_published_one() {
    let text = render(&example());
    for part in [
        "50 nodes, 1000 workloads, 1 servers, 3 changes. Each reached every workload",
        "<th>2 × deregistration</th><th>1 × registration</th><th class=\"published\">published: endpoint propagation",
        "<tr><td>99 %</td><td>138.9</td><td>138.9</td><td class=\"published\">32051.9</td>",
        "<tr><td>all</td><td>2400.0</td><td>150.0</td><td class=\"published\">–</td>",
        "Every workload, registration",
        "12.5 s",
        "OSM: 1 MB for each pod",
        "OSM: 15 min for each round, sidecars into 100 pods/min (0.500 cores), 200 pods/min (2 cores)",
        "Published figures: Open Service Mesh",
        "CPU over time",
        "HashiCorp Consul Global Scale Benchmark, April 2021",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert_eq!(text.matches("<svg").count(), 4);
    assert!(text.contains(&escape(&example().machine.line())));
}

#[test]
fn cost_stands_beside_a_fleet_of_its_size_or_beside_nothing() {
    let of = |workloads: u32| render(&FleetReport { workloads, ..example() });
    let whole = of(178_000);
    assert!(whole.contains("nodes in 51 min") && whole.contains("20 GB at its peak"), "{whole}");
    assert!(!whole.contains("OSM"), "{whole}");
    let between = of(17_800);
    assert!(!between.contains("nodes in 51 min") && !between.contains("OSM"), "{between}");
}

#[test]
fn the_page_has_what_was_measured_besides() {
    let text = render(&example_with_everything());
    for part in [
        "<tr><td>deregistration</td><td>2</td><td>30.0</td><td>35.2</td><td>35.2</td></tr>",
        "4321 requests were sent meanwhile, 7 of them late; 1 failed",
        "<tr><td>nodes</td><td>5</td><td>50</td><td>10.0</td></tr>",
        "<td>20.0</td><td>180.0</td><td>9.0</td>",
        "<td>12.0</td><td>90.0</td><td>7.5</td>",
        "each of 10000 further registrations</td><td>1049 B</td>",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let text = render(&example());
    for part in ["Envoys had changed", "<h3>Growth", "further registrations"] {
        assert!(!text.contains(part), "{part} in\n{text}");
    }
}

#[test]
fn a_change_that_did_not_reach_all_is_told_and_marked() {
    let mut report = example();
    report.changes.push(FleetChange::new(44, "deny", 1000, &[]));
    let text = render(&report);
    assert!(text.contains("1 of them did not reach every workload"), "{text}");
    assert!(text.contains("<td>1000</td><td class=\"missing\">0</td><td>–</td>"), "{text}");
}

#[test]
fn histograms_of_several_changes_are_added_up() {
    let changes =
        [FleetChange::new(1, "deny", 3, &[1000, 1000, 50_000]), FleetChange::new(2, "deny", 2, &[1000, 9000])];
    let counts: Vec<u64> = together(changes.iter()).iter().map(|bin| bin.count).collect();
    assert_eq!(counts, [3, 1, 1]);
}
