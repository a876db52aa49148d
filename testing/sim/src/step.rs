//! What may happen, and what does by a seed. Steps are chosen before the run and name what they concern by position, so that
//! any of them can be left out and the rest still makes a run; one that finds nothing to do does nothing.

use std::collections::BTreeSet;
use std::fmt;

use fastrand::Rng;
use starling_catalog::Subject;
use starling_model::{Change, IntentionSubject, ServiceName};

use crate::changes::{SIDECARS, Writer};

/// Servers of one store; the second may be behind the first.
pub const SERVERS: usize = 2;

/// Agents.
pub const AGENTS: usize = 3;

/// Steps of a run before everything heals.
const STEPS: std::ops::Range<usize> = 20..140;

/// Milliseconds that pass at once: now and then more than a frame is remembered.
const PASS_MS_MAX: u64 = 400_000;

/// Something that happens.
#[derive(Clone)]
pub enum Step {
    /// A transaction is durable.
    Commit(Vec<Change>),
    /// A server hears of so many transactions.
    Follows(usize, usize),
    /// A server has fallen behind its store, and reads all of it anew.
    Reloads(usize),
    /// A server ends and comes back with what is stored.
    ServerRestarts(usize),
    /// The grace of an agent that is away is over at a server.
    GivesUp(usize, usize),
    /// The store is replaced by a copy that is so many revisions older.
    SetBack(usize),
    /// An agent that has no connection opens one to a server; the second number is how much may be under way to it.
    Dials(usize, usize, usize),
    /// The same for the connection in reserve, if the agent has heard everything over its first.
    DialsStandby(usize, usize, usize),
    /// A server reads a frame, on the nth connection that has one.
    ServerReads(usize),
    /// A server puts on the nth connection what there is room for.
    ServerSends(usize),
    /// A server finds that the nth connection is dead.
    ServerNotices(usize),
    /// An agent reads so many frames.
    AgentReads(usize, usize),
    /// The same on the connection in reserve.
    StandbyReads(usize, usize),
    /// An agent says what it has to say.
    AgentTells(usize),
    /// An agent gives its connection up, dead or not; the one in reserve takes its place.
    AgentGivesUp(usize),
    /// An agent gives its connection in reserve up.
    StandbyEnds(usize),
    /// The nth connection breaks unnoticed; so many frames still arrive each way.
    Breaks(usize, usize, usize),
    /// An agent writes what it has heard to disk.
    Keeps(usize),
    /// An agent ends and comes back with what is on disk.
    AgentRestarts(usize),
    /// An agent forgets what nobody wants.
    Sweeps(usize),
    /// The proxies with these numbers are registered with an agent, and no others.
    Registers(usize, Vec<usize>),
    /// A proxy's stream opens, and its plan is read from these subjects.
    ProxyStarts(usize, usize, BTreeSet<Subject>),
    /// A proxy ends.
    ProxyEnds(usize, usize),
    /// A proxy's plan is read from other subjects.
    ProxyReads(usize, usize, BTreeSet<Subject>),
    /// A proxy's feed goes on by so many stages.
    ProxyPlans(usize, usize, usize),
    /// A proxy applies its newest plan.
    ProxyApplies(usize, usize),
    /// A proxy refuses its newest plan.
    ProxyRefuses(usize, usize),
    /// Milliseconds pass.
    Passes(u64),
}

/// The steps of a seed.
#[must_use]
pub fn steps(seed: u64) -> Vec<Step> {
    let mut random = Rng::with_seed(seed);
    let mut writer = Writer::new();
    let wanted = random.usize(STEPS);
    // What a mesh begins with: something to hear of, and everybody connected.
    let mut steps: Vec<_> = (0..3).map(|_| Step::Commit(writer.commit(&mut random))).collect();
    for agent in 0..AGENTS {
        steps.push(Step::Registers(agent, (0..SIDECARS.len()).collect()));
        steps.push(Step::ProxyStarts(agent, 0, subjects(&mut random)));
        steps.push(Step::Dials(agent, 0, random.usize(..20)));
        steps.extend(exchange(&mut random, agent));
    }
    // Of what is rare a run has much or nothing, so that it is not always drowned by everything else.
    let rare = random.u32(..4);
    while steps.len() < wanted {
        match random.u32(..8) {
            0..2 => steps.push(any(&mut random, &mut writer, rare)),
            2 if random.bool() => steps.extend(asked_of_two(&mut random, &mut writer)),
            2 => steps.extend(promotion(&mut random, &mut writer)),
            3 => steps.extend(to_a_server_behind(&mut random, &mut writer)),
            4 => steps.extend(wanted_again(&mut random, &mut writer)),
            5 => {
                let agent = random.usize(..AGENTS);
                steps.extend(exchange(&mut random, agent));
            }
            _ => steps.extend(change_of_connection(&mut random, &mut writer)),
        }
    }
    steps
}

