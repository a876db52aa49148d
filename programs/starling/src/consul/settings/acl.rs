//! The settings of access control.

use std::collections::BTreeSet;

use starling_http_api::parse::{FieldError, Fields};
use starling_model::AclSecret;

use super::super::GivenTokens;

/// What files say of it.
#[derive(Debug, Default)]
pub(super) struct Acl {
    enabled: bool,
    default_policy: Option<String>,
    pub(super) tokens: GivenTokens,
}

impl Acl {
    /// Adds what a file says; tokens count only where access is controlled.
    pub(super) fn take(&mut self, mut acl: Fields<'_>, ignored: &mut BTreeSet<String>) -> Result<(), FieldError> {
        self.enabled |= acl.flag("enabled")?;
        if let Some(policy) = acl.text("default_policy")? {
            if !["allow", "deny"].contains(&policy.as_str()) {
                return Err(acl.error("default_policy", format!("{policy:?} is not \"allow\" or \"deny\"")));
            }
            self.default_policy = Some(policy);
        }
        if let Some(mut tokens) = acl.object("tokens")? {
            let mut token = |name: &str| -> Result<Option<AclSecret>, FieldError> {
                let Some(text) = tokens.text(name)? else { return Ok(None) };
                let reason = "has to be 1 to 256 letters, digits and signs, without blanks";
                AclSecret::new(&text).map(Some).ok_or_else(|| tokens.error(name, reason))
            };
            // The second is its name of before 1.11.
            let initial = token("initial_management")?.or(token("master")?);
            let default = token("default")?;
            if self.enabled {
                self.tokens = GivenTokens {
                    initial_management: initial.or(self.tokens.initial_management.take()),
                    default: default.or(self.tokens.default.take()),
                };
            }
            // An agent proves itself by its certificate.
            tokens.ignored(&[
                "agent",
                "agent_recovery",
                "agent_master",
                "replication",
                "config_file_service_registration",
            ]);
            ignored.extend(tokens.rest().map(|name| format!("acl.tokens.{name}")));
        }
        // What holds while no server is reached is this, and cannot be chosen.
        if acl.text("down_policy")?.is_some_and(|policy| policy != "extend-cache") {
            ignored.insert("acl.down_policy".to_owned());
        }
        ignored.extend(acl.rest().map(|name| format!("acl.{name}")));
        Ok(())
    }

    /// What holds where no rule does, if access is controlled; Consul's default is to allow.
    pub(super) fn default_policy(&self) -> Option<&str> {
        self.enabled.then(|| self.default_policy.as_deref().unwrap_or("allow"))
    }
}
