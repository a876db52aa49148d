//! A mesh of one process without a store, a proxy or a network: the ports that the API needs, over the real catalog.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod controlled;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use starling_catalog::{
    Barrier, ChangeReport, Command, Earlier, JoinTokenCommand, NewJoinToken, NodeReport, ProxyReport, Receipts,
    Refused, Reporter, Snapshot, Subject, Until, decide,
};
use starling_http_api::parse::{CheckRegistration, Context, Dialect, Fields};
use starling_http_api::{
    AgentFailure, AgentPort, Bearer, CatalogPort, CommitFailure, Committed, Currency, DiagnosticRow, EntryPoint, Leaf,
    MeshFacts, Ports, PrivateKeyText, router,
};
use starling_identity::JoinToken;
use starling_model::{
    AclSecret, Action, CaRootRecord, Change, Check, CheckId, CheckSpec, CheckStatus, CheckedService, InstanceId,
    InstanceKey, JoinTokenRecord, JoinTokenUses, Node, NodeName, Port, Record, Revision, ServerId, ServiceInstance,
    ServiceName, ServiceRegistration, UnixSeconds,
};
use tokio::sync::watch;
use tower::ServiceExt;

/// The join token that every mesh of the tests makes.
const JOIN_TOKEN: &str = "starling-join.1.00000000000000ab.\
                          AwoRGB8mLTQ7QklQV15lbHN6gYiPlp2kq7K5wMfO1dw.\
                          ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0";

/// The first port that sidecars without one are given.
const SIDECAR_PORT_MIN: i64 = 21_000;

/// The catalog, held in memory.
pub struct World {
    snapshot: watch::Sender<Arc<Snapshot>>,
    default_action: Mutex<Action>,
    pub connect_off: std::sync::atomic::AtomicBool,
    pub translates_addresses: std::sync::atomic::AtomicBool,
    acl_default: Mutex<Option<Action>>,
    default_token: Mutex<Option<AclSecret>>,
    receipts: Mutex<Receipts>,
    local: Mutex<Local>,
    generation: watch::Sender<u64>,
    /// Why the store is not there, if it is not.
    cut: Mutex<Option<String>>,
    /// How long it takes to find out what others have.
    far: Mutex<Duration>,
}

#[derive(Default)]
struct Local {
    services: BTreeMap<InstanceId, ServiceInstance>,
    checks: BTreeMap<CheckId, Check>,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn node_name() -> NodeName {
    "node-1".parse().unwrap()
}

impl World {
    /// A world with one node and one root, as an agent finds it when it has started.
    pub fn new() -> Arc<Self> {
        let world = Arc::new(Self {
            snapshot: watch::Sender::new(Arc::new(Snapshot::default())),
            default_action: Mutex::new(Action::Allow),
            connect_off: std::sync::atomic::AtomicBool::new(false),
            translates_addresses: std::sync::atomic::AtomicBool::new(false),
            acl_default: Mutex::default(),
            default_token: Mutex::default(),
            receipts: Mutex::new(Receipts::default()),
            local: Mutex::new(Local::default()),
            generation: watch::Sender::new(1),
            cut: Mutex::default(),
            far: Mutex::default(),
        });
        let node = Node {
            name: node_name(),
            id: "40e4a748-2192-161a-0510-9bf59fe950b5".to_owned(),
            address: "10.0.0.1".to_owned(),
            tagged_addresses: BTreeMap::from([("lan".to_owned(), "10.0.0.1".to_owned())]),
            meta: BTreeMap::from([("rack".to_owned(), "r1".to_owned())]),
        };
        world.apply(&[Change::Put(Record::Node(node)), Change::Put(Record::CaRoot(root()))]);
        world
    }

    /// Readers that wait for the catalog to change.
    pub fn waiting(&self) -> usize {
        self.snapshot.receiver_count()
    }

    /// The store is gone, for that reason.
    pub fn catches_up_after(&self, time: Duration) {
        *held(&self.far) = time;
    }

    pub fn cut_off(&self, reason: &str) {
        *held(&self.cut) = Some(reason.to_owned());
    }

    pub fn deny_by_default(&self) {
        *held(&self.default_action) = Action::Deny;
    }

    /// The revision of the catalog.
    pub fn snapshot_now(&self) -> Revision {
        self.snapshot.borrow().revision()
    }

