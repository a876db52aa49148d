//! The nodes behind a relay, and what its server has yet to be told of them.
//!
//! Of each node is known how it stands, and how the server knows it to stand; what is told is the difference. So a server that is slow to
//! read is told less, not later, and another server is told everything by the same rule. Of what a server has not said `Through` for,
//! since another stream was faster, it is told when it has. Cost model: a report costs a few map operations; telling costs what has
//! changed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use starling_catalog::Subject;
use starling_model::{NodeName, Revision};

use crate::message::{Rejected, encode_subject};
use crate::relayed::{Come, InForce, Named, NodeRejected, RELAY_NODES_MAX, RELAYED_BYTES_MAX, Relayed, Wants};

/// Refusals of one node that are remembered while they stand. Past this one that was told is left out, or else one is told with the next.
const REFUSALS_MAX: usize = 8;

/// Names a node that is behind this relay, as long as it is.
pub type NodeNumber = u32;

/// The nodes.
#[derive(Debug, Default)]
pub struct Roll {
    nodes: Vec<Option<Node>>,
    count: usize,
    free: Vec<NodeNumber>,
    subjects: Subjects,
    /// Nodes of which something is to be told, each once, by their turns.
    untold: BTreeSet<(u64, NodeNumber)>,
    /// Counts the turns that were given.
    turns: u64,
    /// Nodes that were told of, and are away.
    away: Vec<NodeNumber>,
    /// Nodes of which the server is told more when it has said `Through` for more.
    ahead: BTreeSet<NodeNumber>,
}

#[derive(Debug)]
struct Node {
    name: NodeName,
    /// What it wants, by the numbers of [`Subjects`].
    wants: BTreeSet<u32>,
    /// Everything that it wants is in force as of then, unless it has reported since.
    as_of: Revision,
    /// The same of what it wants since the server was last told what it wants.
    fresh_as_of: Option<Revision>,
    standing: Standing,
    /// Those that stand, and those that are yet to be told.
    refusals: VecDeque<Refusal>,
    is_here: bool,
    /// When it is told of, if something is to be.
    turn: Option<u64>,
    told: Told,
}

#[derive(Debug)]
struct Refusal {
    rejected: Rejected,
    is_told: bool,
    /// Whether it stands for another as well, of an earlier revision: nothing that it refuses is in force until it is told.
    is_widened: bool,
}

/// What is in force at a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Standing {
    through: Revision,
    refusals_stand: bool,
    /// Since when, by the relay's clock; no part of what is compared. `None` once it has waited for the server, so that a server
    /// that is slow shows.
    since_us: Option<u64>,
}

/// What the server knows of a node.
#[derive(Debug, Default)]
struct Told {
    came: bool,
    wants: BTreeSet<u32>,
    standing: Option<(Revision, bool)>,
}

/// The numbers of subjects, each as long as a node wants it or the server knows that one does.
#[derive(Debug, Default)]
struct Subjects {
    numbers: BTreeMap<Subject, u32>,
    by_number: Vec<Option<Counted>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Counted {
    subject: Subject,
    uses: usize,
    told: bool,
}

/// There are as many nodes behind this relay as there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there are {RELAY_NODES_MAX} nodes behind this relay, and no more may be; attach to another")]
pub struct Crowded;

impl Subjects {
    fn take(&mut self, subject: &Subject) -> u32 {
        if let Some(number) = self.numbers.get(subject) {
            if let Some(counted) = &mut self.by_number[*number as usize] {
                counted.uses += 1;
            }
            return *number;
        }
        let counted = Some(Counted { subject: subject.clone(), uses: 1, told: false });
        let number = match self.free.pop() {
            Some(number) => {
                self.by_number[number as usize] = counted;
                number
            }
            None => {
                self.by_number.push(counted);
                u32::try_from(self.by_number.len() - 1).expect("invariant: fewer subjects than 4 billion")
            }
        };
        self.numbers.insert(subject.clone(), number);
        number
    }

    fn keep(&mut self, number: u32) {
        if let Some(counted) = &mut self.by_number[number as usize] {
            counted.uses += 1;
        }
    }

