//! What agents ask of this server, answered; over a stream in one process and another, or directly within one.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use starling_attach::message::{AgentSays, Hello, LEVEL, Resume, SUBJECTS_MAX, Subjects, Welcome, decode_subject};
use starling_attach::relayed::{RELAY_SUBJECTS_MAX, WireEpoch};
use starling_attach::{Epoch, FromServer, Parts};
use starling_catalog::{
    Charge, Command, EnrolmentCommand, JoinTokenCommand, JoinTokenRefusal, NameHolder, Refusal, Refused, Registers,
    Snapshot, Subject,
};
use starling_identity::JoinToken;
use starling_model::{
    Action, Change, InstanceId, InstanceKey, KeyFingerprint, Member, NodeName, Record, RecordKey, Revision,
};
use starling_rpc::{
    AgentDoor, AgentStream, AliasView, CallError, Credential, JoinAnswer, JoinRequest, LeafRequest, OwnRecords,
    whole_request,
};
use starling_tls::{IssuedLeaf, requested_key};

use crate::agents::{self, StreamKind, Superseded};
use crate::commit::CommitFailure;
use crate::liveness::Presence;
use crate::server::Server;
use crate::signer::SignFailure;

/// Nodes that compare themselves with the catalog in a second for no reason but that time has passed: each costs some
/// hundred microseconds if it has forty instances.
const COMPARISONS_PER_SECOND: u32 = 25;

/// The way in for agents.
pub struct Door {
    server: Arc<Server>,
    /// What an agent is told first.
    welcome: Bytes,
    /// The node whose agent lives in the server's process, and so attaches to nothing.
    own_node: Option<NodeName>,
    /// What nodes may register.
    registers: Registers,
}

impl Door {
    /// A door to `server`, in a mesh whose calls are allowed or not where no intention decides; with what holds where no rule of access
    /// control does, if access is controlled.
    #[must_use]
    pub fn new(server: Arc<Server>, default_allow: bool, acl_default: Option<Action>) -> Self {
        let welcome = Welcome {
            trust_domain: server.trust_domain().to_string(),
            datacenter: server.datacenter().to_string(),
            default_allow,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            epoch: server.agents().lineage().current(),
            relay: false,
            epochs: server.agents().lineage().epochs().iter().map(wire_epoch).collect(),
            level: LEVEL,
            server: server.id().map(|id| id.to_string()).unwrap_or_default(),
            server_name: server.name().to_string(),
            acl_default: acl_default.map_or("", Action::as_str).to_owned(),
        };
        let welcome = FromServer::from(starling_attach::message::ServerSays::Welcome(welcome)).to_bytes();
        // With access control a token that names no services is worth none.
        let registers = if acl_default.is_some() { Registers::Named } else { Registers::AnythingUnlessNamed };
        Self { server, welcome, own_node: None, registers }
    }

    /// The same, with an agent of `node` in the server's own process; nobody else joins by that name.
    #[must_use]
    pub fn beside(self, node: NodeName) -> Self {
        Self { own_node: Some(node), ..self }
    }
}

impl From<CommitFailure> for CallError {
    fn from(failure: CommitFailure) -> Self {
        match failure {
            CommitFailure::Refused(refusal) => refused(&refusal),
            invalid @ CommitFailure::Invalid(_) => Self::refused(format!("{:#}", anyhow::Error::from(invalid))),
            other @ (CommitFailure::Contended
            | CommitFailure::Gated { .. }
            | CommitFailure::Halted(_)
            | CommitFailure::Unavailable(_)
            | CommitFailure::Behind
            | CommitFailure::Cut(_)
            | CommitFailure::Store(_)) => Self::unavailable(format!("{:#}", anyhow::Error::from(other))),
        }
    }
}

/// What a refusal is to whoever asked: to be asked again if it passes by itself.
fn refused(refusal: &Refusal) -> CallError {
    if matches!(refusal, Refusal::JoinToken(JoinTokenRefusal::NodeAway { .. })) {
        CallError::unavailable(refusal)
    } else {
        CallError::refused(refusal)
    }
}

