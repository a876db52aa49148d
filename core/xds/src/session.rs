//! One ADS stream without its I/O.
//!
//! Requests and resource sets go in; responses and reports come out. Both variants of the protocol, incremental and
//! state-of-the-world, share what a stream knows: what the client asks for, what it has, what it was sent and has not
//! answered, what it refused. A response is always made from the newest set; while one of a kind is unanswered, newer
//! sets replace one another.
//!
//! Order within a stream (make before break): clusters and their endpoints first; a listener or route only when the
//! client has every cluster it leads to, endpoints included; a cluster is withdrawn only when nothing that the client
//! has leads to it. Nothing waits for a clock, and what does not depend on a change does not wait for it: a policy
//! is never held back by endpoints.

mod delta;
mod kind_state;
mod node;
mod order;
mod sotw;

use std::collections::VecDeque;
use std::sync::Arc;

use starling_model::Revision;

use crate::resource::{Resource, ResourceSet, ResourceType};
use crate::wire::{DeltaResponse, SotwResponse};
use kind_state::{InFlight, KindState, Settled};

pub use node::{BESIDE, BESIDE_ANOTHER, ProxyNode};

/// Names that a client may ask for of one kind; a fleet has 1,000s of services, and one proxy calls but some of them.
pub const NAMES_PER_KIND_MAX: usize = 20_000;

/// Bytes in a resource's name: a service's name with namespace, datacentre and trust domain is below.
pub const NAME_BYTES_MAX: usize = 1_024;

/// Bytes of resources in one incremental response, unless a single one is larger; common clients take messages of up
/// to 4 MiB.
pub const RESPONSE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Bytes kept of a client's reason for refusing.
pub const REJECTION_TEXT_BYTES_MAX: usize = 4_096;

/// The variants of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// Incremental: differences by resource.
    Delta,
    /// State of the world: whole kinds.
    Sotw,
}

/// Why a stream must end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// A request names another node than the first.
    #[error("the stream belongs to node {first:?}, a later request names {later:?}")]
    NodeChanged {
        /// The first request's.
        first: String,
        /// The later one's.
        later: String,
    },
    /// More names than [`NAMES_PER_KIND_MAX`].
    #[error("{count} names of {type_url} are asked for; at most {NAMES_PER_KIND_MAX} are allowed")]
    TooManyNames {
        /// The kind.
        type_url: &'static str,
        /// Names asked for.
        count: usize,
    },
    /// A name longer than [`NAME_BYTES_MAX`].
    #[error("a name of {len} bytes is asked for; at most {NAME_BYTES_MAX} are allowed")]
    NameTooLong {
        /// Its length.
        len: usize,
    },
}

/// What goes back to the client.
#[derive(Debug, Clone, PartialEq)]
pub struct Response {
    /// The kind.
    pub kind: ResourceType,
    /// What the client echoes.
    pub nonce: String,
    /// State of the world: the version of all that the client has once it has applied this. Incremental: the revision.
    pub version: String,
    /// Resources, new or changed, in ascending order of name.
    pub resources: Vec<Arc<Resource>>,
    /// Incremental only: names of resources that are gone.
    pub removed: Vec<Arc<str>>,
}

impl Response {
    /// The message of the incremental variant.
    #[must_use]
    pub fn to_delta(&self) -> DeltaResponse {
        DeltaResponse {
            system_version_info: self.version.clone(),
            resources: self.resources.iter().map(|resource| resource.delta_bytes()).collect(),
            type_url: self.kind.type_url().to_owned(),
            nonce: self.nonce.clone(),
            removed_resources: self.removed.iter().map(|name| name.as_ref().to_owned()).collect(),
        }
    }

    /// The message of the state-of-the-world variant.
    #[must_use]
    pub fn to_sotw(&self) -> SotwResponse {
        SotwResponse {
            version_info: self.version.clone(),
            resources: self.resources.iter().map(|resource| resource.any_bytes()).collect(),
            type_url: self.kind.type_url().to_owned(),
            nonce: self.nonce.clone(),
        }
    }
}

