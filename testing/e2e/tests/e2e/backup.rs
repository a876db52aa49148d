//! Backups and moves with the real binary: what was saved is there again, under higher indexes, and nothing that is damaged
//! is believed.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use starling_e2e::cli::Output;
use starling_e2e::etcd::Etcd;
use starling_e2e::{Mesh, MeshOptions, Plane, Program, Seal, Workload, eventually, new_seal_key};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::apart::{answered, connected, node, token};

/// What an agent may take until it is current after a restore.
const CURRENT_WITHIN: Duration = Duration::from_secs(1);

fn directory() -> TempDir {
    TempDir::with_prefix("starling-e2e-backup-").expect("a temporary directory")
}

fn server_options(store: Option<String>) -> MeshOptions {
    let program = Program::Server("node_grace = \"3s\"\n".to_owned());
    MeshOptions { program, store, ..MeshOptions::default() }
}

async fn native_agent(server: &Mesh, name: &str) -> Mesh {
    let token = token(server, &[]).await;
    Mesh::start(MeshOptions { native: true, ..node(server, name, Some(&token)) }).await
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path that is text")
}

async fn saved(mesh: &Mesh, file: &Path) -> Value {
    mesh.cli(&["snapshot", "save", text(file), "-o", "json"]).await.success().json()
}

fn external(name: &str) -> Value {
    json!({"Node": "outside", "Address": "192.0.2.7", "Service": {"ID": name, "Service": name, "Port": 6379}})
}

async fn is_known(mesh: &Mesh, service: &str) -> bool {
    let rows = mesh.get(&format!("/v1/catalog/service/{service}")).await.success().json();
    rows.as_array().is_some_and(|rows| !rows.is_empty())
}

/// Save, change, restore: everything is as it was, and everybody hears of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_mesh_is_set_back_and_everybody_hears_of_it() {
    let server = Mesh::start(server_options(None)).await;
    let agent = native_agent(&server, "n1").await;
    server.protocol("api", "http").await;
    let _ = server.put("/v1/catalog/register", &external("cache")).await.success();
    let (web, _api, _other) = tokio::join!(
        Workload::new("web").calls("api").start_on(&agent, Plane::Native),
        Workload::new("api").start_on(&agent, Plane::Native),
        Workload::new("other").start_on(&agent, Plane::Native),
    );
    server.protocol("other", "http").await;
    web.served_by("api", &["api"], "nothing says otherwise").await;
    let (directory, before) = (directory(), server.revision().await);
    let file = directory.path().join("mesh.snapshot");
    let report = saved(&server, &file).await;
    assert!(report["revision"].as_u64() >= Some(before), "{report}");

    // Everything changes: where calls go, who may call, and what is registered without an agent.
    let redirect = json!({"Kind": "service-resolver", "Name": "api", "Redirect": {"Service": "other"}});
    server.config(&redirect).await;
    web.served_by("api", &["other"], "calls are redirected").await;
    server.intention("web", "api", "deny").await;
    server.intention("web", "other", "deny").await;
    answered(&web, "api", 403, "it is denied").await;
    let _ = server.put("/v1/catalog/register", &external("late")).await.success();
    let _ = server.put("/v1/catalog/deregister", &json!({"Node": "outside", "ServiceID": "cache"})).await.success();
    let changed = server.revision().await;

    let index = server.get("/v1/catalog/service/late").await.success().index();
    let waiting = format!("/v1/catalog/service/late?index={index}&wait=60s");
    let arguments = ["snapshot", "restore", text(&file), "-o", "json"];
    let (woken, restored) = tokio::join!(server.get(&waiting), server.cli(&arguments));
    let at = Instant::now();
    answered(&web, "api", 200, "the snapshot allows it").await;
    web.served_by("api", &["api"], "the snapshot knows no redirect").await;
    assert!(at.elapsed() < CURRENT_WITHIN, "current after {:?}", at.elapsed());
    assert!(woken.index() > index && woken.json() == json!([]), "the watcher of what is gone: {}", woken.text());
    let restored = restored.success().json();
    let revision = restored["revision"].as_u64().expect("a revision");
    assert!(revision > changed, "{restored}");
    assert_eq!(restored["younger"]["count"], 0, "{restored}");
    server.settled(revision).await;
    assert!(is_known(&server, "cache").await && !is_known(&server, "late").await);
    assert!(is_known(&server, "web").await, "what runs is not touched");

    // The same again finds nothing to do.
    let again = server.cli(&arguments).await.success().json();
    assert_eq!((&again["written"], &again["removed"]), (&json!(0), &json!(0)), "{again}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_is_its_owners_alone_and_one_that_is_damaged_changes_nothing() {
    use std::os::unix::fs::PermissionsExt;
    let server = Mesh::start(server_options(None)).await;
    let _ = server.put("/v1/catalog/register", &external("cache")).await.success();
    let directory = directory();
    let file = directory.path().join("mesh.snapshot");
    let report = saved(&server, &file).await;
    assert!(report["notes"].to_string().contains("DATA_DIR/ca"), "the key is elsewhere: {report}");
    let mode = std::fs::metadata(&file).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let inspected = server.cli(&["snapshot", "inspect", text(&file), "-o", "json"]).await.success().json();
    assert_eq!((&inspected["sha256"], &inspected["revision"]), (&report["sha256"], &report["revision"]));
    assert_eq!((&inspected["kinds"]["instance"], &inspected["sealed_ca_key"]), (&json!(1), &json!(false)));
    let told = server.cli(&["snapshot", "inspect", text(&file)]).await.success();
    assert!(told.stdout.contains("verified") && told.stdout.contains("DATA_DIR/ca"), "{told}");

    let _ = server.put("/v1/catalog/register", &external("late")).await.success();
    let good = std::fs::read(&file).expect("a file");
    let before = server.revision().await;
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    for (bytes, why) in
        [(&flipped[..], "damaged"), (&good[..good.len() - 7], "not whole"), (b"PK\x03\x04", "no snapshot")]
    {
        std::fs::write(&file, bytes).expect("written");
        for command in ["inspect", "restore"] {
            let refused = server.cli(&["snapshot", command, text(&file)]).await;
            assert!(refused.code != 0 && refused.stderr.contains(why), "{refused}");
        }
        // Nor does the API rely on that its client has looked.
        let refused = server.call(starling_e2e::http::Method::PUT, "/v1/snapshot", bytes.to_vec()).await;
        assert_eq!(refused.status, 400, "{}", refused.text());
        assert!(refused.text().contains(why) && refused.text().contains("nothing was changed"), "{}", refused.text());
    }
    assert_eq!(server.revision().await, before);
    assert!(is_known(&server, "late").await);

    let agent = native_agent(&server, "n1").await;
    for arguments in [["snapshot", "save", text(&file)], ["snapshot", "restore", text(&file)]] {
        std::fs::write(&file, &good).expect("written");
        let refused = agent.cli(&arguments).await;
        assert!(refused.code != 0 && refused.stderr.contains("operator:write"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_while_another_is_at_work_is_put_off() {
    let server = Mesh::start(server_options(None)).await;
    let mut slow = TcpStream::connect(&server.addresses.http).await.expect("a connection");
    let begun = b"PUT /v1/snapshot HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n";
    slow.write_all(begun).await.expect("sent");
    let restore = async || server.call(starling_e2e::http::Method::PUT, "/v1/snapshot", "no snapshot").await;
    let put_off = eventually("the first is at work", async || {
        let answer = restore().await;
        anyhow::ensure!(answer.status == 429, "{} {}", answer.status, answer.text());
        Ok(answer)
    });
    let put_off = put_off.await;
    assert_eq!(put_off.header("retry-after"), Some("5"), "{}", put_off.text());
    // Its client is gone, and so it is over.
    drop(slow);
    let taken_up = async || {
        let status = restore().await.status;
        anyhow::ensure!(status == 400, "{status}");
        Ok(())
    };
    eventually("the next is taken up", taken_up).await;
}

/// A command on stores, which no server is asked about.
async fn offline(mesh: &Mesh, arguments: &[&str]) -> Output {
    mesh.cli(&[arguments, &["-o", "json"]].concat()).await
}

fn folders(directory: &Path, prefix: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path());
    all.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))).collect()
}

