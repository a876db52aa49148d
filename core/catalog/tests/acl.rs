//! Commands about access control, and what tokens come to.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use starling_catalog::{
    AclCommand, AclRefusal, Command, LOGIN_TOKENS_MAX, METHOD_TOKENS_MAX, Refusal, Snapshot, decide,
};
use starling_model::{
    ANONYMOUS_TOKEN, Access, AclAuthMethod, AclBindingRule, AclGrants, AclKey, AclName, AclPolicy, AclRecord, AclRole,
    AclRule, AclSecret, AclToken, Action, AuthMethodConfig, BuiltinPolicy, Change, Datacenter, Fence, Record,
    RecordKey, Resource, Revision, SecretHash, UnixSeconds, Uuid,
};

struct Mesh(Snapshot);

impl Mesh {
    fn run(&mut self, command: AclCommand) -> Result<Vec<Change>, AclRefusal> {
        match decide(&self.0, &Command::Acl(command)) {
            Ok(decision) => {
                let next = Revision(self.0.revision().0 + 1);
                self.0 = self.0.apply(next, &decision.changes).snapshot;
                Ok(decision.changes)
            }
            Err(Refusal::Acl(refusal)) => Err(refusal),
            Err(other) => panic!("{other}"),
        }
    }

    fn make(&mut self, record: AclRecord) -> Result<Vec<Change>, AclRefusal> {
        self.run(AclCommand::Put { record, is_new: true })
    }

    fn rights(&self, grants: &AclGrants, datacenter: &str) -> starling_model::AclRights {
        self.0.acl_rights(grants, &Datacenter::new(datacenter).unwrap(), Action::Deny)
    }
}

fn id(number: u128) -> Uuid {
    Uuid::from_random(number)
}

fn token(number: u8, grants: AclGrants) -> AclToken {
    AclToken {
        accessor: id(number.into()),
        secret: AclSecret::new(&format!("s{number}")).unwrap(),
        secret_hash: SecretHash([number; 32]),
        description: String::new(),
        grants,
        local: false,
        created_at: UnixSeconds(1),
        expires_at: None,
        ttl_s: None,
        auth_method: None,
    }
}

fn policy(number: u128, name: &str, key: &str) -> AclPolicy {
    AclPolicy {
        id: id(number),
        name: AclName::new(name).unwrap(),
        description: String::new(),
        text: String::new(),
        rules: vec![AclRule::exact(Resource::Key, key, Access::Write)],
        datacenters: Vec::new(),
    }
}

fn put_token(token: &AclToken) -> AclRecord {
    AclRecord::Token(Box::new(token.clone()))
}

fn put_policy(policy: &AclPolicy) -> AclRecord {
    AclRecord::Policy(Box::new(policy.clone()))
}

#[test]
fn the_first_token_is_made_once_and_of_two_at_once_one_is() {
    let mut mesh = Mesh(Snapshot::default());
    let first = Box::new(token(1, AclGrants::default()));
    let decision = decide(&mesh.0, &Command::Acl(AclCommand::Bootstrap(first.clone()))).unwrap();
    let fence = RecordKey::Fence(Fence::AclBootstrap);
    assert!(decision.seen.iter().any(|seen| seen.key == fence && seen.modified.is_none()), "the other loses by this");
    mesh.run(AclCommand::Bootstrap(first)).unwrap();
    assert!(mesh.0.acl_token_by_secret(&SecretHash([1; 32])).is_some());
    let second = mesh.run(AclCommand::Bootstrap(Box::new(token(2, AclGrants::default()))));
    assert_eq!(second, Err(AclRefusal::Bootstrapped(Revision(1))));
}

