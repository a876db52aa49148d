//! Consul's `dns_config` and the token for DNS, from a configuration file to what is answered at the socket.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use starling_e2e::{Process, bare, eventually, free_port, http as client, tools};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// For an answer to come.
const TIME_MAX: Duration = Duration::from_secs(20);

pub(crate) const A: u8 = 1;
const SOA: u8 = 6;

pub(crate) const REFUSED: u8 = 5;
pub(crate) const NXDOMAIN: u8 = 3;

/// What matters of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) code: u8,
    truncated: bool,
    answers: u16,
    /// Of the first record, whatever section it is in; 0 without one.
    ttl_s: u32,
}

fn question(name: &str, kind: u8) -> Vec<u8> {
    let mut query = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(u8::try_from(label.len()).expect("a short label"));
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, kind, 0, 1]);
    query
}

fn read(question: &[u8], answer: &[u8]) -> Answer {
    let number = |at: usize| u16::from_be_bytes([answer[at], answer[at + 1]]);
    assert_eq!(number(0), 7, "of another question");
    // Behind the question: a name, which is a pointer or written out, type and class, the TTL.
    let mut at = question.len();
    let ttl_s = if answer.len() > at {
        while answer[at] != 0 && answer[at] < 0xc0 {
            at += usize::from(answer[at]) + 1;
        }
        at += if answer[at] == 0 { 1 } else { 2 };
        u32::from_be_bytes(answer[at + 4..at + 8].try_into().expect("four bytes"))
    } else {
        0
    };
    Answer { code: answer[3] & 0xf, truncated: answer[2] & 2 != 0, answers: number(6), ttl_s }
}

pub(crate) async fn over_udp(port: u16, name: &str, kind: u8) -> anyhow::Result<Answer> {
    let question = question(name, kind);
    let socket = UdpSocket::bind("127.0.0.1:0").await?;
    // So that nobody's port is told at once.
    socket.connect(("127.0.0.1", port)).await?;
    socket.send(&question).await?;
    let mut answer = vec![0; 512];
    let received = tokio::time::timeout(TIME_MAX, socket.recv(&mut answer)).await??;
    Ok(read(&question, &answer[..received]))
}

async fn over_tcp(port: u16, name: &str, kind: u8) -> anyhow::Result<Answer> {
    let question = question(name, kind);
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_u16(u16::try_from(question.len())?).await?;
    stream.write_all(&question).await?;
    let mut answer = vec![0; usize::from(tokio::time::timeout(TIME_MAX, stream.read_u16()).await??)];
    tokio::time::timeout(TIME_MAX, stream.read_exact(&mut answer)).await??;
    Ok(read(&question, &answer))
}

