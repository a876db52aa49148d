//! A node that was away until its certificate had expired: it serves its own, says what is to be done, and is let in again
//! by a token that is good.

use std::fs;

use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType, date_time_ymd};
use starling_e2e::{Mesh, MeshOptions, Program, eventually};

use crate::apart::{connected, node, token};

/// Waits until an agent has something to start from without a server; it writes it every few seconds.
async fn kept(agent: &Mesh) {
    eventually("what was heard is kept", async || Ok(fs::metadata(agent.data_dir().join("agent/replica"))?)).await;
}

/// Puts in place of an agent's certificate one that the same CA would have issued years ago.
async fn expire(agent: &Mesh, server: &Mesh, node: &str) {
    let pem = |name: &str| fs::read_to_string(server.data_dir().join("ca").join(name)).expect("a file of the CA");
    let key = KeyPair::from_pem(&pem("root.key")).expect("the CA's key");
    let issuer = Issuer::from_ca_cert_pem(&pem("root.pem"), key).expect("the CA");
    let roots = server.get("/v1/connect/ca/roots").await.success().json();
    let trust_domain = roots["TrustDomain"].as_str().expect("a trust domain");
    let uri = format!("spiffe://{trust_domain}/agent/client/dc/dc1/id/{node}");
    let mut leaf = CertificateParams::default();
    leaf.subject_alt_names = vec![SanType::URI(uri.try_into().expect("an ASCII URI"))];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    (leaf.not_before, leaf.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2020, 1, 4));
    let identity = agent.data_dir().join("agent/identity");
    // Its own key: the servers know the node by it.
    let key = fs::read_to_string(identity.join("key.pem")).expect("its key");
    let key = KeyPair::from_pem(&key).expect("a key");
    let certificate = leaf.signed_by(&key, &issuer).expect("a certificate");
    fs::write(identity.join("cert.pem"), certificate.pem()).expect("written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_certificate_expired_says_what_to_do_and_joins_again_by_a_good_token() {
    let program = Program::Server("node_grace = \"1s\"\n".to_owned());
    let server = Mesh::start(MeshOptions { program, ..MeshOptions::default() }).await;
    let (once, reusable) = (token(&server, &[]).await, token(&server, &["--reusable"]).await);
    let mut stranded = Mesh::start(node(&server, "n1", Some(&once))).await;
    let mut welcome = Mesh::start(node(&server, "n2", Some(&reusable))).await;
    for (agent, name) in [(&mut stranded, "n1"), (&mut welcome, "n2")] {
        kept(agent).await;
        agent.kill9();
        connected(&server, name, false).await;
        expire(agent, &server, name).await;
        agent.restart().await;
    }
    connected(&server, "n2", true).await;

    // The other's token was for once. It serves what it kept, and its log says the rest.
    let log = stranded.server().log();
    assert!(log.contains("has expired") && log.contains("starling token create --join"), "{log}");
    assert!(log.contains("was for one node and node n1 has used it"), "{log}");
    let roots = stranded.get("/v1/connect/ca/roots").await.success().json();
    assert_eq!(roots["Roots"].as_array().map(Vec::len), Some(1), "{roots}");
    connected(&server, "n1", false).await;
}
