//! Which requests go where, and what is done to them on the way.

use std::collections::{BTreeMap, BTreeSet};

use starling_model::{
    Action, HeaderEdits, HeaderMatch, HeaderTest, IntentionPermission, PathMatch, Protocol, QueryMatch, QueryTest,
    RedirectPath, RedirectStatus, RequestMatch, RouteRedirect,
};
use starling_traffic::{MirrorTo, RouteRule, RouteTable, RuleAction};

use super::{Mesh, always, percent, rule, to};
use crate::wire::eventually;
use crate::world::{Setup, World};

fn path(path: PathMatch) -> RequestMatch {
    RequestMatch { path: Some(path), ..RequestMatch::default() }
}

fn prefix(text: &str) -> RequestMatch {
    path(PathMatch::Prefix(text.to_owned()))
}

fn edits(add: &[(&str, &str)], set: &[(&str, &str)], remove: &[&str]) -> HeaderEdits {
    let map = |pairs: &[(&str, &str)]| -> BTreeMap<_, _> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    HeaderEdits { add: map(add), set: map(set), remove: remove.iter().map(|it| (*it).to_owned()).collect() }
}

#[tokio::test]
async fn a_splitter_sends_each_subset_its_share() {
    const REQUESTS: usize = 1_000;
    let mut mesh = Mesh::new(Protocol::Http).await;
    let (old, new) = (mesh.backend("old").await, mesh.backend("new").await);
    mesh.cluster("v1.api", &[&old]);
    mesh.cluster("v2.api", &[&new]);
    mesh.routes(vec![always(to(&[("v1.api", 90), ("v2.api", 10)]))]);
    mesh.serve().await;
    let mut client = mesh.client().await;
    for _ in 0..REQUESTS {
        client.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
        assert_eq!(client.message().await.status(), 200);
    }
    let (old, new) = (old.count(), new.count());
    assert_eq!(old + new, REQUESTS);
    // Six standard deviations of 1,000 draws at 10 %: 57.
    assert!((43..=157).contains(&new), "{new} of {REQUESTS} to the canary");

    // On the connection that stands, another share is in force for the next request.
    mesh.routes(vec![always(to(&[("v2.api", 100)]))]);
    mesh.serve().await;
    for _ in 0..20 {
        client.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
        assert_eq!(client.message().await.text(), "new");
    }
}

#[tokio::test]
async fn the_first_rule_that_matches_decides() {
    let mut mesh = Mesh::new(Protocol::Http).await;
    let mut backends = Vec::new();
    let header = HeaderMatch {
        name: "x-beta".to_owned(),
        test: HeaderTest::Exact("1".to_owned()),
        invert: false,
        ignore_case: false,
    };
    let query = QueryMatch { name: "debug".to_owned(), test: QueryTest::Exact("yes".to_owned()) };
    let rules = [
        ("beta", RequestMatch { headers: vec![header], ..RequestMatch::default() }),
        ("debug", RequestMatch { query: vec![query], ..RequestMatch::default() }),
        ("writes", RequestMatch { methods: vec!["PUT".to_owned()], ..RequestMatch::default() }),
        ("exact", path(PathMatch::Exact("/a".to_owned()))),
        ("prefix", prefix("/a/")),
        ("regex", path(PathMatch::Regex("/v[0-9]+/.*".to_owned()))),
        ("other", RequestMatch::default()),
    ];
    let mut table = Vec::new();
    for (name, matches) in rules {
        let backend = mesh.backend(name).await;
        mesh.cluster(&format!("{name}.api"), &[&backend]);
        backends.push(backend);
        table.push(rule(matches, to(&[(&format!("{name}.api"), 100)])));
    }
    mesh.routes(table);
    mesh.serve().await;
    for (request, expected) in [
        ("GET /a HTTP/1.1\r\nx-beta: 1\r\n", "beta"),
        ("GET /a HTTP/1.1\r\nx-beta: 2\r\n", "exact"),
        ("GET /a?x=1&debug=yes HTTP/1.1\r\n", "debug"),
        ("GET /a?debug=no HTTP/1.1\r\n", "exact"),
        ("PUT /a HTTP/1.1\r\ncontent-length: 0\r\n", "writes"),
        ("GET /a/b HTTP/1.1\r\n", "prefix"),
        ("GET //a/./c/../b HTTP/1.1\r\n", "prefix"),
        ("GET /v12/x HTTP/1.1\r\n", "regex"),
        ("GET /x/v12/x HTTP/1.1\r\n", "other"),
        ("GET /ab HTTP/1.1\r\n", "other"),
    ] {
        assert_eq!(mesh.ask(&format!("{request}host: api\r\n\r\n")).await.text(), expected, "{request}");
    }
    assert_eq!(String::from_utf8(mesh.get2("/a/b").await.body).unwrap(), "prefix", "the same in HTTP/2");
    assert_eq!(String::from_utf8(mesh.get2("/v1/b").await.body).unwrap(), "regex");
}

