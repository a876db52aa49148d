//! Registering and deregistering, as the catalog and the caller see it.

use std::sync::Arc;
use std::time::Duration;

use starling_agent::{
    CheckRegistration, DeregisterError, ExistingChecks, LinkError, RegisterError, UpdateCheckError, WriteError,
};
use starling_model::{CheckKind, CheckStatus, Record, Revision};
use tokio::sync::Notify;

use crate::build::{check, check_id, config, instance_id, service, start, ttl, with_sidecar};
use crate::fake_server::{DEADLINE, FakeServer, Mode, node_key};

const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn a_service_with_its_sidecar_and_checks_is_one_transaction_each_way() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    assert_eq!(server.keys(), [node_key()]);
    let given = with_sidecar(service("web", vec![ttl("alive", LONG)]));
    let registered = agent.register_service(given.clone(), ExistingChecks::Keep).await.unwrap();
    assert_eq!(registered.revision, Revision(2));
    assert!(registered.changed);
    let all = [
        "instance/n1/web",
        "instance/n1/web-sidecar-proxy",
        "check/n1/alive",
        "check/n1/service:web-sidecar-proxy:1",
        "check/n1/service:web-sidecar-proxy:2",
    ];
    assert_eq!(server.look(|state| state.commits[1].clone()), all);

    // The listener's check finds nobody, which is what it said to begin with: nothing more is written.
    let again = agent.register_service(given, ExistingChecks::Keep).await.unwrap();
    assert!(!again.changed);
    assert_eq!((again.revision, server.look(|state| state.commits.len())), (Revision(2), 2));
    let ids: Vec<_> = agent.services().iter().map(|service| service.instance.key.id.to_string()).collect();
    assert_eq!(ids, ["web", "web-sidecar-proxy"]);
    assert_eq!(agent.service(&instance_id("web-sidecar-proxy")).unwrap().sidecar_of, Some(instance_id("web")));

    assert_eq!(agent.deregister_service(&instance_id("web")).await, Ok(Revision(3)));
    assert_eq!(server.look(|state| state.commits[2].clone()), all);
    assert_eq!(server.keys(), [node_key()]);
    let unknown = agent.deregister_service(&instance_id("web")).await;
    assert_eq!(unknown, Err(DeregisterError::UnknownService(instance_id("web"))));
}

/// Lets the first write wait at the server until all of `many` have begun, so that the others gather behind it.
async fn gathered<T>(server: &FakeServer, many: impl Future<Output = T>) -> T {
    let gate = Arc::new(Notify::new());
    *server.gate.lock().unwrap() = Some(Arc::clone(&gate));
    let open = async {
        tokio::task::yield_now().await;
        *server.gate.lock().unwrap() = None;
        loop {
            gate.notify_waiters();
            tokio::task::yield_now().await;
        }
    };
    tokio::select! { result = many => result, () = open => unreachable!() }
}

#[tokio::test]
async fn registrations_that_come_together_share_transactions_within_the_limit() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    let before = server.look(|state| state.commits.len());
    let many = (0..200).map(|number| {
        agent.register_service(
            service(&format!("s{number}"), vec![ttl(&format!("c{number}"), LONG)]),
            ExistingChecks::Keep,
        )
    });
    let results = gathered(&server, futures::future::join_all(many)).await;
    assert!(results.iter().all(Result::is_ok));
    let commits = server.look(|state| state.commits[before..].to_vec());
    assert!(commits.len() < 20, "{} transactions", commits.len());
    assert!(commits.iter().all(|keys| keys.len() <= 128));
    assert_eq!(server.keys().len(), 401);
}

#[tokio::test]
async fn large_registrations_do_not_share_a_transaction_that_cannot_hold_them() {
    const KIB: usize = 1024;
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    // What a transaction of the store may hold.
    server.with(|state| state.mode = Mode::Narrow(1024 * KIB));
    let register = |name: String, bytes: usize| {
        let mut given = service(&name, Vec::new());
        given.instance.tags = vec!["x".repeat(bytes)];
        agent.register_service(given, ExistingChecks::Keep)
    };
    let large = (0..8).map(|number| register(format!("large{number}"), 400 * KIB));
    let small = (0..8).map(|number| register(format!("small{number}"), KIB));
    let huge = [register("huge".to_owned(), 900 * KIB)];
    let all = futures::future::join_all(large.chain(small).chain(huge));
    let results = gathered(&server, all).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let commits = server.look(|state| state.commits.clone());
    assert!(commits.contains(&vec!["instance/n1/huge".to_owned()]), "the one over the limit goes alone");
    let small = |keys: &&Vec<String>| keys.iter().any(|key| key.contains("small"));
    assert_eq!(commits.iter().filter(small).count(), 1, "small ones share as ever");
    server.with(|state| state.mode = Mode::Narrow(64 * KIB));
    assert!(register("late".to_owned(), KIB).await.is_ok(), "nothing stands in the way of what comes later");
}

#[tokio::test]
async fn what_the_server_refuses_is_undone_and_spares_its_neighbours() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    agent.register_service(service("bad", Vec::new()), ExistingChecks::Keep).await.unwrap();
    server.with(|state| state.mode = Mode::Refusing("bad".to_owned()));
    let mut changed = service("bad", vec![ttl("alive", LONG)]);
    changed.instance.tags = vec!["new".to_owned()];
    let (bad, good) = tokio::join!(
        agent.register_service(changed, ExistingChecks::Keep),
        agent.register_service(service("good", Vec::new()), ExistingChecks::Keep),
    );
    assert_eq!(bad, Err(RegisterError::Write(WriteError::Refused("not this one".to_owned()))));
    good.unwrap();
    assert!(agent.service(&instance_id("bad")).unwrap().instance.tags.is_empty());
    assert!(agent.checks().is_empty());
    drop(agent);
    server.with(|state| state.mode = Mode::Up);
    let agent = start(directory.path(), &server).await;
    assert!(agent.checks().is_empty(), "nor does it come back");
    assert_eq!(server.keys(), ["instance/n1/bad".to_owned(), "instance/n1/good".to_owned(), node_key()]);
}

