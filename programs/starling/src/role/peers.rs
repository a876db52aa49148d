//! The other servers of the same store, and what only they know: how far the nodes are that are attached to them.
//!
//! Each is asked over the port for agents, where servers know one another by their certificates. A part of a receipt is the
//! public form of one, with all names; what it costs is a name for each node that the change concerns, once for each server
//! that is asked, and nothing while nobody asks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use futures::future::join_all;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use starling_catalog::receipts::{Latency, Reached};
use starling_catalog::{Barrier, ChangeReport, Charge, Counts, Earlier, Refused, Reporter, Until};
use starling_http_api::INSIDE;
use starling_identity::Identity;
use starling_model::{InstanceKey, NodeName, Revision, ServerId, ServerRecord, Versioned};
use starling_rpc::ServerClient;
use starling_server::Server;
use starling_tls::{CredentialSlot, Credentials, LeafKey, TrustRoots, client_config};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// To connect, and for an answer beyond what it was asked to wait.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Between two looks at a barrier that is not decided by all having reported.
const LOOK: Duration = Duration::from_millis(100);

/// Bytes of a part: the names of a fleet of twice the size that is tested.
const PART_BYTES_MAX: usize = 16 * 1024 * 1024;

type Peer = Versioned<ServerRecord>;

/// The way to the other servers.
pub(crate) struct Peers {
    server: Arc<Server>,
    clients: Mutex<BTreeMap<ServerId, ServerClient>>,
}

/// A receipt as servers give it.
#[derive(Deserialize)]
struct Part {
    revision: u64,
    #[serde(default)]
    earlier: String,
    #[serde(default)]
    counts: PartCounts,
    #[serde(default)]
    latency_us: PartLatency,
    #[serde(default)]
    reached_us: PartReached,
    applied: Vec<Applied>,
    pending: Vec<String>,
    rejected: Vec<Rejected>,
    lost: Vec<String>,
}

#[derive(Default, Deserialize)]
struct PartCounts {
    affected: usize,
    applied: usize,
    pending: usize,
    rejected: usize,
    lost: usize,
}

#[derive(Default, Deserialize)]
struct PartLatency {
    p50: Option<u64>,
    p90: Option<u64>,
    p99: Option<u64>,
    max: Option<u64>,
}

#[derive(Default, Deserialize)]
struct PartReached {
    #[serde(rename = "50%")]
    half: Option<u64>,
    #[serde(rename = "99%")]
    most: Option<u64>,
    #[serde(rename = "100%")]
    all: Option<u64>,
}

/// Nodes as servers list them.
#[derive(Deserialize)]
struct Nodes {
    nodes: Vec<Through>,
}

/// How far a node is.
#[derive(Deserialize)]
struct Through {
    lost: bool,
    applied_through: u64,
    refused: Vec<IgnoredAny>,
}

/// Whether every one of these nodes has applied everything up to `revision`, and refused nothing.
fn is_through(nodes: &[Through], revision: Revision) -> bool {
    let is = |node: &Through| node.lost || (node.applied_through >= revision.0 && node.refused.is_empty());
    nodes.iter().all(is)
}

/// Receipts as servers list them.
#[derive(Deserialize)]
struct List {
    changes: Vec<Part>,
}

#[derive(Deserialize)]
struct Applied {
    proxy: String,
    latency_us: u64,
}

#[derive(Deserialize)]
struct Rejected {
    proxy: String,
    revision: u64,
    type_url: String,
    resources: Vec<String>,
    reason: String,
}