    /// Access is controlled from now on.
    pub fn control_access(&self, default: Action) {
        *held(&self.acl_default) = Some(default);
    }

    pub fn router(self: &Arc<Self>) -> axum::Router {
        self.router_at(EntryPoint::Own)
    }

    pub fn router_at(self: &Arc<Self>, entry_point: EntryPoint) -> axum::Router {
        router(Ports { catalog: Arc::clone(self) as _, agent: Some(Arc::clone(self) as _), servers: None, entry_point })
    }

    /// Sends a request through a fresh router and reads the whole answer.
    pub async fn send(self: &Arc<Self>, method: &str, target: &str, body: &str) -> (Response<()>, String) {
        let request = Request::builder().method(Method::from_bytes(method.as_bytes()).unwrap()).uri(target);
        let request = request.body(axum::body::Body::from(body.to_owned())).unwrap();
        let (head, body) = self.router().oneshot(request).await.unwrap().into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        (Response::from_parts(head, ()), String::from_utf8(bytes.to_vec()).unwrap())
    }

    /// Sends what must be refused with `wanted`, and sees that nothing has changed. A `*` at its end stands for anything.
    pub async fn refuses(self: &Arc<Self>, target: &str, body: &str, wanted: &str) {
        let before = self.snapshot().revision();
        let (answer, text) = self.send("PUT", target, body).await;
        assert_eq!(answer.status(), 400, "{body}: {text}");
        assert_eq!(answer.headers()["content-type"], "text/plain; charset=utf-8");
        match wanted.strip_suffix('*') {
            Some(beginning) if !wanted.ends_with("wildcard *") && !wanted.ends_with("destination *") => {
                assert!(text.starts_with(beginning) && text.len() > beginning.len(), "{body}: {text}");
            }
            Some(_) | None => assert_eq!(text, wanted, "{body}"),
        }
        assert_eq!(self.snapshot().revision(), before, "{body} changed something");
    }

    pub fn apply(&self, changes: &[Change]) -> Revision {
        let now = Arc::clone(&self.snapshot.borrow());
        if changes.is_empty() {
            return now.revision();
        }
        let revision = Revision(now.revision().0 + 1);
        let applied = now.apply(revision, changes);
        let mut receipts = held(&self.receipts);
        let everyone = receipts.reporters().filter_map(|(reporter, _)| receipts.find(reporter)).collect();
        receipts.committed(revision, Default::default(), everyone, 0);
        drop(receipts);
        self.snapshot.send_replace(Arc::new(applied.snapshot));
        revision
    }

    /// A change that concerns two proxies, of which one has applied it and one has refused it, and a third that is late.
    pub fn settle_a_change(&self) -> Revision {
        let proxy = |id: &str| InstanceKey { node: node_name(), id: id.parse().unwrap() };
        let keys = [proxy("api-sidecar-proxy"), proxy("db-sidecar-proxy"), proxy("web-sidecar-proxy")];
        let revision = self.snapshot.borrow().revision();
        let mut receipts = held(&self.receipts);
        let ids = keys.map(|key| receipts.connected(&Reporter::Proxy(key)));
        receipts.committed(revision, Default::default(), ids.to_vec(), 0);
        receipts.applied(ids[0], revision, false, 750);
        let refused = Refused {
            revision,
            since: Revision(revision.0 - 1),
            proxy: None,
            type_url: "type.googleapis.com/envoy.config.listener.v3.Listener".to_owned(),
            resources: vec!["public_listener".to_owned()],
            text: "error adding listener: address in use".to_owned(),
        };
        receipts.rejected(ids[1], refused);
        revision
    }

    fn touch(&self) {
        self.generation.send_modify(|generation| *generation += 1);
    }

