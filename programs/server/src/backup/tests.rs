//! Restores beside others who write, and what is saved.

use std::collections::BTreeMap;
use std::sync::Arc;

use starling_backup::plan::Records;
use starling_catalog::Command;
use starling_model::{
    Action, Change, ConfigEntry, InstanceKey, InstanceKind, IntentionSubject, Node, Port, Record, RecordKey,
    ServiceInstance, SourceDecision, SourceIntention, Weights,
};
use starling_telemetry::Registry;

use super::restoring::Work;
use super::{Incoming, Restored, Unreadable};
use crate::server::{Server, ServerConfig};

struct World {
    server: Arc<Server>,
    _directory: tempfile::TempDir,
}

impl World {
    async fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let config = ServerConfig::new(directory.path().to_owned(), "dc1".parse().expect("a name"));
        let server = Server::start(config, &Registry::default()).await.expect("the server starts");
        Self { server, _directory: directory }
    }

    async fn commit(&self, command: Command) -> u64 {
        self.server.commit(&command).await.expect("committed").0
    }

    async fn register(&self, node: &str, services: &[&str]) -> u64 {
        let name: starling_model::NodeName = node.parse().expect(node);
        let record = Node {
            name: name.clone(),
            id: String::new(),
            address: "10.0.0.1".to_owned(),
            tagged_addresses: BTreeMap::new(),
            meta: BTreeMap::new(),
        };
        let instances = services.iter().map(|service| instance(node, service)).collect();
        self.commit(Command::Register { name, node: Some(record), instances, checks: Vec::new() }).await
    }

    async fn intention(&self, source: &str, destination: &str, action: Action) -> u64 {
        let subject = |name: &str| name.parse::<IntentionSubject>().expect(name);
        let decision = SourceDecision::Connection(action);
        let intention = SourceIntention { source: subject(source), decision, description: String::new(), id: None };
        self.commit(Command::PutIntention { destination: subject(destination), intention }).await
    }

    /// What a snapshot file of now holds, by way of its bytes.
    async fn saved(&self) -> Records {
        let mut incoming = Incoming::default();
        for piece in self.server.save().await.expect("saved") {
            incoming.push(&piece.expect("a piece")).expect("a good one");
        }
        incoming.finish().expect("a whole one").1
    }

    /// What is there, but for fences.
    fn now(&self) -> Records {
        let all = self.server.snapshot().records().map(|record| (record.value.key(), record.value)).collect::<Vec<_>>();
        all.into_iter().filter(|(key, _)| !matches!(key, RecordKey::Fence(_))).collect()
    }

    async fn begin(&self, then: &Records) -> Work<'_> {
        Work::begin(&self.server, then, &Unreadable::default(), None).await.expect("begun")
    }
}

fn instance(node: &str, service: &str) -> ServiceInstance {
    ServiceInstance {
        key: InstanceKey { node: node.parse().expect(node), id: service.parse().expect(service) },
        name: service.parse().expect(service),
        kind: InstanceKind::Typical,
        address: None,
        port: Port::try_from(80).ok(),
        tags: Vec::new(),
        meta: BTreeMap::new(),
        tagged_addresses: BTreeMap::new(),
        weights: Weights::default(),
        enable_tag_override: false,
        native: false,
        locality: None,
        kept: starling_model::OpaqueSettings::default(),
    }
}

fn without_fences(records: &Records) -> Records {
    records.iter().filter(|(key, _)| !matches!(key, RecordKey::Fence(_))).map(|(k, v)| (k.clone(), v.clone())).collect()
}

#[tokio::test]
async fn what_was_saved_is_there_again_under_higher_revisions() {
    let world = World::start().await;
    world.register("n1", &["web", "api"]).await;
    world.intention("web", "api", Action::Allow).await;
    let then = world.saved().await;
    world.intention("web", "api", Action::Deny).await;
    world.commit(Command::DeregisterNode("n1".parse().expect("a name"))).await;
    let last = world.register("n2", &["web"]).await;
    let Restored { revision, written, removed, younger_count, .. } =
        world.server.restore(&then, &Unreadable::default(), None).await.expect("restored");
    assert!(revision.0 > last);
    assert_eq!((written, removed, younger_count), (4, 2, 0));
    // Virtual addresses are for ever; there were some before, too.
    assert_eq!(world.now(), without_fences(&then));
    let again = world.server.restore(&then, &Unreadable::default(), None).await.expect("restored");
    assert_eq!((again.written, again.removed, again.revision), (0, 0, world.server.snapshot().revision()));
}

