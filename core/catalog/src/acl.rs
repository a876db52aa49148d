//! Access control in the catalog: tokens, found by what proves that somebody holds one, and what they may.
//!
//! Cost model: a token is found by its hash in a tree; what it may is put together from its policies when it is shown, which costs what they
//! have of rules.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use imbl::OrdMap;
use starling_model::acl::Template;
use starling_model::{
    ANONYMOUS_SECRET, ANONYMOUS_TOKEN, AclAuthMethod, AclBindingRule, AclGrants, AclKey, AclName, AclPolicy, AclRecord,
    AclRights, AclRole, AclRule, AclSecret, AclToken, Action, BuiltinPolicy, Datacenter, Fence, Record, Revision,
    SecretHash, UnixSeconds, Uuid, Versioned,
};

use crate::snapshot::Snapshot;

type Held<T> = Arc<Versioned<T>>;

/// Policies that are there without being made, at the revision at which every mesh begins.
static BUILTIN: LazyLock<[Held<AclPolicy>; 2]> =
    LazyLock::new(|| BuiltinPolicy::ALL.map(|builtin| from_the_beginning(builtin.policy())));

/// The anonymous token, as it is unless somebody changes it.
static ANONYMOUS: LazyLock<Held<AclToken>> = LazyLock::new(|| {
    from_the_beginning(AclToken {
        accessor: ANONYMOUS_TOKEN,
        secret: AclSecret::new(ANONYMOUS_SECRET).expect("invariant: a secret"),
        secret_hash: SecretHash([0; 32]),
        description: "Anonymous Token".to_owned(),
        grants: AclGrants::default(),
        local: false,
        created_at: UnixSeconds(0),
        expires_at: None,
        ttl_s: None,
        auth_method: None,
    })
});

fn from_the_beginning<T>(value: T) -> Held<T> {
    Arc::new(Versioned { value, created: Revision(1), modified: Revision(1) })
}

/// All of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct AccessControl {
    pub(crate) tokens: OrdMap<Uuid, Held<AclToken>>,
    by_secret: OrdMap<[u8; 32], Uuid>,
    /// How many of the tokens have come of a login, by its method.
    logged_in: OrdMap<AclName, usize>,
    pub(crate) policies: OrdMap<Uuid, Held<AclPolicy>>,
    policy_names: OrdMap<AclName, Uuid>,
    pub(crate) roles: OrdMap<Uuid, Held<AclRole>>,
    role_names: OrdMap<AclName, Uuid>,
    pub(crate) methods: OrdMap<AclName, Held<AclAuthMethod>>,
    pub(crate) binding_rules: OrdMap<Uuid, Held<AclBindingRule>>,
}

impl AccessControl {
    pub(crate) fn insert(&mut self, record: AclRecord, created: Revision, modified: Revision) {
        fn held<T>(value: T, created: Revision, modified: Revision) -> Held<T> {
            Arc::new(Versioned { value, created, modified })
        }
        self.remove(&record.key());
        match record {
            AclRecord::Token(value) => {
                // Who shows the anonymous token is known without.
                if value.accessor != ANONYMOUS_TOKEN {
                    self.by_secret.insert(value.secret_hash.0, value.accessor);
                }
                if let Some(method) = &value.auth_method {
                    *self.logged_in.entry(method.clone()).or_default() += 1;
                }
                self.tokens.insert(value.accessor, held(*value, created, modified));
            }
            AclRecord::Policy(value) => {
                self.policy_names.insert(value.name.clone(), value.id);
                self.policies.insert(value.id, held(*value, created, modified));
            }
            AclRecord::Role(value) => {
                self.role_names.insert(value.name.clone(), value.id);
                self.roles.insert(value.id, held(*value, created, modified));
            }
            AclRecord::AuthMethod(value) => {
                self.methods.insert(value.name.clone(), held(*value, created, modified));
            }
            AclRecord::BindingRule(value) => {
                self.binding_rules.insert(value.id, held(*value, created, modified));
            }
        }
    }

    pub(crate) fn remove(&mut self, key: &AclKey) {
        match key {
            AclKey::Token(id) => {
                let Some(old) = self.tokens.remove(id) else { return };
                if self.by_secret.get(&old.value.secret_hash.0) == Some(id) {
                    self.by_secret.remove(&old.value.secret_hash.0);
                }
                if let Some(method) = &old.value.auth_method {
                    self.forget_login(method);
                }
            }
            AclKey::Policy(id) => {
                if let Some(old) = self.policies.remove(id) {
                    self.policy_names.remove(&old.value.name);
                }
            }
            AclKey::Role(id) => {
                if let Some(old) = self.roles.remove(id) {
                    self.role_names.remove(&old.value.name);
                }
            }
            AclKey::AuthMethod(name) => {
                self.methods.remove(name);
            }
            AclKey::BindingRule(id) => {
                self.binding_rules.remove(id);
            }
        }
    }

