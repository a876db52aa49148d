//! What services speak, and what relies on it: the rules of config entries that hang together by protocol.

use starling_model::{
    ConfigEntry, ConfigEntryKey, ConfigKind, IntentionSubject, Protocol, ProxyDefaults, ServiceDefaults,
    ServiceIntentions, ServiceName, ServiceRouter, ServiceSplitter, SourceDecision,
};

use super::{Refusal, intention};
use crate::snapshot::Snapshot;

/// Whether an entry says what services speak, or relies on it. An entry of intentions that is removed, or has no permissions
/// on requests, only frees others from a rule.
pub(super) fn concerns_protocols(entry: &ConfigEntry) -> bool {
    if let ConfigEntry::ServiceIntentions(entry) = entry {
        return has_permissions(entry);
    }
    let kind = entry.key().kind;
    says_protocols(kind) || matches!(kind, ConfigKind::ServiceRouter | ConfigKind::ServiceSplitter)
}

/// Whether entries of this kind say what services speak; without one that merely relies on it others are only freer.
pub(super) fn says_protocols(kind: ConfigKind) -> bool {
    match kind {
        ConfigKind::ServiceDefaults | ConfigKind::ProxyDefaults => true,
        ConfigKind::ServiceIntentions
        | ConfigKind::ServiceResolver
        | ConfigKind::ServiceRouter
        | ConfigKind::ServiceSplitter
        | ConfigKind::IngressGateway
        | ConfigKind::TerminatingGateway
        | ConfigKind::Mesh
        | ConfigKind::Kept(_) => false,
    }
}

/// Refuses an entry that would leave L7 permissions on a service without an L7 protocol.
pub(super) fn check_entry(snapshot: &Snapshot, entry: &ConfigEntry) -> Result<(), Refusal> {
    match entry {
        ConfigEntry::ServiceIntentions(entry) => {
            let IntentionSubject::Service(service) = &entry.destination else { return Ok(()) };
            if has_permissions(entry) { require_l7(service, snapshot.protocol(service)) } else { Ok(()) }
        }
        ConfigEntry::ServiceDefaults(entry) => check_defaults(snapshot, entry),
        ConfigEntry::ProxyDefaults(entry) => check_proxy_defaults(snapshot, Some(entry)),
        ConfigEntry::ServiceRouter(_) | ConfigEntry::ServiceSplitter(_) => {
            let protocol = entry.routing_of().map(|service| snapshot.protocol(service)).unwrap_or_default();
            require_requests(entry, protocol)
        }
        // What a gateway lets in may be written before what it lets in is there.
        ConfigEntry::ServiceResolver(_)
        | ConfigEntry::IngressGateway(_)
        | ConfigEntry::TerminatingGateway(_)
        | ConfigEntry::Mesh(_)
        | ConfigEntry::Kept(_) => Ok(()),
    }
}

pub(super) fn check_removal(snapshot: &Snapshot, key: &ConfigEntryKey) -> Result<(), Refusal> {
    match key.kind {
        ConfigKind::ServiceIntentions
        | ConfigKind::ServiceResolver
        | ConfigKind::ServiceRouter
        | ConfigKind::ServiceSplitter
        | ConfigKind::IngressGateway
        | ConfigKind::TerminatingGateway
        | ConfigKind::Mesh
        | ConfigKind::Kept(_) => Ok(()),
        ConfigKind::ProxyDefaults => check_proxy_defaults(snapshot, None),
        ConfigKind::ServiceDefaults => match ServiceName::new(&key.name) {
            Ok(service) => check_defaults(snapshot, &ServiceDefaults::bare(service)),
            Err(_) => Ok(()),
        },
    }
}

fn check_defaults(snapshot: &Snapshot, entry: &ServiceDefaults) -> Result<(), Refusal> {
    let mesh_wide = snapshot.proxy_defaults().and_then(|defaults| defaults.protocol);
    let protocol = entry.protocol.or(mesh_wide).unwrap_or_default();
    snapshot.routing(&entry.service).try_for_each(|other| require_requests(other, protocol))?;
    let subject = IntentionSubject::Service(entry.service.clone());
    if has_permissions(&intention::intentions_of(snapshot, &subject)) {
        require_l7(&entry.service, protocol)
    } else {
        Ok(())
    }
}

fn check_proxy_defaults(snapshot: &Snapshot, entry: Option<&ProxyDefaults>) -> Result<(), Refusal> {
    let mesh_wide = entry.and_then(|entry| entry.protocol).unwrap_or_default();
    for intentions in snapshot.configs(ConfigKind::ServiceIntentions) {
        let ConfigEntry::ServiceIntentions(intentions) = &intentions.value else { continue };
        let IntentionSubject::Service(service) = &intentions.destination else { continue };
        if has_permissions(intentions) {
            let own = snapshot.service_defaults(service).and_then(|defaults| defaults.protocol);
            require_l7(service, own.unwrap_or(mesh_wide))?;
        }
    }
    for kind in [ConfigKind::ServiceRouter, ConfigKind::ServiceSplitter] {
        for entry in snapshot.configs(kind) {
            let Some(service) = entry.value.routing_of() else { continue };
            let own = snapshot.service_defaults(service).and_then(|defaults| defaults.protocol);
            require_requests(&entry.value, own.unwrap_or(mesh_wide))?;
        }
    }
    Ok(())
}

/// Refuses a router or splitter of a service whose requests cannot be told apart.
fn require_requests(entry: &ConfigEntry, protocol: Protocol) -> Result<(), Refusal> {
    let (ConfigEntry::ServiceRouter(ServiceRouter { service, .. })
    | ConfigEntry::ServiceSplitter(ServiceSplitter { service, .. })) = entry
    else {
        return Ok(());
    };
    if protocol.is_l7() {
        return Ok(());
    }
    let (kind, service) = (entry.key().kind.as_str(), service.clone());
    Err(Refusal::RoutingProtocol { kind, service, protocol: protocol.as_str() })
}

pub(super) fn has_permissions(entry: &ServiceIntentions) -> bool {
    entry.sources.iter().any(|source| matches!(source.decision, SourceDecision::Requests(_)))
}

pub(super) fn require_l7(service: &ServiceName, protocol: Protocol) -> Result<(), Refusal> {
    if protocol.is_l7() {
        return Ok(());
    }
    Err(Refusal::ProtocolConflict { service: service.clone(), protocol: protocol.as_str() })
}