#[tokio::test]
async fn what_others_write_meanwhile_stays_and_is_named() {
    let world = World::start().await;
    world.register("n1", &["web"]).await;
    world.intention("web", "api", Action::Allow).await;
    let then = world.saved().await;
    world.intention("web", "api", Action::Deny).await;
    world.intention("web", "db", Action::Deny).await;
    world.register("n2", &["late"]).await;
    let work = world.begin(&then).await;
    // Both change what the restore is about to write or remove, and are acknowledged.
    world.intention("*", "api", Action::Deny).await;
    world.register("n2", &["later"]).await;
    let restored = work.finish().await.expect("restored");
    assert_eq!(restored.younger, ["config/service-intentions/api", "node/n2"]);
    let snapshot = world.server.snapshot();
    let key = |service: &str| InstanceKey { node: "n2".parse().expect("a name"), id: service.parse().expect(service) };
    assert!(snapshot.instance(&key("later")).is_some() && snapshot.instance(&key("late")).is_none());
    assert!(snapshot.node(&key("later").node).is_some(), "what it relies on is there");
    let api = snapshot.intentions(&"api".parse().expect("a subject")).expect("intentions");
    let ConfigEntry::ServiceIntentions(api) = &api.value else { panic!("{api:?}") };
    assert_eq!(api.sources.len(), 2, "as it was written last: {api:?}");
    assert!(snapshot.intentions(&"db".parse().expect("a subject")).is_none());
}

#[tokio::test]
async fn what_others_remove_meanwhile_is_not_put_back_unsaid() {
    let world = World::start().await;
    world.register("n1", &["web"]).await;
    let then = world.saved().await;
    // The restore would write the one, and the other relies on it.
    world.register("n1", &[]).await;
    let mut changed = instance("n1", "web");
    changed.port = Port::try_from(81).ok();
    let name: starling_model::NodeName = "n1".parse().expect("a name");
    let again = Command::Register { name: name.clone(), node: None, instances: vec![changed], checks: Vec::new() };
    world.commit(again).await;
    let work = world.begin(&then).await;
    world.commit(Command::DeregisterNode(name.clone())).await;
    let restored = work.finish().await.expect("restored");
    assert_eq!(restored.younger, ["instance/n1/web"]);
    assert!(world.server.snapshot().node(&name).is_none() && restored.written == 0);
}

#[tokio::test]
async fn only_one_restore_is_at_work_at_a_server() {
    let world = World::start().await;
    let then = world.saved().await;
    let _held = world.server.restoring().lock().await;
    let refused = world.server.restore(&then, &Unreadable::default(), None).await;
    assert!(matches!(refused, Err(super::RestoreFailure::Busy)), "{refused:?}");
}

#[tokio::test]
async fn a_large_difference_goes_in_many_transactions_and_its_receipt_is_one() {
    let world = World::start().await;
    let services: Vec<_> = (0..300).map(|number| format!("service-{number}")).collect();
    let names: Vec<_> = services.iter().map(String::as_str).collect();
    world.register("n1", &names).await;
    let then = world.saved().await;
    world.commit(Command::DeregisterNode("n1".parse().expect("a name"))).await;
    let restored = world.server.restore(&then, &Unreadable::default(), None).await.expect("restored");
    assert_eq!(restored.written, 301);
    assert_eq!(world.now(), without_fences(&then));
    assert!(world.server.report(restored.revision, 0).is_some());
}

#[tokio::test]
async fn unreadable_records_of_a_snapshot_deny_or_leave_the_present_record() {
    let world = World::start().await;
    world.register("n1", &["web"]).await;
    world.intention("web", "api", Action::Allow).await;
    let header =
        starling_backup::file::Header { store: "0".repeat(32), revision: 9, saved_at: 0, program: "9.9.9".to_owned() };
    let mut bytes = Vec::new();
    let mut encoder = starling_backup::file::Encoder::begin(&header, &mut bytes).expect("begun");
    for key in ["config/service-intentions/api", "hologram/1", "instance/n1/web", "node/n1"] {
        let (key, value) = (key.as_bytes().to_vec(), b"{".to_vec());
        let record = starling_backup::file::StoredRecord { key, value, created: 1, modified: 1 };
        encoder.record(&record, &mut bytes).expect("written");
    }
    encoder.finish(&mut bytes);
    let mut incoming = Incoming::default();
    incoming.push(&bytes).expect("taken");
    let (_, then, unreadable) = incoming.finish().expect("complete");
    let restored = world.server.restore(&then, &unreadable, None).await.expect("restored");
    assert_eq!((restored.unreadable, restored.removed), (4, 0));
    let snapshot = world.server.snapshot();
    assert!(snapshot.node(&"n1".parse().expect("a name")).is_some(), "the present node stays");
    let api = snapshot.intentions(&"api".parse().expect("a subject")).expect("intentions");
    let ConfigEntry::ServiceIntentions(api) = &api.value else { panic!("{api:?}") };
    assert!(api.sources.iter().all(|source| !source.decision.may_allow()), "{api:?}");
}

#[tokio::test]
async fn records_that_speak_of_the_moment_are_not_saved() {
    let world = World::start().await;
    let attachment = Record::Attachment(starling_model::AttachmentRecord {
        node: "n1".parse().expect("a name"),
        server: starling_model::ServerId::from_random(7),
    });
    let write = crate::commit::write(&Change::Put(attachment.clone()));
    let transaction = starling_store::Transaction { conditions: Vec::new(), writes: vec![write] };
    let revision = world.server.store().commit(transaction).await.expect("committed");
    world.server.published(starling_model::Revision(revision.0)).await.expect("published");
    assert!(world.now().contains_key(&attachment.key()) && !world.saved().await.contains_key(&attachment.key()));
    let then = world.saved().await;
    world.server.restore(&then, &Unreadable::default(), None).await.expect("restored");
    assert!(world.now().contains_key(&attachment.key()), "nor is it removed");
}
