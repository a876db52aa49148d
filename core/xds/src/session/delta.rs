//! Requests of the incremental variant.

use std::sync::Arc;

use envoy_types::pb::envoy::service::discovery::v3::DeltaDiscoveryRequest;

use super::kind_state::Held;
use super::node::is_beside_another;
use super::{AdsSession, SessionError};
use crate::resource::{ResourceType, Version};

/// "Everything of this kind."
pub(super) const WILDCARD: &str = "*";

impl AdsSession {
    /// Takes a request of the incremental variant. A kind that is not served is never answered.
    ///
    /// Changes of what is asked for count whatever the nonce is, as the protocol wants it.
    ///
    /// # Errors
    /// [`SessionError`] if the stream must end.
    pub fn handle_delta_request(&mut self, request: DeltaDiscoveryRequest) -> Result<(), SessionError> {
        self.admit(request.node.as_ref().map(|node| node.id.as_str()), &request.resource_names_subscribe)?;
        if let Some(beside) = request.node.as_ref().and_then(is_beside_another) {
            self.beside_another = beside;
            self.quiet = false;
        }
        let Some(kind) = ResourceType::from_type_url(&request.type_url) else { return Ok(()) };
        if !request.response_nonce.is_empty() {
            let refusal = request.error_detail.map(|status| status.message);
            self.handle_answer(kind, &request.response_nonce, refusal);
        }
        let first = !self.kinds[kind.index()].seen;
        let (subscribe, unsubscribe) = (request.resource_names_subscribe, request.resource_names_unsubscribe);
        if first {
            // Held by name, so the order does not matter.
            self.begin_delta(kind, subscribe, request.initial_resource_versions.into_iter().collect());
        } else {
            let state = &mut self.kinds[kind.index()];
            let (everything, names) = split_wildcard(subscribe);
            if everything && !state.wildcard {
                state.wildcard = true;
                state.owes_reply = true;
            }
            state.add_names(names, true);
        }
        self.unsubscribe(kind, unsubscribe);
        self.quiet = false;
        self.check_names(kind)
    }

    /// The first request for a kind: it may bring what the client has from an earlier stream, and one for clusters or
    /// listeners that names nothing asks for everything.
    fn begin_delta(&mut self, kind: ResourceType, subscribe: Vec<String>, initial: Vec<(String, String)>) {
        let state = &mut self.kinds[kind.index()];
        state.seen = true;
        let unnamed = subscribe.is_empty() && kind.is_full_state();
        let (everything, names) = split_wildcard(subscribe);
        state.wildcard = everything || unnamed;
        state.resumed = !initial.is_empty();
        state.owes_reply = state.wildcard && !state.resumed;
        state.add_names(names, false);
        for (name, version) in initial {
            if !state.covers(&name) {
                continue;
            }
            let version = Version::parse(&version);
            let resource = self.target.get(kind, &name).filter(|now| Some(now.version) == version).cloned();
            state.held.insert(name.into(), Held { version, resource });
        }
    }

    fn unsubscribe(&mut self, kind: ResourceType, names: Vec<String>) {
        let state = &mut self.kinds[kind.index()];
        for name in names {
            if name == WILDCARD {
                state.drop_wildcard();
                continue;
            }
            state.drop_name(&name);
            // The client cannot know whether everything still includes it: it is told.
            if state.wildcard && self.target.get(kind, &name).is_some() {
                state.resend.insert(Arc::from(name));
            }
        }
    }
}

/// Whether everything is asked for, and the other names.
pub(super) fn split_wildcard(mut names: Vec<String>) -> (bool, Vec<String>) {
    let before = names.len();
    names.retain(|name| name != WILDCARD);
    (names.len() != before, names)
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::core::v3::Node;
    use envoy_types::pb::google::protobuf::value::Kind;
    use envoy_types::pb::google::protobuf::{Struct, Value};
    use starling_model::Revision;

    use super::*;
    use crate::{BESIDE, BESIDE_ANOTHER, Flavour, Report, ResourceSet};

    fn request(beside: Option<&str>) -> DeltaDiscoveryRequest {
        let value = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
        let node = beside.map(|beside| {
            let metadata = Some(Struct { fields: [(BESIDE.to_owned(), value(beside))].into() });
            Node { id: "web-sidecar-proxy".to_owned(), metadata, ..Node::default() }
        });
        let type_url = ResourceType::PlanPart.type_url().to_owned();
        DeltaDiscoveryRequest { node, type_url, ..DeltaDiscoveryRequest::default() }
    }

    fn set(revision: u64) -> Arc<ResourceSet> {
        Arc::new(ResourceSet::new(Revision(revision), []))
    }

    #[test]
    fn what_a_process_beside_another_accepts_counts_once_that_has_left_and_it_hears_of_more_meanwhile() {
        let mut session = AdsSession::new(Flavour::Delta, set(5));
        let first = DeltaDiscoveryRequest {
            resource_names_subscribe: vec![WILDCARD.to_owned()],
            ..request(Some(BESIDE_ANOTHER))
        };
        session.handle_delta_request(first).expect("it is taken");
        let response = session.poll_response().expect("all there is");
        session
            .handle_delta_request(DeltaDiscoveryRequest { response_nonce: response.nonce, ..request(None) })
            .expect("it is taken");
        assert_eq!((session.poll_response(), session.poll_report()), (None, None));
        // What is new concerns nothing that it has, or it is accepted: neither is all that is in force.
        session.handle_resources(set(6));
        assert_eq!((session.poll_response(), session.poll_report()), (None, None));
        session.handle_delta_request(request(Some(""))).expect("it is taken");
        assert_eq!(session.poll_response(), None);
        assert_eq!(session.poll_report(), Some(Report::Applied { revision: Revision(6), refusals_stand: false }));
        session.handle_resources(set(7));
        assert_eq!(session.poll_response(), None);
        assert_eq!(session.poll_report(), Some(Report::Applied { revision: Revision(7), refusals_stand: false }));
    }
}