#[test]
fn a_token_is_found_by_its_secret_as_long_as_it_is_there() {
    let mut mesh = Mesh(Snapshot::default());
    let made = token(1, AclGrants::default());
    mesh.make(put_token(&made)).unwrap();
    let found = |mesh: &Mesh| mesh.0.acl_token_by_secret(&SecretHash([1; 32])).map(|token| token.value.accessor);
    assert_eq!(found(&mesh), Some(made.accessor));
    let taken = AclToken { accessor: id(9), ..made.clone() };
    assert_eq!(mesh.make(put_token(&taken)), Err(AclRefusal::SecretTaken));
    let other = AclToken { secret: AclSecret::new("other").unwrap(), ..made.clone() };
    let changed = mesh.run(AclCommand::Put { record: put_token(&other), is_new: false });
    assert_eq!(changed, Err(AclRefusal::OtherSecret));
    let reloaded = Mesh(Snapshot::load(Revision(9), mesh.0.records()));
    assert_eq!(found(&reloaded), Some(made.accessor));
    mesh.run(AclCommand::Delete(AclKey::Token(made.accessor))).unwrap();
    assert_eq!(found(&mesh), None);
    assert_eq!(mesh.run(AclCommand::Delete(AclKey::Token(made.accessor))), Ok(Vec::new()), "it is gone already");
}

#[test]
fn what_is_built_in_is_there_and_stays() {
    let mut mesh = Mesh(Snapshot::default());
    assert_eq!(mesh.0.acl_tokens().count(), 1);
    assert_eq!(mesh.0.acl_policies().count(), 2);
    let management = BuiltinPolicy::GlobalManagement;
    let grants = AclGrants { policies: vec![management.id()], ..AclGrants::default() };
    assert!(mesh.rights(&grants, "dc1").is_management());
    let reading = AclGrants { policies: vec![BuiltinPolicy::GlobalReadOnly.id()], ..AclGrants::default() };
    let rights = mesh.rights(&reading, "dc1");
    assert!(Resource::ALL.iter().all(|resource| rights.allows(*resource, "x", Access::Read)));
    assert!(Resource::ALL.iter().all(|resource| !rights.allows(*resource, "x", Access::Write)));
    for key in [AclKey::Policy(management.id()), AclKey::Token(ANONYMOUS_TOKEN)] {
        assert!(matches!(mesh.run(AclCommand::Delete(key)), Err(AclRefusal::Builtin { .. })));
    }
    let changed = AclPolicy { rules: Vec::new(), ..management.policy() };
    assert!(matches!(
        mesh.run(AclCommand::Put { record: put_policy(&changed), is_new: false }),
        Err(AclRefusal::Builtin { .. })
    ));
    assert!(matches!(mesh.make(put_policy(&policy(5, "global-management", "a"))), Err(AclRefusal::Exists { .. })));
    // The anonymous token is changed where it stands, and stays one.
    let anonymous = AclToken { grants: reading, ..mesh.0.acl_token(ANONYMOUS_TOKEN).unwrap().value.clone() };
    mesh.run(AclCommand::Put { record: put_token(&anonymous), is_new: false }).unwrap();
    assert_eq!(mesh.0.acl_tokens().count(), 1);
    assert!(mesh.0.acl_token_by_secret(&anonymous.secret_hash).is_none(), "nobody finds it by a hash");
}

#[test]
fn names_are_taken_once_also_by_two_at_once() {
    let mut mesh = Mesh(Snapshot::default());
    let first = policy(1, "a", "k");
    let decision =
        decide(&mesh.0, &Command::Acl(AclCommand::Put { record: put_policy(&first), is_new: true })).unwrap();
    assert!(decision.seen.iter().any(|seen| seen.key == RecordKey::Fence(Fence::AclNames)));
    assert!(decision.changes.contains(&Change::Put(Record::Fence(Fence::AclNames))));
    mesh.make(put_policy(&first)).unwrap();
    assert!(matches!(mesh.make(put_policy(&policy(2, "a", "k"))), Err(AclRefusal::Exists { .. })));
    // A name that is given up is free.
    let renamed = AclPolicy { name: AclName::new("b").unwrap(), ..first };
    mesh.run(AclCommand::Put { record: put_policy(&renamed), is_new: false }).unwrap();
    mesh.make(put_policy(&policy(2, "a", "k"))).unwrap();
    assert_eq!(mesh.0.acl_policy_named("b").unwrap().value.id, id(1));
    assert_eq!(mesh.0.acl_policy_named("a").unwrap().value.id, id(2));
}

