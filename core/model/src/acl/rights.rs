//! What somebody may: rules, and which of them counts.
//!
//! A rule for the very name counts before those for beginnings of it, and of these the longest. Where several policies have the same rule
//! with different access, deny counts before write, write before list, and list before read. Where no rule speaks, the default of the mesh does.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use crate::intention::Action;

/// What rules are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// Access control itself; has no names.
    Acl,
    /// Agents, by the names of their nodes.
    Agent,
    /// Events, by name.
    Event,
    /// Intentions, by destination.
    Intentions,
    /// Entries of the key-value store.
    Key,
    /// The keys of gossip; has no names.
    Keyring,
    /// What holds for the whole mesh; has no names.
    Mesh,
    /// Nodes.
    Node,
    /// What operators do; has no names.
    Operator,
    /// Other clusters; has no names.
    Peering,
    /// Prepared queries.
    Query,
    /// Services.
    Service,
    /// Sessions, by node.
    Session,
}

impl Resource {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Acl,
        Self::Agent,
        Self::Event,
        Self::Intentions,
        Self::Key,
        Self::Keyring,
        Self::Mesh,
        Self::Node,
        Self::Operator,
        Self::Peering,
        Self::Query,
        Self::Service,
        Self::Session,
    ];

    /// The word of rules and refusals.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Acl => "acl",
            Self::Agent => "agent",
            Self::Event => "event",
            Self::Intentions => "intentions",
            Self::Key => "key",
            Self::Keyring => "keyring",
            Self::Mesh => "mesh",
            Self::Node => "node",
            Self::Operator => "operator",
            Self::Peering => "peering",
            Self::Query => "query",
            Self::Service => "service",
            Self::Session => "session",
        }
    }

    /// Whether rules about it are about names of it.
    #[must_use]
    pub fn has_names(self) -> bool {
        !matches!(self, Self::Acl | Self::Keyring | Self::Mesh | Self::Operator | Self::Peering)
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a rule lets somebody do. In the order in which one counts before another, the last first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// To read.
    Read,
    /// To read, and to list keys.
    List,
    /// To read and to write.
    Write,
    /// Nothing.
    Deny,
}

