//! Access control: <https://developer.hashicorp.com/consul/api-docs/acl>.

mod agent;
mod login;
mod method;
mod policy;
mod role;
mod template;
mod token;

use std::sync::Arc;

use serde_json::json;
use starling_model::{AclGrants, Uuid};

use crate::answer::Answer;
use crate::call::Call;
use crate::error::ApiError;
use crate::limits::BodyLimit;
use crate::parse::FieldError;
use crate::parse::acl::{GrantsBody, LinkBody};
use crate::relay::Answerer;
use crate::router::{Api, Outcome, Permission, Route};

#[rustfmt::skip]
pub(super) fn table() -> Vec<Route> {
    use Answerer as A;
    use BodyLimit as B;
    use Permission as P;
    vec![
        Route::new("PUT", "/v1/acl/bootstrap", P::Public, A::Servers, B::SMALL, "Make the first token, which may everything; once (`BootstrapSecret`)", |a, c| Box::pin(token::bootstrap(a, c))),
        Route::new("GET", "/v1/acl/replication", P::Public, A::Servers, B::NONE, "Replication from another datacentre, of which there is none", |a, c| Box::pin(replication(a, c))),
        Route::new("POST", "/v1/acl/login", P::Public, A::Servers, B::ACL, "Make a token for who shows a JSON Web Token that an auth method of type jwt accepts", |a, c| Box::pin(login::login(a, c))),
        Route::new("POST", "/v1/acl/logout", P::Public, A::Servers, B::NONE, "End the token that is shown, which came of a login", |a, c| Box::pin(login::logout(a, c))),
        Route::new("PUT", "/v1/acl/token", P::AclWrite, A::Servers, B::ACL, "Make a token", |a, c| Box::pin(token::create(a, c))),
        Route::new("GET", "/v1/acl/token/self", P::Public, A::Servers, B::NONE, "The token that is shown", |a, c| Box::pin(token::read_self(a, c))),
        Route::new("GET", "/v1/acl/token/{accessor}", P::AclRead, A::Servers, B::NONE, "A token; its secret is hidden from who may not write tokens (`expanded`)", |a, c| Box::pin(token::read(a, c))),
        Route::new("PUT", "/v1/acl/token/{accessor}", P::AclWrite, A::Servers, B::ACL, "Change a token", |a, c| Box::pin(token::update(a, c))),
        Route::new("PUT", "/v1/acl/token/{accessor}/clone", P::AclWrite, A::Servers, B::ACL, "Make a token like this one (`Description`)", |a, c| Box::pin(token::copy(a, c))),
        Route::new("DELETE", "/v1/acl/token/{accessor}", P::AclWrite, A::Servers, B::NONE, "Remove a token", |a, c| Box::pin(token::delete(a, c))),
        Route::new("GET", "/v1/acl/tokens", P::AclRead, A::Servers, B::NONE, "Tokens (`policy`, `role`, `servicename`, `authmethod`); blocking", |a, c| Box::pin(token::list(a, c))),
        Route::new("PUT", "/v1/acl/policy", P::AclWrite, A::Servers, B::ACL, "Make a policy; its rules are HCL or JSON", |a, c| Box::pin(policy::create(a, c))),
        Route::new("GET", "/v1/acl/policy/{id}", P::AclRead, A::Servers, B::NONE, "A policy", |a, c| Box::pin(policy::read(a, c))),
        Route::new("GET", "/v1/acl/policy/name/{name}", P::AclRead, A::Servers, B::NONE, "The policy of this name", |a, c| Box::pin(policy::read_named(a, c))),
        Route::new("PUT", "/v1/acl/policy/{id}", P::AclWrite, A::Servers, B::ACL, "Change a policy", |a, c| Box::pin(policy::update(a, c))),
        Route::new("DELETE", "/v1/acl/policy/{id}", P::AclWrite, A::Servers, B::NONE, "Remove a policy; who had it has it no more", |a, c| Box::pin(policy::delete(a, c))),
        Route::new("GET", "/v1/acl/policies", P::AclRead, A::Servers, B::NONE, "Policies, without their rules; blocking", |a, c| Box::pin(policy::list(a, c))),
        Route::new("PUT", "/v1/acl/role", P::AclWrite, A::Servers, B::ACL, "Make a role", |a, c| Box::pin(role::create(a, c))),
        Route::new("GET", "/v1/acl/role/{id}", P::AclRead, A::Servers, B::NONE, "A role", |a, c| Box::pin(role::read(a, c))),
        Route::new("GET", "/v1/acl/role/name/{name}", P::AclRead, A::Servers, B::NONE, "The role of this name", |a, c| Box::pin(role::read_named(a, c))),
        Route::new("PUT", "/v1/acl/role/{id}", P::AclWrite, A::Servers, B::ACL, "Change a role", |a, c| Box::pin(role::update(a, c))),
        Route::new("DELETE", "/v1/acl/role/{id}", P::AclWrite, A::Servers, B::NONE, "Remove a role; who had it has it no more", |a, c| Box::pin(role::delete(a, c))),
        Route::new("GET", "/v1/acl/roles", P::AclRead, A::Servers, B::NONE, "Roles (`policy`); blocking", |a, c| Box::pin(role::list(a, c))),
        Route::new("PUT", "/v1/acl/auth-method", P::AclWrite, A::Servers, B::ACL, "Keep an auth method", |a, c| Box::pin(method::create(a, c))),
        Route::new("GET", "/v1/acl/auth-method/{name}", P::AclRead, A::Servers, B::NONE, "An auth method", |a, c| Box::pin(method::read(a, c))),
        Route::new("PUT", "/v1/acl/auth-method/{name}", P::AclWrite, A::Servers, B::ACL, "Change an auth method", |a, c| Box::pin(method::update(a, c))),
        Route::new("DELETE", "/v1/acl/auth-method/{name}", P::AclWrite, A::Servers, B::NONE, "Remove an auth method with its binding rules", |a, c| Box::pin(method::delete(a, c))),
        Route::new("GET", "/v1/acl/auth-methods", P::AclRead, A::Servers, B::NONE, "Auth methods, without their settings; blocking", |a, c| Box::pin(method::list(a, c))),
        Route::new("PUT", "/v1/acl/binding-rule", P::AclWrite, A::Servers, B::ACL, "Keep a binding rule of an auth method", |a, c| Box::pin(method::create_rule(a, c))),
        Route::new("GET", "/v1/acl/binding-rule/{id}", P::AclRead, A::Servers, B::NONE, "A binding rule", |a, c| Box::pin(method::read_rule(a, c))),
        Route::new("PUT", "/v1/acl/binding-rule/{id}", P::AclWrite, A::Servers, B::ACL, "Change a binding rule", |a, c| Box::pin(method::update_rule(a, c))),
        Route::new("DELETE", "/v1/acl/binding-rule/{id}", P::AclWrite, A::Servers, B::NONE, "Remove a binding rule", |a, c| Box::pin(method::delete_rule(a, c))),
        Route::new("GET", "/v1/acl/binding-rules", P::AclRead, A::Servers, B::NONE, "Binding rules (`authmethod`); blocking", |a, c| Box::pin(method::list_rules(a, c))),
        Route::new("GET", "/v1/acl/templated-policies", P::AclRead, A::Servers, B::NONE, "Templates of policies, by name", |a, c| Box::pin(template::list(a, c))),
        Route::new("GET", "/v1/acl/templated-policy/name/{*name}", P::AclRead, A::Servers, B::NONE, "A template of policies", |a, c| Box::pin(template::read(a, c))),
        Route::new("POST", "/v1/acl/templated-policy/preview/{*name}", P::AclRead, A::Servers, B::SMALL, "The policy that a template comes to (`Name`)", |a, c| Box::pin(template::preview(a, c))),
        Route::new("GET", "/starling/v1/acl/rights", P::Public, A::Servers, B::NONE, "What the token that is shown may: by this an agent judges what it is asked", |a, c| Box::pin(agent::rights(a, c))),
    ]
}

