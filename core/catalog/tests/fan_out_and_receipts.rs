//! Who is woken by what, and what a receipt says while a change is on its way.

#[path = "support/records.rs"]
mod records;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use records::key;
use starling_catalog::receipts::{CHANGES_BYTES_MAX, CHANGES_MAX, Latency, Mark, REFUSALS_PER_REPORTER_MAX, Reached};
use starling_catalog::{
    Barrier, ChangeReport, Event, FanOut, NodeReport, Progress, ProxyReport, Receipts, Refused, Reporter, ReporterId,
    Subject, Until,
};
use starling_model::Revision;

fn endpoints(name: &str) -> Subject {
    Subject::Endpoints(name.parse().expect("a name"))
}

fn event(name: &str, revision: u64) -> Event {
    Event { subject: endpoints(name), revision: Revision(revision) }
}

#[test]
fn a_write_wakes_only_its_own_subscribers_and_a_slow_one_coalesces() {
    let mut fan_out = FanOut::default();
    let web = fan_out.subscribe(BTreeSet::from([endpoints("web")]));
    let both = fan_out.subscribe(BTreeSet::from([endpoints("web"), endpoints("db")]));
    assert_eq!(fan_out.publish(&[event("db", 1)]), BTreeSet::from([both]));
    assert_eq!(fan_out.publish(&[event("web", 2), event("db", 2)]), BTreeSet::from([web]), "one wake-up is enough");
    let pending = fan_out.take(both);
    assert_eq!(pending.values().copied().collect::<Vec<_>>(), [Revision(2), Revision(2)]);
    assert!(fan_out.take(both).is_empty());
    fan_out.resubscribe(both, BTreeSet::from([endpoints("db")]));
    assert_eq!(fan_out.publish(&[event("web", 3)]), BTreeSet::new(), "web still has not taken");
    fan_out.unsubscribe(web);
    assert_eq!(fan_out.publish(&[event("web", 4)]), BTreeSet::new());
}

/// Receipts of proxies that are connected, by name.
struct Proxies {
    receipts: Receipts,
    ids: BTreeMap<&'static str, ReporterId>,
}

