//! Random updates, delays, refusals and reconnects against a naive client that behaves like Envoy.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use envoy_types::pb::google::rpc::Status;
use proptest::prelude::*;
use starling_model::Revision;
use starling_xds::{AdsSession, Flavour, Report, Resource, ResourceSet, ResourceType, Response};

const KINDS: [ResourceType; 4] =
    [ResourceType::Cluster, ResourceType::Endpoints, ResourceType::Listener, ResourceType::Route];

/// Content that the client refuses.
const BAD: u8 = 3;

/// One service: content of cluster and endpoints, of listener and route, and which service's cluster the route names.
#[derive(Debug, Clone)]
struct Service {
    contents: [u8; 4],
    leads_to: usize,
}

#[derive(Debug, Clone)]
enum Step {
    Update(BTreeMap<u8, Service>),
    ToClient,
    ToServer,
    Reconnect,
}

fn steps(max_content: u8) -> impl Strategy<Value = Vec<Step>> {
    let service = (prop::array::uniform4(0..=max_content), 0..4_usize)
        .prop_map(|(contents, leads_to)| Service { contents, leads_to });
    let step = prop_oneof![
        3 => prop::collection::btree_map(0..4_u8, service, 0..4).prop_map(Step::Update),
        8 => Just(Step::ToClient),
        8 => Just(Step::ToServer),
        1 => Just(Step::Reconnect),
    ];
    prop::collection::vec(step, 1..80)
}

/// A cluster never goes back to what it was: a client that changes to and fro while it waits for endpoints, and loses its
/// connection then, cannot be told from one that waits for nothing.
fn set(revision: u64, services: &BTreeMap<u8, Service>, generations: &BTreeMap<u8, (u8, usize)>) -> Arc<ResourceSet> {
    let names: Vec<_> = services.keys().map(|key| format!("s{key}")).collect();
    let resources = services.iter().flat_map(|(key, service)| {
        let name = format!("s{key}");
        let generation = format!(".{}", generations[key].1);
        let target: Arc<str> = names[service.leads_to % names.len()].as_str().into();
        // The content names where it leads, as real content does.
        let new = |kind: ResourceType, index: usize, more: &str| {
            Resource::new(kind, &name, format!("{}{more}", service.contents[index]).as_bytes())
        };
        [
            new(ResourceType::Cluster, 0, &generation).with_children([(ResourceType::Endpoints, name.as_str().into())]),
            new(ResourceType::Endpoints, 1, &generation),
            new(ResourceType::Listener, 2, "").with_children([(ResourceType::Route, name.as_str().into())]),
            new(ResourceType::Route, 3, &target).with_clusters([target]),
        ]
        .map(Arc::new)
    });
    Arc::new(ResourceSet::new(Revision(revision), resources))
}

fn is_bad(resource: &Resource) -> bool {
    // The content is all that follows the type URL; its first byte is the number.
    let any = resource.any_bytes();
    any[2 + resource.kind.type_url().len() + 2] == b'0' + BAD
}

enum Request {
    Delta(DeltaDiscoveryRequest),
    Sotw(DiscoveryRequest),
}

/// What a client like Envoy does with responses.
struct Client {
    flavour: Flavour,
    has: BTreeMap<(ResourceType, Arc<str>), Arc<Resource>>,
    names: BTreeMap<ResourceType, BTreeSet<Arc<str>>>,
    asked: BTreeSet<ResourceType>,
    last: BTreeMap<ResourceType, (String, String)>,
    /// Clusters that wait for endpoints before they serve.
    warming: BTreeSet<Arc<str>>,
    /// Resources that may be sent although the client has them: their parents have changed.
    expected_again: BTreeMap<(ResourceType, Arc<str>), usize>,
    out: VecDeque<Request>,
}

impl Client {
    fn start(&mut self) {
        self.out.clear();
        self.asked.clear();
        self.expected_again.clear();
        if self.flavour == Flavour::Sotw {
            // One version stands for the whole kind: when it differs, all of it may come again.
            self.expected_again = self.has.keys().map(|key| (key.clone(), 1)).collect();
        }
        for (_, nonce) in self.last.values_mut() {
            nonce.clear();
        }
        for kind in KINDS {
            let is_wanted = kind.is_full_state() || self.names.get(&kind).is_some_and(|names| !names.is_empty());
            if is_wanted {
                self.ask(kind, &[], &[], None);
            }
        }
    }

