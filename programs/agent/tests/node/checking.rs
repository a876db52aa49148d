//! What the agent makes of results: thresholds, lapses, removal, aliases of other nodes.

use std::time::Duration;

use starling_agent::{AliasView, CheckRegistration, ExistingChecks};
use starling_model::check::CheckedService;
use starling_model::{Check, CheckKind, CheckStatus, NodeName, ServiceName};

use crate::build::{check, check_id, instance_id, script, service, start, ttl, with_sidecar};
use crate::fake_server::{FakeServer, node_key, until};

#[tokio::test]
async fn a_sidecar_flips_with_its_service_in_one_transaction() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    let given = with_sidecar(service("web", vec![ttl("alive", Duration::from_secs(600))]));
    agent.register_service(given, ExistingChecks::Keep).await.unwrap();
    agent.update_check(&check_id("alive"), CheckStatus::Passing, "").await.unwrap();
    let last = server.look(|state| state.commits.last().cloned()).unwrap();
    assert_eq!(last, ["check/n1/alive", "check/n1/service:web-sidecar-proxy:2"]);
    let follows = server.check("service:web-sidecar-proxy:2").unwrap();
    assert_eq!((follows.status, follows.output.as_str()), (CheckStatus::Passing, "All checks passing."));
}

#[tokio::test]
async fn silence_past_the_ttl_is_critical_until_the_next_word() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    let given = service("web", vec![ttl("alive", Duration::from_millis(200))]);
    agent.register_service(given, ExistingChecks::Keep).await.unwrap();
    agent.update_check(&check_id("alive"), CheckStatus::Passing, "well").await.unwrap();
    let lapsed = server.until_status("alive", CheckStatus::Critical).await;
    assert_eq!(lapsed.output, "TTL expired (last output before timeout follows): well");
    agent.update_check(&check_id("alive"), CheckStatus::Warning, "back").await.unwrap();
    assert_eq!(server.check("alive").unwrap().status, CheckStatus::Warning);
}

#[tokio::test]
async fn thresholds_stand_between_results_and_status() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    let runs = directory.path().join("runs");
    // Counts its runs, passes on the first three, and fails from then on.
    let command = format!("echo x >> {0}; [ $(wc -l < {0}) -le 3 ] || exit 2", runs.display());
    let mut spec = script("counted", &command);
    spec.definition.success_before_passing = 3;
    spec.definition.failures_before_warning = 2;
    spec.definition.failures_before_critical = 4;
    agent.register_service(service("web", vec![spec]), ExistingChecks::Keep).await.unwrap();
    let count = || std::fs::read_to_string(&runs).map_or(0, |text| text.lines().count());
    server.until_status("counted", CheckStatus::Passing).await;
    assert!(count() >= 3);
    server.until_status("counted", CheckStatus::Warning).await;
    assert!(count() >= 5);
    server.until_status("counted", CheckStatus::Critical).await;
    assert!(count() >= 7);
}

#[tokio::test]
async fn a_service_that_stays_critical_is_removed_with_its_sidecar() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    let mut spec = ttl("alive", Duration::from_secs(600));
    spec.definition.deregister_after = Some(Duration::from_millis(100));
    agent.register_service(with_sidecar(service("web", vec![spec])), ExistingChecks::Keep).await.unwrap();
    server.until("the end of web", |state| state.records.len() == 1 && state.commits.len() > 2).await;
    assert_eq!(server.keys(), [node_key()]);
    assert!(agent.services().is_empty());
}

#[tokio::test]
async fn an_alias_of_another_node_reads_the_catalog() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let n2 = NodeName::new("n2").unwrap();
    let elsewhere = |id: &str, status, of: Option<&str>| Check {
        node: n2.clone(),
        id: check_id(id),
        name: id.to_owned(),
        status,
        notes: String::new(),
        output: "why".to_owned(),
        service: of.map(|of| CheckedService {
            id: instance_id(of),
            name: ServiceName::new(of).unwrap(),
            tags: Vec::new(),
        }),
        kind: String::new(),
        interval: String::new(),
        timeout: String::new(),
        definition: starling_model::OpaqueSettings::default(),
    };
    let checks = vec![
        elsewhere("node", CheckStatus::Passing, None),
        elsewhere("slow", CheckStatus::Warning, Some("db")),
        elsewhere("foreign", CheckStatus::Critical, Some("other")),
    ];
    server.with(|state| state.elsewhere = AliasView { exists: true, checks });
    let agent = start(directory.path(), &server).await;
    let alias = |id: &str| {
        let kind = CheckKind::Alias { node: Some(n2.clone()), service: Some(instance_id("db")) };
        CheckRegistration { spec: check(id, kind), service: None }
    };
    agent.register_check(alias("far")).await.unwrap();
    let far = server.until_status("far", CheckStatus::Warning).await;
    assert_eq!(far.output, "Aliased check \"slow\" failing: why");
    server.with(|state| state.elsewhere = AliasView::default());
    agent.register_check(alias("gone")).await.unwrap();
    let not_found = "Service db could not be found on node n2";
    until("its output", || agent.checks().iter().any(|check| check.check.output == not_found)).await;
}

#[tokio::test]
async fn a_check_can_be_asked_for_at_once() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let mut spec = check("up", CheckKind::tcp(address.clone()));
    spec.definition.interval = Duration::from_secs(600);
    agent.register_service(service("web", vec![spec]), ExistingChecks::Keep).await.unwrap();
    until("a first result", || agent.checks()[0].check.output.contains("refused")).await;
    let _listener = std::net::TcpListener::bind(&address).unwrap();
    agent.check_now(&instance_id("web"));
    server.until_status("up", CheckStatus::Passing).await;
}