fn any(random: &mut Rng, writer: &mut Writer, rare: u32) -> Step {
    let (server, agent, nth) = (random.usize(..SERVERS), random.usize(..AGENTS), random.usize(..8));
    let proxy = random.usize(..SIDECARS.len());
    match random.u32(..65 + 2 * rare) {
        0..10 => Step::Commit(writer.commit(random)),
        10..14 => Step::Follows(server, random.usize(1..4)),
        14..17 => Step::Dials(agent, server, random.usize(..20)),
        17..22 => Step::ServerReads(nth),
        22..26 => Step::ServerSends(nth),
        26..28 => Step::ServerNotices(nth),
        28..32 => Step::AgentReads(agent, random.usize(1..6)),
        32..34 => Step::AgentTells(agent),
        34 => Step::AgentGivesUp(agent),
        35..37 => Step::Breaks(nth, random.usize(..3), random.usize(..6)),
        37 => Step::Keeps(agent),
        38 => Step::Sweeps(agent),
        39..41 => Step::Registers(agent, (0..SIDECARS.len()).filter(|_| random.u32(..4) > 0).collect()),
        41..43 => Step::ProxyStarts(agent, proxy, subjects(random)),
        43 => Step::ProxyEnds(agent, proxy),
        44..46 => Step::ProxyReads(agent, proxy, subjects(random)),
        46..51 => Step::ProxyPlans(agent, proxy, random.usize(1..4)),
        51..54 => Step::ProxyApplies(agent, proxy),
        54 => Step::ProxyRefuses(agent, proxy),
        55..57 => Step::GivesUp(server, agent),
        57 => Step::Passes(random.u64(..PASS_MS_MAX)),
        58 => Step::Reloads(server),
        59 => Step::ServerRestarts(server),
        60..62 => Step::DialsStandby(agent, server, random.usize(..20)),
        62..64 => Step::StandbyReads(agent, random.usize(1..6)),
        64 => Step::StandbyEnds(agent),
        _ => match random.u32(..3) {
            0 => Step::AgentRestarts(agent),
            1 => Step::ServerRestarts(server),
            _ => Step::SetBack(random.usize(1..3)),
        },
    }
}

/// What is under way to and from an agent arrives, most of it, and its proxies do as they are told.
fn exchange(random: &mut Rng, agent: usize) -> Vec<Step> {
    let mut steps: Vec<_> = (0..SERVERS).map(|server| Step::Follows(server, random.usize(..3))).collect();
    for _ in 0..2 {
        steps.extend((0..3).map(Step::ServerReads));
        steps.extend((0..3).map(Step::ServerSends));
        steps.push(Step::AgentReads(agent, random.usize(1..12)));
        steps.push(Step::StandbyReads(agent, random.usize(..12)));
        for proxy in 0..SIDECARS.len() {
            steps.push(Step::ProxyPlans(agent, proxy, random.usize(..5)));
            steps.push(Step::ProxyApplies(agent, proxy));
        }
        steps.push(Step::AgentTells(agent));
    }
    steps.retain(|_| random.u32(..8) > 0);
    steps
}

/// An agent has a connection in reserve, which is sent what the first is or something else, and the first is lost.
fn promotion(random: &mut Rng, writer: &mut Writer) -> Vec<Step> {
    let (agent, server) = (random.usize(..AGENTS), random.usize(..SERVERS));
    let mut steps = exchange(random, agent);
    steps.push(Step::DialsStandby(agent, server, random.usize(..20)));
    steps.extend(exchange(random, agent));
    for _ in 0..random.usize(1..4) {
        steps.extend([Step::Commit(writer.commit(random)), Step::Commit(writer.commit(random))]);
        steps.extend((0..SERVERS).map(|server| Step::Follows(server, random.usize(..4))));
        steps.extend((0..4).map(|_| Step::ServerSends(random.usize(..6))));
        steps.push(Step::ProxyReads(agent, 0, subjects(random)));
        steps.push(Step::ProxyPlans(agent, 0, 2));
        steps.push(Step::AgentTells(agent));
        steps.extend((0..3).map(|_| Step::ServerReads(random.usize(..6))));
        steps.push(Step::StandbyReads(agent, random.usize(1..6)));
        steps.push(Step::AgentReads(agent, random.usize(..6)));
    }
    steps.push(match random.u32(..4) {
        0 => Step::ServerRestarts(1 - server),
        1 => Step::Breaks(random.usize(..6), random.usize(..3), random.usize(..4)),
        _ => Step::AgentGivesUp(agent),
    });
    steps.extend(exchange(random, agent));
    steps.retain(|_| random.u32(..12) > 0);
    steps
}

