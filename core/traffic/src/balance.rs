//! Which endpoint a call goes to.
//!
//! Owns the rules of choice over a list of endpoints; not the list, the loads or the randomness, which whoever asks brings.
//!
//! Cost model: least request, peak EWMA and random cost a few draws, with weights a binary search each; round robin a heap
//! operation; ring hash a binary search; maglev one index. Tables are made when the list changes: a ring costs its entries
//! sorted, maglev [`MAGLEV_SIZE`] steps.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use starling_model::BalancePolicy;

/// Entries of a maglev table: a prime, as Envoy has it.
pub const MAGLEV_SIZE: usize = 65_537;

/// Entries of a ring, where nothing is said: Envoy's.
const RING_MIN: u64 = 1_024;

/// The most that is ever made of a ring, whatever is said: 8 bytes and 4 each.
const RING_MAX: u64 = 1 << 20;

/// Draws until one of those left in is looked for in order.
const DRAWS_MAX: u32 = 8;

/// What is known of an endpoint when one is chosen.
#[derive(Debug, Clone, Copy, Default)]
pub struct Load {
    /// Calls under way.
    pub active: u32,
    /// What a call takes, as an average that heeds peaks; microseconds.
    pub latency_us: f64,
}

/// A rule of choice over a list of endpoints.
#[derive(Debug, Clone)]
pub struct Balancer {
    weights: Weights,
    rule: Rule,
}

#[derive(Debug, Clone)]
enum Rule {
    LeastRequest { choices: u32 },
    PeakEwma,
    RoundRobin(BinaryHeap<Reverse<Turn>>),
    Random,
    Ring(Vec<(u64, u32)>),
    Maglev(Vec<u32>),
}

/// How much of the load each takes.
#[derive(Debug, Clone)]
struct Weights {
    count: usize,
    /// Sums up to each and with it; empty where all are equal.
    sums: Vec<u64>,
}

/// When an endpoint's turn comes, in calls that one of weight 1 would wait.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Turn {
    due: f64,
    endpoint: u32,
}

impl Eq for Turn {}

impl Ord for Turn {
    fn cmp(&self, other: &Self) -> Ordering {
        self.due.total_cmp(&other.due).then(self.endpoint.cmp(&other.endpoint))
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// What is asked at each choice.
pub struct Question<'a> {
    /// What stays with one endpoint has one hash; `None` chooses any.
    pub hash: Option<u64>,
    /// Evenly distributed numbers.
    pub random: &'a dyn Fn() -> u64,
    /// Of an endpoint, by place.
    pub load: &'a dyn Fn(usize) -> Load,
    /// Whether an endpoint is to be passed over.
    pub left_out: &'a dyn Fn(usize) -> bool,
}

impl Balancer {
    /// Over endpoints given by what names them for good, their addresses, and their weights, at least 1.
    #[must_use]
    pub fn new(policy: BalancePolicy, endpoints: &[(String, u32)]) -> Self {
        let weights = Weights::new(endpoints);
        let rule = match policy {
            BalancePolicy::LeastRequest { choice_count } => {
                Rule::LeastRequest { choices: choice_count.unwrap_or(2).max(1) }
            }
            BalancePolicy::PeakEwma => Rule::PeakEwma,
            BalancePolicy::RoundRobin => {
                let turn = |(place, (_, weight)): (usize, &(String, u32))| {
                    Reverse(Turn {
                        due: 1.0 / f64::from((*weight).max(1)),
                        endpoint: u32::try_from(place).unwrap_or(0),
                    })
                };
                Rule::RoundRobin(endpoints.iter().enumerate().map(turn).collect())
            }
            BalancePolicy::Random => Rule::Random,
            BalancePolicy::RingHash { minimum_size, maximum_size } => {
                Rule::Ring(ring(endpoints, minimum_size.unwrap_or(RING_MIN), maximum_size.unwrap_or(RING_MAX)))
            }
            BalancePolicy::Maglev => Rule::Maglev(maglev(endpoints)),
        };
        Self { weights, rule }
    }

