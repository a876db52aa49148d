//! What the mirror asks for, keeps and forgets, and what it says is in force.

use std::time::Duration;

use starling_attach::message::{Through, Whole};
use starling_attach::projection::{Item, ItemKey, encode_item};
use starling_model::{ConfigEntry, InstanceKind, NodeName, ServiceDefaults, ServiceName};

use super::*;

fn node() -> Node {
    Node {
        name: NodeName::new("n1").unwrap(),
        id: String::new(),
        address: String::new(),
        tagged_addresses: BTreeMap::new(),
        meta: BTreeMap::new(),
    }
}

fn instance() -> ServiceInstance {
    ServiceInstance {
        key: InstanceKey { node: node().name, id: "api".parse().unwrap() },
        name: ServiceName::new("api").unwrap(),
        kind: InstanceKind::Typical,
        address: None,
        port: None,
        tags: Vec::new(),
        meta: BTreeMap::new(),
        tagged_addresses: BTreeMap::new(),
        weights: starling_model::Weights::default(),
        enable_tag_override: false,
        native: false,
    }
}

/// A mirror with one proxy, whose subject the server has told.
fn told() -> (View, Subject, Box<dyn ProxyWatch>) {
    let view = View(Mirror::new(Replica::default(), []));
    let _ = view.0.set_local(&node(), vec![instance()]);
    let subject = Subject::Routing(instance().name);
    let watch = view.attach(&instance().key);
    watch.resubscribe(Revision(0), BTreeSet::from([subject.clone()]));
    let whole = Whole { subject: encode_subject(&subject), revision: 7, items: Vec::new() };
    view.0.handle(&ServerSays::Whole(whole)).unwrap();
    view.0.handle(&ServerSays::Through(Through { revision: 7, ..Through::default() })).unwrap();
    (view, subject, watch)
}

/// Whether two sweeps forget `subject`.
fn swept(view: &View, subject: &Subject) -> bool {
    view.0.sweep();
    assert!(view.0.replica().knows(subject), "nothing goes at once");
    view.0.sweep();
    !view.0.replica().knows(subject)
}

#[test]
fn a_proxy_that_restarts_finds_what_it_depends_on_without_a_server() {
    let (view, subject, watch) = told();
    drop(watch);
    assert!(view.0.replica().knows(&subject), "gone with the stream");
    // The stream that follows may be open before the former is found to have ended.
    let second = view.attach(&instance().key);
    let third = view.attach(&instance().key);
    second.resubscribe(Revision(7), BTreeSet::from([subject.clone()]));
    drop(second);
    assert!(view.0.replica().knows(&subject), "gone with the former stream");
    third.resubscribe(Revision(7), BTreeSet::from([subject.clone()]));
    assert!(view.0.replica().knows(&subject));
    // What it no longer depends on is left at last.
    third.resubscribe(Revision(7), BTreeSet::new());
    assert!(swept(&view, &subject), "kept for nobody");
}

#[test]
fn what_only_a_deregistered_proxy_depended_on_is_forgotten() {
    let (view, subject, watch) = told();
    drop(watch);
    let _ = view.0.set_local(&node(), Vec::new());
    assert!(swept(&view, &subject));
    let (view, subject, watch) = told();
    let _ = view.0.set_local(&node(), Vec::new());
    drop(watch);
    assert!(swept(&view, &subject));
}

const REVISION: u64 = 7;

fn says(mirror: &Mirror, says: &ServerSays) {
    mirror.handle(says).expect("applied");
}

fn whole(subject: &Subject) -> ServerSays {
    ServerSays::Whole(Whole { subject: encode_subject(subject), revision: REVISION, items: Vec::new() })
}

fn asked(mirror: &Mirror) -> (usize, usize) {
    let mut counts = (0, 0);
    for says in mirror.take_outgoing(Instant::now()).says {
        match says {
            AgentSays::Subscribe(subscribe) => counts.0 += subscribe.resumes.len(),
            AgentSays::Unsubscribe(unsubscribe) => counts.1 += unsubscribe.subjects.len(),
            AgentSays::Hello(_) | AgentSays::Applied(_) | AgentSays::Rejected(_) | AgentSays::Pong(_) => {}
        }
    }
    counts
}

#[test]
fn a_report_is_held_as_the_server_wishes_and_says_for_how_long() {
    let mirror = Mirror::new(Replica::default(), [Subject::Roots]);
    let through = |revision| ServerSays::Through(Through { revision, ..Through::default() });
    let reported = |now| mirror.take_outgoing(now).says.into_iter().rfind(|it| matches!(it, AgentSays::Applied(_)));
    says(&mirror, &through(7));
    let now = Instant::now();
    let at_once = Applied { through: 7, refusals_stand: false, held_us: 0 };
    assert_eq!(reported(now), Some(AgentSays::Applied(at_once)));

    says(&mirror, &through(8));
    let until = now + Duration::from_millis(300);
    mirror.hold_report(until);
    assert_eq!(mirror.take_outgoing(now).next, Some(until));
    // Who is told more meanwhile reports all of it when the first was due.
    says(&mirror, &through(9));
    mirror.hold_report(until + Duration::from_millis(300));
    let later = now + Duration::from_millis(100);
    assert_eq!((reported(later), mirror.take_outgoing(later).next), (None, Some(until)));
    let held = Applied { through: 9, refusals_stand: false, held_us: 200_000 };
    assert_eq!(reported(until), Some(AgentSays::Applied(held)));
    assert_eq!(mirror.take_outgoing(until).next, None);
}

