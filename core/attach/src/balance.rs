//! How many agents a server directs to another, so that all have about as many.
//!
//! Only who has clearly more than its share directs any, and only to whoever has the least; so it comes to rest, and what
//! oscillates by a few moves nobody. Moving costs the fleet a stream each, which is what the budget is for.

/// Over its share by so many hundredths, and by more than [`SLACK`], a server has too many.
const OVER_PERCENT: usize = 10;

/// Agents over its share that a server keeps in any case.
const SLACK: usize = 1;

/// Hundredths of its agents that a server directs away in one round; one at least.
const BUDGET_PERCENT: usize = 2;

/// Where to direct agents, and how many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move<S> {
    /// The server.
    pub to: S,
    /// Agents.
    pub count: usize,
}

/// What a server that has `own` agents directs in one round, given what each of the others has.
#[must_use]
pub fn directed<S: Clone + Ord>(own: usize, others: &[(S, usize)]) -> Option<Move<S>> {
    let total = own + others.iter().map(|(_, count)| count).sum::<usize>();
    let share = total.div_ceil(others.len() + 1);
    if own <= share + SLACK || own * 100 <= share * (100 + OVER_PERCENT) {
        return None;
    }
    let (to, theirs) = others.iter().min_by_key(|(server, count)| (*count, server.clone()))?;
    let budget = (own * BUDGET_PERCENT / 100).max(1);
    // Others direct theirs to the same one.
    let room = share.saturating_sub(*theirs).div_ceil(others.len());
    let count = budget.min(own - share).min(room);
    (count > 0).then(|| Move { to: to.clone(), count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_about_its_share_directs_nobody() {
        for (own, other) in [(0, 0), (1, 0), (2, 0), (100, 100), (104, 96), (110, 90), (0, 100)] {
            assert_eq!(directed(own, &[("b", other)]), None, "{own} and {other}");
        }
        assert_eq!(directed::<&str>(100, &[]), None, "there is nowhere to go");
        assert_eq!(directed(3, &[("b", 0)]), None, "two more than the other is no more than one over its share");
        assert_eq!(directed(4, &[("b", 0)]), Some(Move { to: "b", count: 1 }));
    }

    #[test]
    fn all_comes_to_rest_with_everyone_near_its_share_and_no_round_costs_more_than_its_budget() {
        for start in [vec![10_000, 0, 0], vec![5_000, 4_000, 0], vec![7, 0, 0, 0], vec![900, 1_100, 1_000, 0, 300]] {
            let mut counts = start.clone();
            let share = start.iter().sum::<usize>().div_ceil(start.len());
            let mut rounds = 0;
            loop {
                let before = counts.clone();
                for me in 0..counts.len() {
                    let others: Vec<_> = before.iter().copied().enumerate().filter(|(other, _)| *other != me).collect();
                    let Some(directed) = directed(before[me], &others) else { continue };
                    assert!(directed.count <= (before[me] / 50).max(1), "{directed:?} of {before:?}");
                    counts[me] -= directed.count;
                    counts[directed.to] += directed.count;
                }
                rounds += 1;
                if counts == before {
                    break;
                }
                assert!(rounds < 1_000, "{counts:?}");
            }
            assert!(counts.iter().all(|count| count * 100 <= share * 110 || *count <= share + 1), "{counts:?}");
        }
    }
}