    fn ask(&mut self, kind: ResourceType, added: &[Arc<str>], dropped: &[Arc<str>], error: Option<Status>) {
        let first = self.asked.insert(kind);
        let (version_info, response_nonce) = self.last.get(&kind).cloned().unwrap_or_default();
        let strings = |names: &[Arc<str>]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        let all: Vec<_> = self.names.get(&kind).into_iter().flatten().cloned().collect();
        let type_url = kind.type_url().to_owned();
        self.out.push_back(match self.flavour {
            Flavour::Delta => {
                let has = self.has.iter().filter(|((of, _), _)| *of == kind);
                let versions = has.map(|((_, name), resource)| (name.to_string(), resource.version.to_string()));
                Request::Delta(DeltaDiscoveryRequest {
                    type_url,
                    response_nonce,
                    error_detail: error,
                    initial_resource_versions: if first { versions.collect() } else { Default::default() },
                    resource_names_subscribe: if first { strings(&all) } else { strings(added) },
                    resource_names_unsubscribe: strings(dropped),
                    ..Default::default()
                })
            }
            Flavour::Sotw => Request::Sotw(DiscoveryRequest {
                type_url,
                version_info,
                response_nonce,
                error_detail: error,
                resource_names: strings(&all),
                ..Default::default()
            }),
        });
    }

    fn take(&mut self, response: &Response) {
        let kind = response.kind;
        let replaces_all = self.flavour == Flavour::Sotw && kind.is_full_state();
        let before: BTreeSet<_> = self.has.keys().filter(|(of, _)| *of == kind).map(|(_, name)| name.clone()).collect();
        if response.resources.iter().any(|resource| is_bad(resource)) {
            self.last.entry(kind).or_default().1 = response.nonce.clone();
            for resource in &response.resources {
                self.expect_children(resource);
            }
            self.ask(kind, &[], &[], Some(Status { message: "bad".to_owned(), ..Default::default() }));
            return;
        }
        self.last.insert(kind, (response.version.clone(), response.nonce.clone()));
        for resource in &response.resources {
            self.take_resource(resource, replaces_all);
        }
        let gone: Vec<_> = if replaces_all {
            let named: BTreeSet<_> = response.resources.iter().map(|resource| resource.name.clone()).collect();
            before.difference(&named).cloned().collect()
        } else {
            response.removed.clone()
        };
        for name in gone {
            self.has.remove(&(kind, name));
        }
        self.ask(kind, &[], &[], None);
        self.ask_for_children(kind);
    }

    fn take_resource(&mut self, resource: &Arc<Resource>, replaces_all: bool) {
        let key = (resource.kind, resource.name.clone());
        let asked = self.names.get(&resource.kind).is_some_and(|names| names.contains(&resource.name));
        if !asked && !resource.kind.is_full_state() {
            // It was on its way when the client gave it up.
            self.last.entry(resource.kind).or_default().0.clear();
            return;
        }
        let same = self.has.get(&key).is_some_and(|had| had.version == resource.version);
        if same && !replaces_all {
            let expected = self.expected_again.get_mut(&key).filter(|count| **count > 0);
            *expected.unwrap_or_else(|| panic!("sent again: {resource:?}")) -= 1;
        }
        if resource.kind == ResourceType::Endpoints {
            self.warming.remove(&resource.name);
        }
        if !same && resource.kind == ResourceType::Cluster {
            self.warming.insert(resource.name.clone());
        }
        if !same || replaces_all {
            self.expect_children(resource);
        }
        self.has.insert(key, Arc::clone(resource));
    }

    fn expect_children(&mut self, parent: &Resource) {
        for child in &parent.children {
            *self.expected_again.entry((child.kind, child.name.clone())).or_default() += 1;
        }
    }

    fn ask_for_children(&mut self, kind: ResourceType) {
        let child_kind = match kind {
            ResourceType::Cluster => ResourceType::Endpoints,
            ResourceType::Listener => ResourceType::Route,
            ResourceType::Endpoints
            | ResourceType::Secret
            | ResourceType::Extension
            | ResourceType::Route
            | ResourceType::PlanPart => return,
        };
        let parents = self.has.values().filter(|resource| resource.kind == kind);
        let wanted: BTreeSet<Arc<str>> =
            parents.flat_map(|parent| parent.children.iter().map(|child| child.name.clone())).collect();
        let had = self.names.insert(child_kind, wanted.clone()).unwrap_or_default();
        let added: Vec<_> = wanted.difference(&had).cloned().collect();
        let dropped: Vec<_> = had.difference(&wanted).cloned().collect();
        for name in &dropped {
            self.has.remove(&(child_kind, name.clone()));
            self.warming.remove(name);
        }
        if self.flavour == Flavour::Sotw && !dropped.is_empty() {
            // Else, after a reconnect, the version would stand for things given up, too: a flaw of the protocol.
            self.last.entry(child_kind).or_default().0.clear();
        }
        if !added.is_empty() || !dropped.is_empty() {
            self.ask(child_kind, &added, &dropped, None);
        }
    }

    /// No listener or route leads where nothing is.
    fn check_unbroken(&self) {
        for resource in self.has.values() {
            for cluster in &resource.clusters {
                assert!(self.has.contains_key(&(ResourceType::Cluster, cluster.clone())), "{resource:?} is broken");
            }
        }
    }
}

