//! Definition files: what `--config-dir` and the demo register at start.

use std::path::Path;

use anyhow::Context;
use futures::{StreamExt, TryStreamExt, stream};
use starling_agent::{Agent, ExistingChecks};
use starling_catalog::Command;
use starling_http_api::parse::{Context as ParseContext, Definitions, parse_definitions};
use starling_server::Server;

use crate::outcome::usage;

/// Registrations under way at once: enough for the agent to write many together.
const REGISTERING_MAX: usize = 256;

/// Reads every `.hcl` and `.json` file of a directory, in order of names; everything is read before anything is
/// registered.
pub(super) fn read_dir(directory: &Path, context: &ParseContext) -> anyhow::Result<Vec<Definitions>> {
    let reading = || format!("reading the configuration directory {}", directory.display());
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).with_context(reading)? {
        let path = entry.with_context(reading)?.path();
        if path.extension().is_some_and(|extension| extension == "hcl" || extension == "json") {
            paths.push(path);
        }
    }
    paths.sort();
    let mut all = Vec::new();
    for path in paths {
        let text = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        all.push(read(&path.display().to_string(), &text, context)?);
    }
    Ok(all)
}

/// Parses one file, and refuses what has no place in it.
pub(super) fn read(file: &str, text: &[u8], context: &ParseContext) -> anyhow::Result<Definitions> {
    let definitions = parse_definitions(file, text, context)?;
    if let Some(check) = definitions.checks.first() {
        let name = &check.spec.name;
        return Err(usage(format!(
            "{file}: check {name:?} stands outside a service; give it inside the service it is for"
        )));
    }
    Ok(definitions)
}

/// Registers what was read: config entries first and in their order, since they are held against each other and services
/// are planned by them; then all services, which share writes.
pub(super) async fn register(all: Vec<Definitions>, server: &Server, agent: &Agent) -> anyhow::Result<()> {
    for definitions in &all {
        for notice in &definitions.notices {
            tracing::warn!("{notice}");
        }
        for entry in &definitions.config_entries {
            let command = Command::PutConfig { entry: entry.clone(), cas: None };
            server.commit(&command).await.with_context(|| format!("writing {}", entry.key()))?;
        }
    }
    let services = all.into_iter().flat_map(|definitions| definitions.services);
    let registering = services.map(|registration| async move {
        let id = registration.instance.key.id.clone();
        let registered = agent.register_service(registration, ExistingChecks::Replace).await;
        registered.with_context(|| format!("registering service {id}"))
    });
    stream::iter(registering).buffer_unordered(REGISTERING_MAX).try_for_each(async |_| Ok(())).await
}
