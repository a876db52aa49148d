//! Who is chosen, how evenly, and who is not.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use starling_model::{BalancePolicy, PassiveHealthCheck, Percent, RateLimit, RetryBudget};
use starling_traffic::balance::{Balancer, Load, Question, hash};
use starling_traffic::eject::{Others, Record};
use starling_traffic::limit::{admit, may_retry};

/// A sequence without order: splitmix64.
struct Sequence(Cell<u64>);

impl Sequence {
    fn new(seed: u64) -> Self {
        Self(Cell::new(seed))
    }

    fn next(&self) -> u64 {
        let mut z = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(z);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn endpoints(weights: &[u32]) -> Vec<(String, u32)> {
    weights.iter().enumerate().map(|(place, weight)| (format!("10.0.0.{place}:80"), *weight)).collect()
}

const POLICIES: [BalancePolicy; 6] = [
    BalancePolicy::LeastRequest { choice_count: None },
    BalancePolicy::PeakEwma,
    BalancePolicy::RoundRobin,
    BalancePolicy::Random,
    BalancePolicy::RingHash { minimum_size: Some(4096), maximum_size: None },
    BalancePolicy::Maglev,
];

fn shares(policy: BalancePolicy, weights: &[u32], calls: u32) -> Vec<f64> {
    let (random, mut balancer) = (Sequence::new(7), Balancer::new(policy, &endpoints(weights)));
    let mut counts = vec![0_u32; weights.len()];
    for _ in 0..calls {
        let question = Question {
            hash: None,
            random: &|| random.next(),
            load: &|_| Load { active: 0, latency_us: 1.0 },
            left_out: &|_| false,
        };
        counts[balancer.pick(&question).expect("one of them")] += 1;
    }
    counts.iter().map(|count| f64::from(*count) / f64::from(calls)).collect()
}

#[test]
fn idle_endpoints_share_evenly_and_by_weight() {
    for policy in POLICIES {
        for share in shares(policy, &[1, 1, 1, 1], 40_000) {
            assert!((share - 0.25).abs() < 0.05, "{policy:?} {share}");
        }
        // Of the speed of two, the weights are a divisor; the others share by weight.
        if policy != BalancePolicy::PeakEwma {
            for (share, expected) in shares(policy, &[1, 2, 5], 40_000).iter().zip([0.125, 0.25, 0.625]) {
                assert!((share - expected).abs() < 0.05, "{policy:?} {share} {expected}");
            }
        }
    }
}

#[test]
fn load_and_latency_are_heeded() {
    let random = Sequence::new(1);
    for (policy, busy) in [
        (BalancePolicy::LeastRequest { choice_count: Some(5) }, Load { active: 9, latency_us: 1.0 }),
        (BalancePolicy::PeakEwma, Load { active: 0, latency_us: 900.0 }),
    ] {
        let mut balancer = Balancer::new(policy, &endpoints(&[1, 1]));
        let mut hits = 0;
        for _ in 0..1_000 {
            let load = |place| if place == 0 { busy } else { Load { active: 0, latency_us: 1.0 } };
            let question = Question { hash: None, random: &|| random.next(), load: &load, left_out: &|_| false };
            hits += usize::from(balancer.pick(&question) == Some(0));
        }
        // Drawn alone, twice in a row, now and then.
        assert!(hits < 300, "{policy:?} {hits}");
    }
}

#[test]
fn a_hash_stays_with_its_endpoint_and_a_loss_moves_few() {
    let random = Sequence::new(3);
    for policy in [BalancePolicy::RingHash { minimum_size: Some(16_384), maximum_size: None }, BalancePolicy::Maglev] {
        let all = endpoints(&[1; 10]);
        let fewer: Vec<_> = all.iter().filter(|(name, _)| name != "10.0.0.4:80").cloned().collect();
        let (mut of_all, mut of_fewer) = (Balancer::new(policy, &all), Balancer::new(policy, &fewer));
        let (mut moved, mut lost) = (0, 0);
        for key in 0..5_000_u32 {
            let hash = hash(format!("user-{key}").as_bytes());
            let ask = |balancer: &mut Balancer, left_out: &dyn Fn(usize) -> bool| {
                let load = |_| Load::default();
                let question = Question { hash: Some(hash), random: &|| random.next(), load: &load, left_out };
                balancer.pick(&question).unwrap()
            };
            let before = &all[ask(&mut of_all, &|_| false)].0;
            assert_eq!(before, &all[ask(&mut of_all, &|_| false)].0);
            let after = &fewer[ask(&mut of_fewer, &|_| false)].0;
            assert_ne!(ask(&mut of_all, &|place| place == 4), 4);
            if before == "10.0.0.4:80" {
                lost += 1;
            } else if before != after {
                moved += 1;
            }
        }
        assert!((350..650).contains(&lost), "{policy:?} {lost}");
        // A ring of fewer has more entries of each; of a fresh table nine in ten would move.
        assert!(moved < 600, "{policy:?} {moved}");
    }
}

proptest! {
    /// Whoever is left out is chosen only where all are.
    #[test]
    fn those_left_out_are_passed_over(
        policy in prop::sample::select(POLICIES.to_vec()),
        endpoints_of in prop::collection::vec((1_u32..5, any::<bool>()), 0..12),
        seed in any::<u64>(), hashed in any::<bool>()
    ) {
        let weights: Vec<_> = endpoints_of.iter().map(|(weight, _)| *weight).collect();
        let out: Vec<_> = endpoints_of.iter().map(|(_, out)| *out).collect();
        let mut balancer = Balancer::new(policy, &endpoints(&weights));
        let random = Sequence::new(seed);
        let mut seen = BTreeMap::new();
        for _ in 0..30 {
            let hash = hashed.then(|| random.next());
            let left_out = |place: usize| out[place];
            let load = |_| Load::default();
            let question = Question { hash, random: &|| random.next(), load: &load, left_out: &left_out };
            let place = balancer.pick(&question);
            prop_assert_eq!(place.is_some(), !weights.is_empty());
            if let Some(place) = place {
                *seen.entry(place).or_insert(0) += 1;
                let all_out = out.iter().all(|out| *out) || out.len() == 1;
                // Maglev looks for another entry so often and no more.
                prop_assert!(all_out || !out[place] || policy == BalancePolicy::Maglev, "{} of {:?}", place, out);
            }
        }
    }
}

#[test]
fn failures_in_a_row_leave_an_endpoint_out_for_longer_each_time() {
    let check = PassiveHealthCheck { max_failures: Some(3), ..PassiveHealthCheck::default() };
    let alone = Others { total: 10, ejected: 0 };
    let mut record = Record::default();
    assert!(!record.failed(&check, alone, 0, 0) && !record.failed(&check, alone, 1, 0));
    record.succeeded();
    assert!(!record.failed(&check, alone, 2, 0) && !record.failed(&check, alone, 3, 0));
    assert!(record.failed(&check, alone, 4, 0));
    assert!(record.is_out(5) && record.is_out(30_003) && !record.is_out(30_004));
    let again = |record: &mut Record, at: u64| (0..3).map(|_| record.failed(&check, alone, at, 0)).last().unwrap();
    assert!(again(&mut record, 30_010));
    assert!(record.is_out(90_009) && !record.is_out(90_010));
    // Three good intervals take both off.
    assert!(again(&mut record, 120_010));
    assert!(!record.is_out(150_010));
}

#[test]
fn not_all_are_left_out_at_once() {
    let check = PassiveHealthCheck {
        max_failures: Some(1),
        max_ejected: Some(Percent::ALL),
        base_ejection_time: Some(Duration::from_secs(1)),
        ..PassiveHealthCheck::default()
    };
    let by_default = PassiveHealthCheck { max_ejected: None, ..check };
    assert!(Record::default().failed(&by_default, Others { total: 3, ejected: 0 }, 0, 0));
    assert!(!Record::default().failed(&by_default, Others { total: 3, ejected: 1 }, 0, 0));
    assert!(Record::default().failed(&by_default, Others { total: 20, ejected: 1 }, 0, 0));
    assert!(Record::default().failed(&check, Others { total: 3, ejected: 2 }, 0, 0));
}

#[test]
fn a_bucket_lets_through_its_burst_and_then_its_rate() {
    let limit = RateLimit { per_second: 10, burst: 5 };
    let (mut full_at, mut passed) = (0, Vec::new());
    for tenth_ms in 0..10_000_u64 {
        let now = 1_000_000_000 + tenth_ms * 100_000;
        if let Some(next) = admit(limit, full_at, now) {
            full_at = next;
            passed.push(tenth_ms);
        }
    }
    assert_eq!(passed.iter().filter(|at| **at < 10).count(), 5);
    // The second: five at once, then one each 100 ms.
    assert_eq!(passed.len(), 5 + 9);
}

#[test]
fn retries_have_a_budget() {
    let percent = Percent::of_hundredths(2_000).unwrap();
    let budget = Some(RetryBudget { percent, min_concurrency: 3 });
    assert!(may_retry(budget, 0, 2) && !may_retry(budget, 0, 3));
    assert!(may_retry(budget, 100, 19) && !may_retry(budget, 100, 20));
    assert!(may_retry(None, 0, 63) && !may_retry(None, 1_000, 64));
}
