//! What comes from outside: whatever the bytes, an error or a value, never a panic, and nothing half applied.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message;
use starling_attach::message::{
    AgentSays, REFUSAL_RESOURCES_MAX, REFUSAL_TEXT_BYTES_MAX, Rejected, ServerSays, Through, Update, Whole, WireItem,
    WireSubject, decode_subject, encode_subject,
};
use starling_attach::{FromAgent, FromServer, Intake, MessageError, Replica, ReplicaError};
use starling_catalog::{MeshRead, Subject};
use starling_model::Revision;

fn endpoints() -> Subject {
    Subject::Endpoints("web".parse().unwrap())
}

/// Every subject that an agent can want, of the names that the tests below use.
fn wanting() -> Listening {
    let mut replica = Replica::default();
    let service = || "web".parse().unwrap();
    for subject in [
        endpoints(),
        Subject::Service(service()),
        Subject::Routing(service()),
        Subject::Intentions("web".parse().unwrap()),
        Subject::Destinations(service()),
        Subject::ProxyDefaults,
        Subject::Roots,
        Subject::Node("n1".parse().unwrap()),
    ] {
        replica.want(&subject);
    }
    let (intake, _) = Intake::begin(&mut replica, false);
    Listening { replica, intake }
}

/// A replica that listens to one stream.
struct Listening {
    replica: Replica,
    intake: Intake,
}

impl Listening {
    fn handle(&mut self, says: &ServerSays) -> Result<(), ReplicaError> {
        if self.intake.hear(&self.replica, says)? {
            self.intake.hand_over(&mut self.replica);
        }
        Ok(())
    }

    /// Hears this and that it was all.
    fn hear_all(&mut self, says: &ServerSays) -> Result<(), ReplicaError> {
        self.handle(says)?;
        self.handle(&ServerSays::Through(Through { revision: 1, ..Through::default() }))
    }
}

fn wire_subject() -> impl Strategy<Value = Option<WireSubject>> {
    let name = prop_oneof![
        4 => prop::sample::select(vec!["web", "n1", "", "*", "a b", "global"]).prop_map(str::to_owned),
        1 => any::<String>(),
    ];
    prop::option::weighted(0.95, (0..10u32, name).prop_map(|(kind, name)| WireSubject { kind, name }))
}

