//! What a stream may and may not bring into the replica, frame by frame.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use starling_attach::message::{AgentSays, LEVEL, ServerSays, Through, Unsubscribed, Welcome, Whole, encode_subject};
use starling_attach::request::SUBJECTS_PER_PART;
use starling_attach::{Intake, Replica, ReplicaError};
use starling_catalog::Subject;
use starling_model::Revision;

fn welcome(epoch: u64) -> ServerSays {
    ServerSays::Welcome(Welcome { epoch, level: LEVEL, ..Welcome::default() })
}

fn whole(subject: &Subject, revision: u64) -> ServerSays {
    ServerSays::Whole(Whole { subject: encode_subject(subject), revision, items: Vec::new() })
}

fn through(revision: u64) -> ServerSays {
    ServerSays::Through(Through { revision, ..Through::default() })
}

/// Hears all of it; whether anything was handed over.
fn hears(intake: &mut Intake, replica: &mut Replica, all: &[ServerSays]) -> bool {
    let mut handed_over = false;
    for says in all {
        if intake.hear(replica, says).unwrap() {
            intake.hand_over(replica);
            handed_over = true;
        }
    }
    handed_over
}

/// A replica that has two subjects up to 5, and the stream over which it heard of them.
fn heard() -> (Replica, Intake) {
    let mut replica = Replica::default();
    replica.want(&Subject::Roots);
    let (mut intake, _) = Intake::begin(&mut replica, false);
    assert!(hears(&mut intake, &mut replica, &[welcome(7), whole(&Subject::Roots, 5), through(5)]));
    (replica, intake)
}

#[test]
fn the_answer_to_a_subscription_that_has_ended_is_none_to_the_next() {
    let (mut replica, mut intake) = heard();
    let wanted = Subject::ProxyDefaults;
    replica.want(&wanted);
    intake.want(&wanted);
    assert!(matches!(intake.requests()[..], [AgentSays::Subscribe(_)]));
    // It is forgotten and wanted again while the answer is under way.
    replica.forget(&wanted);
    intake.forget(&wanted);
    assert!(matches!(intake.requests()[..], [AgentSays::Unsubscribe(_)]));
    replica.want(&wanted);
    intake.want(&wanted);
    assert!(matches!(intake.requests()[..], [AgentSays::Subscribe(_)]));
    hears(&mut intake, &mut replica, &[whole(&wanted, 6), through(9)]);
    assert!(!replica.knows(&wanted), "what came of it between 6 and 9 nobody has told");
    let told = [ServerSays::Unsubscribed(Unsubscribed { count: 1 }), whole(&wanted, 10), through(10)];
    assert!(hears(&mut intake, &mut replica, &told));
    assert!(replica.knows(&wanted));
}

#[test]
fn the_answer_to_a_subscription_counts_after_every_part_of_the_end_before_it() {
    let (mut replica, mut intake) = heard();
    let subject = |number| Subject::Endpoints(format!("s{number:05}").parse().unwrap());
    let many: Vec<_> = (0..=SUBJECTS_PER_PART).map(subject).collect();
    for subject in &many {
        replica.want(subject);
        intake.want(subject);
    }
    drop(intake.requests());
    // The last is wanted again before so many others are forgotten that its end goes in the second part.
    let (last, others) = many.split_last().unwrap();
    replica.forget(last);
    intake.forget(last);
    replica.want(last);
    intake.want(last);
    for subject in others {
        replica.forget(subject);
        intake.forget(subject);
    }
    let says = intake.requests();
    assert!(
        matches!(says[..], [AgentSays::Unsubscribe(_), AgentSays::Unsubscribe(_), AgentSays::Subscribe(_)]),
        "{says:?}"
    );
    let unsubscribed = |count| ServerSays::Unsubscribed(Unsubscribed { count });
    hears(&mut intake, &mut replica, &[unsubscribed(1), whole(last, 6), through(9)]);
    assert!(!replica.knows(last), "it is of the subscription that has ended");
    assert!(hears(&mut intake, &mut replica, &[unsubscribed(2), whole(last, 10), through(10)]));
    assert!(replica.knows(last));
}

#[test]
fn a_stream_that_has_not_answered_yet_does_not_speak_for_what_another_has_told() {
    let (mut replica, mut primary) = heard();
    let (mut standby, _) = Intake::begin(&mut replica, true);
    assert!(!hears(&mut standby, &mut replica, &[welcome(7), through(5)]), "nothing is new");
    let wanted = Subject::ProxyDefaults;
    replica.want(&wanted);
    primary.want(&wanted);
    standby.want(&wanted);
    assert!(hears(&mut primary, &mut replica, &[whole(&wanted, 5), through(5)]));
    assert!(!hears(&mut standby, &mut replica, &[whole(&Subject::Roots, 8), through(8)]));
    assert_eq!(replica.through(), Revision(5));
    // A server that is behind answers, and the other is lost: what was heard before is not forgotten.
    drop(primary);
    assert!(hears(&mut standby, &mut replica, &[whole(&wanted, 8), through(8)]));
    assert_eq!(replica.through(), Revision(8));
}

#[test]
fn a_stream_that_is_behind_waits_and_one_that_goes_back_ends() {
    let (mut replica, _) = heard();
    let (mut behind, _) = Intake::begin(&mut replica, true);
    assert!(!hears(&mut behind, &mut replica, &[welcome(7), through(3), through(4)]));
    assert_eq!((replica.through(), behind.through()), (Revision(5), Revision(4)));
    let back = behind.hear(&replica, &through(3));
    assert!(matches!(back, Err(ReplicaError::Back { have: Revision(4), sent: Revision(3), .. })), "{back:?}");
}

#[test]
fn another_past_ends_the_stream_beside_and_a_new_beginning_every_stream() {
    let (mut replica, mut primary) = heard();
    let (mut standby, _) = Intake::begin(&mut replica, true);
    let elsewhere = standby.hear(&replica, &welcome(8));
    assert_eq!(elsewhere, Err(ReplicaError::Elsewhere { heard: 7, epoch: 8 }));
    assert_eq!(replica.through(), Revision(5), "nothing is thrown away");
    replica.begin_anew();
    assert_eq!(primary.hear(&replica, &through(9)), Err(ReplicaError::BegunAnew));
    assert_eq!(primary.hand_over(&mut replica), starling_attach::HandedOver::default());
}
