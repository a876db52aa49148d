//! When did traffic change? Pure: from what the probes showed to the moment of the change.
//!
//! The moment is the **send time of the first request after which no request shows the old behaviour**. The last request
//! that does was sent before the change took hold everywhere, and the one sent next is the first of which that is not
//! known; so the true moment lies between their send times, and the later one is reported. Its resolution is the
//! spacing of the probes. A request that shows the old behaviour counts whenever it was sent, also long after the API's
//! answer and also when others already showed the new one. A request that fails shows neither behaviour and moves
//! nothing, but is counted by the caller.
//!
//! Where the new behaviour is an addition (an instance more), the old behaviour never ends: the other instance goes on
//! answering. There the moment is the send time of the first request that shows the new behaviour. That the balancer may
//! have passed the new instance over is in the figure, so it is late by a few spacings rather than early.

use std::time::Duration;

use crate::probe::Outcome;

/// What a change does to traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// An instance is no longer called; another stays.
    Leaves,
    /// It is called again.
    Comes,
    /// Requests begin to be refused.
    Refused,
    /// Requests begin to be let through.
    LetThrough,
}

/// How the moment is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// After the last request that showed the old behaviour.
    LastOld,
    /// At the first request that shows the new behaviour.
    FirstNew,
}

/// What one request showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sight {
    Old,
    New,
    Neither,
}

/// One request. Per lane, sightings stand in the order of sending, and a lane has one request in flight at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub(crate) lane: usize,
    pub(crate) sent: Duration,
    pub(crate) sight: Sight,
}

/// A change that is being watched for. Times are on the clock of the sightings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watch {
    pub(crate) rule: Rule,
    /// Just before the change was asked for; requests sent earlier are not looked at.
    pub(crate) called: Duration,
    /// When the API answered.
    pub(crate) answered: Duration,
    /// Lanes on which requests are sent.
    pub(crate) lanes: usize,
    /// Time without the old behaviour after which the change counts as over.
    pub(crate) quiet: Duration,
}

/// Requests that must show the new behaviour before the change counts as seen. Two instances take turns at random at
/// worst, so that this many answers of one of them alone happen by chance once in four thousand million changes.
pub(crate) const NEW_SIGHTINGS_MIN: usize = 32;

/// When the change took hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Changed {
    /// The moment, as the module defines it.
    pub(crate) at: Duration,
}

impl Turn {
    /// How its moment is found. With two instances, an answer of the one that stays is no sign that the other is not
    /// used; so what adds an instance is seen at its first answer.
    pub(crate) fn rule(self) -> Rule {
        match self {
            Self::Comes => Rule::FirstNew,
            Self::Leaves | Self::Refused | Self::LetThrough => Rule::LastOld,
        }
    }

    /// What a probe's outcome says about it; `fickle` names the instance that comes and goes.
    pub(crate) fn sight(self, outcome: &Outcome, fickle: &str) -> Sight {
        let denied = matches!(outcome, Outcome::Denied);
        let fickle = matches!(outcome, Outcome::Answered(name) if name == fickle);
        let (old, new) = match self {
            _ if matches!(outcome, Outcome::Failed(_)) => (false, false),
            Self::Leaves => (fickle, !fickle && !denied),
            Self::Comes => (!fickle && !denied, fickle),
            Self::Refused => (!denied, denied),
            Self::LetThrough => (denied, !denied),
        };
        match (old, new) {
            (true, _) => Sight::Old,
            (false, true) => Sight::New,
            (false, false) => Sight::Neither,
        }
    }
}

impl Watch {
    /// The moment of the change, or `None` while it may still be to come.
    pub(crate) fn judge(&self, sightings: &[Sighting]) -> Option<Changed> {
        let after = |from: Duration| sightings.iter().filter(move |sighting| sighting.sent >= from);
        let last_old = after(self.called).filter(|it| it.sight == Sight::Old).map(|it| it.sent).max();
        let at = match self.rule {
            Rule::FirstNew => after(self.called).filter(|it| it.sight == Sight::New).map(|it| it.sent).min()?,
            Rule::LastOld => {
                let beyond = last_old.map_or(self.called, |sent| sent + Duration::from_nanos(1));
                if after(beyond).filter(|it| it.sight == Sight::New).count() < NEW_SIGHTINGS_MIN {
                    return None;
                }
                after(beyond).map(|it| it.sent).min()?
            }
        };
        // A lane that has an answer from beyond the quiet time has no older request in flight that could still show the
        // old behaviour.
        let quiet_from = at.max(self.answered) + self.quiet;
        let is_quiet = (0..self.lanes).all(|lane| after(quiet_from).any(|it| it.lane == lane));
        is_quiet.then_some(Changed { at })
    }
}

impl Changed {
    /// From `start` to the moment; zero if traffic changed before `start`.
    pub(crate) fn since(self, start: Duration) -> Duration {
        self.at.saturating_sub(start)
    }
}

#[cfg(test)]
mod tests;
