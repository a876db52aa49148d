//! What is in place, read back from the kernel by way of nft's JSON.

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;

/// The rules in place.
#[derive(Debug, PartialEq, Eq, Default, Serialize)]
pub(crate) struct Installed {
    /// `redirect` or `tproxy`, of what applications are sent.
    pub(crate) mode: String,
    pub(crate) outbound_port: u64,
    pub(crate) inbound_port: u64,
    /// Connections begun since the rules are in place.
    pub(crate) outbound_connections: u64,
    pub(crate) inbound_connections: u64,
    pub(crate) proxy_users: Vec<String>,
    pub(crate) excluded_users: Vec<String>,
    pub(crate) excluded_networks: Vec<String>,
    pub(crate) excluded_ports: Vec<String>,
    pub(crate) excluded_inbound_ports: Vec<String>,
}

impl Installed {
    /// Reads what `nft -j list table` prints. What is in the table beside our own is of no account.
    ///
    /// # Errors
    /// When that is no JSON, or not the rules of this program.
    pub(crate) fn parse(listing: &str) -> anyhow::Result<Self> {
        let listing: Value = serde_json::from_str(listing).context("nft printed no JSON")?;
        let mut rules = Self::default();
        for item in listing["nftables"].as_array().into_iter().flatten() {
            rules.read_set(&item["set"]);
            let packets = item["counter"]["packets"].as_u64().unwrap_or_default();
            match item["counter"]["name"].as_str() {
                Some("outbound_connections") => rules.outbound_connections = packets,
                Some("inbound_connections") => rules.inbound_connections = packets,
                Some(_) | None => {}
            }
            rules.read_rule(&item["rule"]);
        }
        let whole = rules.outbound_port != 0 && rules.inbound_port != 0;
        whole.then_some(rules).context("the table inet starling holds other rules than this program's")
    }

    fn read_set(&mut self, set: &Value) {
        let into = match set["name"].as_str() {
            Some("proxy_users") => &mut self.proxy_users,
            Some("excluded_users") => &mut self.excluded_users,
            Some("excluded_v4" | "excluded_v6") => &mut self.excluded_networks,
            Some("excluded_ports") => &mut self.excluded_ports,
            Some("excluded_inbound_ports") => &mut self.excluded_inbound_ports,
            Some(_) | None => return,
        };
        into.extend(set["elem"].as_array().into_iter().flatten().map(element));
    }

    fn read_rule(&mut self, rule: &Value) {
        for step in rule["expr"].as_array().into_iter().flatten() {
            let redirect = step["redirect"]["port"].as_u64();
            match (rule["chain"].as_str(), redirect, step["tproxy"]["port"].as_u64()) {
                (Some("output"), Some(port), _) => self.outbound_port = port,
                (Some("prerouting"), Some(port), _) => (self.inbound_port, self.mode) = (port, "redirect".to_owned()),
                (Some("prerouting"), None, Some(port)) => (self.inbound_port, self.mode) = (port, "tproxy".to_owned()),
                _ => {}
            }
        }
    }
}

/// `22`, `8000-8099`, `10.0.0.0/8`.
fn element(element: &Value) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if let [first, last] = element["range"].as_array().map(Vec::as_slice).unwrap_or_default() {
        return format!("{}-{}", text(first), text(last));
    }
    match element["prefix"].as_object() {
        None => text(element),
        Some(prefix) => format!("{}/{}", text(&prefix["addr"]), prefix["len"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As nft 1.0.6 prints it, without what is not read.
    const LISTING: &str = r#"{"nftables": [{"metainfo": {"version": "1.0.6"}}, {"table": {"name": "starling"}},
        {"set": {"name": "proxy_users", "type": "uid", "elem": [0]}},
        {"set": {"name": "excluded_users", "type": "uid"}},
        {"set": {"name": "excluded_v4", "elem": [{"prefix": {"addr": "10.0.0.0", "len": 8}}, "192.0.2.7"]}},
        {"set": {"name": "excluded_v6", "elem": [{"prefix": {"addr": "fe80::", "len": 10}}]}},
        {"set": {"name": "excluded_ports", "elem": [25, {"range": [8000, 8099]}]}},
        {"set": {"name": "excluded_inbound_ports", "elem": [22]}},
        {"counter": {"name": "outbound_connections", "packets": 7, "bytes": 420}},
        {"chain": {"name": "output", "type": "nat"}},
        {"rule": {"chain": "output", "expr": [{"match": {}}, {"redirect": {"port": 15001}}]}},
        {"rule": {"chain": "prerouting", "expr": [{"tproxy": {"port": 15006}}, {"accept": null}]}}]}"#;

    #[test]
    fn rules_are_read_back() {
        let installed = Installed::parse(LISTING).expect("a listing");
        assert_eq!((installed.outbound_port, installed.inbound_port, &*installed.mode), (15_001, 15_006, "tproxy"));
        assert_eq!(installed.outbound_connections, 7);
        assert_eq!(installed.proxy_users, ["0"]);
        assert!(installed.excluded_users.is_empty());
        assert_eq!(installed.excluded_networks, ["10.0.0.0/8", "192.0.2.7", "fe80::/10"]);
        assert_eq!(installed.excluded_ports, ["25", "8000-8099"]);
        assert_eq!(installed.excluded_inbound_ports, ["22"]);
    }

    #[test]
    fn a_table_of_somebody_else_is_no_answer() {
        assert!(Installed::parse(r#"{"nftables": [{"table": {"name": "starling"}}]}"#).is_err());
        assert!(Installed::parse("table inet starling {}").is_err());
    }
}