    fn forget_login(&mut self, method: &AclName) {
        match self.logged_in.get(method).copied() {
            Some(count) if count > 1 => drop(self.logged_in.insert(method.clone(), count - 1)),
            Some(_) | None => drop(self.logged_in.remove(method)),
        }
    }

    /// How many tokens have come of logins by a method, and by all.
    pub(crate) fn logged_in(&self, method: &AclName) -> (usize, usize) {
        (self.logged_in.get(method).copied().unwrap_or(0), self.logged_in.values().sum())
    }

    /// When a record was made and last changed.
    pub(crate) fn revisions(&self, key: &AclKey) -> Option<(Revision, Revision)> {
        fn of<T>(record: &Held<T>) -> (Revision, Revision) {
            (record.created, record.modified)
        }
        match key {
            AclKey::Token(id) => self.tokens.get(id).map(of),
            AclKey::Policy(id) => self.policies.get(id).map(of),
            AclKey::Role(id) => self.roles.get(id).map(of),
            AclKey::AuthMethod(name) => self.methods.get(name).map(of),
            AclKey::BindingRule(id) => self.binding_rules.get(id).map(of),
        }
    }

    pub(crate) fn holds(&self, record: &AclRecord) -> bool {
        match record {
            AclRecord::Token(value) => self.tokens.get(&value.accessor).is_some_and(|r| r.value == **value),
            AclRecord::Policy(value) => self.policies.get(&value.id).is_some_and(|r| r.value == **value),
            AclRecord::Role(value) => self.roles.get(&value.id).is_some_and(|r| r.value == **value),
            AclRecord::AuthMethod(value) => self.methods.get(&value.name).is_some_and(|r| r.value == **value),
            AclRecord::BindingRule(value) => self.binding_rules.get(&value.id).is_some_and(|r| r.value == **value),
        }
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = Versioned<Record>> {
        fn wrap<T: Clone>(record: &Held<T>, kind: fn(Box<T>) -> AclRecord) -> Versioned<Record> {
            let value = Record::Acl(kind(Box::new(record.value.clone())));
            Versioned { value, created: record.created, modified: record.modified }
        }
        let tokens = self.tokens.values().map(|r| wrap(r, AclRecord::Token));
        let policies = self.policies.values().map(|r| wrap(r, AclRecord::Policy));
        let roles = self.roles.values().map(|r| wrap(r, AclRecord::Role));
        let methods = self.methods.values().map(|r| wrap(r, AclRecord::AuthMethod));
        let rules = self.binding_rules.values().map(|r| wrap(r, AclRecord::BindingRule));
        tokens.chain(policies).chain(roles).chain(methods).chain(rules)
    }
}

impl Snapshot {
    /// A token, by its accessor.
    #[must_use]
    pub fn acl_token(&self, accessor: Uuid) -> Option<&Arc<Versioned<AclToken>>> {
        let anonymous = || (accessor == ANONYMOUS_TOKEN).then_some(&*ANONYMOUS);
        self.access.tokens.get(&accessor).or_else(anonymous)
    }

    /// The token whose secret hashes so.
    #[must_use]
    pub fn acl_token_by_secret(&self, hash: &SecretHash) -> Option<&Arc<Versioned<AclToken>>> {
        self.access.by_secret.get(&hash.0).and_then(|accessor| self.access.tokens.get(accessor))
    }

    /// Every token, that of those who show none included.
    pub fn acl_tokens(&self) -> impl Iterator<Item = &Arc<Versioned<AclToken>>> {
        let anonymous = (!self.access.tokens.contains_key(&ANONYMOUS_TOKEN)).then_some(&*ANONYMOUS);
        anonymous.into_iter().chain(self.access.tokens.values())
    }

    /// A policy, be it built in.
    #[must_use]
    pub fn acl_policy(&self, id: Uuid) -> Option<&Arc<Versioned<AclPolicy>>> {
        self.access.policies.get(&id).or_else(|| BUILTIN.iter().find(|policy| policy.value.id == id))
    }