    fn let_go(&mut self, number: u32) {
        let Some(counted) = &mut self.by_number[number as usize] else { return };
        counted.uses -= 1;
        if counted.uses == 0 {
            self.numbers.remove(&counted.subject);
            self.by_number[number as usize] = None;
            self.free.push(number);
        }
    }

    /// The subject to be named, if it has not been.
    fn name(&mut self, number: u32) -> Option<Named> {
        let counted = self.by_number[number as usize].as_mut()?;
        let is_new = !std::mem::replace(&mut counted.told, true);
        is_new.then(|| Named { number, subject: encode_subject(&counted.subject) })
    }
}

impl Roll {
    /// How many nodes are here.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// A node has come. One that was here by another number is to be said to be away before.
    ///
    /// # Errors
    /// [`Crowded`] if there are too many.
    pub fn come(&mut self, name: NodeName) -> Result<NodeNumber, Crowded> {
        if self.count >= RELAY_NODES_MAX {
            return Err(Crowded);
        }
        let node = Some(Node {
            name,
            wants: BTreeSet::new(),
            as_of: Revision(0),
            fresh_as_of: None,
            standing: Standing::default(),
            refusals: VecDeque::new(),
            is_here: true,
            turn: None,
            told: Told::default(),
        });
        let number = match self.free.pop() {
            Some(number) => {
                self.nodes[number as usize] = node;
                number
            }
            None => {
                self.nodes.push(node);
                u32::try_from(self.nodes.len() - 1).expect("invariant: fewer nodes than RELAY_NODES_MAX")
            }
        };
        self.count += 1;
        self.is_untold(number);
        Ok(number)
    }

    /// What the node of this number is called; `None` if there is none.
    #[must_use]
    pub fn name(&self, number: NodeNumber) -> Option<&NodeName> {
        let node = self.nodes.get(number as usize)?.as_ref().filter(|node| node.is_here)?;
        Some(&node.name)
    }

    /// A node is away.
    pub fn away(&mut self, number: NodeNumber) {
        let Some(node) = self.node(number) else { return };
        node.is_here = false;
        let (wants, told) = (std::mem::take(&mut node.wants), std::mem::take(&mut node.told));
        let turn = node.turn.take();
        self.count -= 1;
        if let Some(turn) = turn {
            self.untold.remove(&(turn, number));
        }
        wants.into_iter().chain(told.wants).for_each(|subject| self.subjects.let_go(subject));
        if told.came {
            self.away.push(number);
        } else {
            self.vacate(number);
        }
    }

    /// A node wants more, of which everything up to `as_of` is in force there.
    pub fn wants<'a>(&mut self, number: NodeNumber, as_of: Revision, more: impl Iterator<Item = &'a Subject>) {
        let Some(node) = self.nodes.get_mut(number as usize).and_then(Option::as_mut).filter(|node| node.is_here)
        else {
            return;
        };
        for subject in more {
            let subject = self.subjects.take(subject);
            if !node.wants.insert(subject) {
                self.subjects.let_go(subject);
            }
        }
        // What is in force of all of it is what is in force of the part that is furthest behind.
        let is_first = node.as_of == Revision(0);
        node.as_of = if is_first { as_of } else { node.as_of.min(as_of) };
        node.fresh_as_of = Some(node.fresh_as_of.map_or(as_of, |fresh| fresh.min(as_of)));
        self.is_untold(number);
    }

