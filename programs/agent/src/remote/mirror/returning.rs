//! Proxies that were attached when the agent ended: they run on with what they had, and are expected back.
//!
//! What they have in force the agent does not know, so nothing counts as in force at the node until they are back and have
//! said so. Who does not come back within a while is taken to have ended with the agent.

use std::time::Duration;

use starling_model::{InstanceKey, Revision};

use super::{Left, Mirror, Owes, State};

/// Time for a proxy to come back to an agent that was restarted: the longest pause of an Envoy between two tries.
pub(crate) const RETURN_WITHIN: Duration = Duration::from_secs(30);

impl Mirror {
    /// These proxies are expected back: all that there is may have yet to come in force at them.
    pub(crate) fn expect_back(&self, proxies: impl IntoIterator<Item = InstanceKey>) {
        let mut state = self.lock();
        let owes = Owes(Some((Revision(1), state.replica.through().max(Revision(1)))));
        for proxy in proxies {
            state.left.insert(proxy, Left { owes, returning: true, ..Left::default() });
        }
    }

    /// Of those who are expected back only these are still.
    pub(crate) fn expect_only(&self, is_expected: impl Fn(&InstanceKey) -> bool) {
        let mut state = self.lock();
        state.left.retain(|proxy, left| !left.returning || is_expected(proxy));
        state.wake();
    }
}

impl State {
    /// Everything has begun anew: those who are expected back owe all of it.
    pub(super) fn returning_owe_all(&mut self) {
        for left in self.left.values_mut().filter(|left| left.returning) {
            left.owes.add(Revision(1), Revision(1));
        }
    }
}