    /// The policy of this name.
    #[must_use]
    pub fn acl_policy_named(&self, name: &str) -> Option<&Arc<Versioned<AclPolicy>>> {
        let made = AclName::new(name).ok().and_then(|name| self.access.policy_names.get(&name).copied());
        let builtin = || BUILTIN.iter().find(|policy| policy.value.name.as_str() == name);
        made.and_then(|id| self.access.policies.get(&id)).or_else(builtin)
    }

    /// Every policy, the built-in ones first.
    pub fn acl_policies(&self) -> impl Iterator<Item = &Arc<Versioned<AclPolicy>>> {
        BUILTIN.iter().chain(self.access.policies.values())
    }

    /// A role.
    #[must_use]
    pub fn acl_role(&self, id: Uuid) -> Option<&Arc<Versioned<AclRole>>> {
        self.access.roles.get(&id)
    }

    /// The role of this name.
    #[must_use]
    pub fn acl_role_named(&self, name: &str) -> Option<&Arc<Versioned<AclRole>>> {
        let id = AclName::of_role(name).ok().and_then(|name| self.access.role_names.get(&name).copied());
        id.and_then(|id| self.acl_role(id))
    }

    /// Every role.
    pub fn acl_roles(&self) -> impl Iterator<Item = &Arc<Versioned<AclRole>>> {
        self.access.roles.values()
    }

    /// An auth method.
    #[must_use]
    pub fn acl_auth_method(&self, name: &AclName) -> Option<&Arc<Versioned<AclAuthMethod>>> {
        self.access.methods.get(name)
    }

    /// Every auth method, by name.
    pub fn acl_auth_methods(&self) -> impl Iterator<Item = &Arc<Versioned<AclAuthMethod>>> {
        self.access.methods.values()
    }

    /// A binding rule.
    #[must_use]
    pub fn acl_binding_rule(&self, id: Uuid) -> Option<&Arc<Versioned<AclBindingRule>>> {
        self.access.binding_rules.get(&id)
    }

    /// Every binding rule.
    pub fn acl_binding_rules(&self) -> impl Iterator<Item = &Arc<Versioned<AclBindingRule>>> {
        self.access.binding_rules.values()
    }

    /// When the first token was made; `None` if none was yet.
    #[must_use]
    pub fn acl_bootstrapped(&self) -> Option<Revision> {
        self.fences.get(&Fence::AclBootstrap).map(|fence| fence.modified)
    }

    /// What somebody may who has these grants, in this datacentre, where `default` holds for what no rule speaks of. What they name and is
    /// there no more gives nothing. A quarantined policy or role denies everything, since it could have denied anything.
    #[must_use]
    pub fn acl_rights(&self, grants: &AclGrants, datacenter: &Datacenter, default: Action) -> AclRights {
        if self.links_quarantined(grants) {
            return AclRights::new(Action::Deny, []);
        }
        let mut rules = Vec::new();
        let mut policies = BTreeSet::new();
        self.collect(grants, datacenter, &mut policies, &mut rules);
        for role in grants.roles.iter().filter_map(|role| self.acl_role(*role)) {
            self.collect(&role.value.grants, datacenter, &mut policies, &mut rules);
        }
        let policies = policies.into_iter().filter_map(|id| self.acl_policy(id)).map(|policy| &policy.value);
        let policies = policies.filter(|policy| counts_in(&policy.datacenters, datacenter));
        AclRights::new(default, policies.flat_map(|policy| &policy.rules).chain(&rules))
    }

    fn collect(
        &self,
        grants: &AclGrants,
        datacenter: &Datacenter,
        policies: &mut BTreeSet<Uuid>,
        rules: &mut Vec<AclRule>,
    ) {
        policies.extend(&grants.policies);
        let mut fill = |template: &str, name: &str| {
            rules.extend(Template::named(template).into_iter().flat_map(|template| template.rules(name)));
        };
        for identity in grants.services.iter().filter(|identity| counts_in(&identity.datacenters, datacenter)) {
            fill("builtin/service", identity.service.as_str());
        }
        for identity in grants.nodes.iter().filter(|identity| identity.datacenter == datacenter.as_str()) {
            fill("builtin/node", identity.node.as_str());
        }
        for templated in grants.templated.iter().filter(|templated| counts_in(&templated.datacenters, datacenter)) {
            fill(templated.template.as_str(), templated.name.as_deref().unwrap_or_default());
        }
    }
}

fn counts_in(datacenters: &[String], datacenter: &Datacenter) -> bool {
    datacenters.is_empty() || datacenters.iter().any(|name| name == datacenter.as_str())
}
