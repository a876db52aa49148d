//! Agents apart from the servers, under the name of Consul: who is of the mesh, how one leaves it, and with whose rights agents are asked.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use starling_e2e::cli::{self, Output};
use starling_e2e::etcd::Etcd;
use starling_e2e::{Mesh, MeshOptions, Process, Program, bare, eventually, free_port, http, tools};
use tempfile::TempDir;

use crate::dns_settings::{A, NXDOMAIN, REFUSED, over_udp};

/// For an agent to end. What it has to say to a server may take ten seconds of it.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Serf's numbers.
const ALIVE: u64 = 1;
const LEFT: u64 = 3;
const FAILED: u64 = 4;

/// An agent that is no server.
struct Agent {
    process: Process,
    api: String,
    dns: u16,
    folder: TempDir,
}

impl Agent {
    /// Starts one, and waits until the servers know its node; `more` is of its configuration, `root` the token by which that is seen.
    async fn start(server: &Mesh, token: &str, name: &str, more: &Value, root: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        symlink(tools::starling(), folder.path().join("consul")).expect("a link");
        std::fs::write(folder.path().join("token"), token).expect("written");
        let [http, dns, grpc] = [(); 3].map(|()| free_port());
        let mut config = json!({
            "node_name": name, "data_dir": folder.path().join("data"), "retry_join": [server.addresses.grpc_tls],
            "ports": {"http": http, "dns": dns, "grpc": grpc},
        });
        let given = more.as_object().expect("an object").clone();
        config.as_object_mut().expect("an object").extend(given);
        std::fs::write(folder.path().join("agent.json"), config.to_string()).expect("written");
        let process = Process::spawn(name, Self::command(&folder));
        let mut agent = Self { process, api: format!("127.0.0.1:{http}"), dns, folder };
        agent.known(server, name, root).await;
        agent
    }

    /// Starts it again, with what it had.
    async fn restart(&mut self, server: &Mesh, name: &str) {
        self.process = Process::spawn(name, Self::command(&self.folder));
        self.known(server, name, "").await;
    }

    fn command(folder: &TempDir) -> Command {
        let mut command = Command::new(folder.path().join("consul"));
        bare(&mut command);
        command.args(["agent", "-config-file"]).arg(folder.path().join("agent.json"));
        command.arg("-join-token-file").arg(folder.path().join("token"));
        command
    }

    /// Until it answers and its node is alive for the servers.
    async fn known(&mut self, server: &Mesh, name: &str, root: &str) {
        let (own, theirs) = (format!("/v1/agent/self?token={root}"), format!("/v1/health/node/{name}?token={root}"));
        eventually(&format!("{name} is of the mesh"), async || {
            self.process.expect_running()?;
            let answer = http::get(&self.api, &own).await?;
            anyhow::ensure!(answer.status == 200, "{}", answer.text());
            let checks = server.get(&theirs).await.json();
            let alive = checks.as_array().into_iter().flatten().find(|check| check["CheckID"] == "serfHealth");
            anyhow::ensure!(alive.is_some_and(|check| check["Status"] == "passing"), "{checks}");
            Ok(())
        })
        .await;
    }

    /// Runs a command of Consul's line that asks it.
    async fn says(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(self.folder.path().join("consul"));
        bare(&mut command);
        command.args(arguments).env("CONSUL_HTTP_ADDR", &self.api);
        cli::run(command).await
    }

    fn end_with(&mut self, signal: Signal) -> ExitStatus {
        self.process.end_with(signal, TIME_MAX)
    }
}

/// Waits until members are these, asked for at `api`.
async fn members(api: &str, target: &str, expected: &[(&str, u64)]) {
    let expected: BTreeMap<_, _> = expected.iter().map(|(name, status)| ((*name).to_owned(), *status)).collect();
    eventually(&format!("{target} of {api} is {expected:?}"), async || {
        let answer = http::get(api, target).await?;
        anyhow::ensure!(answer.status == 200, "{}", answer.text());
        let listed = answer.json();
        let listed: BTreeMap<_, _> = listed
            .as_array()
            .into_iter()
            .flatten()
            .map(|member| {
                (member["Name"].as_str().unwrap_or_default().to_owned(), member["Status"].as_u64().unwrap_or(0))
            })
            .collect();
        anyhow::ensure!(listed == expected, "{listed:?}");
        Ok(())
    })
    .await;
}

const MEMBERS: &str = "/v1/agent/members";

/// What the servers have of a node.
async fn node(server: &Mesh, name: &str) -> Value {
    server.get(&format!("/v1/catalog/node/{name}")).await.success().json()
}

