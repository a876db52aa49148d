//! Restarts, and a catalog that says something else.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use starling_agent::{Agent, CheckRegistration, ExistingChecks, JournalError, StartError};
use starling_model::{Check, CheckStatus, Record, UnixSeconds};

use crate::build::{check_id, config, http, instance_id, service, start, ttl, with_sidecar};
use crate::fake_server::{FakeServer, Mode, node_key, now};

const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn a_restart_keeps_registrations_ports_and_statuses_and_writes_nothing() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    for name in ["api", "web"] {
        let given = with_sidecar(service(name, vec![ttl(&format!("{name}-alive"), LONG)]));
        agent.register_service(given, ExistingChecks::Keep).await.unwrap();
    }
    agent.register_check(CheckRegistration { spec: ttl("disk", LONG), service: None }).await.unwrap();
    agent.update_check(&check_id("web-alive"), CheckStatus::Passing, "well").await.unwrap();
    agent.update_check(&check_id("disk"), CheckStatus::Passing, "empty").await.unwrap();
    agent.deregister_service(&instance_id("api")).await.unwrap();
    let (services, checks) = (agent.services(), agent.checks());
    let commits = server.look(|state| state.commits.len());
    drop(agent);

    let agent = start(directory.path(), &server).await;
    assert_eq!(agent.services(), services);
    let statuses = |checks: &[starling_agent::LocalCheck]| -> Vec<(String, CheckStatus, String)> {
        let ttl_or_alias = checks.iter().filter(|check| check.check.kind != "tcp");
        ttl_or_alias.map(|c| (c.check.id.to_string(), c.check.status, c.check.output.clone())).collect()
    };
    assert_eq!(statuses(&agent.checks()), statuses(&checks));
    assert_eq!(server.look(|state| state.commits.len()), commits, "the catalog has it all");
    let web = with_sidecar(service("web", vec![ttl("web-alive", LONG)]));
    let again = agent.register_service(web, ExistingChecks::Keep).await.unwrap();
    assert!(!again.changed && again.revision.0 == commits as u64, "{again:?}");
    let mode = fs::metadata(directory.path().join("agent/journal.jsonl")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn a_check_that_ran_keeps_its_status_until_it_runs_again() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let kind = starling_model::CheckKind::tcp(listener.local_addr().unwrap().to_string());
    let mut spec = crate::build::check("up", kind);
    spec.definition.interval = LONG;
    let agent = start(directory.path(), &server).await;
    agent.register_service(service("web", vec![spec]), ExistingChecks::Keep).await.unwrap();
    server.until_status("up", CheckStatus::Passing).await;
    // The status goes to the journal and to the server side by side; what comes later waits for both.
    agent.register_service(service("other", Vec::new()), ExistingChecks::Keep).await.unwrap();
    drop((agent, listener));
    let agent = start(directory.path(), &server).await;
    assert_eq!(agent.checks()[0].check.status, CheckStatus::Passing);
    assert_eq!(server.check("up").unwrap().status, CheckStatus::Passing);
}

#[tokio::test]
async fn an_application_that_was_silent_past_its_ttl_has_to_speak_first() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    agent.register_service(service("web", vec![ttl("alive", LONG)]), ExistingChecks::Keep).await.unwrap();
    agent.update_check(&check_id("alive"), CheckStatus::Passing, "well").await.unwrap();
    drop(agent);
    let mut later = config(directory.path());
    let moment = UnixSeconds(now().0 + LONG.as_secs() + 60);
    later.clock = Arc::new(move || moment);
    let agent = Agent::start(later, Arc::clone(&server) as _).await.unwrap();
    assert_eq!(agent.checks()[0].check.status, CheckStatus::Critical);
    assert_eq!(server.check("alive").unwrap().status, CheckStatus::Critical, "and the catalog hears of it");
}

#[tokio::test]
async fn the_catalog_is_brought_into_line_and_the_liveness_check_left_alone() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    agent.register_service(service("web", vec![ttl("alive", LONG)]), ExistingChecks::Keep).await.unwrap();
    drop(agent);
    server.with(|state| {
        let Some(Record::Check(model)) = state.records.get("check/n1/alive").cloned() else { panic!() };
        let mut stray = service("stray", Vec::new()).instance;
        stray.tags = vec!["through the catalog".to_owned()];
        state.records.insert("instance/n1/stray".to_owned(), Record::Instance(stray));
        for id in ["serfHealth", "stray-check"] {
            let check = Check { id: check_id(id), service: None, ..model.clone() };
            state.records.insert(format!("check/n1/{id}"), Record::Check(check));
        }
        let Some(Record::Instance(web)) = state.records.get_mut("instance/n1/web") else { panic!() };
        web.port = None;
        state.records.remove("check/n1/alive");
    });
    let _agent = start(directory.path(), &server).await;
    assert_eq!(
        server.keys(),
        ["check/n1/alive".to_owned(), "check/n1/serfHealth".to_owned(), "instance/n1/web".to_owned(), node_key()]
    );
    let web = server.look(|state| state.records["instance/n1/web"].clone());
    assert!(matches!(web, Record::Instance(web) if web.port.is_some()));
}

