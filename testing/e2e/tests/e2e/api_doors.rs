//! The HTTP API over TLS and at a Unix socket, as Consul's configuration asks for them, and as clients find them.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use serde_json::json;

use starling_e2e::{Method, Process, bare, cli, eventually, free_port, http as http_client, tools};

/// A CA and certificates of it, in files.
struct Authority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(folder: &Path) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.clone().self_signed(&key).expect("a root");
        std::fs::write(folder.join("ca.pem"), root.pem()).expect("written");
        Self { folder: folder.to_owned(), issuer: Issuer::new(params, key) }
    }

    /// A certificate and a key for a name; answers the certificate's serial number, by which it is told from others.
    fn issue(&self, file: &str, name: &str) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        std::fs::write(self.path(&format!("{file}.key")), key.serialize_pem()).expect("written");
        std::fs::write(self.path(&format!("{file}.crt")), certificate.pem()).expect("written");
    }

    fn path(&self, file: &str) -> String {
        self.folder.join(file).to_str().expect("text").to_owned()
    }
}

fn named_consul(folder: &Path, arguments: &[&str]) -> Command {
    let link = folder.join("consul");
    if !link.exists() {
        symlink(tools::starling(), &link).expect("a link");
    }
    let mut command = Command::new(link);
    bare(&mut command);
    command.args(arguments);
    command
}

