//! Whether a command is allowed is judged in the catalog on which it is decided, not in one of before.

#[path = "../../../core/catalog/tests/support/records.rs"]
mod records;

use std::sync::atomic::{AtomicUsize, Ordering};

use starling_catalog::{Command, Snapshot};
use starling_model::{InstanceKey, Record, ServiceInstance};
use starling_server::{Server, ServerConfig, Unmade};
use starling_telemetry::Registry;
use tokio::runtime::Handle;

/// The instance `i1`, of this service.
fn instance(service: &str) -> ServiceInstance {
    records::instance("n1", "i1", service, 80)
}

fn register(service: &str) -> Command {
    let Record::Node(node) = records::node("n1", "10.0.0.1") else { unreachable!("a node") };
    let name = node.name.clone();
    Command::Register { name, node: Some(node), instances: vec![instance(service)], checks: Vec::new() }
}

/// Allows what concerns an instance of `web`.
fn judge(key: &InstanceKey, snapshot: &Snapshot) -> Result<(), String> {
    match snapshot.instance(key).map(|instance| instance.value.name.to_string()) {
        Some(name) if name != "web" => Err(name),
        _ => Ok(()),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_allowed_before_a_rival_was_faster_is_judged_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = ServerConfig::new(directory.path().to_owned(), "dc1".parse().expect("a name"));
    let server = Server::start(config, &Registry::default()).await.expect("the server starts");
    server.commit(&register("web")).await.expect("registered");

    let (key, judged) = (instance("web").key, AtomicUsize::new(0));
    let removal = Command::DeregisterInstance(key.clone());
    let outcome = server
        .transact(&removal, |snapshot| {
            let allowed = judge(&key, snapshot);
            if judged.fetch_add(1, Ordering::Relaxed) == 0 {
                // Between the judgement and the decision the instance becomes another service's.
                let (rival, runtime) = (server.clone(), Handle::current());
                let rival = std::thread::spawn(move || runtime.block_on(rival.commit(&register("other"))));
                rival.join().expect("no panic").expect("registered");
            }
            allowed
        })
        .await;
    assert!(matches!(&outcome, Err(Unmade::Denied(whose)) if whose == "other"), "{outcome:?}");
    assert_eq!(judged.load(Ordering::Relaxed), 2);
    assert!(server.snapshot().instance(&key).is_some());
}
