//! Everything together: one store, its servers, the agents, and every connection that is not over.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use starling_attach::message::AgentSays;
use starling_attach::{FromServer, ReplicaError};
use starling_catalog::Snapshot;
use starling_model::Revision;

use crate::agent::{Agent, PRIMARY, STANDBY};
use crate::changes::NODES;
use crate::connection::{Connection, ConnectionId, Down, End};
use crate::server::{Server, Taken};
use crate::step::{AGENTS, SERVERS, Step};
use crate::store::Store;

/// Rounds in which everything is healed; a few are enough.
const HEALING_ROUNDS_MAX: usize = 60;

/// How long an agent waits with its report that is asked to.
const HOLD_MS: u64 = 100;

/// Servers, agents and what is between them.
pub struct World {
    store: Store,
    servers: Vec<Server>,
    agents: Vec<Agent>,
    connections: BTreeMap<ConnectionId, Connection>,
    dialled: usize,
    now_ms: u64,
}

impl Default for World {
    fn default() -> Self {
        let store = Store::new();
        let servers = (0..SERVERS).map(|_| Server::new(Snapshot::default(), store.lineage())).collect();
        let agents = NODES[..AGENTS].iter().map(|node| Agent::new(node)).collect();
        Self { store, servers, agents, connections: BTreeMap::new(), dialled: 0, now_ms: 0 }
    }
}

