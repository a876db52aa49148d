//! Settings of Consul's agent (<https://developer.hashicorp.com/consul/docs/reference/agent/configuration-file>): those that Starling has a
//! part for, and what `starling dev` makes of them.

mod acl;
mod doors;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use starling_http_api::CONSUL_VERSION;
use starling_http_api::parse::file::agent_fields;
use starling_http_api::parse::{FieldError, Fields};
use starling_identity::ClusterId;
use starling_model::{Datacenter, NodeName, Uuid};

use super::Guise;
use crate::outcome::usage;
use crate::role::definitions;
use crate::role::reload::Sources;
use acl::Acl;
use doors::Doors;

/// Consul's ports.
const HTTP_PORT: i64 = 8500;
const DNS_PORT: i64 = 8600;
const GRPC_PORT: i64 = 8502;
const GRPC_TLS_PORT: i64 = 8503;

/// What files and flags say.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) node_name: Option<NodeName>,
    node_id: Option<Uuid>,
    node_meta: BTreeMap<String, String>,
    pub(super) datacenter: Option<String>,
    pub(super) data_dir: Option<PathBuf>,
    pub(super) client_addr: Option<String>,
    pub(super) bind_addr: Option<String>,
    pub(super) advertise_addr: Option<String>,
    addresses: BTreeMap<String, String>,
    pub(super) ports: Ports,
    pub(super) log_level: Option<String>,
    pub(super) log_json: bool,
    pub(super) enable_script_checks: bool,
    connect_off: bool,
    /// What holds for calls that no intention covers, if it is said.
    default_intention_policy: Option<String>,
    acl: Acl,
    doors: Doors,
    cluster: Option<ClusterId>,
    /// Whether something was said of other members that this agent would be with.
    pub(super) seeks_others: bool,
    /// Settings that were there and have no effect.
    pub(super) ignored: BTreeSet<String>,
}

/// Ports; below 0 is for none.
#[derive(Debug, Default)]
pub(super) struct Ports {
    pub(super) http: Option<i64>,
    pub(super) https: Option<i64>,
    pub(super) dns: Option<i64>,
    pub(super) grpc: Option<i64>,
    pub(super) grpc_tls: Option<i64>,
}

impl Settings {
    /// Adds what a file says; what it says again counts.
    pub(super) fn read(&mut self, file: &str, text: &[u8]) -> anyhow::Result<()> {
        // Node and datacentre are those of what is registered, which is read later.
        let context = definitions::context("any".parse()?, "dc1".parse()?);
        let fields = agent_fields(file, text, &context).map_err(|error| usage(error.to_string()))?;
        self.take(fields).map_err(|error| usage(format!("{file}: {error}")))
    }

    fn take(&mut self, mut fields: Fields<'_>) -> Result<(), FieldError> {
        if let Some(name) = fields.text("node_name")? {
            self.node_name = Some(name.parse().map_err(|error| fields.error("node_name", error))?);
        }
        if let Some(id) = fields.text("node_id")? {
            self.node_id = Some(id.parse().map_err(|error| fields.error("node_id", error))?);
        }
        self.node_meta.extend(fields.text_map("node_meta")?);
        for (name, setting) in [
            ("datacenter", &mut self.datacenter),
            ("client_addr", &mut self.client_addr),
            ("bind_addr", &mut self.bind_addr),
            ("advertise_addr", &mut self.advertise_addr),
            ("log_level", &mut self.log_level),
        ] {
            *setting = fields.text(name)?.or_else(|| setting.take());
        }
        self.data_dir = fields.text("data_dir")?.map(PathBuf::from).or_else(|| self.data_dir.take());
        self.addresses.extend(fields.text_map("addresses")?);
        if let Some(ports) = fields.object("ports")? {
            self.take_ports(ports)?;
        }
        Acl::refuse_guards(&mut fields, &mut self.ignored)?;
        if let Some(acl) = fields.object("acl")? {
            self.acl.take(acl, &mut self.ignored)?;
        }
        self.doors.take(&mut fields, &mut self.ignored)?;
        self.log_json |= fields.flag("log_json")?;
        self.enable_script_checks |=
            fields.flag("enable_script_checks")? | fields.flag("enable_local_script_checks")?;
        if let Some(policy) = fields.text("default_intention_policy")? {
            self.default_intention_policy = Some(policy);
        }
        if let Some(mut connect) = fields.object("connect")? {
            if let Some(mut ca) = connect.object("ca_config")? {
                if let Some(id) = ca.text("cluster_id")? {
                    let id: Uuid = id.parse().map_err(|error| ca.error("cluster_id", error))?;
                    self.cluster = Some(ClusterId::new(id));
                }
                self.ignored.extend(ca.rest().map(|name| format!("connect.ca_config.{name}")));
            }
            if let Some(enabled) = connect.take("enabled") {
                self.connect_off = !enabled.flag()?;
            }
            self.ignored.extend(connect.rest().map(|name| format!("connect.{name}")));
        }
        for name in ["server", "bootstrap_expect", "retry_join", "start_join", "retry_join_wan", "start_join_wan"] {
            let Some(field) = fields.take(name) else { continue };
            self.ignored.insert(name.to_owned());
            self.seeks_others |= match name {
                "server" => !field.flag()?,
                "bootstrap_expect" => field.integer()? > 1,
                _ => !field.list()?.is_empty(),
            };
        }
        self.ignored.extend(fields.rest());
        Ok(())
    }

