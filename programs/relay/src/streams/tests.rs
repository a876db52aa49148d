use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use starling_attach::message::{
    AgentSays, Hello, LEVEL, LEVEL_OF_REACH, REFUSAL_NAME_BYTES_MAX, Rejected, Resume, ServerSays, Subscribe, Through,
    Welcome, Whole, encode_subject,
};
use starling_attach::relayed::{
    Come, Gone, InForce, Named, NodeRejected, RELAY_NODES_MAX, RELAYS_MAX, ROOT_ID_BYTES_MAX, RelayTrusts, Relayed,
    Remind, Superseded, Trusts, Wants, WireEpoch,
};
use starling_rpc::AgentStream;

use super::*;

fn node(name: &str) -> NodeName {
    name.parse().expect("a name")
}

fn hello(name: &str) -> Hello {
    Hello { node: name.to_owned(), level: LEVEL, ..Hello::default() }
}

fn welcome(epochs: &[(u64, u64)]) -> ServerSays {
    let epochs: Vec<_> = epochs.iter().map(|(id, after)| WireEpoch { id: *id, after: *after }).collect();
    let epoch = epochs.last().map_or(0, |epoch| epoch.id);
    ServerSays::Welcome(Welcome { epoch, epochs, level: LEVEL, ..Welcome::default() })
}

fn through(revision: u64) -> ServerSays {
    ServerSays::Through(Through { revision, ..Through::default() })
}

fn hears(streams: &Streams, line: LineId, says: ServerSays) -> Heard {
    let frame = FromServer::from(says.clone()).to_bytes();
    streams.hear(line, &says, &frame).expect("it follows")
}

/// What is said first on a stream from a server.
fn begin(streams: &Streams, line: LineId) -> Vec<AgentSays> {
    streams.expect(line);
    streams.begin(line).expect("it was not given up").0
}

/// A relay that has heard everything from a server, on line 1, up to revision 5.
fn attached() -> Arc<Streams> {
    let streams = Streams::new(node("r1"), &Registry::default());
    assert!(!begin(&streams, 1).is_empty());
    hears(&streams, 1, welcome(&[(7, 0)]));
    for subject in &OWN {
        let whole = Whole { subject: encode_subject(subject), revision: 5, items: Vec::new() };
        hears(&streams, 1, ServerSays::Whole(whole));
    }
    hears(&streams, 1, through(5));
    streams.promote(1);
    streams
}

fn take(stream: &(impl AgentStream + ?Sized)) -> Poll<Result<Vec<Bytes>, CallError>> {
    stream.poll_take(&mut Context::from_waker(Waker::noop()))
}

/// What there is to say on a stream now.
fn said(stream: &(impl AgentStream + ?Sized)) -> Vec<ServerSays> {
    let frames = std::iter::from_fn(|| match take(stream) {
        Poll::Ready(taken) => Some(taken.expect("it is open")),
        Poll::Pending => None,
    });
    frames.flatten().map(|frame| FromServer::from_bytes(frame).expect("readable")).collect()
}

/// Why a stream has ended.
fn end_of(stream: &impl AgentStream) -> String {
    let Poll::Ready(Err(ended)) = take(stream) else { panic!("it is open") };
    ended.to_string()
}

#[test]
fn nobody_comes_between_the_word_of_another_epoch_and_its_content_and_who_is_there_stays() {
    let streams = Streams::new(node("r1"), &Registry::default());
    begin(&streams, 1);
    hears(&streams, 1, welcome(&[(7, 0)]));
    assert!(streams.attach(node("n1"), &hello("n1")).is_err(), "it knows nothing yet");
    let streams = attached();
    let before = streams.attach(node("n1"), &hello("n1")).expect("it is let in");
    assert!(matches!(said(&before)[..], [ServerSays::Welcome(Welcome { epoch: 7, .. })]));

    streams.end(1);
    begin(&streams, 2);
    hears(&streams, 2, welcome(&[(7, 0), (8, 5)]));
    let refused = streams.attach(node("n2"), &hello("n2")).err().expect("it is refused");
    assert!(refused.to_string().contains("what the servers' store is now"), "{refused}");
    assert!(take(&before).is_pending());
    assert_eq!(hears(&streams, 2, through(5)), Heard { ended: 1 });
    assert!(end_of(&before).contains("this relay has begun anew"));
    let after = streams.attach(node("n2"), &hello("n2")).expect("it is let in");
    assert!(matches!(said(&after)[..], [ServerSays::Welcome(Welcome { epoch: 8, .. })]));
}