struct World {
    session: AdsSession,
    /// By service, what its cluster was last and how often it changed.
    generations: BTreeMap<u8, (u8, usize)>,
    client: Client,
    to_client: VecDeque<Response>,
    target: Arc<ResourceSet>,
    reports: Vec<Report>,
    /// The client may refuse some contents.
    refuses: bool,
}

impl World {
    fn new(flavour: Flavour, refuses: bool) -> Self {
        let target = set(0, &BTreeMap::new(), &BTreeMap::new());
        let mut client = Client {
            flavour,
            has: BTreeMap::new(),
            names: BTreeMap::new(),
            asked: BTreeSet::new(),
            last: BTreeMap::new(),
            warming: BTreeSet::new(),
            expected_again: BTreeMap::new(),
            out: VecDeque::new(),
        };
        client.start();
        let session = AdsSession::new(flavour, Arc::clone(&target));
        Self {
            session,
            generations: BTreeMap::new(),
            client,
            to_client: VecDeque::new(),
            target,
            reports: Vec::new(),
            refuses,
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Update(services) => {
                for (key, service) in services {
                    let (content, generation) = self.generations.entry(*key).or_default();
                    if *content != service.contents[0] {
                        (*content, *generation) = (service.contents[0], *generation + 1);
                    }
                }
                self.target = set(self.target.revision.0 + 1, services, &self.generations);
                self.session.handle_resources(Arc::clone(&self.target));
            }
            Step::ToClient => {
                if let Some(response) = self.to_client.pop_front() {
                    self.client.take(&response);
                }
            }
            Step::ToServer => match self.client.out.pop_front() {
                Some(Request::Delta(request)) => self.session.handle_delta_request(request).unwrap(),
                Some(Request::Sotw(request)) => self.session.handle_sotw_request(request).unwrap(),
                None => {}
            },
            Step::Reconnect => {
                self.session = AdsSession::new(self.client.flavour, Arc::clone(&self.target));
                self.to_client.clear();
                self.client.start();
            }
        }
        while let Some(response) = self.session.poll_response() {
            self.to_client.push_back(response);
        }
        while let Some(report) = self.session.poll_report() {
            // What is reported as applied is there.
            if matches!(report, Report::Applied { revision, .. } if revision == self.target.revision) && !self.refuses {
                self.check_current();
            }
            self.reports.push(report);
        }
    }

    fn run_dry(&mut self) {
        let mut rounds = 0;
        while !self.to_client.is_empty() || !self.client.out.is_empty() {
            self.step(&Step::ToClient);
            self.step(&Step::ToServer);
            rounds += 1;
            assert!(rounds < 10_000, "never comes to rest");
        }
    }

    fn check_current(&self) {
        let wanted: BTreeMap<_, _> = KINDS
            .into_iter()
            .flat_map(|kind| self.target.of_kind(kind))
            .map(|resource| ((resource.kind, resource.name.clone()), resource.version))
            .collect();
        let has: BTreeMap<_, _> =
            self.client.has.iter().map(|(key, resource)| (key.clone(), resource.version)).collect();
        assert_eq!(has, wanted);
        assert!(self.client.warming.is_empty(), "waits for endpoints: {:?}", self.client.warming);
    }
}

/// A set that everybody can take, different from every random one.
fn last_update() -> Step {
    let service = |content: u8| Service { contents: [content; 4], leads_to: 1 };
    Step::Update(BTreeMap::from([(0, service(8)), (1, service(9))]))
}

fn play(flavour: Flavour, steps: &[Step], unbroken: bool, refuses: bool) {
    let mut world = World::new(flavour, refuses);
    for step in steps {
        world.step(step);
        if unbroken {
            world.client.check_unbroken();
        }
    }
    world.run_dry();
    world.step(&last_update());
    world.run_dry();
    world.check_current();
    let last = Report::Applied { revision: world.target.revision, refusals_stand: false };
    assert_eq!(world.reports.last(), Some(&last), "{:?}", world.reports);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn delta_clients_end_with_the_newest(steps in steps(BAD - 1)) {
        play(Flavour::Delta, &steps, true, false);
    }

    #[test]
    fn delta_clients_that_refuse_end_with_the_newest(steps in steps(BAD)) {
        play(Flavour::Delta, &steps, false, true);
    }

    #[test]
    fn sotw_clients_end_with_the_newest(steps in steps(BAD - 1)) {
        // After a reconnect the server of this variant cannot know what leads where.
        let reconnects = steps.iter().any(|step| matches!(step, Step::Reconnect));
        play(Flavour::Sotw, &steps, !reconnects, false);
    }

    #[test]
    fn sotw_clients_that_refuse_end_with_the_newest(steps in steps(BAD)) {
        play(Flavour::Sotw, &steps, false, true);
    }
}
