//! A data directory that is damaged or not whole is refused, with what to do about it, and left as it is.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use starling_e2e::{Mesh, MeshOptions, free_port};

const JOURNAL: &str = "agent/journal.jsonl";

/// Bytes spoilt at the beginning of a file.
const GARBLED_BYTES: usize = 4096;

/// Every file below `folder` that holds data, with its content; what a lock says is only for people.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("a readable folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            found.extend(files(&entry));
        } else if entry.extension().is_none_or(|extension| extension != "lock") {
            let content = fs::read(&entry).expect("a readable file");
            found.insert(entry, content);
        }
    }
    found
}

/// A mesh that knows a service and an intention, and whose server was killed.
async fn killed() -> Mesh {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.register(&json!({"Name": "web", "Port": free_port(), "Connect": {"SidecarService": {}}})).await;
    let _ = mesh.get("/v1/agent/connect/ca/leaf/web").await.success();
    mesh.protocol("web", "http").await;
    mesh.intention("web", "db", "deny").await;
    mesh.kill9();
    mesh
}

/// Restarts a mesh that has all that it knew.
async fn assert_whole(mesh: &mut Mesh) {
    mesh.restart().await;
    let services = mesh.get("/v1/agent/services").await.success().json();
    assert!(!services["web"].is_null(), "{services}");
    let catalog = mesh.get("/v1/catalog/service/web").await.success().json();
    assert_eq!(catalog.as_array().map(Vec::len), Some(1), "{catalog}");
    assert!(!mesh.can("web", "db", &[]).await, "the intention is gone");
}

/// A start that is refused because of `why`, says `told`, and touches nothing.
async fn assert_refused(mesh: &mut Mesh, why: &str, told: &[&str]) -> String {
    let before = files(mesh.data_dir());
    let said = mesh.restart_refused(why).await;
    assert!(files(mesh.data_dir()) == before, "{why}: something was written: {said}");
    for told in told {
        assert!(said.contains(told), "{why}: {told:?} is not told: {said}");
    }
    assert!(!said.contains("panicked"), "{why}: {said}");
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_files_are_refused() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    let other = mesh.second_refused().await;
    assert!(other.contains(&mesh.data_dir().display().to_string()), "which directory is in use is not told: {other}");
    drop(mesh);

    let mut mesh = killed().await;
    let sound = files(mesh.data_dir());
    assert!(sound.len() >= 6, "store, CA, journal, two marks and the node's id: {:?}", sound.keys());
    // A leaf that cannot be used is issued anew, and nothing is lost by it.
    let leaves = mesh.data_dir().join("agent/leaves");
    for (file, sound) in sound.iter().filter(|(file, _)| !file.starts_with(&leaves)) {
        let mut garbled = sound.clone();
        garbled.iter_mut().take(GARBLED_BYTES).for_each(|byte| *byte ^= 0xA5);
        for damaged in [garbled.as_slice(), &sound[..sound.len() / 2]] {
            fs::write(file, damaged).expect("a writable file");
            let name = file.file_name().expect("a name").to_string_lossy();
            assert_refused(&mut mesh, &format!("{name} is damaged"), &[&name]).await;
        }
        fs::write(file, sound).expect("a writable file");
    }

    let journal = mesh.data_dir().join(JOURNAL);
    let sound = fs::read_to_string(&journal).expect("a journal");
    // Behind it there may be statuses, which are found out again.
    let registered = sound.rfind("{\"service\":").expect("a registration");
    let end = registered + sound[registered..].find('\n').expect("a whole line");
    fs::write(&journal, &sound[..end]).expect("a writable file");
    assert_refused(&mut mesh, "what was acknowledged is lost", &["journal.jsonl", "remove journal.acknowledged"]).await;
    // What nobody was told of may be missing: a write that a crash has cut short.
    fs::write(&journal, format!("{sound}[{{\"service_gone\":\"w")).expect("a writable file");
    assert_whole(&mut mesh).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_that_are_missing_are_missed() {
    let mut mesh = killed().await;
    let data_dir = mesh.data_dir().to_owned();
    let aside = tempfile::TempDir::with_prefix("starling-e2e-aside-").expect("a temporary directory");
    let aside = aside.path().join("part");
    for (part, told) in [
        ("store", ["/store", "restore", "another data directory"]),
        ("store/store.redb", ["/store", "restore", "another data directory"]),
        ("ca", ["/ca", "restore", "another data directory"]),
        ("agent", ["/agent/journal.jsonl", "restore", "to go on without"]),
        (JOURNAL, ["/agent/journal.jsonl", "restore", "to go on without"]),
        ("node-id", ["/node-id", "restore", "write that id"]),
    ] {
        fs::rename(data_dir.join(part), &aside).expect("movable");
        assert_refused(&mut mesh, &format!("{part} is missing"), &told).await;
        assert!(!data_dir.join(part).exists(), "{part} was made anew");
        fs::rename(&aside, data_dir.join(part)).expect("movable");
    }

    let mut other = Mesh::start(MeshOptions::default()).await;
    other.kill9();
    fs::rename(data_dir.join("ca"), &aside).expect("movable");
    fs::rename(other.data_dir().join("ca"), data_dir.join("ca")).expect("movable");
    assert_refused(&mut mesh, "the CA is another's", &["/ca", "restore", "another data directory"]).await;
    fs::remove_dir_all(data_dir.join("ca")).expect("removable");
    fs::rename(&aside, data_dir.join("ca")).expect("movable");
    assert_whole(&mut mesh).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_refusal_says_to_do_is_a_way_on() {
    let mut mesh = killed().await;
    let data_dir = mesh.data_dir().to_owned();
    let id = fs::read(data_dir.join("node-id")).expect("an id");
    fs::remove_file(data_dir.join("node-id")).expect("removable");
    let said = assert_refused(&mut mesh, "the node's id is missing", &[]).await;
    let told = said.split("by the id ").nth(1).and_then(|rest| rest.split(';').next()).expect("an id is told");
    assert_eq!(told.as_bytes(), id);
    fs::write(data_dir.join("node-id"), told).expect("writable");
    assert_whole(&mut mesh).await;

    mesh.kill9();
    fs::remove_dir_all(data_dir.join("agent")).expect("removable");
    let said = assert_refused(&mut mesh, "the journal is missing", &[]).await;
    let line = said.find('{').and_then(|start| said[start..].split_inclusive('}').next()).expect("a line is told");
    fs::create_dir(data_dir.join("agent")).expect("a folder");
    fs::write(data_dir.join(JOURNAL), format!("{line}\n")).expect("writable");
    mesh.restart().await;
    assert_eq!(mesh.get("/v1/agent/services").await.success().json(), json!({}));
    assert!(!mesh.can("web", "db", &[]).await, "the intention is gone");
}
