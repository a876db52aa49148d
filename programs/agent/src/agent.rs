//! The agent as its callers see it.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use starling_model::{
    Check, CheckDefinition, CheckId, CheckKind, CheckSpec, CheckStatus, Datacenter, InstanceId, Locality, Node,
    RecordKey, Revision, ServiceInstance, ServiceRegistration, UnixSeconds,
};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinSet;

use crate::checks::permission::ScriptChecks;
use crate::checks::schedule::{Schedule, Sink};
use crate::checks::timetable::First;
use crate::checks::{Prober, definition};
use crate::committer::Committer;
use crate::journal::{Contents, Journal, JournalError};
use crate::leaves::Leaves;
use crate::link::ServerLink;
use crate::registrations::{ExistingChecks, Health, Registrations, Source, Touched};
use crate::sidecar::FieldError;

mod error;
mod rehearsal;
mod shared;

pub use error::{DeregisterError, RegisterError, StartError, UpdateCheckError, WriteError};
pub use rehearsal::Rehearsal;
use shared::Waiting;
pub(crate) use shared::{Leaving, Shared, State};

/// Resolution of `DeregisterCriticalServiceAfter`. The duration itself is honoured as given, also below Consul's minimum
/// of a minute.
const REAP_INTERVAL: Duration = Duration::from_secs(1);

/// How long starting waits for the first comparison with the catalog; after that the agent runs and goes on trying.
const FIRST_COMPARISON_MAX: Duration = Duration::from_secs(10);

/// Reads the wall clock.
pub type WallClock = Arc<dyn Fn() -> UnixSeconds + Send + Sync>;

/// The system's clock.
#[must_use]
pub fn system_clock() -> WallClock {
    Arc::new(|| UnixSeconds(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())))
}

/// What an agent must know to start.
#[derive(Clone)]
pub struct AgentConfig {
    /// The node it runs on.
    pub node: Node,
    /// Where the node is: so are the instances on it whose registrations do not say where they are.
    pub locality: Option<Arc<Locality>>,
    /// The datacentre.
    pub datacenter: Datacenter,
    /// Directory of everything that is kept; the agent uses `agent` below it.
    pub data_dir: PathBuf,
    /// Whose script checks may be registered and run.
    pub script_checks: ScriptChecks,
    /// Ports for sidecars that name none, usually [`crate::DEFAULT_SIDECAR_PORTS`].
    pub sidecar_ports: RangeInclusive<u16>,
    /// The services that definition files name now. A service that was registered by [`Agent::register_service_of_file`]
    /// before the restart and is not among them is gone, as if it had been deregistered.
    pub services_of_files: BTreeSet<InstanceId>,
    /// The checks that they name apart from services: the same holds for those.
    pub checks_of_files: BTreeSet<CheckId>,
    /// The wall clock, usually [`system_clock`].
    pub clock: WallClock,
}

impl fmt::Debug for AgentConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentConfig")
            .field("node", &self.node)
            .field("locality", &self.locality)
            .field("datacenter", &self.datacenter)
            .field("data_dir", &self.data_dir)
            .field("script_checks", &self.script_checks)
            .field("sidecar_ports", &self.sidecar_ports)
            .field("services_of_files", &self.services_of_files)
            .field("checks_of_files", &self.checks_of_files)
            .finish_non_exhaustive()
    }
}

/// A registration that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registered {
    /// The revision at which the catalog has it.
    pub revision: Revision,
    /// Whether anything was written; registering the same again writes nothing.
    pub changed: bool,
}

/// A check to be registered apart from a service.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckRegistration {
    /// The check; without an id it gets its name as one.
    pub spec: CheckSpec,
    /// The instance it speaks of; `None` is the node.
    pub service: Option<InstanceId>,
}

impl CheckRegistration {
    /// The check under its id, with a name.
    fn named(self) -> Result<(CheckId, CheckSpec, Option<InstanceId>), FieldError> {
        let Self { mut spec, service } = self;
        let id = spec.id.clone().map_or_else(|| CheckId::new(&spec.name), Ok);
        let id = id.map_err(|error| FieldError::new("CheckID", error.to_string()))?;
        if spec.name.is_empty() {
            spec.name = id.as_str().to_owned();
        }
        Ok((id, spec, service))
    }
}

/// An instance as registered here.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalService {
    /// The instance.
    pub instance: ServiceInstance,
    /// The instance whose nested sidecar it is.
    pub sidecar_of: Option<InstanceId>,
}

/// A check as registered here.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalCheck {
    /// The check with its newest status and output.
    pub check: Check,
    /// How it runs.
    pub definition: CheckDefinition,
}

