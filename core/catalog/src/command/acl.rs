//! Commands about access control.

use starling_model::{
    ANONYMOUS_TOKEN, AclAuthMethod, AclBindingRule, AclGrants, AclKey, AclName, AclPolicy, AclRecord, AclRole,
    AclToken, BuiltinPolicy, Change, Fence, Record, RecordKey, Revision, ServerId, UnixSeconds, Uuid,
};

use super::{Decision, GUARDED_CHANGES_MAX};
use crate::snapshot::Snapshot;

/// Tokens at a time; each takes some 500 bytes.
pub const ACL_TOKENS_MAX: usize = 65_536;

/// Of these, what all who log in have together: the rest is for those who run the mesh, who would be kept out of it otherwise.
pub const LOGIN_TOKENS_MAX: usize = 49_152;

/// Tokens that have come of one auth method at a time: a caller who logs in again and again stops those of its own method, and nobody else.
pub const METHOD_TOKENS_MAX: usize = 16_384;

/// Policies, and of everything else as many; a policy takes what its rules do.
pub const ACL_RECORDS_MAX: usize = 16_384;

/// Expired tokens that go in one transaction, which has conditions as well.
const SWEPT_MAX: usize = GUARDED_CHANGES_MAX - 1;

/// What a door asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum AclCommand {
    /// Makes the first token, once.
    Bootstrap(Box<AclToken>),
    /// Writes a record.
    Put {
        /// The record.
        record: AclRecord,
        /// Whether it is to be made, and not to be changed.
        is_new: bool,
    },
    /// Makes a token for somebody who has logged in by its auth method, which has to be what it was.
    Login {
        /// The token.
        token: Box<AclToken>,
        /// When the method was last changed, by what the caller was judged.
        method_at: Revision,
    },
    /// Removes a record.
    Delete(AclKey),
    /// Removes tokens that have expired.
    Sweep {
        /// The server that does so, which has to lead; `None` if there is no other.
        by: Option<ServerId>,
        /// When.
        now: UnixSeconds,
    },
}

/// Why a command is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AclRefusal {
    /// The first token was made.
    #[error("Permission denied: ACL bootstrap no longer allowed (reset index: {0})")]
    Bootstrapped(Revision),
    /// There is none such.
    #[error("there is no ACL {what} {id:?}")]
    Unknown {
        /// What was meant.
        what: &'static str,
        /// Its identifier or name.
        id: String,
    },
    /// There is one.
    #[error("there is an ACL {what} {id:?} already")]
    Exists {
        /// What was meant.
        what: &'static str,
        /// Its identifier or name.
        id: String,
    },
    /// It is built in.
    #[error("the ACL {what} {id:?} is built in, and is neither changed nor removed")]
    Builtin {
        /// What was meant.
        what: &'static str,
        /// Its identifier.
        id: String,
    },
    /// A token keeps its secret.
    #[error("Changing a token's SecretID is not permitted")]
    OtherSecret,
    /// The secret is another token's.
    #[error("a token with this SecretID exists already")]
    SecretTaken,
    /// What it names is not there.
    #[error("{what} {id:?} is not there")]
    UnknownLink {
        /// What was meant.
        what: &'static str,
        /// Its identifier or name.
        id: String,
    },
    /// The limit is reached.
    #[error("there are {0} of them, and no more may be; remove some")]
    TooMany(usize),
    /// The limit of those who have logged in is reached.
    #[error(
        "{most} tokens of {whom} live, and no more may: have callers log out, have tokens end by MaxTokenTTL, or remove some"
    )]
    TooManyLogins {
        /// Whose.
        whom: String,
        /// How many.
        most: usize,
    },
}

pub(super) fn decide(snapshot: &Snapshot, command: &AclCommand, decision: &mut Decision) -> Result<(), AclRefusal> {
    match command {
        AclCommand::Bootstrap(token) => {
            if let Some(at) = snapshot.acl_bootstrapped() {
                return Err(AclRefusal::Bootstrapped(at));
            }
            decision.see(snapshot, RecordKey::Fence(Fence::AclBootstrap));
            decision.put(snapshot, Record::Fence(Fence::AclBootstrap));
            decide_token(snapshot, token, true, decision)
        }
        AclCommand::Put { record, is_new } => match record {
            AclRecord::Token(token) => decide_token(snapshot, token, *is_new, decision),
            AclRecord::Policy(policy) => decide_policy(snapshot, policy, *is_new, decision),
            AclRecord::Role(role) => decide_role(snapshot, role, *is_new, decision),
            AclRecord::AuthMethod(method) => decide_method(snapshot, method, *is_new, decision),
            AclRecord::BindingRule(rule) => decide_binding_rule(snapshot, rule, *is_new, decision),
        },
        AclCommand::Login { token, method_at } => {
            let unknown = || AclRefusal::Unknown {
                what: "auth method",
                id: token.auth_method.as_ref().map(ToString::to_string).unwrap_or_default(),
            };
            let method = token.auth_method.as_ref().and_then(|name| snapshot.acl_auth_method(name));
            let method = method.filter(|method| method.modified == *method_at).ok_or_else(unknown)?;
            decision.see(snapshot, RecordKey::Acl(AclKey::AuthMethod(method.value.name.clone())));
            limit_logins(snapshot, &method.value.name)?;
            decide_token(snapshot, token, true, decision)
        }
        AclCommand::Delete(key) => decide_delete(snapshot, key, decision),
        AclCommand::Sweep { by, now } => {
            sweep(snapshot, *by, *now, decision);
            Ok(())
        }
    }
}

