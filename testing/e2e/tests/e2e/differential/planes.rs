//! One plan on two data planes: the same services, entries and callers in two meshes, one served by Envoys and one by the
//! native proxy.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use starling_e2e::{Mesh, MeshOptions, OwnProxy, Plane, Served, Sidecar, Xds, eventually, free_port};

use super::app::{self, Notes, Speaks};

/// Who calls: each is covered by other intentions.
pub(super) const CALLERS: [&str; 3] = ["web", "cron", "guest"];

/// Who is called: a service of two subsets with a router; one without any; one that is another's subset; a split;
/// one that speaks HTTP/2; and one that speaks gRPC.
pub(super) const CALLED: [&str; 8] = ["shop", "shop", "shop", "admin", "alias", "split", "modern", "remote"];

/// The gateway, in the place both of who calls and of who is called.
pub(super) const EDGE: &str = "edge";

/// Paths that entries below name, or nearly name.
pub(super) const PATHS: [&str; 40] = [
    "/",
    "/exact",
    "/Case",
    "/case",
    "/case",
    "/CASE",
    "/admin/",
    "/admin",
    "/admin/users",
    "/rewrite",
    "/rewritex",
    "/rewrite/a",
    "/ReWrite/a",
    "/v1/items",
    "/v22/items/x",
    "/v/items",
    "/old/page",
    "/moved/a/b",
    "/away",
    "/secure/x",
    "/fault",
    "/fault/x",
    "/h/present",
    "/h/exact",
    "/h/prefix",
    "/h/suffix",
    "/h/regex",
    "/h/not",
    "/h/contains",
    "/q",
    "/m",
    "/private/a",
    "/secret",
    "/port",
    "/guarded/x",
    "/public",
    "/open/x",
    "/edited",
    "/retry",
    "/again/x",
];

/// One data plane, all of it running.
pub(super) struct DataPlane {
    pub(super) notes: Notes,
    /// Where a caller calls a service.
    pub(super) ports: BTreeMap<(&'static str, &'static str), u16>,
    pub(super) trust_domain: String,
    _sidecars: Vec<Served>,
    _mesh: Mesh,
}

impl DataPlane {
    /// Starts a mesh with everything in it, and waits until every entry is in force.
    pub(super) async fn start(plane: Plane, default_policy: &'static str) -> Self {
        let options = MeshOptions { native: true, default_policy: Some(default_policy), ..MeshOptions::default() };
        let mesh = Mesh::start(options).await;
        let mut last = 0;
        for entry in entries() {
            last = mesh.config(&entry).await.index();
        }
        let notes = Notes::default();
        let (mut sidecars, mut ports) = (Vec::new(), BTreeMap::new());
        for (instance, service, version) in INSTANCES {
            let speaks = match service {
                "modern" => Speaks::Http2,
                "remote" => Speaks::Grpc,
                _ => Speaks::Http1,
            };
            let app = app::start(instance, speaks, &notes).await;
            let public = free_port();
            mesh.register(&json!({
                "ID": instance, "Name": service, "Address": "127.0.0.1", "Port": app, "Meta": {"version": version},
                "Connect": {"SidecarService": {"Port": public}},
            }))
            .await;
            sidecars.push(Served::start(&mesh, plane, instance, &[public], Xds::default()).await);
        }
        for caller in CALLERS {
            let public = free_port();
            let called = ["shop", "admin", "alias", "split", "modern", "remote"].map(|called| (called, free_port()));
            let upstream = |(name, port)| json!({"DestinationName": name, "LocalBindPort": port});
            mesh.register(&json!({
                "ID": caller, "Name": caller, "Address": "127.0.0.1", "Port": free_port(),
                "Connect": {"SidecarService": {"Port": public, "Proxy": {"Upstreams": called.map(upstream)}}},
            }))
            .await;
            let listens: Vec<_> = called.iter().map(|(_, port)| *port).chain([public]).collect();
            sidecars.push(Served::start(&mesh, plane, caller, &listens, Xds::default()).await);
            ports.extend(called.map(|(called, port)| ((caller, called), port)));
        }
        let edge = free_port();
        last = last.max(mesh.config(&gateway(edge)).await.index());
        let gateway = match plane {
            Plane::Envoy => Served::ByEnvoy(Sidecar::gateway(&mesh, EDGE, &[edge]).await),
            Plane::Native | Plane::Own => Served::ByOwn(OwnProxy::gateway(&mesh, EDGE, &[edge]).await),
        };
        sidecars.push(gateway);
        ports.insert((EDGE, EDGE), edge);
        mesh.settled(last).await;
        for (_, service, _) in INSTANCES {
            let expected = INSTANCES.iter().filter(|(_, of, _)| *of == service).count();
            eventually(&format!("{service} is well"), async || {
                let well = mesh.get(&format!("/v1/health/connect/{service}?passing")).await.success().json();
                let count = well.as_array().map_or(0, Vec::len);
                anyhow::ensure!(count == expected, "{count} of {expected}");
                Ok(())
            })
            .await;
        }
        mesh.settled(mesh.revision().await).await;
        let roots = mesh.get("/v1/connect/ca/roots").await.success().json();
        let trust_domain = roots["TrustDomain"].as_str().expect("a trust domain").to_owned();
        Self { notes, ports, trust_domain, _sidecars: sidecars, _mesh: mesh }
    }

