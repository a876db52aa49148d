//! Settings of Consul's agent (<https://developer.hashicorp.com/consul/docs/reference/agent/configuration-file>): those that Starling has a
//! part for. What `starling dev` and `starling agent` make of them is in `settings/arguments.rs`.

mod acl;
mod arguments;
mod dns;
mod documented;
mod doors;
mod interfaces;
mod joining;
mod places;
mod said;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use starling_http_api::CONSUL_VERSION;
use starling_http_api::parse::{FieldError, Fields};
use starling_identity::ClusterId;
use starling_model::{Datacenter, NodeName, Uuid};

use super::{GivenTokens, Guise};
use crate::outcome::usage;
use crate::role::definitions;
use crate::role::reload::Text;
use acl::Acl;
use dns::Dns;
use doors::Doors;
pub(super) use joining::Joining;
pub(super) use said::Said;

/// What files and flags say.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) node_name: Option<NodeName>,
    pub(super) node_id: Option<Uuid>,
    pub(super) node_meta: BTreeMap<String, String>,
    pub(super) datacenter: Option<String>,
    pub(super) data_dir: Option<PathBuf>,
    pub(super) client_addr: Option<String>,
    pub(super) bind_addr: Option<String>,
    pub(super) advertise_addr: Option<String>,
    addresses: BTreeMap<String, String>,
    pub(super) ports: Ports,
    pub(super) log_level: Option<String>,
    pub(super) log_json: bool,
    pub(super) enable_script_checks: Option<bool>,
    pub(super) enable_local_script_checks: Option<bool>,
    /// Who serves sidecars; a flag alone says it.
    pub(super) data_plane: Option<String>,
    connect_off: bool,
    translates_addresses: bool,
    /// What holds for calls that no intention covers, if it is said.
    default_intention_policy: Option<String>,
    acl: Acl,
    dns: Dns,
    doors: Doors,
    cluster: Option<ClusterId>,
    /// What is said of other members.
    pub(super) joining: Joining,
    /// Settings that were there and have no effect.
    pub(super) ignored: BTreeSet<String>,
    /// Everything that files say.
    pub(super) said: Said,
}

/// Ports; 0 and below are for none.
#[derive(Debug, Default)]
pub(super) struct Ports {
    pub(super) http: Option<i64>,
    pub(super) https: Option<i64>,
    pub(super) dns: Option<i64>,
    pub(super) grpc: Option<i64>,
    pub(super) grpc_tls: Option<i64>,
    sidecar_min: Option<i64>,
    sidecar_max: Option<i64>,
}

/// Ports that Consul documents and that nothing listens at here.
const PORTS_WITHOUT_PART: [&str; 6] = ["serf_lan", "serf_wan", "server", "rpc", "expose_min_port", "expose_max_port"];

impl Settings {
    /// Adds what a text says; what it says again counts.
    pub(super) fn read(&mut self, text: &Text) -> anyhow::Result<()> {
        // Node and datacentre are those of what is registered, which is read later.
        let context = definitions::context("any".parse()?, "dc1".parse()?);
        let fields = text.settings(&context).map_err(|error| usage(error.to_string()))?;
        self.said.add(&fields);
        self.take(fields).map_err(|error| usage(format!("{}: {error}", text.name)))
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
        Acl::refuse_legacy(&mut fields)?;
        if let Some(acl) = fields.object("acl")? {
            self.acl.take(acl, &mut self.ignored)?;
        }
        self.dns.take(&mut fields, &mut self.ignored)?;
        self.doors.take(&mut fields, &mut self.ignored)?;
        self.log_json |= fields.flag("log_json")?;
        self.translates_addresses |= fields.flag("translate_wan_addrs")?;
        // Two permissions: the second concerns files only, the first whoever reaches the API as well.
        for (name, setting) in [
            ("enable_script_checks", &mut self.enable_script_checks),
            ("enable_local_script_checks", &mut self.enable_local_script_checks),
        ] {
            if let Some(field) = fields.take(name) {
                *setting = Some(field.flag()?);
            }
        }
        // Empty is as if it were not said.
        if let Some(policy) = fields.text("default_intention_policy")?.filter(|policy| !policy.is_empty()) {
            if !["allow", "deny"].contains(&policy.as_str()) {
                let reason = format!("{policy:?} is not \"allow\" or \"deny\"");
                return Err(fields.error("default_intention_policy", reason));
            }
            self.default_intention_policy = Some(policy);
        }
        if let Some(connect) = fields.object("connect")? {
            self.take_connect(connect)?;
        }
        self.joining.take(&mut fields, &mut self.ignored)?;
        documented::tell(&mut fields, &mut self.ignored)
    }

