//! The streams from servers, or from relays above: one that is told of the nodes, and one in reserve which says the same.
//!
//! When the first is lost, the other is told of all nodes at once. While none is there agents are served on from what was heard.

pub(crate) mod calls;
mod line;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use starling_agent::remote::servers::{Member, Servers};
use starling_agent::remote::uplink::{Attempts, CutOff, Ended};
use starling_attach::message::decode_subject;
use starling_attach::projection::{Item, decode_item};
use starling_attach::relay::LineId;
use starling_catalog::Subject;
use starling_model::NodeName;
use starling_telemetry::{Counter, Gauge, Registry};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::streams::Streams;
use calls::Calls;
use line::{Line, Report};

/// Time for a connection, its handshake included; and for a stream on it to be opened.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Between two sweeps of what nobody wants any more.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Time without a server after which those who are attached are told so: one that restarts is back before.
const CUT_OFF_AFTER: Duration = Duration::from_secs(2);

/// How it stands with the streams from servers.
#[derive(Clone, Default)]
pub(crate) struct Contact {
    /// Over which calls go; `None` while no server is reached.
    pub(crate) calls: Option<Arc<Calls>>,
    /// Whether a stream has told everything.
    pub(crate) has_heard: bool,
    /// Where it goes.
    pub(crate) address: String,
    /// Since when there is none.
    pub(crate) lost_at: Option<Instant>,
}

pub(crate) struct Upstream {
    pub(crate) name: NodeName,
    pub(crate) servers: Arc<Servers>,
    pub(crate) tls: watch::Receiver<Arc<rustls::ClientConfig>>,
    pub(crate) streams: Arc<Streams>,
    pub(crate) contact: watch::Sender<Contact>,
    pub(crate) metrics: Metrics,
}

pub(crate) struct Metrics {
    primary: Gauge,
    standby: Gauge,
    promotions: Counter,
    lost: Counter,
    anew: Counter,
    calls: calls::Metrics,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        let gauge = |name, help| registry.register(name, help, Gauge::default());
        let counter = |name, help| registry.register(name, help, Counter::default());
        Self {
            primary: gauge("relay_upstream_primary", "Whether a server that is told of the nodes has told everything"),
            standby: gauge(
                "relay_upstream_standby",
                "Whether a stream in reserve from another server has told everything",
            ),
            promotions: counter(
                "relay_upstream_promotions",
                "Streams in reserve that took the place of one that was lost",
            ),
            lost: counter("relay_upstream_lost", "Streams from servers that were open and have ended"),
            anew: counter(
                "relay_upstream_anew",
                "How often a server had not what was heard, and everything began anew",
            ),
            calls: calls::Metrics::new(registry),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Primary,
    Standby,
}

/// A connection that is kept, or is being made.
struct Kept {
    purpose: Purpose,
    address: String,
    /// The server's id, once it has said it.
    server: String,
    is_relay: bool,
    is_leaving: bool,
    cut_off: CutOff,
    heard_at: Option<Instant>,
    /// Ends with this.
    _task: JoinSet<()>,
}

struct Keeper {
    upstream: Upstream,
    reports: mpsc::UnboundedSender<(LineId, Report)>,
    begun: LineId,
    lines: BTreeMap<LineId, Kept>,
    primary: Attempts,
    standby: Attempts,
    /// Since when no server is reached, not by way of relays above either.
    cut_off_since: Option<Instant>,
}

/// Keeps the streams until dropped.
pub(crate) async fn run(upstream: Upstream) {
    let (reports, mut reported) = mpsc::unbounded_channel();
    let mut changed = upstream.servers.changed();
    let mut keeper = Keeper {
        upstream,
        reports,
        begun: 0,
        lines: BTreeMap::new(),
        primary: Attempts::default(),
        standby: Attempts::default(),
        cut_off_since: None,
    };
    let mut sweeps = tokio::time::interval(SWEEP_INTERVAL);
    sweeps.tick().await;
    loop {
        let leave_at = keeper.leave_cut_off();
        let due = [keeper.seek(), leave_at, keeper.tell_reach()].into_iter().flatten().min();
        keeper.tell();
        let due = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            report = reported.recv() => match report {
                Some((number, report)) => keeper.take(number, report),
                None => return,
            },
            () = due => {}
            _ = changed.changed() => {}
            _ = sweeps.tick() => if keeper.heard(Purpose::Primary).is_some() {
                keeper.upstream.streams.sweep();
            },
        }
    }
}

