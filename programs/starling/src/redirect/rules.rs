//! The rules as nft reads them: a pure function of what was asked for.
//!
//! Everything that varies is in named sets, so that the chains are always the same, and what is in place can be read back.

use std::fmt::{self, Write};
use std::str::FromStr;

use crate::redirect::network::Network;

/// The table's name; its family is `inet`, for IPv4 and IPv6 alike.
pub(crate) const TABLE: &str = "starling";

/// Takes the table away. It is made first, as nft deletes nothing that is not there.
pub(crate) const REMOVAL: &str = "table inet starling\ndelete table inet starling\n";

/// Whoever installs rules over SSH must not lock himself out.
const SSH_PORT: u16 = 22;

/// How what applications are sent reaches the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Mode {
    /// By address translation; the proxy needs no rights, and asks the kernel where a connection was going
    #[default]
    Redirect,
    /// Without address translation: the proxy's connections are at the application's own address, and nothing is tracked
    /// for them; the proxy needs CAP_NET_ADMIN
    Tproxy,
}

/// Ports from the first to the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortRange {
    first: u16,
    last: u16,
}

/// Why a text is no range of ports.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a port is 1 to 65535, and several are FIRST-LAST")]
pub(crate) struct NoPorts;

impl FromStr for PortRange {
    type Err = NoPorts;

    fn from_str(text: &str) -> Result<Self, NoPorts> {
        let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port != 0 && !text.starts_with('+'));
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (port(first).ok_or(NoPorts)?, port(last).ok_or(NoPorts)?);
        if first <= last { Ok(Self { first, last }) } else { Err(NoPorts) }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last } = self;
        if first == last { first.fmt(f) } else { write!(f, "{first}-{last}") }
    }
}

/// What is led to the proxy, and what is not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Rules {
    pub(crate) proxy_users: Vec<u32>,
    pub(crate) outbound_port: u16,
    pub(crate) inbound_port: u16,
    pub(crate) mode: Mode,
    pub(crate) excluded_ports: Vec<PortRange>,
    pub(crate) excluded_networks: Vec<Network>,
    pub(crate) excluded_users: Vec<u32>,
    pub(crate) excluded_inbound_ports: Vec<PortRange>,
    pub(crate) capture_ssh: bool,
}

impl Rules {
    /// A script for `nft -f`, in force as a whole or not at all, in place of what was there.
    pub(crate) fn render(&self) -> String {
        let (v4, v6): (Vec<_>, Vec<_>) =
            self.excluded_networks.iter().copied().partition(|network| network.address.is_ipv4());
        let ssh = PortRange { first: SSH_PORT, last: SSH_PORT };
        let inbound_ports = self.excluded_inbound_ports.iter().copied().chain((!self.capture_ssh).then_some(ssh));
        let mut script = format!("{REMOVAL}table inet {TABLE} {{\n");
        set(&mut script, "proxy_users", USER, &self.proxy_users);
        set(&mut script, "excluded_users", USER, &self.excluded_users);
        set(&mut script, "excluded_v4", "ipv4_addr; flags interval; auto-merge", &v4);
        set(&mut script, "excluded_v6", "ipv6_addr; flags interval; auto-merge", &v6);
        set(&mut script, "excluded_ports", PORTS, &self.excluded_ports);
        set(&mut script, "excluded_inbound_ports", PORTS, &inbound_ports.collect::<Vec<_>>());
        script.push_str("\tcounter outbound_connections {}\n\tcounter inbound_connections {}\n");
        script.push_str(&self.output());
        script.push_str(&self.prerouting());
        script.push_str("}\n");
        script
    }

    /// What local applications call. A connection to this machine itself is left alone: nobody else is called, and the
    /// proxy's own listeners are among what it may be for.
    fn output(&self) -> String {
        let chain = "	chain output {
		type nat hook output priority -100; policy accept;
		meta skuid @proxy_users return
		meta skuid @excluded_users return
		fib daddr type local return
		ip daddr @excluded_v4 return
		ip6 daddr @excluded_v6 return
		tcp dport @excluded_ports return
		tcp flags & (syn | ack) == syn counter name outbound_connections
";
        format!("{chain}\t\tmeta l4proto tcp redirect to :{}\n\t}}\n", self.outbound_port)
    }

    /// What this machine is sent by others; what it passes on, as a router, is none of the proxy's.
    fn prerouting(&self) -> String {
        let (hook, take) = match self.mode {
            Mode::Redirect => ("nat hook prerouting priority -100", format!("redirect to :{}", self.inbound_port)),
            Mode::Tproxy => {
                ("filter hook prerouting priority -150", format!("tproxy to :{} accept", self.inbound_port))
            }
        };
        format!(
            "	chain prerouting {{
		type {hook}; policy accept;
		iifname \"lo\" return
		fib daddr type != local return
		tcp dport @excluded_inbound_ports return
		tcp flags & (syn | ack) == syn counter name inbound_connections
		meta l4proto tcp {take}
	}}
"
        )
    }
}

/// What a set of users is.
const USER: &str = "uid";

/// What a set of ports is; those that overlap are one.
const PORTS: &str = "inet_service; flags interval; auto-merge";

fn set(script: &mut String, name: &str, kind: &str, elements: &[impl fmt::Display]) {
    let _ = write!(script, "\tset {name} {{ type {kind}; ");
    if !elements.is_empty() {
        let elements: Vec<_> = elements.iter().map(ToString::to_string).collect();
        let _ = write!(script, "elements = {{ {} }}; ", elements.join(", "));
    }
    script.push_str("}\n");
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::reference::compare;

    fn plain() -> Rules {
        Rules { proxy_users: vec![998], outbound_port: 15_001, inbound_port: 15_006, ..Rules::default() }
    }

    fn everything() -> Rules {
        let networks = ["10.0.0.0/8", "fd00:1::/32", "192.0.2.7"].map(|text| text.parse().expect(text));
        let ports = ["25", "8000-8099"].map(|text| text.parse().expect(text));
        Rules {
            proxy_users: vec![998, 999],
            mode: Mode::Tproxy,
            excluded_ports: ports.to_vec(),
            excluded_networks: networks.to_vec(),
            excluded_users: vec![33],
            excluded_inbound_ports: ports.to_vec(),
            ..plain()
        }
    }

    #[test]
    fn the_rules_are_as_reviewed() {
        compare(Path::new("tests/redirect/plain.nft"), &plain().render());
        compare(Path::new("tests/redirect/everything.nft"), &everything().render());
    }

    #[test]
    fn ssh_is_captured_only_if_asked_for() {
        assert!(
            plain().render().contains(
                "excluded_inbound_ports { type inet_service; flags interval; auto-merge; elements = { 22 }; }"
            )
        );
        let rules = Rules { capture_ssh: true, ..plain() }.render();
        assert!(rules.contains("excluded_inbound_ports { type inet_service; flags interval; auto-merge; }"), "{rules}");
    }

    #[test]
    fn ports_are_one_or_a_range() {
        for text in ["1", "65535", "8000-8099", "80-80"] {
            assert!(text.parse::<PortRange>().is_ok(), "{text}");
        }
        for text in ["", "0", "65536", "9-8", "1-", "-1", "+1", "1-2-3", "80 }", "http"] {
            assert_eq!(text.parse::<PortRange>(), Err(NoPorts), "{text:?}");
        }
    }
}
