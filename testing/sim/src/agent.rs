//! An agent: the real `Mirror` with the real `Replica` and its streams, its proxies, and what it keeps on disk.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use starling_agent::remote::mirror::{Mirror, Role, Stream};
use starling_attach::message::{AgentSays, Hello, LEVEL, ServerSays, Welcome};
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
    /// Its connections, the primary and the one in reserve.
    pub links: [Option<Link>; 2],
    /// The beginning of time; only what passes since matters.
    began: Instant,
    /// What is on disk.
    kept: Vec<Bytes>,
    /// What was last heard of in this life of the replica.
    through: Revision,
}

/// The places of [`Agent::links`].
pub(crate) const PRIMARY: usize = 0;
pub(crate) const STANDBY: usize = 1;

/// An agent's end of a connection.
pub(crate) struct Link {
    pub connection: ConnectionId,
    /// Once the server has opened it.
    open: Option<Open>,
    /// Whether everything has been told on it.
    pub has_heard: bool,
}

struct Open {
    stream: Arc<Stream>,
    /// Until there is something to tell the server.
    outgoing: Sleep<()>,
    /// When it has something to tell at the latest, if it has.
    report_at: Option<Instant>,
}

impl Agent {
    pub(crate) fn new(name: &str) -> Self {
        let Record::Node(node) = records::node(name, "10.0.0.1") else { unreachable!("a node") };
        let mirror = mirror(&node, Replica::default());
        Self {
            name: node.name.clone(),
            node,
            mirror,
            proxies: [None, None],
            away: [None, None],
            links: [None, None],
            began: Instant::now(),
            kept: Vec::new(),
            through: Revision(0),
        }
    }

    pub(crate) fn hello(&self, link: usize) -> AgentSays {
        let standby = link == STANDBY;
        AgentSays::Hello(Hello { node: self.name.to_string(), standby, level: LEVEL, ..Hello::default() })
    }

    /// A connection is begun.
    pub(crate) fn dials(&mut self, link: usize, connection: ConnectionId) {
        self.links[link] = Some(Link { connection, open: None, has_heard: false });
    }

    pub(crate) fn is_open(&self, link: usize) -> bool {
        self.links[link].as_ref().is_some_and(|link| link.open.is_some())
    }

    /// Whether everything has been told on a connection.
    pub(crate) fn has_heard(&self, link: usize) -> bool {
        self.links[link].as_ref().is_some_and(|link| link.has_heard)
    }

    pub(crate) fn connection(&self, link: usize) -> Option<ConnectionId> {
        self.links[link].as_ref().map(|link| link.connection)
    }

    /// The stream is open: what to say first.
    pub(crate) fn opened(&mut self, link: usize) -> AgentSays {
        let role = if link == PRIMARY { Role::Primary } else { Role::Standby };
        let (stream, says) = self.mirror.open(role);
        let stream = Arc::new(stream);
        let open = Open { outgoing: waiting(&stream), stream, report_at: None };
        self.links[link].as_mut().expect("it was begun").open = Some(open);
        says
    }

    /// The connection is over.
    pub(crate) fn hang_up(&mut self, link: usize) {
        self.links[link] = None;
    }

    /// The stream in reserve takes the primary's place: what to say first.
    pub(crate) fn promote(&mut self) -> AgentSays {
        self.links.swap(PRIMARY, STANDBY);
        let open = self.links[PRIMARY].as_ref().and_then(|link| link.open.as_ref()).expect("it was heard on");
        open.stream.promote()
    }

    pub(crate) fn begin_anew(&mut self) {
        self.mirror.begin_anew();
        self.through = Revision(0);
    }

    /// Whether there is something to tell the server; asked once for each telling.
    pub(crate) fn is_woken(&mut self, link: usize, now_ms: u64) -> bool {
        let now = self.at(now_ms);
        let Some(open) = self.links[link].as_mut().and_then(|link| link.open.as_mut()) else { return false };
        let woken = open.outgoing.look().is_some();
        if woken {
            open.outgoing = waiting(&open.stream);
        }
        woken || open.report_at.is_some_and(|at| at <= now)
    }