/// What a stream tells about its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The client has everything of this revision that it asks for, and of every earlier one; what it refused, and
    /// was reported as such, is excepted.
    Applied {
        /// The newest such revision.
        revision: Revision,
        /// Whether it still refuses something that it should have.
        refusals_stand: bool,
    },
    /// The client refused; what it had before keeps serving.
    Rejected {
        /// The revision of the set from which the response was made.
        revision: Revision,
        /// The newest revision of which the client had everything of the kind, refusals excepted. What is refused came
        /// with a later one, up to `revision`.
        since: Revision,
        /// The kind's type URL.
        type_url: &'static str,
        /// The response's nonce.
        nonce: String,
        /// The resources refused. A refused response with several is taken apart first, so this is the one at fault,
        /// except where the protocol only knows the whole.
        resources: Vec<Arc<str>>,
        /// The client's reason.
        text: String,
    },
}

/// One ADS stream.
#[derive(Debug)]
pub struct AdsSession {
    flavour: Flavour,
    target: Arc<ResourceSet>,
    kinds: [KindState; ResourceType::COUNT],
    node_id: Option<String>,
    nonce: u64,
    /// Another process of the proxy serves still, by what this one had before: what is in force here is not all that is.
    beside_another: bool,
    /// Nothing can be sent until something happens.
    quiet: bool,
    reported: Option<Revision>,
    reports: VecDeque<Report>,
}

impl AdsSession {
    /// A stream on which nothing has been asked for yet.
    #[must_use]
    pub fn new(flavour: Flavour, resources: Arc<ResourceSet>) -> Self {
        Self {
            flavour,
            target: resources,
            kinds: Default::default(),
            node_id: None,
            nonce: 0,
            beside_another: false,
            quiet: true,
            reported: None,
            reports: VecDeque::new(),
        }
    }

