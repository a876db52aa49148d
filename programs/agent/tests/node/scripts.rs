//! Script checks by where they were registered: definition files and API calls have separate permissions.

use std::path::Path;
use std::sync::Arc;

use starling_agent::{Agent, CheckRegistration, ExistingChecks, RegisterError, ScriptChecks};
use starling_model::{CheckSpec, CheckStatus};

use crate::build::{check_id, config, instance_id, script, service, start, with_sidecar};
use crate::fake_server::FakeServer;

/// Consul's `enable_local_script_checks`.
const FILES_ONLY: ScriptChecks = ScriptChecks { from_files: true, from_api: false };

/// Consul's reason, as its API words it.
const REFUSED_FROM_API: &str =
    "Scripts are disabled on this agent from remote calls; to enable, configure 'enable_script_checks' to true";

async fn start_with(data_dir: &Path, server: &Arc<FakeServer>, script_checks: ScriptChecks) -> Agent {
    let mut config = config(data_dir);
    config.script_checks = script_checks;
    config.services_of_files = [instance_id("filed")].into();
    config.checks_of_files = [check_id("filed-apart")].into();
    Agent::start(config, Arc::clone(server) as _).await.unwrap()
}

fn apart(spec: CheckSpec) -> CheckRegistration {
    CheckRegistration { spec, service: None }
}

fn refused(result: Result<starling_agent::Registered, RegisterError>) -> String {
    match result {
        Err(RegisterError::Field(error)) => error.reason,
        other => panic!("expected a refused field, got {other:?}"),
    }
}

#[tokio::test]
async fn local_permission_runs_scripts_of_files_and_refuses_those_of_the_api() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start_with(directory.path(), &server, FILES_ONLY).await;
    agent.register_service_of_file(service("filed", vec![script("filed", "true")])).await.unwrap();
    agent.register_check_of_file(apart(script("filed-apart", "true"))).await.unwrap();
    server.until_status("filed", CheckStatus::Passing).await;
    server.until_status("filed-apart", CheckStatus::Passing).await;

    let proof = directory.path().join("proof");
    let command = format!("id > {}", proof.display());
    let called = service("called", vec![script("called", &command)]);
    assert_eq!(refused(agent.register_service(called, ExistingChecks::Keep).await), REFUSED_FROM_API);
    assert_eq!(refused(agent.register_check(apart(script("called", &command))).await), REFUSED_FROM_API);
    let mut of_sidecar = with_sidecar(service("called", Vec::new()));
    of_sidecar.sidecar.as_mut().unwrap().checks = vec![script("called", &command)];
    assert_eq!(refused(agent.register_service(of_sidecar, ExistingChecks::Keep).await), REFUSED_FROM_API);
    // A caller cannot take over the service of a file together with its permission.
    let rival = service("filed", vec![script("filed", &command)]);
    assert_eq!(refused(agent.register_service(rival, ExistingChecks::Keep).await), REFUSED_FROM_API);
    assert!(!proof.exists());
}

#[tokio::test]
async fn the_origin_of_a_check_survives_a_restart() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start_with(directory.path(), &server, ScriptChecks::ALL).await;
    agent.register_service_of_file(service("filed", vec![script("filed", "true")])).await.unwrap();
    agent.register_check_of_file(apart(script("filed-apart", "true"))).await.unwrap();
    agent.register_service(service("called", vec![script("called", "true")]), ExistingChecks::Keep).await.unwrap();
    agent.register_check(apart(script("called-apart", "true"))).await.unwrap();
    // A caller's check of a service that a file declares is the caller's.
    let spec = script("called-beside", "true");
    agent.register_check(CheckRegistration { spec, service: Some(instance_id("filed")) }).await.unwrap();
    let all = ["filed", "filed-apart", "called", "called-apart", "called-beside"];
    for id in all {
        server.until_status(id, CheckStatus::Passing).await;
    }
    agent.register_service(service("last", Vec::new()), ExistingChecks::Keep).await.unwrap();
    drop(agent);

    let _agent = start_with(directory.path(), &server, FILES_ONLY).await;
    for id in ["called", "called-apart", "called-beside"] {
        let check = server.until_status(id, CheckStatus::Critical).await;
        assert_eq!(check.output, REFUSED_FROM_API, "{id}");
    }
    for id in ["filed", "filed-apart"] {
        let check = server.until_status(id, CheckStatus::Passing).await;
        assert!(!check.output.contains("disabled"), "{id}: {}", check.output);
    }
}

#[tokio::test]
async fn a_restored_script_of_a_caller_runs_once_a_file_declares_it() {
    let (directory, server) = (tempfile::tempdir().unwrap(), FakeServer::new());
    let agent = start(directory.path(), &server).await;
    let given = || service("filed", vec![script("s", "true")]);
    agent.register_service(given(), ExistingChecks::Keep).await.unwrap();
    server.until_status("s", CheckStatus::Passing).await;
    agent.register_service(service("last", Vec::new()), ExistingChecks::Keep).await.unwrap();
    drop(agent);
    let agent = start_with(directory.path(), &server, FILES_ONLY).await;
    server.until_status("s", CheckStatus::Critical).await;
    agent.register_service_of_file(given()).await.unwrap();
    server.until_status("s", CheckStatus::Passing).await;
}
