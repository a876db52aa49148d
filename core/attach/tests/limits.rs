//! Where the limits are, what is over them, and that nothing is lost there.

#[path = "../../catalog/tests/support/records.rs"]
mod records;
#[path = "story/world.rs"]
mod world;

use records::{key, node, sidecar};
use starling_attach::fleet::TAKE_BYTES_MAX;
use starling_attach::message::{SUBJECTS_MAX, ServerSays, Whole};
use starling_attach::relay::{RELAY_HELD_MAX, Relay};
use starling_attach::{FromServer, SubscribeError};
use starling_catalog::Subject;
use starling_model::{Change, Record, RecordKey, Revision};

use world::{Agent, World, content_of, subject};

fn register(service: &str, number: usize) -> Change {
    Change::Put(Record::Instance(sidecar("n1", &format!("{service}-{number}"), "proxy", service, 80)))
}

fn drop_of(service: &str, number: usize) -> Change {
    Change::Delete(RecordKey::Instance(key("n1", &format!("{service}-{number}"))))
}

/// A world with a node, services of so many instances, and an agent that knows all of them.
fn knowing(services: &[&str], instances: usize) -> World {
    let mut world = World::new();
    world.commit(&[Change::Put(node("n1", "10.0.0.1"))]);
    for service in services {
        let changes: Vec<_> = (0..instances).map(|number| register(service, number)).collect();
        world.commit(&changes);
    }
    world.agents.insert("a".to_owned(), Agent::new("n9"));
    world.connect("a");
    for service in services {
        world.agent("a").wants(&subject(&format!("endpoints/{service}")));
    }
    world.settle("a");
    world
}

fn assert_current(world: &World) {
    for (subject, items) in world.agents["a"].holds() {
        assert_eq!(items, content_of(&world.snapshot, &subject), "{subject}");
    }
}

#[test]
fn a_stream_has_room_for_so_many_subjects() {
    let mut world = World::new();
    let id = world.fleet.attach("n9".parse().unwrap());
    let some = |from: usize, to: usize| -> Vec<_> {
        (from..to).map(|number| (subject(&format!("endpoints/s{number}")), Revision(0))).collect()
    };
    world.fleet.subscribe(id, &some(0, SUBJECTS_MAX)).unwrap();
    assert_eq!(world.fleet.subscribe(id, &some(SUBJECTS_MAX, SUBJECTS_MAX + 1)), Err(SubscribeError::TooMany));
    world.fleet.unsubscribe(id, &[subject("endpoints/s0")]);
    world.fleet.subscribe(id, &some(SUBJECTS_MAX, SUBJECTS_MAX + 1)).unwrap();
}

#[test]
fn what_is_too_much_for_one_take_goes_in_several_and_a_through_is_last() {
    let services = ["a", "b", "c", "d"];
    let mut world = knowing(&services, 4_000);
    world.restart();
    world.commit(&[Change::Put(node("n1", "10.0.0.2"))]);
    world.connect("a");
    world.server_reads("a").unwrap();
    let stream = world.agents["a"].stream.unwrap();
    let mut takes = Vec::new();
    while world.fleet.has_pending(stream) {
        let frames = world.fleet.take(stream, world.now_ms);
        takes.push(frames.iter().map(|frame| FromServer::from_bytes(frame.clone()).unwrap()).collect::<Vec<_>>());
        let most = frames.iter().map(bytes::Bytes::len).max().unwrap();
        assert!(frames.iter().map(bytes::Bytes::len).sum::<usize>() < TAKE_BYTES_MAX + most);
        world.agent("a").down.extend(frames);
    }
    assert!(takes.len() > 1, "{} takes", takes.len());
    let throughs = takes.iter().flatten().filter(|says| matches!(says, ServerSays::Through(_)));
    assert_eq!(throughs.count(), 1);
    assert!(matches!(takes.last().unwrap().last(), Some(ServerSays::Through(_))));
    world.settle("a");
    assert_current(&world);
}

#[test]
fn a_removal_goes_before_what_waits() {
    let mut world = knowing(&["a", "b", "c", "z"], 4_000);
    // More than one take, of moves, and then a removal elsewhere.
    let moves = |service| {
        (0..4_000).map(move |number| {
            Change::Put(Record::Instance(sidecar("n1", &format!("{service}-{number}"), "proxy", service, 81)))
        })
    };
    world.commit(&moves("a").chain(moves("b")).chain(moves("c")).collect::<Vec<_>>());
    world.commit(&[drop_of("z", 7)]);
    let stream = world.agents["a"].stream.unwrap();
    let frames = world.fleet.take(stream, world.now_ms);
    let ServerSays::Update(first) = FromServer::from_bytes(frames[0].clone()).unwrap() else { panic!("an update") };
    assert_eq!((first.item.unwrap().key.as_str(), first.revision), ("n1/z-7", world.snapshot.revision().0));
    assert!(world.fleet.has_pending(stream));
    world.agent("a").down.extend(frames);
    world.settle("a");
    assert_current(&world);
}

#[test]
fn a_window_that_overflows_is_a_whole() {
    let mut world = knowing(&["a"], 3);
    for round in 0..5_000 {
        let change = if round % 2 == 0 { drop_of("a", 1) } else { register("a", 1) };
        world.commit(&[change]);
    }
    world.commit(&[drop_of("a", 2)]);
    let heard = world.settle("a");
    assert!(matches!(heard[0].0, ServerSays::Whole(_)), "{:?}", heard[0].0);
    assert_current(&world);
}

#[test]
fn a_commit_larger_than_a_window_is_a_whole() {
    let mut world = knowing(&["a"], 5_000);
    world.drop_connection("a");
    world.commit(&[Change::Put(node("n1", "10.0.0.2"))]);
    world.connect("a");
    let heard = world.settle("a");
    assert_eq!(heard.len(), 2, "a whole and a through");
    assert_current(&world);
}