impl Peers {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self { server, clients: Mutex::default() }
    }

    /// The other servers, as far as they were known last.
    pub(crate) fn others(&self) -> Vec<Arc<Peer>> {
        let snapshot = self.server.snapshot();
        let is_other = |peer: &&Arc<Peer>| Some(peer.value.id) != self.server.id();
        snapshot.servers().filter(is_other).cloned().collect()
    }

    /// For how long another server has been without contact with the store; `None` if it does not say so, or takes no writes.
    pub(crate) async fn without_contact(&self, peer: &ServerRecord) -> Option<Duration> {
        let asked = self.say(peer, "/starling/v1/health/ready?writes");
        let said = tokio::time::timeout(ANSWER_TIMEOUT, asked).await.ok()?.ok()?;
        said["store"]["last_contact_ms"].as_u64().map(Duration::from_millis)
    }

    /// The receipt of a change by what all servers know, once nothing is outstanding or the time is over; `None` if nobody
    /// remembers it.
    ///
    /// A server that does not remember it has not said that it concerns none of its nodes, unless it was started after it and all
    /// who are there now have applied what is as old; and of nodes whose server is gone nobody can say anything until they are
    /// elsewhere, or lost.
    ///
    /// Servers that are asked to wait answer at different times, and a node that moved from one to another in between would be
    /// spoken of by neither: that nothing is outstanding counts only where all say so at once.
    pub(crate) async fn change(&self, revision: Revision, wait: Duration, names: usize) -> Option<ChangeReport> {
        let by = Instant::now() + wait;
        loop {
            let left = by.saturating_duration_since(Instant::now());
            let report = self.gathered(revision, left, names).await?;
            if left.is_zero() || !report.is_settled() || self.others().is_empty() {
                return Some(report);
            }
            let at_once = self.gathered(revision, Duration::ZERO, names).await?;
            if at_once.is_settled() || Instant::now() >= by {
                return Some(at_once);
            }
        }
    }

    /// What all know now, or at the end of the time. Of which transactions a command consists only the server knows that wrote
    /// it; who hears of any asks once more, so that all speak of the same.
    async fn gathered(&self, revision: Revision, wait: Duration, names: usize) -> Option<ChangeReport> {
        let by = Instant::now() + wait;
        let mut earlier = self.server.report(revision, 0).map(|report| report.earlier).unwrap_or_default();
        loop {
            let left = by.saturating_duration_since(Instant::now());
            let report = self.gathered_of(revision, &earlier, left, names).await?;
            if !earlier.extend(&report.earlier) {
                return Some(report);
            }
        }
    }

    async fn gathered_of(
        &self,
        revision: Revision,
        earlier: &Earlier,
        wait: Duration,
        names: usize,
    ) -> Option<ChangeReport> {
        let snapshot = self.server.snapshot();
        let others = self.others();
        let gone = snapshot.attachments().map(|attachment| attachment.value.server);
        let gone: BTreeSet<_> = gone.filter(|server| snapshot.server(*server).is_none()).collect();
        let gone = gone.into_iter().map(|server| format!("{server} (gone)"));
        let asked = others.iter().map(|peer| self.part_of(&peer.value, revision, earlier, wait));
        let (own, parts) =
            tokio::join!(self.server.part_of_change(revision, earlier, wait, usize::MAX), join_all(asked));
        if own.is_none() && parts.iter().all(Option::is_none) {
            return None;
        }
        let mut all = Vec::new();
        for (part, peer) in parts.into_iter().zip(&others) {
            all.push(match part {
                Some(part) => part,
                None if self.has_nothing_outstanding(peer, revision).await => ChangeReport::default(),
                None => unheard(vec![peer.value.name.to_string()]),
            });
        }
        let me = self.server.id().and_then(|id| snapshot.server(id));
        all.push(match own {
            Some(own) => own,
            None if me.is_some_and(|me| me.created > revision) && is_through(&self.own_nodes(), revision) => {
                ChangeReport::default()
            }
            None => unheard(me.map(|me| me.value.name.to_string()).into_iter().collect()),
        });
        all.push(unheard(gone.collect()));
        Some(ChangeReport::merged(revision, all, names))
    }

    /// Whether a server that was started after a change, and so does not remember it, has nobody who has yet to apply it. Who was with
    /// another server then, and is there now, says so by what it has applied up to.
    async fn has_nothing_outstanding(&self, peer: &Peer, revision: Revision) -> bool {
        if peer.created <= revision {
            return false;
        }
        let asked = tokio::time::timeout(ANSWER_TIMEOUT, self.say(&peer.value, "/starling/v1/nodes?local"));
        let Ok(Ok(said)) = asked.await else { return false };
        serde_json::from_value::<Nodes>(said).is_ok_and(|said| is_through(&said.nodes, revision))
    }

    /// The nodes of this server, as it tells others of them.
    fn own_nodes(&self) -> Vec<Through> {
        let nodes = self.server.nodes().into_iter();
        nodes
            .map(|(node, _)| Through {
                lost: false,
                applied_through: node.applied_through.0,
                refused: node.refused.iter().map(|_| IgnoredAny).collect(),
            })
            .collect()
    }

    /// How it stands with a barrier behind a change, by what all servers know.
    pub(crate) async fn until(&self, revision: Revision, until: &Until, wait: Duration) -> Option<Barrier> {
        let by = Instant::now() + wait;
        loop {
            let left = by.saturating_duration_since(Instant::now());
            // Only once all have reported can it be told without another look.
            let step = if *until == Until::AppliedAll { left } else { left.min(LOOK) };
            let report = self.change(revision, step, usize::MAX).await?;
            let snapshot = self.server.snapshot();
            let is_heard_of = |node: &NodeName| matches!(snapshot.charge(node), Charge::Of(Some(_)));
            let barrier = report.barrier(until, is_heard_of);
            if barrier != Barrier::NotYet || left.is_zero() {
                return Some(barrier);
            }
            if step.is_zero() || report.is_settled() || !report.unheard.is_empty() {
                tokio::time::sleep(LOOK.min(left)).await;
            }
        }
    }

    /// What one server knows of a change; `None` if it does not remember it. One that cannot be asked is told as unheard.
    async fn part_of(
        &self,
        peer: &ServerRecord,
        revision: Revision,
        earlier: &Earlier,
        wait: Duration,
    ) -> Option<ChangeReport> {
        let asked = tokio::time::timeout(wait + ANSWER_TIMEOUT, self.ask(peer, revision, earlier, wait)).await;
        let reason = match asked {
            Ok(Ok(part)) => return part,
            Ok(Err(error)) => format!("{error:#}"),
            Err(_late) => "no answer in time".to_owned(),
        };
        tracing::debug!(server = %peer.name, reason, "another server's part of a receipt is missing");
        Some(unheard(vec![peer.name.to_string()]))
    }

    async fn ask(
        &self,
        peer: &ServerRecord,
        revision: Revision,
        earlier: &Earlier,
        wait: Duration,
    ) -> anyhow::Result<Option<ChangeReport>> {
        let client = self.client(peer).await?;
        let (base, millis) = ("https://starling/starling/v1/changes", wait.as_millis());
        let target = format!("{base}/{revision}?local&wait={millis}ms&earlier={earlier}");
        let request = Request::get(target).header(INSIDE, "1").body(Empty::<Bytes>::new())?;
        let answer = client.ask_api(request).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), PART_BYTES_MAX).collect().await;
        let body = body.map_err(|error| anyhow!("{error}"))?.to_bytes();
        if status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        ensure!(status == StatusCode::OK, "{status}: {}", String::from_utf8_lossy(&body));
        serde_json::from_slice::<Part>(&body).context("its form")?.into_report().map(Some)
    }

    /// What the others answer to a GET, with their names, and the names of those that do not.
    pub(crate) async fn all_say(&self, target: &str) -> (Vec<(String, Value)>, Vec<String>) {
        let others = self.others();
        let asked = others.iter().map(|peer| tokio::time::timeout(ANSWER_TIMEOUT, self.say(&peer.value, target)));
        let (mut answers, mut unheard) = (Vec::new(), Vec::new());
        for (said, peer) in join_all(asked).await.into_iter().zip(&others) {
            let name = peer.value.name.to_string();
            match said {
                Ok(Ok(answer)) => answers.push((name, answer)),
                Ok(Err(error)) => {
                    tracing::debug!(
                        server = name,
                        error = format!("{error:#}"),
                        target,
                        "another server does not answer"
                    );
                    unheard.push(name);
                }
                Err(_late) => unheard.push(name),
            }
        }
        (answers, unheard)
    }

    async fn say(&self, peer: &ServerRecord, target: &str) -> anyhow::Result<Value> {
        let request =
            Request::get(format!("https://starling{target}")).header(INSIDE, "1").body(Empty::<Bytes>::new())?;
        let answer = self.client(peer).await?.ask_api(request).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), PART_BYTES_MAX).collect().await;
        let body = body.map_err(|error| anyhow!("{error}"))?.to_bytes();
        ensure!(status == StatusCode::OK, "{status}: {}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).context("its form")
    }

    /// The newest receipts by what all servers know, of which this one knows `own`, and the servers that were not heard. As
    /// with a single one, a server that does not remember a change has not said that it concerns none of its nodes.
    pub(crate) async fn changes(
        &self,
        own: Vec<ChangeReport>,
        most: usize,
        names: usize,
    ) -> (Vec<ChangeReport>, Vec<String>) {
        let (answers, mut absent) = self.all_say("/starling/v1/changes?local").await;
        let own_name = self.server.id().map(|_| self.server.name().to_string()).unwrap_or_default();
        let mut lists = vec![(own_name, own)];
        for (name, answer) in answers {
            let parts = List::deserialize(answer).map(|list| list.changes.into_iter().map(Part::into_report).collect());
            match parts {
                Ok(Ok(parts)) => lists.push((name, parts)),
                Ok(Err(_)) | Err(_) => absent.push(name),
            }
        }
        let revisions: BTreeSet<_> = lists.iter().flat_map(|(_, list)| list).map(|change| change.revision).collect();
        let merge = |revision: &Revision| {
            let part = |(name, list): &(String, Vec<ChangeReport>)| {
                let found = list.iter().find(|change| change.revision == *revision).cloned();
                found.unwrap_or_else(|| unheard(vec![name.clone()]))
            };
            let parts = lists.iter().map(part).chain([unheard(absent.clone())]).collect();
            ChangeReport::merged_in_part(*revision, parts, names)
        };
        (revisions.iter().rev().take(most).map(merge).collect(), absent)
    }

    /// The connection to a server, made if there is none.
    async fn client(&self, peer: &ServerRecord) -> anyhow::Result<ServerClient> {
        if let Some(client) = self.clients.lock().await.get(&peer.id).filter(|client| !client.is_closed()) {
            return Ok(client.clone());
        }
        // Not under the lock: a server that cannot be reached must not hold up what the others are asked.
        let snapshot = self.server.snapshot();
        // Its own each time: what is shown counts only as the connection is made.
        let key = LeafKey::generate()?;
        let leaf = self.server.issue_server(key.csr_der()?, &[]).await?;
        let shown = CredentialSlot::new(Credentials::new(&leaf.chain_pem, &key)?);
        let roots = TrustRoots::new(snapshot.roots().into_iter().map(|root| &root.value))?;
        let datacenter = self.server.datacenter().clone();
        let server = Identity::Server { trust_domain: self.server.trust_domain().clone(), datacenter };
        let tls = Arc::new(client_config(Some(shown), &roots, server)?);
        let client = ServerClient::connect(&*peer.agents, tls, CONNECT_TIMEOUT).await?;
        let mut clients = self.clients.lock().await;
        clients.retain(|id, _| snapshot.server(*id).is_some());
        clients.insert(peer.id, client.clone());
        Ok(client)
    }
}