/// Refuses who logs in where too many have. Of those who do so at once a few may be more.
fn limit_logins(snapshot: &Snapshot, method: &AclName) -> Result<(), AclRefusal> {
    let (of_method, of_all) = snapshot.access.logged_in(method);
    let whom = match (of_method >= METHOD_TOKENS_MAX, of_all >= LOGIN_TOKENS_MAX) {
        (true, _) => (format!("auth method {:?}", method.as_str()), METHOD_TOKENS_MAX),
        (false, true) => ("all auth methods".to_owned(), LOGIN_TOKENS_MAX),
        (false, false) => return Ok(()),
    };
    Err(AclRefusal::TooManyLogins { whom: whom.0, most: whom.1 })
}

/// Sees a record that has to be there, or must not, and writes it.
fn put(
    snapshot: &Snapshot,
    record: AclRecord,
    is_new: bool,
    (what, id): (&'static str, String),
    decision: &mut Decision,
) -> Result<(), AclRefusal> {
    let key = RecordKey::Acl(record.key());
    // The anonymous token is there without a record.
    let is_there = snapshot.modified(&key).is_some() || key == RecordKey::Acl(AclKey::Token(ANONYMOUS_TOKEN));
    match (is_new, is_there) {
        (true, true) => return Err(AclRefusal::Exists { what, id }),
        (false, false) => return Err(AclRefusal::Unknown { what, id }),
        (true, false) | (false, true) => {}
    }
    decision.see(snapshot, key);
    decision.put(snapshot, Record::Acl(record));
    Ok(())
}

fn decide_token(
    snapshot: &Snapshot,
    token: &AclToken,
    is_new: bool,
    decision: &mut Decision,
) -> Result<(), AclRefusal> {
    let before = snapshot.acl_token(token.accessor).map(|before| &before.value);
    if !is_new && before.is_some_and(|before| before.secret != token.secret) {
        return Err(AclRefusal::OtherSecret);
    }
    if is_new && snapshot.acl_token_by_secret(&token.secret_hash).is_some() {
        return Err(AclRefusal::SecretTaken);
    }
    if is_new && snapshot.access.tokens.len() >= ACL_TOKENS_MAX {
        return Err(AclRefusal::TooMany(ACL_TOKENS_MAX));
    }
    check_links(snapshot, &token.grants)?;
    let named = ("token", token.accessor.to_string());
    put(snapshot, AclRecord::Token(Box::new(token.clone())), is_new, named, decision)
}

fn check_links(snapshot: &Snapshot, grants: &AclGrants) -> Result<(), AclRefusal> {
    let unknown = |what, id: &Uuid| AclRefusal::UnknownLink { what, id: id.to_string() };
    let policy = grants.policies.iter().find(|id| snapshot.acl_policy(**id).is_none());
    let role = grants.roles.iter().find(|id| snapshot.acl_role(**id).is_none());
    match (policy, role) {
        (Some(policy), _) => Err(unknown("policy", policy)),
        (None, Some(role)) => Err(unknown("role", role)),
        (None, None) => Ok(()),
    }
}

/// Of two who take a name at once one decides again.
fn take_name(snapshot: &Snapshot, is_taken_now: bool, decision: &mut Decision) {
    if is_taken_now && !decision.changes.is_empty() {
        decision.see(snapshot, RecordKey::Fence(Fence::AclNames));
        decision.changes.push(Change::Put(Record::Fence(Fence::AclNames)));
    }
}

fn decide_policy(
    snapshot: &Snapshot,
    policy: &AclPolicy,
    is_new: bool,
    decision: &mut Decision,
) -> Result<(), AclRefusal> {
    refuse_builtin(policy.id)?;
    let named = snapshot.acl_policy_named(policy.name.as_str());
    if named.is_some_and(|other| other.value.id != policy.id) {
        return Err(AclRefusal::Exists { what: "policy", id: policy.name.to_string() });
    }
    if is_new && snapshot.access.policies.len() >= ACL_RECORDS_MAX {
        return Err(AclRefusal::TooMany(ACL_RECORDS_MAX));
    }
    let what = ("policy", policy.id.to_string());
    put(snapshot, AclRecord::Policy(Box::new(policy.clone())), is_new, what, decision)?;
    take_name(snapshot, named.is_none(), decision);
    Ok(())
}

fn decide_role(snapshot: &Snapshot, role: &AclRole, is_new: bool, decision: &mut Decision) -> Result<(), AclRefusal> {
    let named = snapshot.acl_role_named(role.name.as_str());
    if named.is_some_and(|other| other.value.id != role.id) {
        return Err(AclRefusal::Exists { what: "role", id: role.name.to_string() });
    }
    if is_new && snapshot.access.roles.len() >= ACL_RECORDS_MAX {
        return Err(AclRefusal::TooMany(ACL_RECORDS_MAX));
    }
    check_links(snapshot, &role.grants)?;
    let what = ("role", role.id.to_string());
    put(snapshot, AclRecord::Role(Box::new(role.clone())), is_new, what, decision)?;
    take_name(snapshot, named.is_none(), decision);
    Ok(())
}

fn decide_method(
    snapshot: &Snapshot,
    method: &AclAuthMethod,
    is_new: bool,
    decision: &mut Decision,
) -> Result<(), AclRefusal> {
    if is_new && snapshot.access.methods.len() >= ACL_RECORDS_MAX {
        return Err(AclRefusal::TooMany(ACL_RECORDS_MAX));
    }
    let what = ("auth method", method.name.to_string());
    put(snapshot, AclRecord::AuthMethod(Box::new(method.clone())), is_new, what, decision)
}

fn decide_binding_rule(
    snapshot: &Snapshot,
    rule: &AclBindingRule,
    is_new: bool,
    decision: &mut Decision,
) -> Result<(), AclRefusal> {
    if snapshot.acl_auth_method(&rule.method).is_none() {
        return Err(AclRefusal::UnknownLink { what: "auth method", id: rule.method.to_string() });
    }
    if is_new && snapshot.access.binding_rules.len() >= ACL_RECORDS_MAX {
        return Err(AclRefusal::TooMany(ACL_RECORDS_MAX));
    }
    decision.see(snapshot, RecordKey::Acl(AclKey::AuthMethod(rule.method.clone())));
    let what = ("binding rule", rule.id.to_string());
    put(snapshot, AclRecord::BindingRule(Box::new(rule.clone())), is_new, what, decision)
}

fn refuse_builtin(id: Uuid) -> Result<(), AclRefusal> {
    if BuiltinPolicy::ALL.iter().any(|builtin| builtin.id() == id) {
        return Err(AclRefusal::Builtin { what: "policy", id: id.to_string() });
    }
    Ok(())
}

/// What names it keeps doing so, to no effect.
fn decide_delete(snapshot: &Snapshot, key: &AclKey, decision: &mut Decision) -> Result<(), AclRefusal> {
    match key {
        AclKey::Token(id) if *id == ANONYMOUS_TOKEN => {
            return Err(AclRefusal::Builtin { what: "token", id: id.to_string() });
        }
        AclKey::Policy(id) => refuse_builtin(*id)?,
        AclKey::Token(_) | AclKey::Role(_) | AclKey::AuthMethod(_) | AclKey::BindingRule(_) => {}
    }
    let key = RecordKey::Acl(key.clone());
    decision.see(snapshot, key.clone());
    decision.delete(snapshot, key.clone());
    if let RecordKey::Acl(AclKey::AuthMethod(method)) = &key {
        let of_method = snapshot.acl_binding_rules().filter(|rule| rule.value.method == *method);
        let gone = of_method.map(|rule| Change::Delete(RecordKey::Acl(AclKey::BindingRule(rule.value.id))));
        decision.changes.extend(gone);
        let tokens = snapshot.acl_tokens().filter(|token| token.value.auth_method.as_ref() == Some(method));
        let gone = tokens.map(|token| Change::Delete(RecordKey::Acl(AclKey::Token(token.value.accessor))));
        decision.changes.extend(gone);
        // Who has logged in meanwhile has seen that the method was there.
        decision.again = !decision.changes.is_empty();
    }
    Ok(())
}

/// Whoever does not lead sweeps nothing, also if it did when it decided to.
fn sweep(snapshot: &Snapshot, by: Option<ServerId>, now: UnixSeconds, decision: &mut Decision) {
    if by.is_some_and(|server| !snapshot.is_led_by(server)) {
        return;
    }
    let mut due = snapshot.access.tokens.values().filter(|token| token.value.has_expired(now));
    let swept = due.by_ref().take(SWEPT_MAX);
    let swept = swept.map(|token| Change::Delete(RecordKey::Acl(AclKey::Token(token.value.accessor))));
    decision.changes.extend(swept);
    decision.again = due.next().is_some();
    if by.is_some() && !decision.changes.is_empty() {
        decision.see(snapshot, RecordKey::Leader);
    }
}
