//! Routers, splitters and resolvers in traffic, through real Envoys.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use starling_e2e::{Answer, Instance, Mesh, MeshOptions, Method, Workload, eventually, http};

/// Requests over which a share is looked at.
const SAMPLE: usize = 200;

async fn version(mesh: &Mesh, id: &str, version: &str) -> Instance {
    Workload::new("api").id(id).field("Meta", json!({"version": version})).start(mesh).await
}

/// Writes a config entry, and waits until it is in force.
async fn write(mesh: &Mesh, entry: Value) {
    let change = mesh.config(&entry).await.index();
    mesh.settled(change).await;
}

async fn get(web: &Instance, path: &str, headers: &[(&str, &str)]) -> Answer {
    http::request(Method::GET, &web.upstream("api"), path, headers, "").await.expect("an answer")
}

/// How often each instance answers.
async fn shares(web: &Instance, requests: usize) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    for _ in 0..requests {
        let answer = get(web, "/", &[]).await.success();
        *shares.entry(answer.json()["name"].as_str().expect("a name").to_owned()).or_default() += 1;
    }
    shares
}

fn subsets() -> Value {
    json!({
        "Kind": "service-resolver", "Name": "api", "DefaultSubset": "v1",
        "Subsets": {
            "v1": {"Filter": "Service.Meta.version == v1"},
            "v2": {"Filter": "Service.Meta.version == v2"},
        },
    })
}

#[tokio::test]
async fn requests_take_the_routes_that_are_written() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    for service in ["api", "admin"] {
        mesh.protocol(service, "http").await;
    }
    let (_v1, _v2, _admin, web) = tokio::join!(
        version(&mesh, "api-v1", "v1"),
        version(&mesh, "api-v2", "v2"),
        Workload::new("admin").start(&mesh),
        Workload::new("web").calls("api").start(&mesh),
    );
    web.served_by("api", &["api-v1", "api-v2"], "nothing is written").await;

    write(&mesh, subsets()).await;
    web.served_by("api", &["api-v1"], "v1 is the default").await;

    let split = |v1: f64, v2: f64| {
        let part = |subset: &str, weight: f64| json!({"Weight": weight, "ServiceSubset": subset, "ResponseHeaders": {"Set": {"x-version": subset}}});
        json!({"Kind": "service-splitter", "Name": "api", "Splits": [part("v1", v1), part("v2", v2)]})
    };
    write(&mesh, split(80.0, 20.0)).await;
    let canary = shares(&web, SAMPLE).await.get("api-v2").copied().unwrap_or(0);
    // Five standard deviations of 40.
    assert!((12..=68).contains(&canary), "{canary} of {SAMPLE}");
    write(&mesh, split(0.0, 100.0)).await;
    assert_eq!(shares(&web, 20).await, BTreeMap::from([("api-v2".to_owned(), 20)]));
    assert_eq!(get(&web, "/", &[]).await.header("x-version"), Some("v2"));

    write(&mesh, router()).await;
    let name = |answer: Answer| answer.json()["name"].as_str().map(str::to_owned);
    let by_header = get(&web, "/", &[("x-version", "v1")]).await.success();
    assert_eq!(name(by_header).as_deref(), Some("api-v1"));
    let rewritten = get(&web, "/admin/users?q=1", &[]).await.success();
    assert_eq!(rewritten.json()["request"]["path"], "/users");
    assert_eq!(name(rewritten).as_deref(), Some("admin"));
    // Routes are compared with the path that the service will see.
    let hidden = get(&web, "/x/..%2Fadmin/users", &[]).await.success();
    assert_eq!(name(hidden).as_deref(), Some("admin"));
    assert_eq!(name(get(&web, "/?debug=1", &[]).await.success()).as_deref(), Some("admin"));
    let redirected = get(&web, "/old/page?q=1", &[]).await;
    let location = format!("http://{}/new/page?q=1", web.upstream("api"));
    assert_eq!((redirected.status, redirected.header("location")), (308, Some(location.as_str())));
    assert_eq!(get(&web, "/broken", &[]).await.status, 418);
    assert_eq!(name(get(&web, "/oldest", &[]).await.success()).as_deref(), Some("api-v2"));

    limited(&mesh, &web).await;
}

