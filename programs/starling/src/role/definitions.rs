//! Definition files: what `--config-dir` and the demo register at start.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use futures::{StreamExt, TryStreamExt, stream};
use starling_agent::{Agent, CheckRegistration, RegisterError, Registered, Rehearsal, ScriptChecks, WriteError};
use starling_catalog::{Command, Snapshot, decide};
use starling_http_api::parse::file::FILE_BYTES_MAX;
use starling_http_api::parse::{Context as ParseContext, Definitions, Dialect, parse_definitions};
use starling_model::{
    Change, CheckId, ConfigEntry, Datacenter, InstanceId, IntentionSubject, Locality, Node, NodeName, Protocol,
    ProxyDefaults, Record, Revision, ServiceDefaults,
};
use starling_server::{CommitFailure, Server};

use crate::outcome::usage;

/// Registrations under way at once: enough for the agent to write many together.
const REGISTERING_MAX: usize = 256;

/// Reads every `.hcl` and `.json` file of a directory, in order of names; everything is read before anything is
/// registered.
pub(crate) fn read_dir(directory: &Path, context: &ParseContext) -> anyhow::Result<Vec<Definitions>> {
    let mut all = Vec::new();
    for path in files_in(directory, FilesOf::Definitions)? {
        let text = read_file(&path).map_err(|error| usage(format!("cannot read {}: {error}", path.display())))?;
        all.push(read(&path.display().to_string(), &text, context)?);
    }
    Ok(all)
}

/// Which files of a directory are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FilesOf {
    /// Those that end as files of definitions do.
    Definitions,
    /// Every one: somebody has said what they are.
    Any,
}

/// The files of a directory that are read, in order of names.
pub(crate) fn files_in(directory: &Path, which: FilesOf) -> anyhow::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    let wrong = |error: io::Error| usage(format!("--config-dir: cannot read {}: {error}", directory.display()));
    for entry in std::fs::read_dir(directory).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        let is_read = match which {
            FilesOf::Definitions => path.extension().is_some_and(|extension| extension == "hcl" || extension == "json"),
            FilesOf::Any => path.is_file(),
        };
        paths.extend(is_read.then_some(path));
    }
    paths.sort();
    Ok(paths)
}

pub(crate) fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    // Before opening: a named pipe would keep us waiting for its other end.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = Vec::new();
    std::fs::File::open(path)?.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut text)?;
    if text.len() > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("it is larger than {FILE_BYTES_MAX} bytes")));
    }
    Ok(text)
}

/// Parses one file, and refuses what has no place in it.
pub(crate) fn read(file: &str, text: &[u8], context: &ParseContext) -> anyhow::Result<Definitions> {
    parse_definitions(file, text, context).map_err(|error| usage(error.to_string()))
}

/// The context in which files are read: those of the node `name`.
pub(crate) fn context(name: NodeName, datacenter: Datacenter) -> ParseContext {
    ParseContext::new(Dialect::File, name, datacenter)
}

/// What is going to be registered, by its identifiers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) services: BTreeSet<InstanceId>,
    /// Those that stand outside services.
    pub(crate) checks: BTreeSet<CheckId>,
}

impl Named {
    /// What these files name.
    pub(crate) fn of(all: &[Definitions]) -> Self {
        let services = all.iter().flat_map(|definitions| &definitions.services);
        let checks = all.iter().flat_map(|definitions| &definitions.checks);
        Self {
            services: services.map(|service| service.instance.key.id.clone()).collect(),
            checks: checks.filter_map(|check| check.spec.id.clone()).collect(),
        }
    }
}

/// Of two that say the same, the later one counts.
pub(crate) fn keep_last(all: &mut [Definitions]) {
    let (mut services, mut checks) = (BTreeSet::new(), BTreeSet::new());
    for definitions in all.iter_mut().rev() {
        definitions.services.reverse();
        definitions.services.retain(|service| services.insert(service.instance.key.id.clone()));
        definitions.services.reverse();
        definitions.checks.reverse();
        definitions.checks.retain(|check| checks.insert(check.spec.id.clone()));
        definitions.checks.reverse();
    }
}

