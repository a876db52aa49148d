//! Who is woken by what, and what a receipt says while a change is on its way.

#[path = "support/records.rs"]
mod records;

use std::collections::BTreeSet;

use records::key;
use starling_catalog::{Event, FanOut, Receipts, Refused, Subject};
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

#[test]
fn a_receipt_moves_from_pending_to_applied_or_rejected() {
    let (a, b, c) = (key("n1", "a"), key("n1", "b"), key("n1", "c"));
    let mut receipts = Receipts::default();
    for proxy in [&a, &b, &c] {
        receipts.connected(proxy);
        receipts.applied(proxy, Revision(1), false, 0);
    }
    receipts.committed(Revision(2), BTreeSet::new(), BTreeSet::from([a.clone(), b.clone(), c.clone()]), 100);
    receipts.applied(&a, Revision(2), false, 150);
    let refused = Refused {
        revision: Revision(2),
        type_url: "cds".to_owned(),
        resources: vec!["web".to_owned()],
        text: "no".to_owned(),
    };
    receipts.rejected(&b, refused.clone());
    let report = receipts.report(Revision(2)).expect("remembered");
    assert_eq!(report.applied.get(&a), Some(&50));
    assert_eq!(report.rejected.get(&b), Some(&refused));
    assert_eq!(report.pending, BTreeSet::from([c.clone()]));
    assert!(!report.is_settled());
    receipts.removed(&c);
    assert!(receipts.report(Revision(2)).expect("remembered").is_settled(), "nothing is expected of the deregistered");
    receipts.applied(&b, Revision(3), false, 200);
    let report = receipts.report(Revision(2)).expect("remembered");
    assert_eq!(report.rejected.get(&b), Some(&refused), "a later success does not rewrite history");
    assert!(receipts.proxies().find(|(key, _)| **key == b).expect("known").1.refused.is_none());
}

#[test]
fn the_receipt_of_a_command_in_several_parts_speaks_of_all_of_them() {
    let (a, b, c) = (key("n1", "a"), key("n1", "b"), key("n1", "c"));
    let mut receipts = Receipts::default();
    receipts.committed(Revision(2), BTreeSet::new(), BTreeSet::from([a.clone(), b.clone()]), 100);
    receipts.committed(Revision(3), BTreeSet::new(), BTreeSet::from([a.clone(), c.clone()]), 100);
    receipts.join(Revision(3), &[Revision(2)]);
    receipts.applied(&a, Revision(2), false, 120);
    receipts.applied(&c, Revision(3), false, 130);
    let report = receipts.report(Revision(3)).expect("remembered");
    assert_eq!(report.affected, BTreeSet::from([a.clone(), b.clone(), c.clone()]));
    assert_eq!(report.pending, BTreeSet::from([a.clone(), b.clone()]), "half of it is not applied");
    assert_eq!(report.applied.keys().collect::<Vec<_>>(), [&c]);
    receipts.applied(&a, Revision(3), false, 140);
    assert_eq!(receipts.is_settled(Revision(3)), Some(false), "b still owes the first part");
    receipts.applied(&b, Revision(2), false, 150);
    assert_eq!(receipts.is_settled(Revision(3)), Some(true));
    assert_eq!(receipts.report(Revision(3)).expect("remembered").applied.get(&a), Some(&40), "the last part counts");
}

#[test]
fn a_proxy_that_nothing_concerns_is_never_behind() {
    let (a, b) = (key("n1", "a"), key("n1", "b"));
    let mut receipts = Receipts::default();
    for proxy in [&a, &b] {
        receipts.connected(proxy);
    }
    receipts.applied(&a, Revision(1), false, 0);
    receipts.committed(Revision(2), BTreeSet::new(), BTreeSet::new(), 0);
    let through = |receipts: &Receipts| receipts.proxies().map(|(_, r)| r.applied_through).collect::<Vec<_>>();
    assert_eq!(through(&receipts), [Revision(2), Revision(0)], "b has not reported anything yet");
    receipts.committed(Revision(3), BTreeSet::new(), BTreeSet::from([a.clone()]), 0);
    assert_eq!(through(&receipts)[0], Revision(1), "what it owes counts from its own report");
    receipts.applied(&a, Revision(3), false, 1);
    receipts.committed(Revision(4), BTreeSet::new(), BTreeSet::new(), 2);
    assert_eq!(through(&receipts)[0], Revision(4));
}

#[test]
fn a_refusal_stands_until_it_is_resolved_and_not_until_the_next_change() {
    let a = key("n1", "a");
    let mut receipts = Receipts::default();
    receipts.connected(&a);
    receipts.applied(&a, Revision(1), false, 0);
    receipts.committed(Revision(2), BTreeSet::new(), BTreeSet::from([a.clone()]), 0);
    let text = "cannot bind".to_owned();
    let refused = Refused { revision: Revision(2), type_url: "lds".to_owned(), resources: Vec::new(), text };
    receipts.rejected(&a, refused);
    receipts.committed(Revision(3), BTreeSet::new(), BTreeSet::from([a.clone()]), 0);
    receipts.applied(&a, Revision(3), true, 0);
    assert!(receipts.proxies().next().expect("known").1.refused.is_some());
    receipts.applied(&a, Revision(4), false, 0);
    assert!(receipts.proxies().next().expect("known").1.refused.is_none());
}

#[test]
fn a_change_between_plan_and_subscription_is_expected_of_the_proxy_too() {
    let a = key("n1", "a");
    let mut receipts = Receipts::default();
    receipts.connected(&a);
    receipts.committed(Revision(2), BTreeSet::from([endpoints("web")]), BTreeSet::new(), 0);
    receipts.subscribed(&a, Revision(1), &BTreeSet::from([endpoints("web")]));
    assert_eq!(receipts.is_settled(Revision(2)), Some(false));
    receipts.applied(&a, Revision(2), false, 5);
    assert_eq!(receipts.is_settled(Revision(2)), Some(true));
    // A feed that was awake already may report before the change is announced.
    receipts.committed(Revision(1), BTreeSet::new(), BTreeSet::from([a.clone()]), 0);
    assert_eq!(receipts.is_settled(Revision(1)), Some(true));
}
