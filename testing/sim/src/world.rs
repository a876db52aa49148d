//! Everything together: one store, its servers, the agents, and every connection that is not over.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use starling_attach::FromServer;
use starling_attach::message::AgentSays;
use starling_catalog::Snapshot;
use starling_model::Revision;

use crate::agent::Agent;
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
            Step::Dials(agent, server, room) => self.dial(*agent, *server, *room),
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
                    self.agent_reads(*agent)?;
                }
            }
            Step::AgentTells(agent) => {
                if self.agents[*agent].is_open && self.agents[*agent].is_woken(self.now_ms) {
                    self.agent_tells(*agent)?;
                }
            }
            Step::AgentGivesUp(agent) => self.agent_lets_go(*agent),
            Step::Breaks(nth, up, down) => {
                if let Some(id) = self.nth(*nth, |connection| !connection.cut)
                    && let Some(connection) = self.connections.get_mut(&id)
                {
                    connection.cut(*up, *down);
                }
            }
            Step::Keeps(agent) => self.agents[*agent].keep(),
            Step::AgentRestarts(agent) => {
                self.agent_lets_go(*agent);
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
        let (Some(snapshot), Some(changes)) = (self.store.at(next), self.store.changes(next)) else { return Ok(false) };
        self.servers[server].publish(snapshot, changes, self.now_ms)?;
        Ok(true)
    }

    fn reload(&mut self, server: usize) -> Result<()> {
        let fresh = self.store.load();
        let server = &mut self.servers[server];
        if fresh.revision() > server.snapshot.revision() {
            let changes = server.snapshot.difference(&fresh);
            server.publish(&fresh, &changes, self.now_ms)?;
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

    fn dial(&mut self, agent: usize, server: usize, room: usize) {
        if self.agents[agent].connection.is_some() {
            return;
        }
        self.dialled += 1;
        let hello = self.agents[agent].hello();
        self.connections.insert(self.dialled, Connection::new(agent, server, room, hello));
        self.agents[agent].connection = Some(self.dialled);
    }

    fn server_reads(&mut self, nth: usize) -> Result<()> {
        let has_some = |connection: &Connection| !connection.up.is_empty() && !connection.server_gone;
        let Some(id) = self.nth(nth, has_some) else { return Ok(()) };
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let Some(says) = connection.up.pop_front() else { return Ok(()) };
        let server = &mut self.servers[connection.server];
        let Some(stream) = connection.stream else {
            connection.stream = Some(server.attach(&self.agents[connection.agent].name));
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

    fn agent_lets_go(&mut self, agent: usize) {
        let connection = self.agents[agent].connection.and_then(|id| self.connections.get_mut(&id));
        if let Some(connection) = connection {
            connection.agent_gone = true;
            connection.down.clear();
        }
        self.agents[agent].hang_up();
    }

    /// An agent reads what comes next; whether anything does.
    fn agent_reads(&mut self, agent: usize) -> Result<bool> {
        let connection = self.agents[agent].connection.and_then(|id| self.connections.get_mut(&id));
        let Some(connection) = connection else { return Ok(false) };
        let Some(down) = connection.down.pop_front() else { return Ok(false) };
        let is_asked_to_wait = connection.asks_to_wait();
        match down {
            Down::Opened => {
                let resume = self.agents[agent].opened();
                self.say(agent, resume);
            }
            Down::Frame(frame) => {
                let says = FromServer::from_bytes(frame)?;
                match self.agents[agent].hear(&says) {
                    Ok(false) => {}
                    Ok(true) => {
                        self.agents[agent].check_heard(&self.store)?;
                        if is_asked_to_wait {
                            self.agents[agent].hold_report(self.now_ms, self.now_ms + HOLD_MS);
                        }
                    }
                    Err(error) => {
                        // What the product does with it, and the only error that an honest server is the cause of.
                        anyhow::ensure!(matches!(error, starling_attach::ReplicaError::Back { .. }), "{error}");
                        self.agent_lets_go(agent);
                        self.agents[agent].begin_anew();
                        return Ok(true);
                    }
                }
                self.agent_tells(agent)?;
            }
            Down::End(end) => {
                self.agent_lets_go(agent);
                if matches!(end, End::Anew) {
                    self.agents[agent].begin_anew();
                }
            }
        }
        Ok(true)
    }

    fn agent_tells(&mut self, agent: usize) -> Result<()> {
        for says in self.agents[agent].outgoing(self.now_ms) {
            if let AgentSays::Applied(applied) = &says {
                self.agents[agent].check_applied(Revision(applied.through), &self.store)?;
            }
            self.say(agent, says);
        }
        Ok(())
    }

    fn say(&mut self, agent: usize, says: AgentSays) {
        let connection = self.agents[agent].connection.and_then(|id| self.connections.get_mut(&id));
        if let Some(connection) = connection {
            connection.say(says);
        }
    }

    /// As in the product this is not done while no server is there to bring back what goes.
    fn sweep(&mut self, agent: usize) -> Result<()> {
        if self.agents[agent].is_open {
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
            let current = self.agents[agent].connection.and_then(|id| self.connections.get(&id));
            if current.is_some_and(|connection| connection.cut) {
                self.agent_lets_go(agent);
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
            if self.agents[agent].connection.is_none() {
                self.dial(agent, agent % SERVERS, 0);
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
            while self.agent_reads(agent)? {
                busy = true;
            }
            for proxy in self.agents[agent].proxies.iter_mut().flatten() {
                proxy.is_mended();
                while proxy.step()? || proxy.apply() {
                    busy = true;
                }
            }
            if self.agents[agent].is_open && self.agents[agent].is_woken(self.now_ms) {
                self.agent_tells(agent)?;
                busy = true;
            }
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
                connected == here.len(),
                "server {number} has {connected} connections, and {here:?} attached"
            );
            server.check_settled().with_context(|| format!("server {number}"))?;
        }
        Ok(())
    }
}
