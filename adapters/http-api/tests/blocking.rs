//! Blocking queries: who is woken, by what, and how long the others wait. Time is simulated.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/world.rs"]
mod world;

use std::sync::Arc;
use std::time::Duration;

use http::Response;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use world::World;

type Answered = (Response<()>, String);

fn ask(world: &Arc<World>, target: &str) -> JoinHandle<Answered> {
    let (world, target) = (Arc::clone(world), target.to_owned());
    tokio::spawn(async move { world.send("GET", &target, "").await })
}

/// Lets everything run that can run without time passing.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

fn index(answer: &Response<()>) -> u64 {
    answer.headers()["x-consul-index"].to_str().unwrap().parse().unwrap()
}

async fn register(world: &Arc<World>, name: &str, port: u16) -> u64 {
    let body = format!(r#"{{"Name": "{name}", "Port": {port}}}"#);
    let (answer, text) = world.send("PUT", "/v1/agent/service/register", &body).await;
    assert_eq!(answer.status(), 200, "{text}");
    index(&answer)
}

#[tokio::test(start_paused = true)]
async fn a_write_wakes_exactly_those_who_read_what_it_changed() {
    let world = World::new();
    let web = register(&world, "web", 80).await;
    let api = register(&world, "api", 81).await;
    let targets = [
        ("web", format!("/v1/health/service/web?index={web}")),
        ("web", format!("/v1/catalog/service/web?index={web}")),
        ("web", format!("/v1/health/connect/web?index={web}")),
        ("api", format!("/v1/health/service/api?index={api}")),
        ("gone", "/v1/health/service/gone?index=1".to_owned()),
        ("roots", "/v1/agent/connect/ca/roots?index=1".to_owned()),
        ("nodes", "/v1/catalog/nodes?index=1".to_owned()),
        ("intentions", "/v1/connect/intentions?index=1".to_owned()),
        ("defaults", "/v1/config/service-defaults/web?index=1".to_owned()),
        ("leaf", "/v1/agent/connect/ca/leaf/web?index=5".to_owned()),
        ("routers", "/v1/config/service-router?index=1".to_owned()),
    ];
    let waiting: Vec<_> = targets.iter().map(|(what, target)| (*what, target, ask(&world, target))).collect();
    settle().await;
    assert!(waiting.iter().all(|(.., asked)| !asked.is_finished()), "somebody did not wait");
    let written = register(&world, "web", 8080).await;
    settle().await;
    for (what, target, asked) in waiting {
        assert_eq!(asked.is_finished(), what == "web", "{target}");
        if what == "web" {
            let (answer, _) = asked.await.unwrap();
            assert_eq!(index(&answer), written, "{target}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_kind_of_read_is_woken_by_its_write() {
    let world = World::new();
    register(&world, "web", 80).await;
    let defaults = r#"{"Kind": "service-defaults", "Name": "web", "Protocol": "http"}"#;
    let deny = r#"{"Action": "deny"}"#;
    let exact = "/v1/connect/intentions/exact?source=api&destination=web";
    let node = r#"{"Node": "other", "Address": "10.0.0.2"}"#;
    for (target, method, write, body) in [
        ("/v1/config/service-defaults/web?index=1", "PUT", "/v1/config", defaults),
        ("/v1/config/service-defaults?index=3", "DELETE", "/v1/config/service-defaults/web", ""),
        (&format!("{exact}&index=4"), "PUT", exact, deny),
        ("/v1/connect/intentions/match?by=destination&name=web&index=5", "DELETE", exact, ""),
        ("/v1/catalog/nodes?index=6", "PUT", "/v1/catalog/register", node),
        ("/v1/catalog/services?index=7", "PUT", "/v1/agent/service/register", r#"{"Name": "api"}"#),
        ("/v1/catalog/node/node-1?index=8", "PUT", "/v1/agent/service/deregister/api", ""),
        (
            "/v1/health/node/node-1?index=9",
            "PUT",
            "/v1/agent/service/register",
            r#"{"Name": "web", "Check": {"TTL": "9s"}}"#,
        ),
        ("/v1/health/state/any?index=10", "PUT", "/v1/agent/check/pass/service:web", ""),
        ("/v1/health/checks/web?index=11", "PUT", "/v1/agent/check/fail/service:web", ""),
    ] {
        let asked = ask(&world, target);
        settle().await;
        assert!(!asked.is_finished(), "{target} does not wait");
        let (answer, text) = world.send(method, write, body).await;
        assert_eq!(answer.status(), 200, "{write}: {text}");
        settle().await;
        assert!(asked.is_finished(), "{target} was not woken");
        let (read, _) = asked.await.unwrap();
        assert_eq!(index(&read), index(&answer), "{target}");
    }
}

#[tokio::test(start_paused = true)]
async fn waits_end_after_the_time_asked_for_and_up_to_a_sixteenth_more() {
    let world = World::new();
    for (wait, seconds) in [("&wait=16s", 16), ("", 300), ("&wait=0s", 300), ("&wait=24h", 600)] {
        let begun = Instant::now();
        let (answer, _) = ask(&world, &format!("/v1/catalog/nodes?index=1{wait}")).await.unwrap();
        let waited = begun.elapsed();
        let asked = Duration::from_secs(seconds);
        assert!(waited >= asked && waited <= asked + asked / 16 + Duration::from_millis(5), "{wait}: {waited:?}");
        assert_eq!((answer.status().as_u16(), index(&answer)), (200, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn reads_that_must_not_wait_answer_at_once() {
    let world = World::new();
    register(&world, "web", 80).await;
    let begun = Instant::now();
    for query in ["", "?index=0", "?index=", "?index=1", "?index=4", "?index=18446744073709551615"] {
        let (answer, _) = world.send("GET", &format!("/v1/health/service/web{query}"), "").await;
        assert_eq!((answer.status().as_u16(), index(&answer)), (200, 2), "{query}");
    }
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn an_index_from_a_write_elsewhere_waits() {
    let world = World::new();
    register(&world, "web", 80).await;
    let api = register(&world, "api", 81).await;
    let asked = ask(&world, &format!("/v1/health/service/web?index={api}"));
    settle().await;
    assert!(!asked.is_finished());
    let written = register(&world, "web", 82).await;
    assert_eq!(index(&asked.await.unwrap().0), written);
}

#[tokio::test(start_paused = true)]
async fn the_agents_services_wait_by_hash() {
    let world = World::new();
    register(&world, "web", 80).await;
    let (answer, _) = world.send("GET", "/v1/agent/service/web?hash=other", "").await;
    let hash = answer.headers()["x-consul-contenthash"].to_str().unwrap().to_owned();
    let asked = ask(&world, &format!("/v1/agent/service/web?hash={hash}"));
    settle().await;
    register(&world, "api", 81).await;
    register(&world, "web", 80).await;
    settle().await;
    assert!(!asked.is_finished(), "nothing of web has changed");
    register(&world, "web", 8080).await;
    let (changed, text) = asked.await.unwrap();
    assert!(text.contains("8080"), "{text}");
    assert_ne!(changed.headers()["x-consul-contenthash"].to_str().unwrap(), hash);
    let (_, text) = ask(&world, "/v1/agent/service/web?hash=x&wait=10s").await.unwrap();
    assert!(text.contains("8080"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn without_the_store_reads_go_on_and_say_how_old_they_may_be_and_consistent_ones_are_refused() {
    let world = World::new();
    let target = "/v1/catalog/nodes";
    let (current, _) = world.send("GET", &format!("{target}?consistent"), "").await;
    assert_eq!((current.status().as_u16(), &current.headers()["x-consul-lastcontact"]), (200, &"0".parse().unwrap()));
    world.cut_off("No cluster leader: etcd has no leader");
    for target in [target.to_owned(), format!("{target}?stale")] {
        let (answer, text) = world.send("GET", &target, "").await;
        assert_eq!(answer.status(), 200, "{text}");
        assert_eq!(answer.headers()["x-consul-knownleader"], "false");
        assert_eq!(answer.headers()["x-consul-lastcontact"], "7400");
    }
    let (refused, text) = world.send("GET", &format!("{target}?consistent"), "").await;
    assert_eq!((refused.status().as_u16(), text.as_str()), (500, "No cluster leader: etcd has no leader"));
    // An index that it has not come to is another server's: an older answer would take that one's back.
    let ahead = format!("{target}?index=1000000&wait=1s");
    let (refused, text) = world.send("GET", &ahead, "").await;
    assert_eq!((refused.status().as_u16(), text.as_str()), (500, "No cluster leader: etcd has no leader"));
}

#[tokio::test(start_paused = true)]
async fn what_it_takes_to_catch_up_is_part_of_the_wait_and_ends() {
    let world = World::new();
    let web = register(&world, "web", 80).await;
    let ahead = format!("/v1/catalog/service/web?index={}&wait=8s", web + 1);
    world.catches_up_after(Duration::from_secs(4));
    let begun = Instant::now();
    let asked = ask(&world, &ahead);
    settle().await;
    register(&world, "api", 81).await;
    let (answer, text) = asked.await.unwrap();
    assert_eq!((answer.status().as_u16(), index(&answer)), (200, web + 1), "{text}");
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_secs(8) && waited < Duration::from_secs(9), "{waited:?}");

    world.catches_up_after(Duration::from_secs(60));
    let begun = Instant::now();
    let (refused, text) = world.send("GET", "/v1/catalog/service/web?index=9&wait=1s", "").await;
    assert_eq!((refused.status().as_u16(), text.as_str()), (500, "No cluster leader: index 9 is not known here yet"));
    assert_eq!(begun.elapsed(), Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn an_index_that_was_given_is_not_taken_back_where_nothing_has_changed_since() {
    let world = World::new();
    let web = register(&world, "web", 80).await;
    // As a server gives it that was started anew after the last change.
    let later = register(&world, "api", 81).await;
    assert!(later > web);
    let (answer, text) = ask(&world, &format!("/v1/catalog/service/web?index={later}&wait=1s")).await.unwrap();
    assert_eq!((answer.status().as_u16(), index(&answer)), (200, later), "{text}");
}