    fn push(&self) -> Result<Revision, AgentFailure> {
        let now = Arc::clone(&self.snapshot.borrow());
        let local = held(&self.local);
        let instances: Vec<_> = local.services.values().cloned().collect();
        let checks = local.checks.values().cloned().collect();
        let register = Command::Register { name: node_name(), node: None, instances, checks };
        let decision = decide(&now, &register).map_err(|error| AgentFailure::Internal(error.to_string()))?;
        drop(local);
        Ok(self.apply(&decision.changes))
    }
}

fn root() -> CaRootRecord {
    CaRootRecord {
        id: "15:bf:3a".to_owned(),
        name: "Starling CA Root".to_owned(),
        certificate_pem: "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n".to_owned(),
        serial: 7,
        signing_key_id: "1f:91:ca".to_owned(),
        trust_domain: "11111111-2222-3333-4444-555555555555.consul".parse().unwrap(),
        not_before: UnixSeconds(1_700_000_000),
        not_after: UnixSeconds(2_000_000_000),
        active: true,
        overlap: None,
        renew_within_s: 0,
    }
}

#[async_trait]
impl CatalogPort for World {
    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.borrow())
    }

    async fn wait(&self, subjects: &[Subject], after: Revision, timeout: Duration) -> Arc<Snapshot> {
        let mut changes = self.snapshot.subscribe();
        let past = |snapshot: &Arc<Snapshot>| subjects.iter().any(|s| snapshot.subject_revision(s) > after);
        let waiting = changes.wait_for(past);
        // On time-out the answer is what there is by then.
        let _ = tokio::time::timeout(timeout, waiting).await;
        self.snapshot()
    }

    async fn catch_up(&self) -> Result<(), CommitFailure> {
        let far = *held(&self.far);
        tokio::time::sleep(far).await;
        match &*held(&self.cut) {
            Some(reason) => Err(CommitFailure::NoLeader(reason.clone())),
            None => Ok(()),
        }
    }

    fn own_server(&self) -> Option<ServerId> {
        None
    }

    fn has_halted(&self) -> bool {
        false
    }

    fn currency(&self) -> Currency {
        match &*held(&self.cut) {
            Some(_) => {
                Currency { last_contact: Duration::from_millis(7_400), knows_leader: false, takes_writes: false }
            }
            None => Currency { last_contact: Duration::ZERO, knows_leader: true, takes_writes: true },
        }
    }

    async fn transact(&self, bearer: &Bearer, command: Command) -> Result<Committed, CommitFailure> {
        let decided_on = self.snapshot();
        bearer.may(&command, &decided_on)?;
        let decision = decide(&decided_on, &command)?;
        Ok(Committed { revision: self.apply(&decision.changes), decided_on })
    }

    async fn create_join_token(&self, wanted: NewJoinToken) -> Result<(JoinToken, UnixSeconds), CommitFailure> {
        let created_at = UnixSeconds(1_700_000_000);
        let expires_at = starling_identity::join_token_expiry(created_at, wanted.ttl)
            .map_err(|error| CommitFailure::Invalid(error.to_string()))?;
        let token: JoinToken = JOIN_TOKEN.parse().unwrap();
        let uses = if wanted.reusable { JoinTokenUses::Reusable } else { JoinTokenUses::OneTime { used: None } };
        let (id, secret_hash) = (token.id, token.secret_hash());
        let NewJoinToken { description, for_relays, services, .. } = wanted;
        let record =
            JoinTokenRecord { id, secret_hash, description, for_relays, services, uses, created_at, expires_at };
        self.commit(Command::JoinToken(JoinTokenCommand::Create(record))).await?;
        Ok((token, expires_at))
    }

    async fn change(&self, revision: Revision, _: Duration, names: usize) -> Option<ChangeReport> {
        held(&self.receipts).report(revision, names)
    }

    async fn own_part_of_change(&self, revision: Revision, earlier: &Earlier, wait: Duration) -> Option<ChangeReport> {
        held(&self.receipts).join(revision, earlier);
        self.change(revision, wait, usize::MAX).await
    }

    async fn until(&self, revision: Revision, until: &Until, wait: Duration) -> Option<Barrier> {
        let holds = || held(&self.receipts).holds(revision, until);
        if holds() == Some(Barrier::NotYet) {
            // Nobody reports while a request is under way.
            tokio::time::sleep(wait).await;
        }
        holds()
    }

    fn own_part_of_changes(&self, most: usize) -> Vec<ChangeReport> {
        let receipts = held(&self.receipts);
        receipts.revisions().take(most).filter_map(|revision| receipts.report(revision, usize::MAX)).collect()
    }

    fn proxies(&self) -> Vec<(InstanceKey, ProxyReport)> {
        let receipts = held(&self.receipts);
        let proxies = receipts.reporters().filter_map(|(reporter, report)| match reporter {
            Reporter::Proxy(key) => Some((key.clone(), report)),
            Reporter::Node(_) => None,
        });
        proxies.collect()
    }

    fn nodes(&self) -> Vec<(NodeReport, Duration)> {
        let receipts = held(&self.receipts);
        let reporters = receipts.reporters().map(|(reporter, report)| (reporter.clone(), report));
        let stale_for = |node: &NodeReport| if node.owes > 0 { Duration::from_millis(3) } else { Duration::ZERO };
        NodeReport::of_each(reporters).into_iter().map(|node| (node.clone(), stale_for(&node))).collect()
    }

    fn diagnostics(&self) -> Vec<DiagnosticRow> {
        let [object, field, reason, fix] =
            ["node-1/web-sidecar-proxy", "Proxy.Upstreams[0]", "no service named \"gone\"", "register gone"]
                .map(str::to_owned);
        vec![DiagnosticRow { object, field, reason, fix }]
    }

    fn authority(&self) -> MeshFacts {
        MeshFacts {
            datacenter: "dc1".parse().unwrap(),
            trust_domain: root().trust_domain,
            default_intention_action: *held(&self.default_action),
            acl_default: *held(&self.acl_default),
            leader_address: "127.0.0.1:8300".to_owned(),
            peer_addresses: vec!["127.0.0.1:8300".to_owned()],
            version: "0.1.0".to_owned(),
            node_name: node_name(),
            node_id: "40e4a748-2192-161a-0510-9bf59fe950b5".to_owned(),
            node_address: "10.0.0.1".to_owned(),
            grpc_port: Some(8502),
            grpc_tls_port: Some(8503),
            dns_port: Some(8600),
            envoy_versions: vec!["1.40.0".to_owned()],
            connect_off: self.connect_off.load(std::sync::atomic::Ordering::Relaxed),
            translates_addresses: self.translates_addresses.load(std::sync::atomic::Ordering::Relaxed),
        }
    }

    fn leaving(&self, begin: bool) -> Option<starling_http_api::Leaving> {
        Some(starling_http_api::Leaving { begun: begin, attached: 3, standby: 2, done: false })
    }

    fn metrics_text(&self) -> String {
        "# TYPE starling_commits counter\nstarling_commits_total 1\n# EOF\n".to_owned()
    }
}