impl Access {
    /// The word of rules and refusals.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::List => "list",
            Self::Write => "write",
            Self::Deny => "deny",
        }
    }

    /// Whether it is enough for what is wanted.
    #[must_use]
    pub fn covers(self, wanted: Self) -> bool {
        self != Self::Deny && self >= wanted
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which names a rule is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleName {
    /// This one.
    Exact(String),
    /// Those that begin so; the empty text for all of them, and for what has no names.
    Prefix(String),
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AclRule {
    /// About what.
    pub resource: Resource,
    /// About which of them.
    pub name: RuleName,
    /// What it lets somebody do.
    pub access: Access,
}

impl AclRule {
    /// A rule.
    #[must_use]
    pub fn new(resource: Resource, name: RuleName, access: Access) -> Self {
        Self { resource, name, access }
    }

    /// A rule about all of a resource.
    #[must_use]
    pub fn all(resource: Resource, access: Access) -> Self {
        Self::new(resource, RuleName::Prefix(String::new()), access)
    }

    /// A rule about one name.
    #[must_use]
    pub fn exact(resource: Resource, name: &str, access: Access) -> Self {
        Self::new(resource, RuleName::Exact(name.to_owned()), access)
    }
}

type Names = BTreeMap<String, Access>;

/// What somebody may, all rules taken together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AclRights {
    exact: BTreeMap<Resource, Names>,
    prefix: BTreeMap<Resource, Names>,
    default: Action,
}

impl AclRights {
    /// What these rules come to where the mesh allows or denies what none of them speaks of.
    #[must_use]
    pub fn new<'r>(default: Action, rules: impl IntoIterator<Item = &'r AclRule>) -> Self {
        let mut rights = Self { exact: BTreeMap::new(), prefix: BTreeMap::new(), default };
        for rule in rules {
            let (names, name) = match &rule.name {
                RuleName::Exact(name) => (&mut rights.exact, name),
                RuleName::Prefix(prefix) => (&mut rights.prefix, prefix),
            };
            let access = names.entry(rule.resource).or_default().entry(name.clone()).or_insert(rule.access);
            *access = rule.access.max(*access);
        }
        rights
    }

    /// Everything; what holds where access is not controlled.
    #[must_use]
    pub fn everything() -> Self {
        let rules = Resource::ALL.map(|resource| AclRule::all(resource, Access::Write));
        Self::new(Action::Deny, &rules)
    }

    /// The rules, each once; by them the same rights can be made elsewhere.
    #[must_use]
    pub fn rules(&self) -> Vec<AclRule> {
        let exact = self.exact.iter().flat_map(|(resource, names)| {
            names.iter().map(|(name, access)| AclRule::new(*resource, RuleName::Exact(name.clone()), *access))
        });
        let prefix = self.prefix.iter().flat_map(|(resource, names)| {
            names.iter().map(|(name, access)| AclRule::new(*resource, RuleName::Prefix(name.clone()), *access))
        });
        exact.chain(prefix).collect()
    }

    /// Whether `wanted` may be done with `name`; of a resource without names it is empty.
    #[must_use]
    pub fn allows(&self, resource: Resource, name: &str, wanted: Access) -> bool {
        self.judged(resource, self.rule_for(resource, name), wanted)
    }

    /// Whether it may be done with everything that begins with `prefix`, whatever there may come to be.
    #[must_use]
    pub fn allows_under(&self, resource: Resource, prefix: &str, wanted: Access) -> bool {
        let beneath = |rules: &BTreeMap<Resource, Names>| {
            let from = (Bound::Included(prefix), Bound::Unbounded);
            let names = rules.get(&resource).into_iter().flat_map(|names| names.range::<str, _>(from));
            names.take_while(|(name, _)| name.starts_with(prefix)).all(|(_, access)| access.covers(wanted))
        };
        let around = self.longest_prefix(resource, prefix).or_else(|| self.by_operator(resource));
        self.judged(resource, around, wanted) && beneath(&self.exact) && beneath(&self.prefix)
    }

    /// Whether it may be done with anything at all.
    #[must_use]
    pub fn allows_something(&self, resource: Resource, wanted: Access) -> bool {
        let some = |rules: &BTreeMap<Resource, Names>| {
            rules.get(&resource).is_some_and(|names| names.values().any(|access| access.covers(wanted)))
        };
        let of_operator = self.by_operator(resource).is_some_and(|access| access.covers(wanted));
        // What a rule says of all of them leaves nothing that no rule speaks of.
        let left_open = self.is_open(resource) && self.longest_prefix(resource, "").is_none();
        left_open || some(&self.exact) || some(&self.prefix) || of_operator
    }

    /// Whether everything may be done.
    #[must_use]
    pub fn is_management(&self) -> bool {
        Resource::ALL.into_iter().all(|resource| self.allows_under(resource, "", Access::Write))
    }

    fn judged(&self, resource: Resource, rule: Option<Access>, wanted: Access) -> bool {
        rule.map_or_else(|| self.is_open(resource), |access| access.covers(wanted))
    }

    /// Whether everything may be done of which no rule speaks. Never with access control itself: whoever makes tokens may everything.
    fn is_open(&self, resource: Resource) -> bool {
        self.default == Action::Allow && resource != Resource::Acl
    }

    fn rule_for(&self, resource: Resource, name: &str) -> Option<Access> {
        let exact = self.exact.get(&resource).and_then(|names| names.get(name).copied());
        exact.or_else(|| self.longest_prefix(resource, name)).or_else(|| self.by_operator(resource))
    }

    /// The mesh and its peerings are the operator's where nothing is said of them.
    fn by_operator(&self, resource: Resource) -> Option<Access> {
        let is_operators = matches!(resource, Resource::Mesh | Resource::Peering);
        is_operators.then(|| self.longest_prefix(Resource::Operator, "")).flatten()
    }

    fn longest_prefix(&self, resource: Resource, name: &str) -> Option<Access> {
        let names = self.prefix.get(&resource)?;
        let mut beginning = name;
        loop {
            // The greatest that is no greater than it: it is a beginning, or has one in common with it that is shorter.
            let to = (Bound::Unbounded, Bound::Included(beginning));
            let (found, access) = names.range::<str, _>(to).next_back()?;
            if name.starts_with(found.as_str()) {
                return Some(*access);
            }
            let common = beginning.char_indices().zip(found.chars()).find(|((_, a), b)| a != b).map(|((at, _), _)| at);
            beginning = &beginning[..common.unwrap_or(found.len().min(beginning.len()))];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(resource: Resource, name: &str, access: Access) -> AclRule {
        match name.strip_suffix('*') {
            Some(prefix) => AclRule::new(resource, RuleName::Prefix(prefix.to_owned()), access),
            None => AclRule::exact(resource, name, access),
        }
    }

    fn rights(default: Action, rules: &[(&str, Access)]) -> AclRights {
        let rules: Vec<_> = rules.iter().map(|(name, access)| rule(Resource::Key, name, *access)).collect();
        AclRights::new(default, &rules)
    }

    #[test]
    fn the_name_counts_before_beginnings_and_the_longest_of_them_before_others() {
        use Access::{Deny, List, Read, Write};
        let rights = rights(
            Action::Deny,
            &[("*", Read), ("a*", Deny), ("app/*", Write), ("app/secret", Deny), ("app/s*", List), ("zé*", Write)],
        );
        for (name, read, write) in [
            ("x", true, false),
            ("", true, false),
            ("a", false, false),
            ("ab", false, false),
            ("app", false, false),
            ("app/", true, true),
            ("app/x", true, true),
            ("app/secret", false, false),
            ("app/secrets", true, false),
            ("app/t", true, true),
            ("zé/1", true, true),
            ("zf", true, false),
        ] {
            assert_eq!(rights.allows(Resource::Key, name, Read), read, "{name}");
            assert_eq!(rights.allows(Resource::Key, name, Write), write, "{name}");
        }
        assert!(!rights.allows(Resource::Service, "x", Read), "of another resource nothing was said");
    }

    #[test]
    fn it_is_the_longest_beginning_by_trying_all() {
        let prefixes = ["", "a", "ab", "abc", "abd", "b", "ba", "bb", "é", "éa"];
        for chosen in 0..(1_u32 << prefixes.len()) {
            let has = |at: usize| chosen & (1 << at) != 0;
            let access = |at: usize| if at.is_multiple_of(2) { Access::Read } else { Access::Write };
            let rules: Vec<_> = (0..prefixes.len())
                .filter(|at| has(*at))
                .map(|at| AclRule::new(Resource::Key, RuleName::Prefix(prefixes[at].to_owned()), access(at)))
                .collect();
            let rights = AclRights::new(Action::Deny, &rules);
            for name in ["", "a", "ab", "abz", "abcd", "aa", "bab", "c", "éab", "è"] {
                let all = (0..prefixes.len()).filter(|at| has(*at) && name.starts_with(prefixes[*at]));
                let expected = all.max_by_key(|at| prefixes[*at].len()).map(access);
                assert_eq!(rights.longest_prefix(Resource::Key, name), expected, "{chosen:b} {name}");
            }
        }
    }

    #[test]
    fn of_the_same_rule_deny_counts_before_write_before_list_before_read() {
        use Access::{Deny, List, Read, Write};
        for (said, read, list, write) in [
            (&[Read, Write][..], true, true, true),
            (&[Write, Deny][..], false, false, false),
            (&[Deny, Read][..], false, false, false),
            (&[Read, List][..], true, true, false),
            (&[List, Write][..], true, true, true),
            (&[Read][..], true, false, false),
        ] {
            let rules: Vec<_> = said.iter().map(|access| ("a", *access)).collect();
            let rights = rights(Action::Allow, &rules);
            let found = [Read, List, Write].map(|wanted| rights.allows(Resource::Key, "a", wanted));
            assert_eq!(found, [read, list, write], "{said:?}");
        }
    }

    #[test]
    fn where_nothing_is_said_the_default_holds() {
        for default in [Action::Allow, Action::Deny] {
            let rights = rights(default, &[("a*", Access::Read)]);
            assert_eq!(rights.allows(Resource::Key, "b", Access::Write), default == Action::Allow);
            assert!(!rights.allows(Resource::Key, "a", Access::Write));
            assert!(!rights.is_management());
            for wanted in [Access::Read, Access::Write] {
                assert!(!rights.allows(Resource::Acl, "", wanted) && !rights.allows_something(Resource::Acl, wanted));
                assert_eq!(rights.allows(Resource::Operator, "", wanted), default == Action::Allow);
            }
        }
        assert!(AclRights::everything().is_management());
        let nothing = rights(Action::Allow, &[("*", Access::Deny)]);
        assert!(!nothing.allows_something(Resource::Key, Access::Read));
        assert!(nothing.allows_something(Resource::Node, Access::Read));
        assert!(rights(Action::Allow, &[("a", Access::Deny)]).allows_something(Resource::Key, Access::Read));
    }

    #[test]
    fn what_is_under_a_beginning_may_be_written_if_nothing_there_speaks_against_it() {
        let rights = rights(Action::Deny, &[("a/*", Access::Write), ("a/b/*", Access::Read), ("a/c/d", Access::Deny)]);
        for (prefix, allowed) in [
            ("a/", false),
            ("a/b", false),
            ("a/b/", false),
            ("a/c/", false),
            ("a/c/e", true),
            ("a/d/", true),
            ("", false),
        ] {
            assert_eq!(rights.allows_under(Resource::Key, prefix, Access::Write), allowed, "{prefix}");
        }
    }

    #[test]
    fn the_mesh_is_the_operators_unless_something_is_said_of_it() {
        let operator = AclRule::all(Resource::Operator, Access::Write);
        let rights = AclRights::new(Action::Deny, [&operator]);
        assert!(rights.allows(Resource::Mesh, "", Access::Write) && rights.allows(Resource::Peering, "", Access::Read));
        assert!(!rights.allows(Resource::Keyring, "", Access::Read));
        let mesh = AclRule::all(Resource::Mesh, Access::Read);
        assert!(!AclRights::new(Action::Deny, [&operator, &mesh]).allows(Resource::Mesh, "", Access::Write));
    }

    #[test]
    fn rights_are_made_anew_from_their_rules() {
        let rights = rights(Action::Deny, &[("*", Access::Read), ("a", Access::Write), ("a", Access::Deny)]);
        assert_eq!(AclRights::new(Action::Deny, &rights.rules()), rights);
    }
}
