//! What a token or a role may, as flags say it.

use serde_json::{Value, json};

use crate::outcome::usage;

/// What is granted
#[derive(Debug, clap::Args)]
pub(super) struct GrantArgs {
    /// A policy, by its ID; may be given several times
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

    /// Adds what is granted to what `body` has already, or puts it in its place if `replace`.
    pub(super) fn put_into(&self, body: &mut Value, replace: bool) -> anyhow::Result<()> {
        let ids = self.policy_id.iter().map(|id| json!({"ID": id}));
        let names = self.policy_name.iter().map(|name| json!({"Name": name}));
        add(body, "Policies", ids.chain(names).collect(), replace);
        let services = self.service_identity.iter().map(|text| match text.split_once(':') {
            None => json!({"ServiceName": text}),
            Some((name, datacenters)) => {
                json!({"ServiceName": name, "Datacenters": datacenters.split(',').collect::<Vec<_>>()})
            }
        });
        add(body, "ServiceIdentities", services.collect(), replace);
        let node = |text: &String| match text.split_once(':') {
            Some((name, datacenter)) => Ok(json!({"NodeName": name, "Datacenter": datacenter})),
            None => Err(usage(format!("--node-identity {text:?} is not of the form NAME:DATACENTER"))),
        };
        let nodes = self.node_identity.iter().map(node).collect::<anyhow::Result<Vec<_>>>()?;
        add(body, "NodeIdentities", nodes, replace);
        let templated = self.templated_policy.iter().map(|template| {
            let name = self.var.iter().find_map(|pair| pair.strip_prefix("name:"));
            match name {
                Some(name) => json!({"TemplateName": template, "TemplateVariables": {"Name": name}}),
                None => json!({"TemplateName": template}),
            }
        });
        add(body, "TemplatedPolicies", templated.collect(), replace);
        Ok(())
    }
}

/// Adds to a list of `body`, or replaces it.
pub(super) fn add(body: &mut Value, field: &str, more: Vec<Value>, replace: bool) {
    let mut list = if replace { Vec::new() } else { body[field].as_array().cloned().unwrap_or_default() };
    list.extend(more);
    body[field] = list.into();
}