#[test]
fn a_token_has_what_its_policies_and_roles_have_where_they_count_and_as_long_as_they_are_there() {
    let mut mesh = Mesh(Snapshot::default());
    let own = policy(1, "own", "own");
    let by_role = policy(2, "by-role", "by-role");
    let elsewhere = AclPolicy { datacenters: vec!["dc9".to_owned()], ..policy(3, "elsewhere", "elsewhere") };
    for policy in [&own, &by_role, &elsewhere] {
        mesh.make(put_policy(policy)).unwrap();
    }
    let role = AclRole {
        id: id(4),
        name: AclName::of_role("r").unwrap(),
        description: String::new(),
        grants: AclGrants { policies: vec![by_role.id], ..AclGrants::default() },
    };
    mesh.make(AclRecord::Role(Box::new(role.clone()))).unwrap();
    let grants = AclGrants { policies: vec![own.id, elsewhere.id], roles: vec![role.id], ..AclGrants::default() };
    mesh.make(put_token(&token(1, grants.clone()))).unwrap();
    let may = |mesh: &Mesh, datacenter: &str| {
        let rights = mesh.rights(&grants, datacenter);
        ["own", "by-role", "elsewhere"].map(|key| rights.allows(Resource::Key, key, Access::Write))
    };
    assert_eq!(may(&mesh, "dc1"), [true, true, false]);
    assert_eq!(may(&mesh, "dc9"), [true, true, true]);
    mesh.run(AclCommand::Delete(AclKey::Policy(by_role.id))).unwrap();
    assert_eq!(may(&mesh, "dc1"), [true, false, false]);
    mesh.run(AclCommand::Delete(AclKey::Role(role.id))).unwrap();
    mesh.run(AclCommand::Delete(AclKey::Policy(own.id))).unwrap();
    assert_eq!(may(&mesh, "dc1"), [false, false, false]);
    assert!(matches!(mesh.make(put_token(&token(2, grants))), Err(AclRefusal::UnknownLink { .. })));
}

#[test]
fn expired_tokens_go_and_an_auth_method_takes_its_rules_along() {
    let mut mesh = Mesh(Snapshot::default());
    let short = AclToken { expires_at: Some(UnixSeconds(10)), ..token(1, AclGrants::default()) };
    assert!(!short.has_expired(UnixSeconds(9)) && short.has_expired(UnixSeconds(10)));
    mesh.make(put_token(&short)).unwrap();
    mesh.make(put_token(&token(2, AclGrants::default()))).unwrap();
    let sweep = |now| AclCommand::Sweep { by: None, now: UnixSeconds(now) };
    assert_eq!(mesh.run(sweep(9)), Ok(Vec::new()));
    mesh.run(sweep(10)).unwrap();
    assert!(mesh.0.acl_token(short.accessor).is_none() && mesh.0.acl_token(id(2)).is_some());

    let name = AclName::new("k8s").unwrap();
    let rule = AclBindingRule {
        id: id(7),
        description: String::new(),
        method: name.clone(),
        selector: String::new(),
        bind_type: "service".to_owned(),
        bind_name: "web".to_owned(),
        bind_vars: None,
    };
    let rule = AclRecord::BindingRule(Box::new(rule));
    assert!(matches!(mesh.make(rule.clone()), Err(AclRefusal::UnknownLink { .. })));
    let method = AclAuthMethod {
        name: name.clone(),
        kind: "kubernetes".to_owned(),
        display_name: String::new(),
        description: String::new(),
        max_token_ttl_ns: 0,
        token_locality: "local".to_owned(),
        token_name_format: String::new(),
        config: AuthMethodConfig::default(),
    };
    mesh.make(AclRecord::AuthMethod(Box::new(method))).unwrap();
    mesh.make(rule).unwrap();
    mesh.run(AclCommand::Delete(AclKey::AuthMethod(name))).unwrap();
    assert_eq!(mesh.0.acl_binding_rules().count(), 0);
}

#[test]
fn records_survive_the_store() {
    let mut mesh = Mesh(Snapshot::default());
    mesh.make(put_policy(&policy(1, "a", "k"))).unwrap();
    let grants = AclGrants { policies: vec![id(1)], ..AclGrants::default() };
    mesh.make(put_token(&AclToken { expires_at: Some(UnixSeconds(10)), ..token(1, grants) })).unwrap();
    for record in mesh.0.records() {
        let key = record.value.key();
        let stored = Record::decode(&RecordKey::decode(&key.encode()).unwrap(), &record.value.encode()).unwrap();
        assert_eq!(stored, record.value);
    }
}