    /// HOST:PORT at which `caller` calls `called`.
    pub(super) fn authority(&self, caller: &'static str, called: &'static str) -> String {
        format!("127.0.0.1:{}", self.ports[&(caller, called)])
    }
}

/// Instances by id, with their service and version.
const INSTANCES: [(&str, &str, &str); 5] = [
    ("shop-v1", "shop", "v1"),
    ("shop-v2", "shop", "v2"),
    ("admin-1", "admin", "v1"),
    ("modern-1", "modern", "v1"),
    ("remote-1", "remote", "v1"),
];

/// What comes in from outside, by host.
fn gateway(port: u16) -> Value {
    let services = json!([
        {"Name": "shop", "Hosts": ["shop.example.com"], "RequestHeaders": edits("edge")},
        {"Name": "admin", "Hosts": ["*.example.com", "127.0.0.1"], "ResponseHeaders": edits("edge")},
        {"Name": "alias", "Hosts": ["alias.internal"]},
    ]);
    json!({"Kind": "ingress-gateway", "Name": EDGE, "Listeners": [{"Port": port, "Protocol": "http", "Services": services}]})
}

/// Everything that is written, in the order of writing.
fn entries() -> Vec<Value> {
    let defaults = ["shop", "admin", "alias", "split"];
    let mut entries: Vec<_> =
        defaults.map(|name| json!({"Kind": "service-defaults", "Name": name, "Protocol": "http"})).into();
    entries.extend([
        json!({"Kind": "service-defaults", "Name": "modern", "Protocol": "http2"}),
        json!({"Kind": "service-router", "Name": "modern", "Routes": [
            {"Match": {"HTTP": {"PathPrefix": "/edited"}},
                "Destination": {"RequestHeaders": edits("route"), "ResponseHeaders": edits("route")}},
            {"Match": {"HTTP": {"PathPrefix": "/rewrite"}}, "Destination": {"PrefixRewrite": "/new/base"}},
            {"Match": {"HTTP": {"PathPrefix": "/retry"}}, "Destination": retries(json!({"RetryOnStatusCodes": [503]}))},
            {"Match": {"HTTP": {"PathPrefix": "/again"}}, "Destination": retries(json!({"RetryOn": ["5xx"]}))},
        ]}),
        json!({"Kind": "service-defaults", "Name": "remote", "Protocol": "grpc"}),
        json!({"Kind": "service-router", "Name": "remote", "Routes": [
            {"Match": {"HTTP": {"PathPrefix": "/retry"}}, "Destination": retries(json!({"RetryOn": ["unavailable"]}))},
            {"Match": {"HTTP": {"PathPrefix": "/again"}}, "Destination": retries(json!({"RetryOn": ["cancelled"]}))},
        ]}),
        // What a failed test prints is what differed.
        json!({"Kind": "proxy-defaults", "Name": "global", "AccessLogs": {"Enabled": false}}),
        json!({"Kind": "service-resolver", "Name": "shop", "DefaultSubset": "v1", "Subsets": {
            "v1": {"Filter": "Service.Meta.version == v1"}, "v2": {"Filter": "Service.Meta.version == v2"},
        }}),
        json!({"Kind": "service-resolver", "Name": "alias", "Redirect": {"Service": "shop", "ServiceSubset": "v2"}}),
        json!({"Kind": "service-splitter", "Name": "split", "Splits": [
            {"Weight": 100, "Service": "shop", "ServiceSubset": "v2",
                "RequestHeaders": edits("split"), "ResponseHeaders": edits("split")},
            {"Weight": 0, "Service": "admin"},
        ]}),
        json!({"Kind": "service-router", "Name": "split", "Routes": [
            {"Match": {"HTTP": {"PathPrefix": "/edited"}},
                "Destination": {"RequestHeaders": edits("route"), "ResponseHeaders": edits("route")}},
        ]}),
        json!({"Kind": "service-router", "Name": "shop", "Routes": routes()}),
    ]);
    entries.extend(intentions());
    entries
}