#[tokio::test]
async fn a_rewritten_path_is_what_the_policy_judges_and_the_application_sees() {
    let permission = |action, path: &str| IntentionPermission {
        action,
        path: Some(PathMatch::Prefix(path.to_owned())),
        methods: Vec::new(),
        headers: Vec::new(),
    };
    let denied = vec![permission(Action::Deny, "/admin"), permission(Action::Allow, "/")];
    let mut world = World::start(Setup::of(Protocol::Http).by_request(denied)).await;
    let _app = world.app.mirror();
    let old = world.web.plan.routes[0].table.rules()[0].clone();
    let to_api = |from: &str, new: &str| {
        let mut forward = old.forward().unwrap().clone();
        forward.prefix_rewrite = Some(new.to_owned());
        rule(prefix(from), forward)
    };
    let table =
        RouteTable::new(vec![to_api("/v1/", "/"), to_api("/open", "/admin"), to_api("/admin", "/public"), old.clone()]);
    std::sync::Arc::make_mut(&mut world.web.plan.routes[0]).table = std::sync::Arc::new(table);
    world.web.apply().await;
    let mut client = world.client().await;
    for (asked, seen) in [
        ("/v1/users?x=/v1/", Some("/users?x=/v1/")),
        ("/v1/admin", None),
        ("/open/x", None),
        ("/admin/x", Some("/public/x")),
        ("/x//v1/y", Some("/x/v1/y")),
    ] {
        client.send(format!("GET {asked} HTTP/1.1\r\nhost: api\r\n\r\n")).await;
        let answer = client.message().await;
        match seen {
            Some(seen) => assert_eq!(answer.text().split(' ').nth(1), Some(seen), "{asked}"),
            None => assert_eq!(answer.status(), 403, "{asked}: what counts is where it goes"),
        }
    }
}

#[tokio::test]
async fn a_redirect_is_answered_with_its_status_and_the_new_address() {
    let redirect = |status, redirect: RouteRedirect| RuleAction::Redirect(RouteRedirect { status, ..redirect });
    let nothing = RouteRedirect {
        status: RedirectStatus::Found,
        https: false,
        host: None,
        port: None,
        path: None,
        strip_query: false,
    };
    let mut mesh = Mesh::new(Protocol::Http).await;
    let backend = mesh.backend("api").await;
    mesh.cluster("api", &[&backend]);
    let whole = RouteRedirect {
        https: true,
        host: Some("new.example".to_owned()),
        path: Some(RedirectPath::Whole("/home".to_owned())),
        ..nothing.clone()
    };
    let moved = RouteRedirect { path: Some(RedirectPath::Prefix("/v2".to_owned())), strip_query: true, ..nothing };
    mesh.routes(vec![
        RouteRule { matches: prefix("/old"), action: redirect(RedirectStatus::MovedPermanently, whole) },
        RouteRule { matches: prefix("/v1"), action: redirect(RedirectStatus::Permanent, moved) },
        always(to(&[("api", 100)])),
    ]);
    mesh.serve().await;
    let mut client = mesh.client().await;
    for (asked, status, location) in
        [("/old/x?q=1", 301, "https://new.example/home?q=1"), ("/v1/users?q=1", 308, "http://api:80/v2/users")]
    {
        client.send(format!("GET {asked} HTTP/1.1\r\nhost: api:80\r\n\r\n")).await;
        let answer = client.message().await;
        assert_eq!(
            (answer.status(), answer.values("location"), answer.text()),
            (status, vec![location], String::new())
        );
    }
    client.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
    assert_eq!(client.message().await.status(), 200, "the connection stays");
    let answer = mesh.get2("/v1/users?q=1").await;
    assert_eq!((answer.status, answer.headers["location"].to_str().unwrap()), (308, "http://api/v2/users"));
    assert_eq!(backend.count(), 1);
}

