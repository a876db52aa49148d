//! Routers, splitters and resolvers that are refused: 400, with the path of the field and the reason.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/world.rs"]
mod world;

use world::World;

/// Routers, splitters and resolvers, and the field that is refused.
const ROUTING_REFUSALS: &[(&str, &str)] = &[
    (r#"{"Kind": "service-router", "Name": "*"}"#, "Name: must be the name of a service, not the wildcard *"),
    (
        r#"{"Kind": "service-router", "Name": "a", "Routes": [{"Match": {"HTTP": {"PathPrefix": "x"}}}]}"#,
        "Routes[0].Match.HTTP.PathPrefix: \"x\" does not begin with '/'",
    ),
    (
        r#"{"Kind": "service-router", "Name": "a", "Routes": [{"Destination": {"PrefixRewrite": "/"}}]}"#,
        "Routes[0].Destination.PrefixRewrite: needs a PathExact or PathPrefix in Match, which it takes the place of",
    ),
    (
        r#"{"Kind": "service-router", "Name": "a", "Routes": [{"Destination": {"RetryOn": ["often"]}}]}"#,
        "Routes[0].Destination.RetryOn[0]: \"often\" is no condition of a retry",
    ),
    (
        r#"{"Kind": "service-router", "Name": "a", "Routes": [{"Destination": {"NumRetries": 3}}]}"#,
        "Routes[0].Destination.NumRetries: nothing is tried again",
    ),
    (
        r#"{"Kind": "service-router", "Name": "a", "Routes": [{"Destination": {"RequestHeaders": {"Set": {"Host": "b"}}}}]}"#,
        "Routes[0].Destination.RequestHeaders.Set: host is the proxy's own matter",
    ),
    (
        r#"{"Kind": "service-router", "Name": "a", "Routes": [{"Destination": {}, "Redirect": {"Host": "b"}}]}"#,
        "Routes[0].Redirect: must be left out where Destination is given",
    ),
    (
        r#"{"Kind": "service-router", "Name": "a", "Routes": [{"Redirect": {}}]}"#,
        "Routes[0].Redirect.Host: one of HTTPS, Host, Port, Path and PrefixRewrite must be given",
    ),
    (
        r#"{"Kind": "service-router", "Name": "a", "Routes": [{"Match": {"HTTP": {"QueryParam": [{"Name": "q"}]}}}]}"#,
        "Routes[0].Match.HTTP.QueryParam[0].Present: exactly one of Present, Exact and Regex must be given",
    ),
    (r#"{"Kind": "service-splitter", "Name": "a"}"#, "Splits: no splits are given"),
    (
        r#"{"Kind": "service-splitter", "Name": "a", "Splits": [{"Weight": 99.99}]}"#,
        "Splits: the weights sum to 99.99, not to 100",
    ),
    (
        r#"{"Kind": "service-splitter", "Name": "a", "Splits": [{"Weight": 0.001}]}"#,
        "Splits[0].Weight: 0.001 is no percentage from 0 to 100 in steps of 0.01",
    ),
    (
        r#"{"Kind": "service-resolver", "Name": "a", "DefaultSubset": "v1"}"#,
        "DefaultSubset: \"v1\" is none of the Subsets",
    ),
    (
        r#"{"Kind": "service-resolver", "Name": "a", "Subsets": {"v1": {"Filter": "Service.Port == 1"}}}"#,
        "Subsets.v1.Filter: filter: expected Service.Meta.KEY, Service.Meta or Service.Tags at byte 0",
    ),
    (
        r#"{"Kind": "service-resolver", "Name": "a", "Redirect": {"Service": "b"}, "ConnectTimeout": "1s"}"#,
        "Redirect: stands alone",
    ),
    (
        r#"{"Kind": "service-resolver", "Name": "a", "Redirect": {"Service": "b", "Datacenter": "dc2"}}"#,
        "Redirect.Datacenter: \"dc2\" is another datacenter; this mesh has only \"dc1\"",
    ),
    (
        r#"{"Kind": "service-resolver", "Name": "a", "Failover": {"*": {"Datacenters": ["dc2"]}}}"#,
        "Failover.*.Datacenters[0]: \"dc2\" is another datacenter",
    ),
    (
        r#"{"Kind": "service-resolver", "Name": "a", "Failover": {"v1": {"Service": "b"}}}"#,
        "Failover.v1: is neither * nor one of the Subsets",
    ),
    (
        r#"{"Kind": "service-resolver", "Name": "a", "PrioritizeByLocality": {"Mode": "nearest"}}"#,
        "PrioritizeByLocality.Mode: \"nearest\" is no mode; it is \"failover\" or \"none\"",
    ),
    (
        r#"{"Kind": "service-resolver", "Name": "a", "LoadBalancer": {"Policy": "fastest"}}"#,
        "LoadBalancer.Policy: \"fastest\" is none of",
    ),
    (
        r#"{"Kind": "service-resolver", "Name": "a", "LoadBalancer": {"Policy": "random", "HashPolicies": [{"SourceIP": true}]}}"#,
        "LoadBalancer.HashPolicies: are for the policies ring_hash and maglev",
    ),
    (
        r#"{"Kind": "service-defaults", "Name": "a", "RateLimits": {"InstanceLevel": {"RequestsMaxBurst": 3}}}"#,
        "RateLimits.InstanceLevel.RequestsPerSecond: must be given with RequestsMaxBurst",
    ),
];

#[tokio::test]
async fn what_is_wrong_is_named_by_its_path() {
    let world = World::new();
    for (body, expected) in ROUTING_REFUSALS {
        let (head, text) = world.send("PUT", "/v1/config", body).await;
        assert_eq!(head.status().as_u16(), 400, "{body}: {text}");
        assert!(text.trim_end().starts_with(expected), "{body}: {text}");
    }
}