/// From the embedded store to etcd and back: the same mesh, its agents and its indexes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_moves_to_etcd_and_back_and_its_agents_with_it() {
    let etcd = Etcd::start().await;
    // The CA's key is in the store, sealed, and moves with it.
    let folder = directory();
    let seal = folder.path().join("seal");
    new_seal_key(&seal);
    let sealed = |store| MeshOptions { seal: Seal::File(seal.clone()), ..server_options(store) };
    let mut server = Mesh::start(sealed(None)).await;
    let agent = native_agent(&server, "n1").await;
    let _ = server.put("/v1/catalog/register", &external("cache")).await.success();
    server.protocol("api", "http").await;
    let index = server.get("/v1/catalog/service/cache").await.success().index();
    let embedded = format!("embedded:{}", text(server.data_dir()));
    let refused = offline(&server, &["store", "copy", &embedded, &etcd.store()]).await;
    assert!(refused.code != 0 && refused.stderr.contains("is in use by process"), "{refused}");

    server.end_with(nix::sys::signal::Signal::SIGTERM);
    let copied = offline(&server, &["store", "copy", &embedded, &etcd.store()]).await.success().json();
    assert!(copied["revision"].as_u64() > Some(index), "{copied}");
    assert_eq!(folders(server.data_dir(), "store.aside-").len(), 1, "the source is put aside");
    server.restart_with(sealed(Some(etcd.store()))).await;
    assert!(is_known(&server, "cache").await);
    let moved = server.get("/v1/catalog/service/cache").await.success().index();
    assert!(moved > index, "{moved} after {index}");
    connected(&server, "n1", true).await;
    agent.protocol("web", "http").await;
    let refused = offline(&server, &["store", "copy", &etcd.store(), &embedded]).await;
    assert!(refused.code != 0 && refused.stderr.contains("servers are running"), "{refused}");

    server.end_with(nix::sys::signal::Signal::SIGTERM);
    let back = eventually("the server is gone from the etcd", async || {
        let output = offline(&server, &["store", "copy", &etcd.store(), &embedded]).await;
        anyhow::ensure!(output.code == 0, "{output}");
        Ok(output.json())
    })
    .await;
    assert_eq!(back["records"].as_u64(), copied["records"].as_u64().map(|count| count + 1), "{back} {copied}");
    server.restart_with(sealed(None)).await;
    assert!(is_known(&server, "cache").await);
    let entry = server.get("/v1/config/service-defaults/web").await.success();
    assert!(entry.index() > moved, "{} after {moved}", entry.index());
    connected(&server, "n1", true).await;
    agent.protocol("late", "http").await;
    let full = offline(&server, &["store", "copy", &embedded, &etcd.store()]).await;
    assert!(full.code != 0, "the server runs: {full}");
}

