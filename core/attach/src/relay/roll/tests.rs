use super::*;

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
    let first = roll.tell(150);
    assert_eq!(first.come.len(), 2);
    assert_eq!(first.names.len(), 2, "web is named once: {first:?}");
    assert_eq!(first.wants.iter().map(|wants| wants.from_now.len()).sum::<usize>(), 3);
    assert_eq!(first.in_force, [InForce { through: 5, refusals_stand: false, nodes: vec![a], held_us: vec![50] }]);
    assert!(!roll.has_untold());

    roll.applied(a, Revision(6), false, 200);
    roll.applied(b, Revision(6), false, 210);
    roll.wants_no_longer(a, [&api].into_iter());
    let second = roll.tell(210);
    let expected = InForce { through: 6, refusals_stand: false, nodes: vec![a, b], held_us: vec![10, 0] };
    assert_eq!(second.in_force, [expected]);
    assert!(second.come.is_empty() && second.names.is_empty());
    assert_eq!(second.wants.len(), 1);

    roll.tell_anew();
    let anew = roll.tell(300);
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
    assert_eq!(roll.tell(0).come, [Come { node: b, name: "b".to_owned() }]);
    roll.away(b);
    let c = roll.come(node("c")).unwrap();
    assert_ne!(b, c, "the number is taken until it was said that the node is away");
    let told = roll.tell(0);
    assert_eq!((told.away, told.come.len()), (vec![b], 1));
    assert_eq!(roll.come(node("d")).unwrap(), b);
}

#[test]
fn refusals_are_told_once_and_again_to_another_while_they_stand() {
    let mut roll = Roll::default();
    let a = roll.come(node("a")).unwrap();
    roll.rejected(a, Rejected { revision: 3, text: "no".to_owned(), ..Rejected::default() });
    roll.applied(a, Revision(3), true, 0);
    let told = roll.tell(0);
    assert_eq!((told.rejected.len(), told.in_force[0].refusals_stand), (1, true));
    roll.applied(a, Revision(4), true, 0);
    assert!(roll.tell(0).rejected.is_empty());
    roll.tell_anew();
    assert_eq!(roll.tell(0).rejected.len(), 1);
    roll.applied(a, Revision(5), false, 0);
    roll.tell_anew();
    assert!(roll.tell(0).rejected.is_empty());
}

#[test]
fn much_is_told_in_parts() {
    let mut roll = Roll::default();
    for number in 0..20_000 {
        roll.come(node(&format!("n{number}"))).unwrap();
    }
    let mut parts = 0;
    while roll.has_untold() {
        roll.tell(0);
        parts += 1;
    }
    assert!((2..10).contains(&parts), "{parts}");
}