    /// What there is to tell the server now.
    pub(crate) fn outgoing(&mut self, link: usize, now_ms: u64) -> Vec<AgentSays> {
        let now = self.at(now_ms);
        let Some(open) = self.links[link].as_mut().and_then(|link| link.open.as_mut()) else { return Vec::new() };
        let outgoing = open.stream.take_outgoing(now);
        open.report_at = outgoing.next;
        outgoing.says
    }

    /// The server wishes not to be told before then what is in force.
    pub(crate) fn hold_report(&self, now_ms: u64, until_ms: u64) {
        self.mirror.hold_report(self.at(now_ms), self.at(until_ms));
    }

    /// Whether there is something to tell at a later time.
    pub(crate) fn reports_later(&self) -> bool {
        let open = self.links[PRIMARY].as_ref().and_then(|link| link.open.as_ref());
        open.is_some_and(|open| open.report_at.is_some())
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
        self.mirror.sweep();
    }

    /// Writes what it has heard to disk.
    pub(crate) fn keep(&mut self) {
        let replica = self.mirror.replica();
        if replica.through() > Revision(0) {
            let epoch = replica.reached().map_or(0, |reached| reached.epoch);
            let welcome = FromServer::from(ServerSays::Welcome(Welcome { epoch, level: LEVEL, ..Welcome::default() }));
            self.kept = std::iter::once(welcome.to_bytes()).chain(replica.to_frames()).collect();
        }
    }

    /// Ends, and comes back with what is on disk.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.links = [None, None];
        self.proxies = [None, None];
        // What these have in force an agent that restarts does not know.
        self.away = [None, None];
        self.mirror = mirror(&self.node, self.on_disk()?);
        self.through = self.mirror.replica().through();
        Ok(())
    }

    fn on_disk(&self) -> Result<Replica> {
        Replica::from_frames(self.kept.iter().cloned()).context("what is on disk cannot be read")
    }

    /// Hears what a server says on a connection; whether something was new.
    pub(crate) fn hear(&mut self, link: usize, says: &ServerSays) -> Result<bool, ReplicaError> {
        let Some(link) = &mut self.links[link] else { return Ok(false) };
        let Some(open) = &link.open else { return Ok(false) };
        let heard = open.stream.handle(says)?;
        link.has_heard |= matches!(says, ServerSays::Through(_));
        Ok(heard.is_some())
    }

    /// It has what the catalog was at one moment, no part of what came later, and has not gone back.
    pub(crate) fn check_heard(&mut self, store: &Store) -> Result<()> {
        let replica = self.mirror.replica();
        let through = replica.through();
        ensure!(through >= self.through, "{} goes back from {} to {through}", self.name, self.through);
        self.through = through;
        let then = store.at(through).with_context(|| format!("{} heard of {through}", self.name))?;
        for subject in replica.subjects().filter(|subject| replica.knows(subject)) {
            let (seen, should) = (Seen::of(&*replica, subject), Seen::of(then, subject));
            ensure!(seen == should, "{subject} of {} at {through} is {seen:?}, and was {should:?}", self.name);
        }
        Ok(())
    }

    /// What is reported as applied through a revision is in force at every proxy.
    pub(crate) fn check_applied(&self, through: Revision, store: &Store) -> Result<()> {
        for (subject, seen) in
            self.away.iter().flatten().filter_map(|away| away.in_force.as_ref()).flat_map(|plan| &plan.seen)
        {
            let applied = store.showed_each(subject, seen, through);
            ensure!(applied, "{} reports {through}, and {subject} is in force, away, as {seen:?}", self.name);
        }
        for proxy in self.proxies.iter().flatten().filter(|proxy| proxy.is_served()) {
            let Some(in_force) = proxy.in_force() else { continue };
            for (subject, seen) in in_force {
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

fn waiting(stream: &Arc<Stream>) -> Sleep<()> {
    let stream = Arc::clone(stream);
    Sleep::new(async move { stream.outgoing().await })
}
