//! The CA that servers have in common: one root, sealed with the operator's key; and another in its place, under traffic.

use std::path::Path;

use nix::sys::signal::Signal;
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::version::TLS13;
use serde_json::{Value, json};
use starling_e2e::etcd::Etcd;
use starling_e2e::tls::{self, Credentials};
use starling_e2e::{Mesh, MeshOptions, Plane, Program, Seal, Traffic, Workload, eventually, new_seal_key};

use crate::apart::{agent, answered, connected, node, token};

/// Short, so that a server knows soon whom it has lost.
const SETTINGS: &str = "node_grace = \"1s\"\n";

fn on(etcd: &Etcd, seal: Seal) -> MeshOptions {
    MeshOptions {
        program: Program::Server(SETTINGS.to_owned()),
        store: Some(etcd.store()),
        seal,
        ..MeshOptions::default()
    }
}

fn embedded(seal: Seal) -> MeshOptions {
    MeshOptions { program: Program::Server(SETTINGS.to_owned()), seal, ..MeshOptions::default() }
}

/// The roots as Consul's API shows them: the one that signs, and all of them.
async fn roots(mesh: &Mesh) -> (String, Vec<String>) {
    let roots = mesh.get("/v1/connect/ca/roots").await.success().json();
    let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("no text: {roots}")).to_owned();
    let all = roots["Roots"].as_array().expect("roots").iter().map(|root| text(&root["ID"])).collect();
    (text(&roots["ActiveRootID"]), all)
}

async fn root_pem(mesh: &Mesh, id: &str) -> String {
    let roots = mesh.get("/v1/connect/ca/roots").await.success().json();
    let root = roots["Roots"].as_array().expect("roots").iter().find(|root| root["ID"] == id).cloned();
    root.expect("the root")["RootCert"].as_str().expect("PEM").to_owned()
}

fn seal(folder: &Path, name: &str) -> Seal {
    let file = folder.join(name);
    new_seal_key(&file);
    Seal::File(file)
}