/// Registers everything in memory alone, so that what would be refused is refused before anything has begun. With the ports for
/// sidecars that name none, and the sources whose checks may run programs.
pub(crate) fn rehearse(
    all: &[Definitions],
    node: Node,
    (sidecar_ports, script_checks): (&RangeInclusive<u16>, ScriptChecks),
) -> anyhow::Result<()> {
    let mut rehearsal = Rehearsal::new(node, sidecar_ports.clone(), script_checks);
    for service in all.iter().flat_map(|definitions| &definitions.services) {
        let of_service = || format!("service {}", service.instance.key.id);
        rehearsal.service(service.clone()).map_err(faulty).with_context(of_service)?;
    }
    for check in all.iter().flat_map(|definitions| &definitions.checks) {
        let of_check = || format!("check {:?}", check.spec.name);
        let given = CheckRegistration { spec: check.spec.clone(), service: check.service.clone() };
        rehearsal.check(given).map_err(faulty).with_context(of_check)?;
    }
    Ok(())
}

/// Where the node is: as the flag says, else the last of the files that says so, as with Consul's.
pub(crate) fn locality(flag: Option<&Locality>, all: &[Definitions]) -> Option<Arc<Locality>> {
    let in_files = || all.iter().rev().find_map(|definitions| definitions.locality.clone());
    flag.cloned().map(Arc::new).or_else(in_files)
}

/// What becomes of an entry of a file where the mesh has one of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rival {
    /// That of the file takes its place.
    Replaced,
    /// It stays, as in Consul: somebody may have changed it since.
    Stays,
}

impl Rival {
    fn keeps_out(self, entry: &ConfigEntry, mesh: &Snapshot) -> bool {
        self == Self::Stays && mesh.config(&entry.key()).is_some()
    }
}

/// Writes the config entries that were read, in their order, since they are held against each other; before anything is
/// registered, since services are planned by them.
pub(crate) async fn write_config_entries(all: &[Definitions], server: &Server, rival: Rival) -> anyhow::Result<()> {
    for definitions in all {
        for entry in &definitions.config_entries {
            if rival.keeps_out(entry, &server.snapshot()) {
                continue;
            }
            let command = Command::PutConfig { entry: entry.clone(), cas: None };
            let written = server.commit(&command).await.map_err(|failure| match failure {
                CommitFailure::Refused(_) | CommitFailure::Invalid(_) => {
                    usage(format!("{:#}", anyhow::Error::from(failure)))
                }
                CommitFailure::Contended
                | CommitFailure::Gated { .. }
                | CommitFailure::Halted(_)
                | CommitFailure::Unavailable(_)
                | CommitFailure::Behind
                | CommitFailure::Cut(_)
                | CommitFailure::Store(_) => failure.into(),
            });
            written.with_context(|| format!("writing {}", entry.key()))?;
        }
    }
    Ok(())
}

/// Tries config entries in their order, in memory alone, on what a mesh has.
///
/// # Errors
/// The first that would be refused.
pub(crate) fn rehearse_config_entries(
    all: &[Definitions],
    mut mesh: Arc<Snapshot>,
    rival: Rival,
) -> anyhow::Result<()> {
    for entry in all.iter().flat_map(|definitions| &definitions.config_entries) {
        if rival.keeps_out(entry, &mesh) {
            continue;
        }
        let decided = decide(&mesh, &Command::PutConfig { entry: entry.clone(), cas: None });
        let decision = decided.map_err(|refusal| usage(refusal.to_string()));
        let decision = decision.with_context(|| format!("writing {}", entry.key()))?;
        let next = Revision(mesh.revision().0 + 1);
        mesh = Arc::new(mesh.apply(next, &decision.changes).snapshot);
    }
    Ok(())
}