    fn take_ports(&mut self, mut ports: Fields<'_>) -> Result<(), FieldError> {
        let own = [
            ("http", &mut self.ports.http),
            ("https", &mut self.ports.https),
            ("dns", &mut self.ports.dns),
            ("grpc", &mut self.ports.grpc),
            ("grpc_tls", &mut self.ports.grpc_tls),
        ];
        for (name, setting) in own {
            *setting = ports.integer(name)?.or(*setting);
        }
        for other in ["serf_lan", "serf_wan", "server", "sidecar_min_port", "sidecar_max_port"] {
            if ports.integer(other)?.is_some_and(|port| port > 0) {
                self.ignored.insert(format!("ports.{other}"));
            }
        }
        ports.ignored(&["expose_min_port", "expose_max_port"]);
        ports.finish()
    }

    pub(super) fn datacenter(&self) -> anyhow::Result<Datacenter> {
        let name = self.datacenter.as_deref().unwrap_or("dc1");
        name.parse().map_err(|error| usage(format!("datacenter: {error}")))
    }

    /// What the agent's own node shows of itself.
    pub(super) fn guise(&self) -> Guise {
        let mut node_meta = self.node_meta.clone();
        node_meta.insert("consul-network-segment".to_owned(), String::new());
        node_meta.insert("consul-version".to_owned(), CONSUL_VERSION.to_owned());
        let (node_id, cluster, connect_off) = (self.node_id, self.cluster, self.connect_off);
        let tokens = self.acl.tokens.clone();
        Guise { node_id, node_meta, cluster, is_consul: true, connect_off, sources: Sources::default(), tokens }
    }

    /// The same as arguments of `starling dev`.
    pub(super) fn dev_arguments(&mut self, keeps_nothing: bool) -> anyhow::Result<Vec<OsString>> {
        let mut arguments: Vec<OsString> = vec!["starling".into(), "dev".into()];
        let mut say = |flag: &str, value: OsString| arguments.extend([flag.into(), value]);
        match (&self.data_dir, keeps_nothing) {
            (Some(directory), false) => say("--data-dir", directory.into()),
            (Some(_), true) => {}
            (None, true) => {}
            (None, false) => return Err(usage("data_dir cannot be empty: give -data-dir, or -dev to keep nothing")),
        }
        let client = address("client_addr", self.client_addr.as_deref(), IpAddr::V4(Ipv4Addr::LOCALHOST))?;
        let local = if client.is_loopback() { client } else { IpAddr::V4(Ipv4Addr::LOCALHOST) };
        let bind = address("bind_addr", self.bind_addr.as_deref(), client)?;
        let advertise = address("advertise_addr", self.advertise_addr.as_deref(), bind)?;
        let socket = self.doors.socket(self.addresses.get("http"));
        if socket.is_some() {
            self.addresses.remove("http");
        }
        for (name, flag, default, port, usual) in [
            ("http", "--http-addr", client, self.ports.http, HTTP_PORT),
            ("dns", "--dns-addr", client, self.ports.dns, DNS_PORT),
            // In plaintext it is for proxies of this machine.
            ("grpc", "--grpc-addr", local, self.ports.grpc, GRPC_PORT),
            ("grpc_tls", "--grpc-tls-addr", bind, self.ports.grpc_tls, GRPC_TLS_PORT),
        ] {
            let at = address(&format!("addresses.{name}"), self.addresses.get(name).map(String::as_str), default)?;
            // Where none is wanted it is one that nobody knows, on this machine alone.
            let is_wanted = port.is_none_or(|port| port >= 0);
            let (at, port) = if is_wanted { (at, port.unwrap_or(usual)) } else { (local, 0) };
            say(flag, format!("{}:{port}", if at.is_ipv6() { format!("[{at}]") } else { at.to_string() }).into());
        }
        if let Some(name) = &self.node_name {
            say("--node-name", name.to_string().into());
        }
        say("--datacenter", self.datacenter()?.to_string().into());
        if !advertise.is_unspecified() {
            say("--advertise-addr", advertise.to_string().into());
        }
        let level = self.log_level.as_deref().unwrap_or("info").to_ascii_lowercase();
        say("--log-level", if level == "err" { "error".to_owned() } else { level }.into());
        if self.log_json {
            say("--log-format", "json".into());
        }
        if let Some(default) = self.acl.default_policy() {
            say("--acl-default-policy", default.into());
        }
        // What holds for requests to the API holds for calls, too, unless something else is said.
        let intentions = self.default_intention_policy.as_deref().or(self.acl.default_policy());
        if intentions == Some("deny") {
            say("--default-intention-policy", "deny".into());
        }
        arguments.extend(socket.into_iter().flatten());
        let at = self.addresses.get("https").map(String::as_str);
        arguments.extend(self.doors.https(self.ports.https, at, client, &mut self.ignored)?);
        if self.enable_script_checks {
            arguments.push("--enable-script-checks".into());
        }
        Ok(arguments)
    }
}