fn has_ca(mesh: &Mesh) -> bool {
    mesh.data_dir().join("ca").exists()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_that_start_first_at_once_have_one_root_and_both_issue_under_it() {
    let etcd = Etcd::start().await;
    let options = || Mesh::start(on(&etcd, Seal::AsNeeded));
    let (first, second, third) = tokio::join!(options(), options(), options());
    let (active, all) = roots(&first).await;
    assert_eq!(all, std::slice::from_ref(&active), "one root");
    for server in [&second, &third] {
        assert_eq!(roots(server).await, (active.clone(), all.clone()));
    }
    let trust_domain = async |mesh: &Mesh| mesh.get("/v1/connect/ca/roots").await.json()["TrustDomain"].clone();
    assert_eq!(trust_domain(&first).await, trust_domain(&third).await);
    for (server, name) in [(&first, "n1"), (&second, "n2"), (&third, "n3")] {
        assert!(!has_ca(server), "no key lies in a data directory");
        let agent = agent(server, name).await;
        connected(server, name, true).await;
        drop(agent);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_refused_that_cannot_have_the_ca_of_its_store() {
    let folder = tempfile::tempdir().expect("a folder");
    let etcd = Etcd::start().await;
    let said = Mesh::start_refused(&on(&etcd, Seal::Never), "it has no seal key").await;
    assert!(said.contains("--seal-key-file") && said.contains("starling ca new-seal-key"), "{said}");
    let good = seal(folder.path(), "good");
    let first = Mesh::start(on(&etcd, good.clone())).await;
    let said = Mesh::start_refused(&on(&etcd, seal(folder.path(), "other")), "its seal key is another").await;
    assert!(said.contains("sealed with the seal key") && said.contains("this server has"), "{said}");
    let second = Mesh::start(on(&etcd, good)).await;
    assert_eq!(roots(&first).await, roots(&second).await);

    let elsewhere = Mesh::start(embedded(Seal::Never)).await;
    let foreign = MeshOptions {
        authority_of: Some(elsewhere.data_dir().to_owned()),
        ..on(&etcd, Seal::File(folder.path().join("good")))
    };
    let said = Mesh::start_refused(&foreign, "the CA in its files is another").await;
    assert!(said.contains("but the store trusts"), "{said}");
    assert!(has_ca(&elsewhere), "nothing was changed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ca_in_files_moves_to_the_store_and_its_seal_key_is_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = Mesh::start(embedded(Seal::Never)).await;
    let before = roots(&server).await;
    let agent = agent(&server, "n1").await;
    let refused = server.cli(&["ca", "rotate"]).await;
    assert!(refused.code != 0 && refused.stderr.contains("--seal-key-file"), "{refused}");
    assert!(has_ca(&server));
    server.kill9();
    server.seal_with(seal(folder.path(), "one"));
    server.restart().await;
    assert_eq!(roots(&server).await, before, "the same root");
    assert!(!has_ca(&server), "its key is in the store, and nowhere else");
    connected(&server, "n1", true).await;

    server.kill9();
    server.seal_with(Seal::Never);
    let said = server.restart_refused("the key is sealed").await;
    assert!(said.contains("sealed with the seal key") && said.contains("--seal-key-file"), "{said}");
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    let paths = [&two, &one].map(|path| path.to_str().expect("UTF-8").to_owned());
    let made = server.cli(&["ca", "new-seal-key", &paths[0], "--replaces", &paths[1]]).await.success();
    server.seal_with(Seal::File(two.clone()));
    server.restart().await;
    let resealed = server.cli(&["ca", "reseal", "-o", "json"]).await.success().json();
    assert_eq!(resealed["resealed"], 1, "{resealed}");
    let listed = server.cli(&["ca", "roots", "-o", "json"]).await.success().json();
    assert_eq!(listed["roots"][0]["key"]["sealed_with"], made.stdout.trim());
    server.kill9();
    server.seal_with(Seal::File(one));
    let said = server.restart_refused("the old key opens it no more").await;
    assert!(said.contains("this server has"), "{said}");
    server.seal_with(Seal::File(two));
    server.restart().await;
    assert_eq!(roots(&server).await, before);
    drop(agent);
}

/// Waits until a rotation is over, and gives back what it shows then.
async fn signs(mesh: &Mesh, root: &str) -> Value {
    eventually("the new root signs", async || {
        let shown = mesh.cli(&["ca", "roots", "-o", "json"]).await.success().json();
        anyhow::ensure!(shown["active"] == root, "{shown}");
        Ok(shown)
    })
    .await
}

/// Begins a rotation; the root that comes, trusted beside the one that signs.
async fn begun(server: &Mesh, old: &str) -> String {
    let new = server.cli(&["ca", "rotate", "--renew-within", "3s"]).await.success().stdout.trim().to_owned();
    assert_ne!(new, old);
    let during = server.cli(&["ca", "status", "-o", "json"]).await.success().json();
    assert_eq!(during["root"], new.as_str(), "{during}");
    let (active, mut all) = roots(server).await;
    all.sort();
    let mut both = vec![old.to_owned(), new.clone()];
    both.sort();
    assert_eq!((active, all), (old.to_owned(), both), "trusted, and not signing yet");
    let again = server.cli(&["ca", "rotate"]).await;
    assert!(again.code != 0 && again.stderr.contains("is being introduced already"), "{again}");
    new
}

/// Waits until a sidecar presents a leaf that leads to a root.
async fn presents(authority: &str, credentials: &Credentials, root_pem: &str) {
    eventually("the sidecar presents a leaf under the new root", async || {
        let stream = tls::connect(authority, Some(credentials), &TLS13).await?;
        let presented: Vec<_> = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
        tls::verify_chain(&presented, root_pem)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_root_is_replaced_under_traffic_and_no_request_fails() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Mesh::start(embedded(seal(folder.path(), "seal"))).await;
    let native = async |name: &str| {
        let token = token(&server, &[]).await;
        Mesh::start(MeshOptions { native: true, ..node(&server, name, Some(&token)) }).await
    };
    let (mut n1, n2) = tokio::join!(native("n1"), native("n2"));
    let mut away = agent(&server, "away").await;
    server.protocol("api", "http").await;
    let (web, api) = tokio::join!(
        Workload::new("web").calls("api").start_on(&n1, Plane::Native),
        Workload::new("api").start_on(&n2, Plane::Native),
    );
    web.served_by("api", &["api"], "it is there").await;
    let early_token = token(&server, &[]).await;
    let (old, _) = roots(&server).await;
    let old_pem = root_pem(&server, &old).await;
    let credentials = Credentials::of_leaf(&n1.get("/v1/agent/connect/ca/leaf/web").await.success().json());
    // A node that is lost does not hold it up, and is back afterwards.
    connected(&server, "away", true).await;
    away.kill9();
    eventually("a node is lost", async || {
        let status = server.get("/v1/health/state/critical").await.success().json();
        anyhow::ensure!(status.to_string().contains("away"), "{status}");
        Ok(())
    })
    .await;

    let traffic = Traffic::start(&web.upstream("api"), "/");
    traffic.requests(50).await;
    let new = begun(&server, &old).await;
    let shown = signs(&server, &new).await;
    let going = shown["roots"].as_array().expect("roots").iter().find(|root| root["id"] == old.as_str());
    assert_eq!(going.expect("the old root is trusted still")["state"], "going");
    assert_eq!(roots(&n1).await.1.len(), 2, "agents know both");
    let new_pem = root_pem(&server, &new).await;
    // Whoever comes with a leaf of before is let in, and is shown one of now.
    presents(&api.public(), &credentials, &new_pem).await;
    presents(&web.public(), &credentials, &new_pem).await;
    traffic.requests(100).await;
    let renewed = Credentials::of_leaf(&n1.get("/v1/agent/connect/ca/leaf/web").await.success().json());
    tls::verify_chain(&renewed.chain(), &new_pem).expect("the leaf is under the new root");
    tls::verify_chain(&renewed.chain(), &old_pem).expect_err("and not under the old one");
    let requests = traffic.stop_without_failure().await;
    assert!(requests > 150, "{requests}");

    // A token of before names the old root; an agent that was away knows no other.
    let late = Mesh::start(node(&server, "late", Some(&early_token))).await;
    connected(&server, "late", true).await;
    away.restart().await;
    connected(&server, "away", true).await;
    n1.kill9();
    n1.restart().await;
    connected(&server, "n1", true).await;
    answered_by_native(&web).await;
    drop(late);

    let early = server.cli(&["ca", "remove", &old]).await;
    assert!(early.code != 0 && early.stderr.contains("--now"), "{early}");
    let _ = server.cli(&["ca", "remove", &old, "--now"]).await.success();
    assert_eq!(roots(&server).await, (new.clone(), vec![new]));
    presents_to_nobody_old(&api.public(), &credentials).await;
}

async fn answered_by_native(web: &starling_e2e::Instance<starling_e2e::Served>) {
    web.served_by("api", &["api"], "the node is back").await;
}

/// A leaf under a root that is gone is refused, though it is valid by its dates.
async fn presents_to_nobody_old(authority: &str, credentials: &Credentials) {
    eventually("the old leaf is refused", async || {
        let Ok(stream) = tls::connect(authority, Some(credentials), &TLS13).await else { return Ok(()) };
        // In TLS 1.3 the refusal comes with the first answer.
        let connection = starling_e2e::Connection::over(authority, stream).await;
        let answered = match connection {
            Ok(mut connection) => connection.get("/").await.is_ok(),
            Err(_) => false,
        };
        anyhow::ensure!(!answered, "it is let in");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_does_not_answer_holds_a_rotation_up_until_an_operator_gives_it_up() {
    let folder = tempfile::tempdir().expect("a folder");
    // So long that a node which is away is not lost meanwhile.
    let options = MeshOptions {
        program: Program::Server("node_grace = \"10m\"\n".to_owned()),
        seal: seal(folder.path(), "seal"),
        ..MeshOptions::default()
    };
    let server = Mesh::start(options).await;
    let mut mesh = agent(&server, "n1").await;
    connected(&server, "n1", true).await;
    let (old, _) = roots(&server).await;
    // It neither answers nor is lost.
    signal(mesh.server(), Signal::SIGSTOP);
    let new = server.cli(&["ca", "rotate", "--renew-within", "1s"]).await.success().stdout.trim().to_owned();
    eventually("it waits for the node", async || {
        let status = server.cli(&["ca", "status", "-o", "json"]).await.success().json();
        anyhow::ensure!(status["pending"] == json!(["n1"]), "{status}");
        Ok(())
    })
    .await;
    stays(&server, "8s").await;
    assert_eq!(roots(&server).await.0, old, "it does not sign before everybody trusts it");
    let given_up = server.cli(&["ca", "proceed"]).await.success();
    assert_eq!(given_up.stdout.trim(), "n1");
    let _ = signs(&server, &new).await;
    signal(mesh.server(), Signal::SIGCONT);
    connected(&server, "n1", true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotation_waits_for_the_nodes_of_every_server_and_outlives_its_leader() {
    let etcd = Etcd::start().await;
    let options =
        || MeshOptions { program: Program::Server("node_grace = \"10m\"\n".to_owned()), ..on(&etcd, Seal::AsNeeded) };
    let mut first = Mesh::start(options()).await;
    let second = Mesh::start(options()).await;
    let (at_first, mut at_second) = tokio::join!(agent(&first, "n1"), agent(&second, "n2"));
    connected(&first, "n1", true).await;
    connected(&second, "n2", true).await;
    let (old, _) = roots(&first).await;
    signal(at_second.server(), Signal::SIGSTOP);
    let new = first.cli(&["ca", "rotate", "--renew-within", "1s"]).await.success().stdout.trim().to_owned();
    for server in [&first, &second] {
        eventually("each server knows of the node at the second", async || {
            let status = server.cli(&["ca", "status", "-o", "json"]).await.success().json();
            anyhow::ensure!(status["pending"] == json!(["n2"]), "{status}");
            Ok(())
        })
        .await;
    }
    stays(&second, "6s").await;
    assert_eq!(roots(&second).await.0, old, "it waits");
    // The node of the server that ends has no other, and is given up.
    drop(at_first);
    first.kill9();
    signal(at_second.server(), Signal::SIGCONT);
    connected(&second, "n2", true).await;
    eventually("the other server waits for the node whose server has ended", async || {
        let status = second.cli(&["ca", "status", "-o", "json"]).await.success().json();
        anyhow::ensure!(status["pending"] == json!(["n1"]), "{status}");
        Ok(())
    })
    .await;
    let given_up = second.cli(&["ca", "proceed"]).await.success();
    assert_eq!(given_up.stdout.trim(), "n1");
    let _ = signs(&second, &new).await;
}

/// Nothing is written of any root for so long.
async fn stays(server: &Mesh, within: &str) {
    let index = server.get("/v1/connect/ca/roots").await.success().index();
    let target = format!("/v1/connect/ca/roots?index={index}&wait={within}");
    assert_eq!(server.get(&target).await.success().index(), index);
}

fn signal(process: &mut starling_e2e::Process, signal: Signal) {
    nix::sys::signal::kill(process.pid(), signal).expect("a signal");
}

/// A CA of somebody else: a root on P-384, and an intermediate below it.
struct External {
    root_pem: String,
    chain_pem: String,
    key_pem: String,
}

impl External {
    fn new(change: impl FnOnce(&mut CertificateParams)) -> Self {
        let params = |name: &str| {
            let mut params = CertificateParams::default();
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::OrganizationName, "Example");
            params.distinguished_name.push(DnType::CommonName, name);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
            params
        };
        let root_key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).expect("a key");
        let root = params("Example Root").self_signed(&root_key).expect("a root");
        let issuer = Issuer::from_ca_cert_der(root.der(), root_key).expect("an issuer");
        let key = KeyPair::generate().expect("a key");
        let mut intermediate = params("Example Mesh CA");
        intermediate.use_authority_key_identifier_extension = true;
        change(&mut intermediate);
        let intermediate = intermediate.signed_by(&key, &issuer).expect("an intermediate");
        Self { root_pem: root.pem(), chain_pem: intermediate.pem(), key_pem: key.serialize_pem() }
    }

    /// Writes it to files, and has it imported.
    async fn import(&self, server: &Mesh, folder: &Path) -> starling_e2e::Output {
        let file = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).expect("written");
            path.to_str().expect("UTF-8").to_owned()
        };
        let (cert, key) = (file("ca.pem", &self.chain_pem), file("ca.key", &self.key_pem));
        let (roots, seal) =
            (file("roots.pem", &self.root_pem), folder.join("seal").to_str().expect("UTF-8").to_owned());
        let files = ["--cert", &cert, "--key", &key, "--roots", &roots, "--seal-key-file", &seal];
        server.cli(&[&["ca", "import", "--renew-within", "1s"], files.as_slice()].concat()).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_intermediate_from_elsewhere_signs_and_envoys_and_clients_trust_its_root() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Mesh::start(embedded(seal(folder.path(), "seal"))).await;
    let mesh = agent(&server, "n1").await;
    server.protocol("api", "http").await;
    let (web, api) = tokio::join!(Workload::new("web").calls("api").start(&mesh), Workload::new("api").start(&mesh));
    answered(&web, "api", 200, "it is there").await;
    let trust_domain = server.get("/v1/connect/ca/roots").await.json()["TrustDomain"].clone();

    let limited = External::new(|params| {
        let permitted = vec![rcgen::GeneralSubtree::DnsName("example.org".to_owned())];
        params.name_constraints =
            Some(rcgen::NameConstraints { permitted_subtrees: permitted, excluded_subtrees: Vec::new() });
    });
    let refused = limited.import(&server, folder.path()).await;
    assert!(refused.code != 0 && refused.stderr.contains("name constraints"), "{refused}");
    let mut mixed = External::new(|_| {});
    mixed.key_pem = KeyPair::generate().expect("a key").serialize_pem();
    let refused = mixed.import(&server, folder.path()).await;
    assert!(refused.code != 0 && refused.stderr.contains("not of the first certificate"), "{refused}");

    let external = External::new(|_| {});
    let traffic = Traffic::start(&web.upstream("api"), "/");
    let root = external.import(&server, folder.path()).await.success().stdout.trim().to_owned();
    let shown = signs(&server, &root).await;
    assert_eq!(shown["roots"][0]["intermediates"], 1, "{shown}");
    let credentials = Credentials::of_leaf(&mesh.get("/v1/agent/connect/ca/leaf/web").await.success().json());
    presents(&api.public(), &credentials, &external.root_pem).await;
    presents(&web.public(), &credentials, &external.root_pem).await;
    traffic.requests(100).await;
    traffic.stop_without_failure().await;
    let roots = server.get("/v1/connect/ca/roots").await.json();
    assert_eq!(roots["TrustDomain"], trust_domain, "the trust domain is the cluster's for ever");
    // A node that joins now knows the external root from its token.
    let _n2 = agent(&server, "n2").await;
    connected(&server, "n2", true).await;
}