#[tokio::test]
async fn heads_are_edited_both_ways_in_both_versions() {
    for protocol in [Protocol::Http, Protocol::Http2] {
        let (mut mesh, backends) = Mesh::of_one(protocol, 1, |forward| {
            forward.targets[0].request_headers = edits(&[("x-both", "target")], &[("x-by", "target")], &[]);
            forward.request_headers = edits(&[("x-added", "2")], &[("x-by", "route")], &["x-secret"]);
            forward.targets[0].response_headers = edits(&[], &[("x-from", "target")], &["x-old"]);
            forward.response_headers = edits(&[("x-app", "second")], &[("x-cache", "none")], &[]);
        })
        .await;
        mesh.serve().await;
        let fields = "x-added: 1\r\nX-Secret: key\r\nx-by: caller\r\nx-both: caller\r\n";
        let answer = mesh.ask(&format!("GET / HTTP/1.1\r\nhost: api\r\n{fields}\r\n")).await;
        let asked = backends[0].asked().remove(0);
        assert_eq!(asked.values("x-added"), ["1", "2"], "{protocol:?}");
        assert_eq!(asked.values("x-by"), ["route"]);
        assert_eq!(asked.values("x-both"), ["caller", "target"]);
        assert_eq!(asked.values("x-secret"), [""; 0]);
        assert_eq!(answer.values("x-app"), ["api-0", "second"]);
        assert_eq!((answer.values("x-from"), answer.values("x-cache")), (vec!["target"], vec!["none"]));
        assert_eq!(answer.values("x-old"), [""; 0]);
        // The same for a client of HTTP/2.
        let answer = mesh.get2("/").await;
        let asked = backends[0].asked().remove(0);
        assert_eq!(
            (asked.values("x-by"), asked.values("x-both"), asked.values("x-added")),
            (vec!["route"], vec!["target"], vec!["2"])
        );
        let all = |name| answer.headers.get_all(name).iter();
        let values = |name| all(name).map(|value| value.to_str().unwrap()).collect::<Vec<_>>();
        assert_eq!((values("x-app"), values("x-old").len()), (vec!["api-0", "second"], 0));
        assert_eq!((values("x-from"), values("x-cache")), (vec!["target"], vec!["none"]));
    }
}

#[tokio::test]
async fn a_mirror_gets_copies_and_changes_nothing() {
    let mut mesh = Mesh::new(Protocol::Http).await;
    let own = mesh.backend("own").await;
    let copies = super::backend::Backend::start(&mesh.ca, mesh.ip, "shadow", "copies").await;
    mesh.cluster("api", &[&own]);
    mesh.cluster("shadow", &[&copies]);
    let shadow = to(&[("shadow", 100)]).targets.remove(0).cluster;
    let mut forward = to(&[("api", 100)]);
    forward.mirror = Some(MirrorTo { cluster: shadow, percent: percent(100) });
    mesh.routes(vec![always(forward)]);
    mesh.serve().await;
    // Whatever becomes of the copy.
    copies.next(&[super::backend::Reply::Status(500), super::backend::Reply::Silence, super::backend::Reply::Break]);
    let mut client = mesh.client().await;
    for number in 0..5 {
        client.send(format!("POST /{number} HTTP/1.1\r\nhost: api\r\ntransfer-encoding: chunked\r\n\r\n")).await;
        client.send(format!("6\r\nbody-{number}\r\n0\r\n\r\n")).await;
        let answer = client.message().await;
        assert_eq!((answer.status(), &*answer.text()), (200, "own"));
    }
    eventually("every request is copied", || copies.waiting() == 5).await;
    let summary = |asked: Vec<super::backend::Asked>| -> BTreeSet<_> {
        asked.into_iter().map(|it| (it.method, it.target, String::from_utf8(it.body).unwrap())).collect()
    };
    let (own, copied) = (summary(own.asked()), summary(copies.asked()));
    assert_eq!(own.len(), 5);
    assert_eq!(own, copied, "whole, with their bodies");

    // Half of a request is none.
    let answered_early = async {
        client.send("POST /half HTTP/1.1\r\nhost: api\r\ncontent-length: 100\r\n\r\nhalf").await;
        drop(client);
    };
    answered_early.await;
    assert_eq!(mesh.get("/after").await.text(), "own");
    eventually("the next one is copied", || copies.waiting() > 0).await;
    assert_eq!(summary(copies.asked()), BTreeSet::from([("GET".to_owned(), "/after".to_owned(), String::new())]));
}
