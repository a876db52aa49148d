//! Settings as the arguments of `starling dev`, where the agent is a server, and of `starling agent`, where it joins others.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::interfaces::Interface;
use super::{Settings, places};
use crate::outcome::usage;

/// Consul's ports.
const HTTP_PORT: i64 = 8500;
const DNS_PORT: i64 = 8600;
const GRPC_PORT: i64 = 8502;
const GRPC_TLS_PORT: i64 = 8503;

/// This machine alone.
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Where the doors are, resolved.
struct Reached {
    /// For callers of the API and of DNS.
    client: Vec<IpAddr>,
    /// For other nodes.
    bind: IpAddr,
    advertise: IpAddr,
}

impl Settings {
    /// The same as arguments of `starling dev`, or, if others are to be joined, of `starling agent`.
    pub(in super::super) fn arguments(&mut self, keeps_nothing: bool) -> anyhow::Result<Vec<OsString>> {
        let servers = self.joining.servers(keeps_nothing)?;
        let mut arguments = vec!["starling".into(), if servers.is_some() { "agent" } else { "dev" }.into()];
        let reached = self.reached()?;
        let data_dir = self.data_dir.as_ref().filter(|path| !path.as_os_str().is_empty());
        match (data_dir, keeps_nothing && servers.is_none()) {
            (Some(directory), false) => say(&mut arguments, "--data-dir", directory),
            (_, true) => {}
            (None, false) if servers.is_some() => {
                return Err(usage("data_dir cannot be empty: an agent that joins others keeps its certificate there"));
            }
            (None, false) => return Err(usage("data_dir cannot be empty: give -data-dir, or -dev to keep nothing")),
        }
        let is_server = servers.is_none();
        self.say_doors(&mut arguments, &reached, is_server)?;
        if let Some(name) = &self.node_name {
            say(&mut arguments, "--node-name", name.to_string());
        }
        say(&mut arguments, "--datacenter", self.datacenter()?.to_string());
        if !reached.advertise.is_unspecified() {
            say(&mut arguments, "--advertise-addr", reached.advertise.to_string());
        }
        let level = self.log_level.as_deref().unwrap_or("info").to_ascii_lowercase();
        say(&mut arguments, "--log-level", if level == "err" { "error".to_owned() } else { level });
        if self.log_json {
            say(&mut arguments, "--log-format", "json");
        }
        match servers {
            Some(servers) => {
                say(&mut arguments, "--server", servers.join(","));
                self.joining.say_token(&mut arguments);
                self.joining.say_leaving(&mut arguments);
            }
            None => {
                self.ignored.extend(self.joining.of_agents_alone());
                self.say_policies(&mut arguments);
            }
        }
        if let Some(plane) = &self.data_plane {
            arguments.extend(["--data-plane".into(), plane.into()]);
        }
        if self.enable_script_checks == Some(true) {
            arguments.push("--enable-script-checks".into());
        }
        if let Some(permitted) = self.enable_local_script_checks {
            arguments.push(format!("--enable-local-script-checks={permitted}").into());
        }
        Ok(arguments)
    }

    fn reached(&self) -> anyhow::Result<Reached> {
        let one = |name: &str, said: &Option<String>, usual: IpAddr| {
            said.as_deref().map_or(Ok(usual), |text| places::one(name, text, Interface::here))
        };
        let client = self.client_addr.as_deref().map(|text| places::all("client_addr", text, Interface::here));
        let client = client.transpose()?.unwrap_or_else(|| vec![LOCAL]);
        let first = client.first().copied().unwrap_or(LOCAL);
        let bind = one("bind_addr", &self.bind_addr, first)?;
        let advertise = one("advertise_addr", &self.advertise_addr, bind)?;
        Ok(Reached { client, bind, advertise })
    }

    /// Where each door is.
    fn say_doors(&mut self, arguments: &mut Vec<OsString>, reached: &Reached, is_server: bool) -> anyhow::Result<()> {
        let socket = self.doors.socket(self.addresses.get("http"));
        if socket.is_some() {
            self.addresses.remove("http");
        }
        // In plaintext it is for proxies of this machine.
        let mut disabled = Vec::new();
        let local = reached.client.iter().copied().find(IpAddr::is_loopback).unwrap_or(LOCAL);
        for (name, flag, default, port, usual) in [
            ("http", "--http-addr", reached.client.clone(), self.ports.http, HTTP_PORT),
            ("dns", "--dns-addr", reached.client.clone(), self.ports.dns, DNS_PORT),
            ("grpc", "--grpc-addr", vec![local], self.ports.grpc, GRPC_PORT),
            ("grpc_tls", "--grpc-tls-addr", vec![reached.bind], self.ports.grpc_tls, GRPC_TLS_PORT),
        ] {
            let setting = format!("addresses.{name}");
            let said = self.addresses.get(name).map(|text| places::all(&setting, text, Interface::here)).transpose()?;
            let at = match (name, said) {
                ("grpc_tls", _) if !is_server => continue,
                (_, None) => default,
                ("grpc", Some(said)) => vec![said.into_iter().find(IpAddr::is_loopback).ok_or_else(|| {
                    usage("addresses.grpc: xDS in plaintext is for this machine alone: write 127.0.0.1; for others there is addresses.grpc_tls")
                })?],
                ("grpc_tls", Some(said)) if said.len() > 1 => {
                    return Err(usage("addresses.grpc_tls: has to be one address; 0.0.0.0 is every one of this machine"));
                }
                (_, Some(said)) => said,
            };
            // As in Consul, 0 is for none as well.
            if port.is_none_or(|port| port > 0) {
                say(arguments, flag, joined(&at, port.unwrap_or(usual)));
            } else {
                disabled.push(name.replace('_', "-"));
            }
        }
        if !disabled.is_empty() {
            say(arguments, "--disable-listener", disabled.join(","));
        }
        arguments.extend(socket.into_iter().flatten());
        arguments.extend(self.doors.guards());
        let at = self.addresses.get("https").map(|text| places::all("addresses.https", text, Interface::here));
        let at = at.transpose()?.unwrap_or_else(|| reached.client.clone());
        arguments.extend(self.doors.https(self.ports.https, &at, &mut self.ignored)?);
        Ok(())
    }

    fn say_policies(&self, arguments: &mut Vec<OsString>) {
        if let Some(default) = self.acl.default_policy() {
            say(arguments, "--acl-default-policy", default);
        }
        // What holds for requests to the API holds for calls, too, unless something else is said.
        let intentions = self.default_intention_policy.as_deref().or(self.acl.default_policy());
        if intentions == Some("deny") {
            say(arguments, "--default-intention-policy", "deny");
        }
    }
}

pub(super) fn say(arguments: &mut Vec<OsString>, flag: &str, value: impl Into<OsString>) {
    arguments.extend([flag.into(), value.into()]);
}

/// Each address with the port, with commas between them.
pub(super) fn joined(addresses: &[IpAddr], port: i64) -> String {
    let port = u16::try_from(port).unwrap_or_default();
    let all: Vec<_> = addresses.iter().map(|address| SocketAddr::new(*address, port).to_string()).collect();
    all.join(",")
}

/// An address as the host of an address with a port.
pub(super) fn host(address: IpAddr) -> String {
    if address.is_ipv6() { format!("[{address}]") } else { address.to_string() }
}
