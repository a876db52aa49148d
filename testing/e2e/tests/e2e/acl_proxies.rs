//! Who is served as a proxy where access is controlled: what it is sent has a private key in it.

use std::time::Duration;

use serde_json::json;
use starling_e2e::{Mesh, OwnProxy, Sidecar, Xds, eventually, eventually_within, free_port};

use crate::acl::{made, server, shown, token};
use crate::apart::node;

/// An agent apart at which anybody may read whatever a proxy has to know before it asks for its plan.
async fn agent(server: &Mesh, root: &str) -> Mesh {
    let reads = ["agent", "node", "service"].map(|what| format!("{what}_prefix \"\" {{ policy = \"read\" }}"));
    made(server, "/v1/acl/policy", root, &json!({"Name": "reads", "Rules": reads.join(" ")})).await;
    let anonymous = "/v1/acl/token/00000000-0000-0000-0000-000000000002";
    made(server, anonymous, root, &json!({"Policies": [{"Name": "reads"}]})).await;
    let join =
        server.cli(&["token", "create", "--join", "--services", "web,api", "--token", root]).await.success().stdout;
    Mesh::start(node(server, "n1", Some(join.trim()))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_is_served_for_a_token_that_may_write_its_service_and_for_as_long() {
    let (server, root) = server().await;
    let agent = agent(&server, &root).await;
    let web = made(&server, "/v1/acl/token", &root, &json!({"ServiceIdentities": [{"ServiceName": "web"}]})).await;
    let [web, accessor] = ["SecretID", "AccessorID"].map(|field| web[field].as_str().expect("a text").to_owned());
    let api = token(
        &server,
        &root,
        "api",
        "service \"api\" { policy = \"write\" } service_prefix \"\" { policy = \"read\" }",
    )
    .await;
    let ports = [free_port(), free_port()];
    for (name, port) in [("web", ports[0]), ("api", ports[1])] {
        let sidecar = json!({"Name": name, "Port": free_port(), "Connect": {"SidecarService": {"Port": port}}});
        assert_eq!(agent.put(&shown("/v1/agent/service/register", &root), &sidecar).await.status, 200);
    }

    // Nobody, and who stands for another service, is told so; the key is not sent.
    for (more, words) in [
        (&[][..], "anonymous token lacks permission 'service:write' on \"web\""),
        (&["-token", &api], "lacks permission 'service:write' on \"web\""),
    ] {
        let mut refused = OwnProxy::spawn(&agent, "web", more);
        eventually("the proxy is refused", async || {
            let ended = refused.process.ended();
            anyhow::ensure!(ended.is_some_and(|status| !status.success()), "it runs: {}", refused.process.log());
            Ok(())
        })
        .await;
        assert!(refused.process.log().contains(words), "{}", refused.process.log());
    }
    let stranger = Sidecar::spawn_with(&agent, "web", Xds::Incremental, &["-token", &api]).await;
    eventually("Envoy is refused", async || {
        anyhow::ensure!(stranger.process.log().contains("'service:write'"), "{}", stranger.process.log());
        Ok(())
    })
    .await;
    let has_secrets = async |envoy: &Sidecar| envoy.config_dump().await.to_string().contains("dynamic_active_secrets");
    assert!(!has_secrets(&stranger).await);
    drop(stranger);

    // Who may is served, by both planes; and not any longer than the token is there.
    let mut envoy = Sidecar::spawn_with(&agent, "web", Xds::Incremental, &["-token", &web]).await;
    envoy.live("web", &ports[..1]).await;
    assert!(has_secrets(&envoy).await);
    let mut own = OwnProxy::spawn(&agent, "api", &["-token", &api]);
    own.live("api", &ports[1..]).await;
    assert_eq!(server.delete(&shown(&format!("/v1/acl/token/{accessor}"), &root)).await.status, 200);
    // An agent remembers a token for half a minute.
    eventually_within(Duration::from_secs(90), "the stream of the proxy ends", async || {
        anyhow::ensure!(!envoy.is_connected().await, "it is connected");
        Ok(())
    })
    .await;
    // What it has it serves on.
    envoy.live("web", &ports[..1]).await;
    own.process.expect_running().expect("the other proxy runs");
}
