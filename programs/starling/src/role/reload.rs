//! Definition files, read again while the agent runs.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use starling_agent::{Agent, DeregisterError, ScriptChecks};
use starling_http_api::parse::file::{agent_fields, parse_definitions_as};
use starling_http_api::parse::{Context, Definitions, Fields, FileError, FileFormat};
use starling_model::{Datacenter, Revision};
use starling_server::Server;
use tokio::sync::Mutex;

use super::definitions::{self, FilesOf, Named, Rival, Unavailable};
use crate::outcome::usage;

/// Where definitions are written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sources {
    pub(crate) files: Vec<PathBuf>,
    /// Of each, the files that are there when it is read.
    pub(crate) directories: Vec<PathBuf>,
    /// What the command line says itself, in HCL.
    pub(crate) fragments: Vec<String>,
    /// The form of the files, whatever they are called.
    pub(crate) format: Option<FileFormat>,
    /// Whether they are of Consul's form, with settings beside definitions; these count from the next start.
    pub(crate) has_settings: bool,
}

/// A text with what to call it, and its form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) name: String,
    bytes: Vec<u8>,
    format: FileFormat,
}

impl Text {
    /// Its form is the one that is said; without that, name and text tell.
    pub(crate) fn new(name: impl Into<String>, bytes: impl Into<Vec<u8>>, format: Option<FileFormat>) -> Self {
        let (name, bytes) = (name.into(), bytes.into());
        let format = format.unwrap_or_else(|| FileFormat::guess(&name, &bytes));
        Self { name, bytes, format }
    }

    /// The settings of Consul's agent in it, beside which definitions may stand.
    ///
    /// # Errors
    /// [`FileError`].
    pub(crate) fn settings<'c>(&self, context: &'c Context) -> Result<Fields<'c>, FileError> {
        agent_fields(&self.name, &self.bytes, Some(self.format), context)
    }

    fn definitions(&self, context: &Context) -> Result<Definitions, FileError> {
        parse_definitions_as(&self.name, &self.bytes, Some(self.format), context)
    }
}

/// What is read when files are to be read anew.
pub(crate) trait Files: Send + Sync {
    /// What they say now, defined on the node of the context.
    ///
    /// # Errors
    /// When one cannot be read, or says what cannot be.
    fn read(&self, context: &Context) -> anyhow::Result<Anew>;
}

/// Files that are read anew, and what they named last.
pub(crate) type Followed = (Arc<dyn Files>, Named);

/// What files say when they are read anew.
#[derive(Debug, Default)]
pub(crate) struct Anew {
    pub(crate) definitions: Vec<Definitions>,
    /// Settings that were changed, and count from the next start.
    pub(crate) waiting: Vec<String>,
}

impl Files for Sources {
    fn read(&self, context: &Context) -> anyhow::Result<Anew> {
        Ok(Anew { definitions: self.defined(&self.texts()?, context)?, waiting: Vec::new() })
    }
}

impl Sources {
    /// Reads all of them, in the order in which they count.
    ///
    /// # Errors
    /// When one cannot be read.
    pub(crate) fn texts(&self) -> anyhow::Result<Vec<Text>> {
        let mut files = self.files.clone();
        for directory in &self.directories {
            files.extend(definitions::files_in(directory, self.which())?);
        }
        let mut texts = Vec::new();
        for path in files {
            let reading = |error| usage(format!("cannot read {}: {error}", path.display()));
            let bytes = definitions::read_file(&path).map_err(reading)?;
            texts.push(Text::new(path.display().to_string(), bytes, self.format));
        }
        for (index, fragment) in self.fragments.iter().enumerate() {
            texts.push(Text::new(format!("-hcl[{index}]"), fragment.clone(), Some(FileFormat::Hcl)));
        }
        // One that is made before it is filled says nothing yet.
        texts.retain(|text| !(self.has_settings && text.bytes.trim_ascii().is_empty()));
        Ok(texts)
    }

    fn which(&self) -> FilesOf {
        if self.format.is_some() { FilesOf::Any } else { FilesOf::Definitions }
    }

    /// What the texts define.
    ///
    /// # Errors
    /// When one says what cannot be.
    pub(crate) fn defined(&self, texts: &[Text], context: &Context) -> anyhow::Result<Vec<Definitions>> {
        let mut all = Vec::new();
        for text in texts {
            let mut read = text.definitions(context).map_err(|error| usage(error.to_string()))?;
            if self.has_settings {
                read.notices.clear();
            }
            all.push(read);
        }
        definitions::keep_last(&mut all);
        Ok(all)
    }
}

/// What is done when they are to be read anew.
pub(crate) struct Reload {
    pub(crate) files: Arc<dyn Files>,
    pub(crate) datacenter: Datacenter,
    /// The server that writes config entries, and what becomes of those that it has; without one, files say none.
    pub(crate) server: Option<(Arc<Server>, Rival)>,
    pub(crate) script_checks: ScriptChecks,
    pub(crate) sidecar_ports: RangeInclusive<u16>,
    /// What is there by them.
    pub(crate) known: Mutex<Named>,
}

impl Reload {
    /// Reads all of them, and only then removes what they say no more and registers what they say. Answers with the settings that were
    /// changed, and count from the next start.
    ///
    /// # Errors
    /// When one cannot be read, or says what cannot be, here or at the next start; then nothing is changed.
    pub(crate) async fn run(&self, agent: &Agent) -> anyhow::Result<Vec<String>> {
        let mut known = self.known.lock().await;
        let Anew { definitions: read, waiting } = {
            let context = definitions::context(agent.node().name.clone(), self.datacenter.clone());
            self.files.read(&context)?
        };
        definitions::rehearse(&read, agent.node().clone(), (&self.sidecar_ports, self.script_checks))?;
        let now = Named::of(&read);
        match &self.server {
            Some((server, rival)) => {
                definitions::rehearse_config_entries(&read, server.snapshot(), *rival)?;
                definitions::write_config_entries(&read, server, *rival).await?;
            }
            None => definitions::refuse_config_entries(&read)?,
        }
        // Before what is new, which may be the same check with its service, and needs the ports of sidecars that have gone.
        for gone in known.checks.difference(&now.checks) {
            removed(agent.deregister_check(gone).await, || format!("removing check {gone}"))?;
        }
        for gone in known.services.difference(&now.services) {
            removed(agent.deregister_service(gone).await, || format!("removing service {gone}"))?;
        }
        // Where something of it fails the rest is there, and goes with the files.
        *known = now;
        definitions::register(read, agent, Unavailable::Fails).await?;
        for setting in &waiting {
            tracing::warn!("{setting}: was changed, and counts from the next start");
        }
        Ok(waiting)
    }
}

fn removed(outcome: Result<Revision, DeregisterError>, what: impl FnOnce() -> String) -> anyhow::Result<()> {
    match outcome {
        // Somebody else has removed it.
        Ok(_) | Err(DeregisterError::UnknownService(_) | DeregisterError::UnknownCheck(_)) => Ok(()),
        Err(error @ DeregisterError::Write(_)) => Err(error).with_context(what),
    }
}