#[async_trait]
impl AgentDoor for Door {
    fn admit(&self, caller: &Credential) -> Result<(), CallError> {
        if let Member::Node(node) = &caller.member
            && self.is_own(node)
        {
            return Err(CallError::refused(format!(
                "node {node} is this server's own, whose agent does not call from outside"
            )));
        }
        self.server.snapshot().admit(&caller.member, caller.key.as_ref()).map_err(CallError::refused)
    }

    fn connected(&self, caller: &Credential) -> BoxFuture<'static, ()> {
        let Some(key) = caller.key else { return Box::pin(std::future::pending()) };
        let connected = self.server.connections().enter(caller.member.clone(), key);
        self.shown(caller.member.clone(), key);
        Box::pin(connected)
    }

    fn attach(&self, node: NodeName, hello: Hello) -> Result<Arc<dyn AgentStream>, CallError> {
        let Hello { version, standby, level, .. } = hello;
        tracing::debug!(%node, version, standby, "agent attached");
        let stream = self.server.agents().attach(node.clone(), StreamKind { standby, level });
        let stream = stream.map_err(CallError::unavailable)?;
        let (server, arrives) = (Arc::clone(&self.server), Mutex::new((!standby).then_some(node)));
        let (parts, welcome) = (Mutex::default(), OnceLock::new());
        Ok(Arc::new(Stream { server, stream, arrives, parts, welcome, first: self.welcome.clone() }))
    }

    fn relay(&self, relay: NodeName, hello: Hello) -> Result<Arc<dyn AgentStream>, CallError> {
        let Hello { version, standby, level, .. } = hello;
        tracing::info!(%relay, version, standby, "relay attached");
        let stream = self.server.agents().attach_relay(relay, level).map_err(CallError::unavailable)?;
        let server = Arc::clone(&self.server);
        let (parts, welcome) = (Mutex::default(), OnceLock::new());
        Ok(Arc::new(Relayed { server, stream, parts, welcome, first: self.welcome.clone() }))
    }

    async fn commit(&self, caller: &Credential, changes: Vec<Change>) -> Result<Revision, CallError> {
        let node = caller.member.name();
        let leaves = |change: &Change| matches!(change, Change::Delete(RecordKey::Node(of)) if of == node);
        if changes.iter().any(leaves) {
            return Ok(self.server.leave_node(node).await?);
        }
        let command =
            Command::Node { name: node.clone(), changes, key: caller.key, registers: self.registers_of(node) };
        let revision = self.server.commit(&command).await?;
        if self.server.is_attached(node) {
            // A node that attached before it was registered could not be written as alive then.
            self.server.write_liveness(node).await;
        }
        Ok(revision)
    }

    async fn own_records(&self, node: &NodeName, since: Option<Revision>) -> Result<OwnRecords, CallError> {
        let snapshot = self.server.snapshot();
        let revision = snapshot.revision();
        let again_after_s = self.server.agents().attached() / COMPARISONS_PER_SECOND;
        let touched = snapshot.subject_revision(&Subject::Node(node.clone()));
        if since.is_some_and(|since| touched <= since && since <= revision) {
            return Ok(OwnRecords { revision, records: None, again_after_s });
        }
        let own = snapshot.node(node).map(|node| Record::Node(node.value.clone()));
        let instances = snapshot.instances_on(node).map(|instance| Record::Instance(instance.value.clone()));
        let checks = snapshot.checks_on(node).map(|check| Record::Check(check.value.clone()));
        let records = own.into_iter().chain(instances).chain(checks).collect();
        Ok(OwnRecords { revision, records: Some(records), again_after_s })
    }

    async fn issue_leaves(
        &self,
        node: &NodeName,
        wanted: Vec<LeafRequest>,
    ) -> Result<Vec<Result<IssuedLeaf, CallError>>, CallError> {
        let snapshot = self.server.snapshot();
        let registered: BTreeSet<_> =
            snapshot.instances_on(node).map(|instance| instance.value.identity().clone()).collect();
        let mut leaves = Vec::with_capacity(wanted.len());
        for LeafRequest { service, csr_der } in wanted {
            if !registered.contains(&service) && !snapshot.is_stood_for_on(node, &service) {
                leaves.push(Err(CallError::refused(format!(
                    "no instance of {service} is registered on {node}, and no gateway there stands for it"
                ))));
                continue;
            }
            if let Err(refused) = snapshot.may_register(node, &service, self.registers_of(node)) {
                leaves.push(Err(CallError::refused(refused)));
                continue;
            }
            leaves.push(self.admitted(self.server.issue_leaf(&service, csr_der)).await);
        }
        Ok(leaves)
    }

    async fn renew(&self, caller: &Credential, csr_der: Vec<u8>) -> Result<IssuedLeaf, CallError> {
        let key = requested_key(&csr_der).map_err(CallError::refused)?;
        let leaf = self.issue(&caller.member, csr_der).await?;
        // Recorded before it is handed out: a certificate whose key is not known lets nobody in.
        let (member, shown) = (caller.member.clone(), caller.key);
        let renewed = EnrolmentCommand::Renew { member, shown, key, now: crate::server::now() };
        self.server.commit(&Command::Enrolment(renewed)).await?;
        Ok(leaf)
    }

    fn follow_checks(
        &self,
        node: &NodeName,
        service: Option<&InstanceId>,
    ) -> BoxStream<'static, Result<AliasView, CallError>> {
        let subscription = self.server.subscribe(BTreeSet::from([Subject::Node(node.clone())]));
        let (server, node, service) = (Arc::clone(&self.server), node.clone(), service.cloned());
        let first = view(&server.snapshot(), &node, service.as_ref());
        let later = stream::unfold((server, subscription, node, service), |state| async move {
            state.1.changed().await;
            let view = view(&state.0.snapshot(), &state.2, state.3.as_ref());
            Some((view, state))
        });
        stream::iter([first]).chain(later).map(Ok).boxed()
    }

    async fn join(&self, request: JoinRequest) -> Result<JoinAnswer, CallError> {
        let token: JoinToken = request.token.parse().map_err(CallError::refused)?;
        let key = requested_key(&request.csr_der).map_err(CallError::refused)?;
        // Who shows nothing that lets it in costs no signature.
        let decided = starling_catalog::decide(&self.server.snapshot(), &self.use_of(&token, &request, key));
        decided.map_err(|refusal| refused(&refusal))?;
        let name = request.node.clone();
        let member = if request.relay { Member::Relay(name) } else { Member::Node(name) };
        let leaf = self.issue(&member, request.csr_der.clone()).await?;
        // Used only now that there is a certificate to hand out: a request that cannot be signed uses nothing up.
        self.server.commit(&self.use_of(&token, &request, key)).await?;
        let through = request.through.as_ref().map(tracing::field::display);
        let what = if request.relay { "relay joined" } else { "node joined" };
        tracing::info!(node = %request.node, token = %token.id, through, "{what}");
        let roots: Vec<_> =
            self.server.snapshot().roots().iter().map(|root| root.value.certificate_pem.clone()).collect();
        Ok(JoinAnswer { leaf, roots_pem: roots.concat() })
    }
}

