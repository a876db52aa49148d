//! An agent: the real `Mirror` with the real `Replica`, its proxies, and what it keeps on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use starling_agent::remote::mirror::Mirror;
use starling_attach::message::{AgentSays, Hello, ServerSays, Welcome, decode_subject};
use starling_attach::{FromServer, Replica, ReplicaError};
use starling_catalog::Subject;
use starling_model::{InstanceKey, IntentionSubject, Node, NodeName, Record, Revision};
use tokio::time::Instant;

use crate::changes::{self, SIDECARS, records};
use crate::connection::ConnectionId;
use crate::proxy::{Plan, Proxy, Sleep};
use crate::seen::Seen;
use crate::store::Store;

/// A proxy whose stream has ended.
struct Away {
    reads: BTreeSet<Subject>,
    in_force: Option<Plan>,
}

pub(crate) struct Agent {
    pub name: NodeName,
    node: Node,
    pub mirror: Arc<Mirror>,
    pub proxies: [Option<Proxy>; SIDECARS.len()],
    /// What proxies have in force whose streams have ended: they run on with it.
    away: [Option<Away>; SIDECARS.len()],
    /// The connection of the moment.
    pub connection: Option<ConnectionId>,
    /// Whether the server has opened the stream.
    pub is_open: bool,
    /// Until there is something to tell the server.
    outgoing: Sleep<()>,
    /// When it has something to tell at the latest, if it has.
    report_at: Option<Instant>,
    /// The beginning of time; only what passes since matters.
    began: Instant,
    /// What is on disk.
    kept: Vec<Bytes>,
    /// Forgotten since the connection began: a `Through` does not speak for these.
    forgotten: BTreeSet<Subject>,
    /// What was last heard of in this life of the replica.
    through: Revision,
    /// Of what more was heard than the last `Through` spoke for, as of which revision.
    ahead: BTreeMap<Subject, Revision>,
}

impl Agent {
    pub(crate) fn new(name: &str) -> Self {
        let Record::Node(node) = records::node(name, "10.0.0.1") else { unreachable!("a node") };
        let mirror = mirror(&node, Replica::default());
        Self {
            name: node.name.clone(),
            node,
            outgoing: waiting(&mirror),
            mirror,
            proxies: [None, None],
            away: [None, None],
            connection: None,
            is_open: false,
            report_at: None,
            began: Instant::now(),
            kept: Vec::new(),
            forgotten: BTreeSet::new(),
            through: Revision(0),
            ahead: BTreeMap::new(),
        }
    }

    pub(crate) fn hello(&self) -> AgentSays {
        AgentSays::Hello(Hello { node: self.name.to_string(), version: String::new() })
    }

    /// The stream is open: what to say first.
    pub(crate) fn opened(&mut self) -> AgentSays {
        self.is_open = true;
        self.forgotten.clear();
        self.mirror.resume()
    }

    /// The connection is over.
    pub(crate) fn hang_up(&mut self) {
        self.connection = None;
        self.is_open = false;
        self.report_at = None;
    }

    pub(crate) fn begin_anew(&mut self) {
        self.mirror.begin_anew();
        self.through = Revision(0);
        self.ahead.clear();
    }

    /// Whether there is something to tell the server; asked once for each telling.
    pub(crate) fn is_woken(&mut self, now_ms: u64) -> bool {
        let woken = self.outgoing.look().is_some();
        if woken {
            self.outgoing = waiting(&self.mirror);
        }
        woken || self.report_at.is_some_and(|at| at <= self.at(now_ms))
    }

    /// What there is to tell the server now.
    pub(crate) fn outgoing(&mut self, now_ms: u64) -> Vec<AgentSays> {
        let outgoing = self.mirror.take_outgoing(self.at(now_ms));
        self.report_at = outgoing.next;
        outgoing.says
    }

    /// The server wishes not to be told before then what is in force.
    pub(crate) fn hold_report(&self, now_ms: u64, until_ms: u64) {
        self.mirror.hold_report(self.at(now_ms), self.at(until_ms));
    }

