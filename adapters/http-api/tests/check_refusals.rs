//! Definitions of checks that are refused: 400, with the path of the field and the reason.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/world.rs"]
mod world;

use world::World;

/// A definition, and how it is refused.
const CHECKS: &[(&str, &str)] = &[
    ("{}", "TTL: a check needs one of HTTP, TCP, UDP, H2PING, GRPC, TTL, ScriptArgs or AliasService"),
    (
        r#"{"DockerContainerID": "../a", "Args": ["true"], "Interval": "1s"}"#,
        r#"DockerContainerID: "../a" is no identifier or name of a container"#,
    ),
    (r#"{"UDP": "a:1", "H2PING": "a:1", "Interval": "1s"}"#, "H2PING: contradicts UDP: a check is of one kind"),
    (r#"{"H2PING": "a", "Interval": "1s"}"#, r#"H2PING: "a" is not of the form HOST:PORT"#),
    (r#"{"UDP": "a:1"}"#, "Interval: must be given and more than 0 for this kind of check"),
    (r#"{"Name": "c", "HTPP": "http://a/", "Interval": "1s"}"#, "HTPP: unknown field"),
    (r#"{"TTL": "1s"}"#, "Name: must be given"),
    (r#"{"Name": "c", "TTL": "soon"}"#, "TTL: invalid duration \"soon\"; write it like \"10s\" or \"1m30s\""),
    (r#"{"Name": "c", "TTL": true}"#, "TTL: invalid duration true; write it like \"10s\" or \"1m30s\""),
    (r#"{"Name": "c", "TTL": "-1s"}"#, "TTL: invalid duration \"-1s\"; write it like \"10s\" or \"1m30s\""),
    (r#"{"Name": "c", "TTL": "1s", "Interval": "1s"}"#, "Interval: must not be given together with TTL"),
    (r#"{"Name": "c", "HTTP": "http://a/"}"#, "Interval: must be given and more than 0 for this kind of check"),
    (
        r#"{"Name": "c", "HTTP": "a.example/x", "Interval": "1s"}"#,
        "HTTP: \"a.example/x\" is no absolute http or https URL",
    ),
    (r#"{"Name": "c", "HTTP": "ftp://a/", "Interval": "1s"}"#, "HTTP: \"ftp://a/\" is no absolute http or https URL"),
    (r#"{"Name": "c", "HTTP": "http://a/", "Interval": "1s", "Method": "G T"}"#, "Method: \"G T\" is no HTTP method"),
    (
        r#"{"Name": "c", "HTTP": "http://a/", "Interval": "1s", "Header": {"x": "y"}}"#,
        "Header.x: must be a list, not a string",
    ),
    (r#"{"Name": "c", "TCP": "a", "Interval": "1s"}"#, "TCP: \"a\" is not of the form HOST:PORT"),
    (r#"{"Name": "c", "GRPC": "a:0", "Interval": "1s"}"#, "GRPC: \"a:0\" is not of the form HOST:PORT"),
    (r#"{"Name": "c", "TCP": "a:1", "TTL": "1s"}"#, "TTL: contradicts TCP: a check is of one kind"),
    (
        r#"{"Name": "c", "OSService": "sshd", "Interval": "1s"}"#,
        "OSService: is not supported in this release; remove it",
    ),
    (
        r#"{"Name": "c", "TTL": "1s", "Status": "fine"}"#,
        "Status: \"fine\" is no check status; it is one of passing, warning, critical",
    ),
    (
        r#"{"Name": "c", "TTL": "1s", "FailuresBeforeWarning": 3}"#,
        "FailuresBeforeWarning: must not be higher than FailuresBeforeCritical",
    ),
    (
        r#"{"Name": "c", "TTL": "1s", "SuccessBeforePassing": -1}"#,
        "SuccessBeforePassing: -1 is outside 0 to 4294967295",
    ),
    (r#"{"Name": "c", "TTL": "1s", "Nope": 1}"#, "Nope: unknown field"),
];

#[tokio::test]
async fn a_definition_is_refused_by_the_field_that_is_wrong() {
    let world = World::new();
    for (body, wanted) in CHECKS {
        world.refuses("/v1/agent/check/register", body, wanted).await;
    }
}
