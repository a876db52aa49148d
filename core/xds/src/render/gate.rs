//! Who may open a TCP connection, decided when the handshake is done and before the application is called.
//!
//! Envoy's RBAC filter decides when the caller's first byte comes. Where the server speaks first, that is too late: the
//! application is called, and its greeting delivered, before anybody was asked (envoyproxy/envoy#9023). So a filter in
//! front names the cluster for the connection by the caller's identity, and names none for a caller that is refused.
//! An Envoy that does not know the moment "handshake done" skips this filter, and the RBAC rules still hold.

use std::collections::BTreeSet;

use envoy_types::pb::envoy::config::core::v3::data_source::Specifier;
use envoy_types::pb::envoy::config::core::v3::substitution_format_string::Format;
use envoy_types::pb::envoy::config::core::v3::{DataSource, SubstitutionFormatString, TypedExtensionConfig};
use envoy_types::pb::envoy::extensions::filters::common::set_filter_state::v3::FilterStateValue;
use envoy_types::pb::envoy::extensions::filters::common::set_filter_state::v3::filter_state_value::{Key, Value};
use envoy_types::pb::envoy::extensions::filters::network::set_filter_state::v3::Config;
use prost::{Message, Name};
use starling_model::{Action, IntentionSubject, ServiceName, SourceDecision};
use starling_traffic::Policy;

use super::MeshNames;
use super::cluster::LOCAL_APP;
use super::proto::any;
use crate::resource::{Resource, ResourceType};

/// Where the TCP proxy looks for the name of a connection's cluster.
const CLUSTER_OF_CONNECTION: &str = "envoy.tcp_proxy.cluster";

/// A cluster that does not exist: the connection is closed. Services' clusters have dots in their names.
const NOWHERE: &str = "refused";

/// The name of a service's gate; the colon keeps it apart from built-in filters.
pub(super) fn extension_name(service: &ServiceName) -> String {
    format!("gate:{service}")
}

pub(super) fn type_url() -> String {
    Config::type_url()
}

/// The gate of a TCP service.
pub(super) fn filter(policy: &Policy, names: &MeshNames) -> Resource {
    let name = extension_name(&policy.destination);
    let format = SubstitutionFormatString {
        format: Some(Format::TextFormatSource(DataSource {
            specifier: Some(Specifier::InlineString(cluster_format(policy, names))),
            ..Default::default()
        })),
        ..Default::default()
    };
    let value = FilterStateValue {
        key: Some(Key::ObjectKey(CLUSTER_OF_CONNECTION.to_owned())),
        value: Some(Value::FormatString(format)),
        ..Default::default()
    };
    let config = Config { on_downstream_tls_handshake: vec![value], ..Default::default() };
    let message = TypedExtensionConfig { name: name.clone(), typed_config: Some(any(&config)) };
    Resource::new(ResourceType::Extension, &name, &message.encode_to_vec())
}

/// The connection's cluster: one answer for the sources that are listed, the other for all else.
fn cluster_format(policy: &Policy, names: &MeshNames) -> String {
    let (others, listed) = split(policy);
    let (for_listed, for_others) = match others {
        Action::Allow => (NOWHERE, LOCAL_APP),
        Action::Deny => (LOCAL_APP, NOWHERE),
    };
    if listed.is_empty() {
        return for_others.to_owned();
    }
    // Names have neither quotes nor percent signs.
    let listed: Vec<_> = listed.into_iter().map(|service| format!("'{}'", names.identity_of(service))).collect();
    let listed = listed.join(", ");
    format!("%CEL(connection.uri_san_peer_certificate in [{listed}] ? '{for_listed}' : '{for_others}')%")
}

/// What holds for everyone who is not listed, and those for whom the opposite holds.
fn split(policy: &Policy) -> (Action, BTreeSet<&ServiceName>) {
    let mut others = policy.default;
    let mut exact: Vec<(&ServiceName, Action)> = Vec::new();
    for rule in &policy.rules {
        // Requests cannot be told apart here, so nobody gets in on their account.
        let action = match rule.decision {
            SourceDecision::Connection(action) => action,
            SourceDecision::Requests(_) => Action::Deny,
        };
        match &rule.source {
            IntentionSubject::Service(service) => {
                if !exact.iter().any(|(decided, _)| *decided == service) {
                    exact.push((service, action));
                }
            }
            IntentionSubject::Any => {
                others = action;
                break;
            }
        }
    }
    let listed = exact.into_iter().filter(|(_, action)| *action != others).map(|(service, _)| service).collect();
    (others, listed)
}

#[cfg(test)]
mod tests {
    use starling_identity::Layout;
    use starling_model::{Datacenter, Namespace, TrustDomain};
    use starling_traffic::PolicyRule;

    use super::*;

    fn format(default: Action, rules: &[(&str, Action)]) -> String {
        let rules = rules.iter().map(|(source, action)| PolicyRule {
            source: source.parse().unwrap(),
            written_for: IntentionSubject::Any,
            precedence: 9,
            decision: SourceDecision::Connection(*action),
        });
        let policy = Policy { destination: ServiceName::new("db").unwrap(), default, rules: rules.collect() };
        let names = MeshNames {
            layout: Layout::Istio,
            trust_domain: TrustDomain::new("t").unwrap(),
            namespace: Namespace::new("n").unwrap(),
            datacenter: Datacenter::new("d").unwrap(),
        };
        cluster_format(&policy, &names)
            .replace("spiffe://t/ns/n/sa/", "")
            .replace("connection.uri_san_peer_certificate", "peer")
    }

    #[test]
    fn only_what_differs_is_listed() {
        use Action::{Allow, Deny};
        assert_eq!(format(Allow, &[]), "local_app");
        assert_eq!(format(Deny, &[]), "refused");
        assert_eq!(format(Deny, &[("*", Allow)]), "local_app");
        assert_eq!(format(Deny, &[("web", Deny)]), "refused");
        assert_eq!(
            format(Deny, &[("web", Allow), ("api", Allow), ("cron", Deny)]),
            "%CEL(peer in ['api', 'web'] ? 'local_app' : 'refused')%"
        );
        assert_eq!(
            format(Deny, &[("web", Deny), ("*", Allow), ("api", Deny)]),
            "%CEL(peer in ['web'] ? 'refused' : 'local_app')%"
        );
    }
}