fn address(name: &str, text: Option<&str>, default: IpAddr) -> anyhow::Result<IpAddr> {
    let Some(text) = text else { return Ok(default) };
    text.parse().map_err(|_| {
        usage(format!(
            "{name}: {text:?} is no IP address; templates are not supported, and a unix socket is for addresses.http"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> anyhow::Result<Settings> {
        let mut settings = Settings::default();
        settings.read("config.json", text.as_bytes())?;
        Ok(settings)
    }

    #[test]
    fn settings_become_arguments_and_what_has_no_part_is_told() {
        let mut settings = read(
            r#"{"node_name": "n1", "node_id": "6f1c1b7e-6f2c-4cbb-9d5f-0f6f7f6a8a11", "server": true, "bootstrap": true,
                "data_dir": "/var/lib/consul", "bind_addr": "10.0.0.1", "log_level": "ERR", "datacenter": "dc2",
                "ports": {"http": 1, "dns": -1, "grpc": 2, "grpc_tls": 3, "serf_lan": 4, "https": -1},
                "connect": {"enabled": true, "ca_config": {"cluster_id": "11111111-2222-3333-4444-555555555555", "leaf_cert_ttl": "1h"}},
                "node_meta": {"rack": "a"}, "performance": {"raft_multiplier": 1}, "segments": null,
                "services": [{"name": "web"}]}"#,
        )
        .expect("settings");
        let arguments = settings.dev_arguments(false).expect("arguments");
        let arguments: Vec<_> = arguments.iter().map(|it| it.to_str().expect("text")).collect();
        let expected = "starling dev --data-dir /var/lib/consul --http-addr 127.0.0.1:1 --dns-addr 127.0.0.1:0 --grpc-addr \
                        127.0.0.1:2 --grpc-tls-addr 10.0.0.1:3 --node-name n1 --datacenter dc2 --advertise-addr 10.0.0.1 \
                        --log-level error";
        assert_eq!(arguments.join(" "), expected);
        let ignored: Vec<_> = settings.ignored.iter().map(String::as_str).collect();
        assert_eq!(
            ignored,
            ["bootstrap", "connect.ca_config.leaf_cert_ttl", "performance", "ports.serf_lan", "server"]
        );
        assert!(!settings.seeks_others);
        for other in [r#"{"server": false}"#, r#"{"bootstrap_expect": 3}"#, r#"{"retry_join": ["10.0.0.1"]}"#] {
            assert!(read(other).expect("settings").seeks_others, "{other}");
        }
        let guise = settings.guise();
        assert_eq!(guise.node_meta["rack"], "a");
        let domain = guise.cluster.map(|cluster| cluster.trust_domain().to_string());
        assert_eq!(domain.as_deref(), Some("11111111-2222-3333-4444-555555555555.consul"));
    }

    #[test]
    fn connect_is_on_unless_it_is_turned_off() {
        for (text, off) in [("{}", false), (r#"{"connect": {}}"#, false), (r#"{"connect": {"enabled": false}}"#, true)]
        {
            assert_eq!(read(text).expect("settings").guise().connect_off, off, "{text}");
        }
    }

    #[test]
    fn access_control_is_on_with_its_tokens_where_it_is_enabled() {
        let acl = r#"{"acl": {"enabled": ENABLED, "default_policy": "deny", "down_policy": "extend-cache",
                      "tokens": {"initial_management": "root", "agent": "root", "default": "d"}}}"#;
        let line = |enabled| {
            let mut settings = read(&acl.replace("ENABLED", enabled)).expect("settings");
            let arguments = settings.dev_arguments(true).expect("arguments");
            let line = arguments.iter().map(|it| it.to_str().expect("text")).collect::<Vec<_>>().join(" ");
            (line, settings.guise().tokens)
        };
        let (on, tokens) = line("true");
        assert!(
            on.contains("--acl-default-policy deny --default-intention-policy deny") && !on.contains("root"),
            "{on}"
        );
        assert_eq!(tokens.initial_management.as_ref().map(|token| token.reveal()), Some("root"));
        assert_eq!(tokens.default.as_ref().map(|token| token.reveal()), Some("d"));
        let (off, tokens) = line("false");
        assert!(!off.contains("policy"), "{off}");
        assert_eq!(tokens, super::super::GivenTokens::default());
    }

    #[test]
    fn sockets_and_certificates_become_doors() {
        let line = |text: &str| {
            let mut settings = read(text)?;
            let arguments = settings.dev_arguments(true)?;
            let words: Vec<_> = arguments.iter().map(|it| it.to_str().expect("text")).collect();
            anyhow::Ok((words.join(" "), settings.ignored))
        };
        let (unix, _) = line(
            r#"{"addresses": {"http": "unix:///run/consul.sock"}, "unix_sockets": {"mode": "0770", "user": "consul", "group": "42"}}"#,
        )
        .expect("a socket");
        let socket = "--http-socket /run/consul.sock --http-socket-only --http-socket-mode 0770 --http-socket-user consul \
                      --http-socket-group 42";
        assert!(unix.contains(socket), "{unix}");
        let old = r#"{"ports": {"https": 8501}, "ca_file": "ca", "cert_file": "cert", "key_file": "key", "verify_incoming": true}"#;
        let (https, _) = line(old).expect("HTTPS");
        let served = "--https-addr 127.0.0.1:8501 --https-cert-file cert --https-key-file key";
        assert!(https.ends_with(&format!("{served} --https-client-ca-file ca")), "{https}");
        let new = r#"{"ports": {"https": 8501}, "tls": {"defaults": {"ca_file": "ca", "verify_incoming": true, "verify_outgoing": true},
            "https": {"cert_file": "cert", "key_file": "key", "verify_incoming": false}}}"#;
        let (https, ignored) = line(new).expect("HTTPS");
        assert!(https.ends_with(served), "{https}");
        assert!(ignored.contains("tls.defaults.verify_outgoing"), "{ignored:?}");
        let (none, ignored) = line(r#"{"ports": {"https": 8501}}"#).expect("nothing to show");
        assert!(!none.contains("--https") && ignored.iter().any(|it| it.starts_with("ports.https")), "{none}");
        let nobody = r#"{"ports": {"https": 1}, "cert_file": "c", "key_file": "k", "verify_incoming": true}"#;
        assert!(line(nobody).expect_err("no CA").to_string().contains("ca_file"));
        assert!(line(r#"{"addresses": {"dns": "unix:///x"}}"#).expect_err("DNS").to_string().contains("addresses.dns"));
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (text, reason) in [
            (r#"{"colour": "red"}"#, "colour"),
            (r#"{"node_name": "a b"}"#, "node_name"),
            (r#"{"ports": {"http": "x"}}"#, "ports.http"),
            (r#"{"node_id": "x"}"#, "node_id"),
            (r#"{"acl": {"enabled": true, "default_policy": "some"}}"#, "acl.default_policy"),
            (r#"{"acl": {"enabled": true, "defualt_policy": "deny"}}"#, "acl.defualt_policy"),
            (r#"{"acl": {"enabled": true}, "acl_default_policy": "deny"}"#, "acl_default_policy"),
            (r#"{"http_config": {"allow_write_http_from": ["127.0.0.0/8"]}}"#, "http_config.allow_write_http_from"),
            (r#"{"acl": {"enabled": true, "tokens": {"initial_management": "a b"}}}"#, "acl.tokens.initial_management"),
            (r#"{"tls": {"https": {"tls_min_version": "TLSv1_3"}}}"#, "tls.https.tls_min_version"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
        let nowhere = read("{}").expect("settings").dev_arguments(false).expect_err("nowhere to keep it");
        assert!(nowhere.to_string().contains("data_dir"), "{nowhere}");
        assert!(read("{}").expect("settings").dev_arguments(true).is_ok());
    }
}
