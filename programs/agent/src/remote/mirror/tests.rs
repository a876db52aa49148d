//! What the mirror asks for, keeps and forgets, and what it says is in force.

use std::time::Duration;

use starling_attach::message::{Applied, LEVEL, ServerSays, Through, Welcome, Whole, encode_subject};
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
        locality: None,
        kept: starling_model::OpaqueSettings::default(),
    }
}

/// A stream to a server of this release.
fn opened(mirror: &Arc<Mirror>, role: Role) -> Stream {
    let (stream, _) = mirror.open(role);
    says(&stream, &ServerSays::Welcome(Welcome { epoch: 1, level: LEVEL, ..Welcome::default() }));
    stream
}

fn through(revision: u64) -> ServerSays {
    ServerSays::Through(Through { revision, ..Through::default() })
}

/// Another stream takes the place of this one, and its server says that there is nothing new.
fn again(stream: &mut Stream, mirror: &Arc<Mirror>) {
    *stream = opened(mirror, Role::Primary);
    says(stream, &through(mirror.replica().through().0));
}

/// A mirror with one proxy, whose subject the server has told.
fn told() -> (View, Subject, Box<dyn ProxyWatch>, Stream) {
    let view = View(Mirror::new(Replica::default(), []));
    let stream = opened(&view.0, Role::Primary);
    let _ = view.0.set_local(&node(), vec![instance()]);
    let subject = Subject::Routing(instance().name);
    let watch = view.attach(&instance().key);
    watch.resubscribe(Revision(0), BTreeSet::from([subject.clone()]));
    let whole = Whole { subject: encode_subject(&subject), revision: 7, items: Vec::new() };
    says(&stream, &ServerSays::Whole(whole));
    says(&stream, &through(7));
    (view, subject, watch, stream)
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
    let (view, subject, watch, _stream) = told();
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
    let (view, subject, watch, _stream) = told();
    drop(watch);
    let _ = view.0.set_local(&node(), Vec::new());
    assert!(swept(&view, &subject));
    let (view, subject, watch, _stream) = told();
    let _ = view.0.set_local(&node(), Vec::new());
    drop(watch);
    assert!(swept(&view, &subject));
}

const REVISION: u64 = 7;

fn says(stream: &Stream, says: &ServerSays) {
    stream.handle(says).expect("applied");
}

fn whole(subject: &Subject) -> ServerSays {
    ServerSays::Whole(Whole { subject: encode_subject(subject), revision: REVISION, items: Vec::new() })
}

fn asked(stream: &Stream) -> (usize, usize) {
    let mut counts = (0, 0);
    for says in stream.take_outgoing(Instant::now()).says {
        match says {
            AgentSays::Subscribe(subscribe) => counts.0 += subscribe.resumes.len(),
            AgentSays::Unsubscribe(unsubscribe) => counts.1 += unsubscribe.subjects.len(),
            AgentSays::Hello(_)
            | AgentSays::Applied(_)
            | AgentSays::Rejected(_)
            | AgentSays::Here(_)
            | AgentSays::Promote(_)
            | AgentSays::Relayed(_)
            | AgentSays::Trusts(_) => {}
        }
    }
    counts
}

#[test]
fn a_report_is_held_as_the_server_wishes_and_says_for_how_long() {
    let mirror = Mirror::new(Replica::default(), [Subject::Roots]);
    let stream = opened(&mirror, Role::Primary);
    let reported = |now| stream.take_outgoing(now).says.into_iter().rfind(|it| matches!(it, AgentSays::Applied(_)));
    says(&stream, &through(7));
    let now = Instant::now();
    let at_once = Applied { through: 7, refusals_stand: false, held_us: 0 };
    assert_eq!(reported(now), Some(AgentSays::Applied(at_once)));

    says(&stream, &through(8));
    let until = now + Duration::from_millis(300);
    mirror.hold_report(now, until);
    assert_eq!(stream.take_outgoing(now).next, Some(until));
    // Who is told more meanwhile reports all of it when the first was due.
    says(&stream, &through(9));
    mirror.hold_report(now, until + Duration::from_millis(300));
    let later = now + Duration::from_millis(100);
    assert_eq!((reported(later), stream.take_outgoing(later).next), (None, Some(until)));
    let held = Applied { through: 9, refusals_stand: false, held_us: 200_000 };
    assert_eq!(reported(until), Some(AgentSays::Applied(held)));
    assert_eq!(stream.take_outgoing(until).next, None);

    // One that was held and is past, without a look in between, holds nothing that comes later.
    mirror.hold_report(until, until + Duration::from_millis(1));
    let (later, last) = (until + Duration::from_millis(10), until + Duration::from_millis(310));
    says(&stream, &through(10));
    mirror.hold_report(later, last);
    assert_eq!(stream.take_outgoing(later).next, Some(last));
}