impl Proxies {
    fn connected(names: &[&'static str]) -> Self {
        let mut receipts = Receipts::default();
        let ids = names.iter().map(|name| (*name, receipts.connected(&reporter(name)))).collect();
        Self { receipts, ids }
    }

    fn committed(&mut self, revision: u64, affected: &[&str], now_us: u64) -> Vec<Progress> {
        let affected = affected.iter().map(|name| self.ids[name]).collect();
        self.receipts.committed(Revision(revision), BTreeSet::new(), affected, now_us)
    }

    fn applied(&mut self, name: &str, through: u64, now_us: u64) -> Vec<Progress> {
        self.receipts.applied(self.ids[name], Revision(through), false, now_us)
    }

    fn rejected(&mut self, name: &str, refused: Refused) -> Vec<Progress> {
        self.receipts.rejected(self.ids[name], refused)
    }

    fn report(&self, revision: u64) -> ChangeReport {
        self.receipts.report(Revision(revision), usize::MAX).expect("remembered")
    }

    fn of(&self, name: &str) -> ProxyReport {
        self.receipts.reporters().find(|(other, _)| **other == reporter(name)).expect("known").1
    }

    fn holds(&self, revision: u64, until: &str) -> Barrier {
        self.receipts.holds(Revision(revision), &until.parse().expect("a barrier")).expect("remembered")
    }
}

/// A proxy on node `n1`, or, in capitals, a node.
fn reporter(name: &str) -> Reporter {
    if name.starts_with(|c: char| c.is_ascii_uppercase()) {
        Reporter::Node(name.parse().expect("a name"))
    } else {
        Reporter::Proxy(key("n1", name))
    }
}

fn refused(revision: u64, proxy: Option<&str>, text: &str) -> Refused {
    Refused {
        revision: Revision(revision),
        since: Revision(revision - 1),
        proxy: proxy.map(|id| id.parse().expect("an id")),
        type_url: "cds".to_owned(),
        resources: vec!["web".to_owned()],
        text: text.to_owned(),
    }
}

#[test]
fn a_receipt_moves_from_pending_to_applied_or_rejected() {
    let mut proxies = Proxies::connected(&["a", "b", "c"]);
    for name in ["a", "b", "c"] {
        proxies.applied(name, 1, 0);
    }
    proxies.committed(2, &["a", "b", "c"], 100);
    proxies.applied("a", 2, 150);
    let no = refused(2, None, "no");
    proxies.rejected("b", no.clone());
    let report = proxies.report(2);
    assert_eq!(report.applied, [(reporter("a"), 50)]);
    assert_eq!(report.rejected, [(reporter("b"), Arc::new(no.clone()))]);
    assert_eq!(report.pending, [reporter("c")]);
    assert!(!report.is_settled());
    assert_eq!(proxies.receipts.behind(), 1);
    assert_eq!(proxies.of("c").owes_since_us, Some(100));
    let told = proxies.receipts.removed(proxies.ids["c"]);
    assert_eq!(told.last(), Some(&Progress::Settled(Revision(2))), "nothing is expected of the deregistered");
    assert!(proxies.report(2).is_settled());
    assert_eq!((proxies.receipts.behind(), proxies.receipts.owed_since_us()), (0, None));
    proxies.applied("b", 3, 200);
    let report = proxies.report(2);
    assert_eq!(report.rejected, [(reporter("b"), Arc::new(no))], "a later success does not rewrite history");
    assert!(proxies.of("b").refused.is_none());
}

#[test]
fn who_is_lost_is_named_and_not_waited_for() {
    let mut proxies = Proxies::connected(&["a", "b"]);
    for name in ["a", "b"] {
        proxies.applied(name, 1, 0);
    }
    let (subjects, affected) = (BTreeSet::from([endpoints("web")]), vec![proxies.ids["a"], proxies.ids["b"]]);
    proxies.receipts.committed(Revision(2), subjects.clone(), affected, 100);
    proxies.committed(3, &["b"], 100);
    proxies.receipts.join(Revision(3), &[Revision(2)].into_iter().collect());
    proxies.applied("a", 2, 150);
    let told = proxies.receipts.lost(proxies.ids["b"]);
    assert!(told.contains(&Progress::Settled(Revision(2))), "nobody waits for it: {told:?}");
    for revision in [2, 3] {
        let report = proxies.report(revision);
        assert_eq!(report.lost, [reporter("b")], "it has not applied {revision}");
        assert_eq!((report.counts.affected, report.counts.pending, report.counts.lost), (1, 0, 1));
    }
    assert_eq!(proxies.holds(2, "applied:all"), Barrier::Met, "by all that are there");
    // It is back, and behind; then it is not lost any more.
    let back = proxies.receipts.connected(&reporter("b"));
    proxies.receipts.subscribed(back, Revision(1), &subjects);
    let report = proxies.report(2);
    assert_eq!((report.lost, report.pending), (Vec::new(), vec![reporter("b")]));
    assert_eq!((report.counts.affected, report.counts.lost), (2, 0));
}

#[test]
fn the_receipt_of_a_command_in_several_parts_speaks_of_all_of_them() {
    let mut proxies = Proxies::connected(&["a", "b", "c"]);
    proxies.committed(2, &["a", "b"], 100);
    proxies.committed(3, &["a", "c"], 100);
    proxies.receipts.join(Revision(3), &[Revision(2)].into_iter().collect());
    proxies.applied("a", 2, 120);
    proxies.applied("c", 3, 130);
    let report = proxies.report(3);
    assert_eq!(report.counts.affected, 3);
    assert_eq!(report.pending, [reporter("a"), reporter("b")], "half of it is not applied");
    assert_eq!(report.applied, [(reporter("c"), 30)]);
    assert_eq!(proxies.holds(3, "applied:33%"), Barrier::Met);
    proxies.applied("a", 3, 140);
    assert_eq!(proxies.receipts.is_settled(Revision(3)), Some(false), "b still owes the first part");
    assert_eq!(proxies.holds(3, "applied:all"), Barrier::NotYet);
    proxies.applied("b", 2, 150);
    assert_eq!(proxies.receipts.is_settled(Revision(3)), Some(true));
    assert_eq!(proxies.holds(3, "applied:all"), Barrier::Met);
    let report = proxies.report(3);
    assert!(report.applied.contains(&(reporter("a"), 40)), "the last part counts");
}

#[test]
fn who_owes_one_part_and_has_refused_another_is_not_waited_for() {
    let mut proxies = Proxies::connected(&["a", "b"]);
    for name in ["a", "b"] {
        proxies.applied(name, 1, 0);
    }
    proxies.committed(2, &["a", "b"], 100);
    proxies.committed(3, &["a", "b"], 100);
    proxies.receipts.join(Revision(3), &[Revision(2)].into_iter().collect());
    proxies.applied("b", 3, 120);
    assert_eq!(proxies.receipts.is_settled(Revision(3)), Some(false), "a owes both parts");
    // What came of the later part only: the earlier one, it has said nothing of.
    proxies.rejected("a", refused(3, None, "no"));
    let report = proxies.report(3);
    assert_eq!((report.pending.as_slice(), report.rejected.len()), (&[][..], 1), "{report:?}");
    assert_eq!(proxies.receipts.is_settled(Revision(3)), Some(true), "as the report says");
    assert_eq!(proxies.receipts.is_settled(Revision(2)), Some(false), "the earlier part alone is owed");
    assert_eq!(proxies.holds(3, "applied:all"), Barrier::Never);
    proxies.applied("a", 2, 130);
    assert_eq!(proxies.receipts.is_settled(Revision(2)), Some(true));
}

#[test]
fn a_proxy_that_nothing_concerns_is_never_behind() {
    let mut proxies = Proxies::connected(&["a", "b"]);
    proxies.applied("a", 1, 0);
    proxies.committed(2, &[], 0);
    assert_eq!(proxies.of("a").applied_through, Revision(2));
    assert_eq!(proxies.of("b").applied_through, Revision(0), "it has not reported anything yet");
    proxies.committed(3, &["a"], 0);
    assert_eq!(proxies.of("a").applied_through, Revision(1), "what it owes counts from its own report");
    proxies.applied("a", 3, 1);
    proxies.committed(4, &[], 2);
    assert_eq!(proxies.of("a").applied_through, Revision(4));
}

#[test]
fn a_refusal_stands_until_it_is_resolved_and_not_until_the_next_change() {
    let mut proxies = Proxies::connected(&["a"]);
    proxies.applied("a", 1, 0);
    proxies.committed(2, &["a"], 0);
    proxies.rejected("a", refused(2, None, "cannot bind"));
    proxies.committed(3, &["a"], 0);
    proxies.receipts.applied(proxies.ids["a"], Revision(3), true, 0);
    assert!(proxies.of("a").refused.is_some());
    proxies.applied("a", 4, 0);
    assert!(proxies.of("a").refused.is_none());
}

#[test]
fn a_refusal_is_laid_to_the_changes_that_came_with_what_was_refused() {
    let mut proxies = Proxies::connected(&["a"]);
    proxies.applied("a", 9, 0);
    for revision in 10..=13 {
        proxies.committed(revision, &["a"], 100);
    }
    // It had the listeners of 10 when it was given those of 12, so 11 or 12 is at fault.
    let lds = Refused { since: Revision(10), ..refused(12, None, "lds") };
    assert_eq!(proxies.rejected("a", lds.clone()), [11, 12].map(|revision| Progress::Settled(Revision(revision))));
    assert_eq!(proxies.report(10).pending, [reporter("a")], "the proxy has not said yet that it has the rest");
    assert_eq!(proxies.of("a").owes_since_us, Some(100));
    proxies.receipts.applied(proxies.ids["a"], Revision(12), true, 150);
    assert_eq!(proxies.report(10).applied, [(reporter("a"), 50)]);
    for revision in [11, 12] {
        assert_eq!(proxies.report(revision).rejected, [(reporter("a"), Arc::new(lds.clone()))]);
    }
    assert_eq!(proxies.receipts.behind(), 1, "13 is on its way");
    proxies.applied("a", 13, 160);
    assert_eq!(proxies.report(13).applied, [(reporter("a"), 60)]);
    assert_eq!((proxies.receipts.behind(), proxies.of("a").refused), (0, None));
}

#[test]
fn a_change_between_plan_and_subscription_is_expected_of_the_proxy_too() {
    let mut proxies = Proxies::connected(&["a"]);
    let subjects = BTreeSet::from([endpoints("web")]);
    proxies.receipts.committed(Revision(2), subjects.clone(), Vec::new(), 0);
    proxies.receipts.subscribed(proxies.ids["a"], Revision(1), &subjects);
    assert_eq!(proxies.receipts.is_settled(Revision(2)), Some(false));
    proxies.applied("a", 2, 5);
    assert_eq!(proxies.receipts.is_settled(Revision(2)), Some(true));
    // A feed that was awake already may report before the change is announced.
    proxies.committed(1, &["a"], 0);
    assert_eq!(proxies.receipts.is_settled(Revision(1)), Some(true));
}

#[test]
fn each_proxy_of_a_node_has_its_say() {
    let mut nodes = Proxies::connected(&["N1", "N2"]);
    nodes.committed(2, &["N1", "N2"], 0);
    for (proxy, text) in [("web", "no such port"), ("web", "no such host"), ("api", "no")] {
        nodes.rejected("N2", refused(2, Some(proxy), text));
    }
    nodes.receipts.applied(nodes.ids["N2"], Revision(2), true, 10);
    let report = nodes.report(2);
    let said: Vec<_> = report.rejected.iter().map(|(_, refused)| refused.text.as_str()).collect();
    assert_eq!(said, ["no such port", "no"]);
    assert_eq!((report.counts.rejected, report.counts.pending), (1, 1), "nodes are counted, not proxies");
    for proxy in 0..100 {
        nodes.rejected("N1", refused(2, Some(&format!("p{proxy}")), "no"));
    }
    assert_eq!(nodes.report(2).rejected.len(), REFUSALS_PER_REPORTER_MAX + 2);
    assert_eq!(nodes.receipts.report(Revision(2), 3).expect("remembered").rejected.len(), 3);
}

/// An agent plans for what is registered with it before that is written.
#[test]
fn a_registration_is_refused_by_the_proxy_that_refuses_what_came_of_it() {
    let mut nodes = Proxies::connected(&["N1"]);
    nodes.applied("N1", 4, 0);
    let n1 = nodes.ids["N1"];
    let registered = |id: &str| BTreeSet::from([Subject::Instance(key("N1", id))]);
    nodes.receipts.committed(Revision(5), registered("other"), vec![n1], 0);
    nodes.receipts.committed(Revision(6), registered("web"), vec![n1], 0);
    nodes.receipts.committed(Revision(7), registered("web"), vec![n1], 0);
    nodes.rejected("N1", refused(4, Some("web"), "cannot bind"));
    nodes.receipts.applied(n1, Revision(7), true, 10);
    let of =
        |nodes: &Proxies, revision| (nodes.report(revision).counts.applied, nodes.report(revision).counts.rejected);
    assert_eq!([of(&nodes, 5), of(&nodes, 6)], [(1, 0), (0, 1)]);
    assert_eq!(nodes.report(6).rejected[0].1.text, "cannot bind");
    assert_eq!(of(&nodes, 7), (1, 0), "it is laid to one change only");
    nodes.receipts.committed(Revision(8), registered("web"), vec![n1], 0);
    nodes.receipts.applied(n1, Revision(8), false, 10);
    assert_eq!(of(&nodes, 8), (1, 0), "the registration that mended it");
}

#[test]
fn a_node_is_as_far_as_the_slowest_of_its_proxies() {
    let mut proxies = Proxies::connected(&["a", "b", "N2"]);
    for name in ["a", "b", "N2"] {
        proxies.applied(name, 1, 0);
    }
    proxies.committed(2, &["a", "b"], 100);
    proxies.committed(3, &["b"], 200);
    proxies.rejected("a", refused(2, None, "no"));
    proxies.receipts.applied(proxies.ids["a"], Revision(2), true, 300);
    proxies.receipts.disconnected(proxies.ids["b"]);
    let reporters = proxies.receipts.reporters().map(|(reporter, report)| (reporter.clone(), report));
    let nodes = NodeReport::of_each(reporters);
    let n1 = NodeReport {
        node: "n1".parse().expect("a name"),
        connected: true,
        applied_through: Revision(1),
        owes: 2,
        owes_since_us: Some(100),
        refused: vec![(reporter("a"), Arc::new(refused(2, None, "no")))],
    };
    let n2 = NodeReport {
        node: "N2".parse().expect("a name"),
        applied_through: Revision(3),
        owes: 0,
        owes_since_us: None,
        refused: Vec::new(),
        ..n1.clone()
    };
    assert_eq!(nodes, [n2, n1]);
}

#[test]
fn marks_are_told_once_each_as_they_are_reached() {
    let names = ["N1", "N2", "N3", "N4"];
    let mut nodes = Proxies::connected(&names);
    assert_eq!(nodes.committed(2, &names, 1_000), []);
    let reached = |mark, after_us| Progress::Reached { revision: Revision(2), mark, after_us };
    assert_eq!(nodes.applied("N1", 2, 1_010), []);
    assert_eq!(nodes.applied("N2", 2, 1_020), [reached(Mark::Half, 20)]);
    assert_eq!(nodes.applied("N2", 2, 1_025), [], "a report that settles nothing is no progress");
    assert_eq!(nodes.applied("N3", 2, 1_030), []);
    let settled = Progress::Settled(Revision(2));
    assert_eq!(nodes.applied("N4", 2, 1_040), [reached(Mark::Most, 40), reached(Mark::All, 40), settled]);
    let report = nodes.report(2);
    assert_eq!(report.latency, Some(Latency { p50: 20, p90: 40, p99: 40, max: 40 }));
    assert_eq!(report.reached, Reached { half: Some(20), most: Some(40), all: Some(40) });
    assert_eq!(report.applied[0], (reporter("N4"), 40), "the slowest first");
}

#[test]
fn a_barrier_says_when_it_can_no_longer_hold() {
    let mut nodes = Proxies::connected(&["N1", "N2", "N3"]);
    nodes.committed(2, &["N1", "N2"], 0);
    for until in ["applied:all", "applied:50%", "node=N1", "node=N3", "node=N9"] {
        assert_eq!(nodes.holds(2, until), Barrier::NotYet, "{until}");
    }
    nodes.applied("N1", 2, 1);
    nodes.rejected("N2", refused(2, Some("web"), "no"));
    assert_eq!(nodes.holds(2, "applied:50%"), Barrier::Met);
    assert_eq!(nodes.holds(2, "applied:51%"), Barrier::Never);
    assert_eq!(nodes.holds(2, "applied:all"), Barrier::Never);
    assert_eq!(nodes.holds(2, "node=N1"), Barrier::Met);
    assert_eq!(nodes.holds(2, "node=N2"), Barrier::Never);
    nodes.applied("N3", 1, 2);
    assert_eq!(nodes.holds(2, "node=N3"), Barrier::Met, "nothing to do counts as applied");
    assert_eq!(nodes.receipts.holds(Revision(1), &Until::AppliedAll), None);
    nodes.committed(3, &[], 3);
    assert_eq!(nodes.holds(3, "applied:all"), Barrier::Met);
}

#[test]
fn old_receipts_make_room_by_count_and_by_bytes() {
    let mut receipts = Receipts::default();
    let a = receipts.connected(&reporter("a"));
    let max = u64::try_from(CHANGES_MAX).expect("small");
    for revision in 1..=max + 5 {
        receipts.committed(Revision(revision), BTreeSet::new(), vec![a], 0);
    }
    assert_eq!(receipts.revisions().count(), CHANGES_MAX);
    assert_eq!(receipts.revisions().last(), Some(Revision(6)));
    let subjects: BTreeSet<_> = (0..25_000).map(|n| endpoints(&format!("s{n}"))).collect();
    for revision in max + 6..max + 16 {
        receipts.committed(Revision(revision), subjects.clone(), vec![a], 0);
    }
    assert!(receipts.bytes() <= CHANGES_BYTES_MAX, "{} bytes", receipts.bytes());
    assert_eq!(receipts.revisions().count(), 5, "each of the last takes more than a sixth");
    receipts.applied(a, Revision(u64::MAX), false, 1);
    assert_eq!(receipts.behind(), 0, "what is forgotten is not owed");
}