impl Door {
    /// Whether a node's agent lives in this server's process.
    fn is_own(&self, node: &NodeName) -> bool {
        self.own_node.as_ref() == Some(node)
    }

    /// What a node may register. The server's operator decides for its own node.
    fn registers_of(&self, node: &NodeName) -> Registers {
        if self.is_own(node) { Registers::Anything } else { self.registers }
    }

    /// Records that a member has shown a key, unless the catalog has that already.
    fn shown(&self, member: Member, key: KeyFingerprint) {
        let show = Command::Enrolment(EnrolmentCommand::Show { member, key, now: crate::server::now() });
        let changes = starling_catalog::decide(&self.server.snapshot(), &show);
        if !changes.is_ok_and(|decision| !decision.changes.is_empty()) {
            return;
        }
        let server = Arc::clone(&self.server);
        tokio::spawn(async move {
            // Of a store that is away nothing is lost: a later connection is recorded.
            if let Err(error) = server.commit(&show).await {
                tracing::debug!(%error, "cannot record the key of a connection");
            }
        });
    }

    /// Signs the certificate of an agent or a relay.
    async fn issue(&self, member: &Member, csr_der: Vec<u8>) -> Result<IssuedLeaf, CallError> {
        match member {
            Member::Node(node) => self.admitted(self.server.issue_agent(node, csr_der)).await,
            Member::Relay(relay) => self.admitted(self.server.issue_relay(relay, csr_der)).await,
        }
    }