fn wire_item() -> impl Strategy<Value = WireItem> {
    let key = prop_oneof![
        4 => prop::sample::select(vec!["", "virtual-address", "n1/i1", "n1/i2", "n1", "/", "n1/", "r1", "n 1/i"]).prop_map(str::to_owned),
        1 => any::<String>(),
    ];
    let value = prop_oneof![
        // A front: address, port, weights, health.
        3 => (0..3u32, 0..70_000u32).prop_map(|(health, port)| front_bytes(health, port)),
        2 => prop::sample::select(vec!["{}", "null", "", "four", "[\"web\"]", r#"{"service-defaults":{"service":"web"}}"#, r#"{"proxy-defaults":{}}"#])
            .prop_map(|text| Bytes::from_static(text.as_bytes())),
        1 => prop::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from),
    ];
    (key, prop::option::of(value)).prop_map(|(key, value)| WireItem { key, value })
}

fn front_bytes(health: u32, port: u32) -> Bytes {
    #[derive(Clone, PartialEq, Message)]
    struct Front {
        #[prost(uint32, tag = "2")]
        port: u32,
        #[prost(uint32, tag = "5")]
        health: u32,
    }
    Front { port, health }.encode_to_vec().into()
}

fn server_says() -> impl Strategy<Value = ServerSays> {
    prop_oneof![
        (wire_subject(), 0..20u64, prop::option::weighted(0.95, wire_item()))
            .prop_map(|(subject, revision, item)| ServerSays::Update(Update { subject, revision, item })),
        (wire_subject(), 0..20u64, prop::collection::vec(wire_item(), 0..3))
            .prop_map(|(subject, revision, items)| ServerSays::Whole(Whole { subject, revision, items })),
        (0..20u64).prop_map(|revision| ServerSays::Through(Through { revision, ..Through::default() })),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_a_frame_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let bytes = Bytes::from(bytes);
        let _ = FromAgent::from_bytes(bytes.clone());
        if let Ok(says) = FromServer::from_bytes(bytes.clone()) {
            let _ = wanting().handle(&says);
        }
        let _ = Replica::from_frames([bytes]);
    }

    #[test]
    fn a_damaged_frame_is_a_frame_or_an_error(
        says in server_says(), at in any::<prop::sample::Index>(), with in any::<u8>(), cut in any::<bool>(),
    ) {
        let mut bytes = FromServer::from(says).to_bytes().to_vec();
        let at = at.index(bytes.len().max(1)).min(bytes.len().saturating_sub(1));
        if cut { bytes.truncate(at) } else if let Some(byte) = bytes.get_mut(at) { *byte = with }
        if let Ok(says) = FromServer::from_bytes(bytes.into()) {
            let _ = wanting().handle(&says);
        }
    }

    #[test]
    fn what_is_refused_changes_nothing(all in prop::collection::vec(server_says(), 1..30)) {
        let mut listening = wanting();
        for says in &all {
            let (before, through) = (listening.replica.to_frames(), listening.replica.through());
            let heard = listening.handle(says);
            let replica = &listening.replica;
            match heard {
                Ok(()) => prop_assert!(through <= replica.through()),
                Err(ReplicaError::Message(_)) => prop_assert_eq!(before, replica.to_frames()),
                Err(ReplicaError::Back { have, sent, .. }) => {
                    prop_assert!(sent <= have);
                    prop_assert_eq!(through, replica.through());
                    prop_assert_eq!(before, replica.to_frames());
                }
                Err(other) => prop_assert!(false, "{other}"),
            }
            // What was taken in can be kept and read again.
            let again = Replica::from_frames(replica.to_frames()).unwrap();
            prop_assert_eq!(again.to_frames(), replica.to_frames());
        }
    }
}

fn whole_of(subject: &Subject, items: Vec<WireItem>) -> ServerSays {
    ServerSays::Whole(Whole { subject: encode_subject(subject), revision: 1, items })
}

fn item(key: &str, value: Option<Bytes>) -> WireItem {
    WireItem { key: key.to_owned(), value }
}

#[test]
fn values_outside_the_grammar_are_errors() {
    let front = || Some(front_bytes(0, 80));
    let json = |text: &'static str| Some(Bytes::from_static(text.as_bytes()));
    let root = r#"{"id":"r1","name":"","certificate_pem":"","serial":1,"signing_key_id":"","trust_domain":"m","not_before":0,"not_after":1,"active":true}"#;
    let routing = Subject::Routing("web".parse().unwrap());
    let destinations = Subject::Destinations("web".parse().unwrap());
    let good = [
        (endpoints(), item("n1/i1", front())),
        (Subject::Roots, item("r1", json(root))),
        (routing.clone(), item("", json(r#"{"service-defaults":{"service":"web"}}"#))),
        (routing.clone(), item("virtual-address", json("\u{f}\u{1}\u{2}\u{3}"))),
        (destinations.clone(), item("", json("[\"api\"]"))),
        (Subject::Service("web".parse().unwrap()), item("", json(""))),
    ];
    for (subject, item) in good {
        let mut replica = wanting();
        replica.hear_all(&whole_of(&subject, vec![item])).unwrap();
        assert!(replica.replica.knows(&subject));
    }
    let bad = [
        (endpoints(), item("i1", front())),
        (endpoints(), item("n1/a b", front())),
        (endpoints(), item("n1/i1", None)),
        (Subject::Roots, item("r2", json(root))),
        (destinations, item("web", json("[]"))),
        (Subject::Service("web".parse().unwrap()), item("x", json(""))),
    ];
    for (subject, item) in bad {
        let mut replica = wanting();
        let refused = replica.hear_all(&whole_of(&subject, vec![item.clone()]));
        assert!(matches!(refused, Err(ReplicaError::Message(_))), "{subject} {item:?}: {refused:?}");
        assert!(!replica.replica.knows(&subject));
    }
}

/// One entry of a newer release must not cut an agent off from every other change.
#[test]
fn unreadable_values_keep_the_stream_and_allow_nothing() {
    let json = |text: &'static str| Some(Bytes::from_static(text.as_bytes()));
    let routing = Subject::Routing("web".parse().unwrap());
    let unreadable = [
        (endpoints(), item("n1/i1", Some(front_bytes(3, 80)))),
        (endpoints(), item("n1/i1", Some(front_bytes(0, 65_536)))),
        (endpoints(), item("n1/i1", json("{}"))),
        (routing.clone(), item("", json(r#"{"service-defaults":{"service":"other"}}"#))),
        (routing.clone(), item("", json(r#"{"service-intentions":{"destination":"web","sources":[]}}"#))),
        (routing.clone(), item("x", json(r#"{"service-defaults":{"service":"web"}}"#))),
        (routing.clone(), item("virtual-address", json("240.0.0.1"))),
        (routing, item("", json("{"))),
        (Subject::Destinations("web".parse().unwrap()), item("", json("[\"a b\"]"))),
    ];
    for (subject, item) in unreadable {
        let mut replica = wanting();
        replica.hear_all(&whole_of(&subject, vec![item])).unwrap();
        assert!(replica.replica.knows(&subject));
        assert_eq!(replica.replica.unreadable().count(), 1, "{subject}");
        // A later release of the agent may read it, so the agent asks for the subject again.
        let mut kept = Replica::from_frames(replica.replica.to_frames()).unwrap();
        let (_, AgentSays::Subscribe(asked)) = Intake::begin(&mut kept, false) else { panic!("no request") };
        let again = asked.resumes.iter().find(|resume| resume.subject == encode_subject(&subject)).unwrap();
        assert_eq!(again.have, 0, "{subject}");
    }
    let subject = Subject::Intentions("web".parse().unwrap());
    let mut replica = wanting();
    replica.hear_all(&whole_of(&subject, vec![item("", json(r#"{"of":"tomorrow"}"#))])).unwrap();
    let entry = starling_catalog::MeshRead::intentions(&replica.replica, &"web".parse().unwrap()).unwrap();
    assert!(entry.sources.len() == 1 && !entry.sources[0].decision.may_allow(), "{entry:?}");
}

#[test]
fn a_subject_has_one_form() {
    for (kind, name) in [(0, ""), (1, ""), (1, "*"), (2, "a b"), (5, "x"), (6, "global"), (7, "*"), (8, "*"), (9, "x")]
    {
        assert!(decode_subject(&WireSubject { kind, name: name.to_owned() }).is_err(), "{kind} {name:?}");
    }
    for (kind, name) in
        [(1, "web"), (2, "web"), (3, "web"), (4, "web"), (4, "*"), (5, ""), (6, ""), (7, "n1"), (8, "web")]
    {
        let wire = WireSubject { kind, name: name.to_owned() };
        assert_eq!(encode_subject(&decode_subject(&wire).unwrap()), Some(wire));
    }
}

#[test]
fn a_frame_that_says_nothing_is_an_error() {
    assert_eq!(FromServer::from_bytes(Bytes::new()), Err(MessageError::Unknown));
    assert_eq!(FromAgent::from_bytes(Bytes::new()), Err(MessageError::Unknown));
    // A kind of frame from the future: field 15, no bytes.
    assert_eq!(FromServer::from_bytes(Bytes::from_static(&[0x7a, 0])), Err(MessageError::Unknown));
    assert!(matches!(FromServer::from_bytes(Bytes::from_static(&[0xff])), Err(MessageError::Undecodable(_))));
}

#[test]
fn a_refusal_is_cut_between_characters() {
    let long = Rejected {
        text: "é".repeat(REFUSAL_TEXT_BYTES_MAX),
        resources: vec![String::new(); REFUSAL_RESOURCES_MAX + 1],
        ..Rejected::default()
    };
    let says = FromAgent::from(AgentSays::Rejected(long.bounded())).encode_to_vec();
    let AgentSays::Rejected(cut) = FromAgent::from_bytes(says.into()).unwrap() else { panic!("a refusal") };
    assert_eq!((cut.text.len(), cut.resources.len()), (REFUSAL_TEXT_BYTES_MAX, REFUSAL_RESOURCES_MAX));
}

#[test]
fn an_update_of_what_was_never_heard_of_is_no_whole() {
    let mut replica = wanting();
    let subject = encode_subject(&endpoints());
    let update = Update { subject, revision: 1, item: Some(item("n1/i1", Some(front_bytes(0, 80)))) };
    replica.hear_all(&ServerSays::Update(update)).unwrap();
    let replica = replica.replica;
    assert!(!replica.knows(&endpoints()));
    assert_eq!(replica.subject_revision(&endpoints()), Revision(0));
}
