use super::*;

/// What a server has said that is ahead of everyone.
const ALL: Revision = Revision(u64::MAX);

fn subject(name: &str) -> Subject {
    Subject::Endpoints(name.parse().expect("a name"))
}

fn node(name: &str) -> NodeName {
    name.parse().expect("a name")
}

#[test]
fn what_is_told_is_the_difference_and_another_server_is_told_everything() {
    let mut roll = Roll::default();
    let (a, b) = (roll.come(node("a")).unwrap(), roll.come(node("b")).unwrap());
    let (web, api) = (subject("web"), subject("api"));
    roll.wants(a, Revision(5), [&web, &api].into_iter());
    roll.wants(b, Revision(5), [&web].into_iter());
    roll.applied(a, Revision(5), false, 100);
    let first = roll.tell(ALL, 150);
    assert_eq!(first.come.len(), 2);
    assert_eq!(first.names.len(), 2, "web is named once: {first:?}");
    assert_eq!(first.wants.iter().map(|wants| wants.from_now.len()).sum::<usize>(), 3);
    assert_eq!(first.in_force, [InForce { through: 5, refusals_stand: false, nodes: vec![a], held_us: vec![50] }]);
    assert!(!roll.has_untold());

    roll.applied(a, Revision(6), false, 200);
    roll.applied(b, Revision(6), false, 210);
    roll.wants_no_longer(a, [&api].into_iter());
    let second = roll.tell(ALL, 210);
    let expected = InForce { through: 6, refusals_stand: false, nodes: vec![a, b], held_us: vec![10, 0] };
    assert_eq!(second.in_force, [expected]);
    assert!(second.come.is_empty() && second.names.is_empty());
    assert_eq!(second.wants.len(), 1);

    roll.tell_anew();
    let anew = roll.tell(ALL, 300);
    assert_eq!((anew.come.len(), anew.names.len()), (2, 1), "{anew:?}");
    assert_eq!(anew.wants.iter().map(|wants| wants.as_of).collect::<Vec<_>>(), [6, 6]);
    assert_eq!(anew.in_force.len(), 1);
}

#[test]
fn a_node_that_goes_before_it_is_told_of_is_not_told_of() {
    let mut roll = Roll::default();
    let a = roll.come(node("a")).unwrap();
    roll.wants(a, Revision(1), [&subject("web")].into_iter());
    roll.away(a);
    assert!(!roll.has_untold() && roll.is_empty());
    assert!(roll.subjects.numbers.is_empty(), "nothing is left behind");
    let b = roll.come(node("b")).unwrap();
    assert_eq!(roll.tell(ALL, 0).come, [Come { node: b, name: "b".to_owned() }]);
    roll.away(b);
    let c = roll.come(node("c")).unwrap();
    assert_ne!(b, c, "the number is taken until it was said that the node is away");
    let told = roll.tell(ALL, 0);
    assert_eq!((told.away, told.come.len()), (vec![b], 1));
    assert_eq!(roll.come(node("d")).unwrap(), b);
}

#[test]
fn nodes_that_go_before_they_are_told_of_leave_the_turns_of_others_as_they_are() {
    let mut roll = Roll::default();
    let stays = roll.come(node("first")).unwrap();
    // Were each looked for among all that wait this would take minutes.
    let passing: Vec<_> = (0..100_000).map(|number| roll.come(node(&format!("n{number}"))).unwrap()).collect();
    let last = roll.come(node("last")).unwrap();
    passing.into_iter().rev().for_each(|number| roll.away(number));
    assert_eq!(roll.untold.len(), 2);
    let come = |told: Relayed| told.come.iter().map(|come| come.node).collect::<Vec<_>>();
    assert_eq!(come(roll.tell(ALL, 0)), [stays, last]);

    // One that was told of, and goes while something of it is to be told, waits for nothing but that.
    roll.applied(stays, Revision(1), false, 0);
    roll.applied(last, Revision(1), false, 0);
    roll.away(stays);
    let told = roll.tell(ALL, 0);
    assert_eq!((told.away, told.in_force[0].nodes.as_slice()), (vec![stays], &[last][..]));
    assert!(!roll.has_untold());
}

#[test]
fn refusals_are_told_once_and_again_to_another_while_they_stand() {
    let mut roll = Roll::default();
    let a = roll.come(node("a")).unwrap();
    roll.rejected(a, Rejected { revision: 3, text: "no".to_owned(), ..Rejected::default() });
    roll.applied(a, Revision(3), true, 0);
    let told = roll.tell(ALL, 0);
    assert_eq!((told.rejected.len(), told.in_force[0].refusals_stand), (1, true));
    roll.applied(a, Revision(4), true, 0);
    assert!(roll.tell(ALL, 0).rejected.is_empty());
    roll.tell_anew();
    assert_eq!(roll.tell(ALL, 0).rejected.len(), 1);
    roll.applied(a, Revision(5), false, 0);
    roll.tell_anew();
    assert!(roll.tell(ALL, 0).rejected.is_empty());
}

