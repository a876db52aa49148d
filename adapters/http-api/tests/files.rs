//! Definition files as Consul users have them, and bytes that are none.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use proptest::prelude::*;
use serde_json::Value;
use starling_http_api::parse::{
    Context, Dialect, Fields, FileFormat, parse_check, parse_config_entry, parse_config_entry_file, parse_definitions,
    parse_json, parse_service,
};
use starling_model::{CheckKind, ConfigEntry, InstanceKind, SourceDecision};

fn context() -> Context {
    Context::new(Dialect::File, "node-1".parse().unwrap(), "dc1".parse().unwrap())
}

const WEB: &str = r#"
# The web tier.
datacenter = "dc1"
service {
  name = "web"
  id   = "web-1"
  port = 8080
  tags = ["v1"]
  meta { team = "shop" }

  connect { sidecar_service { proxy {
    config { protocol = "http" }
    upstreams = [
      { destination_name = "api", local_bind_port = 9191 },
      { destination_name = "hey"  local_bind_port = 9192  config { connect_timeout_ms = 500 } },
    ]
  } } }

  check {
    id       = "web-health"
    http     = "http://127.0.0.1:8080/health"
    method   = "GET"
    header   { x-probe = ["yes"] }
    interval = "5s"
    timeout  = "1s"
    deregister_critical_service_after = "10m"
  }
  checks = [ { tcp = "127.0.0.1:8080" interval = "10s" } ]
}
service { name = "batch" }
locality { region = "eu-west-1" zone = "eu-west-1a" }
check { name = "disk" args = ["/usr/bin/df"] interval = "1m" }
config_entries { bootstrap = [ { kind = "service-defaults" name = "web" protocol = "http" } ] }
"#;

#[test]
fn hcl_files_are_read() {
    let definitions = parse_definitions("web.hcl", WEB.as_bytes(), &context()).unwrap();
    let [web, batch] = definitions.services.as_slice() else { panic!("{:?}", definitions.services) };
    assert_eq!((web.instance.key.id.as_str(), web.instance.port.unwrap().get()), ("web-1", 8080));
    assert_eq!(batch.instance.key.id.as_str(), "batch");
    assert_eq!(web.checks.len(), 2);
    let CheckKind::Http { headers, .. } = &web.checks[0].definition.kind else { panic!("{:?}", web.checks) };
    assert_eq!(headers["x-probe"], ["yes"]);
    assert_eq!(web.checks[0].definition.deregister_after.unwrap().as_secs(), 600);
    let sidecar = web.sidecar.as_ref().unwrap();
    let InstanceKind::Sidecar(proxy) = &sidecar.instance.kind else { panic!("{sidecar:?}") };
    assert_eq!(sidecar.instance.key.id.as_str(), "web-1-sidecar-proxy");
    assert_eq!(sidecar.instance.name.as_str(), "web-sidecar-proxy");
    assert_eq!((proxy.destination.as_str(), proxy.local_port.unwrap().get()), ("web", 8080));
    let upstreams: Vec<_> = proxy.upstreams.iter().map(|u| (u.destination.as_str(), u.bind_port.get())).collect();
    assert_eq!(upstreams, [("api", 9191), ("hey", 9192)]);
    assert_eq!(proxy.upstreams[1].config["connect_timeout_ms"], 500);
    assert_eq!(definitions.checks[0].spec.name, "disk");
    assert!(matches!(definitions.config_entries[0], ConfigEntry::ServiceDefaults(_)));
    assert_eq!(definitions.notices[0].path, "datacenter");
    assert_eq!(definitions.locality.map(|locality| locality.to_string()).as_deref(), Some("eu-west-1/eu-west-1a"));
}

#[test]
fn json_files_say_the_same_as_hcl_files() {
    let json =
        r#"{"services": [{"name": "web", "port": 8080, "connect": {"sidecar_service": {}}}, {"Name": "batch"}]}"#;
    let hcl = "services { name = \"web\" port = 8080 connect { sidecar_service {} } }\nservices { name = \"batch\" }";
    let from_json = parse_definitions("a.json", json.as_bytes(), &context()).unwrap();
    assert_eq!(parse_definitions("a.hcl", hcl.as_bytes(), &context()).unwrap(), from_json);
    assert_eq!(from_json.services.len(), 2);
}

#[test]
fn config_entry_files_are_read() {
    let hcl = r#"
        Kind = "service-intentions"
        Name = "db"
        Sources = [
          {
            Name = "api"
            Permissions = [
              {
                Action = "allow"
                HTTP {
                  PathPrefix = "/v1/"
                  Methods    = ["GET"]
                }
              }
            ]
          },
          { Name = "*" Action = "deny" }
        ]
    "#;
    let entry = parse_config_entry_file("db.hcl", hcl.as_bytes(), &context()).unwrap();
    let ConfigEntry::ServiceIntentions(entry) = entry else { panic!("{entry:?}") };
    let SourceDecision::Requests(permissions) = &entry.sources[0].decision else { panic!("{entry:?}") };
    assert_eq!(permissions[0].methods, ["GET"]);
    let json = br#"{"Kind": "service-defaults", "Name": "db", "Protocol": "grpc"}"#;
    assert!(parse_config_entry_file("-", json, &context()).is_ok());
}

