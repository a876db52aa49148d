//! Who is let in after an eviction, a release or a loss, and what a node may register by its join token.

use starling_model::{Change, Member, ServiceName};
use starling_rpc::LeafRequest;

use super::*;

async fn token(mesh: &Mesh, services: Option<&[&str]>) -> JoinToken {
    let services = services.map(|names| names.iter().map(|name| name.parse().expect("a pattern")).collect());
    let wanted = NewJoinToken { reusable: true, services, ..NewJoinToken::default() };
    mesh.server.create_join_token(wanted).await.expect("a token").0
}

fn node() -> Member {
    Member::Node("n1".parse().expect("a name"))
}

fn own(services: &[&str]) -> Vec<Change> {
    let instances = services.iter().map(|name| Record::Instance(records::instance("n1", name, name, 80)));
    std::iter::once(records::node("n1", "10.0.0.1")).chain(instances).map(Change::Put).collect()
}

async fn ask_for_leaf(client: &ServerClient, service: &str) -> Result<(), CallError> {
    let service: ServiceName = service.parse().expect("a name");
    let answers = client.issue_leaves(vec![LeafRequest { service, csr_der: csr() }]).await?;
    answers.into_iter().next().expect("one answer").map(drop)
}

#[tokio::test]
async fn an_evicted_node_is_cut_off_and_stays_out_until_a_newer_token_lets_it_in() {
    let mesh = Mesh::start().await;
    let old = token(&mesh, None).await;
    mesh.join(&old, "n1").await.expect("it is let in");
    let client = mesh.connect("n1").await;
    client.commit(own(&["payments"])).await.expect("registered");
    ask_for_leaf(&client, "payments").await.expect("a certificate");
    let (_sender, mut frames) = mesh.attach("n1").await;

    let evict = starling_catalog::EnrolmentCommand::Evict { member: node(), now: now() };
    mesh.server.commit(&Command::Enrolment(evict)).await.expect("evicted");
    let ended = tokio::time::timeout(Duration::from_secs(1), async {
        while frames.next().await.is_some_and(|it| it.is_ok()) {}
    });
    ended.await.expect("the stream ends within a second");
    assert!(mesh.server.snapshot().node(node().name()).is_none(), "its records are gone");
    let again = mesh.connect("n1").await;
    for refused in [
        again.commit(own(&["payments"])).await.map(drop),
        again.renew(csr()).await.map(drop),
        ask_for_leaf(&again, "payments").await,
        again.own_records(None).await.map(drop),
        mesh.join(&old, "n1").await,
    ] {
        let text = refused.expect_err("it was evicted").to_string();
        assert!(text.contains("evict"), "{text}");
    }
    let newer = token(&mesh, None).await;
    mesh.join_as(&newer, "n1", "", csr()).await.expect("a newer token lets it in");
    let former = mesh.connect("n1").await;
    let text = former.commit(own(&["payments"])).await.expect_err("by the former key").to_string();
    assert!(text.contains("held by another key"), "{text}");
}

#[tokio::test]
async fn the_name_of_a_lost_node_is_taken_with_its_key_or_after_a_release() {
    let mesh = Mesh::start().await;
    let token = token(&mesh, None).await;
    mesh.join(&token, "n1").await.expect("it is let in");
    mesh.connect("n1").await.commit(own(&["payments"])).await.expect("registered");
    let text = mesh.join_as(&token, "n1", "", csr()).await.expect_err("a stranger's key").to_string();
    assert!(text.contains("starling node release"), "{text}");
    mesh.join(&token, "n1").await.expect("its own key is proof");
    let release = starling_catalog::EnrolmentCommand::Release { member: node(), now: now() };
    mesh.server.commit(&Command::Enrolment(release)).await.expect("released");
    mesh.join_as(&token, "n1", "", csr()).await.expect("the name is free");
}

#[tokio::test]
async fn a_node_registers_and_has_certificates_for_what_its_join_token_covers() {
    let mesh = Mesh::start().await;
    let token = token(&mesh, Some(&["web", "api-*"])).await;
    mesh.join(&token, "n1").await.expect("it is let in");
    let client = mesh.connect("n1").await;
    client.commit(own(&["web", "api-1"])).await.expect("covered");
    ask_for_leaf(&client, "api-1").await.expect("a certificate");
    let text = client.commit(own(&["payments"])).await.expect_err("not covered").to_string();
    assert!(text.contains("payments") && text.contains("web, api-*"), "{text}");
    // Registered by somebody else on this node, such as an operator over the catalog's API.
    let Record::Node(n1) = records::node("n1", "10.0.0.1") else { unreachable!("a node") };
    let instances = vec![records::instance("n1", "payments", "payments", 80)];
    let register = Command::Register { name: n1.name.clone(), node: Some(n1), instances, checks: vec![] };
    mesh.server.commit(&register).await.expect("registered");
    let text = ask_for_leaf(&client, "payments").await.expect_err("not covered").to_string();
    assert!(text.contains("may not register service payments"), "{text}");
}

#[tokio::test]
async fn a_renewal_cuts_no_connection() {
    let mesh = Mesh::start().await;
    let token = token(&mesh, None).await;
    mesh.join(&token, "n1").await.expect("it is let in");
    let first = mesh.connect("n1").await;
    for _ in 0..2 {
        let key = LeafKey::generate().expect("a key");
        first.renew(key.csr_der().expect("a request")).await.expect("renewed");
        mesh.keys.lock().expect("whole").insert("n1".to_owned(), Arc::new(key));
        mesh.connect("n1").await.own_records(None).await.expect("the renewed key counts");
        first.own_records(None).await.expect("and so does the one before it");
    }
}