async fn client(arguments: &[&str]) -> cli::Output {
    let mut command = Command::new(tools::starling());
    bare(&mut command);
    command.args(["status"]).args(arguments);
    cli::run_within(command, Duration::from_secs(20)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_is_served_at_a_socket_and_over_tls_and_to_nobody_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let ca = Authority::new(folder.path());
    for (file, name) in [("server", "mesh.test"), ("client", "client.test")] {
        ca.issue(file, name);
    }
    let socket = folder.path().join("api.sock");
    // What a process that was killed has left is no obstacle.
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("a socket"));
    let [http, https, dns, grpc, grpc_tls] = [(); 5].map(|()| free_port());
    let config = json!({
        "node_name": "n1", "bind_addr": "127.0.0.1",
        "addresses": {"http": format!("unix://{}", socket.display())}, "unix_sockets": {"mode": "0660"},
        "ports": {"http": http, "https": https, "dns": dns, "grpc": grpc, "grpc_tls": grpc_tls},
        "tls": {"defaults": {"ca_file": ca.path("ca.pem"), "cert_file": ca.path("server.crt"), "key_file": ca.path("server.key"),
            "verify_incoming": true}},
    });
    let file = folder.path().join("config.json");
    std::fs::write(&file, config.to_string()).expect("written");
    let arguments = ["agent", "-dev", "-config-file", file.to_str().expect("text")];
    let mut agent = Process::spawn("consul", named_consul(folder.path(), &arguments));

    let unix = format!("unix://{}", socket.display());
    eventually("it answers at the socket", async || {
        agent.expect_running()?;
        let output = client(&["--http-addr", &unix]).await;
        anyhow::ensure!(output.code == 0, "{}", output.stderr);
        Ok(())
    })
    .await;
    let mode = std::fs::metadata(&socket).expect("the socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let plain = client(&["--http-addr", &format!("127.0.0.1:{http}")]).await;
    assert!(plain.code != 0, "no port is open in plaintext: {}", plain.stdout);

    let url = format!("https://127.0.0.1:{https}");
    let (root, cert, key) = (ca.path("ca.pem"), ca.path("client.crt"), ca.path("client.key"));
    let server = ["--http-addr", &url, "--ca-file", &root, "--tls-server-name", "mesh.test"];
    let shown = [&server[..], &["--client-cert", &cert, "--client-key", &key]].concat();
    let known = client(&shown).await;
    assert!(known.code == 0, "{}", known.stderr);
    let unknown = client(&server).await;
    assert!(unknown.code != 0, "whoever shows no certificate is sent away: {}", unknown.stdout);
    assert!(unknown.stderr.contains("--client-cert"), "{}", unknown.stderr);
    let mut by_variables = named_consul(folder.path(), &["kv", "put", "tls/a", "1"]);
    by_variables.envs([
        ("CONSUL_HTTP_ADDR", &url),
        ("CONSUL_CACERT", &root),
        ("CONSUL_CLIENT_CERT", &cert),
        ("CONSUL_CLIENT_KEY", &key),
    ]);
    by_variables.env("CONSUL_TLS_SERVER_NAME", "mesh.test");
    let written = cli::run_within(by_variables, Duration::from_secs(20)).await;
    assert_eq!(written.code, 0, "{}", written.stderr);

    // Another certificate is shown as soon as it is there.
    ca.issue("server", "other.test");
    eventually("the other certificate is shown", async || {
        let mut renamed = shown.clone();
        renamed[5] = "other.test";
        let output = client(&renamed).await;
        anyhow::ensure!(output.code == 0, "{}", output.stderr);
        Ok(())
    })
    .await;
    drop(agent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_are_heard_from_the_networks_that_are_said_and_closed_paths_by_nobody() {
    let folder = tempfile::tempdir().expect("a folder");
    for (networks, hears) in [(json!(["10.0.0.0/8"]), false), (json!(["10.0.0.0/8", "127.0.0.1/8"]), true)] {
        let [http, dns, grpc, grpc_tls] = [(); 4].map(|()| free_port());
        let config = json!({
            "node_name": "n1", "bind_addr": "127.0.0.1",
            "ports": {"http": http, "dns": dns, "grpc": grpc, "grpc_tls": grpc_tls},
            "http_config": {"allow_write_http_from": networks, "block_endpoints": ["/v1/event"]},
        });
        let file = folder.path().join("config.json");
        std::fs::write(&file, config.to_string()).expect("written");
        let arguments = ["agent", "-dev", "-config-file", file.to_str().expect("text")];
        let mut agent = Process::spawn("consul", named_consul(folder.path(), &arguments));
        let api = format!("127.0.0.1:{http}");
        eventually("reads are answered", async || {
            agent.expect_running()?;
            anyhow::ensure!(http_client::get(&api, "/v1/status/leader").await?.status == 200);
            Ok(())
        })
        .await;
        for (method, target, is_heard) in [
            (Method::PUT, "/v1/kv/a", hears),
            (Method::DELETE, "/v1/kv/a", hears),
            (Method::GET, "/v1/agent/self", true),
            (Method::GET, "/v1/event/list", false),
        ] {
            let answer = http_client::request(method.clone(), &api, target, &[], "1").await.expect("an answer");
            let text = answer.text();
            assert_eq!(answer.status, if is_heard { 200 } else { 403 }, "{networks}: {method} {target}: {text}");
            assert!(is_heard || text.contains("this agent's configuration"), "{text}");
        }
        assert!(agent.end_with(Signal::SIGTERM, Duration::from_secs(30)).success());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_door_that_cannot_be_opened_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let ca = Authority::new(folder.path());
    ca.issue("server", "mesh.test");
    ca.issue("other", "other.test");
    let file = folder.path().join("file");
    std::fs::write(&file, "mine").expect("written");
    let (cert, key, other) = (ca.path("server.crt"), ca.path("server.key"), ca.path("other.key"));
    let at = ["--https-addr", "127.0.0.1:0", "--https-cert-file", &cert];
    for (arguments, reason) in [
        (vec!["--http-socket", file.to_str().expect("text")], "no socket"),
        (vec!["--http-socket", "/nowhere/at/all"], "--http-socket"),
        (vec!["--http-socket-mode", "0600"], "--http-socket"),
        (vec!["--http-socket", "x", "--http-socket-mode", "rw"], "octal"),
        (vec!["--http-socket", "x", "--http-socket-user", "nobody-is-called-so"], "no user"),
        (vec!["--https-addr", "127.0.0.1:0"], "--https-cert-file"),
        ([&at[..], &["--https-key-file", &other]].concat(), "not of this private key"),
        ([&at[..], &["--https-key-file", file.to_str().expect("text")]].concat(), "no private key"),
        (
            [&at[..], &["--https-key-file", &key, "--https-client-ca-file", file.to_str().expect("text")]].concat(),
            "the CA of callers",
        ),
    ] {
        let mut command = Command::new(tools::starling());
        bare(&mut command);
        command.current_dir(folder.path()).arg("dev");
        for flag in ["--http-addr", "--grpc-addr", "--grpc-tls-addr", "--dns-addr"] {
            command.args([flag, "127.0.0.1:0"]);
        }
        command.args(&arguments);
        let output = cli::run_within(command, Duration::from_secs(20)).await;
        assert!(output.code == 2 && output.stderr.contains(reason), "{arguments:?}: {}", output.stderr);
    }
    assert_eq!(std::fs::read_to_string(&file).expect("there"), "mine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_its_own_is_enough_for_https_where_it_is_what_the_caller_trusts() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec!["mesh.test".to_owned()]).expect("a name");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    std::fs::write(path("own.crt"), params.self_signed(&key).expect("signed").pem()).expect("written");
    std::fs::write(path("own.key"), key.serialize_pem()).expect("written");
    let [http, https, dns, grpc, grpc_tls] = [(); 5].map(|()| free_port());
    let config = json!({
        "client_addr": "127.0.0.1 127.0.0.2", "ports": {"http": http, "https": https, "dns": dns, "grpc": grpc, "grpc_tls": grpc_tls},
        "tls": {"defaults": {"tls_min_version": "TLSv1_3", "cert_file": path("own.crt"), "key_file": path("own.key")}},
    });
    std::fs::write(path("config.json"), config.to_string()).expect("written");
    let mut agent =
        Process::spawn("consul", named_consul(folder.path(), &["agent", "-dev", "-config-file", &path("config.json")]));
    let (url, own) = (format!("https://127.0.0.2:{https}"), path("own.crt"));
    let trusting = |name: &'static str| {
        let arguments = ["--http-addr", &url, "--ca-file", &own, "--tls-server-name", name].map(str::to_owned);
        async move { client(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await }
    };
    eventually("the certificate is believed", async || {
        agent.expect_running()?;
        let output = trusting("mesh.test").await;
        anyhow::ensure!(output.code == 0, "{}", output.stderr);
        Ok(())
    })
    .await;
    let other = trusting("other.test").await;
    assert!(other.code != 0, "a name that it has not: {}", other.stdout);
    for address in ["127.0.0.1", "127.0.0.2"] {
        let plain = client(&["--http-addr", &format!("{address}:{http}")]).await;
        assert!(plain.code == 0, "{address}: {}", plain.stderr);
    }
    drop(agent);
}
