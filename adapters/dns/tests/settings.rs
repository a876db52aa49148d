//! What an operator chooses, in packets: cuts, what they say, compression; and who is answered at all.

#[path = "support/world.rs"]
mod world;

use std::collections::BTreeSet;
use std::sync::Arc;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use starling_dns::{Responder, Settings, Sight, Transport};
use starling_model::{AclRights, Action};
use world::Shelf;

/// Instances of the service `ten`, each with an address of its own.
const INSTANCES: usize = 10;

fn shelf() -> Arc<Shelf> {
    let lines = (0..INSTANCES).map(|number| format!("service n1 ten-{number} ten port=80 address=10.0.1.{number}"));
    Shelf::new(world::catalog(std::iter::once("node n1 10.0.0.1".to_owned()).chain(lines)))
}

fn ask(settings: Settings, kind: RecordType, transport: Transport, edns: Option<u16>) -> (Message, usize) {
    let mut question = Message::new(1, MessageType::Query, OpCode::Query);
    question.add_query(Query::query(Name::from_ascii("ten.service.consul.").expect("a name"), kind));
    if let Some(bytes_max) = edns {
        let mut edns = Edns::new();
        edns.set_max_payload(bytes_max);
        question.set_edns(edns);
    }
    let packet = question.to_vec().expect("encodes");
    let bytes = Responder::new(shelf()).configured(settings).respond(&packet, transport).expect("an answer");
    (Message::from_vec(&bytes).expect("decodes"), bytes.len())
}

fn limited(most: usize, says_truncated: Option<bool>) -> Settings {
    Settings { udp_answers_max: Some(most), says_truncated, ..Settings::default() }
}

#[test]
fn clients_of_512_bytes_get_as_many_answers_as_is_said_and_others_all() {
    for (says, truncated) in [(None, false), (Some(false), false), (Some(true), true)] {
        let (answer, _) = ask(limited(3, says), RecordType::A, Transport::Udp, None);
        assert_eq!((answer.answers.len(), answer.metadata.truncation), (3, truncated), "{says:?}");
        let (answer, _) = ask(limited(3, says), RecordType::A, Transport::Udp, Some(512));
        assert_eq!((answer.answers.len(), answer.metadata.truncation), (3, truncated), "{says:?}");
        for (transport, edns) in [(Transport::Udp, Some(1232)), (Transport::Tcp, None)] {
            let (answer, _) = ask(limited(3, says), RecordType::A, transport, edns);
            assert_eq!((answer.answers.len(), answer.metadata.truncation), (INSTANCES, false), "{says:?}");
        }
    }
    let (answer, _) = ask(limited(INSTANCES, Some(true)), RecordType::A, Transport::Udp, None);
    assert_eq!((answer.answers.len(), answer.metadata.truncation), (INSTANCES, false));
}

#[test]
fn what_is_left_out_takes_its_address_with_it() {
    let (answer, _) = ask(limited(2, None), RecordType::SRV, Transport::Udp, None);
    let targets = answer.answers.iter().map(|record| {
        let RData::SRV(server) = &record.data else { panic!("not a server: {record}") };
        server.target.clone()
    });
    let targets: BTreeSet<_> = targets.collect();
    let named: BTreeSet<_> = answer.additionals.iter().map(|record| record.name.clone()).collect();
    assert_eq!((targets.len(), &targets), (2, &named));
}

#[test]
fn a_cut_for_size_says_so_unless_that_is_turned_off() {
    for (says, truncated) in [(None, true), (Some(true), true), (Some(false), false)] {
        let settings = Settings { says_truncated: says, ..Settings::default() };
        let (answer, _) = ask(settings, RecordType::SRV, Transport::Udp, None);
        assert!(answer.answers.len() < INSTANCES, "ten times the question is too little for all");
        assert_eq!(answer.metadata.truncation, truncated, "{says:?}");
    }
}

#[test]
fn addresses_are_limited_over_both_transports_and_servers_are_not() {
    let settings = || Settings { addresses_max: Some(2), ..Settings::default() };
    for transport in [Transport::Udp, Transport::Tcp] {
        for kind in [RecordType::A, RecordType::ANY] {
            let (answer, _) = ask(settings(), kind, transport, None);
            assert_eq!((answer.answers.len(), answer.metadata.truncation), (2, false), "{kind}");
        }
    }
    assert_eq!(ask(settings(), RecordType::SRV, Transport::Tcp, None).0.answers.len(), INSTANCES);
}

#[test]
fn names_are_written_out_where_that_is_asked_for() {
    let (short, compressed) = ask(Settings::default(), RecordType::A, Transport::Tcp, None);
    let settings = Settings { compressed: false, ..Settings::default() };
    let (long, plain) = ask(settings.clone(), RecordType::A, Transport::Tcp, None);
    let addresses = |answer: &Message| answer.answers.iter().map(|it| it.data.to_string()).collect::<BTreeSet<_>>();
    assert_eq!(addresses(&short), addresses(&long));
    // A pointer has two bytes, the name 20.
    assert_eq!(plain, compressed + INSTANCES * (20 - 2));
    let (cut, len) = ask(settings, RecordType::A, Transport::Udp, None);
    assert!(len <= 512 && !cut.answers.is_empty());
}

#[test]
fn who_is_not_known_is_refused_and_answered_once_that_has_changed() {
    let shelf = shelf();
    let responder = Responder::new(Arc::clone(&shelf));
    let code = |name: &str| {
        let mut question = Message::new(1, MessageType::Query, OpCode::Query);
        question.add_query(Query::query(Name::from_ascii(name).expect("a name"), RecordType::A));
        let bytes = responder.respond(&question.to_vec().expect("encodes"), Transport::Udp).expect("an answer");
        Message::from_vec(&bytes).expect("decodes").metadata.response_code
    };
    assert_eq!(code("ten.service.consul."), ResponseCode::NoError);
    shelf.show(Sight::Nothing);
    for name in ["ten.service.consul.", "n1.node.consul.", "gone.service.consul.", "consul."] {
        assert_eq!(code(name), ResponseCode::Refused, "{name}");
    }
    shelf.show(Sight::Only(AclRights::new(Action::Deny, &[])));
    assert_eq!(code("ten.service.consul."), ResponseCode::NXDomain);
    shelf.show(Sight::Everything);
    assert_eq!(code("ten.service.consul."), ResponseCode::NoError);
}
