//! The changes that are measured: what is called, and how the old and the new behaviour are told apart.

use http::Method;
use serde_json::{Value, json};

use crate::api::Call;
use crate::probe::Outcome;
use crate::verdict::{Rule, Sight, Turn};

/// The service that is called.
pub(super) const SERVICE: &str = "api";

/// The instance that stays.
pub(super) const STEADY: &str = "api-1";

/// The instance that comes and goes.
pub(super) const FICKLE: &str = "api-2";

/// The service that calls.
pub(super) const CLIENT: &str = "web";

/// A change and its undoing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum Kind {
    /// One of two instances is deregistered, and registered again
    Deregistration,
    /// The check of one of two instances fails, and passes again
    Health,
    /// An intention denies all requests, and is deleted
    Deny,
}

/// One direction of a [`Kind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    Deregistration,
    Registration,
    HealthCritical,
    HealthPassing,
    Deny,
    Allow,
}

impl Kind {
    /// All of them.
    pub(super) const ALL: [Self; 3] = [Self::Deregistration, Self::Health, Self::Deny];

    /// The change, and the one that undoes it.
    pub(super) fn there_and_back(self) -> [Change; 2] {
        match self {
            Self::Deregistration => [Change::Deregistration, Change::Registration],
            Self::Health => [Change::HealthCritical, Change::HealthPassing],
            Self::Deny => [Change::Deny, Change::Allow],
        }
    }
}

impl Change {
    /// Its name in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Deregistration => "deregistration",
            Self::Registration => "registration",
            Self::HealthCritical => "health-critical",
            Self::HealthPassing => "health-passing",
            Self::Deny => "deny",
            Self::Allow => "allow",
        }
    }

    /// What it does to traffic.
    fn turn(self) -> Turn {
        match self {
            Self::Deregistration | Self::HealthCritical => Turn::Leaves,
            Self::Registration | Self::HealthPassing => Turn::Comes,
            Self::Deny => Turn::Refused,
            Self::Allow => Turn::LetThrough,
        }
    }

    /// How its moment is found.
    pub(super) fn rule(self) -> Rule {
        self.turn().rule()
    }

    /// What a probe's outcome says about this change.
    pub(super) fn sight(self, outcome: &Outcome) -> Sight {
        self.turn().sight(outcome, FICKLE)
    }

    /// The call that makes it; `registration` is the body that registers [`FICKLE`].
    pub(super) fn call(self, registration: &Value) -> Call {
        let intention = format!("/v1/connect/intentions/exact?source={CLIENT}&destination={SERVICE}");
        let (method, target, body) = match self {
            Self::Deregistration => (Method::PUT, format!("/v1/agent/service/deregister/{FICKLE}"), Value::Null),
            Self::Registration => (Method::PUT, "/v1/agent/service/register".to_owned(), registration.clone()),
            Self::HealthCritical => (Method::PUT, format!("/v1/agent/check/fail/{}", check_id(FICKLE)), Value::Null),
            Self::HealthPassing => (Method::PUT, format!("/v1/agent/check/pass/{}", check_id(FICKLE)), Value::Null),
            Self::Deny => (Method::PUT, intention, json!({ "SourceType": "consul", "Action": "deny" })),
            Self::Allow => (Method::DELETE, intention, Value::Null),
        };
        Call { method, target, body }
    }
}

/// The ID of an instance's check.
pub(super) fn check_id(instance: &str) -> String {
    format!("{instance}-alive")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(name: &str) -> Outcome {
        Outcome::Answered(name.to_owned())
    }

    #[test]
    fn an_instance_that_leaves_is_old_and_the_other_new() {
        for change in [Change::Deregistration, Change::HealthCritical] {
            assert_eq!(change.sight(&answered(FICKLE)), Sight::Old);
            assert_eq!(change.sight(&answered(STEADY)), Sight::New);
            assert_eq!(change.sight(&Outcome::Denied), Sight::Neither);
        }
    }

    #[test]
    fn a_denial_is_new_and_then_old() {
        assert_eq!(Change::Deny.sight(&Outcome::Denied), Sight::New);
        assert_eq!(Change::Deny.sight(&answered(STEADY)), Sight::Old);
        assert_eq!(Change::Allow.sight(&Outcome::Denied), Sight::Old);
        assert_eq!(Change::Allow.sight(&answered(FICKLE)), Sight::New);
    }

    #[test]
    fn a_failure_shows_nothing() {
        for change in Kind::ALL.iter().flat_map(|kind| kind.there_and_back()) {
            assert_eq!(change.sight(&Outcome::Failed("answered 503".to_owned())), Sight::Neither, "{change:?}");
        }
    }

    #[test]
    fn every_change_is_undone_by_its_partner() {
        for kind in Kind::ALL {
            let [there, back] = kind.there_and_back();
            for outcome in [answered(STEADY), answered(FICKLE), Outcome::Denied] {
                let (one, other) = (there.sight(&outcome), back.sight(&outcome));
                assert_eq!(one == Sight::Old, other == Sight::New, "{kind:?} {outcome:?}");
            }
        }
    }
}
