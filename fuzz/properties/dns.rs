//! What holds of every packet that comes to the DNS door. Included by the fuzz target and by the test that replays what it has found.

use std::sync::{Arc, LazyLock};

use hickory_proto::op::{Message, MessageType};
use starling_dns::responder::{AMPLIFICATION_MAX, UDP_BYTES_MAX};
use starling_dns::settings::ServiceTtls;
use starling_dns::{Responder, Settings, Transport};

use crate::world::{Shelf, catalog};

/// Two ways to answer the same catalog: as it is by default, and with every setting changed.
static RESPONDERS: LazyLock<[Responder<Arc<Shelf>>; 2]> = LazyLock::new(|| {
    let mut lines = vec![
        "node n1 10.0.0.1 rack=r1".to_owned(),
        "node N2 2001:db8::2".to_owned(),
        "node n3 host.example.com".to_owned(),
        "service n1 Web-1 Web port=80 tags=v1,a.b weights=5/2".to_owned(),
        "service N2 web-2 web port=81 native=true".to_owned(),
        "sidecar n1 web-proxy web-proxy port=82 of=web".to_owned(),
        "check N2 c1 warning service=web-2".to_owned(),
        "virtual web 240.0.0.1".to_owned(),
        "ingress gw web".to_owned(),
        "query shop web ttl=9 near=_agent".to_owned(),
        "template find- ${name.suffix}".to_owned(),
        "template geo- ${match(1)} regexp=^geo-(.*)$".to_owned(),
    ];
    lines.extend((0..40).map(|number| format!("service n1 ten-{number} ten port=80 address=10.0.1.{number}")));
    let shelf = Shelf::new(catalog(lines));
    let settings = Settings {
        only_passing: true,
        node_ttl_s: 7,
        service_ttl: ServiceTtls::new([("w*".to_owned(), 1), ("*".to_owned(), 2)]),
        says_truncated: Some(true),
        udp_answers_max: Some(2),
        addresses_max: Some(3),
        compressed: false,
        ..Settings::default()
    };
    [Responder::new(Arc::clone(&shelf)), Responder::new(shelf).configured(settings)]
});

/// What is answered is an answer to it, can be read, and is no larger than it may be.
pub fn dns(data: &[u8]) {
    for responder in RESPONDERS.iter() {
        for transport in [Transport::Udp, Transport::Tcp] {
            let Some(bytes) = responder.respond(data, transport) else { continue };
            let answer = Message::from_vec(&bytes).expect("an answer can be read");
            assert_eq!(answer.metadata.message_type, MessageType::Response);
            assert_eq!(bytes[..2], data[..2], "it is answered to another");
            if transport == Transport::Udp {
                assert!(bytes.len() <= data.len() * AMPLIFICATION_MAX, "{} for {}", bytes.len(), data.len());
                assert!(bytes.len() <= usize::from(UDP_BYTES_MAX), "{}", bytes.len());
            }
        }
    }
}
