use super::*;

const LANES: usize = 2;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn watch(rule: Rule) -> Watch {
    Watch { rule, called: ms(100), answered: ms(103), lanes: LANES, quiet: ms(50) }
}

/// One request each millisecond, on the lanes in turn, up to and without `until`.
fn requests(until: u64, sight: impl Fn(u64) -> Sight) -> Vec<Sighting> {
    let lane = |at: u64| usize::try_from(at).unwrap() % LANES;
    (90..until).map(|at| Sighting { lane: lane(at), sent: ms(at), sight: sight(at) }).collect()
}

fn old_until(last: u64) -> impl Fn(u64) -> Sight {
    move |at| if at <= last { Sight::Old } else { Sight::New }
}

#[test]
fn the_moment_is_the_first_send_after_the_last_old_sight() {
    let changed = watch(Rule::LastOld).judge(&requests(200, old_until(110))).unwrap();
    assert_eq!(changed.at, ms(111));
    assert_eq!(changed.since(ms(103)), ms(8));
    assert_eq!(changed.since(ms(100)), ms(11));
}

#[test]
fn one_late_old_sight_counts_although_many_new_ones_came_before() {
    let sights = |at| if at == 130 { Sight::Old } else { old_until(105)(at) };
    let changed = watch(Rule::LastOld).judge(&requests(250, sights)).unwrap();
    assert_eq!(changed.at, ms(131));
}

#[test]
fn failures_show_nothing_but_bound_the_moment() {
    let sights = |at| if at == 111 { Sight::Neither } else { old_until(110)(at) };
    let changed = watch(Rule::LastOld).judge(&requests(200, sights)).unwrap();
    assert_eq!(changed.at, ms(111));
    let only_failures = |at| if at <= 110 { Sight::Old } else { Sight::Neither };
    assert_eq!(watch(Rule::LastOld).judge(&requests(2000, only_failures)), None);
}

#[test]
fn a_change_before_the_answer_took_no_time() {
    let changed = watch(Rule::LastOld).judge(&requests(200, old_until(100))).unwrap();
    assert_eq!(changed.at, ms(101));
    assert_eq!(changed.since(ms(103)), Duration::ZERO);
}

#[test]
fn what_was_sent_before_the_call_is_not_looked_at() {
    let changed = watch(Rule::LastOld).judge(&requests(200, old_until(99))).unwrap();
    assert_eq!(changed.at, ms(100));
    let changed =
        watch(Rule::FirstNew).judge(&requests(200, |at| if at == 95 { Sight::New } else { old_until(104)(at) }));
    assert_eq!(changed.unwrap().at, ms(105));
}

#[test]
fn nothing_is_decided_before_the_quiet_time_is_over_on_every_lane() {
    let watch = watch(Rule::LastOld);
    assert_eq!(watch.judge(&requests(161, old_until(110))), None);
    assert_eq!(watch.judge(&requests(162, old_until(110))), None, "the other lane's request may still be in flight");
    assert!(watch.judge(&requests(163, old_until(110))).is_some());
    let mut one_lane_hangs = requests(300, old_until(110));
    one_lane_hangs.retain(|sighting| sighting.lane == 0 || sighting.sent < ms(112));
    assert_eq!(watch.judge(&one_lane_hangs), None);
}

#[test]
fn quiet_time_begins_at_the_answer_when_that_is_later() {
    let watch = Watch { answered: ms(150), ..watch(Rule::LastOld) };
    assert_eq!(watch.judge(&requests(200, old_until(110))), None);
    assert_eq!(watch.judge(&requests(202, old_until(110))).unwrap().at, ms(111));
}

#[test]
fn a_few_new_sights_by_chance_decide_nothing() {
    let sparse = |at: u64| match at {
        ..=110 => Sight::Old,
        _ if at.is_multiple_of(8) => Sight::New,
        _ => Sight::Neither,
    };
    assert_eq!(watch(Rule::LastOld).judge(&requests(200, sparse)), None);
}

#[test]
fn an_addition_is_seen_at_its_first_answer() {
    let taking_turns = |at: u64| if at > 110 && at.is_multiple_of(3) { Sight::New } else { Sight::Old };
    let changed = watch(Rule::FirstNew).judge(&requests(200, taking_turns)).unwrap();
    assert_eq!(changed.at, ms(111));
    assert_eq!(watch(Rule::FirstNew).judge(&requests(2000, |_| Sight::Old)), None);
}

#[test]
fn a_change_that_never_comes_is_never_seen() {
    assert_eq!(watch(Rule::LastOld).judge(&requests(5000, |_| Sight::Old)), None);
    assert_eq!(watch(Rule::LastOld).judge(&[]), None);
}

#[test]
fn order_between_lanes_does_not_matter() {
    let mut sightings = requests(200, old_until(110));
    sightings.sort_by_key(|sighting| sighting.lane);
    assert_eq!(watch(Rule::LastOld).judge(&sightings).unwrap().at, ms(111));
}