fn router() -> Value {
    json!({"Kind": "service-router", "Name": "api", "Routes": [
        {
            "Match": {"HTTP": {"Header": [{"Name": "x-version", "Exact": "v1"}]}},
            "Destination": {"ServiceSubset": "v1"},
        },
        {
            "Match": {"HTTP": {"PathPrefix": "/admin/"}},
            "Destination": {
                "Service": "admin", "PrefixRewrite": "/", "IdleTimeout": "30s",
                "Mirror": {"Service": "api", "ServiceSubset": "v2", "Percent": 50},
                "RetryOn": ["reset"], "PerTryTimeout": "5s", "RetryBudget": {"Percent": 20},
                "RequestHeaders": {"Add": {"x-one": "100%"}, "Set": {"x-two": "2"}, "Remove": ["x-three"]},
            },
        },
        {
            "Match": {"HTTP": {"QueryParam": [{"Name": "debug", "Exact": "1"}], "Methods": ["GET", "POST"]}},
            "Destination": {"Service": "admin"},
        },
        {"Match": {"HTTP": {"PathExact": "/old/page"}}, "Redirect": {"Path": "/new/page", "Status": 308}},
        {"Match": {"HTTP": {"PathRegex": "/brok.n"}}, "Destination": {"Fault": {"Abort": {"Status": 418}}}},
    ]})
}