#[test]
fn a_node_that_has_attached_elsewhere_is_told_so_here_and_below() {
    let streams = attached();
    let here = streams.attach(node("n1"), &hello("n1")).expect("it is let in");
    let below = streams.attach_relay(node("below"), LEVEL).expect("it is let in");
    drop((said(&here), said(&below)));
    let come = vec![Come { node: 3, name: "n2".to_owned() }];
    below.handle(AgentSays::Relayed(Relayed { come, ..Relayed::default() })).expect("heard");
    drop(streams.tell(1));
    // Numbers are given anew: one whose name is another's means nobody.
    let gone = |node, name: &str| Gone { node, name: name.to_owned() };
    let superseded = |nodes| ServerSays::Superseded(Superseded { nodes });
    hears(&streams, 1, superseded(vec![gone(0, "n9"), gone(1, "n1"), gone(77, "n1")]));
    assert!(take(&here).is_pending() && take(&below).is_pending());

    hears(&streams, 1, superseded(vec![gone(0, "n1"), gone(1, "n2")]));
    assert!(end_of(&here).contains("a later stream of this node has taken over"));
    assert_eq!(said(&below), [superseded(vec![gone(3, "n2")])]);
    let Some(AgentSays::Relayed(told)) = streams.tell(1) else { panic!("the server is told") };
    assert_eq!(told.away, [0]);

    // One that comes from below to this relay itself is told there as well.
    let mover = streams.attach(node("n2"), &hello("n2")).expect("it is let in");
    assert_eq!(said(&below), [superseded(vec![gone(3, "n2")])]);
    below.handle(AgentSays::Relayed(Relayed { away: vec![3], ..Relayed::default() })).expect("heard");
    assert!(matches!(said(&mover)[..], [ServerSays::Welcome(_)]), "what was below is another stream");
}

#[test]
fn a_relay_below_that_does_not_read_is_reminded_of_each_node_once() {
    let streams = attached();
    let below = streams.attach_relay(node("below"), LEVEL).expect("it is let in");
    drop(said(&below));
    let come = vec![Come { node: 3, name: "n1".to_owned() }, Come { node: 4, name: "n2".to_owned() }];
    below.handle(AgentSays::Relayed(Relayed { come, ..Relayed::default() })).expect("heard");
    for revision in 6..1_000 {
        hears(&streams, 1, ServerSays::Remind(Remind { nodes: vec![0, 1] }));
        hears(&streams, 1, through(revision));
    }
    below.handle(AgentSays::Relayed(Relayed { away: vec![4], ..Relayed::default() })).expect("heard");
    assert_eq!(said(&below), [ServerSays::Remind(Remind { nodes: vec![3] }), through(999)]);
}

#[test]
fn a_refusal_of_what_can_be_no_proxy_ends_the_stream_that_says_so_and_no_other() {
    let streams = attached();
    let rejected = |proxy: &str| Rejected { proxy: proxy.to_owned(), revision: 5, ..Rejected::default() };
    for proxy in ["", "a/b", &"x".repeat(1 << 20)] {
        let agent = streams.attach(node("n1"), &hello("n1")).expect("it is let in");
        let refused = agent.handle(AgentSays::Rejected(rejected(proxy))).expect_err("nothing is called so");
        assert!(matches!(refused, CallError::Refused { .. }), "{refused}");
    }
    drop(streams.tell(1));

    // What a relay below has let in is told as a refusal all the same, and is not long.
    let below = streams.attach_relay(node("below"), LEVEL).expect("it is let in");
    let rejected = vec![NodeRejected { node: 3, rejected: Some(rejected(&"x".repeat(1 << 20))) }];
    let come = vec![Come { node: 3, name: "n2".to_owned() }];
    below.handle(AgentSays::Relayed(Relayed { come, rejected, ..Relayed::default() })).expect("heard");
    let Some(AgentSays::Relayed(told)) = streams.tell(1) else { panic!("the server is told") };
    let told = told.rejected[0].rejected.as_ref().expect("what was refused");
    assert_eq!(told.proxy.len(), REFUSAL_NAME_BYTES_MAX);
}

#[test]
fn a_relay_that_is_full_loses_no_place_by_refusing() {
    let streams = attached();
    for number in 0..RELAY_NODES_MAX {
        streams.lock().relay.roll.come(node(&format!("n{number}"))).expect("there is room");
    }
    let next = |streams: &Streams| {
        let mut state = streams.lock();
        let id = state.relay.attach(node("probe"));
        state.relay.remove(id);
        // A place that was let go is taken again.
        format!("{id:?}").split(", turn").next().map(str::to_owned)
    };
    let before = next(&streams);
    for _ in 0..10 {
        let refused = streams.attach(node("late"), &hello("late")).err().expect("it is refused");
        assert!(refused.to_string().contains("no more may be"), "{refused}");
    }
    assert_eq!(next(&streams), before);
    assert_eq!(streams.open(), 0);
}