async fn server(settings: &str) -> Mesh {
    let program = Program::Server(settings.to_owned());
    Mesh::start(MeshOptions { program, name: Some("s1"), ..MeshOptions::default() }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_asked_to_leave_leaves_alone_and_is_listed_as_left() {
    let mut server = server("node_grace = \"3s\"\n").await;
    let token = crate::apart::token(&server, &["--reusable"]).await;
    let web = json!({"services": [{"name": "web", "port": 80, "check": {"ttl": "1h", "status": "passing"}}]});
    let (stays, told) = (json!({"skip_leave_on_interrupt": true}), json!({"leave_on_terminate": false}));
    let (mut c1, mut c2, mut c3, mut c4) = tokio::join!(
        Agent::start(&server, &token, "c1", &web, ""),
        Agent::start(&server, &token, "c2", &web, ""),
        Agent::start(&server, &token, "c3", &stays, ""),
        Agent::start(&server, &token, "c4", &told, ""),
    );
    let all_alive = [("c1", ALIVE), ("c2", ALIVE), ("c3", ALIVE), ("c4", ALIVE), ("s1", ALIVE)];
    for api in [&c4.api, &c1.api, &server.addresses.http] {
        members(api, MEMBERS, &all_alive).await;
    }
    members(&c4.api, "/v1/agent/members?wan=1", &[("s1.dc1", ALIVE)]).await;
    let shown = http::get(&c4.api, MEMBERS).await.expect("an answer").success().json();
    assert_eq!(
        (&shown[0]["Name"], &shown[0]["Port"], &shown[0]["Tags"]["role"]),
        (&json!("c1"), &json!(8301), &json!("node"))
    );
    assert_eq!((&shown[4]["Tags"]["role"], &shown[4]["Tags"]["dc"]), (&json!("consul"), &json!("dc1")));

    // As Consul's, a lock hides how its command ended unless it is asked, and then says no more than that it failed.
    for (arguments, code) in [(&["lock", "job", "exit 3"][..], 0), (&["lock", "-child-exit-code", "job", "exit 3"], 2)]
    {
        assert_eq!(c4.says(arguments).await.code, code, "{arguments:?}");
    }

    // By its API, which nobody else obeys.
    let said = c2.says(&["leave"]).await.success();
    assert!(said.stdout.contains("Graceful leave"), "{said}");
    let ended = eventually("the agent that was asked ends", async || {
        c2.process.ended().ok_or_else(|| anyhow::anyhow!("it runs"))
    })
    .await;
    assert!(ended.success(), "{ended}");
    assert_eq!(node(&server, "c2").await, Value::Null);
    let served = async || server.get("/v1/catalog/service/web").await.success().json();
    let of = served().await;
    assert!(of[0]["Node"] == "c1" && of[1] == Value::Null, "{of}");
    members(&c4.api, MEMBERS, &[("c1", ALIVE), ("c2", LEFT), ("c3", ALIVE), ("c4", ALIVE), ("s1", ALIVE)]).await;

    // By the signals, as their settings say.
    assert!(c1.end_with(Signal::SIGTERM).success());
    assert_eq!(node(&server, "c1").await, Value::Null);
    members(&c4.api, MEMBERS, &[("c1", LEFT), ("c2", LEFT), ("c3", ALIVE), ("c4", ALIVE), ("s1", ALIVE)]).await;
    assert!(c3.end_with(Signal::SIGINT).success());
    members(&c4.api, MEMBERS, &[("c1", LEFT), ("c2", LEFT), ("c3", FAILED), ("c4", ALIVE), ("s1", ALIVE)]).await;
    assert_ne!(node(&server, "c3").await, Value::Null, "it is waited for");

    // Who comes back is there with all it had; Ctrl-C has it leave again.
    c1.restart(&server, "c1").await;
    eventually("what it had is registered again", async || {
        let of = served().await;
        anyhow::ensure!(of[0]["Node"] == "c1", "{of}");
        Ok(())
    })
    .await;
    assert!(c1.end_with(Signal::SIGINT).success());
    assert_eq!(node(&server, "c1").await, Value::Null);

    listed_by_the_command(&server, &c4).await;

    // With nobody to ask it is there itself, and ends in time.
    server.kill9();
    members(&c4.api, MEMBERS, &[("c4", ALIVE)]).await;
    assert_eq!(c4.says(&["leave"]).await.success().code, 0);
    let ended = eventually("it ends though no server hears of it", async || {
        c4.process.ended().ok_or_else(|| anyhow::anyhow!("it runs"))
    })
    .await;
    assert!(ended.success(), "{ended}");
    assert!(c4.process.log().contains("no server was told that this node leaves"), "{}", c4.process.log());
}

/// c1 and c2 have left, c3 has failed; it is taken out and forgotten.
async fn listed_by_the_command(server: &Mesh, asked: &Agent) {
    let names = async |arguments: &[&str]| {
        let said = asked.says(&[&["members"], arguments].concat()).await.success().stdout;
        said.lines().skip(1).filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(names(&["-status=left"]).await, ["c1", "c2"]);
    assert_eq!(names(&["-status", "left|failed"]).await, ["c1", "c2", "c3"]);
    assert_eq!(names(&["-wan"]).await, ["s1.dc1"]);
    assert_eq!(names(&["-filter", "Tags.role == \"consul\""]).await, ["s1"]);
    // Nodes have no right to take out others.
    let _ = server.cli(&["force-leave", "c3"]).await.success();
    assert_eq!(names(&["-status=left"]).await, ["c1", "c2", "c3"]);
    let _ = server.cli(&["force-leave", "-prune", "c3"]).await.success();
    assert_eq!(names(&[]).await, ["c1", "c2", "c4", "s1"]);
    assert_eq!(server.cli(&["force-leave", "-prune", "c3"]).await.code, 1, "nobody knows of it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_has_left_every_server_directly_or_behind_a_relay_and_may_come_back() {
    let etcd = Etcd::start().await;
    let named = async |name: &'static str| {
        let program = Program::Server("node_grace = \"3s\"\n".to_owned());
        Mesh::start(MeshOptions { program, store: Some(etcd.store()), name: Some(name), ..MeshOptions::default() })
            .await
    };
    let (s1, s2) = (named("s1").await, named("s2").await);
    let token = crate::apart::token(&s1, &["--relay"]).await;
    let join = [&s1, &s2].map(|server| server.addresses.grpc_tls.as_str()).join(",");
    let program = Program::Relay { name: "r1".to_owned(), join, token: Some(token) };
    let relay = Mesh::start(MeshOptions { program, ..MeshOptions::default() }).await;
    let mut direct = crate::streams::agent("n1", &[&s1, &s2]).await;
    let program = Program::Agent {
        node: "n2".to_owned(),
        server: relay.addresses.grpc_tls.clone(),
        token: Some(crate::apart::token(&s1, &[]).await),
    };
    let mut behind = Mesh::start(MeshOptions { program, ..MeshOptions::default() }).await;
    let are = async |status: u64| {
        for server in [&s1, &s2] {
            let expected = [("n1", status), ("n2", status), ("s1", ALIVE), ("s2", ALIVE)];
            members(&server.addresses.http, MEMBERS, &expected).await;
        }
    };
    are(ALIVE).await;
    for agent in [&mut direct, &mut behind] {
        let _ = agent.put("/v1/agent/leave", &json!({})).await.success();
        let process = agent.server();
        let ended =
            eventually("the agent ends", async || process.ended().ok_or_else(|| anyhow::anyhow!("it runs"))).await;
        assert!(ended.success(), "{ended}");
        assert!(process.log().contains("this node has left the mesh"), "{}", process.log());
    }
    are(LEFT).await;
    assert_eq!((node(&s2, "n1").await, node(&s2, "n2").await), (Value::Null, Value::Null));
    direct.restart().await;
    behind.restart().await;
    are(ALIVE).await;
}

/// A mesh in which nothing is allowed, its root token, and one by which agents join.
async fn closed() -> (Mesh, String, String) {
    let server = server("acl_default_policy = \"deny\"\n").await;
    let root = server.put("/v1/acl/bootstrap", &json!({})).await.success().json();
    let root = root["SecretID"].as_str().expect("a secret").to_owned();
    let join = server
        .cli(&["token", "create", "--join", "--reusable", "--services", "*", "--token", &root])
        .await
        .success()
        .stdout;
    (server, root, join.trim().to_owned())
}

async fn token(server: &Mesh, root: &str, body: Value) -> String {
    let made = server.put(&format!("/v1/acl/token?token={root}"), &body).await.success().json();
    made["SecretID"].as_str().expect("a secret").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_runs_by_the_identity_of_its_service_alone() {
    let (server, root, join) = closed().await;
    let identity = token(&server, &root, json!({"ServiceIdentities": [{"ServiceName": "web"}]})).await;
    let port = free_port();
    let web = json!({"services": [{"name": "web", "port": 80, "connect": {"sidecar_service": {"port": port}}}],
        "acl": {"enabled": true, "default_policy": "deny"}});
    let agent = Agent::start(&server, &join, "c1", &web, &root).await;
    let place = "/starling/v1/agent/xds";
    let status = async |target: &str, token: &str| {
        http::get(&agent.api, &format!("{target}?token={token}")).await.expect("an answer").status
    };
    assert_eq!(status("/v1/agent/self", &identity).await, 403, "it has no right on the agent");
    assert_eq!((status(place, &identity).await, status(place, "").await), (200, 403));

    let token = ["-token", &identity];
    let said = agent.says(&[&["connect", "envoy", "-sidecar-for", "web", "-bootstrap"], &token[..]].concat()).await;
    let bootstrap = said.success().json();
    assert_eq!(bootstrap["node"]["id"], "web-sidecar-proxy");
    assert!(bootstrap.to_string().contains(&identity), "Envoy shows it");
    let admin = format!("127.0.0.1:{}", free_port());
    let mut command = Command::new(agent.folder.path().join("consul"));
    bare(&mut command);
    command.args(["connect", "proxy", "-sidecar-for", "web", "-admin-bind", &admin, "-http-addr", &agent.api]);
    command.args(token).arg("-runtime-dir").arg(agent.folder.path().join("proxies"));
    let mut proxy = Process::spawn("proxy", command);
    eventually("the proxy serves its service", async || {
        proxy.expect_running()?;
        let config = http::get(&admin, "/config").await?.text();
        anyhow::ensure!(config.contains("# web-sidecar-proxy at revision"), "{config}");
        Ok(())
    })
    .await;
    starling_e2e::wait::listens(&[port]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dns_of_an_agent_answers_what_that_agents_tokens_may_read() {
    let (server, root, join) = closed().await;
    let reads = async |service: &str| {
        let rules = format!("service \"{service}\" {{ policy = \"read\" }} node_prefix \"\" {{ policy = \"read\" }}");
        let policy = json!({"Name": service, "Rules": rules});
        let _ = server.put(&format!("/v1/acl/policy?token={root}"), &policy).await.success();
        token(&server, &root, json!({"Policies": [{"Name": service}]})).await
    };
    let (web, db) = (reads("web").await, reads("db").await);
    let config = json!({"services": [{"name": "web", "port": 80}, {"name": "db", "port": 81}],
        "acl": {"enabled": true, "default_policy": "deny", "tokens": {"dns": web}}});
    let of_nobody = json!({});
    let of_default = json!({"acl": {"enabled": true, "default_policy": "deny", "tokens": {"default": db}}});
    let (c1, c2, c3) = tokio::join!(
        Agent::start(&server, &join, "c1", &config, &root),
        Agent::start(&server, &join, "c2", &of_default, &root),
        Agent::start(&server, &join, "c3", &of_nobody, &root),
    );
    let sees = async |agent: &Agent, web: bool, db: bool| {
        let codes = |seen: bool| if seen { 0 } else { NXDOMAIN };
        eventually(&format!("web is seen: {web}, db: {db}"), async || {
            for (name, seen) in [("web.service.consul", web), ("db.service.consul", db)] {
                let answer = over_udp(agent.dns, name, A).await?;
                anyhow::ensure!(answer.code == codes(seen), "{name}: {answer:?}");
            }
            Ok(())
        })
        .await;
    };
    sees(&c1, true, false).await;
    sees(&c2, false, true).await;
    sees(&c3, false, false).await;

    let set = async |agent: &Agent, kind: &str, secret: &str| {
        let _ = agent.says(&["acl", "set-agent-token", "-token", &root, kind, secret]).await.success();
    };
    set(&c1, "dns", &db).await;
    sees(&c1, false, true).await;
    set(&c1, "dns", "").await;
    sees(&c1, false, false).await;
    set(&c1, "default", &web).await;
    sees(&c1, true, false).await;
    set(&c3, "default", &db).await;
    sees(&c3, false, true).await;
    set(&c3, "dns", &web).await;
    sees(&c3, true, false).await;
    set(&c3, "dns", "5e3c2f0e-3f0b-4f0e-8b7f-0d8a3a0b1c2d").await;
    eventually("a token that nobody has sees nothing", async || {
        let refused = over_udp(c3.dns, "web.service.consul", A).await?;
        anyhow::ensure!(refused.code == REFUSED, "{refused:?}");
        Ok(())
    })
    .await;
}