    /// Of the newest set.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.target.revision
    }

    /// Takes a newer set; an older one than it has is ignored.
    pub fn handle_resources(&mut self, resources: Arc<ResourceSet>) {
        if resources.revision < self.target.revision {
            return;
        }
        self.target = resources;
        for kind in ResourceType::ALL {
            self.kinds[kind.index()].forget_outdated(kind, &self.target);
        }
        self.quiet = false;
    }

    /// The next response to send, if one is due.
    pub fn poll_response(&mut self) -> Option<Response> {
        if self.quiet {
            return None;
        }
        if self.flavour == Flavour::Sotw {
            self.forget_unsayable();
        }
        for kind in ResourceType::ALL {
            let state = &self.kinds[kind.index()];
            if !state.seen || state.in_flight.is_some() {
                continue;
            }
            let push = self.push(kind);
            if push.is_due || push.waits {
                self.kinds[kind.index()].reopen(self.target.revision);
            }
            if push.is_due {
                return Some(self.respond(kind, push));
            }
            if !push.waits {
                self.kinds[kind.index()].applied = Some(self.target.revision);
            }
        }
        self.quiet = true;
        self.settle();
        None
    }

    /// The next report, if there is one; poll after responses.
    pub fn poll_report(&mut self) -> Option<Report> {
        self.reports.pop_front()
    }

    fn respond(&mut self, kind: ResourceType, push: order::Push) -> Response {
        self.nonce += 1;
        self.expect_children(kind, &push.resources);
        let revision = self.target.revision;
        let state = &mut self.kinds[kind.index()];
        let version = match self.flavour {
            Flavour::Delta => revision.to_string(),
            Flavour::Sotw => state.version_after(&push.resources, kind.is_full_state()).to_string(),
        };
        state.sent(&push);
        state.last_nonce = self.nonce;
        state.in_flight = Some(InFlight {
            nonce: self.nonce,
            revision,
            resources: push.resources.clone(),
            removed: push.removed.clone(),
            replaces_all: self.flavour == Flavour::Sotw && kind.is_full_state(),
            completes: !push.waits,
            refused_whole: kind.is_refused_whole(),
        });
        Response { kind, nonce: self.nonce.to_string(), version, resources: push.resources, removed: push.removed }
    }

    /// A client that gets a new form of a parent may wait for its children anew, without asking for them: they follow.
    fn expect_children(&mut self, kind: ResourceType, sent: &[Arc<Resource>]) {
        for resource in sent {
            if self.kinds[kind.index()].has(resource) {
                continue;
            }
            for child in &resource.children {
                self.kinds[child.kind.index()].resend.insert(Arc::clone(&child.name));
            }
        }
    }

    /// Takes the client's answer to a response; `refusal` is its reason for refusing.
    fn handle_answer(&mut self, kind: ResourceType, nonce: &str, refusal: Option<String>) {
        let revision = self.kinds[kind.index()].in_flight.as_ref().map(|sent| sent.revision);
        let settled = self.kinds[kind.index()].settle(nonce, refusal.is_some());
        match (settled, refusal, revision) {
            (Settled::Refused(resources), Some(mut text), Some(revision)) => {
                text.truncate(text.floor_char_boundary(REJECTION_TEXT_BYTES_MAX));
                self.reports.push_back(Report::Rejected {
                    revision,
                    since: self.kinds[kind.index()].applied.unwrap_or(Revision(0)),
                    type_url: kind.type_url(),
                    nonce: nonce.to_owned(),
                    resources,
                    text,
                });
            }
            (Settled::Refused(_) | Settled::Done | Settled::Unknown, _, _) => {}
        }
        self.quiet = false;
    }

    /// Checks what every request must obey.
    fn admit(&mut self, node: Option<&str>, names: &[String]) -> Result<(), SessionError> {
        if let Some(later) = node.filter(|id| !id.is_empty()) {
            match &self.node_id {
                None => self.node_id = Some(later.to_owned()),
                Some(first) if first == later => {}
                Some(first) => {
                    return Err(SessionError::NodeChanged { first: first.clone(), later: later.to_owned() });
                }
            }
        }
        match names.iter().map(String::len).max() {
            Some(len) if len > NAME_BYTES_MAX => Err(SessionError::NameTooLong { len }),
            Some(_) | None => Ok(()),
        }
    }

    fn check_names(&self, kind: ResourceType) -> Result<(), SessionError> {
        let count = self.kinds[kind.index()].names.len();
        if count > NAMES_PER_KIND_MAX {
            return Err(SessionError::TooManyNames { type_url: kind.type_url(), count });
        }
        Ok(())
    }

    /// Reports the newest revision of which every kind has everything.
    fn settle(&mut self) {
        if self.beside_another || !self.asks_for_everything() {
            return;
        }
        let applied = self.kinds.iter().filter(|state| state.seen).map(|state| state.applied).min().flatten();
        if let Some(revision) = applied
            && Some(revision) > self.reported
        {
            self.reported = applied;
            let refusals_stand = self.kinds.iter().any(KindState::refuses);
            self.reports.push_back(Report::Applied { revision, refusals_stand });
        }
    }

    /// Whether the client has come as far as asking for what its resources lead to. One that has just started asks
    /// for its listeners last, and must not be taken for one that has nothing to do.
    fn asks_for_everything(&self) -> bool {
        if self.kinds[ResourceType::PlanPart.index()].seen {
            return true;
        }
        if !self.kinds[ResourceType::Listener.index()].seen {
            return false;
        }
        [ResourceType::Cluster, ResourceType::Listener].into_iter().all(|kind| {
            let state = &self.kinds[kind.index()];
            let held = self.target.of_kind(kind).iter().filter(|resource| state.has(resource));
            held.flat_map(|resource| resource.children.iter()).all(|child| {
                self.kinds[child.kind.index()].covers(&child.name) || self.target.get(child.kind, &child.name).is_none()
            })
        })
    }
}
