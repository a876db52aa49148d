//! Packets in and out without sockets: sizes, flags, errors, and bytes from nowhere.

#[path = "support/world.rs"]
mod world;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use proptest::prelude::*;
use starling_dns::responder::{AMPLIFICATION_MAX, PLAIN_UDP_BYTES, QUERY_BYTES_MAX, TCP_BYTES_MAX, UDP_BYTES_MAX};
use starling_dns::{Responder, Transport};
use starling_model::{Access, AclRights, AclRule, Action, Resource, RuleName};
use starling_telemetry::Registry;
use world::Shelf;

/// Instances of the service `big`: more than 512, 1232 and 65,535 bytes can tell.
const MANY: usize = 3_000;

fn responder() -> Responder<std::sync::Arc<Shelf>> {
    let mut lines = vec!["node n1 10.0.0.1".to_owned(), "service n1 web-1 web port=80".to_owned()];
    for number in 0..20 {
        lines.push(format!("service n1 ten-{number} ten port=80 address=10.0.1.{number}"));
    }
    Responder::new(Shelf::new(world::catalog(lines)))
}

fn crowd() -> Responder<std::sync::Arc<Shelf>> {
    let lines = (0..MANY).map(|number| {
        let (high, low) = (number / 250, number % 250);
        format!("service n1 big-{number} big port=80 address=10.2.{high}.{low}")
    });
    Responder::new(Shelf::new(world::catalog(lines)))
}

fn question(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(4711, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).expect("a name"), kind));
    message
}

fn with_edns(mut message: Message, bytes_max: u16) -> Message {
    let mut edns = Edns::new();
    edns.set_max_payload(bytes_max);
    message.set_edns(edns);
    message
}

/// Asks, and checks what holds for every answer.
fn ask(responder: &Responder<std::sync::Arc<Shelf>>, question: &Message, transport: Transport) -> (Message, usize) {
    let packet = question.to_vec().expect("encodes");
    let bytes = responder.respond(&packet, transport).expect("an answer");
    let answer = Message::from_vec(&bytes).expect("decodes");
    assert_eq!(answer.metadata.id, question.metadata.id);
    assert_eq!(answer.metadata.message_type, MessageType::Response);
    assert_eq!(answer.metadata.recursion_desired, question.metadata.recursion_desired);
    assert!(!answer.metadata.recursion_available);
    if transport == Transport::Udp {
        assert!(bytes.len() <= packet.len() * AMPLIFICATION_MAX, "{} for {}", bytes.len(), packet.len());
    }
    (answer, bytes.len())
}

#[test]
fn the_question_comes_back_as_it_was_spelled() {
    let (answer, _) = ask(&responder(), &question("wEb.SerVICE.coNSul.", RecordType::A), Transport::Udp);
    assert_eq!(answer.queries[0].name().to_string(), "wEb.SerVICE.coNSul.");
    assert_eq!(answer.answers[0].name.to_string(), "wEb.SerVICE.coNSul.");
    assert!(answer.metadata.authoritative && !answer.metadata.truncation);
}

#[test]
fn an_answer_without_edns_has_at_most_512_bytes_and_says_that_it_is_cut() {
    let (answer, len) = ask(&crowd(), &question("big.service.consul.", RecordType::A), Transport::Udp);
    assert!(len <= PLAIN_UDP_BYTES, "{len}");
    assert!(answer.metadata.truncation && !answer.answers.is_empty());
    assert!(answer.edns.is_none());
}

#[test]
fn a_client_gets_as_much_as_it_offers_within_ours_and_ten_times_its_question() {
    let responder = crowd();
    // Padding (RFC 7830) makes the question long enough for an answer past 512 bytes.
    let mut padded = with_edns(question("big.service.consul.", RecordType::A), 65_000);
    let option = hickory_proto::rr::rdata::opt::EdnsOption::Unknown(12, vec![0; 200]);
    padded.edns.as_mut().expect("set").options_mut().insert(option);
    let (answer, len) = ask(&responder, &padded, Transport::Udp);
    assert!(len > PLAIN_UDP_BYTES && len <= usize::from(UDP_BYTES_MAX), "{len}");
    assert!(answer.metadata.truncation);
    assert_eq!(answer.edns.expect("answered with EDNS").max_payload(), UDP_BYTES_MAX);
    // Less than the floor counts as the floor.
    let (_, len) = ask(&responder, &with_edns(question("big.service.consul.", RecordType::A), 100), Transport::Udp);
    assert!(len > 100 && len <= PLAIN_UDP_BYTES, "{len}");
}

#[test]
fn tcp_carries_what_udp_cannot_up_to_its_length_field() {
    let (answer, _) = ask(&responder(), &question("ten.service.consul.", RecordType::A), Transport::Tcp);
    assert_eq!((answer.answers.len(), answer.metadata.truncation), (20, false));
    let (answer, len) = ask(&crowd(), &question("big.service.consul.", RecordType::A), Transport::Tcp);
    assert!(answer.metadata.truncation && answer.answers.len() < MANY);
    assert!(len <= TCP_BYTES_MAX && len > TCP_BYTES_MAX - 64, "{len}");
}

