//! SPIFFE IDs: what is accepted, what is refused, and that text and structure stand for each other one to one.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use starling_identity::{Identity, Layout, SPIFFE_ID_BYTES_MAX, SpiffeId, SpiffeIdError};
use starling_model::{Datacenter, Namespace, NodeName, ServiceName, TrustDomain};

const WEB: &str = "spiffe://mesh.consul/ns/default/dc/dc1/svc/web";

fn parse(text: &str) -> Result<Identity, SpiffeIdError> {
    text.parse()
}

fn workload(layout: Layout) -> SpiffeId {
    SpiffeId::new(
        layout,
        TrustDomain::new("mesh.consul").unwrap(),
        Namespace::new("default").unwrap(),
        Datacenter::new("dc1").unwrap(),
        ServiceName::new("web").unwrap(),
    )
}

#[test]
fn workloads_are_written_in_either_layout() {
    assert_eq!(workload(Layout::Consul).to_uri(), WEB);
    assert_eq!(workload(Layout::Istio).to_uri(), "spiffe://mesh.consul/ns/default/sa/web");
    for layout in [Layout::Consul, Layout::Istio] {
        let id = workload(layout);
        assert_eq!(id.layout(), layout);
        assert_eq!(parse(&id.to_uri()), Ok(Identity::Workload(id.clone())));
        assert_eq!(id.to_uri().parse(), Ok(id));
    }
    assert_ne!(workload(Layout::Consul), workload(Layout::Istio));
}

#[test]
fn agents_servers_relays_and_authorities_have_identities_of_their_own() {
    let trust_domain = TrustDomain::new("mesh.consul").unwrap();
    let datacenter = Datacenter::new("dc1").unwrap();
    let agent = Identity::Agent {
        trust_domain: trust_domain.clone(),
        datacenter: datacenter.clone(),
        node: NodeName::new("node-7").unwrap(),
    };
    let relay = Identity::Relay {
        trust_domain: trust_domain.clone(),
        datacenter: datacenter.clone(),
        relay: NodeName::new("node-7").unwrap(),
    };
    let server = Identity::Server { trust_domain: trust_domain.clone(), datacenter };
    let authority = Identity::Authority(trust_domain.clone());
    for (identity, uri) in [
        (agent, "spiffe://mesh.consul/agent/client/dc/dc1/id/node-7"),
        (relay, "spiffe://mesh.consul/agent/relay/dc/dc1/id/node-7"),
        (server, "spiffe://mesh.consul/agent/server/dc/dc1"),
        (authority, "spiffe://mesh.consul"),
    ] {
        assert_eq!(identity.to_uri(), uri);
        assert_eq!(identity.trust_domain(), &trust_domain);
        assert_eq!(uri.parse::<SpiffeId>(), Err(SpiffeIdError::NotAWorkload));
        assert_eq!(parse(uri), Ok(identity));
    }
}

#[test]
fn refusals_say_what_is_wrong() {
    let long = format!("{WEB}{}", "a".repeat(SPIFFE_ID_BYTES_MAX));
    for (text, error) in [
        ("", SpiffeIdError::Scheme),
        ("https://mesh.consul/ns/default/dc/dc1/svc/web", SpiffeIdError::Scheme),
        ("SPIFFE://mesh.consul/ns/default/dc/dc1/svc/web", SpiffeIdError::Scheme),
        ("spiffe:/mesh.consul", SpiffeIdError::Scheme),
        (" spiffe://mesh.consul", SpiffeIdError::Scheme),
        ("spiffe://mesh.consul/ns/default/dc/dc1/svc/%77eb", SpiffeIdError::PercentEncoding),
        ("spiffe://mesh.consul/ns/default%2fdc/dc1/svc/web", SpiffeIdError::PercentEncoding),
        ("spiffe://mesh.consul/ns/default/dc/dc1/svc/web?a=b", SpiffeIdError::Query),
        ("spiffe://mesh.consul/ns/default/dc/dc1/svc/web#a", SpiffeIdError::Fragment),
        ("spiffe://mesh.consul?", SpiffeIdError::Query),
        ("spiffe://user@mesh.consul/ns/default/dc/dc1/svc/web", SpiffeIdError::UserInformation),
        ("spiffe://user:word@mesh.consul/ns/default/dc/dc1/svc/web", SpiffeIdError::UserInformation),
        ("spiffe://mesh.consul:443/ns/default/dc/dc1/svc/web", SpiffeIdError::Port),
        ("spiffe://mesh.consul/", SpiffeIdError::TrailingSlash),
        ("spiffe://mesh.consul/ns/default/dc/dc1/svc/web/", SpiffeIdError::TrailingSlash),
        ("spiffe://mesh.consul//ns/default/dc/dc1/svc/web", SpiffeIdError::EmptySegment),
        ("spiffe://mesh.consul/ns//dc/dc1/svc/web", SpiffeIdError::EmptySegment),
        ("spiffe://mesh.consul/dc/dc1/ns/default/svc/web", SpiffeIdError::Path),
        ("spiffe://mesh.consul/ns/default/dc/dc1/svc/web/more", SpiffeIdError::Path),
        ("spiffe://mesh.consul/ns/default/dc/dc1/svc", SpiffeIdError::Path),
        ("spiffe://mesh.consul/NS/default/dc/dc1/svc/web", SpiffeIdError::Path),
        ("spiffe://mesh.consul/agent/client/dc/dc1", SpiffeIdError::Path),
        ("spiffe://mesh.consul/agent/server/dc/dc1/id/a", SpiffeIdError::Path),
        (long.as_str(), SpiffeIdError::TooLong { len: long.len() }),
    ] {
        assert_eq!(parse(text), Err(error), "{text:?}");
    }
    for text in [
        "spiffe://",
        "spiffe:///ns/default/dc/dc1/svc/web",
        "spiffe://Mesh.consul/ns/default/dc/dc1/svc/web",
        "spiffe://mesh consul",
        "spiffe://mesh.consul/ns/default/dc/dc1/svc/.",
        "spiffe://mesh.consul/ns/../dc/dc1/svc/web",
        "spiffe://mesh.consul/ns/default/dc/dc1/svc/wéb",
        "spiffe://mesh.consul/ns/default/dc/dc1/svc/web\0",
        "spiffe://mesh.consul/ns/default/dc/dc1/svc/web\n",
        "spiffe://mesh.consul/ns/default/dc/dc1/svc/*",
    ] {
        assert!(matches!(parse(text), Err(SpiffeIdError::Name(_))), "{text:?}: {:?}", parse(text));
    }
}

