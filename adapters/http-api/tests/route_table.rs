//! The reference page of the HTTP API is the route table, written out. `STARLING_GOLDEN=rewrite` writes it anew.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use starling_http_api::Answerer;
use starling_http_api::limits::BodyLimit;
use starling_http_api::parse::opaque::Place;
use starling_http_api::routes::table;

fn page() -> String {
    let mut page = String::from(
        "# HTTP API\n\n\
         Every path that a server answers. Paths under `/v1` are those of Consul 1.22, with its JSON, its headers and its\n\
         errors in plain text; paths under `/starling/v1` are Starling's own. Parameters stand in braces in paths and in\n\
         parentheses behind the summary. *Blocking* reads take `index` and `wait` and answer `X-Consul-Index`; writes answer\n\
         the revision they made in the same header.\n\n\
         A write takes `until`, and is answered when it holds, when it never will, or after `wait` (30 s unless it says\n\
         otherwise, 10 min at most): `applied:all` or `applied:99%`, of the nodes and proxies that the change concerns, or\n\
         `node=NAME`. Status and body are as without it; `X-Starling-Until` says `met`, `timeout`, `never` (one that is needed\n\
         has refused the change) or `unknown` (nothing was changed, and the revision that is answered is no longer\n\
         remembered). A receipt takes `until` too, and says the same in its `until`; `names` is how many names of each kind\n\
         it gives (1,000 unless it says otherwise, 20,000 at most), its `counts` speak of all. A list has the newest 100.\n\n\
         On a loopback address a request whose `Host` is neither an IP address nor `localhost` is refused with 403: a page could\n\
         have pointed its own name here, and read what only this machine may.\n\n\
         A write whose `Origin` is not the host and port it is sent to, or whose `Sec-Fetch-Site` is `cross-site` or `same-site`,\n\
         is refused with 403: a page of another site sends it with its visitor's browser. Clients that are no browsers set neither.\n\n\
         A body past its limit, a field that is unknown and a value that cannot be are refused with 400 and the field's path. A\n\
         port is 1 to 65535, and left out where there is none; only `/v1/catalog/register` takes 0 for that, since Consul's\n\
         clients always write the port there. A key in the `Config` of a proxy is acted upon or refused: see below the table.\n\n\
         *Answered by* says who answers a request, and so where it is served:\n\n\
         - `agent`: the agent that is asked, about its own node and process. A server's port for agents (8503) refuses it with 403.\n\
         - `server`: a server. An agent passes the request on over its own certificate, and answers 503 while it reaches none.\n\
         - `server, else agent`: as `server`; an agent that reaches none answers itself, so that proxies can start. So it does\n  \
           for `proxy-defaults`.\n\
         - `server's own listeners`: a server at its own API. Agents pass it on, and the port for agents refuses it with 403.\n\n\
         A server without an agent answers 400 to what is about an agent's services and checks.\n\n\
         Where access is controlled (`--acl-default-policy`), a request shows its token in `X-Consul-Token`, as `Bearer` in\n\
         `Authorization`, or in `token`. What it lacks it is refused with 403; an unknown token is refused with 403 `ACL not\n\
         found`; a list has what may be seen, and says with `X-Consul-Results-Filtered-By-ACLs: true` if that is not all. Where\n\
         it is not controlled, paths under `/v1/acl` answer 401 `ACL support disabled`. See ../operate/access-control.md.\n\n\
         This page is generated from the route table in `adapters/http-api/src/routes.rs`; a test keeps the two equal.\n\n\
         | Method | Path | Permission | Answered by | Body at most | What it does |\n|---|---|---|---|---|---|\n",
    );
    for route in table() {
        let body = match route.body() {
            BodyLimit::NONE => "none".to_owned(),
            limit => format!("{} KiB (`{}`)", limit.bytes() / 1024, limit.name()),
        };
        let (method, path, permission) = (route.method(), route.path(), route.permission());
        let answerer = match route.answerer() {
            Answerer::Agent => "agent",
            Answerer::Servers => "server",
            Answerer::ServersElseAgent => "server, else agent",
            Answerer::OwnListeners => "server's own listeners",
        };
        writeln!(page, "| {method} | `{path}` | {permission} | {answerer} | {body} | {} |", route.summary()).unwrap();
    }
    page.push_str(
        "\n## Settings in `Config`\n\n\
         Keys are compared without regard to case. Every other key of Consul's is refused as not supported, and any other as\n\
         unknown; in `proxy-defaults` one that looks like none of these is kept, and does nothing. A `protocol` may repeat what service-defaults or proxy-defaults say of the service, not contradict it.\n\n\
         | Where | Keys |\n|---|---|\n",
    );
    for (path, place) in [
        ("`Proxy.Config` of a sidecar", Place::Sidecar),
        ("`Config` of an upstream", Place::Upstream),
        ("`Config` of `proxy-defaults`", Place::ProxyDefaults),
    ] {
        let keys: Vec<_> = place.keys().map(|key| format!("`{key}`")).collect();
        writeln!(page, "| {path} | {} |", keys.join(", ")).unwrap();
    }
    page
}

#[test]
fn the_reference_page_is_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/http-api.md");
    if std::env::var("STARLING_GOLDEN").is_ok_and(|value| value == "rewrite") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, page()).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap();
    assert_eq!(found, page(), "STARLING_GOLDEN=rewrite writes the page anew");
}

#[test]
fn routes_stand_once_and_write_with_bodies_only_where_they_must() {
    let mut seen = BTreeSet::new();
    for route in table() {
        assert!(seen.insert((route.method(), route.path())), "{} {} twice", route.method(), route.path());
        assert!(!route.summary().is_empty() && !route.summary().ends_with('.'), "{}", route.path());
        if matches!(route.method(), "GET" | "DELETE") {
            assert_eq!(route.body(), BodyLimit::NONE, "{}", route.path());
        }
    }
}
