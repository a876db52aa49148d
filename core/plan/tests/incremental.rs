//! The planner that remembers against one that knows nothing: same plans, and no part rebuilt without need.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "story/commands.rs"]
mod commands;
#[path = "story/mesh.rs"]
mod mesh;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use starling_model::Action;
use starling_plan::{Assembly, PartName, Plan, Planned, Planner, diff, replaced};

use commands::{BEGINNING, command, possible};
use mesh::{Mesh, key, settings};

/// Plans every sidecar of the mesh, holding each new plan in place of the old one; answers the pairs.
fn replan(mesh: &mut Mesh) -> Vec<(Option<Planned>, Planned)> {
    let nodes: Vec<_> = ["n1", "n2"].iter().map(|node| node.parse().unwrap()).collect();
    let instances = nodes.iter().flat_map(|node| mesh.snapshot.instances_on(node));
    let sidecars = instances.filter(|instance| instance.value.is_proxy());
    let keys: Vec<_> = sidecars.map(|instance| instance.value.key.clone()).collect();
    mesh.held.retain(|key, _| keys.contains(key));
    let mut pairs = Vec::new();
    for key in keys {
        let planned = mesh.planner.plan(&mesh.snapshot, &key).unwrap();
        pairs.push((mesh.held.insert(key, planned.clone()), planned));
    }
    pairs
}

/// Sends what has changed, as text.
fn take_apart(before: Option<&Plan>, after: &Plan, assembly: &mut Assembly) {
    let texts = |plan: &Plan| -> BTreeMap<String, String> {
        plan.parts().iter().map(|part| (part.name(), serde_json::to_string(part).unwrap())).collect()
    };
    let (old, new) = (before.map(texts).unwrap_or_default(), texts(after));
    for (name, text) in &new {
        if old.get(name) != Some(text) {
            assembly.put(serde_json::from_str(text).unwrap(), "");
        }
    }
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        assembly.remove(name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn remembering_changes_nothing_but_the_work(
        commands in proptest::collection::vec((command(), proptest::bool::weighted(0.7)), 1..40),
    ) {
        let mut mesh = Mesh::new(Action::Deny);
        for command in BEGINNING {
            mesh.run(command);
        }
        for (command, plan_now) in commands {
            if !possible(&mesh, &command) {
                continue;
            }
            mesh.run(&command);
            if !plan_now {
                continue;
            }
            let touched = std::mem::take(&mut mesh.touched);
            for (before, after) in replan(&mut mesh) {
                let fresh = Planner::new(settings(Action::Deny)).plan(&mesh.snapshot, &after.plan.proxy).unwrap();
                prop_assert_eq!(&fresh, &after, "after {}", command);
                let mut assembly = Assembly::default();
                take_apart(None, &after.plan, &mut assembly);
                prop_assert_eq!(assembly.plan(after.plan.revision), Some(after.plan.clone()), "after {}", command);
                let Some(before) = before else { continue };
                let mut assembly = Assembly::default();
                take_apart(None, &before.plan, &mut assembly);
                take_apart(Some(&before.plan), &after.plan, &mut assembly);
                prop_assert_eq!(assembly.plan(after.plan.revision), Some(after.plan.clone()), "after {}", command);
                let rebuilt = replaced(&before.plan, &after.plan);
                let changes = diff(&before.plan, &after.plan);
                let changed: BTreeSet<&PartName> = changes.parts.iter().map(|part| &part.part).collect();
                prop_assert!(rebuilt.iter().all(|part| changed.contains(part)), "{:?} for {}", rebuilt, changes);
                if before.subjects.is_disjoint(&touched) {
                    prop_assert!(changes.parts.is_empty(), "not subscribed, yet changed after {}: {}", command, changes);
                    prop_assert_eq!(&before.diagnostics, &after.diagnostics);
                    prop_assert_eq!(&before.subjects, &after.subjects);
                }
            }
        }
    }
}

#[test]
fn two_proxies_that_call_one_service_hold_one_part() {
    let mut mesh = Mesh::new(Action::Allow);
    for command in [
        "service hey-1",
        "sidecar hey-1",
        "service a-1",
        "sidecar a-1 upstreams=hey:9191",
        "service b-1",
        "sidecar b-1 upstreams=hey:9191",
    ] {
        mesh.run(command);
    }
    let mut plan = |id| mesh.planner.plan(&mesh.snapshot, &key(id)).unwrap().plan;
    let (a, b) = (plan("a-1-sidecar-proxy"), plan("b-1-sidecar-proxy"));
    assert!(Arc::ptr_eq(&a.trust, &b.trust));
    assert!(Arc::ptr_eq(&a.outbounds[0], &b.outbounds[0]));
    assert!(Arc::ptr_eq(&a.clusters[0], &b.clusters[0]));
    assert!(Arc::ptr_eq(&a.endpoints[0], &b.endpoints[0]));
}

#[test]
fn parts_that_no_plan_holds_are_forgotten() {
    let mut mesh = Mesh::new(Action::Allow);
    mesh.run("service web-1");
    for round in 0..2_000 {
        mesh.run(&format!("sidecar web-1 upstreams=s{round}:9191"));
        mesh.run("plan web-1-sidecar-proxy");
    }
    // Four shelves saw 2,000 services pass; each may keep its minimum before it sweeps.
    assert!(mesh.planner.remembered() < 4 * 256 + 10, "{}", mesh.planner.remembered());
}