/// The agent of one node. It runs until dropped.
pub struct Agent {
    shared: Arc<Shared>,
    leaves: Leaves,
    node: Node,
    datacenter: Datacenter,
    script_checks: ScriptChecks,
    /// Ended when the agent is dropped.
    _tasks: JoinSet<()>,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").field("node", &self.node.name).finish_non_exhaustive()
    }
}

impl Agent {
    /// Starts the agent: loads what was kept, brings the catalog into line and begins to check.
    ///
    /// Must be called inside a tokio runtime. An unreachable server does not prevent starting.
    ///
    /// # Errors
    /// [`StartError`] if what was kept cannot be read or written; a damaged file is left as it is.
    pub async fn start(config: AgentConfig, link: Arc<dyn ServerLink>) -> Result<Self, StartError> {
        let directory = directory(&config.data_dir);
        let former = Contents::load(&directory)?;
        let mut registrations = Registrations::new(config.node.clone(), config.sidecar_ports.clone());
        registrations.run_at(config.locality.clone());
        let now = (config.clock)();
        let generation = former.as_ref().map(Contents::generation);
        restore(&mut registrations, former.unwrap_or_default(), &config, now);
        let journal = Journal::begin(&directory, generation, &registrations.entries(now))?;
        let state = State::new(registrations);
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            wake: Notify::new(),
            schedule: Schedule::default(),
            changes: watch::channel(0).0,
            service_changes: watch::Sender::default(),
            clock: Arc::clone(&config.clock),
            leaving: Leaving::default(),
        });
        {
            let state = shared.lock();
            for id in state.registrations.checks().keys() {
                shared.schedule.set(id, state.registrations.plan(id), First::Spread);
            }
        }
        let (ready, is_ready) = oneshot::channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(Committer::new(Arc::clone(&shared), Arc::clone(&link), journal).run(ready));
        let prober = Arc::new(Prober::new(config.script_checks));
        let (for_checks, for_link) = (Arc::clone(&shared), Arc::clone(&link));
        tasks.spawn(async move {
            let sink: Arc<dyn Sink> = Arc::clone(&for_checks) as Arc<dyn Sink>;
            for_checks.schedule.run(prober, for_link, sink).await;
        });
        tasks.spawn(reap(Arc::clone(&shared)));
        if tokio::time::timeout(FIRST_COMPARISON_MAX, is_ready).await.is_err() {
            tracing::warn!("the server does not answer; the agent runs and goes on trying");
        }
        let leaves = Leaves::new(link, config.clock, &directory);
        let AgentConfig { node, datacenter, script_checks, .. } = config;
        Ok(Self { shared, leaves, node, datacenter, script_checks, _tasks: tasks })
    }

    /// Registers a service with its checks and sidecar, in place of what its id had before; returns when that is durable.
    /// It is one transaction, unless it is larger than one of the store may be.
    ///
    /// # Errors
    /// [`RegisterError`]; nothing has changed unless it is [`WriteError::Unavailable`] or [`WriteError::Disk`].
    pub async fn register_service(
        &self,
        given: ServiceRegistration,
        existing: ExistingChecks,
    ) -> Result<Registered, RegisterError> {
        self.register(given, Source::Caller, existing).await
    }

    /// Registers a service, as [`Agent::register_service`] does, for a definition file: in place of everything that its id
    /// had before, and for as long as [`AgentConfig::services_of_files`] names it at every start.
    ///
    /// # Errors
    /// [`RegisterError`], as for [`Agent::register_service`].
    pub async fn register_service_of_file(&self, given: ServiceRegistration) -> Result<Registered, RegisterError> {
        self.register(given, Source::File, ExistingChecks::Replace).await
    }

    async fn register(
        &self,
        given: ServiceRegistration,
        source: Source,
        existing: ExistingChecks,
    ) -> Result<Registered, RegisterError> {
        rehearsal::verify_service(&given, self.script_checks.permit(source))?;
        let id = given.instance.key.id.clone();
        let (waiting, changed) = {
            let mut state = self.shared.lock();
            let touched = state.registrations.register(given, source, existing, Instant::now())?;
            let changed = !touched.is_empty();
            let keys = keys_of_service(&state.registrations, &id);
            (self.shared.enlist(&mut state, touched, keys), changed)
        };
        Ok(Registered { revision: settled(waiting).await?, changed })
    }

    /// Removes a service, its sidecar and their checks in one transaction, or in several if they are that many.
    ///
    /// # Errors
    /// [`DeregisterError`].
    pub async fn deregister_service(&self, id: &InstanceId) -> Result<Revision, DeregisterError> {
        let waiting = {
            let mut state = self.shared.lock();
            let touched = state.registrations.deregister(id, Instant::now());
            let touched = touched.ok_or_else(|| DeregisterError::UnknownService(id.clone()))?;
            self.shared.enlist(&mut state, touched, Vec::new())
        };
        Ok(settled(waiting).await?)
    }

    /// Registers a check apart from a service.
    ///
    /// # Errors
    /// [`RegisterError`], as for [`Agent::register_service`].
    pub async fn register_check(&self, given: CheckRegistration) -> Result<Registered, RegisterError> {
        self.check(given, Source::Caller).await
    }

    /// Registers a check, as [`Agent::register_check`] does, for a definition file: for as long as [`AgentConfig::checks_of_files`]
    /// names it at every start.
    ///
    /// # Errors
    /// [`RegisterError`], as for [`Agent::register_service`].
    pub async fn register_check_of_file(&self, given: CheckRegistration) -> Result<Registered, RegisterError> {
        self.check(given, Source::File).await
    }

    async fn check(&self, given: CheckRegistration, source: Source) -> Result<Registered, RegisterError> {
        definition::verify(&given.spec, "", self.script_checks.permit(source))?;
        let (id, spec, service) = given.named()?;
        let (waiting, changed) = {
            let mut state = self.shared.lock();
            rehearsal::verify_owner(&state.registrations, service.as_ref())?;
            let touched =
                state.registrations.register_check(id.clone(), service.as_ref(), spec, source, Instant::now())?;
            let changed = !touched.is_empty();
            let keys = vec![RecordKey::Check(self.node.name.clone(), id)];
            (self.shared.enlist(&mut state, touched, keys), changed)
        };
        Ok(Registered { revision: settled(waiting).await?, changed })
    }

    /// Removes a check.
    ///
    /// # Errors
    /// [`DeregisterError`].
    pub async fn deregister_check(&self, id: &CheckId) -> Result<Revision, DeregisterError> {
        let waiting = {
            let mut state = self.shared.lock();
            let touched = state.registrations.deregister_check(id, Instant::now());
            let touched = touched.ok_or_else(|| DeregisterError::UnknownCheck(id.clone()))?;
            self.shared.enlist(&mut state, touched, Vec::new())
        };
        Ok(settled(waiting).await?)
    }

    /// Takes what an application says of itself. A status that is new is durable when this returns; a mere sign of life
    /// costs no write.
    ///
    /// # Errors
    /// [`UpdateCheckError`].
    pub async fn update_check(
        &self,
        id: &CheckId,
        status: CheckStatus,
        output: &str,
    ) -> Result<Revision, UpdateCheckError> {
        let waiting = {
            let mut state = self.shared.lock();
            let check = state.registrations.checks().get(id);
            let check = check.ok_or_else(|| UpdateCheckError::UnknownCheck(id.clone()))?;
            let CheckKind::Ttl { ttl } = check.definition().kind else {
                return Err(UpdateCheckError::NotTtl(id.clone()));
            };
            self.shared.schedule.heard(id);
            let health = Health { status, output: output.to_owned() };
            let touched = state.registrations.heard(id, health, ttl, Instant::now());
            if touched.keys.is_empty() {
                self.shared.submit(&mut state, touched, Vec::new());
                let keys = vec![RecordKey::Check(self.node.name.clone(), id.clone())];
                self.shared.enlist(&mut state, Touched::default(), keys)
            } else {
                self.shared.enlist(&mut state, touched, Vec::new())
            }
        };
        Ok(settled(waiting).await?)
    }

    /// Takes the node out of the catalog, with everything that is registered here; returns when that is durable. What is registered is
    /// kept, and a later start registers it again; this agent writes nothing any more.
    ///
    /// # Errors
    /// [`WriteError`] if no server took it; it is not tried again.
    pub async fn leave(&self) -> Result<Revision, WriteError> {
        self.shared.leave().await
    }

    /// Lets the checks of an instance run now, without waiting for their intervals: for whoever knows that it has just
    /// come up, such as the server of a proxy that has just connected.
    pub fn check_now(&self, id: &InstanceId) {
        let state = self.shared.lock();
        for check in state.registrations.checks_of(Some(id)) {
            self.shared.schedule.run_now(check);
        }
    }

    /// The instances of this node, by id.
    #[must_use]
    pub fn services(&self) -> Vec<LocalService> {
        self.shared.lock().registrations.services().values().map(local_service).collect()
    }

    /// One instance of this node.
    #[must_use]
    pub fn service(&self, id: &InstanceId) -> Option<LocalService> {
        self.shared.lock().registrations.services().get(id).map(local_service)
    }

    /// Whether an instance of this ID is registered here.
    #[must_use]
    pub fn has_service(&self, id: &InstanceId) -> bool {
        self.shared.lock().registrations.services().contains_key(id)
    }

    /// The checks of this node, by id.
    #[must_use]
    pub fn checks(&self) -> Vec<LocalCheck> {
        let state = self.shared.lock();
        let checks = state.registrations.checks().values();
        checks.map(|c| LocalCheck { check: c.record.clone(), definition: c.definition().clone() }).collect()
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The sources whose checks may run programs.
    #[must_use]
    pub fn script_checks(&self) -> ScriptChecks {
        self.script_checks
    }

    /// Ports for sidecars that name none.
    #[must_use]
    pub fn sidecar_ports(&self) -> RangeInclusive<u16> {
        self.shared.lock().registrations.sidecar_ports().clone()
    }

    /// The datacentre.
    #[must_use]
    pub fn datacenter(&self) -> &Datacenter {
        &self.datacenter
    }

    /// Certificates and keys of this node's workloads.
    #[must_use]
    pub fn leaves(&self) -> &Leaves {
        &self.leaves
    }

    /// The catalog's records of this node were written at `revisions`: unless all of it was by this agent, they are compared
    /// with what is registered here. 0 among them if there is no telling.
    pub fn own_records_written(&self, revisions: &BTreeSet<Revision>) {
        self.shared.written(revisions);
    }

    /// A number that grows whenever a service, a check or a status of this node changes; for blocking queries.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// Changes whenever a service of this node does.
    pub(crate) fn service_changes(&self) -> watch::Receiver<()> {
        self.shared.service_changes.subscribe()
    }
}

