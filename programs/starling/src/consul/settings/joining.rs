//! What settings say of other members: whether this agent is a server, and which servers it joins if it is none.

use std::collections::BTreeSet;
use std::ffi::OsString;

use starling_http_api::parse::{FieldError, Fields};

use super::arguments::say;
use super::interfaces::Interface;
use super::places;
use crate::outcome::usage;

/// The port by which members of Consul gossip, and which joins therefore name; nothing listens there.
const SERF_PORT: &str = ":8301";

/// How a node joins.
const JOINING: &str = "`retry_join = [\"HOST\"]` (-retry-join HOST) names the servers, at the port for agents (8503 unless given), and a \
     token of `starling token create --join` lets it in: auto_config.intro_token_file, -join-token-file FILE, or STARLING_JOIN_TOKEN";

/// What files and flags say of it.
#[derive(Debug, Default)]
pub(in super::super) struct Joining {
    pub(in super::super) server: Option<bool>,
    pub(in super::super) bootstrap: bool,
    pub(in super::super) bootstrap_expect: Option<i64>,
    /// Members to begin with.
    pub(in super::super) members: Vec<String>,
    pub(in super::super) token_file: Option<String>,
    token: Option<String>,
    /// Whether SIGTERM has the node leave; Consul's default is that of an agent that is no server.
    pub(in super::super) leave_on_terminate: Option<bool>,
    /// Whether Ctrl-C does not.
    skip_leave_on_interrupt: Option<bool>,
}

impl Joining {
    pub(super) fn take(&mut self, fields: &mut Fields<'_>, ignored: &mut BTreeSet<String>) -> Result<(), FieldError> {
        if let Some(field) = fields.take("server") {
            self.server = Some(field.flag()?);
        }
        self.bootstrap |= fields.flag("bootstrap")?;
        self.bootstrap_expect = fields.integer("bootstrap_expect")?.or(self.bootstrap_expect);
        for name in ["retry_join", "start_join"] {
            self.members.extend(fields.texts(name)?);
        }
        if let Some(mut auto) = fields.object("auto_config")? {
            self.token = auto.text("intro_token")?.or(self.token.take());
            self.token_file = auto.text("intro_token_file")?.or(self.token_file.take());
            self.members.extend(auto.texts("server_addresses")?);
            auto.ignored(&["enabled"]);
            ignored.extend(auto.rest().map(|name| format!("auto_config.{name}")));
        }
        for (name, setting) in [
            ("leave_on_terminate", &mut self.leave_on_terminate),
            ("skip_leave_on_interrupt", &mut self.skip_leave_on_interrupt),
        ] {
            if let Some(field) = fields.take(name) {
                *setting = Some(field.flag()?);
            }
        }
        Ok(())
    }

    /// What is said of how the process ends and counts for agents that are no servers alone.
    pub(super) fn of_agents_alone(&self) -> Vec<String> {
        let leaves = [
            ("leave_on_terminate", self.leave_on_terminate == Some(true)),
            ("skip_leave_on_interrupt", self.skip_leave_on_interrupt == Some(false)),
        ];
        leaves.into_iter().filter(|(_, is_said)| *is_said).map(|(name, _)| name.to_owned()).collect()
    }

    /// Upon what requests to end an agent that is no server leaves the mesh.
    pub(super) fn say_leaving(&self, arguments: &mut Vec<OsString>) {
        if self.leave_on_terminate.unwrap_or(true) {
            arguments.push("--leave-on-terminate".into());
        }
        if !self.skip_leave_on_interrupt.unwrap_or(false) {
            arguments.push("--leave-on-interrupt".into());
        }
    }

    /// The servers to join, if this agent is none.
    ///
    /// # Errors
    /// When it would be alone where it is to be with others.
    pub(super) fn servers(&self, is_dev: bool) -> anyhow::Result<Option<Vec<String>>> {
        let begins = is_dev || self.bootstrap || self.bootstrap_expect.is_some_and(|servers| servers > 0);
        if !self.server.unwrap_or(begins) {
            if self.members.is_empty() {
                return Err(usage(format!(
                    "this agent is no server, and joins none: {JOINING}; a server with a mesh of its own is `server = true` (-server), or -dev"
                )));
            }
            return self.members.iter().map(|member| server(member)).collect::<Result<_, _>>().map(Some);
        }
        if !is_dev && self.bootstrap_expect.is_some_and(|servers| servers > 1) {
            return Err(usage(
                "bootstrap_expect: servers do not find each other by it, and each would have a mesh of its own: write 1 for one server; \
                 several share a store: `starling server --store etcd://HOST:PORT` on each",
            ));
        }
        if !begins && !self.members.is_empty() {
            return Err(usage(
                "retry_join: a server does not join others, and would have a mesh of its own: write `bootstrap = true` if that is meant, \
                 `server = false` for an agent of theirs; several servers share a store: `starling server --store etcd://HOST:PORT` on each",
            ));
        }
        Ok(None)
    }

    /// Whether members are named to a server, which is with none.
    pub(in super::super) fn names_members_in_vain(&self, is_dev: bool) -> bool {
        !self.members.is_empty() && matches!(self.servers(is_dev), Ok(None))
    }

    pub(super) fn say_token(&self, arguments: &mut Vec<OsString>) {
        match (&self.token_file, &self.token) {
            (Some(file), _) => say(arguments, "--join-token-file", file),
            (None, Some(token)) => say(arguments, "--join-token", token),
            (None, None) => {}
        }
    }
}

/// A server by what a join names.
fn server(member: &str) -> anyhow::Result<String> {
    let text = member.trim();
    if text.contains("{{") {
        return Ok(super::arguments::host(places::one("retry_join", text, Interface::here)?));
    }
    if text.contains("provider=") || text.contains("exec=") {
        return Err(usage(format!(
            "retry_join: {text:?} asks a cloud for servers, which is not done here: write their addresses, or a name that DNS knows"
        )));
    }
    if let Ok(address) = text.parse() {
        return Ok(super::arguments::host(address));
    }
    Ok(text.strip_suffix(SERF_PORT).unwrap_or(text).to_owned())
}