#[test]
fn additional_records_are_lost_without_a_word() {
    let query = question("ten.service.consul.", RecordType::SRV);
    let (answer, _) = ask(&responder(), &query, Transport::Tcp);
    assert_eq!((answer.answers.len(), answer.additionals.len()), (20, 20));
    // Six servers fit into ten times the question, the addresses of all six do not.
    let lines = (0..6).map(|number| format!("service n1 s-{number} six port=80 address=10.0.1.{number}"));
    let few = Responder::new(Shelf::new(world::catalog(lines)));
    let (answer, _) = ask(&few, &question("six.service.consul.", RecordType::SRV), Transport::Udp);
    assert_eq!((answer.answers.len(), answer.metadata.truncation), (6, false));
    assert!((1..6).contains(&answer.additionals.len()), "{}", answer.additionals.len());
}

#[test]
fn every_instance_comes_first_in_its_turn() {
    let responder = responder();
    let query = question("ten.service.consul.", RecordType::A);
    let mut first: Vec<_> = (0..20)
        .map(|_| {
            let answer = ask(&responder, &query, Transport::Udp).0;
            let RData::A(address) = &answer.answers[0].data else { panic!("not an address: {answer}") };
            address.0
        })
        .collect();
    first.sort_unstable();
    first.dedup();
    assert_eq!(first.len(), 20);
}

#[test]
fn a_change_is_seen_by_the_next_question() {
    let shelf = Shelf::new(world::catalog(["node n1 10.0.0.1"]));
    let responder = Responder::new(std::sync::Arc::clone(&shelf));
    let query = question("web.service.consul.", RecordType::A);
    assert_eq!(ask(&responder, &query, Transport::Udp).0.metadata.response_code, ResponseCode::NXDomain);
    shelf.add("service n1 web-1 WEB port=80");
    assert_eq!(ask(&responder, &query, Transport::Udp).0.answers.len(), 1);
    shelf.add("check n1 c1 critical service=web-1");
    assert_eq!(ask(&responder, &query, Transport::Udp).0.metadata.response_code, ResponseCode::NXDomain);
}

#[test]
fn what_is_no_plain_question_is_refused_by_its_kind() {
    let responder = responder();
    let code = |message: &Message| ask(&responder, message, Transport::Udp).0.metadata.response_code;
    let plain = question("web.service.consul.", RecordType::A);

    let mut update = plain.clone();
    update.metadata.op_code = OpCode::Update;
    assert_eq!(code(&update), ResponseCode::NotImp);

    let mut two = plain.clone();
    two.add_query(plain.queries[0].clone());
    assert_eq!(code(&two), ResponseCode::FormErr);

    let mut none = plain.clone();
    none.queries.clear();
    assert_eq!(code(&none), ResponseCode::FormErr);

    let mut chaos = plain.clone();
    chaos.queries[0].set_query_class(DNSClass::CH);
    assert_eq!(code(&chaos), ResponseCode::Refused);

    let mut newer = with_edns(plain.clone(), 1232);
    newer.edns.as_mut().expect("set").set_version(1);
    // 16 is BADSIG where there is a signature, so the decoder may call it that.
    assert_eq!(u16::from(code(&newer)), u16::from(ResponseCode::BADVERS));

    let mut outside = plain;
    outside.queries[0].set_name(Name::from_ascii("example.com.").expect("a name"));
    let (answer, _) = ask(&responder, &outside, Transport::Udp);
    assert_eq!(answer.metadata.response_code, ResponseCode::Refused);
    assert!(!answer.metadata.authoritative && answer.authorities.is_empty());
}

#[test]
fn responses_and_stumps_get_no_answer() {
    let responder = responder();
    let mut response = question("web.service.consul.", RecordType::A);
    response.metadata.message_type = MessageType::Response;
    assert_eq!(responder.respond(&response.to_vec().expect("encodes"), Transport::Udp), None);
    assert_eq!(responder.respond(&[0; 11], Transport::Udp), None);
    assert_eq!(responder.respond(&[], Transport::Tcp), None);
}

#[test]
fn a_header_that_lies_and_a_packet_too_long_are_format_errors() {
    let responder = responder();
    let code = |packet: &[u8]| {
        let bytes = responder.respond(packet, Transport::Udp).expect("an answer");
        assert!(bytes.len() <= packet.len() * AMPLIFICATION_MAX);
        Message::from_vec(&bytes).expect("decodes").metadata.response_code
    };
    let whole = question("web.service.consul.", RecordType::A).to_vec().expect("encodes");
    assert_eq!(code(&whole[..whole.len() - 1]), ResponseCode::FormErr);
    assert_eq!(code(&[0, 1, 0, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0]), ResponseCode::FormErr);
    // A name that points at itself.
    assert_eq!(code(&[0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1]), ResponseCode::FormErr);
    let mut long = whole;
    long.resize(QUERY_BYTES_MAX + 1, 0);
    assert_eq!(code(&long), ResponseCode::FormErr);
}