/// The part of servers of which it is not known.
fn unheard(servers: Vec<String>) -> ChangeReport {
    ChangeReport { unheard: servers, ..ChangeReport::default() }
}

impl Part {
    fn into_report(self) -> anyhow::Result<ChangeReport> {
        let revision = Revision(self.revision);
        let all = |names: Vec<String>| names.iter().map(|name| reporter(name)).collect::<anyhow::Result<Vec<_>>>();
        let applied = self.applied.into_iter().map(|one| Ok((reporter(&one.proxy)?, one.latency_us)));
        let rejected = self.rejected.into_iter().map(|one| {
            let who = reporter(&one.proxy)?;
            let proxy = match &who {
                Reporter::Proxy(key) => Some(key.id.clone()),
                Reporter::Node(_) => None,
            };
            let (node, revision) = (Reporter::Node(who.node().clone()), Revision(one.revision));
            let Rejected { type_url, resources, reason: text, .. } = one;
            Ok((node, Arc::new(Refused { revision, since: revision, proxy, type_url, resources, text })))
        });
        let (applied, rejected) = (applied.collect::<anyhow::Result<_>>()?, rejected.collect::<anyhow::Result<_>>()?);
        let (pending, lost) = (all(self.pending)?, all(self.lost)?);
        let counts = {
            let PartCounts { affected, applied, pending, rejected, lost } = self.counts;
            Counts { affected, applied, pending, rejected, lost }
        };
        let latency = match self.latency_us {
            PartLatency { p50: Some(p50), p90: Some(p90), p99: Some(p99), max: Some(max) } => {
                Some(Latency { p50, p90, p99, max })
            }
            PartLatency { .. } => None,
        };
        let PartReached { half, most, all } = self.reached_us;
        let reached = Reached { half, most, all };
        let earlier = self.earlier.parse().context("earlier")?;
        let unheard = Vec::new();
        Ok(ChangeReport { revision, earlier, counts, latency, reached, applied, pending, rejected, lost, unheard })
    }
}

/// A node, or a proxy on one.
fn reporter(text: &str) -> anyhow::Result<Reporter> {
    match text.split_once('/') {
        Some((node, id)) => {
            let node = node.parse().context("a node's name")?;
            Ok(Reporter::Proxy(InstanceKey { node, id: id.parse().context("a proxy's id")? }))
        }
        None => Ok(Reporter::Node(text.parse().context("a node's name")?)),
    }
}