#[tokio::test]
async fn a_proxy_that_restarts_finds_what_it_had_and_what_nobody_wants_goes_after_two_sweeps() {
    let mirror = Mirror::new(Replica::default(), [Subject::Roots]);
    let view = View(Arc::clone(&mirror));
    let subjects = BTreeSet::from([Subject::ProxyDefaults, Subject::Roots]);
    let first = view.attach(&instance().key);
    first.resubscribe(Revision(0), subjects.clone());
    assert_eq!(asked(&mirror), (2, 0), "each once, whoever wants it");
    subjects.iter().for_each(|subject| says(&mirror, &whole(subject)));
    says(&mirror, &ServerSays::Through(Through { revision: REVISION, ..Through::default() }));
    drop(first);

    let second = view.attach(&instance().key);
    second.resubscribe(Revision(0), subjects);
    second.known().await;
    assert_eq!(asked(&mirror), (0, 0), "everything is there");
    drop(second);
    mirror.sweep();
    assert_eq!(asked(&mirror), (0, 0));
    mirror.sweep();
    assert_eq!(asked(&mirror), (0, 1), "the roots are the mirror's own");
    assert!(!mirror.replica().knows(&Subject::ProxyDefaults));
}

#[tokio::test]
async fn a_node_has_applied_what_all_of_its_proxies_have() {
    let mirror = Mirror::new(Replica::default(), []);
    let view = View(Arc::clone(&mirror));
    let subject = BTreeSet::from([Subject::ProxyDefaults]);
    let other = InstanceKey { id: "api".parse().expect("an id"), ..instance().key };
    let (web, api) = (view.attach(&instance().key), view.attach(&other));
    web.resubscribe(Revision(0), subject.clone());
    api.resubscribe(Revision(0), subject);
    says(&mirror, &whole(&Subject::ProxyDefaults));
    says(&mirror, &ServerSays::Through(Through { revision: REVISION, ..Through::default() }));
    let through = || mirror.lock().standing().through;
    assert_eq!(through(), 0, "both owe all that came together, whichever of it concerns them");
    web.applied(Revision(REVISION), false);
    assert_eq!(through(), 0);
    api.applied(Revision(REVISION), false);
    assert_eq!(through(), REVISION);
    says(&mirror, &ServerSays::Through(Through { revision: REVISION + 1, ..Through::default() }));
    assert_eq!(through(), REVISION + 1, "nothing to do counts as applied");
}

#[test]
fn what_was_applied_before_all_began_anew_is_no_word_on_what_came_after() {
    let (view, subject, watch) = told();
    watch.applied(Revision(REVISION), false);
    let through = || view.0.lock().standing().through;
    assert_eq!(through(), REVISION);
    view.0.begin_anew();
    assert!(view.0.replica().knows(&subject), "a plan made now would lack what is known");
    assert_eq!(through(), 0, "by another count nothing is in force yet");
    says(&view.0, &whole(&subject));
    says(&view.0, &ServerSays::Through(Through { revision: 3, ..Through::default() }));
    watch.applied(Revision(REVISION), false);
    assert_eq!(through(), 0, "that was planned before");
    watch.applied(Revision(3), false);
    assert_eq!(through(), 3);
}

/// Up to where the mirror says that everything is in force.
fn standing(view: &View) -> u64 {
    view.0.lock().standing().through
}

#[test]
fn a_proxy_that_is_away_owes_what_it_has_not_applied() {
    let (view, subject, watch) = told();
    assert_eq!(standing(&view), 0, "it has not applied what it was first told");
    watch.applied(Revision(7), false);
    assert_eq!(standing(&view), 7);
    let change = |revision| {
        view.0.handle(&ServerSays::Whole(told_of(&subject, revision))).unwrap();
        view.0.handle(&ServerSays::Through(Through { revision, ..Through::default() })).unwrap();
    };
    change(8);
    drop(watch);
    assert_eq!(standing(&view), 7, "its stream broke before it applied 8");
    // While it is away it runs on with what it has.
    change(9);
    assert_eq!(standing(&view), 7);
    let again = view.attach(&instance().key);
    assert_eq!(standing(&view), 7);
    again.resubscribe(Revision(9), BTreeSet::from([subject.clone()]));
    assert_eq!(standing(&view), 7, "it is planned for, and has said nothing");
    again.applied(Revision(9), false);
    assert_eq!(standing(&view), 9);

    // A stream that ends when its successor has applied everything leaves nothing to owe.
    change(10);
    let successor = view.attach(&instance().key);
    successor.resubscribe(Revision(10), BTreeSet::from([subject.clone()]));
    successor.applied(Revision(10), false);
    assert_eq!(standing(&view), 9, "the earlier stream is still there");
    drop(again);
    assert_eq!(standing(&view), 10);
    change(11);
    drop(successor);
    let _ = view.0.set_local(&node(), Vec::new());
    assert_eq!(standing(&view), 11, "who is deregistered owes nothing");
}

/// The whole of a subject, other than before.
fn told_of(subject: &Subject, revision: u64) -> Whole {
    let entry = ServiceDefaults {
        service: ServiceName::new("api").unwrap(),
        protocol: None,
        local_connect_timeout: None,
        local_request_timeout: None,
        max_inbound_connections: None,
        meta: BTreeMap::from([("revision".to_owned(), revision.to_string())]),
    };
    let item = Item::Entry(ConfigEntry::ServiceDefaults(entry));
    Whole { subject: encode_subject(subject), revision, items: vec![encode_item(&ItemKey::Sole, Some(&item))] }
}