/// The mesh that is begun where nothing is kept in this directory yet. What is kept in one is not looked at: of such a mesh it is believed
/// that every service speaks what its entries here need.
pub(crate) fn mesh_in(data_dir: Option<&Path>, all: &[Definitions]) -> Arc<Snapshot> {
    if data_dir.is_none_or(|path| path.join("store").symlink_metadata().is_err()) {
        return Arc::default();
    }
    let needing = all.iter().flat_map(|definitions| &definitions.config_entries).filter_map(|entry| {
        let ConfigEntry::ServiceIntentions(intentions) = entry else { return entry.routing_of() };
        match &intentions.destination {
            IntentionSubject::Service(service) => Some(service),
            IntentionSubject::Any => None,
        }
    });
    let said = needing.map(|service| {
        let defaults = ServiceDefaults { protocol: Some(Protocol::Http), ..ServiceDefaults::bare(service.clone()) };
        Change::Put(Record::Config(ConfigEntry::ServiceDefaults(defaults)))
    });
    let everywhere = ProxyDefaults { protocol: Some(Protocol::Http), ..ProxyDefaults::default() };
    let everywhere = Change::Put(Record::Config(ConfigEntry::ProxyDefaults(everywhere)));
    let said: Vec<_> = said.chain([everywhere]).collect();
    Arc::new(Snapshot::default().apply(Revision(1), &said).snapshot)
}

/// Refuses config entries where they are no business of the node's.
pub(crate) fn refuse_config_entries(all: &[Definitions]) -> anyhow::Result<()> {
    let reason = "is the whole mesh's, not this node's: write it with `starling config write`";
    match all.iter().flat_map(|definitions| &definitions.config_entries).next() {
        Some(entry) => Err(usage(format!("{} {reason}", entry.key()))),
        None => Ok(()),
    }
}

/// What it means that no server takes what is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unavailable {
    /// Registering has failed.
    Fails,
    /// The agent has it, and writes it when a server is back.
    IsWaitedFor,
}

/// Registers the services that were read, which share writes, and then the checks beside them.
pub(crate) async fn register(all: Vec<Definitions>, agent: &Agent, unavailable: Unavailable) -> anyhow::Result<()> {
    for notice in all.iter().flat_map(|definitions| &definitions.notices) {
        tracing::warn!("{notice}");
    }
    let (mut services, mut checks) = (Vec::new(), Vec::new());
    for definitions in all {
        services.extend(definitions.services);
        checks.extend(definitions.checks);
    }
    let services = services.into_iter().map(|registration| async move {
        let what = format!("service {}", registration.instance.key.id);
        settled(&what, agent.register_service_of_file(registration).await, unavailable)
    });
    stream::iter(services).buffer_unordered(REGISTERING_MAX).try_for_each(async |_| Ok(())).await?;
    // A check may speak of a service, which has to be there.
    let checks = checks.into_iter().map(|check| async move {
        let what = format!("check {:?}", check.spec.name);
        let given = CheckRegistration { spec: check.spec, service: check.service };
        settled(&what, agent.register_check_of_file(given).await, unavailable)
    });
    stream::iter(checks).buffer_unordered(REGISTERING_MAX).try_for_each(async |_| Ok(())).await
}

fn settled(what: &str, outcome: Result<Registered, RegisterError>, unavailable: Unavailable) -> anyhow::Result<()> {
    match outcome {
        Err(RegisterError::Write(error @ WriteError::Unavailable(_))) if unavailable == Unavailable::IsWaitedFor => {
            tracing::warn!(what, %error, "not yet registered");
            Ok(())
        }
        outcome => outcome.map(drop).map_err(faulty).with_context(|| format!("registering {what}")),
    }
}

/// A refusal is the file's fault, a failure is not.
fn faulty(error: RegisterError) -> anyhow::Error {
    match error {
        RegisterError::Field(_) | RegisterError::Write(WriteError::Refused(_)) => usage(error.to_string()),
        RegisterError::UnknownService(id) => usage(format!(
            "service_id: no file defines a service {id}; a check of one that is registered through the API is registered there, too"
        )),
        RegisterError::Write(_) => error.into(),
    }
}