/// An instance answers 429 past its limit.
async fn limited(mesh: &Mesh, web: &Instance) {
    let defaults = json!({
        "Kind": "service-defaults", "Name": "api", "Protocol": "http",
        "RateLimits": {"InstanceLevel": {"RequestsPerSecond": 1, "RequestsMaxBurst": 2}},
    });
    write(mesh, defaults).await;
    eventually("requests past the limit are refused", async || {
        let status = get(web, "/", &[]).await.status;
        anyhow::ensure!(status == 429, "{status}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn calls_go_elsewhere_where_nobody_is_left_and_are_tried_again() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    for service in ["api", "backup"] {
        mesh.protocol(service, "http").await;
    }
    let flaky = Workload::new("api").id("api-v1").field("Meta", json!({"version": "v1"}));
    let flaky = flaky.env("ERROR_RATE", "0.5").env("ERROR_TYPE", "http_error").env("ERROR_CODE", "503");
    let (_v1, _v2, _backup, web) = tokio::join!(
        flaky.start(&mesh),
        version(&mesh, "api-v2", "v2"),
        Workload::new("backup").start(&mesh),
        Workload::new("web").calls("api").start(&mesh),
    );
    let mut resolver = subsets();
    resolver["Failover"] = json!({"v1": {"Targets": [{"ServiceSubset": "v2"}, {"Service": "backup"}]}});
    resolver["LoadBalancer"] = json!({
        "Policy": "ring_hash", "HashPolicies": [{"Field": "header", "FieldValue": "x-user"}, {"SourceIP": true}],
    });
    write(&mesh, resolver).await;
    let mut failures = 0;
    for _ in 0..30 {
        failures += usize::from(get(&web, "/", &[]).await.status == 503);
    }
    assert!(failures > 0, "half of the requests fail");

    // The chance that one fails 21 times is below 10⁻⁶.
    let retry = json!({"NumRetries": 20, "RetryOnStatusCodes": [503], "RetryOnConnectFailure": true});
    write(&mesh, json!({"Kind": "service-router", "Name": "api", "Routes": [{"Destination": retry}]})).await;
    assert_eq!(shares(&web, 30).await, BTreeMap::from([("api-v1".to_owned(), 30)]));

    for (id, next) in [("api-v1", "api-v2"), ("api-v2", "backup")] {
        let answer = mesh.put(&format!("/v1/agent/service/deregister/{id}"), &Value::Null).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        web.served_by("api", &[next], &format!("{id} is gone")).await;
    }
}

/// Every setting that the tests above do not see the effect of, one after the other.
fn settings() -> Vec<Value> {
    let balance = |policy: Value| json!({"Kind": "service-resolver", "Name": "api", "LoadBalancer": policy});
    let cookie =
        |config: Value| json!([{"Field": "cookie", "FieldValue": "id", "CookieConfig": config, "Terminal": true}]);
    let matched = |http: Value| json!({"Match": {"HTTP": http}});
    let header = |test: Value| {
        let mut test = test;
        test["Name"] = json!("x-key");
        matched(json!({"Header": [test]}))
    };
    let redirect = |to: Value| json!({"Match": {"HTTP": {"PathPrefix": "/r"}}, "Redirect": to});
    vec![
        balance(json!({"Policy": "least_request", "LeastRequestConfig": {"ChoiceCount": 3}})),
        balance(json!({"Policy": "peak_ewma"})),
        balance(json!({"Policy": "round_robin"})),
        balance(json!({"Policy": "random"})),
        balance(json!({"Policy": "maglev", "HashPolicies": cookie(json!({"TTL": "1h", "Path": "/"}))})),
        balance(json!({"Policy": "maglev", "HashPolicies": cookie(json!({"Session": true}))})),
        balance(json!({
            "Policy": "ring_hash", "RingHashConfig": {"MinimumRingSize": 64, "MaximumRingSize": 128},
            "HashPolicies": [{"Field": "query_parameter", "FieldValue": "user"}],
        })),
        json!({
            "Kind": "service-resolver", "Name": "db", "ConnectTimeout": "1s",
            "LoadBalancer": {"Policy": "maglev", "HashPolicies": [{"SourceIP": true}]},
            "Failover": {"*": {"Service": "api"}},
        }),
        json!({"Kind": "service-router", "Name": "api", "Routes": [
            matched(json!({"PathExact": "/A", "CaseInsensitive": true})),
            matched(json!({"QueryParam": [{"Name": "q", "Present": true}, {"Name": "r", "Regex": "a+"}]})),
            header(json!({"Present": true, "Invert": true})),
            header(json!({"Suffix": "a", "Invert": true, "IgnoreCase": true})),
            header(json!({"Contains": "a"})),
            header(json!({"Regex": "a+"})),
            redirect(json!({"HTTPS": true, "Port": 8443, "StripQuery": true})),
            redirect(json!({"Host": "example.com", "PrefixRewrite": "/s", "Status": 307})),
            {"Destination": {
                "Fault": {"Delay": {"Duration": "5ms", "Percent": 0.01}, "Abort": {"Status": 503, "Percent": 0.5}},
                "RetryOn": ["5xx", "gateway-error", "retriable-4xx", "refused-stream", "unavailable", "cancelled",
                    "deadline-exceeded", "internal", "resource-exhausted", "reset-before-request"],
            }},
        ]}),
        json!({"Kind": "service-defaults", "Name": "web", "UpstreamConfig": {
            "Overrides": [{"Name": "db", "ConnectTimeoutMs": 250, "Limits": {"MaxConnections": 3}}],
            "Defaults": {"PassiveHealthCheck": {
                "Interval": "5s", "MaxFailures": 3, "EnforcingConsecutive5xx": 50, "MaxEjectionPercent": 30,
                "BaseEjectionTime": "10s",
            }},
        }}),
    ]
}

#[tokio::test]
async fn every_setting_is_taken_by_envoy() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("api", "http").await;
    let _web = Workload::new("web").calls("api").calls("db").start(&mesh).await;
    for entry in settings() {
        write(&mesh, entry).await;
    }
}