#[tokio::test]
async fn a_proxy_that_restarts_finds_what_it_had_and_what_nobody_wants_goes_after_two_sweeps() {
    let mirror = Mirror::new(Replica::default(), [Subject::Roots]);
    let view = View(Arc::clone(&mirror));
    let stream = opened(&mirror, Role::Primary);
    let subjects = BTreeSet::from([Subject::ProxyDefaults, Subject::Roots]);
    let first = view.attach(&instance().key);
    first.resubscribe(Revision(0), subjects.clone());
    assert_eq!(asked(&stream), (1, 0), "the roots are the mirror's own, and were asked for first");
    subjects.iter().for_each(|subject| says(&stream, &whole(subject)));
    says(&stream, &through(REVISION));
    drop(first);

    let second = view.attach(&instance().key);
    second.resubscribe(Revision(0), subjects);
    second.known().await;
    assert_eq!(asked(&stream), (0, 0), "everything is there");
    drop(second);
    mirror.sweep();
    assert_eq!(asked(&stream), (0, 0));
    mirror.sweep();
    assert_eq!(asked(&stream), (0, 1), "the roots are the mirror's own");
    assert!(!mirror.replica().knows(&Subject::ProxyDefaults));
}

#[tokio::test]
async fn a_node_has_applied_what_all_of_its_proxies_have() {
    let mirror = Mirror::new(Replica::default(), []);
    let view = View(Arc::clone(&mirror));
    let stream = opened(&mirror, Role::Primary);
    let subject = BTreeSet::from([Subject::ProxyDefaults]);
    let other = InstanceKey { id: "api".parse().expect("an id"), ..instance().key };
    let (web, api) = (view.attach(&instance().key), view.attach(&other));
    web.resubscribe(Revision(0), subject.clone());
    api.resubscribe(Revision(0), subject);
    says(&stream, &whole(&Subject::ProxyDefaults));
    says(&stream, &through(REVISION));
    let through = || mirror.lock().standing().through;
    assert_eq!(through(), 0, "both owe all that came together, whichever of it concerns them");
    web.applied(Revision(REVISION), false);
    assert_eq!(through(), 0);
    api.applied(Revision(REVISION), false);
    assert_eq!(through(), REVISION);
    says(&stream, &self::through(REVISION + 1));
    assert_eq!(through(), REVISION + 1, "nothing to do counts as applied");
}

#[test]
fn what_was_applied_before_all_began_anew_is_no_word_on_what_came_after() {
    let (view, subject, watch, stream) = told();
    watch.applied(Revision(REVISION), false);
    let through = || view.0.lock().standing().through;
    assert_eq!(through(), REVISION);
    view.0.begin_anew();
    assert!(view.0.replica().knows(&subject), "a plan made now would lack what is known");
    assert_eq!(through(), 0, "by another count nothing is in force yet");
    stream.handle(&self::through(8)).expect_err("the stream is of another past");
    let stream = opened(&view.0, Role::Primary);
    says(&stream, &whole(&subject));
    says(&stream, &self::through(3));
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
    let (view, subject, watch, stream) = told();
    assert_eq!(standing(&view), 0, "it has not applied what it was first told");
    watch.applied(Revision(7), false);
    assert_eq!(standing(&view), 7);
    let change = |revision| {
        says(&stream, &ServerSays::Whole(told_of(&subject, revision)));
        says(&stream, &through(revision));
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
        meta: BTreeMap::from([("revision".to_owned(), revision.to_string())]),
        ..ServiceDefaults::bare(ServiceName::new("api").unwrap())
    };
    let item = Item::Entry(ConfigEntry::ServiceDefaults(entry));
    Whole { subject: encode_subject(subject), revision, items: vec![encode_item(&ItemKey::Sole, Some(&item))] }
}

/// A refusal of what came at `revision`, when `since` was in force.
fn refusal(type_url: &str, since: u64, revision: u64) -> Refused {
    Refused {
        revision: Revision(revision),
        since: Revision(since),
        proxy: None,
        type_url: type_url.to_owned(),
        resources: Vec::new(),
        text: "no".to_owned(),
    }
}

