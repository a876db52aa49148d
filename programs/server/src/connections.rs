//! Open connections of members, by name, so that those of an evicted member end at once.
//!
//! Cost: one entry of some 200 bytes a connection. A changed enrolment looks at the connections of its member alone.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use starling_model::{Enrolment, KeyFingerprint, Member};
use tokio::sync::oneshot;

/// Which members have connections to this server.
#[derive(Default)]
pub(crate) struct Connections(Mutex<State>);

#[derive(Default)]
struct State {
    /// Numbers connections.
    next: u64,
    open: BTreeMap<Member, BTreeMap<u64, Open>>,
}

struct Open {
    key: KeyFingerprint,
    /// Ends the connection.
    end: oneshot::Sender<()>,
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while holding the lock leaves plain maps.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a connection of `member`, whose certificate has `key`. It is forgotten when the answer is dropped.
    pub(crate) fn enter(self: &Arc<Self>, member: Member, key: KeyFingerprint) -> Connected {
        let (end, ended) = oneshot::channel();
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.open.entry(member.clone()).or_default().insert(number, Open { key, end });
        drop(state);
        Connected { connections: Arc::clone(self), member, number, ended }
    }

    /// Ends the connections under keys that do not hold the member's name any more; returns how many there were.
    pub(crate) fn judge(&self, enrolment: &Enrolment) -> usize {
        let mut state = self.lock();
        let Some(open) = state.open.get_mut(&enrolment.member) else { return 0 };
        let ended: Vec<_> = open.extract_if(.., |_, open| !enrolment.is_held_by(&open.key)).collect();
        drop(state);
        let count = ended.len();
        for (_, Open { end, .. }) in ended {
            // A connection that has ended meanwhile needs no word.
            let _ = end.send(());
        }
        count
    }
}

/// An open connection; completes once its key counts for nothing.
pub(crate) struct Connected {
    connections: Arc<Connections>,
    member: Member,
    number: u64,
    ended: oneshot::Receiver<()>,
}

impl Future for Connected {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.ended).poll(cx).map(drop)
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        let mut state = self.connections.lock();
        if let Some(open) = state.open.get_mut(&self.member) {
            open.remove(&self.number);
            if open.is_empty() {
                state.open.remove(&self.member);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use starling_model::{Holder, UnixSeconds};

    use super::*;

    #[test]
    fn a_changed_enrolment_ends_connections_of_foreign_keys_only() {
        let member = Member::Node("n1".parse().expect("a name"));
        let [old, new] = [1, 2].map(|byte| KeyFingerprint([byte; 32]));
        let connections = Arc::new(Connections::default());
        let mut with_old = connections.enter(member.clone(), old);
        let mut with_new = connections.enter(member.clone(), new);
        let mut other = connections.enter(Member::Node("n2".parse().expect("a name")), old);
        let holder = Holder::Key { current: new, previous: Vec::new() };
        let since = UnixSeconds(0);
        let mut enrolment = Enrolment { member, epoch: 2, holder, services: None, join_token: None, since };
        assert_eq!(connections.judge(&enrolment), 1);
        assert_eq!(((&mut with_old).now_or_never(), (&mut with_new).now_or_never()), (Some(()), None));
        enrolment.holder = Holder::Evicted;
        assert_eq!(connections.judge(&enrolment), 1);
        assert_eq!(((&mut with_new).now_or_never(), (&mut other).now_or_never()), (Some(()), None));
        drop((with_old, with_new, other));
        assert!(connections.lock().open.is_empty());
    }
}
