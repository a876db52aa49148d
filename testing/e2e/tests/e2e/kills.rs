//! What is acknowledged is kept, whenever the server is killed.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use starling_e2e::{Connection, Mesh, MeshOptions, Method};

/// Kills of the server.
const KILLS: u64 = 100;

/// Writers that are at it at the same time.
const WRITERS: u64 = 4;

/// Longest time from ready to kill.
const LIFE_MS_MAX: u64 = 60;

/// Each writer has at most this many services, so that the state, and with it the restart, stays small.
const SERVICES_PER_WRITER: u64 = 25;

/// What one writer knows to be stored: each service's last acknowledged version, and writes that were never answered.
#[derive(Debug, Default)]
struct Ledger {
    acknowledged: std::collections::BTreeMap<String, u64>,
    unanswered: BTreeSet<(String, u64)>,
    writes: u64,
}

/// Registers services and intentions over one connection until the server is gone.
async fn write(writer: u64, api: String, ledger: Arc<Mutex<Ledger>>, stop: Arc<AtomicBool>) {
    let Ok(mut connection) = Connection::open(&api).await else { return };
    while !stop.load(Ordering::Relaxed) {
        let (name, version) = {
            let mut ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
            ledger.writes += 1;
            let name = format!("w{writer}-{}", ledger.writes % SERVICES_PER_WRITER);
            let write = (name.clone(), ledger.writes);
            ledger.unanswered.insert(write.clone());
            write
        };
        let by_agent = version % 2 == 0;
        let (target, body) = if by_agent {
            ("/v1/agent/service/register", json!({"Name": name, "Meta": {"version": version.to_string()}}))
        } else {
            (
                "/v1/config",
                json!({"Kind": "service-defaults", "Name": name, "Protocol": "http",
                "Meta": {"version": version.to_string()}}),
            )
        };
        let Ok(answer) = connection.send(Method::PUT, target, &[], body.to_string()).await else { return };
        assert_eq!(answer.status, 200, "{}", answer.text());
        let mut ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.unanswered.remove(&(name.clone(), version));
        let key = if by_agent { format!("service {name}") } else { format!("config {name}") };
        ledger.acknowledged.insert(key, version);
    }
}

/// Checks what one writer was told against what is there.
async fn assert_kept(mesh: &Mesh, kill: u64, ledgers: &[Arc<Mutex<Ledger>>]) {
    let services = mesh.get("/v1/agent/services").await.success().json();
    let catalog = mesh.get("/v1/catalog/services").await.success().json();
    let entries = mesh.get("/v1/config/service-defaults").await.success().json();
    for ledger in ledgers {
        let ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, version) in &ledger.acknowledged {
            let (kind, name) = key.split_once(' ').expect("a kind and a name");
            let stored = if kind == "service" {
                assert!(!catalog[name].is_null(), "kill {kill}: {name} is not in the catalog");
                &services[name]["Meta"]["version"]
            } else {
                let entry = entries.as_array().expect("entries").iter().find(|entry| entry["Name"] == name);
                &entry.unwrap_or_else(|| panic!("kill {kill}: {key} is gone"))["Meta"]["version"]
            };
            let stored: u64 = stored.as_str().and_then(|text| text.parse().ok()).unwrap_or(0);
            // A write that was never answered may have been stored, too.
            let possible = stored == *version || ledger.unanswered.contains(&(name.to_owned(), stored));
            assert!(possible && stored >= *version, "kill {kill}: {key} was acknowledged at {version}, is {stored}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_kills_lose_nothing_acknowledged() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let ledgers: Vec<_> = (0..WRITERS).map(|_| Arc::new(Mutex::new(Ledger::default()))).collect();
    for kill in 1..=KILLS {
        let stop = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..WRITERS)
            .zip(&ledgers)
            .map(|(writer, ledger)| {
                let (api, ledger, stop) = (mesh.addresses.http.clone(), Arc::clone(ledger), Arc::clone(&stop));
                tokio::spawn(write(writer, api, ledger, stop))
            })
            .collect();
        // Any instant will do, and each kill takes another: 37 has no factor in common with the range.
        tokio::time::sleep(Duration::from_millis(1 + kill * 37 % LIFE_MS_MAX)).await;
        mesh.kill9();
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.await.expect("a writer that does not panic");
        }
        mesh.restart().await;
        assert_kept(&mesh, kill, &ledgers).await;
    }
    let count = |ledger: &Arc<Mutex<Ledger>>| ledger.lock().unwrap_or_else(PoisonError::into_inner).writes;
    let writes: u64 = ledgers.iter().map(count).sum();
    assert!(writes > KILLS, "only {writes} writes: the server was never under load");
}