#[test]
fn subjects_that_nobody_wants_any_more_are_forgotten_in_the_end() {
    let mut world = knowing(&["web"], 2);
    world.drop_connection("a");
    let passing = world.fleet.attach("n9".parse().unwrap());
    for round in 0..5 {
        let some: Vec<_> = (0..SUBJECTS_MAX).map(|n| subject(&format!("endpoints/s{round}-{n}"))).collect();
        let resumes: Vec<_> = some.iter().map(|subject| (subject.clone(), Revision(0))).collect();
        world.fleet.subscribe(passing, &resumes).unwrap();
        world.fleet.unsubscribe(passing, &some);
    }
    world.commit(&[drop_of("web", 1)]);
    world.connect("a");
    let heard = world.settle("a");
    let whole = |says: &ServerSays| matches!(says, ServerSays::Whole(Whole { items, .. }) if items.len() == 1);
    assert!(whole(&heard[0].0), "{:?}", heard[0].0);
    assert_current(&world);
    // The numbers of forgotten subjects serve others.
    world.agent("a").wants(&subject("endpoints/hey"));
    world.commit(&[register("hey", 1)]);
    world.settle("a");
    world.commit(&[register("hey", 2), drop_of("web", 0)]);
    world.settle("a");
    assert_current(&world);
    assert_eq!(world.agents["a"].holds()[&Subject::Endpoints("hey".parse().unwrap())].len(), 2);
}

#[test]
fn the_name_of_a_stream_that_has_ended_is_nobodys() {
    let mut world = World::new();
    let first = world.fleet.attach("n1".parse().unwrap());
    world.fleet.remove(first);
    let second = world.fleet.attach("n2".parse().unwrap());
    assert_ne!(first, second);
    let roots = (subject("roots"), Revision(0));
    world.fleet.subscribe(second, &[roots]).unwrap();
    world.fleet.leave(first);
    world.fleet.remove(first);
    assert!(world.fleet.take(first, 0).is_empty());
    assert!(world.fleet.has_pending(second));
    assert!(!world.fleet.take(second, 0).is_empty());
}

/// Milliseconds within which a stream is asked to report what it takes next.
fn reports_within(world: &mut World, stream: starling_attach::StreamId) -> u32 {
    let last = world.fleet.take(stream, world.now_ms).pop().expect("something to take");
    let says = FromServer::from_bytes(last).expect("readable");
    let ServerSays::Through(through) = says else { panic!("{says:?} is no through") };
    through.report_within_ms
}

#[test]
fn the_more_are_told_the_longer_they_have_to_report_and_a_few_report_at_once() {
    let mut world = World::new();
    world.commit(&[Change::Put(node("n1", "10.0.0.1"))]);
    let streams: Vec<_> = (0..10_000).map(|_| world.fleet.attach("n9".parse().unwrap())).collect();
    for stream in &streams {
        world.fleet.subscribe(*stream, &[(subject("endpoints/web"), Revision(0))]).unwrap();
    }
    world.fleet.subscribe(streams[0], &[(subject("endpoints/db"), Revision(0))]).unwrap();
    assert_eq!(streams.iter().map(|stream| reports_within(&mut world, *stream)).max(), Some(0));

    world.now_ms = 1_000;
    world.commit(&[register("web", 1)]);
    assert_eq!(reports_within(&mut world, streams[1]), 600);
    // Who comes when all of them have reported is not part of that.
    world.fleet.subscribe(streams[1], &[(subject("endpoints/db"), Revision(0))]).unwrap();
    world.now_ms = 1_599;
    assert_eq!(reports_within(&mut world, streams[1]), 600);
    world.fleet.subscribe(streams[1], &[(subject("endpoints/db"), Revision(0))]).unwrap();
    world.now_ms = 1_600;
    assert_eq!(reports_within(&mut world, streams[1]), 0);
    // A change that concerns few does not have those answer at once who are told both.
    world.now_ms = 1_200;
    world.commit(&[register("db", 1)]);
    assert_eq!(reports_within(&mut world, streams[0]), 400);
    world.now_ms = 2_000;
    world.commit(&[register("db", 2)]);
    assert_eq!(reports_within(&mut world, streams[0]), 0);
}

/// One who has wanted a great deal keeps nobody out once it no longer does, also while no server is reached.
#[test]
fn a_relay_holds_so_many_subjects_and_forgets_what_nobody_wants_before_it_refuses() {
    let mut relay = Relay::new([Subject::Roots]);
    let some = |from: usize, to: usize| -> Vec<_> {
        (from..to).map(|number| (subject(&format!("endpoints/s{number}")), Revision(0))).collect()
    };
    // The relay's own is one of them.
    let all = RELAY_HELD_MAX - 1;
    let greedy = relay.attach_relay();
    relay.subscribe(greedy, some(0, all), None).unwrap();
    let modest = relay.attach("modest".parse().unwrap());
    assert_eq!(relay.subscribe(modest, some(all, all + 1), None), Err(SubscribeError::Crowded));
    relay.subscribe(modest, some(0, 1), None).unwrap();
    relay.unsubscribe(greedy, &some(0, 10).into_iter().map(|(subject, _)| subject).collect::<Vec<_>>());
    // What is kept for those who come back is looked through only if that makes room worth the while.
    assert_eq!(relay.subscribe(modest, some(all, all + 1), None), Err(SubscribeError::Crowded));
    relay.remove(greedy);
    relay.subscribe(modest, some(all, all + 1), None).unwrap();
    assert_eq!(relay.holding().subjects().len(), 3);
}
