//! What a token or a role may, as flags say it.

use serde_json::{Value, json};

use super::identifier::Kind;
use crate::client::Client;
use crate::outcome::usage;

/// What is granted
#[derive(Debug, clap::Args)]
pub(super) struct GrantArgs {
    /// A policy, by its ID or what it alone begins with; may be given several times
    #[arg(long, value_name = "ID")]
    policy_id: Vec<String>,

    /// A policy, by its name; may be given several times
    #[arg(long, value_name = "NAME")]
    policy_name: Vec<String>,

    /// To be a service, in these datacentres or in all; may be given several times
    #[arg(long, value_name = "NAME[:DC,…]")]
    service_identity: Vec<String>,

    /// To be a node; may be given several times
    #[arg(long, value_name = "NAME:DC")]
    node_identity: Vec<String>,

    /// A template of policies, such as builtin/dns
    #[arg(long, value_name = "NAME")]
    templated_policy: Option<String>,

    /// What the template is filled with
    #[arg(long, value_name = "name:VALUE", requires = "templated_policy")]
    var: Vec<String>,
}

impl GrantArgs {
    /// Whether anything is said.
    pub(super) fn is_empty(&self) -> bool {
        self.policy_id.is_empty()
            && self.policy_name.is_empty()
            && self.service_identity.is_empty()
            && self.node_identity.is_empty()
            && self.templated_policy.is_none()
    }

    /// Puts what is granted into `body`, each list as `how` has it for the list of that name.
    pub(super) async fn put_into(
        &self,
        client: &Client,
        body: &mut Value,
        how: impl Fn(&str) -> How,
    ) -> anyhow::Result<()> {
        let policies = links(client, Kind::Policy, &self.policy_id, &self.policy_name).await?;
        let nodes = nodes("--node-identity", &self.node_identity)?;
        let templated = self.templated_policy.iter().map(|template| {
            let name = self.var.iter().find_map(|pair| pair.strip_prefix("name:"));
            match name {
                Some(name) => json!({"TemplateName": template, "TemplateVariables": {"Name": name}}),
                None => json!({"TemplateName": template}),
            }
        });
        for (field, more) in [
            ("Policies", policies),
            ("ServiceIdentities", services(&self.service_identity)),
            ("NodeIdentities", nodes),
            ("TemplatedPolicies", templated.collect()),
        ] {
            put(body, field, more, how(field));
        }
        Ok(())
    }
}

/// That somebody stands for services: NAME or NAME:DATACENTER,….
pub(super) fn services(texts: &[String]) -> Vec<Value> {
    let service = |text: &String| match text.split_once(':') {
        None => json!({"ServiceName": text}),
        Some((name, datacenters)) => {
            json!({"ServiceName": name, "Datacenters": datacenters.split(',').collect::<Vec<_>>()})
        }
    };
    texts.iter().map(service).collect()
}

/// The same of nodes, NAME:DATACENTER, by this flag.
pub(super) fn nodes(flag: &str, texts: &[String]) -> anyhow::Result<Vec<Value>> {
    let node = |text: &String| match text.split_once(':') {
        Some((name, datacenter)) => Ok(json!({"NodeName": name, "Datacenter": datacenter})),
        None => Err(usage(format!("{flag} {text:?} is not of the form NAME:DATACENTER"))),
    };
    texts.iter().map(node).collect()
}

/// What becomes of a list that somebody has already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// It is what is given.
    Replace,
    /// The same where anything is given; else it stays.
    ReplaceIfGiven,
    /// What is given comes behind it.
    Add,
}

/// Policies or roles, by identifiers or what these begin with, and by names.
pub(super) async fn links(client: &Client, kind: Kind, ids: &[String], names: &[String]) -> anyhow::Result<Vec<Value>> {
    let mut links = Vec::new();
    for id in ids {
        links.push(json!({"ID": kind.whole(client, id).await?}));
    }
    links.extend(names.iter().map(|name| json!({"Name": name})));
    Ok(links)
}

/// Puts a list into `body`.
pub(super) fn put(body: &mut Value, field: &str, more: Vec<Value>, how: How) {
    let keeps = how == How::Add || (how == How::ReplaceIfGiven && more.is_empty());
    let mut list = if keeps { body[field].as_array().cloned().unwrap_or_default() } else { Vec::new() };
    list.extend(more);
    body[field] = list.into();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_replaced_added_to_or_left() {
        let after = |how: How, more: Vec<Value>| {
            let mut body = json!({"Roles": [{"ID": "1"}]});
            put(&mut body, "Roles", more, how);
            body["Roles"].clone()
        };
        let more = || vec![json!({"Name": "r"})];
        assert_eq!(after(How::Replace, more()), json!([{"Name": "r"}]));
        assert_eq!(after(How::Replace, Vec::new()), json!([]));
        assert_eq!(after(How::ReplaceIfGiven, more()), json!([{"Name": "r"}]));
        assert_eq!(after(How::ReplaceIfGiven, Vec::new()), json!([{"ID": "1"}]));
        assert_eq!(after(How::Add, more()), json!([{"ID": "1"}, {"Name": "r"}]));
    }
}