fn expand(spec: CheckSpec, number: usize, instance: &ServiceInstance) -> Check {
    let id = match number {
        1 => format!("service:{}", instance.key.id),
        _ => format!("service:{}:{number}", instance.key.id),
    };
    Check {
        node: instance.key.node.clone(),
        id: spec.id.unwrap_or_else(|| id.parse().unwrap()),
        name: if spec.name.is_empty() { format!("Service '{}' check", instance.name) } else { spec.name },
        status: spec.initial_status,
        notes: spec.notes,
        output: String::new(),
        service: Some(CheckedService {
            id: instance.key.id.clone(),
            name: instance.name.clone(),
            tags: instance.tags.clone(),
        }),
        kind: spec.definition.kind.as_str().to_owned(),
        interval: spec.interval_text,
        timeout: spec.timeout_text,
        definition: starling_model::OpaqueSettings::default(),
    }
}

/// What stands for the node itself where a check is made for an instance.
fn parse_own_node() -> ServiceInstance {
    let context = Context::new(Dialect::Api, node_name(), "dc1".parse().unwrap());
    let fields = Fields::of(&context, "", serde_json::json!({"Name": "node"})).unwrap();
    starling_http_api::parse::parse_service(fields).unwrap().instance
}

impl Local {
    fn add(&mut self, registration: ServiceRegistration) {
        let ServiceRegistration { mut instance, checks, sidecar } = registration;
        if instance.sidecar().is_some() && instance.port.is_none() {
            let taken = |port: i64| self.services.values().any(|s| s.port.map(Port::get).map(i64::from) == Some(port));
            let free = (SIDECAR_PORT_MIN..).find(|port| !taken(*port)).unwrap();
            instance.port = Some(Port::try_from(free).unwrap());
        }
        for (index, spec) in checks.into_iter().enumerate() {
            let check = expand(spec, index + 1, &instance);
            self.checks.insert(check.id.clone(), check);
        }
        self.services.insert(instance.key.id.clone(), instance);
        if let Some(sidecar) = sidecar {
            self.add(*sidecar);
        }
    }
}