#[test]
fn of_more_refusals_than_are_remembered_none_is_lost_before_it_was_told() {
    let mut roll = Roll::default();
    let a = roll.come(node("a")).unwrap();
    let refuse = |roll: &mut Roll, revisions: std::ops::RangeInclusive<u64>| {
        for revision in revisions {
            roll.rejected(a, Rejected { revision, since: revision - 1, ..Rejected::default() });
            roll.applied(a, Revision(revision), true, 0);
        }
    };
    let told = |relayed: &Relayed| {
        let refusals = relayed.rejected.iter().filter_map(|said| said.rejected.as_ref());
        refusals.map(|refusal| (refusal.since, refusal.revision)).collect::<Vec<_>>()
    };
    refuse(&mut roll, 11..=13);
    assert_eq!(told(&roll.tell(ALL, 0)), [(10, 11), (11, 12), (12, 13)]);
    refuse(&mut roll, 14..=21);
    let all = (14..=21).map(|revision| (revision - 1, revision)).collect::<Vec<_>>();
    assert_eq!(told(&roll.tell(ALL, 0)), all, "those that were told have made room");

    // None of these is told yet: the earliest go with the next, and nothing of theirs counts as in force before.
    refuse(&mut roll, 31..=40);
    let behind = roll.tell(Revision(32), 0);
    assert_eq!((told(&behind), behind.in_force[0].through), (vec![], 30));
    roll.server_is_further();
    let further = roll.tell(Revision(40), 0);
    let all = [(30, 33)].into_iter().chain((34..=40).map(|revision| (revision - 1, revision)));
    assert_eq!(told(&further), all.collect::<Vec<_>>());
    assert_eq!((further.in_force[0].through, further.in_force[0].refusals_stand), (40, true));
}

#[test]
fn much_is_told_in_parts() {
    let mut roll = Roll::default();
    for number in 0..20_000 {
        roll.come(node(&format!("n{number}"))).unwrap();
    }
    let mut parts = 0;
    while roll.has_untold() {
        roll.tell(ALL, 0);
        parts += 1;
    }
    assert!((2..10).contains(&parts), "{parts}");
}

#[test]
fn a_server_is_told_of_what_it_has_said_itself_and_of_the_rest_when_it_has() {
    let mut roll = Roll::default();
    let (a, b) = (roll.come(node("a")).unwrap(), roll.come(node("b")).unwrap());
    roll.wants(a, Revision(5), [&subject("web")].into_iter());
    roll.applied(a, Revision(7), false, 100);
    roll.rejected(b, Rejected { revision: 6, ..Rejected::default() });
    roll.applied(b, Revision(6), true, 100);
    let in_force = |through, stand: bool, node, held| InForce {
        through,
        refusals_stand: stand,
        nodes: vec![node],
        held_us: vec![held],
    };
    let told = roll.tell(Revision(5), 110);
    assert_eq!(told.in_force, [in_force(5, false, a, 10), in_force(5, true, b, 10)]);
    assert!(told.rejected.is_empty(), "it knows of no revision 6: {told:?}");
    assert!(!roll.has_untold(), "it waits for the server");

    // A proxy may take back what it has refused before the server has heard of it: that it did is told all the same.
    roll.applied(b, Revision(7), false, 120);
    assert_eq!(roll.tell(Revision(5), 130).in_force, [in_force(5, false, b, 10)]);
    roll.server_is_further();
    let told = roll.tell(Revision(6), 500);
    assert_eq!(told.rejected.iter().map(|said| said.node).collect::<Vec<_>>(), [b]);
    let both = InForce { through: 6, refusals_stand: false, nodes: vec![a, b], held_us: vec![0, 0] };
    assert_eq!(told.in_force, [both], "what has waited for the server alone was not held here");
    roll.server_is_further();
    assert_eq!(roll.tell(Revision(9), 600).in_force[0].nodes, [a, b]);
    roll.server_is_further();
    assert!(!roll.has_untold());

    // Another one that is behind as well is told everything as far as it has come, and the rest later.
    roll.applied(a, Revision(12), false, 700);
    roll.tell_anew();
    let told = roll.tell(Revision(8), 710);
    assert_eq!((told.come.len(), told.in_force[0].through, told.in_force[1].through), (2, 7, 8), "{told:?}");
    roll.server_is_further();
    assert_eq!(roll.tell(Revision(12), 720).in_force, [in_force(12, false, a, 0)]);
}
