//! Terminating gateways that are refused: 400, with the path of the field and the reason.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/world.rs"]
mod world;

use world::World;

/// Services of an entry, and how it is refused.
const SERVICES: &[(&str, &str)] = &[
    (r#"{}"#, "Services[0].Name: must be given"),
    (r#"{"Name": "a b"}"#, "Services[0].Name: "),
    (r#"{"Name": "a"}, {"Name": "a"}"#, "Services[1].Name: a is given twice"),
    (r#"{"Name": "*"}, {"Name": "*"}"#, "Services[1].Name: * is given twice"),
    (r#"{"Name": "gw"}"#, "Services[0].Name: a gateway cannot stand for itself"),
    (r#"{"Name": "a", "CAfiles": "/ca"}"#, "Services[0].CAfiles: unknown field"),
    (r#"{"Name": "a", "CAFile": "/ca", "CertFile": "/a"}"#, "Services[0].KeyFile: must be given with CertFile"),
    (r#"{"Name": "a", "CAFile": "/ca", "KeyFile": "/a"}"#, "Services[0].CertFile: must be given with KeyFile"),
    (r#"{"Name": "a", "CertFile": "/a", "KeyFile": "/b"}"#, "Services[0].CertFile: needs CAFile, without which"),
    (r#"{"Name": "a", "SNI": "a.example.com"}"#, "Services[0].SNI: needs CAFile, without which"),
    (r#"{"Name": "a", "CAFile": "/ca", "SNI": "*.example.com"}"#, "Services[0].SNI: \"*.example.com\" is no host name"),
    (r#"{"Name": "a", "CAFile": "/ca", "SNI": "192.0.2.1"}"#, "Services[0].SNI: \"192.0.2.1\" is no host name"),
    (r#"{"Name": "a", "AllowLocalAddresses": true}"#, "Services[0].AllowLocalAddresses: is for \"*\""),
    (r#"{"Name": "a", "Namespace": "other"}"#, "Services[0].Namespace: "),
];

#[tokio::test]
async fn an_entry_is_refused_by_the_field_that_is_wrong() {
    let world = World::new();
    for (services, expected) in SERVICES {
        let body = format!(r#"{{"Kind": "terminating-gateway", "Name": "gw", "Services": [{services}]}}"#);
        let (head, text) = world.send("PUT", "/v1/config", &body).await;
        assert_eq!(head.status().as_u16(), 400, "{services}: {text}");
        assert!(text.starts_with(expected), "{services}: {text}");
    }
}

#[tokio::test]
async fn settings_that_it_does_not_heed_are_refused() {
    let world = World::new();
    for (config, expected) in [
        (r#"{"bind_address": "gw.example"}"#, "Proxy.Config.bind_address: \"gw.example\" is no IP to listen on"),
        (r#"{"max_inbound_connections": 5}"#, "Proxy.Config.max_inbound_connections: is not supported"),
        (r#"{"envoy_gateway_no_default_bind": true}"#, "Proxy.Config.envoy_gateway_no_default_bind: is not supported"),
    ] {
        let body = format!(
            r#"{{"Name": "gw", "Kind": "terminating-gateway", "Port": 8443, "Proxy": {{"Config": {config}}}}}"#
        );
        let (head, text) = world.send("PUT", "/v1/agent/service/register", &body).await;
        assert_eq!(head.status().as_u16(), 400, "{config}: {text}");
        assert!(text.contains(expected), "{config}: {text}");
    }
}