    /// The tokens of an agent that joins servers.
    pub(super) fn agent_tokens(&self) -> GivenTokens {
        self.acl.tokens(false, self.data_dir.as_deref())
    }

    /// What is said here and decided by the servers that an agent joins.
    pub(super) fn of_servers_alone(&self) -> Vec<String> {
        let tokens = self.acl.tokens(false, self.data_dir.as_deref());
        let said = [
            ("dns_config", self.dns.settings() != starling_dns::Settings::default()),
            ("connect.enabled", self.connect_off),
            ("default_intention_policy", self.default_intention_policy.is_some()),
            ("acl.default_policy", self.acl.default_policy().is_some()),
            ("acl.tokens.initial_management", tokens.initial_management.is_some()),
        ];
        said.into_iter()
            .filter(|(_, is_said)| *is_said)
            .map(|(name, _)| format!("{name} (servers decide it)"))
            .collect()
    }

    fn take_connect(&mut self, mut connect: Fields<'_>) -> Result<(), FieldError> {
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
        Ok(())
    }

    fn take_ports(&mut self, mut ports: Fields<'_>) -> Result<(), FieldError> {
        let own = [
            ("http", &mut self.ports.http),
            ("https", &mut self.ports.https),
            ("dns", &mut self.ports.dns),
            ("grpc", &mut self.ports.grpc),
            ("grpc_tls", &mut self.ports.grpc_tls),
            ("sidecar_min_port", &mut self.ports.sidecar_min),
            ("sidecar_max_port", &mut self.ports.sidecar_max),
        ];
        for (name, setting) in own {
            *setting = port(&mut ports, name)?.or(*setting);
        }
        for other in PORTS_WITHOUT_PART {
            if port(&mut ports, other)?.is_some_and(|port| port > 0) {
                self.ignored.insert(format!("ports.{other}"));
            }
        }
        ports.finish()
    }

    pub(super) fn datacenter(&self) -> anyhow::Result<Datacenter> {
        let name = self.datacenter.as_deref().unwrap_or("dc1");
        name.parse().map_err(|error| usage(format!("datacenter: {error}")))
    }

    /// Ports for sidecars that name none, if they are said.
    fn sidecar_ports(&self) -> anyhow::Result<Option<RangeInclusive<u16>>> {
        let (least, most) = (self.ports.sidecar_min, self.ports.sidecar_max);
        if least.is_none() && most.is_none() {
            return Ok(None);
        }
        let usual = starling_agent::DEFAULT_SIDECAR_PORTS;
        let port = |said: Option<i64>, usual: u16| said.map_or(Some(usual), |port| u16::try_from(port).ok());
        let range = port(least, *usual.start()).zip(port(most, *usual.end()));
        match range.filter(|(least, most)| *least > 0 && least <= most) {
            Some((least, most)) => Ok(Some(least..=most)),
            None => Err(usage(
                "ports.sidecar_min_port: has to be a port, and no higher than ports.sidecar_max_port, since every sidecar needs one",
            )),
        }
    }

    /// What the agent's own node shows of itself.
    pub(super) fn guise(&self) -> anyhow::Result<Guise> {
        let mut node_meta = self.node_meta.clone();
        node_meta.insert("consul-network-segment".to_owned(), String::new());
        node_meta.insert("consul-version".to_owned(), CONSUL_VERSION.to_owned());
        Ok(Guise {
            node_id: self.node_id,
            node_meta,
            cluster: self.cluster,
            is_consul: true,
            connect_off: self.connect_off,
            translates_addresses: self.translates_addresses,
            tokens: self.acl.tokens(true, self.data_dir.as_deref()),
            dns: self.dns.settings(),
            sidecar_ports: self.sidecar_ports()?,
            denies_in_outage: self.acl.denies_in_outage(),
        })
    }
}

/// A port; 0 and below are for none.
fn port(ports: &mut Fields<'_>, name: &str) -> Result<Option<i64>, FieldError> {
    match ports.integer(name)? {
        Some(port) if port > i64::from(u16::MAX) => {
            Err(ports.error(name, format!("{port} is no port: the highest is {}", u16::MAX)))
        }
        port => Ok(port),
    }
}