/// Edits of fields that a request, the application or another edit may have given already.
fn edits(by: &str) -> Value {
    json!({"Remove": ["x-removed"], "Set": {"x-set": by, format!("x-by-{by}"): "1"}, "Add": {"x-added": by}})
}

/// Up to two more tries, however many others are tried again at the same time.
fn retries(on: Value) -> Value {
    let mut to = on;
    to["NumRetries"] = json!(2);
    to["RetryBudget"] = json!({"Percent": 100, "MinConcurrency": 100});
    to
}

/// Routes of shop that have a destination.
pub(super) const ROUTES: usize = 31;

/// The one of them that nobody arrives by.
pub(super) const FAULT: usize = 6;

/// The router of shop. Every destination says which it is.
fn routes() -> Value {
    let header = |path: &str, mut test: Value| {
        test["Name"] = json!("x-key");
        json!({"PathPrefix": path, "Header": [test]})
    };
    let query = |test: Value| json!({"PathPrefix": "/q", "QueryParam": [test]});
    let v2 = || json!({"ServiceSubset": "v2"});
    let to = [
        (json!({"PathExact": "/exact"}), json!({"Service": "admin"})),
        (json!({"PathExact": "/Case", "CaseInsensitive": true}), v2()),
        (json!({"PathPrefix": "/admin/"}), json!({"Service": "admin", "PrefixRewrite": "/"})),
        (json!({"PathPrefix": "/rewrite"}), json!({"PrefixRewrite": "/new/base"})),
        (json!({"PathPrefix": "/REWRITE/", "CaseInsensitive": true}), json!({"PrefixRewrite": "/n/"})),
        (json!({"PathRegex": "/v[0-9]+/items(/.*)?"}), v2()),
        (json!({"PathPrefix": "/fault"}), json!({"Fault": {"Abort": {"Status": 418}}})),
        (
            json!({"PathPrefix": "/edited"}),
            json!({"RequestHeaders": edits("route"), "ResponseHeaders": edits("route")}),
        ),
        (json!({"PathPrefix": "/h/present", "Header": [{"Name": "x-present", "Present": true}]}), v2()),
        (json!({"PathPrefix": "/h/present", "Header": [{"Name": "x-mode", "Present": true, "Invert": true}]}), v2()),
        (header("/h/exact", json!({"Exact": "abc"})), v2()),
        (header("/h/exact", json!({"Exact": "abc", "IgnoreCase": true})), v2()),
        (header("/h/exact", json!({"Exact": "def", "Invert": true})), v2()),
        (header("/h/prefix", json!({"Prefix": "prefix"})), v2()),
        (header("/h/prefix", json!({"Prefix": "a", "Invert": true})), v2()),
        (header("/h/suffix", json!({"Suffix": "-suffix"})), v2()),
        (header("/h/suffix", json!({"Suffix": "c", "Invert": true, "IgnoreCase": true})), v2()),
        (header("/h/contains", json!({"Contains": "bc"})), v2()),
        (header("/h/regex", json!({"Regex": "[a-c]+[0-9]?b?2?"})), v2()),
        (header("/h/regex", json!({"Regex": ".*c", "Invert": true})), v2()),
        (
            json!({"PathPrefix": "/h/not", "Header": [
                {"Name": "x-key", "Exact": "abc", "Invert": true}, {"Name": "x-mode", "Prefix": "a"},
            ]}),
            v2(),
        ),
        (query(json!({"Name": "debug", "Exact": "1"})), v2()),
        (query(json!({"Name": "r", "Regex": "a+"})), v2()),
        (query(json!({"Name": "debug", "Present": true})), v2()),
        (json!({"PathPrefix": "/m", "Methods": ["PUT", "DELETE"]}), v2()),
        (json!({"PathPrefix": "/m", "Methods": ["HEAD"]}), json!({"Service": "admin"})),
        (json!({"Header": [{"Name": "host", "Suffix": ":80"}]}), json!({"Service": "admin"})),
        (json!({"PathPrefix": "/q", "Header": [{"Name": "host", "Exact": "shop.example.com"}]}), v2()),
        (json!({"Header": [{"Name": "x-mode", "Exact": "a1b2"}]}), json!({"Service": "admin"})),
        (json!({"PathPrefix": "/retry"}), retries(json!({"RetryOnStatusCodes": [503]}))),
        (json!({"PathPrefix": "/again"}), retries(json!({"RetryOn": ["5xx"]}))),
    ];
    let mut routes: Vec<_> =
        to.into_iter().map(|(http, to)| json!({"Match": {"HTTP": http}, "Destination": to})).collect();
    assert_eq!(routes.len(), ROUTES);
    for (number, route) in routes.iter_mut().enumerate() {
        let set = &mut route["Destination"]["RequestHeaders"];
        set["Set"]["x-route"] = json!(number.to_string());
    }
    let redirects = [
        (json!({"PathExact": "/old/page"}), json!({"Path": "/new/page", "Status": 308})),
        (json!({"PathPrefix": "/moved/"}), json!({"PrefixRewrite": "/to/", "StripQuery": true, "Status": 307})),
        (json!({"PathPrefix": "/away"}), json!({"Host": "elsewhere.example", "Status": 302})),
        (json!({"PathPrefix": "/secure"}), json!({"HTTPS": true, "Status": 303})),
        (json!({"PathExact": "/port"}), json!({"Port": 8443})),
    ];
    routes.extend(redirects.map(|(http, to)| json!({"Match": {"HTTP": http}, "Redirect": to})));
    json!(routes)
}

