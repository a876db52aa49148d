//! A configuration, judged: the one judgement of `consul agent`, `consul validate` and of files that are read anew.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::Arc;

use clap::{CommandFactory, FromArgMatches};
use starling_http_api::parse::{Context, Definitions};
use starling_model::Locality;

use super::Guise;
use super::agent::AgentArgs;
use super::settings::{Said, Settings};
use crate::arguments::{Arguments, Command};
use crate::outcome::usage;
use crate::role::definitions;
use crate::role::reload::{Anew, Files, Sources, Text};
use crate::{agent, dev};

/// What to do in the place of settings that somebody may wait for.
const INSTEAD: [(&str, &str); 4] = [
    ("watches", ": run `consul watch` beside the agent"),
    ("pid_file", ": whoever starts the agent knows its process ID"),
    ("log_file", ": the log is written to standard error"),
    ("enable_syslog", ": the log is written to standard error"),
];

/// What is said to a server to which others are named.
const ALONE: &str = "retry_join: a server has a mesh of its own, and joins no other; several servers share a store: \
     `starling server --store etcd://HOST:PORT` on each";

/// Where a configuration is written.
pub(super) struct Configuration {
    pub(super) sources: Sources,
    /// Flags, which count more than files.
    pub(super) flags: Option<Box<AgentArgs>>,
}

/// What it comes to.
pub(super) struct Judged {
    /// What `starling dev` or `starling agent` would be told.
    pub(super) arguments: Arguments,
    pub(super) definitions: Vec<Definitions>,
    pub(super) guise: Guise,
    /// What is to be said of it.
    pub(super) said: Vec<String>,
    /// By what it differs from another.
    pub(super) written: Written,
}

/// What an agent is started with, but for what it registers.
#[derive(Debug, PartialEq)]
pub(super) struct Written {
    arguments: Vec<OsString>,
    guise: Guise,
    locality: Option<Arc<Locality>>,
    said: Said,
    /// Settings without effect.
    ignored: BTreeSet<String>,
}

impl Configuration {
    /// Reads it, and judges it as its agent's start does.
    ///
    /// # Errors
    /// Everything for which an agent would not start, as far as it lies in what is written and not in the machine.
    pub(super) fn judged(&self) -> anyhow::Result<Judged> {
        self.judged_texts(&self.sources.texts()?)
    }

    fn judged_texts(&self, texts: &[Text]) -> anyhow::Result<Judged> {
        let mut settings = Settings::default();
        texts.iter().try_for_each(|text| settings.read(text))?;
        if let Some(flags) = &self.flags {
            flags.as_ref().clone().over(&mut settings);
        }
        let is_dev = self.flags.as_ref().is_some_and(|flags| flags.is_dev());
        let words = settings.arguments(is_dev)?;
        let arguments = arguments(words.clone())?;
        let node = crate::role::node::name(settings.node_name.as_ref())?;
        let context = definitions::context(node, settings.datacenter()?);
        let definitions = self.sources.defined(texts, &context)?;
        let mut guise = settings.guise()?;
        if let Command::Dev(args) = &arguments.command {
            dev::judge(args, &definitions, &guise)?;
        }
        if let Command::Agent(args) = &arguments.command {
            agent::judge(args, &definitions, &guise)?;
            guise.tokens = settings.agent_tokens();
            settings.ignored.extend(settings.of_servers_alone());
        }
        let mut said = Vec::new();
        for ignored in &settings.ignored {
            let instead = INSTEAD.iter().find(|(name, _)| name == ignored).map_or("", |(_, instead)| instead);
            said.push(format!("{ignored}: is a setting of Consul's that has no effect here{instead}"));
        }
        if settings.joining.names_members_in_vain(is_dev) {
            said.push(format!("warning: {ALONE}"));
        }
        let Settings { said: written, ignored, .. } = settings;
        let locality = definitions::locality(None, &definitions);
        let written = Written { arguments: words, guise: guise.clone(), locality, said: written, ignored };
        Ok(Judged { arguments, definitions, guise, said, written })
    }
}