#[tokio::test]
async fn a_server_that_is_away_does_not_keep_the_agent_from_starting() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    server.with(|state| state.mode = Mode::Down);
    let _agent = start(directory.path(), &server).await;
    assert!(server.keys().is_empty());
    server.with(|state| state.mode = Mode::Up);
    server.until("the node", |state| state.records.contains_key(&node_key())).await;
}

#[tokio::test]
async fn a_damaged_journal_is_refused_and_left_as_it_is() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    drop(start(directory.path(), &server).await);
    let path = directory.path().join("agent/journal.jsonl");
    fs::write(&path, "not a journal\n").unwrap();
    let refused = Agent::start(config(directory.path()), Arc::clone(&server) as _).await;
    assert!(matches!(refused, Err(StartError::Journal(JournalError::Damaged { line: 1, .. }))), "{refused:?}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "not a journal\n");
}

#[tokio::test]
async fn what_files_registered_goes_with_the_files_and_what_callers_registered_stays() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    for name in ["kept", "old", "taken-over"] {
        agent.register_service_of_file(with_sidecar(service(name, vec![ttl(name, LONG)]))).await.unwrap();
    }
    agent.register_service(service("called", Vec::new()), ExistingChecks::Keep).await.unwrap();
    for name in ["kept-check", "old-check"] {
        agent.register_check_of_file(CheckRegistration { spec: ttl(name, LONG), service: None }).await.unwrap();
    }
    agent.update_check(&check_id("kept-check"), CheckStatus::Passing, "well").await.unwrap();
    agent.register_service(with_sidecar(service("taken-over", Vec::new())), ExistingChecks::Keep).await.unwrap();
    drop(agent);
    // Twice: what is written anew at a start says as much as what was written at first.
    for _ in 0..2 {
        let mut named = config(directory.path());
        named.services_of_files = [instance_id("kept")].into();
        named.checks_of_files = [check_id("kept-check")].into();
        let agent = Agent::start(named, Arc::clone(&server) as _).await.unwrap();
        let ids: Vec<String> = agent.services().iter().map(|service| service.instance.key.id.to_string()).collect();
        assert_eq!(ids, ["called", "kept", "kept-sidecar-proxy", "taken-over", "taken-over-sidecar-proxy"]);
        assert!(!server.keys().iter().any(|key| key.contains("old")), "{:?}", server.keys());
        let checks = agent.checks();
        let kept: Vec<_> = checks.iter().filter(|check| check.check.service.is_none()).collect();
        assert_eq!(kept.len(), 1, "{checks:?}");
        assert_eq!((kept[0].check.id.as_str(), kept[0].check.status), ("kept-check", CheckStatus::Passing));
    }
}

#[tokio::test]
async fn script_checks_that_were_allowed_once_do_not_run_when_they_are_not() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    let given = service("web", vec![crate::build::script("s", "true"), http("h", "http://127.0.0.1:1/".to_owned())]);
    agent.register_service(given, ExistingChecks::Keep).await.unwrap();
    server.until_status("s", CheckStatus::Passing).await;
    agent.register_service(service("other", Vec::new()), ExistingChecks::Keep).await.unwrap();
    drop(agent);
    let mut off = config(directory.path());
    off.script_checks = starling_agent::ScriptChecks::NONE;
    let _agent = Agent::start(off, Arc::clone(&server) as _).await.unwrap();
    let check = server.until_status("s", CheckStatus::Critical).await;
    assert!(check.output.contains("disabled on this agent from remote calls"), "{}", check.output);
}

#[tokio::test]
async fn a_node_leaves_once_a_server_takes_it_and_comes_back_with_what_it_had() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    agent.register_service(service("web", vec![ttl("alive", LONG)]), ExistingChecks::Keep).await.unwrap();
    let before = server.keys();
    server.with(|state| state.mode = Mode::Down);
    let agent = Arc::new(agent);
    let leaves = Arc::clone(&agent);
    let mut leaving = tokio::spawn(async move { leaves.leave().await });
    let early = tokio::time::timeout(Duration::from_millis(600), &mut leaving).await;
    assert!(early.is_err(), "nobody took it: {early:?}");
    server.with(|state| state.mode = Mode::Up);
    leaving.await.unwrap().unwrap();
    assert!(server.keys().is_empty(), "{:?}", server.keys());
    drop(agent);
    let agent = start(directory.path(), &server).await;
    assert_eq!(agent.services().len(), 1);
    assert_eq!(server.keys(), before);
}