    /// The use of a token, as it stands with the node's name now.
    fn use_of(&self, token: &JoinToken, request: &JoinRequest, key: KeyFingerprint) -> Command {
        let holder = match self.server.agents().presence(&request.node) {
            // Relays have names of their own.
            _ if request.relay => NameHolder::Nobody,
            _ if self.is_own(&request.node) => NameHolder::Attached,
            Presence::Attached => NameHolder::Attached,
            Presence::WaitedFor => NameHolder::Away,
            Presence::Lost => match self.server.snapshot().charge(&request.node) {
                Charge::Of(server) if server != self.server.id() => NameHolder::Attached,
                Charge::Of(_) | Charge::Orphan => NameHolder::Away,
                Charge::Nobody => NameHolder::Nobody,
            },
        };
        Command::JoinToken(JoinTokenCommand::Use(starling_catalog::JoinRequest {
            token: token.id,
            secret_hash: token.secret_hash(),
            node: request.node.clone(),
            node_id: request.node_id.clone(),
            relay: request.relay,
            key,
            holder,
            now: crate::server::now(),
        }))
    }

    /// Has a certificate signed when its turn has come.
    async fn admitted(
        &self,
        signing: impl Future<Output = Result<IssuedLeaf, SignFailure>> + Send,
    ) -> Result<IssuedLeaf, CallError> {
        let admitted = self.server.admission().enter().await;
        let place = admitted.map_err(|overloaded| CallError::Overloaded {
            reason: overloaded.to_string(),
            retry_after: overloaded.retry_after,
        })?;
        let signed = signing.await;
        drop(place);
        signed.map_err(|failure| {
            let passes = failure.passes();
            let text = format!("{:#}", anyhow::Error::from(failure));
            if passes { CallError::unavailable(text) } else { CallError::refused(text) }
        })
    }
}

/// A node's primary stream is open.
fn is_here(server: &Arc<Server>, node: NodeName) {
    let server = Arc::clone(server);
    tokio::spawn(async move { server.write_liveness(&node).await });
}

fn view(snapshot: &Snapshot, node: &NodeName, service: Option<&InstanceId>) -> AliasView {
    let exists = match service {
        None => snapshot.node(node).is_some(),
        Some(id) => snapshot.instance(&InstanceKey { node: node.clone(), id: id.clone() }).is_some(),
    };
    let concerns = |of: Option<&InstanceId>| of.is_none() || of == service;
    let checks = snapshot.checks_on(node).map(|check| &check.value);
    let checks = checks.filter(|check| concerns(check.service.as_ref().map(|service| &service.id)));
    AliasView { exists, checks: checks.cloned().collect() }
}

/// One agent's stream as the transport sees it.
struct Stream {
    server: Arc<Server>,
    stream: agents::AgentStream,
    /// The node of a primary that has yet to subscribe. Until then receipts do not know what it owes, and it is better spoken
    /// of by the server that it comes from.
    arrives: Mutex<Option<NodeName>>,
    /// Of a request that is yet to be whole.
    parts: Mutex<Parts>,
    /// Set once the first frame is sent.
    welcome: OnceLock<()>,
    first: Bytes,
}

