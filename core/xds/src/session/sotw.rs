//! Requests of the state-of-the-world variant.

use std::collections::BTreeSet;
use std::sync::Arc;

use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;

use super::delta::split_wildcard;
use super::kind_state::{Held, set_version};
use super::{AdsSession, SessionError};
use crate::resource::{Resource, ResourceType};

impl AdsSession {
    /// Takes a request of the state-of-the-world variant. A kind that is not served is never answered.
    ///
    /// A request that answers an older response than the last is void as a whole: the client will answer the last,
    /// and say again what it wants.
    ///
    /// # Errors
    /// [`SessionError`] if the stream must end.
    pub fn handle_sotw_request(&mut self, request: DiscoveryRequest) -> Result<(), SessionError> {
        self.admit(request.node.as_ref().map(|node| node.id.as_str()), &request.resource_names)?;
        let Some(kind) = ResourceType::from_type_url(&request.type_url) else { return Ok(()) };
        if !self.kinds[kind.index()].seen {
            self.begin_sotw(kind, request.resource_names, &request.version_info);
            return self.check_names(kind);
        }
        let state = &self.kinds[kind.index()];
        if !request.response_nonce.is_empty() && request.response_nonce != state.last_nonce.to_string() {
            return Ok(());
        }
        let refusal = request.error_detail.map(|status| status.message);
        self.ask_for(kind, request.resource_names);
        self.handle_answer(kind, &request.response_nonce, refusal);
        self.check_names(kind)
    }

    /// The first request for a kind: its version tells whether the client has everything from an earlier stream.
    fn begin_sotw(&mut self, kind: ResourceType, names: Vec<String>, version: &str) {
        let state = &mut self.kinds[kind.index()];
        state.seen = true;
        let (everything, listed) = split_wildcard(names);
        state.wildcard = everything || (listed.is_empty() && kind.is_full_state());
        state.add_names(listed, false);
        let wanted: Vec<Arc<Resource>> =
            self.target.of_kind(kind).iter().filter(|resource| state.covers(&resource.name)).cloned().collect();
        state.resumed = !version.is_empty();
        if state.resumed && set_version(&wanted).to_string() == version {
            for resource in wanted {
                let held = Held { version: Some(resource.version), resource: Some(Arc::clone(&resource)) };
                state.held.insert(Arc::clone(&resource.name), held);
            }
        } else {
            state.owes_reply = kind.is_full_state();
        }
        self.quiet = false;
    }

    /// Each request lists all that is asked for.
    fn ask_for(&mut self, kind: ResourceType, names: Vec<String>) {
        let state = &mut self.kinds[kind.index()];
        let (everything, listed) = split_wildcard(names);
        // A client that has never named one goes on asking for everything by naming none.
        let unnamed = listed.is_empty() && state.wildcard && state.names.is_empty();
        let listed_set: BTreeSet<&str> = listed.iter().map(String::as_str).collect();
        let dropped: Vec<_> = state.names.iter().filter(|name| !listed_set.contains(&***name)).cloned().collect();
        let added: Vec<_> = listed.iter().filter(|name| !state.names.contains(name.as_str())).cloned().collect();
        let wider = !added.is_empty() || (everything && !state.wildcard);
        for name in &dropped {
            state.drop_name(name);
        }
        if state.wildcard && !everything && !unnamed {
            state.drop_wildcard();
        }
        state.wildcard = everything || unnamed;
        state.add_names(added, false);
        if wider && kind.is_full_state() {
            state.owes_reply = true;
        }
    }
}
