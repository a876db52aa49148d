//! The wait of a proxy that is registered with the agent for the catalog to have it too: some milliseconds, or for as long as
//! no server can be reached.

use std::collections::BTreeSet;
use std::sync::Arc;

use starling_catalog::Subject;
use starling_model::InstanceKey;
use starling_rpc::AttachError;

use super::{Inner, ProxyNext, ProxyWatch};

/// A watch of a proxy that the catalog has. Without it there would be no plan, and no certificate either.
///
/// # Errors
/// [`AttachError`] if the agent has it no more, or somebody else attaches for it meanwhile.
pub(super) async fn watch_committed(proxies: &Inner, key: &InstanceKey) -> Result<Arc<dyn ProxyWatch>, AttachError> {
    let mut registrations = proxies.agent.service_changes();
    loop {
        let watch: Arc<dyn ProxyWatch> = proxies.view.attach(key).into();
        if proxies.view.mesh().instance(key).is_some() {
            return Ok(watch);
        }
        let as_of = proxies.view.mesh().revision();
        watch.resubscribe(as_of, BTreeSet::from([Subject::Instance(key.clone())]));
        loop {
            // After each look at what is waited for, so that no change falls between.
            registrations.borrow_and_update();
            if proxies.view.mesh().instance(key).is_some() {
                return Ok(watch);
            }
            if !proxies.agent.has_service(&key.id) {
                return Err(AttachError::Unknown { id: key.id.to_string() });
            }
            tokio::select! {
                next = watch.next() => match next {
                    ProxyNext::Changed => {}
                    ProxyNext::Deregistered => break,
                    ProxyNext::Superseded => {
                        let reason = format!("another stream of {} came", key.id);
                        return Err(AttachError::Unavailable { reason });
                    }
                },
                changed = registrations.changed() => if changed.is_err() {
                    return Err(AttachError::Unavailable { reason: "the agent ends".to_owned() });
                },
            }
        }
    }
}
