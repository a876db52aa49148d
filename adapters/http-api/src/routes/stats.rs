//! What an agent counts, in the parts in which Consul's `info` shows it. Of raft and gossip, which there are none of, nothing is made up.

use serde_json::{Map, Value, json};
use starling_model::CheckStatus;

use super::agent::CONSUL_VERSION;
use crate::router::Api;

/// Texts by name, by part.
pub(super) fn stats(api: &Api) -> Value {
    let facts = api.catalog.authority();
    let mut parts = Map::new();
    if let Ok(agent) = api.agent() {
        let (checks, services) = (agent.checks(), agent.services());
        let of_kind = |is_meant: fn(&str) -> bool| checks.iter().filter(|check| is_meant(&check.kind)).count();
        let critical = checks.iter().filter(|check| check.status == CheckStatus::Critical).count();
        parts.insert(
            "agent".to_owned(),
            json!({
                // Those that the agent runs, and those whose services report.
                "check_monitors": of_kind(|kind| !matches!(kind, "" | "ttl" | "alias")).to_string(),
                "check_ttls": of_kind(|kind| kind == "ttl").to_string(),
                "checks": checks.len().to_string(),
                "checks_critical": critical.to_string(),
                "services": services.len().to_string(),
            }),
        );
    }
    let build =
        json!({"prerelease": "", "revision": facts.version, "version": CONSUL_VERSION, "version_metadata": "starling"});
    parts.insert("build".to_owned(), build);
    let mut consul = Map::new();
    consul.insert("acl".to_owned(), if facts.acl_default.is_some() { "enabled" } else { "disabled" }.into());
    consul.insert("known_datacenters".to_owned(), "1".into());
    consul.insert("server".to_owned(), api.is_server().to_string().into());
    if api.is_server() {
        let snapshot = api.catalog.snapshot();
        let leads = api.catalog.own_server().is_none_or(|own| snapshot.is_led_by(own));
        for (name, value) in [
            ("leader", leads.to_string()),
            ("leader_addr", facts.leader_address.clone()),
            ("known_servers", snapshot.servers().count().max(1).to_string()),
            ("catalog_index", snapshot.revision().0.to_string()),
        ] {
            consul.insert(name.to_owned(), value.into());
        }
    }
    parts.insert("consul".to_owned(), consul.into());
    parts.insert("starling".to_owned(), json!({"version": facts.version}));
    parts.into()
}