/// Hashes of both sides are equal, and the commands that fill a store want it empty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_is_equal_and_wants_an_empty_target() {
    let etcd = Etcd::start().await;
    let mut server = Mesh::start(server_options(None)).await;
    let _ = server.put("/v1/catalog/register", &external("cache")).await.success();
    server.end_with(nix::sys::signal::Signal::SIGKILL);
    let (first, elsewhere) = (format!("embedded:{}", text(server.data_dir())), directory());
    let second = format!("embedded:{}", text(elsewhere.path()));
    let there = offline(&server, &["store", "copy", "--keep-source", &first, &etcd.store()]).await.success().json();
    let back = offline(&server, &["store", "copy", &etcd.store(), &second]).await.success().json();
    assert_eq!((&there["sha256"], &there["records"]), (&back["sha256"], &back["records"]));
    let refused = offline(&server, &["store", "copy", &first, &second]).await;
    assert!(refused.code != 0 && refused.stderr.contains("--replace"), "{refused}");
    let refused = offline(&server, &["store", "copy", &first, &etcd.store()]).await;
    assert!(refused.code != 0 && refused.stderr.contains("--replace"), "{refused}");
    let replaced = offline(&server, &["store", "copy", "--replace", "--keep-source", &first, &etcd.store()]).await;
    assert_eq!(replaced.success().json()["sha256"], there["sha256"]);
    // The source was left as it is, and serves.
    server.restart().await;
    assert!(is_known(&server, "cache").await);
}

/// Everything is lost but a snapshot and the CA: the mesh is there again, and its agents come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_disaster_a_snapshot_and_the_ca_make_the_mesh_again() {
    let mut server = Mesh::start(server_options(None)).await;
    let agent = native_agent(&server, "n1").await;
    server.protocol("api", "http").await;
    let (web, _api) = tokio::join!(
        Workload::new("web").calls("api").start_on(&agent, Plane::Native),
        Workload::new("api").start_on(&agent, Plane::Native),
    );
    web.served_by("api", &["api"], "nothing says otherwise").await;
    let directory = directory();
    let file = directory.path().join("mesh.snapshot");
    saved(&server, &file).await;
    let denied = server.intention("web", "api", "deny").await.index();
    answered(&web, "api", 403, "it is denied").await;

    server.kill9();
    std::fs::remove_dir_all(server.data_dir().join("store")).expect("the store is lost");
    let embedded = format!("embedded:{}", text(server.data_dir()));
    let restored = offline(&server, &["snapshot", "restore", text(&file), "--to", &embedded]).await.success().json();
    assert!(restored["revision"].as_u64() > Some(denied + 1_000_000), "{restored}");
    server.restart().await;
    let index = server.get("/v1/connect/intentions").await.success().index();
    assert!(index > denied, "no index goes back: {index} after {denied}");
    // The agent has heard of what the store does not know, and begins anew.
    answered(&web, "api", 200, "the snapshot allows it").await;
    connected(&server, "n1", true).await;
    let late = server.intention("web", "api", "deny").await.index();
    server.settled(late).await;
    answered(&web, "api", 403, "changes arrive again").await;
}

/// The folder of a server on etcd holds no records, and is in use all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_is_not_put_into_the_folder_of_a_server_that_runs_on_etcd() {
    let (alone, directory, etcd) = (Mesh::start(server_options(None)).await, directory(), Etcd::start().await);
    let file = directory.path().join("mesh.snapshot");
    saved(&alone, &file).await;
    let mut server = Mesh::start(server_options(Some(etcd.store()))).await;
    let embedded = format!("embedded:{}", text(server.data_dir()));
    for replace in [None, Some("--replace")] {
        let arguments: Vec<_> =
            ["snapshot", "restore", text(&file), "--to", &embedded].into_iter().chain(replace).collect();
        let refused = offline(&server, &arguments).await;
        assert!(refused.code != 0 && refused.stderr.contains("is in use by process"), "{refused}");
    }
    server.kill9();
    server.restart().await;
    let _ = server.put("/v1/catalog/register", &external("cache")).await.success();
}