    /// A node wants less.
    pub fn wants_no_longer<'a>(&mut self, number: NodeNumber, less: impl Iterator<Item = &'a Subject>) {
        let Some(node) = self.nodes.get_mut(number as usize).and_then(Option::as_mut).filter(|node| node.is_here)
        else {
            return;
        };
        for subject in less {
            let Some(subject) = self.subjects.numbers.get(subject).copied() else { continue };
            if node.wants.remove(&subject) {
                self.subjects.let_go(subject);
            }
        }
        self.is_untold(number);
    }

    /// Everything up to `through` is in force at a node, since `since_us` by the relay's clock.
    pub fn applied(&mut self, number: NodeNumber, through: Revision, refusals_stand: bool, since_us: u64) {
        let Some(node) = self.node(number) else { return };
        if !refusals_stand {
            node.refusals.retain(|refusal| !refusal.is_told);
        }
        node.as_of = node.as_of.max(through);
        let through = node.standing.through.max(through);
        node.standing = Standing { through, refusals_stand, since_us: Some(since_us) };
        self.is_untold(number);
    }

    /// A proxy of a node has refused something.
    pub fn rejected(&mut self, number: NodeNumber, rejected: Rejected) {
        let Some(node) = self.node(number) else { return };
        node.standing.refusals_stand = true;
        node.refusals.push_back(Refusal { rejected, is_told: false, is_widened: false });
        node.bound_refusals();
        self.is_untold(number);
    }

    /// Another server is told from now on, which knows nothing yet.
    pub fn tell_anew(&mut self) {
        self.untold.clear();
        self.ahead.clear();
        for number in std::mem::take(&mut self.away) {
            self.vacate(number);
        }
        for counted in self.subjects.by_number.iter_mut().flatten() {
            counted.told = false;
        }
        for number in 0..self.nodes.len() {
            let Some(node) = self.nodes[number].as_mut() else { continue };
            node.turn = None;
            let stand = node.standing.refusals_stand;
            node.refusals.retain_mut(|refusal| !std::mem::take(&mut refusal.is_told) || stand);
            let told = std::mem::take(&mut node.told);
            told.wants.into_iter().for_each(|subject| self.subjects.let_go(subject));
            self.is_untold(u32::try_from(number).expect("invariant: fewer nodes than RELAY_NODES_MAX"));
        }
    }

    /// The server has said `Through` for more.
    pub fn server_is_further(&mut self) {
        for number in std::mem::take(&mut self.ahead) {
            self.is_untold(number);
        }
    }

    /// Whether there may be something to tell.
    #[must_use]
    pub fn has_untold(&self) -> bool {
        !self.untold.is_empty() || !self.away.is_empty()
    }

    /// What to tell a server next that has said `Through` for `said`; it is taken for told. `now_us` is by the relay's clock.
    pub fn tell(&mut self, said: Revision, now_us: u64) -> Relayed {
        let mut relayed = Relayed { away: std::mem::take(&mut self.away), ..Relayed::default() };
        for number in &relayed.away {
            self.nodes[*number as usize] = None;
        }
        let mut in_force: BTreeMap<(Revision, bool), InForce> = BTreeMap::new();
        let mut bytes = 0;
        while bytes < RELAYED_BYTES_MAX {
            let Some((_, number)) = self.untold.pop_first() else { break };
            let told = Telling { said, now_us, relayed: &mut relayed, in_force: &mut in_force };
            bytes += self.tell_node(number, told);
        }
        relayed.in_force = in_force.into_values().collect();
        // Not before: a number that is taken anew in this very message would have been told of as another's.
        self.free.extend(&relayed.away);
        relayed
    }

    /// Adds what there is to tell of a node; answers with about how many bytes that is.
    fn tell_node(&mut self, number: NodeNumber, telling: Telling<'_>) -> usize {
        let Self { nodes, subjects, ahead, .. } = self;
        let Some(node) = nodes.get_mut(number as usize).and_then(Option::as_mut).filter(|node| node.is_here) else {
            return 0;
        };
        let Telling { said, now_us, relayed, in_force } = telling;
        node.turn = None;
        let mut bytes = 0;
        let came_before = std::mem::replace(&mut node.told.came, true);
        if !came_before {
            relayed.come.push(Come { node: number, name: node.name.to_string() });
            bytes += 8 + node.name.as_str().len();
        }
        if node.wants != node.told.wants {
            let from_now: Vec<_> = node.wants.difference(&node.told.wants).copied().collect();
            let no_longer: Vec<_> = node.told.wants.difference(&node.wants).copied().collect();
            bytes += 16 + 3 * no_longer.len();
            for subject in &from_now {
                subjects.keep(*subject);
                let name = subjects.name(*subject);
                bytes += 3 + name.as_ref().map_or(0, |_| 48);
                relayed.names.extend(name);
            }
            no_longer.iter().for_each(|subject| subjects.let_go(*subject));
            node.told.wants = node.wants.clone();
            let as_of = node.fresh_as_of.take().filter(|_| came_before).unwrap_or(node.as_of);
            relayed.wants.push(Wants { node: number, as_of: as_of.0, from_now, no_longer });
        }
        for rejected in node.refusals_known_to(said) {
            bytes += 16 + rejected.text.len() + rejected.resources.iter().map(String::len).sum::<usize>();
            relayed.rejected.push(NodeRejected { node: number, rejected: Some(rejected) });
        }
        if node.is_ahead_of(said) {
            ahead.insert(number);
        }
        let Standing { through, refusals_stand, since_us } = node.standing;
        let known = node.in_force_to(said);
        if known > Revision(0) && node.told.standing != Some((known, refusals_stand)) {
            node.told.standing = Some((known, refusals_stand));
            let group = in_force.entry((known, refusals_stand)).or_insert_with(|| InForce {
                through: known.0,
                refusals_stand,
                ..InForce::default()
            });
            group.nodes.push(number);
            group.held_us.push(since_us.map_or(0, |since_us| now_us.saturating_sub(since_us)));
            bytes += 6;
        }
        if through > known {
            node.standing.since_us = None;
        }
        bytes
    }

    fn node(&mut self, number: NodeNumber) -> Option<&mut Node> {
        self.nodes.get_mut(number as usize)?.as_mut().filter(|node| node.is_here)
    }

    fn is_untold(&mut self, number: NodeNumber) {
        let turn = self.turns;
        if let Some(node) = self.node(number).filter(|node| node.turn.is_none()) {
            node.turn = Some(turn);
            self.turns += 1;
            self.untold.insert((turn, number));
        }
    }

    fn vacate(&mut self, number: NodeNumber) {
        self.nodes[number as usize] = None;
        self.free.push(number);
    }
}