    /// The place of the endpoint for a call; `None` if there is none. Where all are left out, none is: a call that may fail
    /// is better than one that must.
    pub fn pick(&mut self, question: &Question<'_>) -> Option<usize> {
        match self.weights.count {
            0 => return None,
            1 => return Some(0),
            _ => {}
        }
        let hash = || question.hash.unwrap_or_else(|| (question.random)());
        let place = match &mut self.rule {
            Rule::LeastRequest { choices } => {
                let weights = &self.weights;
                // As much load as weight is even; the first one drawn is taken where both are.
                lightest(weights, *choices, question, |place| {
                    f64::from((question.load)(place).active) / weights.of(place)
                })
            }
            Rule::PeakEwma => {
                let weights = &self.weights;
                lightest(weights, 2, question, |place| {
                    let load = (question.load)(place);
                    load.latency_us * f64::from(load.active + 1) / weights.of(place)
                })
            }
            Rule::RoundRobin(turns) => next_turn(turns, &self.weights, question.left_out),
            Rule::Random => self.weights.draw(question),
            Rule::Ring(entries) => on_ring(entries, hash(), question.left_out),
            Rule::Maglev(table) => in_table(table, hash(), question.left_out),
        };
        Some(place)
    }
}

impl Weights {
    fn new(endpoints: &[(String, u32)]) -> Self {
        let mut sum = 0;
        let sums = endpoints.iter().map(|(_, weight)| {
            sum += u64::from((*weight).max(1));
            sum
        });
        let equal = endpoints.windows(2).all(|pair| pair[0].1 == pair[1].1);
        Self { count: endpoints.len(), sums: if equal { Vec::new() } else { sums.collect() } }
    }

    #[expect(clippy::cast_precision_loss, reason = "weights are far below 2^52")]
    fn of(&self, place: usize) -> f64 {
        match self.sums.get(place) {
            None => 1.0,
            Some(sum) => (sum - place.checked_sub(1).map_or(0, |before| self.sums[before])) as f64,
        }
    }

    /// One, as often as its weight says.
    fn any(&self, random: u64) -> usize {
        match self.sums.last() {
            None => below(random, self.count as u64),
            Some(total) => {
                let point = below(random, *total) as u64;
                self.sums.partition_point(|sum| *sum <= point)
            }
        }
    }

