//! Orders and fates; and that no mixture of two sets of rules allows what both deny.

use proptest::prelude::*;
use starling_model::{
    Action, CaRootRecord, Check, CheckId, CheckedService, ConfigEntry, InstanceKind, KeptEntry, KeptKind, Node, Port,
    ServiceDefaults, ServiceIntentions, SourceDecision, SourceIntention, UnixSeconds, VirtualAddress, Weights,
};

use super::*;

fn records(all: impl IntoIterator<Item = Record>) -> Records {
    all.into_iter().map(|record| (record.key(), record)).collect()
}

fn node(name: &str) -> Record {
    Record::Node(Node {
        name: name.parse().expect(name),
        id: String::new(),
        address: "10.0.0.1".to_owned(),
        tagged_addresses: BTreeMap::new(),
        meta: BTreeMap::new(),
    })
}

fn service(node: &str, name: &str, port: i64) -> Record {
    Record::Instance(ServiceInstance {
        key: InstanceKey { node: node.parse().expect(node), id: name.parse().expect(name) },
        name: name.parse().expect(name),
        kind: InstanceKind::Typical,
        address: None,
        port: Port::try_from(port).ok(),
        tags: Vec::new(),
        meta: BTreeMap::new(),
        tagged_addresses: BTreeMap::new(),
        weights: Weights::default(),
        enable_tag_override: false,
        native: false,
        locality: None,
        kept: starling_model::OpaqueSettings::default(),
    })
}

fn check(node: &str, id: &str, of: Option<&str>, status: CheckStatus) -> Record {
    Record::Check(Check {
        node: node.parse().expect(node),
        id: CheckId::new(id).expect(id),
        name: id.to_owned(),
        status,
        notes: String::new(),
        output: "as it was".to_owned(),
        service: of.map(|name| CheckedService {
            id: name.parse().expect(name),
            name: name.parse().expect(name),
            tags: Vec::new(),
        }),
        kind: String::new(),
        interval: String::new(),
        timeout: String::new(),
        definition: starling_model::OpaqueSettings::default(),
    })
}

fn rules(destination: &str, sources: &[(&str, Action)]) -> Record {
    let source = |(name, action): &(&str, Action)| SourceIntention {
        source: name.parse().expect(name),
        decision: SourceDecision::Connection(*action),
        description: String::new(),
        id: None,
    };
    Record::Config(ConfigEntry::ServiceIntentions(ServiceIntentions {
        destination: destination.parse().expect(destination),
        sources: sources.iter().map(source).collect(),
        meta: BTreeMap::new(),
    }))
}

fn attached_to_none(_: &NodeName) -> bool {
    false
}

