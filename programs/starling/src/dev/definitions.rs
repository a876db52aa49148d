//! Definition files: what `--config-dir` and the demo register at start.

use std::path::Path;

use anyhow::{Context, bail};
use starling_agent::{Agent, ExistingChecks};
use starling_catalog::Command;
use starling_http_api::parse::{Context as ParseContext, Definitions, parse_definitions};
use starling_server::Server;

/// Reads every `.hcl` and `.json` file of a directory, in order of names; everything is read before anything is
/// registered.
pub(super) fn read_dir(directory: &Path, context: &ParseContext) -> anyhow::Result<Vec<Definitions>> {
    let read = || format!("reading the configuration directory {}", directory.display());
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).with_context(read)? {
        let path = entry.with_context(read)?.path();
        if path.extension().is_some_and(|extension| extension == "hcl" || extension == "json") {
            paths.push(path);
        }
    }
    paths.sort();
    let mut all = Vec::new();
    for path in paths {
        let text = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        all.push(parse_definitions(&path.display().to_string(), &text, context)?);
    }
    Ok(all)
}

/// Registers what was read: config entries first, since services are planned by them.
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
    for definitions in all {
        for registration in definitions.services {
            let id = registration.instance.key.id.clone();
            let registered = agent.register_service(registration, ExistingChecks::Replace).await;
            registered.with_context(|| format!("registering service {id}"))?;
        }
        if let Some(check) = definitions.checks.first() {
            bail!("check {:?} stands outside a service; give it inside the service it is for", check.spec.name);
        }
    }
    Ok(())
}
