//! Definition files: what `--config-dir` and the demo register at start.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use futures::{StreamExt, TryStreamExt, stream};
use starling_agent::{Agent, RegisterError, WriteError};
use starling_catalog::Command;
use starling_http_api::parse::file::FILE_BYTES_MAX;
use starling_http_api::parse::{Context as ParseContext, Definitions, Dialect, parse_definitions};
use starling_model::{Datacenter, InstanceId, Locality, NodeName};
use starling_server::{CommitFailure, Server};

use crate::outcome::usage;

/// Registrations under way at once: enough for the agent to write many together.
const REGISTERING_MAX: usize = 256;

/// Reads every `.hcl` and `.json` file of a directory, in order of names; everything is read before anything is
/// registered.
pub(crate) fn read_dir(directory: &Path, context: &ParseContext) -> anyhow::Result<Vec<Definitions>> {
    let mut all = Vec::new();
    for path in files_in(directory)? {
        let text = read_file(&path).map_err(|error| usage(format!("cannot read {}: {error}", path.display())))?;
        all.push(read(&path.display().to_string(), &text, context)?);
    }
    Ok(all)
}

/// The `.hcl` and `.json` files of a directory, in order of names.
pub(crate) fn files_in(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    let wrong = |error: io::Error| usage(format!("--config-dir: cannot read {}: {error}", directory.display()));
    for entry in std::fs::read_dir(directory).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        if path.extension().is_some_and(|extension| extension == "hcl" || extension == "json") {
            paths.push(path);
        }
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
    let definitions = parse_definitions(file, text, context).map_err(|error| usage(error.to_string()))?;
    if let Some(check) = definitions.checks.first() {
        let name = &check.spec.name;
        return Err(usage(format!(
            "{file}: check {name:?} stands outside a service; give it inside the service it is for"
        )));
    }
    Ok(definitions)
}

/// The context in which files are read: those of the node `name`.
pub(crate) fn context(name: NodeName, datacenter: Datacenter) -> ParseContext {
    ParseContext::new(Dialect::File, name, datacenter)
}

/// The services that are going to be registered.
pub(crate) fn services(all: &[Definitions]) -> BTreeSet<InstanceId> {
    let services = all.iter().flat_map(|definitions| &definitions.services);
    services.map(|service| service.instance.key.id.clone()).collect()
}

/// Where the node is: as the flag says, else the last of the files that says so, as with Consul's.
pub(crate) fn locality(flag: Option<&Locality>, all: &[Definitions]) -> Option<Arc<Locality>> {
    let in_files = || all.iter().rev().find_map(|definitions| definitions.locality.clone());
    flag.cloned().map(Arc::new).or_else(in_files)
}

/// Writes the config entries that were read, in their order, since they are held against each other; before anything is
/// registered, since services are planned by them.
pub(crate) async fn write_config_entries(all: &[Definitions], server: &Server) -> anyhow::Result<()> {
    for definitions in all {
        for entry in &definitions.config_entries {
            let command = Command::PutConfig { entry: entry.clone(), cas: None };
            let written = server.commit(&command).await.map_err(|failure| match failure {
                CommitFailure::Refused(_) | CommitFailure::Invalid(_) => {
                    usage(format!("{:#}", anyhow::Error::from(failure)))
                }
                CommitFailure::Contended
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

/// What it means that no server takes what is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unavailable {
    /// Registering has failed.
    Fails,
    /// The agent has it, and writes it when a server is back.
    IsWaitedFor,
}

/// Registers the services that were read, which share writes.
pub(crate) async fn register(all: Vec<Definitions>, agent: &Agent, unavailable: Unavailable) -> anyhow::Result<()> {
    for notice in all.iter().flat_map(|definitions| &definitions.notices) {
        tracing::warn!("{notice}");
    }
    let services = all.into_iter().flat_map(|definitions| definitions.services);
    let registering = services.map(|registration| async move {
        let id = registration.instance.key.id.clone();
        let registered = match agent.register_service_of_file(registration).await {
            Err(RegisterError::Write(error @ WriteError::Unavailable(_)))
                if unavailable == Unavailable::IsWaitedFor =>
            {
                tracing::warn!(service = %id, %error, "not yet registered");
                return Ok(());
            }
            registered => registered,
        };
        registered.map(drop).map_err(faulty).with_context(|| format!("registering service {id}"))
    });
    stream::iter(registering).buffer_unordered(REGISTERING_MAX).try_for_each(async |_| Ok(())).await
}

/// A refusal is the file's fault, a failure is not.
fn faulty(error: RegisterError) -> anyhow::Error {
    match error {
        RegisterError::Field(_) | RegisterError::Write(WriteError::Refused(_)) => usage(error.to_string()),
        RegisterError::UnknownService(_) | RegisterError::Write(_) => error.into(),
    }
}