/// What is told of refusals, and of what is in force, in order.
fn told_now(stream: &Stream) -> Vec<String> {
    let says = stream.take_outgoing(Instant::now()).says.into_iter();
    says.filter_map(|says| match says {
        AgentSays::Rejected(rejected) => {
            Some(format!("refused {} {}..{}", rejected.type_url, rejected.since, rejected.revision))
        }
        AgentSays::Applied(applied) => Some(format!("applied {} {}", applied.through, applied.refusals_stand)),
        AgentSays::Hello(_)
        | AgentSays::Subscribe(_)
        | AgentSays::Unsubscribe(_)
        | AgentSays::Relayed(_)
        | AgentSays::Trusts(_)
        | AgentSays::Here(_)
        | AgentSays::Promote(_) => None,
    })
    .collect()
}

#[test]
fn what_is_refused_is_told_on_every_stream_before_what_is_in_force() {
    let (view, subject, watch, mut stream) = told();
    let mirror = &view.0;
    watch.rejected(refusal("clusters", 5, 6));
    watch.rejected(refusal("listeners", 6, 7));
    watch.applied(Revision(7), true);
    let refused = ["refused clusters 5..6", "refused listeners 6..7", "applied 7 true"];
    assert_eq!(told_now(&stream), refused);
    assert!(told_now(&stream).is_empty(), "said once per stream");

    // The stream broke, and nobody knows what of it arrived.
    again(&mut stream, mirror);
    assert_eq!(told_now(&stream), refused);
    // Of several refusals of a type the last speaks for all, and a proxy that is away goes on refusing.
    watch.rejected(refusal("clusters", 7, 7));
    drop(watch);
    again(&mut stream, mirror);
    let refused = ["refused listeners 6..7", "refused clusters 5..7", "applied 7 true"];
    assert_eq!(told_now(&stream), refused);
    // So it does over its next stream, until it has said something there.
    let watch = view.attach(&instance().key);
    watch.resubscribe(Revision(7), BTreeSet::from([subject]));
    again(&mut stream, mirror);
    assert_eq!(told_now(&stream), refused);

    watch.applied(Revision(7), false);
    assert_eq!(told_now(&stream), ["applied 7 false"]);
    again(&mut stream, mirror);
    assert_eq!(told_now(&stream), ["applied 7 false"]);
}

#[test]
fn a_refusal_that_no_longer_stands_is_told_once_and_by_another_count_never() {
    let (view, _, watch, mut stream) = told();
    watch.rejected(refusal("clusters", 6, 7));
    watch.applied(Revision(7), false);
    assert_eq!(told_now(&stream), ["refused clusters 6..7", "applied 7 false"]);
    again(&mut stream, &view.0);
    assert_eq!(told_now(&stream), ["applied 7 false"]);
    watch.rejected(refusal("clusters", 7, 7));
    view.0.begin_anew();
    again(&mut stream, &view.0);
    assert!(told_now(&stream).is_empty());
}

#[test]
fn every_write_of_the_nodes_records_is_kept_until_somebody_looks() {
    let own = Subject::Node(node().name);
    let mirror = Mirror::new(Replica::default(), [own.clone()]);
    let stream = opened(&mirror, Role::Primary);
    let write = |revision| {
        let item = Some(encode_item(&ItemKey::Sole, Some(&Item::Mark)));
        let update = starling_attach::message::Update { subject: encode_subject(&own), revision, item };
        says(&stream, &ServerSays::Update(update));
        says(&stream, &through(revision));
    };
    says(&stream, &whole(&own));
    says(&stream, &through(REVISION));
    assert_eq!(mirror.take_written(), BTreeSet::from([Revision(0)]), "a whole says not when");
    [10, 11].into_iter().for_each(write);
    assert_eq!(mirror.take_written(), BTreeSet::from([Revision(10), Revision(11)]));
    assert!(mirror.take_written().is_empty());
    (20..20 + 2 * WRITTEN_MAX as u64).for_each(write);
    let written = mirror.take_written();
    assert!(written.len() <= WRITTEN_MAX + 1 && written.contains(&Revision(0)), "{}", written.len());
}