/// An agent with a connection in reserve depends on something anew, and one of its servers answers before the other has heard
/// the question, while what was asked changes.
fn asked_of_two(random: &mut Rng, writer: &mut Writer) -> Vec<Step> {
    let (agent, server) = (random.usize(..AGENTS), random.usize(..SERVERS));
    let mut steps = vec![Step::DialsStandby(agent, server, 20)];
    steps.extend(exchange(random, agent));
    for reads in [BTreeSet::new(), subjects(random)] {
        steps.extend([Step::ProxyReads(agent, 0, reads), Step::ProxyPlans(agent, 0, 2), Step::AgentTells(agent)]);
        steps.extend([Step::Sweeps(agent), Step::Sweeps(agent)]);
        steps.extend((0..random.usize(..4)).map(|_| Step::ServerReads(random.usize(..6))));
        steps.extend((0..6).map(Step::ServerSends));
        steps.extend([Step::AgentReads(agent, 9), Step::StandbyReads(agent, random.usize(..9))]);
    }
    for _ in 0..3 {
        steps.extend([Step::Commit(writer.commit(random)), Step::Commit(writer.commit(random))]);
        steps.extend((0..SERVERS).map(|server| Step::Follows(server, random.usize(..4))));
        steps.extend((0..6).map(Step::ServerSends));
        steps.extend([Step::StandbyReads(agent, random.usize(..9)), Step::AgentReads(agent, random.usize(..9))]);
        steps.push(Step::ServerReads(random.usize(..6)));
    }
    steps.retain(|_| random.u32(..16) > 0);
    steps
}

/// An agent's connection ends in one of the ways in which connections do, and another takes its place, while the store goes on.
fn change_of_connection(random: &mut Rng, writer: &mut Writer) -> Vec<Step> {
    let (agent, server) = (random.usize(..AGENTS), random.usize(..SERVERS));
    let mut steps = vec![
        Step::Commit(writer.commit(random)),
        Step::Follows(0, 2),
        Step::ServerSends(random.usize(..3)),
        Step::Breaks(random.usize(..3), random.usize(..3), random.usize(..4)),
        Step::AgentReads(agent, random.usize(1..4)),
        Step::AgentGivesUp(agent),
        Step::Commit(writer.commit(random)),
        Step::Follows(server, 2),
        Step::Dials(agent, server, random.usize(..20)),
        Step::ServerReads(random.usize(..3)),
        Step::ServerNotices(random.usize(..3)),
        Step::Dials((agent + 1) % AGENTS, server, random.usize(..20)),
        Step::ServerReads(random.usize(..3)),
        Step::ServerNotices(random.usize(..3)),
    ];
    steps.retain(|_| random.u32(..8) > 0);
    steps
}

/// An agent that has heard the newest goes to the server that has not, and its proxies plan in between.
fn to_a_server_behind(random: &mut Rng, writer: &mut Writer) -> Vec<Step> {
    let (agent, proxy, behind) = (random.usize(..AGENTS), random.usize(..SIDECARS.len()), random.usize(..SERVERS));
    let mut steps: Vec<_> = (0..random.usize(1..4)).map(|_| Step::Commit(writer.commit(random))).collect();
    steps.push(Step::Follows(1 - behind, 4));
    steps.extend(exchange(random, agent));
    steps.extend([Step::Commit(writer.commit(random)), Step::Follows(1 - behind, 1)]);
    steps.extend([Step::ServerSends(random.usize(..3)), Step::AgentReads(agent, 9), Step::ProxyPlans(agent, proxy, 2)]);
    steps.push(Step::AgentGivesUp(agent));
    steps.push(Step::Dials(agent, behind, random.usize(..20)));
    steps.extend((0..5).map(Step::ServerReads));
    steps.push(Step::AgentReads(agent, 2));
    steps.extend((0..5).map(Step::ServerReads));
    steps.push(Step::AgentReads(agent, 2));
    steps.push(Step::ProxyPlans(agent, proxy, random.usize(1..4)));
    steps.push(Step::ProxyApplies(agent, proxy));
    steps.push(Step::Dials(agent, behind, random.usize(..20)));
    steps.extend(exchange(random, agent));
    steps.retain(|_| random.u32(..12) > 0);
    steps
}

