//! What a stream costs an agent: `cargo run --release -p starling-attach --example stream-cost`.
//!
//! Changes of one endpoint of a service of a thousand, each followed by its `Through`, heard on one stream, and on a second
//! one that says the same. Time is of one core, from the frame's bytes to the replica.

#![expect(clippy::print_stdout, reason = "it is for people to read")]
#![expect(clippy::unwrap_used, reason = "an example that cannot go on has failed")]

#[path = "../../catalog/tests/support/records.rs"]
mod records;

use std::hint::black_box;
use std::time::Instant;

use bytes::Bytes;
use records::{node, sidecar};
use starling_attach::{Fleet, FromServer, Intake, Replica};
use starling_catalog::{Snapshot, Subject};
use starling_model::{Change, Record, Revision};

const ENDPOINTS: usize = 1_000;
const CHANGES: u64 = 100_000;

fn main() {
    let put = |port: usize| {
        let id = format!("w{}", port % ENDPOINTS);
        Change::Put(Record::Instance(sidecar("n1", &id, "web-sidecar-proxy", "web", i64::try_from(port).unwrap())))
    };
    let mut first = vec![Change::Put(node("n1", "10.0.0.1"))];
    first.extend((1..=ENDPOINTS).map(put));
    let mut snapshot = Snapshot::default().apply(Revision(1), &first).snapshot;
    let mut fleet = Fleet::new(snapshot.clone());
    let stream = fleet.attach("n9".parse().unwrap());
    let subject = Subject::Endpoints("web".parse().unwrap());
    fleet.subscribe(stream, &[(subject.clone(), Revision(0))]).unwrap();
    let mut frames: Vec<Bytes> = fleet.take(stream, 0);
    let whole = frames.len();
    for change in 0..CHANGES {
        let changes = [put(1 + usize::try_from(change).unwrap() % 60_000)];
        snapshot = snapshot.apply(Revision(2 + change), &changes).snapshot;
        fleet.publish(&snapshot, &changes, change);
        frames.extend(fleet.take(stream, change));
    }
    let mut replica = Replica::default();
    replica.want(&subject);
    let (mut primary, _) = Intake::begin(&mut replica, false);
    for frame in &frames[..whole] {
        hear(&mut primary, &mut replica, frame);
    }
    let (mut standby, _) = Intake::begin(&mut replica, true);
    let (mut own, mut again) = (0.0, 0.0);
    for pair in frames[whole..].chunks(2) {
        let begun = Instant::now();
        pair.iter().for_each(|frame| hear(&mut primary, &mut replica, frame));
        own += begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        pair.iter().for_each(|frame| hear(&mut standby, &mut replica, frame));
        again += begun.elapsed().as_secs_f64();
    }
    let each = |seconds: f64| seconds * 1e9 / CHANGES as f64;
    println!("a change heard                 {:>9.0} ns", each(own));
    println!("the same on a second stream    {:>9.0} ns", each(again));
    black_box(replica);
}

fn hear(intake: &mut Intake, replica: &mut Replica, frame: &Bytes) {
    let says = FromServer::from_bytes(frame.clone()).unwrap();
    if intake.hear(replica, &says).unwrap() {
        black_box(intake.hand_over(replica));
    }
}