impl Node {
    /// There is something to tell of it to a server that has said `Through` for more than `said`.
    fn is_ahead_of(&self, said: Revision) -> bool {
        self.standing.through > said || self.refusals.iter().any(|refusal| !refusal.is_told)
    }

    /// Up to where a server that has said `Through` for `said` is told that everything is in force.
    fn in_force_to(&self, said: Revision) -> Revision {
        let waits = self.refusals.iter().filter(|refusal| refusal.is_widened && !refusal.is_told);
        let before = waits.map(|refusal| Revision(refusal.rejected.since)).min();
        let told = self.told.standing.map_or(Revision(0), |(through, _)| through);
        let known = self.standing.through.min(said);
        before.map_or(known, |before| known.min(before).max(told))
    }

    /// Leaves out a refusal if there are too many: one that the server was told of, or else the one of the earliest revision, for which
    /// the next stands then. Were it dropped, what it is about would count as applied.
    fn bound_refusals(&mut self) {
        if self.refusals.len() <= REFUSALS_MAX {
            return;
        }
        if let Some(told) = self.refusals.iter().position(|refusal| refusal.is_told) {
            self.refusals.remove(told);
            return;
        }
        let places = self.refusals.iter().enumerate();
        let earliest = places.min_by_key(|(_, refusal)| refusal.rejected.revision).map(|(place, _)| place);
        let Some(gone) = earliest.and_then(|place| self.refusals.remove(place)) else { return };
        if let Some(next) = self.refusals.iter_mut().min_by_key(|refusal| refusal.rejected.revision) {
            next.rejected.since = next.rejected.since.min(gone.rejected.since);
            next.is_widened = true;
        }
    }

    /// What it has refused of what the server has said `Through` for, and the server has not been told.
    fn refusals_known_to(&mut self, said: Revision) -> Vec<Rejected> {
        let untold = self.refusals.iter_mut();
        let untold = untold.filter(|refusal| !refusal.is_told && refusal.rejected.revision <= said.0);
        let known = untold.map(|refusal| {
            refusal.is_told = true;
            refusal.rejected.clone()
        });
        let known = known.collect();
        if !self.standing.refusals_stand {
            self.refusals.retain(|refusal| !refusal.is_told);
        }
        known
    }
}

/// What a node's part of a message is added to.
struct Telling<'a> {
    said: Revision,
    now_us: u64,
    relayed: &'a mut Relayed,
    in_force: &'a mut BTreeMap<(Revision, bool), InForce>,
}

#[cfg(test)]
mod tests;