#[test]
fn what_two_streams_say_is_applied_once_and_only_the_primary_is_told() {
    let (view, subject, watch, primary) = told();
    let standby = opened(&view.0, Role::Standby);
    watch.applied(Revision(7), false);
    assert_eq!((told_now(&primary), told_now(&standby)), (vec!["applied 7 false".to_owned()], Vec::new()));
    says(&standby, &through(7));

    // The one in reserve is faster: what it says is in force, and the primary is told no more than it has said itself.
    says(&standby, &ServerSays::Whole(told_of(&subject, 8)));
    assert_eq!(standby.handle(&through(8)).unwrap(), Some(BTreeSet::from([subject.clone()])));
    watch.applied(Revision(8), false);
    assert_eq!((told_now(&primary), told_now(&standby)), (Vec::new(), Vec::new()));
    says(&primary, &ServerSays::Whole(told_of(&subject, 8)));
    assert_eq!(primary.handle(&through(8)).unwrap(), None, "nobody is woken again");
    assert_eq!(told_now(&primary), ["applied 8 false"]);

    // The primary is lost in the middle of a change.
    says(&primary, &ServerSays::Whole(told_of(&subject, 9)));
    drop(primary);
    assert_eq!(view.0.replica().through(), Revision(8));
    assert_eq!(standby.promote(), AgentSays::Promote(starling_attach::message::Promote { through: 8 }));
    assert_eq!(told_now(&standby), ["applied 8 false"]);
    says(&standby, &ServerSays::Whole(told_of(&subject, 9)));
    assert_eq!(standby.handle(&through(9)).unwrap(), Some(BTreeSet::from([subject])));
    watch.applied(Revision(9), false);
    assert_eq!(told_now(&standby), ["applied 9 false"]);
}

#[test]
fn a_stream_in_reserve_speaks_for_what_it_has_answered_only() {
    let (view, subject, watch, primary) = told();
    let standby = opened(&view.0, Role::Standby);
    says(&standby, &through(7));
    // Wanted anew, and answered by the primary first.
    let more = BTreeSet::from([subject.clone(), Subject::ProxyDefaults]);
    watch.resubscribe(Revision(7), more);
    says(&primary, &whole(&Subject::ProxyDefaults));
    says(&primary, &through(7));
    says(&standby, &ServerSays::Whole(told_of(&subject, 8)));
    says(&standby, &through(8));
    assert_eq!(view.0.replica().through(), Revision(7), "what became of the other by 8 it does not say");
    says(&standby, &whole(&Subject::ProxyDefaults));
    assert_eq!(standby.handle(&through(9)).unwrap(), Some(BTreeSet::from([subject])));
    assert_eq!(view.0.replica().through(), Revision(9));
}

#[test]
fn a_stream_in_reserve_of_another_past_throws_nothing_away() {
    let (view, subject, _watch, primary) = told();
    let (standby, _) = view.0.open(Role::Standby);
    let welcome = ServerSays::Welcome(Welcome { epoch: 2, level: LEVEL, ..Welcome::default() });
    standby.handle(&welcome).expect_err("it is of another past");
    drop(standby);
    says(&primary, &ServerSays::Whole(told_of(&subject, 8)));
    assert_eq!(primary.handle(&through(8)).unwrap(), Some(BTreeSet::from([subject])));
}

#[test]
fn a_node_says_nothing_of_what_is_in_force_until_its_proxies_are_back() {
    let mirror = Mirror::new(Replica::default(), []);
    mirror.expect_back([instance().key]);
    let stream = opened(&mirror, Role::Primary);
    let _ = mirror.set_local(&node(), vec![instance()]);
    says(&stream, &through(7));
    let applied = |stream: &Stream| {
        let says = stream.take_outgoing(Instant::now()).says;
        says.into_iter().find_map(|it| if let AgentSays::Applied(applied) = it { Some(applied.through) } else { None })
    };
    assert_eq!(applied(&stream), None, "it runs on with what it had");
    let view = View(Arc::clone(&mirror));
    let watch = view.attach(&instance().key);
    watch.resubscribe(Revision(7), BTreeSet::from([Subject::Instance(instance().key)]));
    assert_eq!(applied(&stream), None, "it is back, and has yet to say what it has");
    watch.applied(Revision(7), false);
    assert_eq!(applied(&stream), Some(7));

    // One that does not come back is not waited for for ever.
    let mirror = Mirror::new(Replica::default(), []);
    mirror.expect_back([instance().key]);
    let stream = opened(&mirror, Role::Primary);
    let _ = mirror.set_local(&node(), vec![instance()]);
    says(&stream, &through(7));
    assert_eq!(applied(&stream), None);
    mirror.expect_only(|_| false);
    assert_eq!(applied(&stream), Some(7));
}
