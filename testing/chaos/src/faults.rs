//! What is done to the cluster, drawn from a seed, and doing it.
//!
//! There are two lanes, one of faults of etcd's members and one of the servers', which go on beside each other and wait for
//! nobody's health: when a fault of one lane is over its next one comes after a short pause. So what falls together is
//! the machine's timing; which faults come, in which order and for how long, is the seed's.

use std::time::Duration;

use serde::Serialize;

use crate::cluster::{COUNT, Role};
use crate::network::Cut;

/// How long a program is stopped.
const STOPPED: Duration = Duration::from_secs(10);

/// How long a killed program stays dead, in milliseconds.
const DEAD_MS: std::ops::Range<u64> = 100..3000;

/// How long packets are lost, in milliseconds.
const CUT_MS: std::ops::Range<u64> = 1500..11_000;

/// Time between the end of a fault and the next one of its lane, in milliseconds.
const PAUSE_MS: std::ops::Range<u64> = 300..2500;

/// One of so many faults comes together with another of its lane.
const DOUBLE_ONE_IN: u32 = 7;

/// Who is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The member that leads when the fault begins; if nobody knows of one, this member.
    Leader(usize),
    /// This program.
    This(Role),
}

/// Which packets are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// Between it and the other members; servers reach it.
    FromMembers,
    /// Between it and all the other machines.
    FromAll,
    /// Between it and one other member.
    FromMember(usize),
    /// From the members to it; what it sends arrives.
    Deaf,
    /// From it to the members; what they send arrives.
    Mute,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Harm {
    /// SIGKILL, and a start afterwards.
    Kill,
    /// SIGSTOP, and SIGCONT afterwards.
    Stop,
    /// Packets are lost.
    Cut(Shape),
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// What is done.
    pub harm: Harm,
    /// To whom.
    pub target: Target,
    /// For how long.
    pub held: Duration,
}

/// What a lane does next: one fault or two, and then nothing for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blow {
    /// The faults, which begin together.
    pub faults: Vec<Fault>,
    /// Time until the next blow.
    pub pause: Duration,
}

/// The lanes of a run: members', servers'.
#[must_use]
pub fn plan(seed: u64, count: usize) -> [Vec<Blow>; 2] {
    let mut random = fastrand::Rng::with_seed(seed);
    let members = count.div_ceil(2);
    [lane(&mut random, members, Role::Member), lane(&mut random, count - members, Role::Server)]
}

fn lane(random: &mut fastrand::Rng, count: usize, role: fn(usize) -> Role) -> Vec<Blow> {
    let mut blows = Vec::new();
    let mut left = count;
    while left > 0 {
        let size = if left > 1 && random.u32(0..DOUBLE_ONE_IN) == 0 { 2 } else { 1 };
        let mut numbers: Vec<_> = (0..COUNT).collect();
        random.shuffle(&mut numbers);
        let faults = numbers[..size].iter().map(|number| fault(random, role(*number))).collect();
        blows.push(Blow { faults, pause: Duration::from_millis(random.u64(PAUSE_MS)) });
        left -= size;
    }
    blows
}

fn fault(random: &mut fastrand::Rng, role: Role) -> Fault {
    let (harm, held) = match random.u8(0..3) {
        0 => (Harm::Kill, Duration::from_millis(random.u64(DEAD_MS))),
        1 => (Harm::Stop, STOPPED),
        _ => (Harm::Cut(shape(random, role)), Duration::from_millis(random.u64(CUT_MS))),
    };
    let target = match role {
        Role::Member(number) if random.u8(0..5) < 2 => Target::Leader(number),
        Role::Member(_) | Role::Server(_) => Target::This(role),
    };
    Fault { harm, target, held }
}

fn shape(random: &mut fastrand::Rng, role: Role) -> Shape {
    let one = random.usize(0..COUNT);
    match (role, random.u8(0..5)) {
        (Role::Member(_), 0) => Shape::FromMembers,
        (_, 0 | 1) => Shape::FromAll,
        (_, 2) => Shape::FromMember(one),
        (_, 3) => Shape::Deaf,
        _ => Shape::Mute,
    }
}

/// The packets that are lost when `role` is cut off so.
pub(crate) fn cuts(role: Role, shape: Shape) -> Vec<Cut> {
    let here = role.machine();
    let members = || (0..COUNT).map(Role::Member).map(Role::machine).filter(|machine| *machine != here);
    let both = |there| [Cut { from: here, to: there }, Cut { from: there, to: here }];
    match shape {
        Shape::FromMembers => members().flat_map(both).collect(),
        Shape::FromAll => Role::all().map(Role::machine).filter(|machine| *machine != here).flat_map(both).collect(),
        Shape::FromMember(number) => {
            let machine = Role::Member(number).machine();
            // From itself nothing can be cut off: then it is the next one.
            let machine = if machine == here { Role::Member((number + 1) % COUNT).machine() } else { machine };
            both(machine).into()
        }
        Shape::Deaf => members().map(|there| Cut { from: there, to: here }).collect(),
        Shape::Mute => members().map(|there| Cut { from: here, to: there }).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_plan_of_so_many_faults() {
        for (seed, count) in [(1, 1), (1, 10), (7, 300)] {
            let lanes = plan(seed, count);
            assert_eq!(lanes, plan(seed, count));
            let faults: usize = lanes.iter().flatten().map(|blow| blow.faults.len()).sum();
            assert_eq!(faults, count);
        }
        assert_ne!(plan(1, 300), plan(2, 300));
    }

    #[test]
    fn three_hundred_faults_have_every_kind_of_both_lanes() {
        let lanes = plan(1, 300);
        for lane in &lanes {
            let faults = || lane.iter().flat_map(|blow| &blow.faults);
            let of = |wanted: fn(&Harm) -> bool| faults().filter(|fault| wanted(&fault.harm)).count();
            assert!(of(|harm| *harm == Harm::Kill) > 30 && of(|harm| *harm == Harm::Stop) > 30);
            assert!(of(|harm| matches!(harm, Harm::Cut(Shape::Deaf | Shape::Mute))) > 5);
            assert!(lane.iter().filter(|blow| blow.faults.len() == 2).count() > 5);
        }
        let leaders = lanes[0].iter().flat_map(|blow| &blow.faults);
        assert!(leaders.filter(|fault| matches!(fault.target, Target::Leader(_))).count() > 30);
    }

    #[test]
    fn whom_a_cut_concerns() {
        let member = Role::Member(1);
        assert_eq!(cuts(member, Shape::FromMembers).len(), 4);
        assert_eq!(cuts(member, Shape::FromAll).len(), 10);
        assert_eq!(cuts(member, Shape::FromMember(1)).len(), 2, "never from itself");
        assert!(cuts(Role::Server(0), Shape::Deaf).iter().all(|cut| cut.to == Role::Server(0).machine()));
        assert!(cuts(member, Shape::Mute).iter().all(|cut| cut.from == member.machine() && cut.to != cut.from));
    }
}
