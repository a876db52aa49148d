//! Bad input, and the exact words it gets; nothing is changed by any of it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/world.rs"]
mod world;

use http::Request;
use http_body_util::BodyExt;
use starling_http_api::EntryPoint;
use starling_model::Action;
use tower::ServiceExt;
use world::World;
use world::controlled::Mesh;

const REGISTER: &str = "/v1/agent/service/register";
const CONFIG: &str = "/v1/config";
const EXACT: &str = "/v1/connect/intentions/exact?source=web&destination=api";

const SERVICES: &[(&str, &str)] = &[
    ("", "body: is no JSON: EOF while parsing a value at line 1 column 0"),
    ("{", "body: is no JSON: EOF while parsing an object at line 1 column 1"),
    ("null", "body: must be an object, not null"),
    ("[]", "body: must be an object, not a list"),
    ("{}", "Name: must be given"),
    (r#"{"Name": 7}"#, "Name: must be a string, not a number"),
    (
        r#"{"Name": "w eb"}"#,
        "Name: service name \"w eb\" has the character ' '; allowed are letters, digits, '-', '_' and '.', beginning and ending with a letter or digit",
    ),
    (
        r#"{"Name": "*"}"#,
        "Name: service name \"*\" has the character '*'; allowed are letters, digits, '-', '_' and '.', beginning and ending with a letter or digit",
    ),
    (
        r#"{"Name": "web", "ID": "a/b"}"#,
        "ID: service id \"a/b\" has the character '/'; allowed are printable ASCII without spaces, '/', '\\', quotes and '*'",
    ),
    (r#"{"Name": "web", "Prot": 80}"#, "Prot: unknown field"),
    (r#"{"Nmae": "web", "Port": 80}"#, "Nmae: unknown field; did you mean Name?"),
    (r#"{"ServiceName": "web"}"#, "Name: must be given"),
    (r#"{"Name": "p", "Kind": "connect-proxy", "Prot": 1}"#, "Prot: unknown field; did you mean Port?"),
    (r#"{"Name": "p", "Kind": "connect-proxy", "Port": 1, "Prxy": {}}"#, "Prxy: unknown field; did you mean Proxy?"),
    (
        r#"{"Name": "p", "Kind": "connect-proxy", "Port": 1, "Proxy": {"destination_servce_name": "web"}}"#,
        "Proxy.destination_servce_name: unknown field; did you mean DestinationServiceName?",
    ),
    (
        r#"{"Name": "p", "Kind": "connect-proxy", "Port": 1, "Proxy": {"DestinationServiceID": "web"}}"#,
        "Proxy.DestinationServiceName: must be given",
    ),
    (
        r#"{"Name": "web", "TaggedAddresses": {"lan": {"Adress": "a"}}}"#,
        "TaggedAddresses.lan.Adress: unknown field; did you mean Address?",
    ),
    (r#"{"Name": "web", "port": 80, "Port": 81}"#, "Port: is given twice, also as port"),
    (r#"{"Name": "web", "Port": 70000}"#, "Port: port 70000 is outside 1 to 65535"),
    (r#"{"Name": "web", "Port": -1}"#, "Port: port -1 is outside 1 to 65535"),
    (r#"{"Name": "web", "Port": "80"}"#, "Port: must be a number, not a string"),
    (r#"{"Name": "web", "Port": 80.5}"#, "Port: 80.5 is no whole number in range"),
    (r#"{"Name": "web", "Port": 0}"#, "Port: port 0 is outside 1 to 65535; leave it out for none"),
    (
        r#"{"Name": "web", "port": 0, "Connect": {"SidecarService": {}}}"#,
        "Port: port 0 is outside 1 to 65535; leave it out for none",
    ),
    (
        r#"{"Name": "web", "Port": 0, "Connect": {"Native": true}}"#,
        "Port: port 0 is outside 1 to 65535; leave it out for none",
    ),
    (r#"{"Name": "web", "Address": "0.0.0.0"}"#, "Address: 0.0.0.0 is no address that a peer can reach"),
    (r#"{"Name": "web", "Address": "a b"}"#, "Address: \"a b\" is neither an IP nor a host name"),
    (r#"{"Name": "web", "Tags": "v1"}"#, "Tags: must be a list, not a string"),
    (r#"{"Name": "web", "Tags": ["v1", 2]}"#, "Tags[1]: must be a string, not a number"),
    (r#"{"Name": "web", "Meta": {"a b": "c"}}"#, "Meta.a b: keys are made of letters, digits, '-' and '_'"),
    (r#"{"Name": "web", "Meta": {"a": 1}}"#, "Meta.a: must be a string, not a number"),
    (r#"{"Name": "web", "Weights": {"Passing": 0}}"#, "Weights.Passing: must be at least 1"),
    (r#"{"Name": "web", "Locality": {"Zone": "a"}}"#, "Locality.Region: must be given with a Zone"),
    (r#"{"Name": "web", "Locality": {"Region": "eu", "Zoen": "a"}}"#, "Locality.Zoen: unknown field"),
    (
        r#"{"Name": "web", "Connect": {"SidecarService": {"Locality": {"Region": "e u"}}}}"#,
        "Connect.SidecarService.Locality.Region: region \"e u\" has the character ' '; allowed are letters, digits, '-', '_' and '.', beginning and ending with a letter or digit",
    ),
    (
        r#"{"Name": "gw", "Kind": "mesh-gateway", "Proxy": {"Expose": {"Checks": true}}}"#,
        "Proxy.Expose: is not supported in this release; remove it",
    ),
    (r#"{"Name": "web", "Ports": [{"Name": "a"}]}"#, "Ports[0].Port: must be given"),
    (
        r#"{"Name": "web", "Ports": [{"Name": "a", "Port": 1}, {"Name": "b", "Port": 1}]}"#,
        "Ports[1]: repeats name or port of \"a\"",
    ),
    (
        r#"{"Name": "web", "Ports": [{"Name": "a", "Port": 1, "Default": true}, {"Name": "b", "Port": 2, "Default": true}]}"#,
        "Ports[1].Default: is said of \"a\" already",
    ),
    (
        r#"{"Name": "web", "Port": 3, "Ports": [{"Name": "a", "Port": 1}]}"#,
        "Port: contradicts Ports, of which 1 counts; leave it out",
    ),
    (
        r#"{"Name": "web", "Kind": "nonsense"}"#,
        "Kind: \"nonsense\" is no service kind; leave it out or write \"connect-proxy\", \"ingress-gateway\" or \"terminating-gateway\"",
    ),
    (r#"{"Name": "web", "Namespace": "team"}"#, "Namespace: \"team\" is not supported in this release; leave it out"),
    (
        r#"{"Name": "web", "Proxy": {"DestinationServiceName": "web"}}"#,
        "Proxy: is for Kind \"connect-proxy\" and gateways only",
    ),
    (
        r#"{"Name": "gw", "Kind": "ingress-gateway", "Proxy": {"DestinationServiceName": "web"}}"#,
        "Proxy.DestinationServiceName: is not supported in this release; remove it",
    ),
    (
        r#"{"Name": "gw", "Kind": "ingress-gateway", "Proxy": {"Config": {"protocol": "http"}}}"#,
        "Proxy.Config.protocol: unknown field; known here are bind_address, envoy_prometheus_bind_addr, envoy_stats_bind_addr, max_inbound_connections",
    ),
    (
        r#"{"Name": "gw", "Kind": "ingress-gateway", "Connect": {"SidecarService": {}}}"#,
        "Connect: a proxy has no Connect block of its own",
    ),
    (r#"{"Name": "p", "Kind": "connect-proxy", "Port": 1}"#, "Proxy: must be given"),
    (
        r#"{"Name": "p", "Kind": "connect-proxy", "Proxy": {"DestinationServiceName": "web"}}"#,
        "Port: must be given for a proxy",
    ),
    (
        r#"{"Name": "p", "Kind": "connect-proxy", "Port": 0, "Proxy": {"DestinationServiceName": "web"}}"#,
        "Port: port 0 is outside 1 to 65535",
    ),
    (
        r#"{"Name": "p", "Kind": "connect-proxy", "Port": 80, "Proxy": {"DestinationServiceName": "web", "LocalServicePort": 80}}"#,
        "Proxy.LocalServicePort: port 80 is already the sidecar's own",
    ),
    (
        r#"{"Name": "web", "Checks": [{"CheckID": "a", "TTL": "1s"}, {"CheckID": "a", "TTL": "2s"}]}"#,
        "Checks[1].CheckID: two checks have this identifier",
    ),
];

/// What stands in `Connect.SidecarService` of a service `web` on port 80.
const SIDECARS: &[(&str, &str)] = &[
    (r#"{"ID": "x"}"#, "ID: must not be given: a nested sidecar is named after its service"),
    (r#"{"Port": 0}"#, "Port: port 0 is outside 1 to 65535; leave it out to be given one"),
    (
        r#"{"Proxy": {"LocalServicePort": 0}}"#,
        "Proxy.LocalServicePort: port 0 is outside 1 to 65535; leave it out for none",
    ),
    (r#"{"Port": 70000}"#, "Port: port 70000 is outside 1 to 65535"),
    (r#"{"Port": 80}"#, "Proxy.LocalServicePort: port 80 is already the sidecar's own"),
    (r#"{"Connect": {"SidecarService": {"Port": 1}}}"#, "Connect: a sidecar has no sidecar of its own"),
    (r#"{"Proxy": {"Mode": "opaque"}}"#, "Proxy.Mode: \"opaque\" is no mode; it is \"direct\" or \"transparent\""),
    (r#"{"Proxy": {"MutualTLSMode": "permissive"}}"#, "Proxy.MutualTLSMode: \"permissive\" needs Mode \"transparent\""),
    (
        r#"{"Proxy": {"Mode": "transparent", "MutualTLSMode": "lax"}}"#,
        "Proxy.MutualTLSMode: \"lax\" is no mode; it is \"strict\" or \"permissive\"",
    ),
    (
        r#"{"Proxy": {"TransparentProxy": {"OutboundListenerPort": 15001}}}"#,
        "Proxy.TransparentProxy: needs Mode \"transparent\"",
    ),
    (
        r#"{"Proxy": {"Mode": "transparent", "TransparentProxy": {"DialedDirectly": true}}}"#,
        "Proxy.TransparentProxy.DialedDirectly: is not supported in this release; remove it",
    ),
    (
        r#"{"Proxy": {"Mode": "transparent", "TransparentProxy": {"OutboundListenerPort": 15006}}}"#,
        "Proxy.TransparentProxy.OutboundListenerPort: port 15006 is already the InboundListenerPort",
    ),
    (
        r#"{"Port": 15001, "Proxy": {"Mode": "transparent"}}"#,
        "Proxy.TransparentProxy.OutboundListenerPort: port 15001 is already the sidecar's own",
    ),
    (
        r#"{"Proxy": {"Mode": "transparent", "Upstreams": [{"DestinationName": "b", "LocalBindPort": 15006}]}}"#,
        "Proxy.TransparentProxy.InboundListenerPort: port 15006 is already that of the upstream to b",
    ),
    (
        r#"{"Proxy": {"MeshGateway": {"Mode": "local"}}}"#,
        "Proxy.MeshGateway.Mode: \"local\" is not supported in this release; leave it out",
    ),
    (
        r#"{"Proxy": {"Config": {"protocol": "smtp"}}}"#,
        "Proxy.Config.protocol: \"smtp\" is no protocol; it is one of tcp, http, http2, grpc",
    ),
    (
        r#"{"Proxy": {"Config": {"local_connect_timeout_ms": "5s"}}}"#,
        "Proxy.Config.local_connect_timeout_ms: must be a whole number of milliseconds",
    ),
    (
        r#"{"Proxy": {"Config": {"envoy_public_listener_json": "{}"}}}"#,
        "Proxy.Config.envoy_public_listener_json: is not supported in this release; remove it",
    ),
    (
        r#"{"Proxy": {"Config": {"envoy_statsd_url": "udp://127.0.0.1:9125"}}}"#,
        "Proxy.Config.envoy_statsd_url: is not supported in this release; remove it",
    ),
    (
        r#"{"Proxy": {"Config": {"connect_timeout_ms": 5}}}"#,
        "Proxy.Config.connect_timeout_ms: is not supported in this release; remove it",
    ),
    (r#"{"Proxy": {"Config": {"protocl": "http"}}}"#, "Proxy.Config.protocl: unknown field; did you mean protocol?"),
    (
        r#"{"Proxy": {"Config": {"colour": "red"}}}"#,
        "Proxy.Config.colour: unknown field; known here are bind_address, bind_port, envoy_prometheus_bind_addr, envoy_stats_bind_addr, local_connect_timeout_ms, local_request_timeout_ms, max_inbound_connections, protocol",
    ),
    (
        r#"{"Proxy": {"Config": {"protocol": "http", "Protocol": "tcp"}}}"#,
        "Proxy.Config.Protocol: is given twice, in another spelling",
    ),
    (r#"{"Proxy": {"Config": {"bind_port": 0}}}"#, "Proxy.Config.bind_port: port 0 is outside 1 to 65535"),
    (r#"{"Proxy": {"Config": {"bind_port": 70000}}}"#, "Proxy.Config.bind_port: port 70000 is outside 1 to 65535"),
    (r#"{"Proxy": {"Config": {"bind_port": "web"}}}"#, "Proxy.Config.bind_port: \"web\" is no port"),
    (r#"{"Proxy": {"Config": {"bind_address": "lo"}}}"#, "Proxy.Config.bind_address: \"lo\" is no IP to listen on"),
    (
        r#"{"Proxy": {"Config": {"max_inbound_connections": -1}}}"#,
        "Proxy.Config.max_inbound_connections: -1 is no whole number from 0 to 4294967295",
    ),
    (
        r#"{"Proxy": {"Upstreams": [{"DestinationName": "api", "LocalBindPort": 1, "Config": {"limits": {"max_conections": 3}}}]}}"#,
        "Proxy.Upstreams[0].Config.limits.max_conections: unknown field; did you mean max_connections?",
    ),
    (
        r#"{"Proxy": {"Upstreams": [{"DestinationName": "api", "LocalBindPort": 1, "Config": {"bind_port": 3}}]}}"#,
        "Proxy.Upstreams[0].Config.bind_port: is not supported in this release; remove it",
    ),
    (
        r#"{"Proxy": {"Upstreams": [{"DestinationNme": "api", "LocalBindPort": 1}]}}"#,
        "Proxy.Upstreams[0].DestinationNme: unknown field; did you mean DestinationName?",
    ),
    (
        r#"{"Proxy": {"Upstreams": [{"DestinationName": "api", "LocalBindProt": 1}]}}"#,
        "Proxy.Upstreams[0].LocalBindProt: unknown field; did you mean LocalBindPort?",
    ),
    (
        r#"{"Proxy": {"Upstreams": [{"DestinationName": "web", "LocalBindPort": 1}]}}"#,
        "Proxy.Upstreams[0].DestinationName: web is an upstream to itself",
    ),
    (r#"{"Proxy": {"Upstreams": [{"DestinationName": "api"}]}}"#, "Proxy.Upstreams[0].LocalBindPort: must be given"),
    (
        r#"{"Proxy": {"Upstreams": [{"DestinationName": "api", "LocalBindPort": 0}]}}"#,
        "Proxy.Upstreams[0].LocalBindPort: port 0 is outside 1 to 65535",
    ),
    (
        r#"{"Proxy": {"Upstreams": [{"DestinationName": "api", "LocalBindPort": 70000}]}}"#,
        "Proxy.Upstreams[0].LocalBindPort: port 70000 is outside 1 to 65535",
    ),
    (
        r#"{"Proxy": {"Upstreams": [{"DestinationName": "api", "LocalBindPort": 1, "LocalBindAddress": "localhost"}]}}"#,
        "Proxy.Upstreams[0].LocalBindAddress: \"localhost\" is no IP address",
    ),
    (
        r#"{"Proxy": {"Upstreams": [{"DestinationName": "api", "LocalBindPort": 1, "Datacenter": "dc2"}]}}"#,
        "Proxy.Upstreams[0].Datacenter: no path to datacenter \"dc2\"",
    ),
    (
        r#"{"Proxy": {"Upstreams": [{"DestinationName": "api", "DestinationType": "prepared_query"}]}}"#,
        "Proxy.Upstreams[0].LocalBindPort: must be given",
    ),
    (
        r#"{"Proxy": {"Upstreams": [{"DestinationName": "api", "LocalBindPort": 1}, {"DestinationName": "api", "LocalBindPort": 2}]}}"#,
        "Proxy.Upstreams[1].DestinationName: there is already an upstream to api",
    ),
    (
        r#"{"Proxy": {"Upstreams": [{"DestinationName": "api", "LocalBindPort": 1}, {"DestinationName": "db", "LocalBindPort": 1}]}}"#,
        "Proxy.Upstreams[1].LocalBindPort: port 1 is already that of the upstream to api",
    ),
    (
        r#"{"Port": 9, "Proxy": {"Upstreams": [{"DestinationName": "api", "LocalBindPort": 9}]}}"#,
        "Proxy.Upstreams[0].LocalBindPort: port 9 is already the sidecar's own",
    ),
    (r#"{"Proxy": {"Upstreams": {"DestinationName": "api"}}}"#, "Proxy.Upstreams: must be a list, not an object"),
    (
        r#"{"Proxy": {"Upstreams": [{"DestinationName": "api", "LocalBindPort": 1, "Limits": {}}]}}"#,
        "Proxy.Upstreams[0].Limits: unknown field",
    ),
];

const CONFIGS: &[(&str, &str)] = &[
    ("{}", "Kind: must be given"),
    (r#"{"Knd": "service-defaults", "Name": "a"}"#, "Knd: unknown field; did you mean Kind?"),
    (r#"{"Kind": "service-defaults", "Nam": "a"}"#, "Nam: unknown field; did you mean Name?"),
    (r#"{"Kind": "rate-limit", "Name": "a"}"#, "Kind: \"rate-limit\" is not supported in this release"),
    (r#"{"Kind": "api-gateway"}"#, "Name: must be given"),
    (r#"{"Kind": "api-gateway", "Name": "a", "Listners": []}"#, "Listners: unknown field"),
    (r#"{"Kind": "http-route", "Name": "a", "Rules": {}}"#, "Rules: must be a list, not an object"),
    (
        r#"{"Kind": "jwt-provider", "Name": "a", "ClockSkewSeconds": "1"}"#,
        "ClockSkewSeconds: must be a number, not a string",
    ),
    (
        r#"{"Kind": "service-intentions", "Name": "a", "Sources": [{"Name": "b", "Action": "allow"}], "JWT": {"Providers": [{"Name": "okta"}]}}"#,
        "JWT: is not supported in this release; remove it",
    ),
    (
        r#"{"Kind": "proxy-defaults", "Mode": "transparent"}"#,
        "Mode: \"transparent\" is not supported in this release; leave it out",
    ),
    (
        r#"{"Kind": "proxy-defaults", "EnvoyExtensions": [{"Name": "builtin/ext-authz"}]}"#,
        "EnvoyExtensions: is not supported in this release; remove it",
    ),
    (
        r#"{"Kind": "service-intentions", "Name": "a", "Sources": [{"Name": "b", "Action": "allow", "LegacyID": "x"}]}"#,
        "Sources[0].LegacyID: \"x\" is not a UUID in lower case with hyphens",
    ),
    (
        r#"{"Kind": "nonsense"}"#,
        "Kind: \"nonsense\" is no config entry kind; it is one of ingress-gateway, mesh, proxy-defaults, service-defaults, service-intentions, service-resolver, service-router, service-splitter, *",
    ),
    (
        r#"{"Kind": "proxy-defaults", "Name": "local"}"#,
        "Name: \"local\" is not \"global\", the only proxy-defaults entry",
    ),
    (r#"{"Kind": "proxy-defaults", "Config": {"protocol": 7}}"#, "Config.protocol: must be a string"),
    (
        r#"{"Kind": "proxy-defaults", "Config": {"protocl": "http"}}"#,
        "Config.protocl: unknown field; did you mean protocol?",
    ),
    (
        r#"{"Kind": "proxy-defaults", "Config": {"envoy_dogstatsd_url": "udp://127.0.0.1:9125"}}"#,
        "Config.envoy_dogstatsd_url: is not supported in this release; remove it",
    ),
    (
        r#"{"Kind": "proxy-defaults", "AccessLogs": {"Enabled": true, "Type": "file"}}"#,
        "AccessLogs.Path: must be given with Type \"file\"",
    ),
    (
        r#"{"Kind": "proxy-defaults", "AccessLogs": {"Type": "syslog"}}"#,
        "AccessLogs.Type: \"syslog\" is none of \"stdout\", \"stderr\" and \"file\"",
    ),
    (r#"{"Kind": "proxy-defaults", "AccessLogs": {"Path": "/tmp/log"}}"#, "AccessLogs.Path: is for Type \"file\" only"),
    (
        r#"{"Kind": "proxy-defaults", "AccessLogs": {"TextFormat": "%STREAM_ID% %REQ(a)%"}}"#,
        "AccessLogs.TextFormat: the operator %STREAM_ID% is not supported",
    ),
    (
        r#"{"Kind": "proxy-defaults", "AccessLogs": {"JSONFormat": "{\"a\": \"%DURATION\"}"}}"#,
        "AccessLogs.JSONFormat: has a field \"a\": the % at byte 0 begins no operator that ends in %; write %% for the sign itself",
    ),
    (r#"{"Kind": "proxy-defaults", "AccessLogs": {"JSONFormat": "[1]"}}"#, "AccessLogs.JSONFormat: is no JSON object"),
    (
        r#"{"Kind": "proxy-defaults", "AccessLogs": {"JSONFormat": "{}", "TextFormat": "a"}}"#,
        "AccessLogs.TextFormat: contradicts JSONFormat; give one of them",
    ),
    (
        r#"{"Kind": "proxy-defaults", "AccessLogs": {"Filter": "some"}}"#,
        "AccessLogs.Filter: \"some\" is none of \"all\", \"errors\" and \"1/N\"",
    ),
    (r#"{"Kind": "service-defaults"}"#, "Name: must be given"),
    (r#"{"Kind": "service-defaults", "Name": "*"}"#, "Name: must be the name of a service, not the wildcard *"),
    (
        r#"{"Kind": "service-defaults", "Name": "a", "Protocol": "smtp"}"#,
        "Protocol: \"smtp\" is no protocol; it is one of tcp, http, http2, grpc",
    ),
    (
        r#"{"Kind": "service-defaults", "Name": "a", "UpstreamConfig": {"Defaults": {"MeshGateway": {"Mode": "local"}}}}"#,
        "UpstreamConfig.Defaults.MeshGateway: is not supported in this release; remove it",
    ),
    (
        r#"{"Kind": "service-defaults", "Name": "a", "LocalConnectTimeoutMs": -5}"#,
        "LocalConnectTimeoutMs: -5 is outside 0 to 4294967295",
    ),
    (r#"{"Kind": "service-defaults", "Name": "a", "Nope": null}"#, "Nope: unknown field"),
    (r#"{"Kind": "service-intentions", "Name": "a"}"#, "Sources: at least one source must be given"),
    (
        r#"{"Kind": "service-intentions", "Name": "a*", "Sources": []}"#,
        "Name: the wildcard * stands alone or not at all",
    ),
    (
        r#"{"Kind": "service-intentions", "Name": "a", "Sources": [{"Name": "b"}]}"#,
        "Sources[0].Action: must be \"allow\" or \"deny\"",
    ),
    (
        r#"{"Kind": "service-intentions", "Name": "a", "Source": [{"Name": "b", "Action": "allow"}]}"#,
        "Source: unknown field; did you mean Sources?",
    ),
    (
        r#"{"Kind": "service-intentions", "Name": "a", "Sources": [{"Name": "b", "Acton": "allow"}]}"#,
        "Sources[0].Acton: unknown field; did you mean Action?",
    ),
    (
        r#"{"Kind": "service-intentions", "Name": "a", "Sources": [{"Name": "b", "Action": "maybe"}]}"#,
        "Sources[0].Action: \"maybe\" is neither \"allow\" nor \"deny\"",
    ),
    (
        r#"{"Kind": "service-intentions", "Name": "a", "Sources": [{"Name": "b", "Action": "allow"}, {"Name": "b", "Action": "deny"}]}"#,
        "Sources[1].Name: \"b\" is given twice",
    ),
    (
        r#"{"Kind": "service-intentions", "Name": "a", "Sources": [{"Name": "b", "Action": "allow", "Peer": "p"}]}"#,
        "Sources[0].Peer: is not supported in this release; remove it",
    ),
    (
        r#"{"Kind": "service-intentions", "Name": "*", "Sources": [{"Name": "b", "Permissions": [{"Action": "allow", "HTTP": {"PathPrefix": "/"}}]}]}"#,
        "Sources[0].Permissions: must not be given for the destination *",
    ),
];

/// What stands in `Permissions[0]` of an intention.
const PERMISSIONS: &[(&str, &str)] = &[
    (r#"{"HTTP": {"PathPrefix": "/"}}"#, "Action: must be \"allow\" or \"deny\""),
    (r#"{"Action": "deny"}"#, "HTTP: must be given"),
    (r#"{"Action": "deny", "HTTP": {"Header": [{"Name": "x", "Exat": "a"}]}}"#, "HTTP.Header[0].Exat: unknown field"),
    (r#"{"Action": "deny", "HTTP": {}}"#, "HTTP: must say something of path, headers or methods"),
    (r#"{"Action": "deny", "HTTP": {"PathExact": "a"}}"#, "HTTP.PathExact: \"a\" does not begin with '/'"),
    (
        r#"{"Action": "deny", "HTTP": {"PathExact": "/a?b"}}"#,
        "HTTP.PathExact: \"/a?b\" goes beyond the path; queries are not compared",
    ),
    (
        r#"{"Action": "deny", "HTTP": {"PathExact": "/a/../b"}}"#,
        "HTTP.PathExact: no request can match it: requests are compared in normal form, without //, . or .. and with nothing escaped needlessly",
    ),
    (
        r#"{"Action": "deny", "HTTP": {"PathExact": "/a", "PathRegex": "/b"}}"#,
        "HTTP.PathRegex: contradicts PathExact: at most one of the three is allowed",
    ),
    (r#"{"Action": "deny", "HTTP": {"PathRegex": "/a(?=b)"}}"#, "HTTP.PathRegex: *"),
    (r#"{"Action": "deny", "HTTP": {"PathRegex": "/a("}}"#, "HTTP.PathRegex: *"),
    (r#"{"Action": "deny", "HTTP": {"Methods": ["FETCH"]}}"#, "HTTP.Methods[0]: \"FETCH\" is no HTTP method"),
    (r#"{"Action": "deny", "HTTP": {"Methods": ["get", "GET"]}}"#, "HTTP.Methods[1]: GET is given twice"),
    (r#"{"Action": "deny", "HTTP": {"Header": [{"Present": true}]}}"#, "HTTP.Header[0].Name: must be given"),
    (
        r#"{"Action": "deny", "HTTP": {"Header": [{"Name": "x y", "Present": true}]}}"#,
        "HTTP.Header[0].Name: \"x y\" is no header field name",
    ),
    (
        r#"{"Action": "deny", "HTTP": {"Header": [{"Name": "x"}]}}"#,
        "HTTP.Header[0].Present: exactly one of Present, Exact, Prefix, Suffix, Contains and Regex must be given",
    ),
    (
        r#"{"Action": "deny", "HTTP": {"Header": [{"Name": "x", "Exact": "a", "Prefix": "b"}]}}"#,
        "HTTP.Header[0].Present: exactly one of Present, Exact, Prefix, Suffix, Contains and Regex must be given",
    ),
    (r#"{"Action": "deny", "HTTP": {"Header": [{"Name": "x", "Regex": "["}]}}"#, "HTTP.Header[0].Regex: *"),
    (
        r#"{"Action": "deny", "HTTP": {"Header": [{"Name": "x", "Present": true, "IgnoreCase": true}]}}"#,
        "HTTP.Header[0].IgnoreCase: is for Exact, Prefix, Suffix and Contains only",
    ),
    (
        r#"{"Action": "deny", "HTTP": {"PathPrefix": "/"}, "JWT": {"Providers": [{"Name": "okta"}]}}"#,
        "JWT: is not supported in this release; remove it",
    ),
    (r#"{"Action": "deny", "HTTP": {"PathPrefx": "/"}}"#, "HTTP.PathPrefx: unknown field"),
    (r#"{"Action": "deny", "HTTP": {"PathPrefix": "/", "Path": "/"}}"#, "HTTP.Path: unknown field"),
];

const INTENTIONS: &[(&str, &str)] = &[
    ("{}", "Action: must be \"allow\" or \"deny\""),
    (r#"{"Action": "allow", "Permissions": [{}]}"#, "Action: must be left out where Permissions are given"),
    (r#"{"Action": "allow", "SourceName": "other"}"#, "SourceName: is not \"web\", the name in the address"),
    (r#"{"Action": "allow", "SourceNS": "team"}"#, "SourceNS: \"team\" is not supported in this release; leave it out"),
    (
        r#"{"Action": "allow", "SourceType": "spiffe"}"#,
        "SourceType: \"spiffe\" is not supported in this release; leave it out",
    ),
    (
        r#"{"Action": "allow", "Meta": {"a": "b"}}"#,
        "Meta: belongs to the service-intentions entry of the destination; write it there",
    ),
    (r#"{"Action": "allow", "Nope": 1}"#, "Nope: unknown field"),
];

#[tokio::test]
async fn bad_input_gets_400_with_path_and_reason() {
    let world = World::new();
    for (target, table) in [(REGISTER, SERVICES), (CONFIG, CONFIGS), (EXACT, INTENTIONS)] {
        for (body, wanted) in table {
            world.refuses(target, body, wanted).await;
        }
    }
    for (sidecar, wanted) in SIDECARS {
        let body = format!(r#"{{"Name": "web", "Port": 80, "Connect": {{"SidecarService": {sidecar}}}}}"#);
        world.refuses(REGISTER, &body, &format!("Connect.SidecarService.{wanted}")).await;
    }
    for (permission, wanted) in PERMISSIONS {
        world
            .refuses(EXACT, &format!(r#"{{"Permissions": [{permission}]}}"#), &format!("Permissions[0].{wanted}"))
            .await;
    }
}

#[tokio::test]
async fn zero_values_of_consuls_own_types_are_taken() {
    let world = World::new();
    for body in [
        r#"{"Name": "a", "Port": null, "ID": "", "Tags": null, "Check": null, "Checks": null, "Kind": "", "Proxy": {"MeshGateway": {}, "Expose": {}}, "Connect": {}, "Weights": null, "EnableTagOverride": false, "Namespace": "default", "Locality": null}"#,
        r#"{"Name": "b", "Check": {"HTTP": "", "Interval": "", "TTL": 0}, "Connect": {"SidecarService": {"Proxy": {"LocalServicePort": null, "Mode": "", "TransparentProxy": {"OutboundListenerPort": 0}, "AccessLogs": {}}}}}"#,
        r#"{"Name": "c", "Token": "secret", "Locality": {"Region": "eu"}, "Checks": [{"TTL": "10s", "OutputMaxSize": 4096}]}"#,
    ] {
        let (answer, text) = world.send("PUT", REGISTER, body).await;
        assert_eq!(answer.status(), 200, "{body}: {text}");
    }
}

#[tokio::test]
async fn bodies_past_their_limit_are_refused_with_its_name() {
    let world = World::new();
    let blanks = " ".repeat(600 * 1024);
    let wanted = "body: is larger than 524288 bytes, the limit \"registration\" of PUT /v1/agent/service/register";
    let (answer, text) = world.send("PUT", REGISTER, &blanks).await;
    assert_eq!((answer.status().as_u16(), text.as_str()), (400, wanted));
    // Of a length that is not declared: read up to the limit and no further.
    let chunks = futures::stream::iter([Ok::<_, std::io::Error>(blanks.clone()), Ok(blanks)]);
    let request = Request::put(REGISTER).body(axum::body::Body::from_stream(chunks)).unwrap();
    let answer = world.router().oneshot(request).await.unwrap();
    assert_eq!(answer.status(), 400);
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(text, wanted.as_bytes());
}

#[tokio::test]
async fn addresses_past_their_limit_are_refused() {
    let world = World::new();
    let (answer, text) = world.send("GET", &format!("/v1/agent/self?{}", "a".repeat(9000)), "").await;
    assert_eq!(
        (answer.status().as_u16(), text.as_str()),
        (414, "the address has 9015 bytes; at most 8192 are allowed")
    );
}

#[tokio::test]
async fn who_lacks_a_permission_is_refused_before_the_body_is_read() {
    let mesh = Mesh::new(Action::Deny).await;
    let send = async |request: Request<axum::body::Body>| mesh.router.clone().oneshot(request).await.unwrap();
    let unreadable = || axum::body::Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    let answer = send(Request::put(REGISTER).body(unreadable()).unwrap()).await;
    assert_eq!(answer.status(), 403);
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(text.starts_with(b"Permission denied: anonymous token lacks permission 'service:write'"), "{text:?}");
    let at_agents = mesh.world.router_at(EntryPoint::Agents);
    let answer = at_agents.oneshot(Request::put(REGISTER).body(unreadable()).unwrap()).await.unwrap();
    assert_eq!(answer.status(), 403, "nor at the port for agents");
    let empty = axum::body::Body::empty;
    assert_eq!(send(Request::get("/v1/status/leader").body(empty()).unwrap()).await.status(), 200);
    let target = format!("/v1/agent/self?token={}", mesh.root);
    assert_eq!(send(Request::get(target).body(empty()).unwrap()).await.status(), 200);
    for (name, value) in [("X-Consul-Token", mesh.root.clone()), ("Authorization", format!("Bearer {}", mesh.root))] {
        let request = Request::get("/v1/agent/self").header(name, value).body(empty()).unwrap();
        assert_eq!(send(request).await.status(), 200, "{name}");
    }
}

#[tokio::test]
async fn pages_of_other_sites_may_not_write() {
    let world = World::new();
    let written = async |name: &str, value: &str| {
        let body = axum::body::Body::from(r#"{"SourceName": "a", "DestinationName": "b", "Action": "allow"}"#);
        let request = Request::post("/v1/connect/intentions").header("Host", "127.0.0.1:8500").header(name, value);
        world.router().oneshot(request.body(body).unwrap()).await.unwrap().status()
    };
    for (name, value, wanted) in [
        ("Sec-Fetch-Site", "cross-site", 403),
        ("Sec-Fetch-Site", "same-site", 403),
        ("Origin", "http://evil.example", 403),
        ("Origin", "null", 403),
        ("Origin", "http://127.0.0.1:8500", 200),
        ("Sec-Fetch-Site", "same-origin", 200),
    ] {
        assert_eq!(written(name, value).await, wanted, "{name}: {value}");
    }
}