impl Keeper {
    /// Begins what is missing; answers with when to look again.
    fn seek(&mut self) -> Option<Instant> {
        let Some(primary) = self.find(Purpose::Primary) else {
            if self.primary.are_due()
                && let Some(address) = self.upstream.servers.next(&BTreeSet::new())
            {
                self.begin(Purpose::Primary, address);
            }
            return self.primary.not_before();
        };
        self.lines[&primary].heard_at?;
        if self.find(Purpose::Standby).is_some() {
            return None;
        }
        let taken: BTreeSet<_> = self.lines.values().map(|line| line.address.as_str()).collect();
        let address = self.upstream.servers.next(&taken)?;
        if self.standby.are_due() {
            self.begin(Purpose::Standby, address);
        }
        self.standby.not_before()
    }

    fn begin(&mut self, purpose: Purpose, address: String) {
        self.begun += 1;
        let line = Line {
            number: self.begun,
            address: address.clone(),
            is_standby: purpose == Purpose::Standby,
            name: self.upstream.name.clone(),
            tls: Arc::clone(&self.upstream.tls.borrow()),
            streams: Arc::clone(&self.upstream.streams),
            reports: self.reports.clone(),
        };
        self.upstream.streams.expect(self.begun);
        let mut task = JoinSet::new();
        task.spawn(line.run());
        let (server, heard_at) = (String::new(), None);
        let (is_relay, is_leaving, cut_off) = (false, false, CutOff::default());
        let kept = Kept { purpose, address, server, is_relay, is_leaving, cut_off, heard_at, _task: task };
        self.lines.insert(self.begun, kept);
    }

    fn find(&self, purpose: Purpose) -> Option<LineId> {
        self.lines.iter().find(|(_, line)| line.purpose == purpose).map(|(number, _)| *number)
    }

    fn heard(&self, purpose: Purpose) -> Option<LineId> {
        self.find(purpose).filter(|number| self.lines[number].heard_at.is_some())
    }

    fn take(&mut self, number: LineId, report: Report) {
        // What has been let go may have reported before.
        let Some(line) = self.lines.get_mut(&number) else { return };
        match report {
            Report::Is { server, is_relay } => {
                (line.server, line.is_relay) = (server.clone(), is_relay);
                let is_same = |(other, kept): (&LineId, &Kept)| *other != number && kept.server == server;
                if server == self.upstream.streams.id() {
                    self.ended(number, &Ended::Lost("this is the relay itself".to_owned()));
                } else if !server.is_empty() && self.lines.iter().any(is_same) {
                    self.ended(number, &Ended::Lost("another address of the same server".to_owned()));
                }
            }
            Report::Heard => {
                line.heard_at = Some(Instant::now());
                let (address, purpose) = (line.address.clone(), line.purpose);
                self.upstream.servers.heard(&address);
                let primary = self.find(Purpose::Primary).filter(|primary| self.lines[primary].is_leaving);
                match (purpose, primary) {
                    (Purpose::Primary, _) => self.promote(number),
                    (Purpose::Standby, Some(leaving)) => self.ended(leaving, &leaves()),
                    (Purpose::Standby, None) => {}
                }
            }
            Report::Servers => self.follow_servers(),
            Report::Reach { cut_off } => line.cut_off.said(cut_off),
            Report::Leaving => {
                line.is_leaving = true;
                let (address, purpose) = (line.address.clone(), line.purpose);
                tracing::info!(address, "the server is leaving, or wishes this relay elsewhere");
                self.upstream.servers.failed(&address);
                self.standby.at_once();
                // With nothing in reserve it stays until there is, or to the end of the stream.
                if purpose == Purpose::Standby || self.heard(Purpose::Standby).is_some() {
                    self.ended(number, &leaves());
                }
            }
            Report::Ended(ended) => self.ended(number, &ended),
        }
    }

    /// The servers of the mesh, if this relay hears of them from one.
    fn follow_servers(&mut self) {
        let items = self.upstream.streams.items(&Subject::Servers);
        let servers = items.iter().filter_map(|item| match decode_item(&Subject::Servers, item) {
            Ok((_, Some(Item::Server(server)))) if !server.leaving && !server.agents.is_empty() => {
                Some(Member { id: server.id.to_string(), address: server.agents })
            }
            _ => None,
        });
        self.upstream.servers.set_members(servers);
    }