fn told(plan: &Plan) -> Vec<String> {
    let change = |change: &Change| match change {
        Change::Put(record) => format!("+{}", record.key().encode()),
        Change::Delete(key) => format!("-{}", key.encode()),
    };
    plan.stages.iter().map(|stage| stage.changes.iter().map(change).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn what_nothing_acts_on_is_set_back_too() {
    let kept = |kind, name: &str| {
        let settings = starling_model::OpaqueSettings::default();
        Record::Config(ConfigEntry::Kept(Box::new(KeptEntry { kind, name: name.parse().expect(name), settings })))
    };
    let now = records([kept(KeptKind::TcpRoute, "new")]);
    let then = records([kept(KeptKind::TerminatingGateway, "egress")]);
    let told = told(&plan(&now, &then, attached_to_none));
    assert_eq!(told, ["+config/terminating-gateway/egress", "-config/tcp-route/new"]);
}

#[test]
fn the_same_state_is_no_way() {
    let state = records([node("n1"), service("n1", "web", 80), rules("web", &[("*", Action::Deny)])]);
    assert_eq!(plan(&state, &state, attached_to_none), Plan::default());
}

#[test]
fn who_is_unknown_goes_first_and_nobody_comes_before_the_rules() {
    let now = records([node("n1"), service("n1", "new", 80), service("n1", "web", 80), rules("new", &[])]);
    let then = records([
        node("n1"),
        node("n2"),
        check("n2", "c", Some("web"), CheckStatus::Passing),
        service("n2", "web", 81),
        rules("web", &[("*", Action::Deny)]),
    ]);
    assert_eq!(
        told(&plan(&now, &then, attached_to_none)),
        [
            "-instance/n1/new",
            "+config/service-intentions/web -config/service-intentions/new",
            "+node/n2 +check/n2/c +instance/n2/web",
            "-instance/n1/web",
        ]
    );
}

#[test]
fn what_an_attached_agent_answers_for_is_left() {
    let now = records([node("here"), service("here", "web", 80), node("gone"), service("gone", "web", 80)]);
    let then = records([node("here"), service("here", "web", 81), node("gone"), service("gone", "web", 81)]);
    let plan = plan(&now, &then, |node| node.as_str() == "here");
    assert_eq!(told(&plan), ["+instance/gone/web"]);
    assert_eq!(plan.left.attached_nodes, BTreeSet::from(["here".parse().expect("a name")]));
    let same = records([node("here"), check("here", LIVENESS_CHECK, None, CheckStatus::Passing)]);
    assert_eq!(super::plan(&same, &same, |_| true), Plan::default(), "nothing is left that does not differ");
}

#[test]
fn a_node_without_its_agent_comes_back_as_lost() {
    let then = records([node("n1"), check("n1", LIVENESS_CHECK, None, CheckStatus::Passing)]);
    let back = plan(&Records::new(), &then, attached_to_none);
    let Some(Change::Put(Record::Check(check))) = back.stages[0].changes.get(1) else { panic!("{back:?}") };
    assert_eq!((check.status, check.output.as_str()), (CheckStatus::Critical, LIVENESS_LOST));
    // And is no difference once it is.
    let now = records(back.stages[0].changes.iter().filter_map(|change| match change {
        Change::Put(record) => Some(record.clone()),
        Change::Delete(_) => None,
    }));
    assert_eq!(told(&plan(&now, &then, attached_to_none)), Vec::<String>::new());
}

#[test]
fn identity_and_addresses_are_left() {
    let root = |id: &str| {
        Record::CaRoot(CaRootRecord {
            id: id.to_owned(),
            name: String::new(),
            certificate_pem: String::new(),
            serial: 1,
            signing_key_id: String::new(),
            trust_domain: "mesh.test".parse().expect("a trust domain"),
            not_before: UnixSeconds(0),
            not_after: UnixSeconds(1),
            active: true,
            overlap: None,
            renew_within_s: 0,
        })
    };
    let address = |address: &str, service: &str| {
        let (address, service) = (address.parse().expect(address), service.parse().expect(service));
        Record::VirtualAddress(VirtualAddress { address, service })
    };
    let now = records([root("new"), address("240.0.0.1", "web"), address("240.0.0.2", "api")]);
    let then =
        records([root("old"), address("240.0.0.2", "web"), address("240.0.0.3", "db"), address("240.0.0.2", "x")]);
    let plan = plan(&now, &then, attached_to_none);
    assert_eq!(told(&plan), ["+virtual-address/240.0.0.3"]);
    assert_eq!((plan.left.authority, plan.left.virtual_addresses), (2, 1));
}

#[test]
fn a_check_of_nothing_is_passed_over() {
    let then = records([check("n9", "c", Some("web"), CheckStatus::Passing)]);
    assert_eq!(told(&plan(&Records::new(), &then, attached_to_none)), Vec::<String>::new());
}

#[test]
fn routes_go_before_what_they_need_and_come_after_it() {
    let defaults =
        |name: &str| Record::Config(ConfigEntry::ServiceDefaults(ServiceDefaults::bare(name.parse().expect(name))));
    let resolver = |name: &str| {
        let name = name.parse().expect(name);
        Record::Config(ConfigEntry::ServiceResolver(Box::new(starling_model::ServiceResolver::bare(name))))
    };
    let now = records([defaults("a"), resolver("a")]);
    let then = records([defaults("b"), resolver("b")]);
    assert_eq!(
        told(&plan(&now, &then, attached_to_none)),
        [
            "-config/service-resolver/a",
            "+config/service-defaults/b -config/service-defaults/a",
            "+config/service-resolver/b"
        ]
    );
}

const NAMES: [&str; 3] = ["a", "b", "c"];

/// Some intentions, towards some of three services and towards every one.
fn any_rules() -> impl Strategy<Value = Records> {
    let action = prop_oneof![Just(Action::Allow), Just(Action::Deny)];
    let sources = proptest::collection::btree_map(prop_oneof!["[abc]", Just("*".to_owned())], action, 0..4);
    let entries = proptest::collection::btree_map(prop_oneof!["[abc]", Just("*".to_owned())], sources, 0..4);
    entries.prop_map(|entries| {
        records(entries.iter().map(|(destination, sources)| {
            let mut sources: Vec<_> = sources.iter().map(|(source, action)| (source.as_str(), *action)).collect();
            // Exact ones before `*`, as they are stored.
            sources.sort_by_key(|(source, _)| (*source == "*", source.to_owned()));
            rules(destination, &sources)
        }))
    })
}

/// What Consul's documentation says of precedence, without any of our own code for it.
fn allowed(rules: &Records, source: &str, destination: &str) -> Option<Action> {
    let action = |decision: &SourceDecision| match decision {
        SourceDecision::Connection(action) => *action,
        SourceDecision::Requests(_) => Action::Deny,
    };
    let found = |destination: &str, source: &str| {
        rules.values().find_map(|record| {
            let Record::Config(ConfigEntry::ServiceIntentions(entry)) = record else { return None };
            let source = entry.sources.iter().find(|it| it.source.as_str() == source)?;
            (entry.destination.as_str() == destination).then(|| action(&source.decision))
        })
    };
    let chain = [(destination, source), (destination, "*"), ("*", source), ("*", "*")];
    chain.into_iter().find_map(|(destination, source)| found(destination, source))
}

proptest! {
    #[test]
    fn rules_in_turn_never_decide_what_neither_state_does(now in any_rules(), then in any_rules()) {
        let puts: Records = then.iter().filter(|(key, it)| now.get(key) != Some(it)).map(|(k, v)| (k.clone(), v.clone())).collect();
        let deletes: Vec<_> = now.keys().filter(|key| !then.contains_key(key)).cloned().collect();
        let mut state = now.clone();
        // Every change may be a transaction of its own.
        for change in policy::in_turn(&now, puts.into_values().collect(), deletes).into_iter().flat_map(|stage| stage.changes) {
            match change {
                Change::Put(record) => state.insert(record.key(), record),
                Change::Delete(key) => state.remove(&key),
            };
            for source in NAMES {
                for destination in NAMES {
                    let is = allowed(&state, source, destination);
                    let may = [allowed(&now, source, destination), allowed(&then, source, destination)];
                    prop_assert!(may.contains(&is), "{source} -> {destination}: {is:?}, and not {may:?}");
                }
            }
        }
        prop_assert_eq!(state, then);
    }
}

#[test]
fn many_rules_are_exchanged_in_turn_and_few_at_once() {
    let many = |action| {
        let entries = (0..150).map(|number| rules(&format!("service-{number}"), &[("web", action)]));
        records(entries.chain([rules("*", &[("*", action)])]))
    };
    let (now, then) = (many(Action::Allow), many(Action::Deny));
    let stages = plan(&now, &then, attached_to_none).stages;
    assert_eq!(stages.iter().map(|stage| stage.changes.len()).collect::<Vec<_>>(), [150, 1], "no old source is left");
    let few =
        |all: &Records| all.iter().take(60).map(|(key, record)| (key.clone(), record.clone())).collect::<Records>();
    assert_eq!(plan(&few(&now), &few(&then), attached_to_none).stages.len(), 1);
}

#[test]
fn tokens_and_policies_are_left_as_they_are() {
    use starling_model::{AclKey, AclName, AclPolicy, AclRecord, Uuid};
    let policy = |id: u128, text: &str| {
        Record::Acl(AclRecord::Policy(Box::new(AclPolicy {
            id: Uuid::from_random(id),
            name: AclName::new("p").expect("a name"),
            description: String::new(),
            text: text.to_owned(),
            rules: Vec::new(),
            datacenters: Vec::new(),
        })))
    };
    let (now, then) =
        (records([policy(1, "narrow"), policy(2, "new")]), records([policy(1, "wide"), policy(3, "gone")]));
    assert_eq!(now.keys().next(), Some(&RecordKey::Acl(AclKey::Policy(Uuid::from_random(1)))));
    assert_eq!(plan(&now, &then, |_| false), Plan::default(), "who has lost a right does not get it back");
}