#[tokio::test]
async fn an_outage_between_registrations_that_are_tried_one_by_one_is_told_to_all_of_them() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    let answers = [LinkError::Refused("not together".to_owned()), LinkError::Unavailable("taken away".to_owned())];
    server.with(|state| state.mode = Mode::Dying(answers.into()));
    let names = ["a", "b", "c"];
    let all = names.map(|name| agent.register_service(service(name, Vec::new()), ExistingChecks::Keep));
    let told = tokio::time::timeout(DEADLINE, futures::future::join_all(all)).await.expect("all are told");
    let unavailable = Err(RegisterError::Write(WriteError::Unavailable("taken away".to_owned())));
    assert_eq!(told, names.map(|_| unavailable.clone()));
}

#[tokio::test]
async fn an_outage_is_told_and_made_up_for() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    server.with(|state| state.mode = Mode::Down);
    let down = agent.register_service(service("web", Vec::new()), ExistingChecks::Keep).await;
    assert!(matches!(down, Err(RegisterError::Write(WriteError::Unavailable(_)))), "{down:?}");
    assert!(agent.service(&instance_id("web")).is_some(), "the agent has it");
    server.with(|state| state.mode = Mode::Up);
    server.until("the service", |state| state.records.contains_key("instance/n1/web")).await;
    // Nothing differs here, but it waits for what may still be under way.
    let again = agent.register_service(service("web", Vec::new()), ExistingChecks::Keep).await.unwrap();
    assert!(!again.changed && again.revision >= Revision(2), "{again:?}");
}

#[tokio::test]
async fn checks_are_registered_updated_and_removed_apart() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    agent.register_service(service("web", Vec::new()), ExistingChecks::Keep).await.unwrap();
    let apart =
        |service: Option<&str>| CheckRegistration { spec: ttl("alive", LONG), service: service.map(instance_id) };
    let unknown = agent.register_check(apart(Some("gone"))).await;
    assert_eq!(unknown, Err(RegisterError::UnknownService(instance_id("gone"))));
    agent.register_check(apart(Some("web"))).await.unwrap();
    assert_eq!(server.check("alive").unwrap().service.unwrap().id, instance_id("web"));
    assert!(matches!(agent.register_check(apart(None)).await, Err(RegisterError::Field(_))));

    let alive = check_id("alive");
    let revision = agent.update_check(&alive, CheckStatus::Passing, "well").await.unwrap();
    let written = server.check("alive").unwrap();
    assert_eq!((written.status, written.output.as_str()), (CheckStatus::Passing, "well"));
    let commits = server.look(|state| state.commits.len());
    assert_eq!(agent.update_check(&alive, CheckStatus::Passing, "still").await, Ok(revision));
    assert_eq!(server.look(|state| state.commits.len()), commits, "a sign of life costs no write");
    assert_eq!(agent.checks()[0].check.output, "still");

    let other = agent.update_check(&check_id("other"), CheckStatus::Passing, "").await;
    assert_eq!(other, Err(UpdateCheckError::UnknownCheck(check_id("other"))));
    let tcp = check("tcp", CheckKind::tcp("127.0.0.1:1"));
    agent.register_check(CheckRegistration { spec: tcp, service: None }).await.unwrap();
    let not_ttl = agent.update_check(&check_id("tcp"), CheckStatus::Passing, "").await;
    assert_eq!(not_ttl, Err(UpdateCheckError::NotTtl(check_id("tcp"))));
    agent.deregister_check(&alive).await.unwrap();
    assert!(server.check("alive").is_none());
    assert_eq!(agent.deregister_check(&alive).await, Err(DeregisterError::UnknownCheck(alive)));
}

#[tokio::test]
async fn checks_that_could_never_run_are_refused_by_field() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let mut config = config(directory.path());
    config.script_checks = starling_agent::ScriptChecks::NONE;
    let agent = starling_agent::Agent::start(config, Arc::clone(&server) as _).await.unwrap();
    let refused = async |spec| {
        let given = service("web", vec![spec]);
        match agent.register_service(given, ExistingChecks::Keep).await {
            Err(RegisterError::Field(error)) => error,
            other => panic!("{other:?}"),
        }
    };
    let script = refused(crate::build::script("s", "true")).await;
    assert_eq!(script.field, "Checks[0].Args");
    assert!(script.reason.contains("disabled on this agent from remote calls"), "{script}");
    assert_eq!(refused(crate::build::http("h", "ftp://x/".to_owned())).await.field, "Checks[0].HTTP");
    let tcp = check("t", CheckKind::tcp("nowhere"));
    assert_eq!(refused(tcp).await.field, "Checks[0].TCP");
    let mut never = check("t", CheckKind::tcp("127.0.0.1:1"));
    never.definition.interval = Duration::ZERO;
    assert_eq!(refused(never).await.field, "Checks[0].Interval");
    assert_eq!(refused(ttl("t", Duration::ZERO)).await.field, "Checks[0].TTL");
    assert!(agent.services().is_empty());
    assert!(!server.look(|state| state.records.values().any(|record| matches!(record, Record::Instance(_)))));
}