async fn replication(_: Arc<Api>, _: Call) -> Outcome {
    const NEVER: &str = "0001-01-01T00:00:00Z";
    Ok(Answer::json(json!({
        "Enabled": false,
        "Running": false,
        "SourceDatacenter": "",
        "ReplicationType": "",
        "ReplicatedIndex": 0,
        "ReplicatedRoleIndex": 0,
        "ReplicatedTokenIndex": 0,
        "LastSuccess": NEVER,
        "LastError": NEVER,
        "LastErrorMessage": "",
    })))
}

/// An identifier that nobody can guess.
fn draw() -> Result<Uuid, ApiError> {
    let bits = starling_tls::random_secret::<16>();
    let bits = bits.map_err(|error| ApiError::new(http::StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    Ok(Uuid::from_random(u128::from_be_bytes(*bits)))
}

/// An identifier in the path.
fn id_of(call: &Call, name: &str) -> Result<Uuid, ApiError> {
    let text = call.param(name);
    text.to_ascii_lowercase().parse().map_err(|_| ApiError::bad_request(format!("{name}: {text:?} is no UUID")))
}

/// The identifier in the path, which the body may repeat.
fn same_id(call: &Call, name: &str, said: Option<Uuid>) -> Result<Uuid, ApiError> {
    let id = id_of(call, name)?;
    if said.is_some_and(|said| said != id) {
        return Err(ApiError::bad_request("ID: differs from the one in the path"));
    }
    Ok(id)
}

fn not_found(what: &str, id: &str) -> ApiError {
    ApiError::not_found(format!("there is no ACL {what} {id:?}"))
}

/// What a body names, found in the catalog; each once.
fn grants_of(api: &Api, body: GrantsBody) -> Result<AclGrants, ApiError> {
    let snapshot = api.catalog.snapshot();
    let policies = linked(body.policies, "policy", |link| match link.id {
        Some(id) => snapshot.acl_policy(id).map(|policy| policy.value.id),
        None => snapshot.acl_policy_named(&link.name).map(|policy| policy.value.id),
    })?;
    let roles = linked(body.roles, "role", |link| match link.id {
        Some(id) => snapshot.acl_role(id).map(|role| role.value.id),
        None => snapshot.acl_role_named(&link.name).map(|role| role.value.id),
    })?;
    Ok(AclGrants { policies, roles, services: body.services, nodes: body.nodes, templated: body.templated })
}

fn linked(links: Vec<LinkBody>, what: &str, find: impl Fn(&LinkBody) -> Option<Uuid>) -> Result<Vec<Uuid>, FieldError> {
    let mut found: Vec<Uuid> = Vec::new();
    for link in links {
        let id = find(&link).ok_or_else(|| FieldError::new(&link.path, format!("there is no such {what}")))?;
        if !found.contains(&id) {
            found.push(id);
        }
    }
    Ok(found)
}