    /// One that is not left out, if there is any.
    fn draw(&self, question: &Question<'_>) -> usize {
        let mut place = self.any((question.random)());
        for _ in 0..DRAWS_MAX {
            if !(question.left_out)(place) {
                return place;
            }
            place = self.any((question.random)());
        }
        let after = (0..self.count).map(|step| (place + step) % self.count);
        after.into_iter().find(|place| !(question.left_out)(*place)).unwrap_or(place)
    }
}

/// The one of some drawn that has the lowest score.
fn lightest(weights: &Weights, choices: u32, question: &Question<'_>, score: impl Fn(usize) -> f64) -> usize {
    let mut best = weights.draw(question);
    let mut lowest = score(best);
    for _ in 1..choices {
        let mut other = weights.draw(question);
        if other == best {
            // Somebody else, as there are at least two.
            other = (best + 1 + below((question.random)(), weights.count as u64 - 1)) % weights.count;
            if (question.left_out)(other) {
                other = weights.draw(question);
            }
        }
        let found = score(other);
        if found < lowest {
            (best, lowest) = (other, found);
        }
    }
    best
}

/// The one whose turn it is. Those left out lose theirs.
fn next_turn(turns: &mut BinaryHeap<Reverse<Turn>>, weights: &Weights, left_out: &dyn Fn(usize) -> bool) -> usize {
    let mut place = 0;
    for _ in 0..weights.count * DRAWS_MAX as usize {
        let Some(mut turn) = turns.peek_mut() else { break };
        place = turn.0.endpoint as usize;
        // Taken out and put back in one step.
        turn.0.due += 1.0 / weights.of(place);
        drop(turn);
        if !left_out(place) {
            return place;
        }
    }
    // Heavy ones may have all the turns for a while.
    (0..weights.count).find(|place| !left_out(*place)).unwrap_or(place)
}

fn ring(endpoints: &[(String, u32)], min: u64, max: u64) -> Vec<(u64, u32)> {
    let total: u64 = endpoints.iter().map(|(_, weight)| u64::from((*weight).max(1))).sum();
    let size = min.clamp(endpoints.len() as u64, max.clamp(1, RING_MAX).max(endpoints.len() as u64));
    let mut entries = Vec::new();
    for (place, (name, weight)) in endpoints.iter().enumerate() {
        let share = (size * u64::from((*weight).max(1))).div_ceil(total.max(1));
        let place = u32::try_from(place).unwrap_or(u32::MAX);
        entries.extend((0..share).map(|copy| (hash(format!("{name}_{copy}").as_bytes()), place)));
    }
    entries.sort_unstable();
    entries
}

fn on_ring(entries: &[(u64, u32)], hash: u64, left_out: &dyn Fn(usize) -> bool) -> usize {
    let at = entries.partition_point(|(entry, _)| *entry < hash);
    let from = |step: usize| entries[(at + step) % entries.len()].1 as usize;
    (0..entries.len()).map(from).find(|place| !left_out(*place)).unwrap_or_else(|| from(0))
}

/// Each endpoint in turn takes its next preferred entry that is free, as often as its weight says.
///
/// Source: Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load Balancer", section 3.4.
fn maglev(endpoints: &[(String, u32)]) -> Vec<u32> {
    let size = MAGLEV_SIZE as u64;
    let heaviest = endpoints.iter().map(|(_, weight)| *weight).max().unwrap_or(1).max(1);
    let mut preferences: Vec<(u64, u64, u64)> = endpoints
        .iter()
        .map(|(name, _)| {
            let offset = hash(name.as_bytes()) % size;
            (offset, hash(format!("{name}_skip").as_bytes()) % (size - 1) + 1, 0)
        })
        .collect();
    let mut credit = vec![0_u64; endpoints.len()];
    let mut table = vec![u32::MAX; MAGLEV_SIZE];
    let mut free = if endpoints.is_empty() { 0 } else { MAGLEV_SIZE };
    while free > 0 {
        for (place, (_, weight)) in endpoints.iter().enumerate() {
            credit[place] += u64::from((*weight).max(1));
            if credit[place] < u64::from(heaviest) {
                continue;
            }
            credit[place] -= u64::from(heaviest);
            let (offset, skip, next) = &mut preferences[place];
            loop {
                let entry = usize::try_from((*offset + *skip * *next) % size).unwrap_or(0);
                *next += 1;
                if table[entry] == u32::MAX {
                    table[entry] = u32::try_from(place).unwrap_or(0);
                    break;
                }
            }
            free -= 1;
            if free == 0 {
                break;
            }
        }
    }
    table
}

fn in_table(table: &[u32], hash: u64, left_out: &dyn Fn(usize) -> bool) -> usize {
    let at = |hash: u64| table[below(hash, table.len() as u64)] as usize;
    let mut seen = hash;
    for _ in 0..u64::from(DRAWS_MAX) * 4 {
        let place = at(seen);
        if !left_out(place) {
            return place;
        }
        seen = mixed(seen);
    }
    at(hash)
}

/// A number below `total`, evenly.
fn below(random: u64, total: u64) -> usize {
    usize::try_from((u128::from(random) * u128::from(total)) >> 64).unwrap_or(0)
}

/// A hash that every proxy computes alike: FNV-1a, its bits mixed (Murmur3's finaliser), as FNV leaves the upper ones poor.
#[must_use]
pub fn hash(bytes: &[u8]) -> u64 {
    let fold = |state: u64, byte: &u8| (state ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    mixed(bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold))
}

fn mixed(mut state: u64) -> u64 {
    state ^= state >> 33;
    state = state.wrapping_mul(0xff51_afd7_ed55_8ccd);
    state ^= state >> 33;
    state = state.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    state ^ (state >> 33)
}