fn directory(data_dir: &Path) -> PathBuf {
    data_dir.join("agent")
}

/// Reads the journal of an agent through, without changing anything; whether there is one.
///
/// For whoever wants to know that before anything is opened for writing.
///
/// # Errors
/// [`JournalError`] if an agent could not start with it.
pub fn has_journal(data_dir: &Path) -> Result<bool, JournalError> {
    Ok(Contents::load(&directory(data_dir))?.is_some())
}

fn local_service(service: &crate::registrations::Service) -> LocalService {
    LocalService { instance: service.instance.clone(), sidecar_of: service.parent().cloned() }
}

async fn settled(waiting: Result<Revision, Waiting>) -> Result<Revision, WriteError> {
    match waiting {
        Ok(revision) => Ok(revision),
        Err(waiting) => waiting.await.unwrap_or(Err(WriteError::Stopped)),
    }
}

fn keys_of_service(registrations: &Registrations, id: &InstanceId) -> Vec<RecordKey> {
    let mut keys = Vec::new();
    for service in registrations.family(id) {
        keys.push(RecordKey::Instance(service.instance.key.clone()));
        let checks = registrations.checks_of(Some(&service.instance.key.id));
        keys.extend(checks.map(|check| RecordKey::Check(registrations.node().name.clone(), check.clone())));
    }
    keys
}

