//! Access control as clients write it: rules in HCL or JSON, and the bodies of tokens, policies and roles.

mod body;

pub(crate) use body::fill;
pub use body::{
    BindingRuleBody, GrantsBody, LinkBody, PolicyBody, RoleBody, TokenBody, parse_auth_method, parse_binding_rule,
    parse_policy, parse_role, parse_token,
};

use serde_json::{Map, Value};
use starling_model::{Access, AclRule, Resource, RuleName};

use super::field::FieldError;
use super::hcl::parse_hcl;

/// Rules of one policy; Consul's own have a dozen.
const RULES_MAX: usize = 4_096;

/// Bytes of a policy's rules as they are written.
pub const RULES_BYTES_MAX: usize = 128 * 1024;

/// Bytes of a name in a rule; a key has some more, a name fewer.
const NAME_BYTES_MAX: usize = 1_024;

/// Reads rules: in JSON if the first letter is a brace, else in HCL.
///
/// # Errors
/// [`FieldError`] at the first rule that is wrong, with `path` in front.
pub fn parse_rules(path: &str, text: &str) -> Result<Vec<AclRule>, FieldError> {
    if text.len() > RULES_BYTES_MAX {
        let reason = format!("is {} bytes long; at most {RULES_BYTES_MAX} are allowed", text.len());
        return Err(FieldError::new(path, reason));
    }
    let value = if text.trim_start().starts_with('{') {
        serde_json::from_str(text).map_err(|error| FieldError::new(path, format!("is no JSON: {error}")))?
    } else {
        parse_hcl(text).map_err(|error| FieldError::new(path, error))?
    };
    let Value::Object(map) = value else { return Err(FieldError::new(path, "must be an object of rules")) };
    let mut rules = Vec::new();
    for (key, value) in &map {
        let path = format!("{path}.{key}");
        match resource_of(key) {
            Some((resource, false)) if !resource.has_names() => {
                let policy =
                    value.as_str().ok_or_else(|| FieldError::new(&path, "must be \"read\", \"write\" or \"deny\""))?;
                rules.push(AclRule::all(resource, access(&path, resource, policy)?));
            }
            Some((resource, is_prefix)) if resource.has_names() => {
                named(&path, resource, is_prefix, value, &mut rules)?
            }
            Some(_) | None => return Err(FieldError::new(&path, "is nothing that rules are about")),
        }
        if rules.len() > RULES_MAX {
            return Err(FieldError::new(&path, format!("there are more than {RULES_MAX} rules")));
        }
    }
    Ok(rules)
}

/// The resource of a word, and whether rules under it are for beginnings of names.
fn resource_of(key: &str) -> Option<(Resource, bool)> {
    let (word, is_prefix) = key.strip_suffix("_prefix").map_or((key, false), |word| (word, true));
    let known = Resource::ALL.into_iter().filter(|resource| *resource != Resource::Intentions);
    known.into_iter().find(|resource| resource.as_str() == word).map(|resource| (resource, is_prefix))
}

/// Rules by name: an object of them, or as HCL has blocks of the same word, a list of such objects.
fn named(
    path: &str,
    resource: Resource,
    is_prefix: bool,
    value: &Value,
    rules: &mut Vec<AclRule>,
) -> Result<(), FieldError> {
    let by_name = match value {
        Value::Object(map) => std::slice::from_ref(map).to_vec(),
        Value::Array(list) => list.iter().filter_map(Value::as_object).cloned().collect::<Vec<_>>(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            return Err(FieldError::new(path, "must name what it is about, as in: key \"a\" { policy = \"read\" }"));
        }
    };
    for (name, rule) in by_name.iter().flatten() {
        let path = format!("{path}.{name:?}");
        if name.len() > NAME_BYTES_MAX {
            let reason = format!("is {} bytes long; at most {NAME_BYTES_MAX} are allowed", name.len());
            return Err(FieldError::new(&path, reason));
        }
        let blocks: Vec<&Map<String, Value>> = match rule {
            Value::Object(block) => vec![block],
            Value::Array(list) if list.iter().all(Value::is_object) => {
                list.iter().filter_map(Value::as_object).collect()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return Err(FieldError::new(&path, "must have a policy, as in: { policy = \"read\" }"));
            }
        };
        let name = if is_prefix { RuleName::Prefix(name.clone()) } else { RuleName::Exact(name.clone()) };
        for block in blocks {
            of_block(&path, resource, &name, block, rules)?;
        }
    }
    Ok(())
}