/// Who may call what. Nobody who is not named here is told apart from the default policy.
fn intentions() -> Vec<Value> {
    let permission = |action: &str, http: Value| json!({"Action": action, "HTTP": http});
    let key = |mut test: Value| {
        test["Name"] = json!("x-key");
        json!([test])
    };
    let web = json!([
        permission("deny", json!({"PathPrefix": "/private"})),
        permission("deny", json!({"PathExact": "/secret", "Methods": ["GET", "POST"]})),
        permission("deny", json!({"PathPrefix": "/guarded", "Header": key(json!({"Exact": "abc"}))})),
        permission(
            "deny",
            json!({"PathPrefix": "/guarded", "Header": key(json!({"Suffix": "-SUFFIX", "IgnoreCase": true}))})
        ),
        permission("deny", json!({"PathPrefix": "/guarded", "Header": key(json!({"Contains": "refix"}))})),
        permission("deny", json!({"PathPrefix": "/open", "Header": key(json!({"Present": true}))})),
        permission("allow", json!({"PathRegex": "/(public|open|retry|again|edited|v[0-9]+)(/.*)?"})),
        permission(
            "deny",
            json!({"PathExact": "/h/exact", "Header": [{"Name": "x-mode", "Present": true, "Invert": true}]})
        ),
        permission("deny", json!({"PathPrefix": "/rewrite", "Header": [{"Name": "host", "Exact": "shop"}]})),
        permission("deny", json!({"PathPrefix": "/new", "Header": [{"Name": "host", "Exact": "shop"}]})),
        permission("allow", json!({"PathPrefix": "/h/"})),
        permission("allow", json!({"PathRegex": "/[mq](/.*)?"})),
        permission("allow", json!({"PathPrefix": "/new", "Methods": ["GET", "HEAD", "PUT"]})),
    ]);
    let cron = json!([
        permission("allow", json!({"PathPrefix": "/public"})),
        permission("allow", json!({"PathExact": "/case"})),
        permission("deny", json!({"Methods": ["POST", "DELETE"]})),
        permission("allow", json!({"Header": key(json!({"Prefix": "ab"}))})),
        permission("allow", json!({"Header": key(json!({"Regex": ".*[0-9]"}))})),
        permission("allow", json!({"PathPrefix": "/edited"})),
        permission("allow", json!({"PathPrefix": "/q", "Header": key(json!({"Contains": "c", "Invert": true}))})),
        permission("deny", json!({"PathPrefix": "/"})),
    ]);
    let anybody = json!([
        permission("deny", json!({"PathPrefix": "/users"})),
        permission("allow", json!({"Header": [{"Name": "x-mode", "Exact": "abc", "Invert": true}]})),
        permission("deny", json!({"Methods": ["GET"]})),
    ]);
    vec![
        json!({"Kind": "service-intentions", "Name": "shop", "Sources": [
            {"Name": "web", "Permissions": web},
            {"Name": "cron", "Permissions": cron},
            {"Name": "guest", "Action": "deny"},
            {"Name": EDGE, "Permissions": web},
        ]}),
        json!({"Kind": "service-intentions", "Name": "modern", "Sources": [
            {"Name": "web", "Permissions": web},
            {"Name": "cron", "Action": "allow"},
        ]}),
        json!({"Kind": "service-intentions", "Name": "remote", "Sources": [
            {"Name": "web", "Permissions": web},
            {"Name": "cron", "Action": "allow"},
            {"Name": "guest", "Action": "deny"},
        ]}),
        json!({"Kind": "service-intentions", "Name": "admin", "Sources": [
            {"Name": "*", "Permissions": anybody},
            {"Name": "cron", "Action": "allow"},
        ]}),
    ]
}