#[test]
fn queries_are_counted_by_code() {
    let registry = Registry::default();
    let responder = responder().counted(&registry);
    ask(&responder, &question("web.service.consul.", RecordType::A), Transport::Udp);
    ask(&responder, &question("no.service.consul.", RecordType::A), Transport::Udp);
    ask(&responder, &question("no.service.consul.", RecordType::A), Transport::Tcp);
    assert_eq!(responder.respond(&[1], Transport::Udp), None);
    let text = registry.encode();
    for line in [
        "starling_dns_queries_total{rcode=\"NOERROR\"} 1",
        "starling_dns_queries_total{rcode=\"NXDOMAIN\"} 2",
        "starling_dns_queries_total{rcode=\"REFUSED\"} 0",
        "starling_dns_packets_dropped_total 1",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

/// A query with bytes written over it, so that more of the decoder is reached than by noise.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let names = prop::sample::select(vec!["web.service.consul.", "ten.service.consul.", "n1.node.consul.", "consul."]);
    let kinds = prop::sample::select(vec![RecordType::A, RecordType::SRV, RecordType::ANY, RecordType::TXT]);
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    (names, kinds, any::<bool>(), damage).prop_map(|(name, kind, edns, damage)| {
        let message = question(name, kind);
        let mut message = if edns { with_edns(message, 4096) } else { message };
        let glue = Record::from_rdata(Name::root(), 0, RData::Update0(RecordType::A));
        message.additionals.extend(edns.then_some(glue));
        let mut packet = message.to_vec().expect("encodes");
        for (index, byte) in damage {
            let at = index.index(packet.len());
            packet[at] = byte;
        }
        packet
    })
}

fn harmless(packet: &[u8]) -> Result<(), TestCaseError> {
    let responder = responder();
    for transport in [Transport::Udp, Transport::Tcp] {
        let Some(bytes) = responder.respond(packet, transport) else { continue };
        let answer = Message::from_vec(&bytes).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(answer.metadata.message_type, MessageType::Response);
        prop_assert_eq!(&bytes[..2], &packet[..2]);
        if transport == Transport::Udp {
            prop_assert!(bytes.len() <= packet.len() * AMPLIFICATION_MAX);
            prop_assert!(bytes.len() <= usize::from(UDP_BYTES_MAX));
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_bytes_are_harmless(packet in prop::collection::vec(any::<u8>(), 0..600)) {
        harmless(&packet)?;
    }

    #[test]
    fn damaged_queries_are_harmless(packet in damaged()) {
        harmless(&packet)?;
    }
}

#[test]
fn what_may_not_be_seen_does_not_exist() {
    let lines = [
        "node n1 10.0.0.1",
        "node n2 10.0.0.2",
        "service n1 web-1 web port=80",
        "service n2 web-2 web port=80",
        "service n1 db-1 db port=80",
        "query shop web",
        "template find- ${name.suffix}",
    ];
    let code = |rules: &[AclRule], name: &str| {
        let shelf = Shelf::new(world::catalog(lines));
        shelf.allow_only(AclRights::new(Action::Deny, rules));
        let (answer, _) = ask(&Responder::new(shelf), &question(name, RecordType::A), Transport::Udp);
        (answer.metadata.response_code, answer.answers.len())
    };
    let web = AclRule::exact(Resource::Service, "web", Access::Read);
    let first = AclRule::exact(Resource::Node, "n1", Access::Read);
    let both = [web, first];
    let queries = [AclRule::new(Resource::Query, RuleName::Prefix("".into()), Access::Read)];
    for (rules, name, expected) in [
        (&[][..], "web.service.consul.", (ResponseCode::NXDomain, 0)),
        (&both[..], "web.service.consul.", (ResponseCode::NoError, 1)),
        (&both[..], "db.service.consul.", (ResponseCode::NXDomain, 0)),
        (&both[..1], "web.service.consul.", (ResponseCode::NXDomain, 0)),
        (&both[1..], "n1.node.consul.", (ResponseCode::NoError, 1)),
        (&both[1..], "n2.node.consul.", (ResponseCode::NXDomain, 0)),
        // What a query finds is judged, and not the query.
        (&both[..], "shop.query.consul.", (ResponseCode::NoError, 1)),
        (&both[..], "find-web.query.consul.", (ResponseCode::NoError, 1)),
        (&both[..], "find-db.query.consul.", (ResponseCode::NXDomain, 0)),
        (&queries[..], "shop.query.consul.", (ResponseCode::NXDomain, 0)),
        (&queries[..], "find-web.query.consul.", (ResponseCode::NXDomain, 0)),
    ] {
        assert_eq!(code(rules, name), expected, "{name}");
    }
}
