//! Transcripts of questions to the zone: `tests/scenarios/*.txt`.
//!
//! A line describes a record (`support/world.rs`), says what answers are like (`settings only_passing=true node_ttl=S
//! service_ttl=NAME:S,… addresses_max=N negative_ttl=S`), or asks: `? NAME TYPE rotation=N max=N`. What is indented is the answer. `STARLING_GOLDEN=rewrite` writes it anew.

#[path = "support/world.rs"]
mod world;

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use starling_catalog::Snapshot;
use starling_dns::settings::ServiceTtls;
use starling_dns::zone::Draw;
use starling_dns::{Settings, View, Zone};

fn play(script: &str) -> String {
    let mut zone = Zone::new("dc1".parse().expect("a datacentre"), "mesh.test".parse().expect("a trust domain"));
    zone = zone.at(Some("n2".parse().expect("a node")));
    let mut snapshot = Snapshot::default();
    let mut transcript = String::new();
    for line in script.lines().filter(|line| !line.starts_with("  ")) {
        writeln!(transcript, "{line}").expect("written");
        match line.strip_prefix("? ") {
            Some(question) => transcript.push_str(&ask(&zone, &snapshot, question)),
            None if line.starts_with("settings") => zone = zone.with(settings(line)),
            None if line.is_empty() || line.starts_with('#') => {}
            None => snapshot = world::after(&snapshot, line),
        }
    }
    transcript
}

fn settings(line: &str) -> Settings {
    let mut settings = Settings::default();
    for word in line.split_whitespace().skip(1) {
        let (key, value) = word.split_once('=').expect("a value");
        match key {
            "only_passing" => settings.only_passing = value == "true",
            "node_ttl" => settings.node_ttl_s = value.parse().expect("seconds"),
            "addresses_max" => settings.addresses_max = Some(value.parse().expect("a number")),
            "negative_ttl" => settings.soa.negative_ttl_s = value.parse().expect("seconds"),
            "service_ttl" => {
                let named = value.split(',').map(|one| one.split_once(':').expect("NAME:S"));
                let named = named.map(|(name, ttl_s)| (name.to_owned(), ttl_s.parse().expect("seconds")));
                settings.service_ttl = ServiceTtls::new(named);
            }
            other => panic!("no such setting: {other:?}"),
        }
    }
    settings
}

fn ask(zone: &Zone, snapshot: &Snapshot, question: &str) -> String {
    let mut words = question.split_whitespace();
    let name = Name::from_ascii(words.next().expect("a name")).expect("a name");
    let kind: RecordType = words.next().expect("a type").parse().expect("a type");
    let mut draw = Draw { rotation: 0, records_max: 100 };
    for word in words {
        match word.split_once('=') {
            Some(("rotation", number)) => draw.rotation = number.parse().expect("a number"),
            Some(("max", number)) => draw.records_max = number.parse().expect("a number"),
            Some(_) | None => panic!("no such word: {word:?}"),
        }
    }
    let view = View::of(Arc::new(snapshot.clone()));
    render(&zone.answer(&view, &Query::query(name, kind), draw))
}

fn render(message: &Message) -> String {
    let authoritative = if message.metadata.authoritative { ", authoritative" } else { "" };
    let mut text = format!("  {:?}{authoritative}\n", message.metadata.response_code);
    assert!(!message.metadata.recursion_available);
    for (section, records) in
        [("answer", &message.answers), ("authority", &message.authorities), ("additional", &message.additionals)]
    {
        for record in records {
            let ttl = if record.ttl == 0 { String::new() } else { format!(" ttl={}", record.ttl) };
            writeln!(text, "  {section:<10} {}{ttl}", spell(record)).expect("written");
        }
    }
    text
}

fn spell(record: &Record) -> String {
    let (name, kind) = (&record.name, record.record_type());
    if let RData::SOA(soa) = &record.data {
        // Only the serial changes.
        return format!("{name} {kind} serial {}", soa.serial);
    }
    format!("{name} {kind} {}", record.data)
}

#[test]
fn transcripts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let rewrite = std::env::var("STARLING_GOLDEN").is_ok_and(|value| value == "rewrite");
    let mut played = 0;
    for entry in std::fs::read_dir(&folder).expect("the folder of scenarios") {
        let path = entry.expect("an entry").path();
        let expected = std::fs::read_to_string(&path).expect("a scenario");
        let actual = play(&expected);
        if rewrite {
            std::fs::write(&path, &actual).expect("written");
        } else {
            assert_eq!(actual, expected, "{}", path.display());
        }
        played += 1;
    }
    assert!(played > 0, "no scenario in {}", folder.display());
}
