//! Nodes behind a relay, as the server sees them.

use starling_attach::relayed::{Gone, InForce, Named, NodeRejected, Wants};
use starling_model::{CheckId, CheckStatus, LIVENESS_CHECK};

use super::*;

#[tokio::test]
async fn a_node_behind_a_relay_is_written_as_here_once_it_is_known_what_it_wants() {
    let mesh = Mesh::start().await;
    for name in ["n1", "n2"] {
        let Record::Node(node) = records::node(name, "10.0.0.1") else { unreachable!("a node") };
        let (name, node, instances, checks) = (node.name.clone(), Some(node), Vec::new(), Vec::new());
        mesh.server.commit(&Command::Register { name, node, instances, checks }).await.expect("committed");
    }
    let relay = mesh.connect_relay("r1").await;
    let (sender, _frames) = relay.relay(hello("r1")).await.expect("a stream");
    let wants = |node| Wants { node, as_of: 1, from_now: vec![5], no_longer: Vec::new() };
    let (names, nodes) = (vec![Named { number: 5, subject: endpoints("web") }], vec![come(0, "n1"), come(1, "n2")]);
    sender.send(AgentSays::Relayed(Relayed { come: nodes, ..Relayed::default() })).expect("said");
    is_attached(&mesh, "n1").await;
    // What is written of nodes is written in the order in which they come.
    sender.send(AgentSays::Relayed(Relayed { names, wants: vec![wants(1)], ..Relayed::default() })).expect("said");
    is_written(&mesh, "n2").await;
    assert!(!says_here(&mesh, "n1"), "receipts do not know yet what it owes");
    sender.send(AgentSays::Relayed(Relayed { wants: vec![wants(0)], ..Relayed::default() })).expect("said");
    is_written(&mesh, "n1").await;
}

/// Whether the catalog says that a node's agent is there.
fn says_here(mesh: &Mesh, node: &str) -> bool {
    let check = CheckId::new(LIVENESS_CHECK).expect("an identifier");
    let snapshot = mesh.server.snapshot();
    snapshot
        .check(&node.parse().expect("a name"), &check)
        .is_some_and(|check| check.value.status == CheckStatus::Passing)
}

async fn is_written(mesh: &Mesh, node: &str) {
    let written = async {
        while !says_here(mesh, node) {
            tokio::task::yield_now().await
        }
    };
    tokio::time::timeout(DEADLINE, written).await.unwrap_or_else(|_| panic!("{node} is not written as here"));
}

#[tokio::test]
async fn a_relay_is_told_that_a_node_behind_it_has_attached_elsewhere() {
    let mesh = Mesh::start().await;
    let relay = mesh.connect_relay("r1").await;
    let (sender, mut frames) = relay.relay(hello("r1")).await.expect("a stream");
    sender
        .send(AgentSays::Relayed(Relayed { come: vec![come(0, "n1"), come(1, "n2")], ..Relayed::default() }))
        .expect("said");
    is_attached(&mesh, "n2").await;
    let (_sender, mut direct) = mesh.attach("n1").await;
    let told = async {
        loop {
            if let (_, ServerSays::Superseded(superseded)) = frames.next().await.expect("open").expect("open") {
                return superseded;
            }
        }
    };
    let told = tokio::time::timeout(DEADLINE, told).await.expect("the relay is told");
    assert_eq!(told.nodes, [Gone { node: 0, name: "n1".to_owned() }]);
    // That it is away there now is nothing to whoever has it.
    sender
        .send(AgentSays::Relayed(Relayed { away: vec![0], come: vec![come(0, "n3")], ..Relayed::default() }))
        .expect("said");
    is_attached(&mesh, "n3").await;
    assert!(mesh.server.is_attached(&"n1".parse().expect("a name")));
    // And when it comes back by the relay the stream of its own ends.
    sender.send(AgentSays::Relayed(Relayed { come: vec![come(2, "n1")], ..Relayed::default() })).expect("said");
    let ended = end_of(&mut direct).await;
    assert!(ended.to_string().contains("a later stream of this node has taken over"), "{ended}");
}