    /// Whether there is something to tell at a later time.
    pub(crate) fn reports_later(&self) -> bool {
        self.is_open && self.report_at.is_some()
    }

    fn at(&self, now_ms: u64) -> Instant {
        self.began + Duration::from_millis(now_ms)
    }

    /// Its own registrations are now those of these proxies.
    pub(crate) fn register(&mut self, which: &[usize]) {
        let instances = which.iter().map(|which| changes::proxy(self.name.as_str(), SIDECARS[*which])).collect();
        // Only who plans asks what it touched; proxies are woken by the mirror.
        let _ = self.mirror.set_local(&self.node, instances);
        let registered = |away: usize| which.contains(&away);
        self.away.iter_mut().enumerate().filter(|(which, _)| !registered(*which)).for_each(|(_, away)| *away = None);
    }

    pub(crate) fn start_proxy(&mut self, which: usize, reads: BTreeSet<Subject>) {
        let key = InstanceKey { node: self.name.clone(), id: SIDECARS[which].parse().expect("an identifier") };
        // The later stream of a proxy may be open before the earlier is found to have ended.
        let mut proxy = Proxy::new(&self.mirror, &key, reads);
        let earlier = self.proxies[which].as_ref().and_then(Proxy::plan_in_force);
        proxy.runs_on_with(self.away[which].take().map_or(earlier, |away| away.in_force));
        self.proxies[which] = Some(proxy);
    }

    /// A proxy's stream ends; the proxy does not.
    pub(crate) fn end_proxy(&mut self, which: usize) {
        if let Some(proxy) = self.proxies[which].take().filter(Proxy::is_served) {
            self.away[which] = Some(Away { reads: proxy.subjects().clone(), in_force: proxy.plan_in_force() });
        }
    }

    /// Proxies that are away come back.
    pub(crate) fn bring_back_proxies(&mut self) {
        for which in 0..self.away.len() {
            if let Some(away) = &self.away[which] {
                self.start_proxy(which, away.reads.clone());
            }
        }
    }

    /// Forgets what nobody wants any more.
    pub(crate) fn sweep(&mut self) {
        let before: BTreeSet<_> = self.mirror.replica().subjects().cloned().collect();
        self.mirror.sweep();
        let replica = self.mirror.replica();
        let after: BTreeSet<_> = replica.subjects().collect();
        self.forgotten.extend(before.iter().filter(|subject| !after.contains(subject)).cloned());
    }

    /// Writes what it has heard to disk.
    pub(crate) fn keep(&mut self) {
        let replica = self.mirror.replica();
        if replica.through() > Revision(0) {
            let epoch = replica.reached().map_or(0, |reached| reached.epoch);
            let welcome = FromServer::from(ServerSays::Welcome(Welcome { epoch, ..Welcome::default() }));
            self.kept = std::iter::once(welcome.to_bytes()).chain(replica.to_frames()).collect();
        }
    }

