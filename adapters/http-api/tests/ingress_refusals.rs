//! Ingress gateways that are refused: 400, with the path of the field and the reason.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/world.rs"]
mod world;

use world::World;

/// What stands in the entry beside kind and name, and how it is refused.
const ENTRIES: &[(&str, &str)] = &[
    (r#""Listners": []"#, "Listners: unknown field"),
    (r#""TrustedProxies": ["10.0.0.1/8"]"#, "TrustedProxies[0]: \"10.0.0.1/8\" has bits set behind its prefix"),
    (r#""TrustedProxies": ["lb.example.com"]"#, "TrustedProxies[0]: \"lb.example.com\" is neither an IP address"),
    (r#""Defaults": {"MaxConnections": -1}"#, "Defaults.MaxConnections: -1 is outside 0 to"),
    (r#""Defaults": {"MaxConections": 1}"#, "Defaults.MaxConections: unknown field"),
    (r#""TLS": {"Enabled": true, "TLSMinVersion": "TLSv1_1"}"#, "TLS.TLSMinVersion: \"TLSv1_1\" is not spoken"),
    (r#""TLS": {"TLSMinVersion": "TLSv1_3"}"#, "TLS.TLSMinVersion: needs Enabled"),
    (r#""TLS": {"Enabled": true, "TLSMaxVersion": "TLSv1_2"}"#, "TLS.TLSMaxVersion: TLS 1.3 is always spoken"),
    (r#""TLS": {"Enabled": true, "CipherSuites": ["x"]}"#, "TLS.CipherSuites: is not supported"),
    (r#""TLS": {"SDS": {"ClusterName": "x"}}"#, "TLS.SDS.CertResource: must be given"),
    (
        r#""TLS": {"SDS": {"CertResource": "x"}, "Certificates": [{"CertFile": "/a", "KeyFile": "/b"}]}"#,
        "TLS.Certificates: contradicts SDS",
    ),
    (r#""TLS": {"Certificates": [{"CertFile": "/a"}]}"#, "TLS.Certificates[0].KeyFile: must be given"),
    (
        r#""TLS": {"Certificates": [{"CertFile": "a.crt", "KeyFile": "/a.key"}]}"#,
        "TLS.Certificates[0].CertFile: a.crt is no absolute path",
    ),
    (
        r#""TLS": {"Enabled": false, "Certificates": [{"CertFile": "/a", "KeyFile": "/b"}]}"#,
        "TLS.Certificates: contradicts Enabled",
    ),
];

/// Listeners, and how the entry is refused.
const LISTENERS: &[(&str, &str)] = &[
    (r#"{"Protocol": "http", "Services": [{"Name": "a"}]}"#, "Listeners[0].Port: must be given"),
    (r#"{"Port": 0, "Services": [{"Name": "a"}]}"#, "Listeners[0].Port: port 0 is outside 1 to 65535"),
    (
        r#"{"Port": 80, "Protocol": "udp", "Services": [{"Name": "a"}]}"#,
        "Listeners[0].Protocol: \"udp\" is no protocol",
    ),
    (r#"{"Port": 80, "Protocol": "http"}"#, "Listeners[0].Services: must name a service, or HTTPSRedirect be given"),
    (
        r#"{"Port": 80, "Services": [{"Name": "a"}]}, {"Port": 80, "Services": [{"Name": "b"}]}"#,
        "Listeners[1].Port: port 80 is that of another listener",
    ),
    (
        r#"{"Port": 80, "Services": [{"Name": "a"}, {"Name": "b"}]}"#,
        "Listeners[0].Services[1]: a tcp listener has one service",
    ),
    (
        r#"{"Port": 80, "Services": [{"Name": "a", "Hosts": ["a"]}]}"#,
        "Listeners[0].Services[0].Hosts: a tcp listener has",
    ),
    (
        r#"{"Port": 80, "Services": [{"Name": "a", "ResponseHeaders": {"Remove": ["x"]}}]}"#,
        "Listeners[0].Services[0].ResponseHeaders: is for requests",
    ),
    (
        r#"{"Port": 80, "Protocol": "http", "Services": [{"Name": "*"}]}"#,
        "Listeners[0].Services[0].Name: the wildcard * is",
    ),
    (r#"{"Port": 80, "Protocol": "http", "Services": [{"Name": "a b"}]}"#, "Listeners[0].Services[0].Name: "),
    (
        r#"{"Port": 80, "Protocol": "http", "Services": [{"Name": "a"}, {"Name": "a"}]}"#,
        "Listeners[0].Services[1].Name: a is given twice",
    ),
    (
        r#"{"Port": 80, "Protocol": "http", "Services": [{"Name": "a", "Hosts": ["x.com", "X.COM"]}]}"#,
        "Listeners[0].Services[0].Hosts[1]: x.com is given twice",
    ),
    (
        r#"{"Port": 80, "Protocol": "http", "Services": [{"Name": "a", "Hosts": ["x.com"]}, {"Name": "b", "Hosts": ["y.com", "x.com"]}]}"#,
        "Listeners[0].Services[1].Hosts[1]: x.com is a host of a",
    ),
    (
        r#"{"Port": 80, "Protocol": "http", "Services": [{"Name": "a", "Hosts": ["x.com:80"]}]}"#,
        "Listeners[0].Services[0].Hosts[0]: \"x.com:80\" is no host",
    ),
    (
        r#"{"Port": 80, "Protocol": "http", "Services": [{"Name": "a", "Hosts": ["a.*"]}]}"#,
        "Listeners[0].Services[0].Hosts[0]: \"a.*\" is no host",
    ),
    (
        r#"{"Port": 80, "Protocol": "http", "Services": [{"Name": "a", "TLS": {"SDS": {"Certificate": "x"}}}]}"#,
        "Listeners[0].Services[0].TLS.SDS.Certificate: unknown field",
    ),
    (
        r#"{"Port": 80, "HTTPSRedirect": {"Status": 302}}"#,
        "Listeners[0].HTTPSRedirect.Status: 302 is neither 301 nor 308",
    ),
    (r#"{"Port": 80, "Protocol": "tcp", "HTTPSRedirect": {}}"#, "Listeners[0].HTTPSRedirect: is for requests"),
    (r#"{"Port": 80, "HTTPSRedirect": {}, "TLS": {"Enabled": true}}"#, "Listeners[0].HTTPSRedirect: is for who comes"),
    (r#"{"Port": 80, "HTTPSRedirect": {}, "Services": [{"Name": "a"}]}"#, "Listeners[0].Services[0]: is never reached"),
];

#[tokio::test]
async fn what_is_wrong_is_named_by_its_path() {
    let world = World::new();
    let listeners = LISTENERS.iter().map(|(text, expected)| (format!(r#""Listeners": [{text}]"#), *expected));
    let entries = ENTRIES.iter().map(|(text, expected)| ((*text).to_owned(), *expected));
    for (text, expected) in entries.chain(listeners) {
        let body = format!(r#"{{"Kind": "ingress-gateway", "Name": "gw", {text}}}"#);
        let (head, text) = world.send("PUT", "/v1/config", &body).await;
        assert_eq!(head.status().as_u16(), 400, "{body}: {text}");
        assert!(text.trim_end().starts_with(expected), "{body}: {text}");
    }
    for name in ["*", "", "a b"] {
        let body = format!(r#"{{"Kind": "ingress-gateway", "Name": "{name}"}}"#);
        let (head, text) = world.send("PUT", "/v1/config", &body).await;
        assert_eq!((head.status().as_u16(), text.starts_with("Name: ")), (400, true), "{body}: {text}");
    }
}