    fn ended(&mut self, number: LineId, ended: &Ended) {
        let Some(line) = self.lines.remove(&number) else { return };
        self.upstream.streams.end(number);
        self.upstream.servers.failed(&line.address);
        if line.heard_at.is_some() {
            self.upstream.metrics.lost.inc();
        }
        let reason = ended.reason();
        let address = line.address;
        if line.purpose == Purpose::Standby {
            self.standby.ended(line.heard_at);
            tracing::debug!(address, reason, "the stream in reserve ended");
            return;
        }
        if let Some(standby) = self.heard(Purpose::Standby) {
            tracing::info!(address, reason, to = self.lines[&standby].address, "the stream in reserve takes over");
            if let Some(line) = self.lines.get_mut(&standby) {
                line.purpose = Purpose::Primary;
            }
            self.promote(standby);
            self.upstream.metrics.promotions.inc();
            self.standby.at_once();
            return;
        }
        for number in std::mem::take(&mut self.lines).into_keys() {
            self.upstream.streams.end(number);
        }
        self.primary.ended(line.heard_at);
        self.upstream.servers.set_primary(None);
        let lost_at = self.upstream.contact.borrow().lost_at.unwrap_or_else(Instant::now);
        self.upstream.contact.send_replace(Contact { lost_at: Some(lost_at), ..Contact::default() });
        match ended {
            Ended::Anew(reason) => {
                let ended = self.upstream.streams.begin_anew();
                tracing::warn!(
                    address,
                    reason,
                    ended,
                    "the server has not what this relay heard; everything begins anew"
                );
                self.upstream.metrics.anew.inc();
            }
            Ended::Refused(reason) => tracing::warn!(address, reason, "the server refuses this relay"),
            Ended::Lost(reason) if line.heard_at.is_some() => {
                tracing::warn!(address, reason, "no server is reached; agents are served from what was heard")
            }
            Ended::Lost(reason) => tracing::info!(address, reason, "no server is reached"),
        }
    }

    /// A stream that has told everything is told of the nodes from now on, and calls go with it.
    fn promote(&mut self, number: LineId) {
        let line = &self.lines[&number];
        let calls = Calls::to(line.address.clone(), self.upstream.tls.clone(), &self.upstream.metrics.calls);
        self.upstream.servers.set_primary(Some(&line.address));
        self.upstream.servers.keep_to_named(line.is_relay);
        self.upstream.contact.send_replace(Contact {
            calls: Some(Arc::new(calls)),
            has_heard: true,
            address: line.address.clone(),
            lost_at: None,
        });
        tracing::info!(address = line.address, "this relay is attached");
        self.upstream.streams.promote(number);
    }

    /// Lets the stream in reserve take over from a relay that reaches no server, if its own does; answers with when, if that is to be.
    fn leave_cut_off(&mut self) -> Option<Instant> {
        let (primary, standby) = (self.heard(Purpose::Primary)?, self.heard(Purpose::Standby)?);
        let leave_at = self.lines[&primary].cut_off.leave_at(&self.lines[&standby].cut_off)?;
        if leave_at > Instant::now() {
            return Some(leave_at);
        }
        self.ended(primary, &Ended::Lost("the relay reaches no server".to_owned()));
        None
    }

    /// Tells those who are attached whether a server is reached; answers with when, if that is to be.
    fn tell_reach(&mut self) -> Option<Instant> {
        if self.heard(Purpose::Primary).is_some_and(|primary| !self.lines[&primary].cut_off.is()) {
            self.cut_off_since = None;
            self.upstream.streams.tell_reach(true);
            return None;
        }
        let tell_at = *self.cut_off_since.get_or_insert_with(Instant::now) + CUT_OFF_AFTER;
        if tell_at > Instant::now() {
            return Some(tell_at);
        }
        self.upstream.streams.tell_reach(false);
        None
    }

    fn tell(&self) {
        let is_heard = |purpose| i64::from(self.heard(purpose).is_some());
        self.upstream.metrics.primary.set(is_heard(Purpose::Primary));
        self.upstream.metrics.standby.set(is_heard(Purpose::Standby));
    }
}

fn leaves() -> Ended {
    Ended::Lost("the server is leaving".to_owned())
}

/// Whether a frame is of the subject by which servers are known.
fn is_of_servers(subject: Option<&starling_attach::message::WireSubject>) -> bool {
    subject.is_some_and(|subject| matches!(decode_subject(subject), Ok(Subject::Servers)))
}