fn of_block(
    path: &str,
    resource: Resource,
    name: &RuleName,
    block: &Map<String, Value>,
    rules: &mut Vec<AclRule>,
) -> Result<(), FieldError> {
    let word = |field: &str| match block.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(_) => Err(FieldError::new(format!("{path}.{field}"), "must be a string")),
    };
    if let Some(other) =
        block.keys().find(|key| !(*key == "policy" || *key == "intentions" && resource == Resource::Service))
    {
        let reason = if other == "sentinel" { "is a Consul Enterprise feature" } else { "unknown field" };
        return Err(FieldError::new(format!("{path}.{other}"), reason));
    }
    let intentions = word("intentions")?;
    let policy = match word("policy")? {
        Some(policy) => Some(access(&format!("{path}.policy"), resource, policy)?),
        None if intentions.is_some() => None,
        None => return Err(FieldError::new(format!("{path}.policy"), "must be given")),
    };
    rules.extend(policy.map(|policy| AclRule::new(resource, name.clone(), policy)));
    if resource == Resource::Service {
        let access = match (intentions, policy) {
            (Some(text), _) => access(&format!("{path}.intentions"), Resource::Intentions, text)?,
            // Who may see a service may see who may call it.
            (None, Some(Access::Read | Access::List | Access::Write)) => Access::Read,
            (None, Some(Access::Deny) | None) => Access::Deny,
        };
        rules.push(AclRule::new(Resource::Intentions, name.clone(), access));
    }
    Ok(())
}

fn access(path: &str, resource: Resource, text: &str) -> Result<Access, FieldError> {
    match text {
        "read" => Ok(Access::Read),
        "write" => Ok(Access::Write),
        "deny" => Ok(Access::Deny),
        "list" if resource == Resource::Key => Ok(Access::List),
        other => {
            let list = if resource == Resource::Key { "\"list\", " } else { "" };
            Err(FieldError::new(path, format!("{other:?} is not \"read\", {list}\"write\" or \"deny\"")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        let line = |rule: &AclRule| match &rule.name {
            RuleName::Exact(name) => format!("{} {name} {}", rule.resource, rule.access),
            RuleName::Prefix(name) => format!("{} {name}* {}", rule.resource, rule.access),
        };
        let mut lines: Vec<_> = parse_rules("Rules", text).expect(text).iter().map(line).collect();
        lines.sort();
        lines
    }

    #[test]
    fn rules_are_read_in_both_languages() {
        let hcl = r#"
            acl = "read"
            key_prefix "" { policy = "list" }
            key "a/b" { policy = "deny" }
            key "c" { policy = "write" }
            service "web" { policy = "write", intentions = "write" }
            service_prefix "db" { policy = "read" }
            service "no" { policy = "deny" }
            node_prefix "" { policy = "read" }
        "#;
        let json = r#"{"acl": "read", "key_prefix": {"": {"policy": "list"}},
            "key": {"a/b": {"policy": "deny"}, "c": {"policy": "write"}},
            "service": [{"web": {"policy": "write", "intentions": "write"}}, {"no": {"policy": "deny"}}],
            "service_prefix": {"db": {"policy": "read"}}, "node_prefix": {"": {"policy": "read"}}}"#;
        let expected = [
            "acl * read",
            "intentions db* read",
            "intentions no deny",
            "intentions web write",
            "key * list",
            "key a/b deny",
            "key c write",
            "node * read",
            "service db* read",
            "service no deny",
            "service web write",
        ];
        assert_eq!(lines(hcl), expected);
        assert_eq!(lines(json), expected);
        assert!(lines("").is_empty());
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_place() {
        for (text, reason) in [
            ("colour = \"red\"", "Rules.colour: is nothing that rules are about"),
            ("acl_prefix \"\" { policy = \"read\" }", "Rules.acl_prefix: is nothing that rules are about"),
            ("intentions \"\" { policy = \"read\" }", "Rules.intentions: is nothing that rules are about"),
            ("acl = \"list\"", "Rules.acl: \"list\" is not \"read\", \"write\" or \"deny\""),
            (
                "key \"a\" { policy = \"rw\" }",
                "Rules.key.\"a\".policy: \"rw\" is not \"read\", \"list\", \"write\" or \"deny\"",
            ),
            ("key \"a\" { }", "Rules.key.\"a\".policy: must be given"),
            ("key \"a\" { policy = 1 }", "Rules.key.\"a\".policy: must be a string"),
            ("key = \"read\"", "Rules.key: must name what it is about, as in: key \"a\" { policy = \"read\" }"),
            ("node \"a\" { intentions = \"read\" }", "Rules.node.\"a\".intentions: unknown field"),
            (
                "key \"a\" { policy = \"read\" sentinel { code = \"\" } }",
                "Rules.key.\"a\".sentinel: is a Consul Enterprise feature",
            ),
        ] {
            let error = parse_rules("Rules", text).expect_err(text);
            assert_eq!(error.to_string(), reason, "{text}");
        }
        for text in ["{", "key \"a\" {", "acl", "[1]", "{\"key\": [1]}"] {
            let read = parse_rules("Rules", text);
            assert!(read.is_err() || read.is_ok_and(|rules| rules.is_empty()), "{text}");
        }
        assert!(parse_rules("Rules", &"#".repeat(RULES_BYTES_MAX + 1)).is_err());
    }
}