impl AgentStream for Stream {
    fn handle(&self, says: AgentSays) -> Result<(), CallError> {
        match says {
            AgentSays::Hello(_) => return Err(CallError::refused("a second hello")),
            AgentSays::Subscribe(part) => {
                let Some(subscribe) = whole_request(&self.parts, part, SUBJECTS_MAX)? else { return Ok(()) };
                let resumes = subscribe.resumes.iter().map(resume).collect::<Result<Vec<_>, _>>()?;
                self.stream.subscribe(resumes, subscribe.reached.as_ref())?;
                // A panic while holding the lock leaves a name or none.
                let arrived = self.arrives.lock().unwrap_or_else(PoisonError::into_inner).take();
                arrived.into_iter().for_each(|node| is_here(&self.server, node));
            }
            AgentSays::Unsubscribe(Subjects { subjects }) => {
                let subjects = subjects.iter().map(decode_subject).collect::<Result<Vec<_>, _>>();
                self.stream.unsubscribe(&subjects.map_err(CallError::refused)?);
            }
            AgentSays::Applied(applied) => {
                let held = Duration::from_micros(applied.held_us);
                // Nothing that is yet to come can be in force.
                let through = Revision(applied.through).min(self.server.snapshot().revision());
                self.stream.applied(through, applied.refusals_stand, held);
            }
            AgentSays::Rejected(rejected) => {
                let rejected = rejected.bounded();
                let proxy = rejected.proxy.parse().map_err(CallError::refused)?;
                self.stream.rejected(Refused {
                    revision: Revision(rejected.revision),
                    since: Revision(rejected.since),
                    proxy: Some(proxy),
                    type_url: rejected.type_url,
                    resources: rejected.resources,
                    text: rejected.text,
                });
            }
            AgentSays::Promote(promote) => {
                if let Some(node) = self.stream.promote(Revision(promote.through)) {
                    tracing::debug!(%node, through = promote.through, "agent's stream in reserve promoted");
                    is_here(&self.server, node);
                }
            }
            AgentSays::Here(_) => {}
            AgentSays::Relayed(_) | AgentSays::Trusts(_) => {
                return Err(CallError::refused("only a relay speaks for others"));
            }
        }
        Ok(())
    }

    fn poll_take(&self, context: &mut Context<'_>) -> Poll<Result<Vec<Bytes>, CallError>> {
        if self.welcome.set(()).is_ok() {
            return Poll::Ready(Ok(vec![self.first.clone()]));
        }
        let taken = ready!(self.stream.poll_take(context));
        Poll::Ready(taken.map_err(|superseded: Superseded| CallError::unavailable(superseded)))
    }
}

fn resume(resume: &Resume) -> Result<(Subject, Revision), CallError> {
    let subject = resume.subject.as_ref().ok_or_else(|| CallError::refused("a subscription without a subject"))?;
    Ok((decode_subject(subject).map_err(CallError::refused)?, Revision(resume.have)))
}

fn wire_epoch(epoch: &Epoch) -> WireEpoch {
    WireEpoch { id: epoch.id, after: epoch.after.0 }
}

/// A relay's stream as the transport sees it.
struct Relayed {
    server: Arc<Server>,
    stream: agents::RelayStream,
    /// Of a request that is yet to be whole.
    parts: Mutex<Parts>,
    /// Set once the first frame is sent.
    welcome: OnceLock<()>,
    first: Bytes,
}

impl AgentStream for Relayed {
    fn handle(&self, says: AgentSays) -> Result<(), CallError> {
        match says {
            AgentSays::Subscribe(part) => {
                let Some(subscribe) = whole_request(&self.parts, part, RELAY_SUBJECTS_MAX)? else { return Ok(()) };
                let resumes = subscribe.resumes.iter().map(resume).collect::<Result<Vec<_>, _>>()?;
                Ok(self.stream.subscribe(resumes, subscribe.reached.as_ref())?)
            }
            AgentSays::Unsubscribe(Subjects { subjects }) => {
                let subjects = subjects.iter().map(decode_subject).collect::<Result<Vec<_>, _>>();
                self.stream.unsubscribe(&subjects.map_err(CallError::refused)?);
                Ok(())
            }
            AgentSays::Relayed(relayed) => {
                let at = self.server.snapshot().revision();
                let arrived = self.stream.hear(relayed, at).map_err(CallError::refused)?;
                arrived.into_iter().for_each(|node| is_here(&self.server, node));
                Ok(())
            }
            AgentSays::Trusts(trusts) => self.stream.trusts(trusts).map_err(CallError::refused),
            AgentSays::Here(_) => Ok(()),
            AgentSays::Hello(_) => Err(CallError::refused("a second hello")),
            AgentSays::Applied(_) | AgentSays::Rejected(_) | AgentSays::Promote(_) => {
                Err(CallError::refused("a relay reports for the nodes behind it, and not for itself"))
            }
        }
    }

    fn poll_take(&self, context: &mut Context<'_>) -> Poll<Result<Vec<Bytes>, CallError>> {
        if self.welcome.set(()).is_ok() {
            return Poll::Ready(Ok(vec![self.first.clone()]));
        }
        let taken = ready!(self.stream.poll_take(context));
        Poll::Ready(taken.map_err(|superseded: Superseded| CallError::unavailable(superseded)))
    }
}
