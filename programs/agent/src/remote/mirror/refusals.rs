//! What a proxy refuses, kept for as long as it stands: a server that may not have heard of it, because the stream broke or
//! it is another one, is told before it hears that everything is in force.

use starling_attach::message::Rejected;

/// What one proxy refuses.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    stand: bool,
    /// The last of each resource type, of which a proxy knows a handful. What no longer stands is kept until it is told.
    kept: Vec<Kept>,
}

#[derive(Debug)]
struct Kept {
    rejected: Rejected,
    told: bool,
}

impl Refusals {
    /// Whether the proxy still refuses something.
    pub(super) fn stand(&self) -> bool {
        self.stand
    }

    /// The proxy has applied or refused everything; `stand` if it still refuses something.
    pub(super) fn set_stand(&mut self, stand: bool) {
        self.stand = stand;
        if !stand {
            self.kept.retain(|kept| !kept.told);
        }
    }

    /// The proxy refuses this.
    pub(super) fn add(&mut self, rejected: Rejected) {
        self.stand = true;
        let mut rejected = rejected.bounded();
        if let Some(at) = self.kept.iter().position(|kept| kept.rejected.type_url == rejected.type_url) {
            // One that the server has not heard of, or will not have when it is another, is told by this one as well.
            rejected.since = rejected.since.min(self.kept.remove(at).rejected.since);
        }
        self.kept.push(Kept { rejected, told: false });
    }

    /// What the server has not been told, of what it has told itself by `said`. It counts as told from now on.
    pub(super) fn take_untold(&mut self, said: u64) -> Vec<Rejected> {
        let untold = self.kept.iter_mut().filter(|kept| !kept.told && kept.rejected.revision <= said);
        let untold = untold.map(|kept| {
            kept.told = true;
            kept.rejected.clone()
        });
        let untold = untold.collect();
        self.set_stand(self.stand);
        untold
    }

    /// The server may have heard of nothing.
    pub(super) fn tell_anew(&mut self) {
        self.kept.iter_mut().for_each(|kept| kept.told = false);
    }

    /// What was refused is not to be spoken of any more.
    pub(super) fn forget(&mut self) {
        self.kept.clear();
    }
}
