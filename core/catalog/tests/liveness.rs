//! Which server says what of which node, and under which conditions.

#[path = "support/records.rs"]
mod records;

use starling_catalog::{Charge, Command, Decision, LivenessCommand, Said, Snapshot, decide};
use starling_model::{
    AttachmentRecord, Change, CheckStatus, LIVENESS_CHECK, LeaderRecord, NodeName, Record, RecordKey, Revision,
    ServerId, ServerRecord, UnixSeconds,
};

use records::node;

fn server(bits: u64) -> ServerId {
    ServerId::from_random(bits)
}

fn name(text: &str) -> NodeName {
    text.parse().expect("a name")
}

fn runs(bits: u64) -> Change {
    Change::Put(Record::Server(ServerRecord {
        id: server(bits),
        name: name("s"),
        http: "127.0.0.1:1".to_owned(),
        agents: "127.0.0.1:2".to_owned(),
        version: "0".to_owned(),
        since: UnixSeconds(0),
        leaving: false,
        level: starling_model::RECORD_LEVEL,
    }))
}

fn leads(bits: u64) -> Change {
    Change::Put(Record::Leader(LeaderRecord { server: server(bits) }))
}

/// Servers 1, which leads, and 2; the node n1.
fn world() -> Snapshot {
    let changes = [runs(1), runs(2), leads(1), Change::Put(node("n1", "10.0.0.1"))];
    Snapshot::default().apply(Revision(1), &changes).snapshot
}

fn say(snapshot: &Snapshot, by: Option<u64>, said: Said) -> Decision {
    let command = LivenessCommand { by: by.map(server), nodes: vec![(name("n1"), said)] };
    decide(snapshot, &Command::Liveness(command)).expect("nothing of this kind is refused")
}

fn after(snapshot: &Snapshot, decision: &Decision) -> Snapshot {
    snapshot.apply(Revision(snapshot.revision().0 + 1), &decision.changes).snapshot
}

fn status(snapshot: &Snapshot) -> Option<CheckStatus> {
    let id = LIVENESS_CHECK.parse().expect("an identifier");
    snapshot.check(&name("n1"), &id).map(|check| check.value.status)
}

#[test]
fn a_node_is_that_servers_to_which_it_came_last() {
    let first = after(&world(), &say(&world(), Some(1), Said::Attached));
    assert_eq!((status(&first), first.charge(&name("n1"))), (Some(CheckStatus::Passing), Charge::Of(Some(server(1)))));
    assert_eq!(say(&first, Some(1), Said::Attached), Decision::default(), "no news");
    let moved = say(&first, Some(2), Said::Attached);
    let attachment = AttachmentRecord { node: name("n1"), server: server(2) };
    assert_eq!(moved.changes, [Change::Put(Record::Attachment(attachment))]);
    let second = after(&first, &moved);
    assert_eq!(say(&second, Some(1), Said::Lost), Decision::default(), "it is another's now, also if that leads");
    let lost = say(&second, Some(2), Said::Lost);
    let seen: Vec<_> = lost.seen.iter().map(|seen| seen.key.clone()).collect();
    assert!(seen.contains(&RecordKey::Attachment(name("n1"))), "unless it comes elsewhere meanwhile: {seen:?}");
    assert!(!seen.contains(&RecordKey::Leader), "whoever leads");
    let third = after(&second, &lost);
    assert_eq!((status(&third), third.charge(&name("n1"))), (Some(CheckStatus::Critical), Charge::Nobody));
}

#[test]
fn a_node_whose_server_is_gone_is_the_leaders_while_it_leads() {
    let attached = after(&world(), &say(&world(), Some(2), Said::Attached));
    assert_eq!(attached.orphans().count(), 0);
    let orphaned = attached.apply(Revision(3), &[Change::Delete(RecordKey::Server(server(2)))]).snapshot;
    assert_eq!(orphaned.orphans().collect::<Vec<_>>(), [&name("n1")]);
    assert_eq!(say(&orphaned, Some(3), Said::Lost), Decision::default(), "it does not lead");
    let lost = say(&orphaned, Some(1), Said::Lost);
    let seen: Vec<_> = lost.seen.iter().map(|seen| seen.key.clone()).collect();
    assert!(seen.contains(&RecordKey::Leader) && seen.contains(&RecordKey::Attachment(name("n1"))), "{seen:?}");
    let over = after(&orphaned, &lost);
    assert_eq!((status(&over), over.orphans().count()), (Some(CheckStatus::Critical), 0));
    assert_eq!(over.attachments().count(), 0);
}

#[test]
fn a_server_that_is_alone_speaks_of_every_node_and_attaches_none() {
    let alone = Snapshot::default().apply(Revision(1), &[Change::Put(node("n1", "10.0.0.1"))]).snapshot;
    let here = after(&alone, &say(&alone, None, Said::Attached));
    assert_eq!((status(&here), here.attachments().count()), (Some(CheckStatus::Passing), 0));
    assert_eq!(status(&after(&here, &say(&here, None, Said::Lost))), Some(CheckStatus::Critical));
}
