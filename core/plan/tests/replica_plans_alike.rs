//! A plan made from an agent's replica is the plan made from the catalog: the projections hold all that planners read.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "story/commands.rs"]
mod commands;
#[path = "story/mesh.rs"]
mod mesh;

use std::collections::BTreeMap;

use proptest::prelude::*;
use starling_attach::message::{AgentSays, Resume, decode_subject};
use starling_attach::{Fleet, FromServer, Intake, Replica, StreamId};
use starling_catalog::{MeshRead, Snapshot, Subject};
use starling_model::{Action, Node, NodeName, Revision};
use starling_plan::{Planned, Planner};

use commands::{BEGINNING, command, possible};
use mesh::{Mesh, settings};

/// A node's agent: what it holds, and the plans of its proxies.
struct Agent {
    node: NodeName,
    stream: StreamId,
    replica: Replica,
    intake: Intake,
    planner: Planner,
    held: BTreeMap<starling_model::InstanceKey, Planned>,
}

impl Agent {
    fn new(node: &str, fleet: &mut Fleet) -> Self {
        let node: NodeName = node.parse().unwrap();
        let stream = fleet.attach(node.clone());
        let planner = Planner::new(settings(Action::Deny));
        let mut replica = Replica::default();
        let (intake, _) = Intake::begin(&mut replica, false);
        Self { node, stream, replica, intake, planner, held: BTreeMap::new() }
    }

    /// What it says first on another stream.
    fn resumes(&mut self) -> Vec<(Subject, Revision)> {
        let (intake, says) = Intake::begin(&mut self.replica, false);
        self.intake = intake;
        let AgentSays::Subscribe(subscribe) = says else { panic!("it subscribes") };
        let resume = |resume: Resume| (decode_subject(&resume.subject.unwrap()).unwrap(), Revision(resume.have));
        subscribe.resumes.into_iter().map(resume).collect()
    }

    /// Takes what is sent until there is no more.
    fn hear(&mut self, fleet: &mut Fleet) {
        while fleet.has_pending(self.stream) {
            for frame in fleet.take(self.stream, 0) {
                let says = FromServer::from_bytes(frame).unwrap();
                if self.intake.hear(&self.replica, &says).unwrap() {
                    self.intake.hand_over(&mut self.replica);
                }
            }
        }
    }

    /// Plans each proxy of the node as of now, asking for what the plan turns out to read until all of it is known.
    fn plan(&mut self, snapshot: &Snapshot, fleet: &mut Fleet) {
        // What the agent itself has registered. An agent always knows its node.
        let address = snapshot.node(&self.node).map(|node| node.value.clone());
        let node = address.unwrap_or_else(|| Node {
            name: self.node.clone(),
            id: String::new(),
            address: String::new(),
            tagged_addresses: BTreeMap::new(),
            meta: BTreeMap::new(),
        });
        let instances: Vec<_> = snapshot.instances_on(&self.node).map(|instance| instance.value.clone()).collect();
        let sidecars = instances.iter().filter(|instance| instance.is_proxy());
        let proxies: Vec<_> = sidecars.map(|instance| instance.key.clone()).collect();
        self.replica.set_local(&node, instances);
        self.hear(fleet);
        self.held.retain(|key, _| proxies.contains(key));
        for proxy in proxies {
            let planned = loop {
                let planned = self.planner.plan(&self.replica, &proxy).unwrap();
                let unknown: Vec<_> =
                    planned.subjects.iter().filter(|subject| !self.replica.knows(subject)).cloned().collect();
                if unknown.is_empty() {
                    break planned;
                }
                let wanted = unknown.into_iter().filter(|subject| self.replica.want(subject));
                let wanted: Vec<_> = wanted.map(|subject| (subject, Revision(0))).collect();
                wanted.iter().for_each(|(subject, _)| self.intake.want(subject));
                fleet.subscribe(self.stream, &wanted).unwrap();
                self.hear(fleet);
            };
            self.held.insert(proxy, planned);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_replica_plans_as_the_catalog_does(
        commands in prop::collection::vec((command(), prop::bool::weighted(0.6), prop::bool::weighted(0.1)), 1..40),
    ) {
        let mut mesh = Mesh::new(Action::Deny);
        BEGINNING.iter().for_each(|command| drop(mesh.run(command)));
        mesh.changes.clear();
        let mut fleet = Fleet::new(mesh.snapshot.clone());
        let mut agents = ["n1", "n2"].map(|node| Agent::new(node, &mut fleet));
        for (command, plan_now, reconnect) in commands {
            if !possible(&mesh, &command) {
                continue;
            }
            mesh.run(&command);
            fleet.publish(&mesh.snapshot, &std::mem::take(&mut mesh.changes), 0);
            for agent in &mut agents {
                if reconnect {
                    fleet.remove(agent.stream);
                    agent.stream = fleet.attach(agent.node.clone());
                    fleet.subscribe(agent.stream, &agent.resumes()).unwrap();
                }
                // A node that is not in the catalog has an agent that is about to put it there.
                if !plan_now || mesh.snapshot.node(&agent.node).is_none() {
                    continue;
                }
                agent.plan(&mesh.snapshot, &mut fleet);
                for (proxy, planned) in &agent.held {
                    let mut planned = planned.clone();
                    let fresh = Planner::new(settings(Action::Deny)).plan(&mesh.snapshot, proxy).unwrap();
                    // A commit that concerns nothing here is not told, so the replica may stand at an earlier one.
                    prop_assert!(planned.plan.revision <= agent.replica.revision());
                    planned.plan.revision = fresh.plan.revision;
                    prop_assert_eq!(&fresh, &planned, "{} after {}", proxy, command);
                }
            }
        }
    }
}