/// A proxy that depends on something else for so long that it is forgotten, and then on the same again, while what was asked
/// for under the earlier subscription is still under way.
fn wanted_again(random: &mut Rng, writer: &mut Writer) -> Vec<Step> {
    let (agent, proxy) = (random.usize(..AGENTS), random.usize(..SIDECARS.len()));
    let mut steps = vec![
        Step::ProxyReads(agent, proxy, BTreeSet::new()),
        Step::ProxyPlans(agent, proxy, 2),
        Step::AgentTells(agent),
        Step::Sweeps(agent),
        Step::Sweeps(agent),
        Step::Commit(writer.commit(random)),
        Step::Follows(0, 1),
        Step::ProxyReads(agent, proxy, subjects(random)),
        Step::ProxyPlans(agent, proxy, 2),
        Step::AgentTells(agent),
    ];
    for _ in 0..3 {
        steps.push(Step::ServerReads(random.usize(..3)));
        steps.push(Step::ServerSends(random.usize(..3)));
        steps.extend([Step::Commit(writer.commit(random)), Step::Follows(0, 1)]);
        steps.push(Step::AgentReads(agent, random.usize(1..9)));
    }
    steps.extend([Step::AgentGivesUp(agent), Step::Dials(agent, 0, random.usize(..20))]);
    steps.retain(|_| random.u32(..12) > 0);
    steps
}

/// What some proxy's plan is read from.
fn subjects(random: &mut Rng) -> BTreeSet<Subject> {
    let service = |name: &str| name.parse::<ServiceName>().expect("a name");
    let all = [
        Subject::Endpoints(service("web")),
        Subject::Endpoints(service("api")),
        Subject::Service(service("web")),
        Subject::Routing(service("web")),
        Subject::Intentions(IntentionSubject::Service(service("web"))),
        Subject::Intentions(IntentionSubject::Any),
        Subject::ProxyDefaults,
        Subject::Roots,
    ];
    all.into_iter().filter(|_| random.u32(..3) > 0).collect()
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names =
            |subjects: &BTreeSet<Subject>| subjects.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        match self {
            Self::Commit(changes) => {
                let changes: Vec<_> = changes.iter().map(in_short).collect();
                write!(f, "commit {}", changes.join(", "))
            }
            Self::Follows(server, count) => write!(f, "server {server} hears of {count} transactions"),
            Self::Reloads(server) => write!(f, "server {server} reads the store anew"),
            Self::ServerRestarts(server) => write!(f, "server {server} restarts"),
            Self::GivesUp(server, agent) => write!(f, "server {server} gives up agent {agent}"),
            Self::SetBack(by) => write!(f, "the store is set back by {by}"),
            Self::Dials(agent, server, room) => write!(f, "agent {agent} dials server {server} with room for {room}"),
            Self::DialsStandby(agent, server, room) => {
                write!(f, "agent {agent} dials server {server} in reserve with room for {room}")
            }
            Self::StandbyReads(agent, count) => write!(f, "agent {agent} reads {count} frames in reserve"),
            Self::StandbyEnds(agent) => write!(f, "agent {agent} gives its connection in reserve up"),
            Self::ServerReads(nth) => write!(f, "a frame arrives on connection {nth} of those that have one"),
            Self::ServerSends(nth) => write!(f, "what there is is sent on open connection {nth}"),
            Self::ServerNotices(nth) => write!(f, "dead connection {nth} is noticed by its server"),
            Self::AgentReads(agent, count) => write!(f, "agent {agent} reads {count} frames"),
            Self::AgentTells(agent) => write!(f, "agent {agent} tells what it has to"),
            Self::AgentGivesUp(agent) => write!(f, "agent {agent} gives its connection up"),
            Self::Breaks(nth, up, down) => write!(f, "connection {nth} breaks; {up} frames go up still, {down} down"),
            Self::Keeps(agent) => write!(f, "agent {agent} writes to disk"),
            Self::AgentRestarts(agent) => write!(f, "agent {agent} restarts"),
            Self::Sweeps(agent) => write!(f, "agent {agent} sweeps"),
            Self::Registers(agent, which) => write!(f, "agent {agent} registers proxies {which:?}"),
            Self::ProxyStarts(agent, proxy, reads) => {
                write!(f, "proxy {proxy} of agent {agent} starts: {}", names(reads))
            }
            Self::ProxyEnds(agent, proxy) => write!(f, "proxy {proxy} of agent {agent} ends"),
            Self::ProxyReads(agent, proxy, reads) => {
                write!(f, "proxy {proxy} of agent {agent} depends on other subjects: {}", names(reads))
            }
            Self::ProxyPlans(agent, proxy, stages) => {
                write!(f, "proxy {proxy} of agent {agent} plans, {stages} stages")
            }
            Self::ProxyApplies(agent, proxy) => write!(f, "proxy {proxy} of agent {agent} applies"),
            Self::ProxyRefuses(agent, proxy) => write!(f, "proxy {proxy} of agent {agent} refuses"),
            Self::Passes(ms) => write!(f, "{ms} ms pass"),
        }
    }
}

fn in_short(change: &Change) -> String {
    match change {
        Change::Put(record) => format!("put {}", record.key().encode()),
        Change::Delete(key) => format!("delete {}", key.encode()),
    }
}
