//! Sidecars that are served from outside the agent's process: by an Envoy, a gRPC library or a proxy of their own.
//!
//! A sidecar stays with whoever attached for it while nobody is attached, as a proxy that is started anew finds its place so.
//! It ends when the sidecar is not registered and nobody is attached: who is registered under its ID later is somebody else.

use std::collections::BTreeMap;
use std::sync::Arc;

use starling_model::InstanceId;
use tokio::sync::watch;

/// By sidecar, how many streams are attached from outside. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outside(Arc<watch::Sender<BTreeMap<InstanceId, usize>>>);

/// Counts as attached until it is dropped.
#[derive(Debug)]
pub(super) struct Attached {
    outside: Outside,
    id: InstanceId,
}

impl Outside {
    /// Somebody has attached from outside.
    pub(super) fn attach(&self, id: &InstanceId) -> Attached {
        self.0.send_modify(|outside| *outside.entry(id.clone()).or_default() += 1);
        Attached { outside: self.clone(), id: id.clone() }
    }

    /// Changes of it.
    pub(crate) fn subscribe(&self) -> watch::Receiver<BTreeMap<InstanceId, usize>> {
        self.0.subscribe()
    }

    /// Lets go of sidecars that are not registered, and that nobody is attached for.
    pub(crate) fn forget_gone(&self, is_registered: impl Fn(&InstanceId) -> bool) {
        self.0.send_if_modified(|outside| {
            let before = outside.len();
            outside.retain(|id, streams| *streams > 0 || is_registered(id));
            outside.len() != before
        });
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.outside.0.send_modify(|outside| {
            if let Some(streams) = outside.get_mut(&self.id) {
                *streams = streams.saturating_sub(1);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sidecar_is_let_go_of_when_it_is_neither_registered_nor_served() {
        let (outside, id) = (Outside::default(), InstanceId::new("web-sidecar-proxy").unwrap());
        let served = |outside: &Outside| outside.subscribe().borrow().contains_key(&id);
        let (first, second) = (outside.attach(&id), outside.attach(&id));
        outside.forget_gone(|_| false);
        assert!(served(&outside), "two streams are attached");
        drop(first);
        outside.forget_gone(|_| false);
        assert!(served(&outside), "one stream is attached");
        drop(second);
        outside.forget_gone(|_| true);
        assert!(served(&outside), "it is registered, and whoever served it may come back");
        outside.forget_gone(|_| false);
        assert!(!served(&outside));
    }
}
