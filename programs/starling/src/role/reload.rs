//! Definition files, read again while the agent runs.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use starling_agent::{Agent, DeregisterError};
use starling_http_api::parse::Definitions;
use starling_model::{Datacenter, InstanceId, NodeName};
use starling_server::Server;
use tokio::sync::Mutex;

use super::definitions::{self, Unavailable};

/// Where definitions are written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sources {
    pub(crate) files: Vec<PathBuf>,
    /// Of each, the files that are there when it is read.
    pub(crate) directories: Vec<PathBuf>,
    /// Whether they are of Consul's form, with settings beside definitions; these count from the next start.
    pub(crate) has_settings: bool,
}

/// What is done when they are to be read anew.
pub(crate) struct Reload {
    pub(crate) sources: Sources,
    pub(crate) node: NodeName,
    pub(crate) datacenter: Datacenter,
    pub(crate) server: Arc<Server>,
    /// The services that are there by them.
    pub(crate) known: Mutex<BTreeSet<InstanceId>>,
}

impl Reload {
    /// Reads all of them, and only then registers what they say; what they say no more is removed.
    ///
    /// # Errors
    /// When one cannot be read, or says what cannot be.
    pub(crate) async fn run(&self, agent: &Agent) -> anyhow::Result<()> {
        let mut known = self.known.lock().await;
        let read = self.read()?;
        let now = definitions::services(&read);
        definitions::write_config_entries(&read, &self.server).await?;
        definitions::register(read, agent, Unavailable::Fails).await?;
        for gone in known.difference(&now) {
            match agent.deregister_service(gone).await {
                // Somebody else has removed it.
                Ok(_) | Err(DeregisterError::UnknownService(_) | DeregisterError::UnknownCheck(_)) => {}
                Err(error @ DeregisterError::Write(_)) => {
                    return Err(error).with_context(|| format!("removing service {gone}"));
                }
            }
        }
        *known = now;
        Ok(())
    }

    fn read(&self) -> anyhow::Result<Vec<Definitions>> {
        let context = definitions::context(self.node.clone(), self.datacenter.clone());
        let mut files = self.sources.files.clone();
        for directory in &self.sources.directories {
            files.extend(definitions::files_in(directory)?);
        }
        let mut all = Vec::new();
        for path in files {
            let text = definitions::read_file(&path).with_context(|| format!("reading {}", path.display()))?;
            if self.sources.has_settings && text.trim_ascii().is_empty() {
                continue;
            }
            let mut read = definitions::read(&path.display().to_string(), &text, &context)?;
            if self.sources.has_settings {
                read.notices.clear();
            }
            all.push(read);
        }
        Ok(all)
    }
}
