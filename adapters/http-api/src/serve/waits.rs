//! How many blocking queries wait at once: of one address, and of those that need no right.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use starling_admission::{Address, Counts};

/// The places that waits of one address may hold, as a fraction. Applications of this machine all come from one address;
/// thirty-seconds are left to its short requests.
const OF_LOOPBACK: (usize, usize) = (29, 32);
const OF_ADDRESS: (usize, usize) = (1, 4);

/// The places that waits for public answers may hold, which anybody can ask for.
const OF_PUBLIC: (usize, usize) = (1, 16);

/// The waits that hold places of one entrance.
#[derive(Debug)]
pub(crate) struct Waits {
    loopback: Mutex<Counts<Address>>,
    others: Mutex<Counts<Address>>,
    public: Mutex<Counts<Address>>,
}

/// A request that may wait, until this is dropped.
pub(crate) struct Waiting {
    waits: Arc<Waits>,
    address: Address,
    is_loopback: bool,
    is_public: bool,
}

impl Waits {
    /// Of so many places.
    pub(super) fn of(places: usize) -> Self {
        let part = |(part, of): (usize, usize)| (places * part / of).max(1);
        let counts = |max, each| Mutex::new(Counts::new(max, each));
        Self {
            // Every address of loopback is this machine.
            loopback: counts(part(OF_LOOPBACK), part(OF_LOOPBACK)),
            others: counts(places, part(OF_ADDRESS)),
            public: counts(part(OF_PUBLIC), part(OF_PUBLIC)),
        }
    }

    /// Lets a request wait; `None` if as many wait as may. `is_public` if it asks for what anybody may see.
    pub(crate) fn begin(self: &Arc<Self>, from: Option<IpAddr>, is_public: bool) -> Option<Waiting> {
        let from = from.unwrap_or(Ipv4Addr::LOCALHOST.into());
        let (address, is_loopback) = (Address::from(from), from.to_canonical().is_loopback());
        if !lock(self.by_address(is_loopback)).add(&address) {
            return None;
        }
        let mut waiting = Waiting { waits: Arc::clone(self), address, is_loopback, is_public: false };
        if is_public {
            waiting.is_public = lock(&self.public).add(&address);
            return waiting.is_public.then_some(waiting);
        }
        Some(waiting)
    }

    fn by_address(&self, is_loopback: bool) -> &Mutex<Counts<Address>> {
        if is_loopback { &self.loopback } else { &self.others }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        lock(self.waits.by_address(self.is_loopback)).remove(&self.address);
        if self.is_public {
            lock(&self.waits.public).remove(&self.address);
        }
    }
}

fn lock(counts: &Mutex<Counts<Address>>) -> MutexGuard<'_, Counts<Address>> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn as_many_as_may(waits: &Arc<Waits>, from: [u8; 4], is_public: bool) -> Vec<Waiting> {
        let mut all = Vec::new();
        while let Some(waiting) = waits.begin(Some(from.into()), is_public) {
            all.push(waiting);
        }
        all
    }

    #[test]
    fn waits_of_one_address_and_public_ones_leave_places_to_others() {
        let waits = Arc::new(Waits::of(11_250));
        let public = as_many_as_may(&waits, [127, 0, 0, 1], true);
        assert_eq!(public.len(), 703);
        assert!(waits.begin(Some([10, 0, 0, 1].into()), true).is_none(), "public ones have one share for all");
        let local = as_many_as_may(&waits, [127, 0, 0, 1], false);
        assert_eq!(local.len() + public.len(), 10_195);
        assert!(waits.begin(Some([127, 0, 0, 2].into()), false).is_none(), "another name for this machine");
        assert_eq!(as_many_as_may(&waits, [10, 0, 0, 1], false).len(), 2_812);
        drop((public, local));
        assert_eq!(as_many_as_may(&waits, [10, 0, 0, 2], true).len(), 703);
        assert!(waits.begin(None, false).is_some());
    }
}