#[test]
fn mistakes_name_file_path_and_reason() {
    for (file, text, wanted) in [
        ("a.hcl", "service {\n  name = web\n}", "a.hcl: line 2: web is no value; texts stand in quotes"),
        ("a.json", "{", "a.json: is no JSON: EOF while parsing an object at line 1 column 1"),
        ("a.hcl", "service { nam = \"web\" }", "a.hcl: service.nam: unknown field; did you mean Name?"),
        (
            "a.hcl",
            "service { name = \"web\" port = 0 }",
            "a.hcl: service.Port: port 0 is outside 1 to 65535; leave it out for none",
        ),
        (
            "a.json",
            r#"{"service": {"name": "web", "connect": {"sidecar_service": {"port": 0}}}}"#,
            "a.json: service.Connect.SidecarService.Port: port 0 is outside 1 to 65535; leave it out to be given one",
        ),
        (
            "a.hcl",
            "service { name = \"web\" connect { sidecar_service { proxy { config { protocl = \"http\" } } } } }",
            "a.hcl: service.Connect.SidecarService.Proxy.Config.protocl: unknown field; did you mean protocol?",
        ),
        ("a.hcl", "service { name = \"web\" prt = 1 }", "a.hcl: service.prt: unknown field"),
        (
            "a.hcl",
            "service { name = \"a\" }\nservice { name = \"a\" }",
            "a.hcl: service[1].id: two services have the identifier a",
        ),
        ("a.hcl", "service \"web\" { port = 1 }", "a.hcl: service.Name: must be given"),
        ("a.hcl", "nonsense = 1", "a.hcl: nonsense: unknown field"),
        ("a.json", "[]", "a.json: body: must be an object, not a list"),
        ("a.hcl", "\u{0}", "a.hcl: line 1: expected a name, found '\\0'"),
    ] {
        let error = parse_definitions(file, text.as_bytes(), &context()).unwrap_err();
        assert_eq!(error.to_string(), wanted, "{text}");
    }
    let error = parse_definitions("a.hcl", &[0xff], &context()).unwrap_err();
    assert_eq!(error.to_string(), "a.hcl: is no UTF-8 text");
    let error = parse_definitions("a.hcl", &vec![b' '; 5 << 20], &context()).unwrap_err();
    assert_eq!(error.to_string(), "a.hcl: has 5242880 bytes; at most 4194304 are allowed");
}

#[test]
fn formats_are_told_by_name_and_by_content() {
    assert_eq!(FileFormat::of_name("web.service.json"), Some(FileFormat::Json));
    assert_eq!(FileFormat::of_name("web.hcl"), Some(FileFormat::Hcl));
    assert_eq!(FileFormat::of_name("README.md"), None);
    assert_eq!(FileFormat::guess("-", b" \n{}"), FileFormat::Json);
    assert_eq!(FileFormat::guess("-", b"a = 1"), FileFormat::Hcl);
}

/// Field names that the parsers know.
#[rustfmt::skip]
const NAMES: &[&str] = &[
    "Kind", "Name", "ID", "Port", "Tags", "Meta", "Check", "Checks", "Connect", "SidecarService", "Proxy",
    "Upstreams", "DestinationName", "LocalBindPort", "TTL", "HTTP", "Interval", "Header", "Sources", "Action",
    "Permissions", "PathRegex", "Methods", "Config", "protocol", "TaggedAddresses", "Address", "Weights",
    "DestinationServiceName", "service", "services", "config_entries", "bootstrap", "name", "Regex", "Exact",
];

/// Texts that mean something to some parser.
#[rustfmt::skip]
const TEXTS: &[&str] = &[
    "web", "api", "*", "connect-proxy", "service-intentions", "service-defaults", "proxy-defaults", "allow", "10s",
    "http://a:1/", "a:1", "/a/../b", "(", "", "\u{0}", "GET", "http",
];

/// JSON made of the fields that the parsers know, with values of any kind, so that more than the outermost is reached.
fn known_fields() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0..70_000_i64).prop_map(Value::from),
        proptest::sample::select(TEXTS).prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 8, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(proptest::sample::select(NAMES), inner, 0..8).prop_map(|map| map
                .into_iter()
                .map(|(k, v)| (k.to_owned(), v))
                .collect::<serde_json::Map<_, _>>()
                .into()),
        ]
    })
}

fn parse_everything(value: &Value) {
    for dialect in [Dialect::Api, Dialect::File] {
        let context = Context::new(dialect, "node-1".parse().unwrap(), "dc1".parse().unwrap());
        let fields = || Fields::of(&context, "", value.clone());
        // Any outcome but a panic will do.
        let _ = fields().and_then(parse_service);
        let _ = fields().and_then(parse_check);
        let _ = fields().and_then(parse_config_entry);
    }
}

proptest! {
    #[test]
    fn no_bytes_make_a_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(value) = parse_json(&bytes) {
            parse_everything(&value);
        }
        for name in ["a.json", "a.hcl", "-"] {
            let _ = parse_definitions(name, &bytes, &context());
            let _ = parse_config_entry_file(name, &bytes, &context());
        }
    }

    #[test]
    fn no_text_makes_the_hcl_parser_panic(text in "[a-z\"{}\\[\\]=,:\\\\$<>#/*\\-\n 0-9.é]{0,200}") {
        let _ = parse_definitions("a.hcl", text.as_bytes(), &context());
    }

    #[test]
    fn no_known_field_makes_a_parser_panic(value in known_fields()) {
        parse_everything(&value);
        let _ = parse_definitions("a.json", value.to_string().as_bytes(), &context());
    }
}