#[test]
fn who_logs_in_fills_its_own_share_and_leaves_room_for_those_who_run_the_mesh() {
    let mut mesh = Mesh(Snapshot::default());
    let method = |name: &str| AclAuthMethod {
        name: AclName::new(name).unwrap(),
        kind: "jwt".to_owned(),
        display_name: String::new(),
        description: String::new(),
        max_token_ttl_ns: 0,
        token_locality: "local".to_owned(),
        token_name_format: String::new(),
        config: AuthMethodConfig(serde_json::Map::new()),
    };
    let methods = ["a", "b", "c", "d"];
    for name in methods {
        mesh.make(AclRecord::AuthMethod(Box::new(method(name)))).unwrap();
    }
    let mut number = 0_u64;
    let mut made = |method: Option<&str>| {
        number += 1;
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&number.to_be_bytes());
        let method = method.map(|name| AclName::new(name).unwrap());
        AclToken {
            accessor: id(u128::from(number)),
            secret_hash: SecretHash(hash),
            auth_method: method,
            ..token(1, AclGrants::default())
        }
    };
    let login = |mesh: &mut Mesh, token: AclToken| {
        let method_at = mesh.0.acl_auth_method(token.auth_method.as_ref().unwrap()).unwrap().modified;
        mesh.run(AclCommand::Login { token: Box::new(token), method_at })
    };
    // In one step, as the limit and not the way to it is the matter.
    let fill = |mesh: &mut Mesh, tokens: Vec<AclToken>| {
        let changes: Vec<_> =
            tokens.into_iter().map(|token| Change::Put(Record::Acl(AclRecord::Token(Box::new(token))))).collect();
        mesh.0 = mesh.0.apply(Revision(mesh.0.revision().0 + 1), &changes).snapshot;
    };
    let tokens: Vec<_> = (1..METHOD_TOKENS_MAX).map(|_| made(Some("a"))).collect();
    fill(&mut mesh, tokens);
    login(&mut mesh, made(Some("a"))).unwrap();
    let refused = login(&mut mesh, made(Some("a"))).unwrap_err();
    assert!(
        matches!(&refused, AclRefusal::TooManyLogins { whom, most } if whom.contains("\"a\"") && *most == METHOD_TOKENS_MAX),
        "{refused}"
    );
    login(&mut mesh, made(Some("b"))).unwrap();
    // One that is changed counts once, and one that goes makes room.
    let changed = AclToken { description: "other".to_owned(), ..mesh.0.acl_token(id(1)).unwrap().value.clone() };
    mesh.run(AclCommand::Put { record: AclRecord::Token(Box::new(changed)), is_new: false }).unwrap();
    assert!(login(&mut mesh, made(Some("a"))).is_err());
    mesh.run(AclCommand::Delete(AclKey::Token(id(1)))).unwrap();
    login(&mut mesh, made(Some("a"))).unwrap();
    assert!(login(&mut mesh, made(Some("a"))).is_err());
    // All methods together leave the rest to others.
    let tokens: Vec<_> = (1..METHOD_TOKENS_MAX).map(|_| made(Some("b"))).collect();
    fill(&mut mesh, tokens);
    let left = LOGIN_TOKENS_MAX - 2 * METHOD_TOKENS_MAX;
    let tokens: Vec<_> = (0..left).map(|at| made(Some(methods[2 + at % 2]))).collect();
    fill(&mut mesh, tokens);
    let refused = login(&mut mesh, made(Some("d"))).unwrap_err();
    assert!(
        matches!(&refused, AclRefusal::TooManyLogins { whom, most } if whom.contains("all") && *most == LOGIN_TOKENS_MAX),
        "{refused}"
    );
    mesh.make(AclRecord::Token(Box::new(made(None)))).unwrap();
    // The method goes, and its tokens with it.
    while !mesh.run(AclCommand::Delete(AclKey::AuthMethod(AclName::new("a").unwrap()))).unwrap_or_default().is_empty() {
    }
    login(&mut mesh, made(Some("d"))).unwrap();
}