impl Written {
    /// The settings whose change counts from the next start.
    fn waiting(&self, began: &Self) -> Vec<String> {
        let comes_to_the_same = self.arguments == began.arguments && self.guise == began.guise;
        let mut waiting = match comes_to_the_same {
            true => Vec::new(),
            false => self.said.changed(&began.said, self.ignored.union(&began.ignored)),
        };
        if self.locality != began.locality {
            waiting.push("locality".to_owned());
        }
        waiting
    }
}

/// The configuration of an agent that runs.
pub(super) struct Begun {
    pub(super) configuration: Configuration,
    /// What it was at the start.
    pub(super) written: Written,
}

impl Files for Begun {
    fn read(&self, context: &Context) -> anyhow::Result<Anew> {
        let sources = &self.configuration.sources;
        let texts = sources.texts()?;
        let judged = self.configuration.judged_texts(&texts)?;
        // The node and its datacentre stay what they are.
        let definitions = sources.defined(&texts, context)?;
        Ok(Anew { definitions, waiting: judged.written.waiting(&self.written) })
    }
}

/// The arguments, parsed as those of `starling` are.
fn arguments(words: Vec<OsString>) -> anyhow::Result<Arguments> {
    let matches = Arguments::command().try_get_matches_from(words);
    let parsed = matches.and_then(|matches| Arguments::from_arg_matches(&matches));
    parsed.map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        usage(first.strip_prefix("error: ").unwrap_or(first))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(folder: &std::path::Path, text: &str) -> anyhow::Result<Judged> {
        let file = folder.join("agent.json");
        std::fs::write(&file, text).expect("written");
        let sources = Sources { files: vec![file], has_settings: true, ..Sources::default() };
        Configuration { sources, flags: None }.judged()
    }

    #[test]
    fn what_was_changed_and_counts_later_is_named_and_what_has_no_effect_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let written = |text: &str| judged(folder.path(), text).map(|judged| judged.written).expect(text);
        let settings = r#""server": true, "data_dir": "none", "ports": {"http": 1, "dns": 2}, "telemetry": {"statsd_address": "a"}"#;
        let began = written(&format!("{{{settings}}}"));
        let waiting = |text: &str| written(&format!("{{{text}}}")).waiting(&began);
        assert_eq!(waiting(&format!(r#"{settings}, "service": {{"name": "web"}}"#)), [""; 0]);
        assert_eq!(waiting(&settings.replace("\"a\"", "\"b\"")), [""; 0], "what has no effect");
        assert_eq!(waiting(&settings.replace(": 2", ": 3")), ["ports.dns"]);
        assert_eq!(waiting(&settings.replace(", \"dns\": 2", "")), ["ports.dns"]);
        let acl = format!(r#"{settings}, "acl": {{"enabled": true, "tokens": {{"default": "x"}}}}"#);
        assert_eq!(waiting(&acl), ["acl.enabled", "acl.tokens.default"]);
        assert_eq!(waiting(&format!(r#"{settings}, "locality": {{"region": "r"}}"#)), ["locality"]);
    }

    #[test]
    fn entries_that_the_mesh_would_refuse_are_refused_where_it_begins_and_where_no_mesh_could_take_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("data");
        let judged = |entries: &str| {
            let text = format!(
                r#"{{"server": true, "data_dir": "{}", "config_entries": {{"bootstrap": [{entries}]}}}}"#,
                data.display()
            );
            judged(folder.path(), &text).map(drop).map_err(|error| format!("{error:#}"))
        };
        let router = r#"{"Kind": "service-router", "Name": "web", "Routes": []}"#;
        let of = |protocol: &str| format!(r#"{{"Kind": "service-defaults", "Name": "web", "Protocol": "{protocol}"}}"#);
        let refused = judged(router).expect_err("nobody says that web speaks http");
        assert!(refused.contains("service-router/web") && refused.contains("service-defaults/web"), "{refused}");
        judged(&format!("{}, {router}", of("http"))).expect("it says so itself");
        judged(&format!("{}, {router}", of("tcp"))).expect_err("it says otherwise");
        std::fs::create_dir_all(data.join("store")).expect("a mesh");
        judged(router).expect("the mesh may have said so");
        judged(&format!("{}, {router}", of("tcp"))).expect("what it has stays");
    }
}