#[async_trait]
impl AgentPort for World {
    async fn register_service(&self, registration: ServiceRegistration, _: bool) -> Result<Revision, AgentFailure> {
        held(&self.local).add(registration);
        self.touch();
        self.push()
    }

    async fn deregister_service(&self, id: &InstanceId) -> Result<Revision, AgentFailure> {
        if held(&self.local).services.remove(id).is_none() {
            return Err(AgentFailure::NotFound);
        }
        self.touch();
        let key = InstanceKey { node: node_name(), id: id.clone() };
        let commit = self.commit(Command::DeregisterInstance(key)).await;
        commit.map_err(|error| AgentFailure::Internal(error.to_string()))
    }

    async fn register_check(&self, registration: CheckRegistration) -> Result<Revision, AgentFailure> {
        let CheckRegistration { spec, service } = registration;
        {
            let mut local = held(&self.local);
            let instance = match &service {
                Some(service) => local.services.get(service).cloned().ok_or(AgentFailure::NotFound)?,
                None => parse_own_node(),
            };
            let mut check = expand(spec, 1, &instance);
            check.service = check.service.filter(|_| service.is_some());
            local.checks.insert(check.id.clone(), check);
        }
        self.push()
    }

    async fn deregister_check(&self, id: &CheckId) -> Result<Revision, AgentFailure> {
        if held(&self.local).checks.remove(id).is_none() {
            return Err(AgentFailure::NotFound);
        }
        let commit = self.commit(Command::DeregisterCheck(node_name(), id.clone())).await;
        commit.map_err(|error| AgentFailure::Internal(error.to_string()))
    }

    async fn update_check(&self, id: &CheckId, status: CheckStatus, output: String) -> Result<Revision, AgentFailure> {
        {
            let mut local = held(&self.local);
            let check = local.checks.get_mut(id).ok_or(AgentFailure::NotFound)?;
            if check.kind != "ttl" {
                let reason = format!("check {id} is of kind {}, not ttl", check.kind);
                return Err(AgentFailure::BadRequest { path: "CheckID".to_owned(), reason });
            }
            (check.status, check.output) = (status, output);
        }
        self.push()
    }

    fn services(&self) -> Vec<ServiceInstance> {
        held(&self.local).services.values().cloned().collect()
    }

    fn service(&self, id: &InstanceId) -> Option<ServiceInstance> {
        held(&self.local).services.get(id).cloned()
    }

    fn checks(&self) -> Vec<Check> {
        held(&self.local).checks.values().cloned().collect()
    }

    fn generation(&self) -> u64 {
        *self.generation.borrow()
    }

    async fn wait_generation(&self, after: u64, timeout: Duration) {
        let mut changes = self.generation.subscribe();
        let _ = tokio::time::timeout(timeout, changes.wait_for(|now| *now > after)).await;
    }

    async fn leaf(&self, service: &ServiceName, after: Revision, timeout: Duration) -> Result<Leaf, AgentFailure> {
        if !held(&self.local).services.values().any(|instance| instance.identity() == service) {
            return Err(AgentFailure::NotFound);
        }
        let modified = Revision(5);
        if after >= modified {
            tokio::time::sleep(timeout).await;
        }
        Ok(Leaf {
            serial_number: "08:0a".to_owned(),
            certificate_pem: "-----BEGIN CERTIFICATE-----\nleaf\n-----END CERTIFICATE-----\n".to_owned(),
            private_key_pem: PrivateKeyText::new("a key".to_owned()),
            service: service.clone(),
            uri: format!("spiffe://{}/ns/default/dc/dc1/svc/{service}", root().trust_domain),
            valid_after: UnixSeconds(1_700_000_000),
            valid_before: UnixSeconds(1_700_259_200),
            created: Revision(5),
            modified,
        })
    }

    fn rotate_leaves(&self) {}

    fn default_token(&self) -> Option<AclSecret> {
        held(&self.default_token).clone()
    }

    fn set_default_token(&self, token: Option<AclSecret>) {
        *held(&self.default_token) = token;
    }
}