fn restore(registrations: &mut Registrations, contents: Contents, config: &AgentConfig, at: UnixSeconds) {
    let now = Instant::now();
    for (id, (source, given)) in contents.services {
        if source == Source::File && !config.services_of_files.contains(&id) {
            tracing::info!(service = %id, "removing a service that no definition file names any more");
            continue;
        }
        if let Err(error) = registrations.register(*given, source, ExistingChecks::Keep, now) {
            tracing::error!(service = %id, %error, "left out a service that was registered earlier");
        }
    }
    for (id, (source, service, spec)) in contents.checks {
        if source == Source::File && !config.checks_of_files.contains(&id) {
            tracing::info!(check = %id, "removing a check that no definition file names any more");
            continue;
        }
        let known = service.as_ref().is_none_or(|service| registrations.services().contains_key(service));
        let owner = service.as_ref();
        if known && let Err(error) = registrations.register_check(id.clone(), owner, *spec, source, now) {
            tracing::error!(check = %id, %error, "left out a check that was registered earlier");
        }
    }
    for (id, (status, output, written)) in contents.statuses {
        let kind = registrations.checks().get(&id).map(|check| &check.definition().kind);
        // An application that has been silent for longer than its TTL has to speak first.
        let silent = matches!(kind, Some(CheckKind::Ttl { ttl }) if at.since(written) > ttl.as_secs());
        if !silent {
            registrations.restore_health(&id, Health { status, output }, now);
        }
    }
}

async fn reap(shared: Arc<Shared>) {
    let mut changes = shared.changes.subscribe();
    loop {
        // Few nodes have a service that may be condemned at all; the others need no clock.
        if !shared.lock().registrations.may_condemn() {
            if changes.changed().await.is_err() {
                return;
            }
            continue;
        }
        tokio::time::sleep(REAP_INTERVAL).await;
        let mut state = shared.lock();
        let now = Instant::now();
        for (id, check) in state.registrations.condemned(now) {
            tracing::info!(service = %id, %check, "removing a service that has been critical for too long");
            if let Some(touched) = state.registrations.deregister(&id, now) {
                shared.submit(&mut state, touched, Vec::new());
            }
        }
    }
}