fn name() -> impl Strategy<Value = String> {
    "[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?"
}

fn trust_domain() -> impl Strategy<Value = TrustDomain> {
    "[a-z0-9._-]{1,255}".prop_map(|text| TrustDomain::new(&text).unwrap())
}

fn identity() -> impl Strategy<Value = Identity> {
    let layout = prop_oneof![Just(Layout::Consul), Just(Layout::Istio)];
    prop_oneof![
        (layout, trust_domain(), name(), name(), name()).prop_map(|(layout, trust_domain, namespace, dc, service)| {
            Identity::Workload(SpiffeId::new(
                layout,
                trust_domain,
                Namespace::new(&namespace).unwrap(),
                Datacenter::new(&dc).unwrap(),
                ServiceName::new(&service).unwrap(),
            ))
        }),
        (trust_domain(), name(), name()).prop_map(|(trust_domain, dc, node)| Identity::Agent {
            trust_domain,
            datacenter: Datacenter::new(&dc).unwrap(),
            node: NodeName::new(&node).unwrap(),
        }),
        (trust_domain(), name()).prop_map(|(trust_domain, dc)| Identity::Server {
            trust_domain,
            datacenter: Datacenter::new(&dc).unwrap()
        }),
        trust_domain().prop_map(Identity::Authority),
    ]
}

/// One character replaced, inserted or removed.
#[derive(Debug, Clone)]
enum Mutation {
    Replace(char),
    Insert(char),
    Remove,
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let character = prop_oneof![
        prop::sample::select(vec!['/', '%', '?', '#', '@', ':', '.', '-', '_', '*', 'A', 'a', '0', ' ', '\0', 'é']),
        any::<char>(),
    ];
    prop_oneof![
        character.clone().prop_map(Mutation::Replace),
        character.prop_map(Mutation::Insert),
        Just(Mutation::Remove)
    ]
}

fn mutate(text: &str, at: prop::sample::Index, mutation: &Mutation) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    let index = at.index(characters.len());
    match mutation {
        Mutation::Replace(character) => characters[index] = *character,
        Mutation::Insert(character) => characters.insert(index, *character),
        Mutation::Remove => {
            characters.remove(index);
        }
    }
    characters.into_iter().collect()
}

proptest! {
    #[test]
    fn every_identity_survives_the_round_trip(identity in identity()) {
        let uri = identity.to_uri();
        prop_assert!(uri.len() <= SPIFFE_ID_BYTES_MAX);
        prop_assert_eq!(parse(&uri), Ok(identity));
    }

    #[test]
    fn a_changed_text_is_refused_or_means_exactly_what_it_says(
        identity in identity(),
        at in any::<prop::sample::Index>(),
        mutation in mutation(),
    ) {
        let uri = identity.to_uri();
        let changed = mutate(&uri, at, &mutation);
        if let Ok(other) = parse(&changed) {
            prop_assert_eq!(other.to_uri(), changed.clone());
            prop_assert_eq!(other == identity, changed == uri);
        }
    }

    #[test]
    fn any_text_is_refused_or_canonical(text in ".{0,64}") {
        for candidate in [text.clone(), format!("spiffe://{text}"), format!("{WEB}{text}")] {
            if let Ok(identity) = parse(&candidate) {
                prop_assert_eq!(identity.to_uri(), candidate);
            }
        }
    }
}
