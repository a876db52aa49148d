//! What is there without being made: two policies, and templates.

use super::rights::{Access, AclRule, Resource};
use super::{AclName, AclPolicy};
use crate::uuid::Uuid;

/// A policy that is always there and is not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuiltinPolicy {
    /// Everything may be done.
    GlobalManagement,
    /// Everything may be read.
    GlobalReadOnly,
}

impl BuiltinPolicy {
    /// Both.
    pub const ALL: [Self; 2] = [Self::GlobalManagement, Self::GlobalReadOnly];

    /// Its identifier.
    #[must_use]
    pub const fn id(self) -> Uuid {
        match self {
            Self::GlobalManagement => Uuid::from_bits(1),
            Self::GlobalReadOnly => Uuid::from_bits(2),
        }
    }

    /// The policy.
    #[must_use]
    pub fn policy(self) -> AclPolicy {
        let (name, description, access) = match self {
            Self::GlobalManagement => ("global-management", "Everything may be done", Access::Write),
            Self::GlobalReadOnly => ("builtin-global-read-only", "Everything may be read", Access::Read),
        };
        let rules: Vec<_> = Resource::ALL.into_iter().map(|resource| AclRule::all(resource, access)).collect();
        let text =
            Resource::ALL.into_iter().filter(|resource| *resource != Resource::Intentions).map(|resource| {
                match (resource, resource.has_names()) {
                    (Resource::Service, _) => {
                        format!("service_prefix \"\" {{\n  policy = \"{access}\"\n  intentions = \"{access}\"\n}}\n")
                    }
                    (_, true) => format!("{resource}_prefix \"\" {{\n  policy = \"{access}\"\n}}\n"),
                    (_, false) => format!("{resource} = \"{access}\"\n"),
                }
            });
        AclPolicy {
            id: self.id(),
            name: AclName::new(name).expect("invariant: a name"),
            description: description.to_owned(),
            text: text.collect(),
            rules,
            datacenters: Vec::new(),
        }
    }
}

/// Rules with a place for a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Template {
    /// Its name.
    pub name: &'static str,
    /// What it is for.
    pub description: &'static str,
    /// Whether it takes a name.
    pub takes_name: bool,
    /// Resource, name before and behind which something may stand, whether it is a beginning, and access.
    rules: &'static [TemplateRule],
}

/// A rule of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TemplateRule {
    /// About the name that is filled in, and what stands behind it.
    Named(Resource, &'static str, Access),
    /// About all of a resource.
    All(Resource, Access),
}

/// Every template.
pub const TEMPLATES: [Template; 6] = [
    Template {
        name: "builtin/api-gateway",
        description: "What an API gateway needs to be registered and to find what it leads to",
        takes_name: true,
        rules: &[
            TemplateRule::All(Resource::Mesh, Access::Read),
            TemplateRule::All(Resource::Node, Access::Read),
            TemplateRule::All(Resource::Service, Access::Read),
            TemplateRule::Named(Resource::Service, "", Access::Write),
        ],
    },
    Template {
        name: "builtin/dns",
        description: "What answering DNS needs",
        takes_name: false,
        rules: &[
            TemplateRule::All(Resource::Node, Access::Read),
            TemplateRule::All(Resource::Query, Access::Read),
            TemplateRule::All(Resource::Service, Access::Read),
        ],
    },
    Template {
        name: "builtin/node",
        description: "What the agent of a node needs to register it",
        takes_name: true,
        rules: &[
            TemplateRule::Named(Resource::Node, "", Access::Write),
            TemplateRule::All(Resource::Service, Access::Read),
        ],
    },
    Template {
        name: "builtin/nomad-client",
        description: "What a client of Nomad needs to register what it runs",
        takes_name: false,
        rules: &[
            TemplateRule::All(Resource::Agent, Access::Read),
            TemplateRule::All(Resource::Key, Access::Read),
            TemplateRule::All(Resource::Node, Access::Read),
            TemplateRule::All(Resource::Service, Access::Write),
        ],
    },
    Template {
        name: "builtin/nomad-server",
        description: "What a server of Nomad needs to register itself and to make tokens",
        takes_name: false,
        rules: &[
            TemplateRule::All(Resource::Acl, Access::Write),
            TemplateRule::All(Resource::Agent, Access::Read),
            TemplateRule::All(Resource::Node, Access::Read),
            TemplateRule::All(Resource::Service, Access::Write),
        ],
    },
    Template {
        name: "builtin/service",
        description: "What a service and its sidecar need to be registered and to find others",
        takes_name: true,
        rules: &[
            TemplateRule::Named(Resource::Service, "", Access::Write),
            TemplateRule::Named(Resource::Service, "-sidecar-proxy", Access::Write),
            TemplateRule::All(Resource::Service, Access::Read),
            TemplateRule::All(Resource::Node, Access::Read),
        ],
    },
];

impl Template {
    /// The template of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        TEMPLATES.into_iter().find(|template| template.name == name)
    }

    /// Its rules with a name filled in.
    #[must_use]
    pub fn rules(self, name: &str) -> Vec<AclRule> {
        let mut rules = Vec::new();
        for rule in self.rules {
            let rule = match rule {
                TemplateRule::Named(resource, behind, access) => {
                    AclRule::exact(*resource, &format!("{name}{behind}"), *access)
                }
                TemplateRule::All(resource, access) => AclRule::all(*resource, *access),
            };
            // Who may see a service may see who may call it.
            if rule.resource == Resource::Service {
                rules.push(AclRule { resource: Resource::Intentions, access: Access::Read, ..rule.clone() });
            }
            rules.push(rule);
        }
        rules
    }

    /// Its rules as they are written, with a name or a place for one.
    #[must_use]
    pub fn text(self, name: &str) -> String {
        let line = |rule: &TemplateRule| match rule {
            TemplateRule::Named(resource, behind, access) => {
                format!("{resource} \"{name}{behind}\" {{\n  policy = \"{access}\"\n}}\n")
            }
            TemplateRule::All(resource, access) if resource.has_names() => {
                format!("{resource}_prefix \"\" {{\n  policy = \"{access}\"\n}}\n")
            }
            TemplateRule::All(resource, access) => format!("{resource} = \"{access}\"\n"),
        };
        self.rules.iter().map(line).collect()
    }
}