impl World {
    /// Takes one step.
    ///
    /// # Errors
    /// What is wrong after it.
    pub fn take(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Commit(changes) => self.store.commit(changes.clone()),
            Step::Follows(server, count) => {
                for _ in 0..*count {
                    self.follow(*server)?;
                }
            }
            Step::Reloads(server) => self.reload(*server)?,
            Step::ServerRestarts(server) => self.restart_server(*server),
            Step::GivesUp(server, agent) => self.servers[*server].give_up(&self.agents[*agent].name),
            Step::SetBack(by) => self.set_back(*by),
            Step::Dials(agent, server, room) => self.dial(*agent, PRIMARY, *server, *room),
            Step::DialsStandby(agent, server, room) => {
                if self.agents[*agent].has_heard(PRIMARY) {
                    self.dial(*agent, STANDBY, *server, *room);
                }
            }
            Step::ServerReads(nth) => self.server_reads(*nth)?,
            Step::ServerSends(nth) => {
                if let Some(id) = self.nth(*nth, |connection| connection.stream.is_some() && !connection.server_gone) {
                    self.server_sends(id)?;
                }
            }
            Step::ServerNotices(nth) => {
                let is_dead =
                    |connection: &Connection| !connection.server_gone && (connection.cut || connection.agent_gone);
                if let Some(id) = self.nth(*nth, is_dead) {
                    self.server_lets_go(id, End::Lost);
                }
            }
            Step::AgentReads(agent, count) => {
                for _ in 0..*count {
                    self.agent_reads(*agent, PRIMARY)?;
                }
            }
            Step::StandbyReads(agent, count) => {
                for _ in 0..*count {
                    self.agent_reads(*agent, STANDBY)?;
                }
            }
            Step::AgentTells(agent) => {
                self.agent_tells_if_woken(*agent)?;
            }
            Step::AgentGivesUp(agent) => self.primary_is_lost(*agent),
            Step::StandbyEnds(agent) => self.agent_lets_go(*agent, STANDBY),
            Step::Breaks(nth, up, down) => {
                if let Some(id) = self.nth(*nth, |connection| !connection.cut)
                    && let Some(connection) = self.connections.get_mut(&id)
                {
                    connection.cut(*up, *down);
                }
            }
            Step::Keeps(agent) => self.agents[*agent].keep(),
            Step::AgentRestarts(agent) => {
                self.agent_lets_go(*agent, STANDBY);
                self.agent_lets_go(*agent, PRIMARY);
                self.agents[*agent].restart()?;
            }
            Step::Sweeps(agent) => self.sweep(*agent)?,
            Step::Passes(ms) => self.now_ms += ms,
            Step::Registers(..)
            | Step::ProxyStarts(..)
            | Step::ProxyEnds(..)
            | Step::ProxyReads(..)
            | Step::ProxyPlans(..)
            | Step::ProxyApplies(..)
            | Step::ProxyRefuses(..) => self.take_on_node(step)?,
        }
        self.connections.retain(|_, connection| !connection.is_over());
        Ok(())
    }

    /// Takes a step that concerns one node's proxies only.
    #[expect(clippy::wildcard_enum_match_arm, reason = "whoever calls names each step")]
    fn take_on_node(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Registers(agent, which) => self.agents[*agent].register(which),
            Step::ProxyStarts(agent, proxy, reads) => self.agents[*agent].start_proxy(*proxy, reads.clone()),
            Step::ProxyEnds(agent, proxy) => self.agents[*agent].end_proxy(*proxy),
            Step::ProxyReads(agent, proxy, reads) => {
                if let Some(proxy) = &mut self.agents[*agent].proxies[*proxy] {
                    proxy.read(reads.clone());
                }
            }
            Step::ProxyPlans(agent, proxy, stages) => {
                if let Some(proxy) = &mut self.agents[*agent].proxies[*proxy] {
                    for _ in 0..*stages {
                        proxy.step()?;
                    }
                }
            }
            Step::ProxyApplies(agent, proxy) => {
                if let Some(proxy) = &mut self.agents[*agent].proxies[*proxy] {
                    proxy.apply();
                }
            }
            Step::ProxyRefuses(agent, proxy) => {
                if let Some(proxy) = &mut self.agents[*agent].proxies[*proxy] {
                    proxy.refuse();
                }
            }
            other => anyhow::bail!("{other} is no step of a node"),
        }
        Ok(())
    }

    /// What is under way is lost, too.
    fn set_back(&mut self, by: usize) {
        self.store.set_back(by);
        let is_end = |down: &Down| matches!(down, Down::End(_));
        self.connections.values_mut().for_each(|connection| connection.down.retain(is_end));
        (0..SERVERS).for_each(|server| self.restart_server(server));
    }

    /// A server hears of the next transaction; whether there is one.
    fn follow(&mut self, server: usize) -> Result<bool> {
        let next = Revision(self.servers[server].snapshot.revision().0 + 1);
        let Some(changes) = self.store.changes(next) else { return Ok(false) };
        let applied = self.servers[server].snapshot.apply(next, changes);
        self.servers[server].publish(applied, changes, self.now_ms)?;
        Ok(true)
    }

    fn reload(&mut self, server: usize) -> Result<()> {
        let fresh = self.store.load();
        let server = &mut self.servers[server];
        if fresh.revision() > server.snapshot.revision() {
            let (applied, changes) = server.snapshot.catch_up(&fresh);
            server.publish(applied, &changes, self.now_ms)?;
        }
        Ok(())
    }

    fn restart_server(&mut self, server: usize) {
        self.servers[server] = Server::new(self.store.load(), self.store.lineage());
        for connection in self.connections.values_mut().filter(|connection| connection.server == server) {
            if !connection.server_gone {
                connection.server_ends(End::Lost);
            }
        }
    }

    /// The nth connection of which `is` holds, counted round.
    fn nth(&self, nth: usize, is: impl Fn(&Connection) -> bool) -> Option<ConnectionId> {
        let some: Vec<_> =
            self.connections.iter().filter(|(_, connection)| is(connection)).map(|(id, _)| *id).collect();
        some.get(nth.checked_rem(some.len())?).copied()
    }

    fn dial(&mut self, agent: usize, link: usize, server: usize, room: usize) {
        if self.agents[agent].connection(link).is_some() {
            return;
        }
        self.dialled += 1;
        let hello = self.agents[agent].hello(link);
        self.connections.insert(self.dialled, Connection::new(agent, server, room, hello));
        self.agents[agent].dials(link, self.dialled);
    }

    fn server_reads(&mut self, nth: usize) -> Result<()> {
        let has_some = |connection: &Connection| !connection.up.is_empty() && !connection.server_gone;
        let Some(id) = self.nth(nth, has_some) else { return Ok(()) };
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let Some(says) = connection.up.pop_front() else { return Ok(()) };
        let server = &mut self.servers[connection.server];
        let Some(stream) = connection.stream else {
            let standby = matches!(&says, AgentSays::Hello(hello) if hello.standby);
            connection.stream = Some(server.attach(&self.agents[connection.agent].name, standby));
            connection.send([Down::Opened, Down::Frame(server.welcome())]);
            return Ok(());
        };
        if let Some(end) = server.hear(stream, says)? {
            self.server_lets_go(id, end);
        }
        Ok(())
    }

    fn server_sends(&mut self, id: ConnectionId) -> Result<()> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let Some(stream) = connection.stream else { return Ok(()) };
        if connection.down.len() > connection.room {
            return Ok(());
        }
        match self.servers[connection.server].take(stream, self.now_ms)? {
            Taken::Frames(frames) => connection.send(frames.into_iter().map(Down::Frame)),
            Taken::Nothing => {}
            Taken::Superseded => self.server_lets_go(id, End::Lost),
        }
        Ok(())
    }

    fn server_lets_go(&mut self, id: ConnectionId, end: End) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(stream) = connection.stream {
            self.servers[connection.server].leave(stream);
        }
        connection.server_ends(end);
    }

    fn agent_lets_go(&mut self, agent: usize, link: usize) {
        let connection = self.agents[agent].connection(link).and_then(|id| self.connections.get_mut(&id));
        if let Some(connection) = connection {
            connection.agent_gone = true;
            connection.down.clear();
        }
        self.agents[agent].hang_up(link);
    }

    /// What is in reserve takes its place if everything has been told there; otherwise it is given up, too, as
    /// `programs/agent/src/remote/uplink/keeper.rs` does.
    fn primary_is_lost(&mut self, agent: usize) {
        self.agent_lets_go(agent, PRIMARY);
        if self.agents[agent].has_heard(STANDBY) {
            let says = self.agents[agent].promote();
            self.say(agent, PRIMARY, says);
        } else {
            self.agent_lets_go(agent, STANDBY);
        }
    }

    /// An agent reads what comes next on a connection; whether anything does.
    fn agent_reads(&mut self, agent: usize, link: usize) -> Result<bool> {
        let connection = self.agents[agent].connection(link).and_then(|id| self.connections.get_mut(&id));
        let Some(connection) = connection else { return Ok(false) };
        let Some(down) = connection.down.pop_front() else { return Ok(false) };
        let is_asked_to_wait = connection.asks_to_wait();
        match down {
            Down::Opened => {
                let resume = self.agents[agent].opened(link);
                self.say(agent, link, resume);
            }
            Down::Frame(frame) => {
                let says = FromServer::from_bytes(frame)?;
                match self.agents[agent].hear(link, &says) {
                    Ok(false) => {}
                    Ok(true) => {
                        self.agents[agent].check_heard(&self.store)?;
                        if is_asked_to_wait {
                            self.agents[agent].hold_report(self.now_ms, self.now_ms + HOLD_MS);
                        }
                    }
                    // What the product does with it, and the only error that an honest server is the cause of.
                    Err(ReplicaError::Elsewhere { .. }) if link == STANDBY => {
                        self.agent_lets_go(agent, link);
                        return Ok(true);
                    }
                    Err(error) => anyhow::bail!("{error}"),
                }
                self.agent_tells(agent)?;
            }
            Down::End(end) if link == PRIMARY => {
                self.primary_is_lost(agent);
                // A server that has another past is not believed while another is heard.
                if matches!(end, End::Anew) && self.agents[agent].connection(PRIMARY).is_none() {
                    self.agents[agent].begin_anew();
                }
            }
            Down::End(_) => self.agent_lets_go(agent, link),
        }
        Ok(true)
    }

    /// Whether there was anything.
    fn agent_tells_if_woken(&mut self, agent: usize) -> Result<bool> {
        let now_ms = self.now_ms;
        let woken = [PRIMARY, STANDBY].map(|link| self.agents[agent].is_woken(link, now_ms));
        if woken.contains(&true) {
            self.agent_tells(agent)?;
        }
        Ok(woken.contains(&true))
    }

    fn agent_tells(&mut self, agent: usize) -> Result<()> {
        for link in [PRIMARY, STANDBY] {
            for says in self.agents[agent].outgoing(link, self.now_ms) {
                if let AgentSays::Applied(applied) = &says {
                    anyhow::ensure!(link == PRIMARY, "a server in reserve is told what is in force");
                    self.agents[agent].check_applied(Revision(applied.through), &self.store)?;
                }
                self.say(agent, link, says);
            }
        }
        Ok(())
    }

    fn say(&mut self, agent: usize, link: usize, says: AgentSays) {
        let connection = self.agents[agent].connection(link).and_then(|id| self.connections.get_mut(&id));
        if let Some(connection) = connection {
            connection.say(says);
        }
    }

    /// As in the product this is not done while no server is there to bring back what goes.
    fn sweep(&mut self, agent: usize) -> Result<()> {
        if self.agents[agent].is_open(PRIMARY) {
            self.agents[agent].sweep();
            self.agent_tells(agent)?;
        }
        Ok(())
    }

    /// Whatever is broken is mended, everything arrives, and everybody does what is to be done.
    ///
    /// # Errors
    /// What is wrong after it.
    pub fn heal(&mut self) -> Result<()> {
        for agent in 0..AGENTS {
            self.agents[agent].bring_back_proxies();
            let is_cut = |world: &Self, link| {
                let connection = world.agents[agent].connection(link).and_then(|id| world.connections.get(&id));
                connection.is_some_and(|connection: &Connection| connection.cut)
            };
            if is_cut(self, STANDBY) {
                self.agent_lets_go(agent, STANDBY);
            }
            if is_cut(self, PRIMARY) {
                self.primary_is_lost(agent);
            }
        }
        for _ in 0..HEALING_ROUNDS_MAX {
            if !self.heal_some()? {
                return self.check_healed();
            }
        }
        anyhow::bail!("it does not come to rest")
    }

    /// One round; whether anything happened.
    fn heal_some(&mut self) -> Result<bool> {
        let mut busy = false;
        for server in 0..SERVERS {
            while self.follow(server)? {
                busy = true;
            }
        }
        for id in self.connections.keys().copied().collect::<Vec<_>>() {
            let Some(connection) = self.connections.get(&id) else { continue };
            if connection.agent_gone && !connection.server_gone {
                self.server_lets_go(id, End::Lost);
            }
        }
        for agent in 0..AGENTS {
            if self.agents[agent].connection(PRIMARY).is_none() {
                self.dial(agent, PRIMARY, agent % SERVERS, 0);
                busy = true;
            }
            // One agent ends with a single stream.
            if agent > 0 && self.agents[agent].has_heard(PRIMARY) && self.agents[agent].connection(STANDBY).is_none() {
                self.dial(agent, STANDBY, (agent + 1) % SERVERS, 0);
                busy = true;
            }
        }
        while self.connections.values().any(|connection| !connection.up.is_empty() && !connection.server_gone) {
            self.server_reads(0)?;
            busy = true;
        }
        for id in self.connections.keys().copied().collect::<Vec<_>>() {
            if self.connections[&id].stream.is_some() && !self.connections[&id].server_gone {
                self.server_sends(id)?;
            }
        }
        for agent in 0..AGENTS {
            while self.agent_reads(agent, STANDBY)? || self.agent_reads(agent, PRIMARY)? {
                busy = true;
            }
            for proxy in self.agents[agent].proxies.iter_mut().flatten() {
                proxy.is_mended();
                while proxy.step()? || proxy.apply() {
                    busy = true;
                }
            }
            busy |= self.agent_tells_if_woken(agent)?;
        }
        // As late as anybody was asked to report.
        busy |= self.agents.iter().any(Agent::reports_later);
        self.now_ms += HOLD_MS;
        self.connections.retain(|_, connection| !connection.is_over());
        Ok(busy)
    }

    fn check_healed(&mut self) -> Result<()> {
        for agent in &self.agents {
            agent.check_current(&self.store).with_context(|| format!("agent {}", agent.name))?;
        }
        for (number, server) in self.servers.iter_mut().enumerate() {
            let here = server.here();
            for agent in self.agents.iter().filter(|agent| !here.contains(&agent.name)) {
                server.give_up(&agent.name);
            }
            let of_here = |connection: &&Connection| connection.server == number && !connection.server_gone;
            let connected = self.connections.values().filter(of_here).count();
            anyhow::ensure!(
                connected == server.open(),
                "server {number} has {connected} connections, and {} streams, of {here:?}",
                server.open()
            );
            server.check_settled().with_context(|| format!("server {number}"))?;
        }
        Ok(())
    }
}
