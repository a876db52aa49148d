//! What a fleet costs the server: `cargo run --release -p starling-attach --example fleet-cost [STREAMS]`.
//!
//! Every stream is subscribed to `service-hey` and to the sixty-odd subjects that some eighteen workloads need, chosen from 3,000
//! services as published. Bytes are those on the wire, gRPC's five per message included; time is of one core.

#![expect(clippy::print_stdout, reason = "it is for people to read")]
#![expect(clippy::unwrap_used, reason = "an example that cannot go on has failed")]

#[path = "../../catalog/tests/support/records.rs"]
mod records;

use std::time::Instant;

use records::{key, node, sidecar};
use starling_attach::{Fleet, StreamId};
use starling_catalog::{Snapshot, Subject};
use starling_model::{Change, Record, RecordKey, Revision};

/// What gRPC puts in front of a message.
const PREFIX_BYTES: usize = 5;
const CHANGES: u64 = 20;
const SERVICES: usize = 3_000;
/// Where everything is registered: a node without an agent, so that only endpoints change.
const ELSEWHERE: &str = "elsewhere";

fn main() {
    let streams: usize = std::env::args().nth(1).map_or(10_000, |text| text.parse().unwrap());
    let mut world = World::new(1, 1_000);
    let wanted: Vec<_> = (0..streams).map(workloads).collect();
    let before = resident_bytes();
    let begun = Instant::now();
    let ids: Vec<_> = wanted.iter().enumerate().map(|(number, wants)| world.attach(number, wants)).collect();
    println!("{streams} streams subscribed        {:>9.1} us each", micros(begun) / streams as f64);
    let held = resident_bytes().saturating_sub(before);
    println!("memory                         {:>9} bytes each", held / streams);
    let (bytes, each) = world.take(&ids);
    println!(
        "first take                     {each:>9.2} us each, {} bytes each, {} encoded",
        bytes / streams,
        world.fleet.encoded()
    );
    world.changes("service-hey", &ids);

    let mut world = World::new(1_000, 0);
    let hey = vec![(endpoints("service-hey"), Revision(0))];
    let ids: Vec<_> = (0..streams).map(|number| world.attach(number, &hey)).collect();
    let (bytes, each) = world.take(&ids);
    println!("\n1,000 endpoints, watched by {streams}");
    println!("first take                     {each:>9.2} us each, {} bytes each", bytes / streams);
    let (bytes, encoded) = world.changes("service-hey", &ids);
    assert_eq!(encoded, 1, "one change is encoded once");
    assert!(bytes * 10_000 <= 10_000_000 * streams, "{bytes} bytes for one endpoint");
}

struct World {
    snapshot: Snapshot,
    fleet: Fleet,
}

impl World {
    /// `service-hey` with so many endpoints, and so many others with sixty each in three tiers.
    fn new(endpoints: usize, others: usize) -> Self {
        let mut changes = vec![Change::Put(node(ELSEWHERE, "10.0.0.1"))];
        changes.extend((0..endpoints).map(|number| register("service-hey", number, 21_000)));
        for service in 0..others {
            changes.extend((0..60).map(|number| register(&format!("tier-1-service-{service}"), number, 21_000)));
        }
        let snapshot = Snapshot::default().apply(Revision(1), &changes).snapshot;
        Self { fleet: Fleet::new(snapshot.clone()), snapshot }
    }

    fn attach(&mut self, number: usize, wants: &[(Subject, Revision)]) -> StreamId {
        let id = self.fleet.attach(format!("node-{number}").parse().unwrap());
        self.fleet.subscribe(id, wants).unwrap();
        id
    }

    fn commit(&mut self, changes: &[Change]) -> usize {
        let revision = Revision(self.snapshot.revision().0 + 1);
        self.snapshot = self.snapshot.apply(revision, changes).snapshot;
        self.fleet.publish(&self.snapshot, changes, revision.0).woken.len()
    }

    /// Everybody takes everything: bytes in all, microseconds each.
    fn take(&mut self, ids: &[StreamId]) -> (usize, f64) {
        let begun = Instant::now();
        let mut bytes = 0;
        for id in ids {
            while self.fleet.has_pending(*id) {
                bytes += self.fleet.take(*id, 0).iter().map(|frame| frame.len() + PREFIX_BYTES).sum::<usize>();
            }
        }
        (bytes, micros(begun) / ids.len() as f64)
    }

    /// An endpoint goes and comes back, some times: bytes of one change in all, frames encoded for one change.
    fn changes(&mut self, service: &str, ids: &[StreamId]) -> (usize, u64) {
        let encoded = self.fleet.encoded();
        let (mut publish, mut takes, mut bytes) = (Vec::new(), Vec::new(), 0);
        for round in 0..CHANGES {
            let gone = Change::Delete(RecordKey::Instance(key(ELSEWHERE, &format!("{service}-0-sidecar-proxy"))));
            let change = if round % 2 == 0 { gone } else { register(service, 0, 21_000) };
            let begun = Instant::now();
            assert_eq!(self.commit(&[change]), ids.len(), "everybody is woken");
            publish.push(micros(begun) / 1000.0);
            let (sent, each) = self.take(ids);
            takes.push(each);
            bytes = bytes.max(sent);
        }
        let encoded = (self.fleet.encoded() - encoded) / CHANGES;
        println!("publish, catalog included      {:>9.2} ms", median(publish));
        println!("take                           {:>9.2} us each", median(takes));
        println!("bytes of one change, in all    {bytes:>9}");
        println!("frames encoded for one change  {encoded:>9}");
        (bytes, encoded)
    }
}

/// What eighteen workloads of one node need: their own settings and intentions, how `service-hey` is called, what is shared.
fn workloads(number: usize) -> Vec<(Subject, Revision)> {
    let mut subjects = vec![
        Subject::Node(format!("node-{number}").parse().unwrap()),
        Subject::ProxyDefaults,
        Subject::Roots,
        Subject::Intentions("*".parse().unwrap()),
        Subject::Routing("service-hey".parse().unwrap()),
        endpoints("service-hey"),
    ];
    for workload in 0..18 {
        let service = (number * 18 + workload) % SERVICES;
        let name = format!("tier-{}-service-{}", service / 1_000 + 1, service % 1_000);
        subjects.push(Subject::Routing(name.parse().unwrap()));
        subjects.push(Subject::Intentions(name.parse().unwrap()));
        subjects.push(endpoints(&name));
    }
    subjects.into_iter().map(|subject| (subject, Revision(0))).collect()
}

fn endpoints(service: &str) -> Subject {
    Subject::Endpoints(service.parse().unwrap())
}

fn register(service: &str, number: usize, port: i64) -> Change {
    let id = format!("{service}-{number}-sidecar-proxy");
    Change::Put(Record::Instance(sidecar(ELSEWHERE, &id, &format!("{service}-sidecar-proxy"), service, port)))
}

fn micros(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Resident memory of this process; 0 where the system does not tell.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    status.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}
