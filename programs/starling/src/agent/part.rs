//! The part of the catalog that this agent has, as the HTTP API sees it. Whatever else is asked goes to the servers.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::Request;
use http_body_util::{BodyExt, Limited};
use hyper::body::Bytes;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use starling_agent::remote::RemoteNode;
use starling_attach::Replica;
use starling_catalog::{
    Barrier, ChangeReport, Command, Earlier, MeshRead, NewJoinToken, NodeReport, ProxyReport, Snapshot, Subject, Until,
};
use starling_http_api::{
    Bearer, BearerFailure, CatalogPort, CommitFailure, Committed, Currency, DiagnosticRow, INSIDE, Leaving, MeshFacts,
    ServersPort,
};
use starling_identity::JoinToken;
use starling_model::{Change, ConfigEntry, InstanceKey, Record, Revision, ServerId, UnixSeconds};
use starling_telemetry::{LogFormat, Registry};

use super::bearers::Bearers;
use super::servers::Servers;

/// Bytes of a receipt without names.
const RECEIPT_BYTES_MAX: usize = 64 * 1024;

/// What is known here, and the way to the rest.
pub(super) struct Part {
    node: Arc<RemoteNode>,
    servers: Servers,
    facts: MeshFacts,
    registry: Registry,
    bearers: Bearers,
}

impl Part {
    pub(super) fn new(
        node: Arc<RemoteNode>,
        servers: Servers,
        facts: MeshFacts,
        registry: Registry,
        bearers: Bearers,
    ) -> Self {
        Self { node, servers, facts, registry, bearers }
    }
}

/// Roots, and what is said of proxies and of the services that concern this node.
fn snapshot(replica: &Replica) -> Snapshot {
    let mut records: Vec<Record> = replica.roots().into_iter().cloned().map(Record::CaRoot).collect();
    let defaults = replica.proxy_defaults().cloned().map(ConfigEntry::ProxyDefaults);
    let services = replica.subjects().filter_map(|subject| {
        let Subject::Routing(service) = subject else { return None };
        Some([
            replica.service_defaults(service).cloned().map(ConfigEntry::ServiceDefaults),
            replica.service_resolver(service).cloned().map(Box::new).map(ConfigEntry::ServiceResolver),
            replica.service_router(service).cloned().map(ConfigEntry::ServiceRouter),
            replica.service_splitter(service).cloned().map(ConfigEntry::ServiceSplitter),
            replica.ingress_gateway(service).cloned().map(Box::new).map(ConfigEntry::IngressGateway),
            replica.terminating_gateway(service).cloned().map(Box::new).map(ConfigEntry::TerminatingGateway),
        ])
    });
    let mesh = replica.mesh_entry().cloned().map(ConfigEntry::Mesh);
    records.extend(defaults.into_iter().chain(mesh).chain(services.flatten().flatten()).map(Record::Config));
    let changes: Vec<_> = records.into_iter().map(Change::Put).collect();
    Snapshot::default().apply(replica.through().max(Revision(1)), &changes).snapshot
}

#[async_trait]
impl CatalogPort for Part {
    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::new(snapshot(&self.node.replica()))
    }

    async fn wait(&self, _: &[Subject], _: Revision, timeout: Duration) -> Arc<Snapshot> {
        // Asked only while no server is reached, and then nothing changes.
        tokio::time::sleep(timeout).await;
        self.snapshot()
    }

    async fn catch_up(&self) -> Result<(), CommitFailure> {
        Err(CommitFailure::NoLeader("No cluster leader: this agent reaches no server".to_owned()))
    }

    fn own_server(&self) -> Option<ServerId> {
        None
    }

    fn has_halted(&self) -> bool {
        false
    }

    fn currency(&self) -> Currency {
        Currency { last_contact: self.node.away_for(), knows_leader: false, takes_writes: false }
    }

    async fn transact(&self, _: &Bearer, _: Command) -> Result<Committed, CommitFailure> {
        Err(CommitFailure::Unavailable("an agent has none; servers have".to_owned()))
    }

    async fn bearer(&self, secret: Option<&str>) -> Result<Bearer, BearerFailure> {
        match self.facts.acl_default {
            None => Ok(Bearer::unrestricted()),
            Some(_) => self.bearers.find(&self.servers, secret).await,
        }
    }

    async fn create_join_token(&self, _: NewJoinToken) -> Result<(JoinToken, UnixSeconds), CommitFailure> {
        Err(CommitFailure::Unavailable("an agent has none; servers have".to_owned()))
    }

    async fn change(&self, _: Revision, _: Duration, _: usize) -> Option<ChangeReport> {
        None
    }

    async fn own_part_of_change(&self, _: Revision, _: &Earlier, _: Duration) -> Option<ChangeReport> {
        None
    }

    /// Of what was registered here; the receipts are the servers'.
    async fn until(&self, revision: Revision, until: &Until, wait: Duration) -> Option<Barrier> {
        let (until, millis) = (until.to_string(), wait.as_millis());
        let until = utf8_percent_encode(&until, NON_ALPHANUMERIC);
        let target = format!("/starling/v1/changes/{revision}?until={until}&wait={millis}ms&names=0");
        let request = Request::builder().uri(target).header(INSIDE, "1").body(Bytes::new()).ok()?;
        let answer = ServersPort::ask(&self.servers, request).await.ok()?;
        let body = Limited::new(answer.into_body(), RECEIPT_BYTES_MAX).collect().await.ok()?.to_bytes();
        let receipt: serde_json::Value = serde_json::from_slice(&body).ok()?;
        match receipt["until"].as_str()? {
            "met" => Some(Barrier::Met),
            "timeout" => Some(Barrier::NotYet),
            "never" => Some(Barrier::Never),
            _ => None,
        }
    }

    fn own_part_of_changes(&self, _: usize) -> Vec<ChangeReport> {
        Vec::new()
    }

    fn proxies(&self) -> Vec<(InstanceKey, ProxyReport)> {
        Vec::new()
    }

    fn nodes(&self) -> Vec<(NodeReport, Duration)> {
        Vec::new()
    }

    fn diagnostics(&self) -> Vec<DiagnosticRow> {
        crate::role::catalog::rows(&self.node.proxies)
    }

    fn authority(&self) -> MeshFacts {
        self.facts.clone()
    }

    fn metrics_text(&self) -> String {
        self.registry.encode()
    }

    fn log_lines(&self, level: tracing::Level, json: bool) -> Option<tokio::sync::mpsc::Receiver<String>> {
        starling_telemetry::follow(level, if json { LogFormat::Json } else { LogFormat::Text })
    }

    fn leaving(&self, _: bool) -> Option<Leaving> {
        None
    }
}
