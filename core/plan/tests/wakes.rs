//! Whom a change wakes: a gateway out of the mesh and its callers by what they have to do with, and by nothing else.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "story/mesh.rs"]
mod mesh;

use starling_model::Action;

use mesh::{Mesh, key};

/// The proxies among these that a command wakes.
fn woken<'p>(mesh: &mut Mesh, proxies: &[&'p str], command: &str) -> Vec<&'p str> {
    let subscribed: Vec<_> =
        proxies.iter().map(|proxy| mesh.planner.plan(&mesh.snapshot, &key(proxy)).unwrap().subjects).collect();
    mesh.touched.clear();
    mesh.run(command);
    let woken = |(proxy, subjects): (&&'p str, _)| (!mesh.touched.is_disjoint(subjects)).then_some(*proxy);
    proxies.iter().zip(&subscribed).filter_map(woken).collect()
}

fn mesh() -> Mesh {
    let mut mesh = Mesh::new(Action::Allow);
    for command in [
        "node n2 10.0.0.2",
        "service legacy-1 address=192.0.2.1",
        "service other-1 address=192.0.2.2",
        "service web-1",
        "sidecar web-1 upstreams=legacy:9191",
        "exit-gateway n2/egress port=8443",
        r#"terminating egress {"services":[{"service":{"service":"legacy"}}]}"#,
    ] {
        mesh.run(command);
    }
    mesh
}

#[test]
fn a_gateway_is_woken_by_what_it_names_and_callers_by_the_gateway() {
    let (mut mesh, gateway, caller) = (mesh(), "n2/egress", "web-1-sidecar-proxy");
    let both = [gateway, caller];
    for (command, expected) in [
        ("service other-2 address=192.0.2.3", &[][..]),
        ("check other-1 critical", &[]),
        ("intention web -> other deny", &[]),
        ("defaults other protocol=http", &[]),
        ("service late-1 address=192.0.2.4", &[]),
        ("check legacy-1 warning", &both),
        ("intention web -> legacy deny", &[gateway]),
        ("check n2/egress warning", &[caller]),
        (r#"terminating egress {"services":[{"service":{"service":"legacy"},"keeps_host":true}]}"#, &[gateway]),
        (r#"terminating other {"services":[{"service":{"service":"other"}}]}"#, &[]),
    ] {
        assert_eq!(woken(&mut mesh, &both, command), expected, "{command}");
    }
}

#[test]
fn who_stands_for_all_is_woken_by_who_comes_and_goes_and_not_by_those_inside() {
    let (mut mesh, gateway) = (mesh(), ["n2/egress"]);
    mesh.run(r#"terminating egress {"services":[{"service":"any"}]}"#);
    for (command, expected) in [
        ("service late-1 address=192.0.2.4", &gateway[..]),
        ("service late-2 address=192.0.2.5", &gateway),
        ("check web-1 critical", &[]),
        ("service web-2", &gateway[..0]),
        ("sidecar web-2", &[]),
        ("sidecar late-1", &gateway),
        ("check late-1 critical", &[]),
        ("delete instance other-1", &gateway),
    ] {
        assert_eq!(woken(&mut mesh, &gateway, command), expected, "{command}");
    }
}
