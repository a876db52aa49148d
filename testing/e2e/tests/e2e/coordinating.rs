//! The commands by which scripts coordinate themselves: the key-value store, locks and watches, as Consul's command line has them.

use std::path::Path;
use std::process::ExitStatus;

use serde_json::{Value, json};
use starling_e2e::{Mesh, MeshOptions, Process, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_are_put_got_exported_and_imported() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    let says = async |arguments: &[&str]| mesh.cli(arguments).await.success().stdout;
    assert_eq!(says(&["kv", "put", "app/a b", "one"]).await, "Success! Data written to: app/a b\n");
    assert_eq!(says(&["kv", "put", "-flags=7", "-base64", "app/b", "dHdv"]).await, "Success! Data written to: app/b\n");
    assert_eq!(says(&["kv", "get", "app/a b"]).await, "one\n");
    assert_eq!(says(&["kv", "get", "-recurse", "app/"]).await, "app/a b:one\napp/b:two\n");
    assert_eq!(says(&["kv", "get", "-keys", "-separator=", "app"]).await, "app/a b\napp/b\n");
    assert_eq!(says(&["kv", "get", "-keys"]).await, "app/\n");
    let detailed = says(&["kv", "get", "-detailed", "app/b"]).await;
    assert!(detailed.contains("Flags            7\n") && detailed.ends_with("Value            two\n"), "{detailed}");
    let index = detailed.lines().find_map(|line| line.strip_prefix("ModifyIndex      ")).expect("an index");
    let late = mesh.cli(&["kv", "put", "-cas", "-modify-index=1", "app/b", "x"]).await;
    assert!(late.code == 1 && late.stderr.contains("CAS failed"), "{late}");
    says(&["kv", "put", "-cas", &format!("-modify-index={index}"), "app/b", "three"]).await;

    let exported = says(&["kv", "export", "app"]).await;
    let entries: Value = serde_json::from_str(&exported).expect("JSON");
    assert_eq!(entries[1], json!({"key": "app/b", "flags": 0, "value": "dGhyZWU="}));
    assert_eq!(says(&["kv", "delete", "-recurse", "app/"]).await, "Success! Deleted keys with prefix: app/\n");
    let gone = mesh.cli(&["kv", "get", "app/b"]).await;
    assert!(gone.code == 1 && gone.stderr.contains("no key exists at: app/b"), "{gone}");
    assert_eq!(says(&["kv", "import", &exported]).await, "Imported: app/a b\nImported: app/b\n");
    assert_eq!(says(&["kv", "get", "app/b"]).await, "three\n");
    let broken = mesh.cli(&["kv", "import", r#"[{"key": "x", "value": "?"}]"#]).await;
    assert!(broken.code == 2 && broken.stderr.contains("value of x"), "{broken}");

    mesh.register(&json!({"Name": "web", "Port": 80, "Tags": ["v1", "blue"]})).await;
    assert_eq!(says(&["catalog", "datacenters"]).await, "dc1\n");
    let services = says(&["catalog", "services", "-tags"]).await;
    assert!(services.contains("web") && services.contains("blue,v1"), "{services}");
    let nodes = says(&["catalog", "nodes", "-service=web"]).await;
    assert_eq!(nodes.lines().count(), 2, "{nodes}");
    let members = says(&["members"]).await;
    assert!(members.lines().any(|line| line.contains("alive") && line.contains("server")), "{members}");
}

/// What a file holds; nothing if it is not there.
fn held(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

async fn holds(path: &Path, wanted: &str) {
    eventually(&format!("{} holds {wanted:?}", path.display()), async || {
        anyhow::ensure!(held(path) == wanted, "{:?}", held(path));
        Ok(())
    })
    .await;
}

/// How it ends.
async fn end(process: &mut Process) -> ExitStatus {
    eventually("it ends", async || process.ended().ok_or_else(|| anyhow::anyhow!("it runs"))).await
}

/// A command of the binary's that goes on.
fn begin(mesh: &Mesh, arguments: &[&str]) -> Process {
    Process::spawn("a command", mesh.command(arguments))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_held_by_one_at_a_time_and_goes_with_who_holds_it() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    let folder = tempfile::tempdir().expect("a folder");
    let (file, go) = (folder.path().join("out"), folder.path().join("go"));
    let [file_text, go_text] = [&file, &go].map(|path| path.to_str().expect("text").to_owned());
    // It holds the lock until it may go on.
    let first = format!("echo first >> {file_text}; until test -e {go_text}; do sleep 0.05; done; exit 3");
    let mut first = begin(&mesh, &["lock", "-child-exit-code", "job", &first]);
    holds(&file, "first\n").await;
    let late = mesh.cli(&["lock", "-try=300ms", "job", "true"]).await;
    assert!(late.code == 1 && late.stderr.contains("was not to be had in time"), "{late}");
    let mut second = begin(&mesh, &["lock", "job", &format!("echo second >> {file_text}")]);
    let waits = async || mesh.get("/v1/session/list").await.success().json().as_array().map(Vec::len);
    eventually("the second waits", async || {
        anyhow::ensure!(waits().await == Some(2), "{:?}", waits().await);
        Ok(())
    })
    .await;
    assert_eq!(held(&file), "first\n");
    std::fs::write(&go, "").expect("written");
    assert_eq!(end(&mut first).await.code(), Some(3), "as its command");
    assert!(end(&mut second).await.success());
    assert_eq!(held(&file), "first\nsecond\n");
    assert_eq!(mesh.get("/v1/kv/job/.lock").await.status, 404, "nothing is left");
    assert_eq!(waits().await, Some(0));

    // One whose session was ended by somebody else holds nothing any more, and its command is not left to run.
    let mut robbed = begin(&mesh, &["lock", "job", "sleep 600"]);
    eventually("it is held", async || {
        let sessions = mesh.get("/v1/session/list").await.success().json();
        let lock = mesh.get("/v1/kv/job/.lock").await;
        anyhow::ensure!(lock.status == 200 && lock.json()[0]["Session"] == sessions[0]["ID"], "{sessions}");
        Ok(())
    })
    .await;
    let sessions = mesh.get("/v1/session/list").await.success().json();
    let id = sessions[0]["ID"].as_str().expect("an id").to_owned();
    let _ = mesh.put(&format!("/v1/session/destroy/{id}"), &json!({})).await.success();
    assert_eq!(end(&mut robbed).await.code(), Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_runs_its_command_for_each_change_and_for_nothing_else() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("out");
    let handler = format!("cat >> {}", file.display());
    let _watch = begin(&mesh, &["watch", "-type=keyprefix", "-prefix=app/", &handler]);
    holds(&file, "null\n").await;
    let lines = async |count: usize, last: &str| {
        eventually(&format!("{count} runs, the last with {last}"), async || {
            let text = held(&file);
            let found: Vec<_> = text.lines().collect();
            anyhow::ensure!(found.len() == count && found[count - 1].contains(last), "{found:?}");
            Ok(())
        })
        .await;
    };
    let _ = mesh.cli(&["kv", "put", "app/x", "1"]).await.success();
    lines(2, "app/x").await;
    let _ = mesh.cli(&["kv", "put", "other", "1"]).await.success();
    mesh.kill9();
    mesh.restart().await;
    let _ = mesh.cli(&["kv", "put", "app/y", "1"]).await.success();
    lines(3, "app/y").await;
    let once = mesh.cli(&["watch", "-type=key", "-key=app/x"]).await.success();
    let once: Value = serde_json::from_str(&once.stdout).expect("JSON");
    assert_eq!((&once["Key"], &once["Value"]), (&json!("app/x"), &json!("MQ==")));
    let nothing = mesh.cli(&["watch", "-type=key"]).await;
    assert!(nothing.code == 2 && nothing.stderr.contains("--type key needs --key"), "{nothing}");
}
