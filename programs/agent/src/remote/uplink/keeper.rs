//! Keeps a node attached: which connections there are, what each is for, and what takes whose place.
//!
//! Nothing is closed before what takes its place has told everything. Where the primary is lost without warning the standby
//! has told everything long since, so it is promoted at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use starling_attach::message::MoveTo;
use starling_rpc::ServerClient;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::line::{Line, LineNumber, Report};
use super::retries::{Attempts, CutOff};
use super::{Ended, Listener, Uplink, UplinkConfig};
use crate::remote::mirror::{Mirror, Role};

/// Between two sweeps of what nobody wants any more.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Keeps the node attached until dropped, but for while it leaves.
pub async fn run(config: UplinkConfig, uplink: Arc<Uplink>, mirror: Arc<Mirror>, listener: Arc<dyn Listener>) {
    let (reports, mut reported) = mpsc::unbounded_channel();
    let mut keeper = Keeper {
        config,
        uplink,
        mirror,
        listener,
        reports,
        begun: 0,
        lines: BTreeMap::new(),
        primary: Attempts::default(),
        standby: Attempts::default(),
        without_primary_since: None,
        refusal: None,
    };
    let mut changed = keeper.config.servers.changed();
    let mut sweeps = tokio::time::interval(SWEEP_INTERVAL.mul_f64(0.75 + fastrand::f64() / 2.0));
    sweeps.tick().await;
    let mut leaving = keeper.uplink.leaving.subscribe();
    loop {
        // The lines stay as they are: what is said over one is yet to be answered. The sender is the uplink's, which this keeps.
        let _ = leaving.wait_for(|leaving| !*leaving).await;
        let leave_at = keeper.leave_cut_off();
        let due = keeper.seek().into_iter().chain(leave_at).min();
        keeper.tell();
        let mut begins_to_leave = leaving.clone();
        tokio::select! {
            biased;
            _ = begins_to_leave.wait_for(|leaving| *leaving) => {}
            report = reported.recv() => match report {
                Some((number, report)) => keeper.take(number, report),
                None => return,
            },
            () = sleep_until(due) => {}
            _ = changed.changed() => {}
            _ = sweeps.tick() => if keeper.heard(Purpose::Primary).is_some() {
                keeper.mirror.sweep();
            },
        }
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

struct Keeper {
    config: UplinkConfig,
    uplink: Arc<Uplink>,
    mirror: Arc<Mirror>,
    listener: Arc<dyn Listener>,
    reports: mpsc::UnboundedSender<(LineNumber, Report)>,
    /// Counts connections.
    begun: LineNumber,
    /// At most one for each purpose.
    lines: BTreeMap<LineNumber, Kept>,
    primary: Attempts,
    standby: Attempts,
    /// Since the last one was lost; `None` before the first.
    without_primary_since: Option<Instant>,
    /// The last refusal that was logged.
    refusal: Option<String>,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Primary,
    Standby,
    /// To become the primary once it has told everything.
    Successor,
}

/// A connection that is kept, or is being made.
struct Kept {
    purpose: Purpose,
    address: String,
    /// The server's id, once it has said it.
    server: String,
    is_relay: bool,
    client: Option<ServerClient>,
    heard_at: Option<Instant>,
    is_leaving: bool,
    cut_off: CutOff,
    promote: Arc<Notify>,
    /// Ends with this.
    _task: JoinSet<()>,
}

impl Keeper {
    /// Begins what is missing; answers with when to look again.
    fn seek(&mut self) -> Option<Instant> {
        let Some(primary) = self.find(Purpose::Primary) else {
            if self.find(Purpose::Successor).is_some() {
                return None;
            }
            if self.primary.are_due()
                && let Some(address) = self.config.servers.next(&BTreeSet::new())
            {
                self.begin(Purpose::Primary, address);
            }
            return self.primary.not_before();
        };
        let primary = &self.lines[&primary];
        primary.heard_at?;
        let missing = if primary.is_leaving { Purpose::Successor } else { Purpose::Standby };
        let is_wanted = missing == Purpose::Successor || self.config.standby;
        if !is_wanted || self.find(missing).is_some() || self.find(Purpose::Successor).is_some() {
            return None;
        }
        let taken: BTreeSet<_> = self.lines.values().map(|line| line.address.as_str()).collect();
        let address = self.config.servers.next(&taken)?;
        if self.standby.are_due() {
            self.begin(missing, address);
        }
        self.standby.not_before()
    }

    fn begin(&mut self, purpose: Purpose, address: String) {
        self.begun += 1;
        let promote = Arc::new(Notify::new());
        let line = Line {
            number: self.begun,
            address: address.clone(),
            role: if purpose == Purpose::Primary { Role::Primary } else { Role::Standby },
            node: self.config.node.clone(),
            tls: Arc::clone(&self.config.tls.borrow()),
            mirror: Arc::clone(&self.mirror),
            listener: Arc::clone(&self.listener),
            reports: self.reports.clone(),
            promote: Arc::clone(&promote),
        };
        let mut task = JoinSet::new();
        task.spawn(line.run());
        let kept = Kept {
            purpose,
            address,
            server: String::new(),
            is_relay: false,
            client: None,
            heard_at: None,
            is_leaving: false,
            cut_off: CutOff::default(),
            promote,
            _task: task,
        };
        self.lines.insert(self.begun, kept);
    }

    fn find(&self, purpose: Purpose) -> Option<LineNumber> {
        self.lines.iter().find(|(_, line)| line.purpose == purpose).map(|(number, _)| *number)
    }

    /// The line for a purpose, if it has told everything.
    fn heard(&self, purpose: Purpose) -> Option<LineNumber> {
        self.find(purpose).filter(|number| self.lines[number].heard_at.is_some())
    }

    fn take(&mut self, number: LineNumber, report: Report) {
        // What has been let go may have reported before.
        let Some(line) = self.lines.get_mut(&number) else { return };
        match report {
            Report::Open(client) => {
                line.client = Some(client.clone());
                if line.purpose == Purpose::Primary {
                    let address = line.address.clone();
                    self.is_attached(&address, client);
                }
            }
            Report::Is { server, is_relay } => {
                (line.server, line.is_relay) = (server, is_relay);
                if line.purpose == Purpose::Primary {
                    self.config.servers.keep_to_named(is_relay);
                }
                self.check_apart(number);
            }
            Report::Heard => {
                line.heard_at = Some(Instant::now());
                self.config.servers.heard(&line.address);
                if line.purpose == Purpose::Successor {
                    let moves = self.find(Purpose::Primary).is_some();
                    self.promote(number);
                    if !moves {
                        self.standby.can_wait();
                    }
                    self.uplink.count(|figures| *if moves { &mut figures.moves } else { &mut figures.promotions } += 1);
                }
            }
            Report::MoveTo(to) => self.move_to(number, to),
            Report::Leaving => self.is_leaving(number),
            Report::Reach { cut_off } => line.cut_off.said(cut_off),
            Report::Ended(ended) => self.ended(number, &ended),
        }
    }

    /// Two addresses may be of one server, and a second stream to it is of no use.
    fn check_apart(&mut self, number: LineNumber) {
        let line = &self.lines[&number];
        let is_same = |(other, kept): (&LineNumber, &Kept)| *other != number && kept.server == line.server;
        if line.purpose != Purpose::Primary && self.lines.iter().any(is_same) {
            tracing::debug!(address = line.address, server = line.server, "another address of the same server");
            self.ended(number, &Ended::Lost("another address of the same server".to_owned()));
        }
    }

    fn ended(&mut self, number: LineNumber, ended: &Ended) {
        let Some(line) = self.lines.remove(&number) else { return };
        let server = &*line.address;
        self.config.servers.failed(server);
        let reason = ended.reason();
        let is_all_there_is = line.purpose == Purpose::Successor && self.find(Purpose::Primary).is_none();
        match line.purpose {
            Purpose::Standby => {
                let pause = self.standby.ended(line.heard_at);
                if line.heard_at.is_some() {
                    self.standby.can_wait();
                }
                tracing::debug!(server, reason, ?pause, "the stream in reserve ended");
            }
            Purpose::Successor if !is_all_there_is => {
                let pause = self.standby.ended(line.heard_at);
                self.uplink.count(|figures| figures.moves_failed += 1);
                tracing::info!(server, reason, ?pause, "the stream stays where it is");
            }
            Purpose::Primary | Purpose::Successor => {
                let lost_now = || line.client.is_some().then(Instant::now);
                self.without_primary_since = self.without_primary_since.or_else(lost_now);
                if let Some(standby) = self.heard(Purpose::Standby) {
                    tracing::info!(
                        server,
                        reason,
                        to = self.lines[&standby].address,
                        "the stream in reserve takes over"
                    );
                    self.promote(standby);
                    self.standby.can_wait();
                    self.uplink.count(|figures| figures.promotions += 1);
                    return;
                }
                if line.client.is_some() {
                    self.standby.can_wait();
                }
                self.keep_what_is_open(ended);
                let pause = self.primary.ended(line.heard_at);
                match ended {
                    Ended::Anew(reason) => {
                        tracing::warn!(server, reason, "the server has not what this agent heard; it begins anew");
                        self.mirror.begin_anew();
                    }
                    Ended::Refused(reason) => self.refused(server, reason),
                    Ended::Lost(reason) if line.heard_at.is_some() => {
                        tracing::info!(server, reason, "the stream ended")
                    }
                    Ended::Lost(reason) => tracing::debug!(server, reason, ?pause, "no server is reached"),
                }
            }
        }
    }

    /// Warns of a refusal once: the same one is repeated at every attempt until an operator acts.
    fn refused(&mut self, server: &str, reason: &str) {
        if self.refusal.as_deref() != Some(reason) {
            tracing::warn!(server, reason, "the server refuses this node");
            self.refusal = Some(reason.to_owned());
        }
    }

    /// Without a primary, one that is open and has yet to tell everything is further than another would be: calls go over
    /// it already.
    fn keep_what_is_open(&mut self, lost: &Ended) {
        let is_of_use = |line: &Kept| matches!(lost, Ended::Lost(_) | Ended::Refused(_)) && line.client.is_some();
        let opened = self.lines.iter().find(|(_, line)| is_of_use(line)).map(|(number, _)| *number);
        self.lines.retain(|number, _| Some(*number) == opened);
        let Some(line) = self.lines.values_mut().next() else {
            self.config.servers.set_primary(None);
            self.uplink.goes_over(None);
            return;
        };
        line.purpose = Purpose::Successor;
        let (address, client) = (line.address.clone(), line.client.clone());
        client.into_iter().for_each(|client| self.calls_go_over(&address, client));
    }

    /// A line that has told everything becomes the primary; what was it until now is closed.
    fn promote(&mut self, number: LineNumber) {
        self.lines.retain(|_, line| line.purpose != Purpose::Primary);
        let Some(line) = self.lines.get_mut(&number) else { return };
        line.purpose = Purpose::Primary;
        line.promote.notify_one();
        self.config.servers.keep_to_named(line.is_relay);
        let (address, client) = (line.address.clone(), line.client.clone());
        client.into_iter().for_each(|client| self.is_attached(&address, client));
        self.standby.at_once();
    }

    fn is_attached(&mut self, address: &str, client: ServerClient) {
        self.calls_go_over(address, client);
        if let Some(since) = self.without_primary_since.take() {
            self.uplink.count(|figures| figures.gap(since.elapsed()));
        }
    }

    fn calls_go_over(&self, address: &str, client: ServerClient) {
        self.config.servers.set_primary(Some(address));
        self.uplink.goes_over(Some(client));
    }

    fn move_to(&mut self, number: LineNumber, to: MoveTo) {
        if self.lines[&number].purpose != Purpose::Primary || self.lines[&number].server == to.server {
            return;
        }
        let standby = self.heard(Purpose::Standby).filter(|standby| self.lines[standby].server == to.server);
        if let Some(standby) = standby {
            tracing::info!(to = to.address, "the server wishes this node elsewhere, where a stream is open already");
            self.promote(standby);
            self.uplink.count(|figures| figures.moves += 1);
        } else if self.find(Purpose::Successor).is_none() && !to.address.is_empty() {
            tracing::info!(to = to.address, "the server wishes this node elsewhere");
            // One that is being made there would be the second of this node.
            self.lines.retain(|_, line| line.purpose != Purpose::Standby || line.address != to.address);
            self.begin(Purpose::Successor, to.address);
        }
    }

    fn is_leaving(&mut self, number: LineNumber) {
        let Some(line) = self.lines.get_mut(&number) else { return };
        line.is_leaving = true;
        self.config.servers.failed(&line.address);
        self.standby.at_once();
        if line.purpose != Purpose::Primary {
            self.lines.remove(&number);
        } else if let Some(standby) = self.heard(Purpose::Standby) {
            tracing::info!(
                to = self.lines[&standby].address,
                "the server is leaving; the stream in reserve takes over"
            );
            self.promote(standby);
            self.uplink.count(|figures| figures.moves += 1);
        } else {
            // One that has yet to tell everything may be taken for the successor.
            let standby = self.find(Purpose::Standby).and_then(|standby| self.lines.get_mut(&standby));
            standby.into_iter().for_each(|standby| standby.purpose = Purpose::Successor);
        }
    }

    /// Lets the stream in reserve take over from a relay that reaches no server, if its own does; answers with when, if that is to be.
    fn leave_cut_off(&mut self) -> Option<Instant> {
        let (primary, standby) = (self.heard(Purpose::Primary)?, self.heard(Purpose::Standby)?);
        let (line, reserve) = (&self.lines[&primary], &self.lines[&standby]);
        let leave_at = line.cut_off.leave_at(&reserve.cut_off)?;
        if leave_at > Instant::now() {
            return Some(leave_at);
        }
        tracing::info!(
            relay = line.address,
            to = reserve.address,
            "the relay reaches no server, and the stream in reserve takes over"
        );
        self.config.servers.failed(&line.address);
        self.promote(standby);
        self.uplink.count(|figures| figures.moves += 1);
        None
    }

    fn tell(&self) {
        let primary = self.find(Purpose::Primary).is_some_and(|number| self.lines[&number].client.is_some());
        let standby = self.heard(Purpose::Standby).is_some();
        self.uplink.count(|figures| (figures.primary, figures.standby) = (primary, standby));
    }
}
