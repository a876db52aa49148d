//! The settings of access control.

use std::collections::BTreeSet;
use std::path::Path;

use starling_http_api::parse::{FieldError, Fields};
use starling_model::AclSecret;

use super::super::GivenTokens;

/// Settings of access control at the top, and what took their place.
const LEGACY: [(&str, &str); 8] = [
    ("acl_default_policy", "acl.default_policy, beside acl.enabled"),
    ("acl_down_policy", "acl.down_policy"),
    ("acl_datacenter", "primary_datacenter"),
    ("acl_token", "acl.tokens.default"),
    ("acl_master_token", "acl.tokens.initial_management"),
    ("acl_agent_token", "acl.tokens.agent"),
    ("acl_ttl", "acl.token_ttl"),
    ("acl_enable_key_list_policy", "acl.enable_key_list_policy"),
];

/// Consul's name for the file of tokens that were given by the API.
const KEPT_TOKENS: &str = "acl-tokens.json";

/// What files say of it.
#[derive(Debug, Default)]
pub(super) struct Acl {
    enabled: bool,
    default_policy: Option<String>,
    tokens: GivenTokens,
    /// Whether tokens that the API gives the agent outlive it.
    keeps_tokens: bool,
    /// Whether no token has any right while no server is reached.
    denies_in_outage: bool,
}

impl Acl {
    /// Adds what a file says.
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
            let (default, dns) = (token("default")?, token("dns")?);
            self.tokens = GivenTokens {
                initial_management: initial.or(self.tokens.initial_management.take()),
                default: default.or(self.tokens.default.take()),
                dns: dns.or(self.tokens.dns.take()),
                kept_in: None,
            };
            // An agent proves itself by its certificate.
            tokens.ignored(&[
                "agent",
                "agent_recovery",
                "agent_master",
                "replication",
                "config_file_service_registration",
            ]);
            if tokens.take("managed_service_provider").is_some() {
                ignored.insert("acl.tokens.managed_service_provider".to_owned());
            }
            tokens.finish()?;
        }
        if let Some(policy) = acl.text("down_policy")? {
            match policy.as_str() {
                "deny" | "extend-cache" | "async-cache" => {}
                // More is denied than is asked for: unknown tokens have no rights in an outage.
                "allow" => drop(ignored.insert("acl.down_policy".to_owned())),
                other => {
                    let reason = format!("{other:?} is not \"extend-cache\", \"async-cache\", \"deny\" or \"allow\"");
                    return Err(acl.error("down_policy", reason));
                }
            }
            self.denies_in_outage = policy == "deny";
        }
        if acl.flag("enable_key_list_policy")? {
            return Err(
                acl.error("enable_key_list_policy", "asks for a right to list keys, which is not asked for here")
            );
        }
        if let Some(field) = acl.take("enable_token_persistence") {
            self.keeps_tokens = field.flag()?;
        }
        for name in ["token_ttl", "role_ttl", "policy_ttl", "enable_token_replication"] {
            if acl.take(name).is_some() {
                ignored.insert(format!("acl.{name}"));
            }
        }
        // A slip of the pen here would leave the mesh open.
        acl.finish()
    }

    /// Refuses settings by whose old names access would be thought to be controlled.
    pub(super) fn refuse_legacy(fields: &mut Fields<'_>) -> Result<(), FieldError> {
        for (name, now) in LEGACY {
            if fields.take(name).is_some() {
                return Err(fields.error(name, format!("is a setting of before Consul 1.11: write {now}")));
            }
        }
        Ok(())
    }

    /// The tokens that are given. At a server they count only where access is controlled, whichever file says so; whether it is
    /// where an agent joins, its servers know.
    pub(super) fn tokens(&self, is_server: bool, data_dir: Option<&Path>) -> GivenTokens {
        if is_server && !self.enabled {
            return GivenTokens::default();
        }
        let kept_in = data_dir.filter(|_| self.keeps_tokens).map(|folder| folder.join(KEPT_TOKENS));
        GivenTokens { kept_in, ..self.tokens.clone() }
    }

    /// Whether an agent grants nothing while it reaches no server.
    pub(super) fn denies_in_outage(&self) -> bool {
        self.denies_in_outage
    }

    /// What holds where no rule does, if access is controlled; Consul's default is to allow.
    pub(super) fn default_policy(&self) -> Option<&str> {
        self.enabled.then(|| self.default_policy.as_deref().unwrap_or("allow"))
    }
}