    /// Ends, and comes back with what is on disk.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.hang_up();
        self.proxies = [None, None];
        // What these have in force an agent that restarts does not know.
        self.away = [None, None];
        self.mirror = mirror(&self.node, self.on_disk()?);
        self.outgoing = waiting(&self.mirror);
        self.forgotten.clear();
        self.ahead.clear();
        self.through = self.mirror.replica().through();
        Ok(())
    }

    fn on_disk(&self) -> Result<Replica> {
        Replica::from_frames(self.kept.iter().cloned()).context("what is on disk cannot be read")
    }

    /// Hears what a server says; whether it was a `Through`.
    pub(crate) fn hear(&mut self, says: &ServerSays) -> Result<bool, ReplicaError> {
        let heard = match says {
            ServerSays::Update(update) => Some((update.subject.as_ref(), update.revision)),
            ServerSays::Whole(whole) => Some((whole.subject.as_ref(), whole.revision)),
            ServerSays::Welcome(_) | ServerSays::Through(_) => None,
        };
        if let Some((Some(subject), revision)) = heard {
            let newest = self.ahead.entry(decode_subject(subject)?).or_default();
            *newest = (*newest).max(Revision(revision));
        }
        Ok(self.mirror.handle(says)?.is_some())
    }

    /// Everything up to its `Through` is heard: it has what the catalog was then, and has not gone back.
    pub(crate) fn check_heard(&mut self, store: &Store) -> Result<()> {
        let replica = self.mirror.replica();
        let through = replica.through();
        ensure!(through >= self.through, "{} goes back from {} to {through}", self.name, self.through);
        self.through = through;
        // A server that is behind another may have spoken; what it has not yet is not taken back.
        self.ahead.retain(|_, revision| *revision > through);
        let then = store.at(through).with_context(|| format!("{} heard of {through}", self.name))?;
        for subject in replica.subjects().filter(|subject| replica.knows(subject)) {
            let seen = Seen::of(&*replica, subject);
            if self.forgotten.contains(subject) {
                // Late perhaps, but never a part.
                ensure!(store.showed(subject, &seen, Revision(0)), "{subject} was never as {} has it", self.name);
            } else if self.ahead.contains_key(subject) {
                let is_later = store.showed_each(subject, &seen, through);
                ensure!(is_later, "{subject} of {} at {through} is earlier: {seen:?}", self.name);
            } else {
                let should = Seen::of(then, subject);
                ensure!(seen == should, "{subject} of {} at {through} is {seen:?}, and was {should:?}", self.name);
            }
        }
        Ok(())
    }

    /// What is reported as applied through a revision is in force at every proxy.
    pub(crate) fn check_applied(&self, through: Revision, store: &Store) -> Result<()> {
        for (subject, seen) in
            self.away.iter().flatten().filter_map(|away| away.in_force.as_ref()).flat_map(|plan| &plan.seen)
        {
            let applied = self.forgotten.contains(subject) || store.showed_each(subject, seen, through);
            ensure!(applied, "{} reports {through}, and {subject} is in force, away, as {seen:?}", self.name);
        }
        for proxy in self.proxies.iter().flatten().filter(|proxy| proxy.is_served()) {
            let Some(in_force) = proxy.in_force() else { continue };
            for (subject, seen) in in_force.filter(|(subject, _)| !self.forgotten.contains(subject)) {
                let applied = store.showed_each(subject, seen, through);
                ensure!(applied, "{} reports {through}, and {subject} is in force as {seen:?}", self.name);
            }
        }
        Ok(())
    }

    /// Has everything, and so have its proxies.
    pub(crate) fn check_current(&self, store: &Store) -> Result<()> {
        let replica = self.mirror.replica();
        let now = store.at(store.head()).context("the newest")?;
        for subject in replica.subjects() {
            ensure!(replica.knows(subject), "{} never heard of {subject}", self.name);
            let (seen, should) = (Seen::of(&*replica, subject), Seen::of(now, subject));
            ensure!(seen == should, "in the end {subject} of {} is {seen:?}, not {should:?}", self.name);
        }
        for proxy in self.proxies.iter().flatten().filter(|proxy| proxy.is_served()) {
            for subject in proxy.subjects() {
                ensure!(replica.knows(subject), "{subject} is not wanted by {} for its proxy", self.name);
            }
            let in_force = proxy.in_force().context("a proxy has nothing in force in the end")?;
            for (subject, seen) in in_force {
                let should = Seen::of(now, subject);
                ensure!(*seen == should, "in the end {subject} is in force as {seen:?}, not {should:?}");
            }
        }
        Ok(())
    }
}

fn mirror(node: &Node, replica: Replica) -> Arc<Mirror> {
    let own = [
        Subject::Roots,
        Subject::ProxyDefaults,
        Subject::Intentions(IntentionSubject::Any),
        Subject::Node(node.name.clone()),
    ];
    Mirror::new(replica, own)
}

fn waiting(mirror: &Arc<Mirror>) -> Sleep<()> {
    let mirror = Arc::clone(mirror);
    Sleep::new(async move { mirror.outgoing().await })
}
