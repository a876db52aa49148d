use super::*;

const FLEET: Fleet =
    Fleet { door: Door::Agent, services: 1000, instances: 3, sidecars: 20, upstreams: 50, attached: 2 };

fn memory(mebibytes: u64) -> Memory {
    Memory { resident: mebibytes << 20, proportional: mebibytes << 19 }
}

fn findings(seconds: f64) -> Findings {
    let changes = Changes {
        watchers: 2,
        from_answer: [Duration::from_millis(4), Duration::from_millis(6)].into_iter().collect(),
        from_call: [Duration::from_millis(7), Duration::from_millis(9)].into_iter().collect(),
        from_commit: [Duration::from_millis(3), Duration::from_millis(5)].into_iter().collect(),
        cpu_each: Duration::from_micros(1500),
    };
    let each = std::iter::once(Duration::from_millis(3)).collect();
    Findings {
        registration: Registration { connections: 32, took: Duration::from_secs_f64(seconds), each },
        server_memory: ServerMemory {
            at_start: memory(20),
            registered: memory(26),
            attached: memory(30),
            at_end: memory(31),
        },
        envoy_memory: EnvoyMemory::of(&[memory(70), memory(80)]),
        changes: vec![changes],
    }
}

fn versions() -> Versions {
    Versions { starling: "0.1.0".to_owned(), build: "release".to_owned(), envoy: Some("1.40.0".to_owned()) }
}

#[test]
fn the_report_holds_every_documented_field() {
    let json = serde_json::to_value(findings(1.5).report(&FLEET, versions())).unwrap();
    assert_eq!(json["fleet"]["attached"], 2);
    assert_eq!(json["registration"]["through"], "agent");
    assert_eq!(json["registration"]["instances"], 3000);
    assert_eq!(json["registration"]["per_second"], 2000.0);
    assert_eq!(json["bar"]["met"], true);
    assert_eq!(json["server_memory"]["per_instance"], (6 << 20) / 3000);
    assert_eq!(json["server_memory"]["at_start"]["resident"], 20 << 20);
    assert_eq!(json["envoy_memory"]["resident_mean"], 75 << 20);
    assert_eq!(json["envoy_memory"]["proportional_total"], 75 << 20);
    assert_eq!(json["changes"][0]["watchers"], 2);
    assert_eq!(json["changes"][0]["from_commit_ms"]["max"], 5.0);
    assert_eq!(json["changes"][0]["server_cpu_ms"], 1.5);
    assert_eq!(json["changes"][0]["latency_ms"]["count"], 2);
}

#[test]
fn the_bar_is_in_proportion_to_the_instances() {
    assert!(!findings(2.1).report(&FLEET, versions()).bar.met);
    let twice = Fleet { services: 2000, ..FLEET };
    assert!(findings(2.1).report(&twice, versions()).bar.met);
}

#[test]
fn the_table_shows_memory_time_and_cpu() {
    let text = table(&findings(2.5).report(&FLEET, versions()));
    for part in [
        "through the agent: 3000 instances in 2.50 s",
        "bar 2.00 s: MISSED",
        "26.0 MiB",
        "all 2 Envoys",
        "server CPU",
        "1.50",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[test]
fn without_envoys_there_is_no_envoy_memory() {
    assert_eq!(EnvoyMemory::of(&[]), None);
    let findings = Findings { envoy_memory: None, changes: Vec::new(), ..findings(1.0) };
    assert!(!table(&findings.report(&FLEET, versions())).contains("Envoy,"), "no row for what did not run");
}