#[test]
fn a_node_below_that_wants_what_is_anothers_costs_itself_alone() {
    let streams = attached();
    let below = streams.attach_relay(node("below"), LEVEL).expect("it is let in");
    drop(said(&below));
    let named = |number, of: &str| Named { number, subject: encode_subject(&Subject::Node(node(of))) };
    let wants = |node, subject| Wants { node, as_of: 5, from_now: vec![subject], no_longer: Vec::new() };
    let told = Relayed {
        come: vec![Come { node: 3, name: "n1".to_owned() }, Come { node: 4, name: "n2".to_owned() }],
        names: vec![named(0, "n1"), named(1, "n2")],
        wants: vec![wants(3, 1), wants(4, 1)],
        in_force: vec![InForce { through: 5, nodes: vec![3, 4], ..InForce::default() }],
        ..Relayed::default()
    };
    below.handle(AgentSays::Relayed(told)).expect("heard");
    let gone = Gone { node: 3, name: "n1".to_owned() };
    assert_eq!(said(&below), [ServerSays::Superseded(Superseded { nodes: vec![gone] })]);
    let Some(AgentSays::Relayed(told)) = streams.tell(1) else { panic!("the server is told") };
    assert_eq!(told.come.iter().map(|come| come.name.as_str()).collect::<Vec<_>>(), ["n2"]);
    assert_eq!((told.wants.len(), told.in_force[0].nodes.len()), (1, 1));
    below.handle(AgentSays::Relayed(Relayed { away: vec![3], ..Relayed::default() })).expect("heard");
    assert!(streams.tell(1).is_none());
}

#[test]
fn an_agent_asks_in_parts_and_is_answered_when_all_of_it_is_there() {
    let streams = attached();
    let agent = streams.attach(node("n1"), &hello("n1")).expect("it is let in");
    drop(said(&agent));
    let part = |subject: &Subject, more| {
        let resumes = vec![Resume { subject: encode_subject(subject), have: 0 }];
        AgentSays::Subscribe(Subscribe { resumes, reached: None, more })
    };
    agent.handle(part(&OWN[0], true)).expect("heard");
    assert!(take(&agent).is_pending());
    agent.handle(part(&OWN[1], false)).expect("heard");
    let said = said(&agent);
    assert!(matches!(said[..], [ServerSays::Whole(_), ServerSays::Whole(_), ServerSays::Through(_)]), "{said:?}");
}

#[test]
fn a_relay_below_that_says_more_of_relays_than_servers_hear_ends_and_no_other() {
    let streams = attached();
    let below = streams.attach_relay(node("below"), LEVEL).expect("it is let in");
    let other = streams.attach_relay(node("other"), LEVEL).expect("it is let in");
    let trusts = |count: usize, root: &str| {
        let relay = |number| RelayTrusts { relay: format!("n{number}"), roots: vec![root.to_owned()] };
        AgentSays::Trusts(Trusts { relays: (0..count).map(relay).collect() })
    };
    other.handle(trusts(3_000, "aa")).expect("heard");
    let refused = below.handle(trusts(1, &"a".repeat(ROOT_ID_BYTES_MAX + 1))).expect_err("no root is called so");
    assert!(matches!(refused, CallError::Refused { .. }), "{refused}");
    let refused = below.handle(trusts(RELAYS_MAX, "aa")).expect_err("with those who say so they are more");
    assert!(matches!(refused, CallError::Unavailable { .. }), "{refused}");
    drop(below);
    let Some(AgentSays::Trusts(told)) = streams.requests(1).pop() else { panic!("the server is told") };
    assert_eq!(told.relays.len(), 3_000 + 2, "those below, who said so and this relay");
}

#[test]
fn streams_are_told_once_that_no_server_is_reached_and_that_one_is_again() {
    let streams = attached();
    let there = streams.attach(node("n1"), &hello("n1")).expect("it is let in");
    let of_before =
        streams.attach(node("n2"), &Hello { level: LEVEL_OF_REACH - 1, ..hello("n2") }).expect("it is let in");
    let below = streams.attach_relay(node("below"), LEVEL).expect("it is let in");
    let reach = |stream: &dyn AgentStream| -> Vec<bool> {
        let reaches = |says| if let ServerSays::Reach(reach) = says { Some(reach.cut_off) } else { None };
        said(stream).into_iter().filter_map(reaches).collect()
    };
    streams.tell_reach(true);
    assert_eq!([reach(&there), reach(&of_before), reach(&below)], [const { Vec::<bool>::new() }; 3]);
    streams.tell_reach(false);
    streams.tell_reach(false);
    assert_eq!([reach(&there), reach(&of_before), reach(&below)], [vec![true], vec![], vec![true]]);
    let late = streams.attach(node("n3"), &hello("n3")).expect("it is let in");
    assert_eq!(reach(&late), [true], "who comes is told as well");
    streams.tell_reach(true);
    assert_eq!(
        [reach(&there), reach(&of_before), reach(&below), reach(&late)],
        [vec![false], vec![], vec![false], vec![false]]
    );
}

#[test]
fn a_stream_from_a_server_that_is_over_does_not_begin() {
    let streams = Streams::new("r1".parse().expect("a name"), &Registry::default());
    streams.expect(1);
    streams.expect(2);
    assert!(streams.begin(1).is_some());
    streams.end(1);
    // It was given up while it was being made, and its task was about to begin.
    streams.end(2);
    assert!(streams.begin(2).is_none());
    assert!(streams.begin(1).is_none());
    assert!(streams.lock().lines.is_empty());
    streams.expect(3);
    streams.begin_anew();
    assert!(streams.begin(3).is_none());
}