fn consul(folder: &Path, config: &Value) -> Process {
    let (link, file) = (folder.join("consul"), folder.join("config.json"));
    std::os::unix::fs::symlink(tools::starling(), &link).expect("a link");
    std::fs::write(&file, config.to_string()).expect("written");
    let mut command = Command::new(link);
    bare(&mut command);
    command.args(["agent", "-dev", "-config-file"]).arg(file);
    Process::spawn("consul", command)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_dns_config_says_is_answered_and_by_the_token_that_is_given() {
    let folder = tempfile::tempdir().expect("a folder");
    let [http, dns, grpc, grpc_tls] = [(); 4].map(|()| free_port());
    let instances = (0..5).map(|number| {
        json!({"name": "web", "id": format!("web-{number}"), "address": format!("10.0.0.{number}"),
        "port": 80, "check": {"ttl": "1h", "status": if number == 0 { "warning" } else { "passing" }}})
    });
    let config = json!({
        "node_name": "n1", "bind_addr": "127.0.0.1",
        "ports": {"http": http, "dns": dns, "grpc": grpc, "grpc_tls": grpc_tls},
        "acl": {"enabled": true, "default_policy": "deny",
            "tokens": {"initial_management": "root", "default": "asks", "dns": "resolves"}},
        "dns_config": {"only_passing": true, "node_ttl": "1m", "service_ttl": {"*": "5s", "web*": "30s"}, "enable_truncate": true,
            "udp_answer_limit": 3, "soa": {"min_ttl": 9}, "recursor_timeout": "2s"},
        "services": instances.collect::<Vec<_>>(),
    });
    let mut agent = consul(folder.path(), &config);
    let api = format!("127.0.0.1:{http}");
    eventually("nobody has the token, so nobody is answered", async || {
        agent.expect_running()?;
        anyhow::ensure!(over_udp(dns, "web.service.consul", A).await?.code == REFUSED);
        Ok(())
    })
    .await;
    let root = [("x-consul-token", "root")];
    let put = async |target: &str, body: Value| {
        client::request(Method::PUT, &api, target, &root, body.to_string()).await.expect("an answer").success()
    };
    let rules = "service \"web\" { policy = \"read\" } node_prefix \"\" { policy = \"read\" }";
    let _ = put("/v1/acl/policy", json!({"Name": "web", "Rules": rules})).await;
    // A secret is a UUID where it is made by the API, so the given one is told to the agent.
    let made = put("/v1/acl/token", json!({"Policies": [{"Name": "web"}]})).await.json();
    let _ = put("/v1/agent/token/dns", json!({"Token": made["SecretID"]})).await;

    let web = over_udp(dns, "web.service.consul", A).await.expect("an answer");
    assert_eq!(web, Answer { code: 0, truncated: true, answers: 3, ttl_s: 30 });
    let web = over_tcp(dns, "WEB.service.consul", A).await.expect("an answer");
    assert_eq!(web, Answer { code: 0, truncated: false, answers: 4, ttl_s: 30 }, "one of five warns");
    let node = over_udp(dns, "n1.node.consul", A).await.expect("an answer");
    assert_eq!(node, Answer { code: 0, truncated: false, answers: 1, ttl_s: 60 });
    let nobody = over_udp(dns, "gone.service.consul", A).await.expect("an answer");
    assert_eq!((nobody.code, nobody.ttl_s), (NXDOMAIN, 9));
    assert_eq!(over_udp(dns, "consul", SOA).await.expect("an answer").ttl_s, 9);
    let hidden = over_udp(dns, "consul.service.consul", A).await.expect("an answer");
    assert_eq!(hidden.code, NXDOMAIN, "the token may not see it");

    // Without a token for DNS it is the default one, and without that nobody's.
    let _ = put("/v1/agent/token/dns", json!({"Token": ""})).await;
    assert_eq!(over_udp(dns, "web.service.consul", A).await.expect("an answer").code, REFUSED, "nobody has \"asks\"");
    let _ = put("/v1/agent/token/default", json!({"Token": "root"})).await;
    assert_eq!(over_udp(dns, "consul.service.consul", A).await.expect("an answer").code, 0);
    let _ = put("/v1/agent/token/default", json!({"Token": ""})).await;
    assert_eq!(over_udp(dns, "web.service.consul", A).await.expect("an answer").code, NXDOMAIN);

    // A token that is taken away is of no use at once.
    let _ = put("/v1/agent/token/dns", json!({"Token": made["SecretID"]})).await;
    assert_eq!(over_udp(dns, "web.service.consul", A).await.expect("an answer").code, 0);
    let accessor = format!("/v1/acl/token/{}", made["AccessorID"].as_str().expect("text"));
    let _ = client::request(Method::DELETE, &api, &accessor, &root, "").await.expect("an answer").success();
    assert_eq!(over_udp(dns, "web.service.consul", A).await.expect("an answer").code, REFUSED);
    let log = agent.log();
    assert!(log.contains("dns_config.recursor_timeout: is a setting of Consul's that has no effect here"), "{log}");
    assert!(log.contains("questions over DNS are refused"), "{log}");
    assert!(!log.contains("dns_config.node_ttl") && !log.contains("acl.tokens.dns:"), "{log}");
}
