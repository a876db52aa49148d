//! Requests of the incremental variant.

use std::sync::Arc;

use envoy_types::pb::envoy::service::discovery::v3::DeltaDiscoveryRequest;

use super::kind_state::Held;
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
