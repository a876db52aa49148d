//! Sidecars that are served from outside the agent's process: by an Envoy, a gRPC library or a proxy of their own.
//!
//! A sidecar stays with whoever attached for it while nobody is attached, as a proxy that is started anew finds its place so.
//! It ends when the sidecar is not registered and nobody is attached: who is registered under its ID later is somebody else.

use std::collections::BTreeMap;
use std::sync::Arc;

use starling_model::InstanceId;
use tokio::sync::watch;

/// By sidecar, who is attached from outside. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outside(Arc<watch::Sender<BTreeMap<InstanceId, Streams>>>);

/// The streams of one sidecar.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    count: usize,
    /// What tells the process from others, which native proxies say.
    process: Option<String>,
}

/// Counts as attached until it is dropped.
#[derive(Debug)]
pub(super) struct Attached {
    outside: Outside,
    id: InstanceId,
}

impl Outside {
    /// Attaches `process` from outside; `None` if another one is attached. Only native proxies say which they are: an Envoy or a
    /// library takes the place of one before it, as they are restarted, but not that of a native proxy, nor the other way.
    pub(super) fn attach(&self, id: &InstanceId, process: Option<&str>) -> Option<Attached> {
        let is_free = |streams: &Streams| streams.count == 0 || streams.process.as_deref() == process;
        let attached = self.0.send_if_modified(|outside| {
            if !outside.get(id).is_none_or(is_free) {
                return false;
            }
            let streams = outside.entry(id.clone()).or_default();
            streams.count += 1;
            streams.process = process.map(str::to_owned);
            true
        });
        attached.then(|| Attached { outside: self.clone(), id: id.clone() })
    }

    /// Changes of it.
    pub(crate) fn subscribe(&self) -> watch::Receiver<BTreeMap<InstanceId, Streams>> {
        self.0.subscribe()
    }

    /// Lets go of sidecars that are not registered, and that nobody is attached for.
    pub(crate) fn forget_gone(&self, is_registered: impl Fn(&InstanceId) -> bool) {
        self.0.send_if_modified(|outside| {
            let before = outside.len();
            outside.retain(|id, streams| streams.count > 0 || is_registered(id));
            outside.len() != before
        });
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.outside.0.send_modify(|outside| {
            if let Some(streams) = outside.get_mut(&self.id) {
                streams.count = streams.count.saturating_sub(1);
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
        let (first, second) = (outside.attach(&id, None), outside.attach(&id, None));
        assert!(first.is_some() && second.is_some(), "an Envoy takes the place of another");
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
    #[test]
    fn nobody_takes_the_place_of_a_native_proxy_that_is_there() {
        let (outside, id) = (Outside::default(), InstanceId::new("web-sidecar-proxy").unwrap());
        let first = outside.attach(&id, Some("a")).expect("nobody is there");
        assert!(outside.attach(&id, Some("b")).is_none() && outside.attach(&id, None).is_none());
        let again =
            outside.attach(&id, Some("a")).expect("it comes again before its first stream is seen to have ended");
        drop(first);
        assert!(outside.attach(&id, Some("b")).is_none());
        drop(again);
        let envoy = outside.attach(&id, None).expect("it has ended");
        assert!(outside.attach(&id, Some("b")).is_none());
        drop(envoy);
        assert!(outside.attach(&id, Some("b")).is_some());
    }
}
