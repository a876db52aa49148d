//! Commands that ask something of an agent that runs, and a lock of several holders.

use std::process::ExitStatus;

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use starling_e2e::{Mesh, MeshOptions, Process, Program, eventually};

fn begin(mesh: &Mesh, arguments: &[&str]) -> Process {
    Process::spawn("a command", mesh.command(arguments))
}

async fn end(process: &mut Process) -> ExitStatus {
    eventually("it ends", async || process.ended().ok_or_else(|| anyhow::anyhow!("it runs"))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_of_two_holders_lets_two_in_and_the_third_when_one_has_gone() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let holds = |name: &str| {
        format!(
            "touch {}; until test -e {}; do sleep 0.05; done",
            path(name).display(),
            path(&format!("{name}.go")).display()
        )
    };
    let is_in = async |name: &str| {
        eventually(&format!("{name} is let in"), async || {
            anyhow::ensure!(path(name).exists(), "it waits");
            Ok(())
        })
        .await;
    };
    let mut holders = Vec::new();
    for name in ["one", "two"] {
        holders.push(begin(&mesh, &["lock", "-n", "2", "job", &holds(name)]));
        is_in(name).await;
    }
    let third = mesh.cli(&["lock", "-n", "2", "-try=300ms", "job", "true"]).await;
    assert!(third.code == 1 && third.stderr.contains("was not to be had in time"), "{third}");
    let other = mesh.cli(&["lock", "-n", "3", "job", "true"]).await;
    assert!(other.code == 1 && other.stderr.contains("places for 2"), "{other}");
    let mut third = begin(&mesh, &["lock", "-n", "2", "job", &holds("three")]);
    std::fs::write(path("one.go"), "").expect("written");
    is_in("three").await;
    assert!(end(&mut holders[0]).await.success());

    // Whose session is ended by somebody else holds no place any more.
    let sessions = mesh.get("/v1/session/list").await.success().json();
    for session in sessions.as_array().expect("sessions") {
        let id = session["ID"].as_str().expect("an id");
        let _ = mesh.put(&format!("/v1/session/destroy/{id}"), &json!({})).await.success();
    }
    assert_eq!(end(&mut holders[1]).await.code(), Some(1));
    assert_eq!(end(&mut third).await.code(), Some(1));
    let left = mesh.cli(&["lock", "-n", "2", "job", "true"]).await;
    assert_eq!(left.code, 0, "{left}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn maintenance_events_logs_and_bundles_are_asked_for_by_consuls_commands() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    let _ = mesh.register(&json!({"Name": "web", "Port": 80})).await.success();
    let says = async |arguments: &[&str]| mesh.cli(arguments).await.success().stdout;
    assert!(says(&["maint", "-enable", "-reason", "disks"]).await.contains("in maintenance"));
    let _ = says(&["maint", "-enable", "-service", "web"]).await;
    let listed = says(&["maint"]).await;
    assert!(listed.contains("disks") && listed.contains("ID:     web"), "{listed}");
    let _ = says(&["maint", "-disable", "-service", "web"]).await;
    let _ = says(&["maint", "-disable"]).await;
    assert_eq!(says(&["maint"]).await, "");
    let unknown = mesh.cli(&["maint", "-enable", "-service", "nobody"]).await;
    assert!(unknown.code == 1 && unknown.stderr.contains("Unknown service ID"), "{unknown}");
    assert_eq!(mesh.cli(&["maint", "-service", "web"]).await.code, 2);

    let fired = says(&["event", "-name", "deploy", "-service", "web", "1.2.3"]).await;
    let events = mesh.get("/v1/event/list").await.success().json();
    assert!(fired.contains(events[0]["ID"].as_str().expect("an id")), "{fired}");
    assert_eq!((&events[0]["Name"], &events[0]["Payload"]), (&json!("deploy"), &json!("MS4yLjM=")));

    assert!(says(&["reload"]).await.contains("reload"));
    let lost = mesh.cli(&["force-leave", "nobody"]).await;
    assert_ne!(lost.code, 101, "{lost}");

    let folder = tempfile::tempdir().expect("a folder");
    let name = folder.path().join("bundle");
    let said = says(&["debug", "-duration", "1s", "-interval", "1s", "-output", name.to_str().expect("text")]).await;
    let archive = folder.path().join("bundle.tar.gz");
    assert!(said.contains("bundle.tar.gz") && archive.exists(), "{said}");
    let listed = std::process::Command::new("tar").arg("-tzf").arg(&archive).output().expect("tar");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for file in ["agent.json", "host.json", "members.json", "0000/metrics.json", "0001/metrics.json", "index.json"] {
        assert!(listed.lines().any(|line| line == format!("bundle/{file}")), "{file}: {listed}");
    }
    let again =
        mesh.cli(&["debug", "-duration", "1s", "-interval", "1s", "-output", name.to_str().expect("text")]).await;
    assert_eq!(again.code, 2, "{again}");

    let mut following = begin(&mesh, &["monitor", "-log-level", "info"]);
    eventually("lines come", async || {
        following.expect_running()?;
        let _ = mesh.cli(&["reload"]).await;
        anyhow::ensure!(!following.log().is_empty(), "none yet");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_makes_auth_methods_and_logs_in_by_them() {
    let program = Program::Server("acl_default_policy = \"deny\"\n".to_owned());
    let mesh = Mesh::start(MeshOptions { program, ..MeshOptions::default() }).await;
    let root = mesh.cli(&["acl", "bootstrap", "-o", "json"]).await.success().json();
    let root = root["SecretID"].as_str().expect("a secret").to_owned();
    let says = async |arguments: &[&str]| mesh.cli(&[arguments, &["-token", &root]].concat()).await.success();
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let key = rcgen::KeyPair::generate().expect("a key");
    let config = json!({
        "JWTValidationPubKeys": [key.public_key_pem()], "JWTSupportedAlgs": ["ES256"], "ClaimMappings": {"sub": "name"},
    });
    std::fs::write(file("config"), config.to_string()).expect("written");
    let config = format!("@{}", file("config"));
    let _ = says(&[
        "acl",
        "auth-method",
        "create",
        "-name",
        "ci",
        "-type",
        "jwt",
        "-max-token-ttl",
        "5m",
        "-config",
        &config,
    ])
    .await;
    let _ = says(&["acl", "auth-method", "update", "-name", "ci", "-description", "of builds"]).await;
    let read = says(&["acl", "auth-method", "read", "-name", "ci"]).await.stdout;
    assert!(read.contains("of builds") && read.contains("ES256"), "{read}");
    let rule = ["acl", "binding-rule", "create", "-method", "ci", "-bind-type", "service"];
    let made = says(&[&rule[..], &["-bind-name", "${value.name}", "-o", "json"]].concat()).await.json();
    let id = made["ID"].as_str().expect("an id").to_owned();
    let changed = ["acl", "binding-rule", "update", "-id", &id, "-selector", "value.name != root"];
    assert!(says(&changed).await.stdout.contains("value.name != root"));
    assert!(says(&["acl", "binding-rule", "list", "-method", "ci"]).await.stdout.contains(&id));

    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("a clock").as_secs();
    let signed = |sub: &str| {
        let key = EncodingKey::from_ec_pem(key.serialize_pem().as_bytes()).expect("a key");
        let claims = json!({"sub": sub, "iat": now, "exp": now + 60});
        encode::<Value>(&Header::new(Algorithm::ES256), &claims, &key).expect("signed")
    };
    let login = async |sub: &str| {
        std::fs::write(file("jwt"), signed(sub)).expect("written");
        let flags = ["-bearer-token-file", &file("jwt"), "-token-sink-file", &file("token")].map(str::to_owned);
        let arguments =
            [&["login", "-method", "ci", "-meta", "job=1"][..], &flags.each_ref().map(String::as_str)].concat();
        mesh.cli(&arguments).await
    };
    let refused = login("root").await;
    assert!(refused.code == 1 && refused.stderr.contains("no binding rule"), "{refused}");
    assert_eq!(login("web").await.code, 0);
    let token = std::fs::read_to_string(file("token")).expect("the token");
    let own = mesh.cli(&["acl", "token", "read", "-self", "-token", &token]).await.success().stdout;
    assert!(own.contains("web") && own.contains("ci") && own.contains("job"), "{own}");
    assert_eq!(mesh.cli(&["logout", "-token", &token]).await.code, 0);
    assert_eq!(mesh.cli(&["acl", "token", "read", "-self", "-token", &token]).await.code, 1);
    let _ = says(&["acl", "binding-rule", "delete", "-id", &id]).await;
    let _ = says(&["acl", "auth-method", "delete", "-name", "ci"]).await;
    assert!(!says(&["acl", "auth-method", "list"]).await.stdout.contains("ci"));
}