#[tokio::test]
async fn receipts_speak_of_nodes_behind_a_relay_as_if_they_were_attached() {
    let mut mesh = Mesh::start().await;
    mesh.change().await;
    let relay = mesh.connect_relay("r1").await;
    let (sender, mut frames) = relay.relay(hello("r1")).await.expect("a stream");
    sender.send(subscribe([(endpoints("web"), 0)])).expect("said");
    let at = mesh.server.snapshot().revision().0;
    let told = Relayed {
        names: vec![Named { number: 5, subject: endpoints("web") }],
        come: ["n1", "n2"].iter().zip(0..).map(|(name, node)| Come { node, name: (*name).to_owned() }).collect(),
        wants: (0..2).map(|node| Wants { node, as_of: at, from_now: vec![5], no_longer: Vec::new() }).collect(),
        ..Relayed::default()
    };
    sender.send(AgentSays::Relayed(told)).expect("said");
    let names: [NodeName; 2] = ["n1", "n2"].map(|name| name.parse().expect("a name"));
    for name in &names {
        is_attached(&mesh, name.as_str()).await;
    }

    let revision = mesh.change().await;
    let report = mesh.server.report(revision, 9).expect("a receipt");
    assert_eq!((report.counts.pending, report.counts.applied), (2, 0), "{report:?}");
    let heard = async {
        loop {
            let (_, says) = frames.next().await.expect("open").expect("open");
            if matches!(says, ServerSays::Through(through) if through.revision >= revision.0) {
                return;
            }
        }
    };
    tokio::time::timeout(DEADLINE, heard).await.expect("the relay is told");
    let rejected = Rejected {
        proxy: "web".to_owned(),
        revision: revision.0,
        since: at,
        text: "does not fit".to_owned(),
        ..Rejected::default()
    };
    let in_force =
        |node, refusals_stand| InForce { through: revision.0, refusals_stand, nodes: vec![node], held_us: vec![10] };
    let told = Relayed {
        rejected: vec![NodeRejected { node: 1, rejected: Some(rejected) }],
        in_force: vec![in_force(0, false), in_force(1, true)],
        ..Relayed::default()
    };
    sender.send(AgentSays::Relayed(told)).expect("said");
    let report = mesh.server.change(revision, DEADLINE, 9).await.expect("a receipt");
    assert_eq!((report.counts.applied, report.counts.rejected), (1, 1), "{report:?}");
    assert_eq!(report.rejected[0].1.text, "does not fit");

    // A relay that speaks of whom it has not named ends, and the nodes behind it are away with it.
    let told = Relayed { in_force: vec![in_force(77, false)], ..Relayed::default() };
    sender.send(AgentSays::Relayed(told)).expect("said");
    let ended = end_of(&mut frames).await;
    assert!(ended.to_string().contains("node 77, which it has not named"), "{ended}");
    let away = async {
        while names.iter().any(|name| mesh.server.is_attached(name)) {
            tokio::task::yield_now().await
        }
    };
    tokio::time::timeout(DEADLINE, away).await.expect("both nodes are away");
}

#[tokio::test]
async fn a_refusal_by_what_can_be_no_proxy_is_one_and_costs_the_relay_nothing() {
    let mut mesh = Mesh::start().await;
    mesh.change().await;
    let relay = mesh.connect_relay("r1").await;
    let (sender, _frames) = relay.relay(hello("r1")).await.expect("a stream");
    let at = mesh.server.snapshot().revision().0;
    let told = Relayed {
        names: vec![Named { number: 5, subject: endpoints("web") }],
        come: vec![come(0, "n1"), come(1, "n2")],
        wants: (0..2).map(|node| Wants { node, as_of: at, from_now: vec![5], no_longer: Vec::new() }).collect(),
        ..Relayed::default()
    };
    sender.send(AgentSays::Relayed(told)).expect("said");
    is_attached(&mesh, "n2").await;
    let revision = mesh.change().await;
    let rejected = |node, proxy: &str| {
        let (proxy, text) = (proxy.to_owned(), format!("of {node}"));
        let rejected = Rejected { proxy, revision: revision.0, since: at, text, ..Rejected::default() };
        NodeRejected { node, rejected: Some(rejected) }
    };
    let told = Relayed {
        rejected: vec![rejected(0, "a/b"), rejected(1, "web")],
        in_force: vec![InForce { through: revision.0, refusals_stand: true, nodes: vec![0, 1], held_us: Vec::new() }],
        ..Relayed::default()
    };
    sender.send(AgentSays::Relayed(told)).expect("said");
    let report = mesh.server.change(revision, DEADLINE, 9).await.expect("a receipt");
    assert_eq!((report.counts.applied, report.counts.rejected), (0, 2), "{report:?}");
    let said: Vec<_> = report.rejected.iter().map(|(_, refused)| refused.text.as_str()).collect();
    assert_eq!(said, ["of 0", "of 1"]);
}

#[tokio::test]
async fn a_node_takes_as_many_subjects_as_it_drops_and_too_many_cost_it_alone() {
    let mesh = Mesh::start().await;
    let relay = mesh.connect_relay("r1").await;
    let (sender, mut frames) = relay.relay(hello("r1")).await.expect("a stream");
    let tell = |told| sender.send(AgentSays::Relayed(told)).expect("said");
    let named = |number| Named { number, subject: endpoints(&format!("s{number}")) };
    let wants = |node, from_now, no_longer| Wants { node, as_of: 1, from_now, no_longer };
    let (some, others): (Vec<u32>, Vec<u32>) = ((0..10_000).collect(), (10_000..20_000).collect());
    let all: Vec<u32> = (0..20_000).collect();
    tell(Relayed {
        names: all.iter().copied().map(named).collect(),
        come: vec![come(0, "n1"), come(1, "n2")],
        wants: vec![wants(0, some.clone(), Vec::new())],
        ..Relayed::default()
    });
    tell(Relayed { wants: vec![wants(0, others, some), wants(1, all, Vec::new())], ..Relayed::default() });
    let told = async {
        loop {
            if let (_, ServerSays::Superseded(superseded)) = frames.next().await.expect("open").expect("open") {
                return superseded;
            }
        }
    };
    let told = tokio::time::timeout(DEADLINE, told).await.expect("the relay is told");
    assert_eq!(told.nodes, [Gone { node: 1, name: "n2".to_owned() }]);
    tell(Relayed { away: vec![1], come: vec![come(2, "n3")], ..Relayed::default() });
    is_attached(&mesh, "n3").await;
    assert!(mesh.server.is_attached(&"n1".parse().expect("a name")));
}
