//! What each route is about.
//!
//! It stands beside the route table, by method and path: a route that is not here needs the right to everything.

use starling_model::{Access, Resource};

use super::{Bearer, Denied, Visible};
use crate::call::Query;

/// What a caller has to be allowed before a route is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Everything.
    Everything,
    /// Nothing; nobody is asked who they are.
    Public,
    /// Nothing, but who shows a token shows one that there is.
    Anyone,
    /// This, of a resource without names.
    Whole(Resource, Access),
    /// This, with what a part of the path names.
    Param(Resource, Access, &'static str),
    /// This, with what a parameter behind the question mark names.
    Query(Resource, Access, &'static str),
    /// This, with the node of the agent that is asked.
    OwnNode(Resource, Access),
    /// This, with the key in the path, or with all that begin so.
    Key(Access),
    /// One of these with something; with what, the handler judges once it knows.
    Judged(&'static [(Resource, Access)]),
    /// Nothing: the answer has what may be seen.
    Narrowed(Visible),
}

/// What has to be known of a request to judge it.
pub(crate) struct Asked<'r> {
    pub(crate) params: &'r [(String, String)],
    pub(crate) query: &'r Query,
    pub(crate) own_node: &'r str,
}

impl Asked<'_> {
    pub(crate) fn param(&self, name: &str) -> &str {
        self.params.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value.as_str())
    }
}

impl Scope {
    /// Refuses a request that is not allowed.
    pub(crate) fn check(self, bearer: &Bearer, asked: &Asked<'_>) -> Result<(), Denied> {
        match self {
            Self::Everything => bearer.require_everything(),
            Self::Public | Self::Anyone | Self::Narrowed(_) => Ok(()),
            Self::Whole(resource, access) => bearer.require(resource, "", access),
            Self::Param(resource, access, name) => bearer.require(resource, asked.param(name), access),
            Self::Query(resource, access, name) => asked
                .query
                .all(name)
                .map(bare)
                .chain((!asked.query.has(name)).then_some(""))
                .try_for_each(|name| require_named(bearer, resource, name, access)),
            Self::OwnNode(resource, access) => bearer.require(resource, asked.own_node, access),
            Self::Key(Access::Read) if asked.query.has("recurse") || asked.query.has("keys") => Ok(()),
            Self::Key(access) if asked.query.has("recurse") => {
                bearer.require_under(Resource::Key, asked.param("key"), access)
            }
            Self::Key(access) => bearer.require(Resource::Key, asked.param("key"), access),
            Self::Judged(wanted) => bearer.require_some(wanted),
        }
    }

    /// What the elements of the answer are, where it is narrowed.
    pub(crate) fn visible(self) -> Option<Visible> {
        if let Self::Narrowed(visible) = self { Some(visible) } else { None }
    }

    /// Whether a program of the mesh may ask for itself, without a token: how changes and nodes fare.
    pub(crate) fn is_for_insiders(path: &str) -> bool {
        matches!(
            path,
            "/v1/event/list"
                | "/starling/v1/changes"
                | "/starling/v1/changes/{revision}"
                | "/starling/v1/nodes"
                | "/starling/v1/proxies"
        )
    }
}

/// The name of a service as clients may write it, without the tenancy in front.
fn bare(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// `*` is all of them.
fn require_named(bearer: &Bearer, resource: Resource, name: &str, access: Access) -> Result<(), Denied> {
    if name == "*" && access == Access::Write {
        bearer.require_under(resource, "", access)
    } else {
        bearer.require(resource, name, access)
    }
}

/// What a route is about.
pub(crate) fn scope_of(method: &str, path: &str) -> Scope {
    use Access::{Read, Write};
    use Resource as R;
    use Scope as S;
    match (method, path) {
        ("GET", "/metrics") => S::OwnNode(R::Agent, Read),
        ("GET", "/v1/exported-services" | "/v1/imported-services") => S::Whole(R::Mesh, Read),
        ("GET", path) if path.starts_with("/v1/agent/") && is_of_agent(path) => S::OwnNode(R::Agent, Read),
        ("GET", "/v1/agent/host") => S::Whole(R::Operator, Read),
        ("PUT", "/v1/agent/maintenance") => S::OwnNode(R::Node, Write),
        ("PUT", "/v1/agent/service/maintenance/{id}") => S::Judged(&[(R::Service, Write)]),
        ("PUT", "/v1/agent/force-leave/{node}") => S::Whole(R::Operator, Write),
        ("GET", "/v1/agent/members") => S::Narrowed(Visible::Members),
        ("GET", "/v1/agent/services") => S::Narrowed(Visible::AgentServices),
        ("GET", "/v1/agent/service/{id}" | "/v1/agent/health/service/id/{id}") => S::Judged(&[(R::Service, Read)]),
        ("PUT", "/v1/agent/service/register" | "/v1/agent/service/deregister/{id}") => {
            S::Judged(&[(R::Service, Write)])
        }
        ("GET", "/v1/agent/health/service/name/{service}") => S::Param(R::Service, Read, "service"),
        ("GET", "/v1/agent/checks") => S::Narrowed(Visible::AgentChecks),
        ("PUT", path) if path.starts_with("/v1/agent/check/") => S::Judged(&[(R::Service, Write), (R::Node, Write)]),
        ("GET", "/v1/agent/connect/ca/roots" | "/v1/connect/ca/roots") => S::Public,
        ("GET", "/v1/agent/connect/ca/leaf/{service}") => S::Param(R::Service, Write, "service"),
        ("POST", "/v1/agent/connect/authorize") => S::Judged(&[(R::Service, Write)]),
        (
            "PUT",
            "/v1/agent/token/{token}"
            | "/v1/agent/reload"
            | "/v1/agent/leave"
            | "/v1/agent/join/{address}"
            | "/starling/v1/agent/leaves/rotate",
        ) => S::OwnNode(R::Agent, Write),
        (_, path) if path.starts_with("/v1/catalog/") || path.starts_with("/v1/health/") => in_catalog(method, path),
        (_, path) if path.starts_with("/v1/connect/") || path.starts_with("/v1/config") => in_mesh(method, path),
        (_, path) if path.starts_with("/v1/query") => in_queries(method, path),
        ("GET" | "POST", "/v1/discovery-chain/{service}") => S::Param(R::Service, Read, "service"),
        ("GET", path) if path.starts_with("/v1/operator/") => S::Whole(R::Operator, Read),
        (_, path) if path.starts_with("/v1/operator/") => S::Whole(R::Operator, Write),
        ("PUT", "/v1/event/fire/{name}") => S::Param(R::Event, Write, "name"),
        ("GET", "/v1/event/list") => S::Narrowed(Visible::Events),
        ("GET", "/v1/coordinate/datacenters") => S::Public,
        ("GET", "/v1/coordinate/nodes") => S::Narrowed(Visible::Nodes),
        ("GET", "/v1/coordinate/node/{node}") => S::Param(R::Node, Read, "node"),
        ("PUT", "/v1/coordinate/update") => S::Judged(&[(R::Node, Write)]),
        ("GET", "/v1/status/leader" | "/v1/status/peers") => S::Public,
        ("GET", "/v1/kv/" | "/v1/kv/{*key}") => S::Key(Read),
        ("PUT" | "DELETE", "/v1/kv/" | "/v1/kv/{*key}") => S::Key(Write),
        ("PUT", "/v1/txn") => S::Judged(&[(R::Key, Read), (R::Node, Read), (R::Service, Read)]),
        ("PUT", path) if path.starts_with("/v1/session/") => S::Judged(&[(R::Session, Write)]),
        ("GET", "/v1/session/info/{id}" | "/v1/session/node/{node}" | "/v1/session/list") => {
            S::Narrowed(Visible::Sessions)
        }
        (_, path) if path.starts_with("/v1/acl/") => in_acl(method, path),
        ("GET", "/starling/v1/health/live" | "/starling/v1/health/ready") => S::Public,
        ("GET", "/starling/v1/acl/rights") => S::Anyone,
        // Who runs a proxy has the rights of its service, and seldom any on the agent.
        ("GET", "/starling/v1/agent/xds") => S::Judged(&[(R::Service, Read), (R::Node, Read), (R::Agent, Read)]),
        ("GET", "/starling/v1/can") => S::Query(R::Intentions, Read, "destination"),
        ("GET", path) if path.starts_with("/starling/v1/") => S::Whole(R::Operator, Read),
        (_, path) if path.starts_with("/starling/v1/") => S::Whole(R::Operator, Write),
        // A snapshot has every token in it, and setting back what is there is everybody's business.
        (_, _) => S::Everything,
    }
}

fn in_catalog(method: &str, path: &str) -> Scope {
    use Access::Write;
    use Resource as R;
    match (method, path) {
        ("PUT", "/v1/catalog/register" | "/v1/catalog/deregister") => {
            Scope::Judged(&[(R::Node, Write), (R::Service, Write)])
        }
        ("GET", "/v1/catalog/datacenters") => Scope::Public,
        ("GET", "/v1/catalog/nodes") => Scope::Narrowed(Visible::Nodes),
        ("GET", "/v1/catalog/services") => Scope::Narrowed(Visible::ServiceNames),
        ("GET", "/v1/catalog/service/{service}" | "/v1/catalog/connect/{service}") => {
            Scope::Narrowed(Visible::CatalogRows)
        }
        ("GET", "/v1/catalog/node/{node}" | "/v1/catalog/node-services/{node}") => {
            Scope::Narrowed(Visible::NodeServices)
        }
        ("GET", "/v1/health/service/{service}" | "/v1/health/connect/{service}" | "/v1/health/ingress/{service}") => {
            Scope::Narrowed(Visible::Health)
        }
        ("GET", "/v1/catalog/gateway-services/{gateway}") => Scope::Narrowed(Visible::GatewayServices),
        ("GET", "/v1/health/checks/{service}" | "/v1/health/node/{node}" | "/v1/health/state/{state}") => {
            Scope::Narrowed(Visible::Checks)
        }
        (_, _) => Scope::Everything,
    }
}

fn in_mesh(method: &str, path: &str) -> Scope {
    use Access::{Read, Write};
    use Resource as R;
    match (method, path) {
        ("GET", "/v1/connect/ca/configuration") => Scope::Whole(R::Operator, Read),
        ("PUT", "/v1/connect/ca/configuration") => Scope::Whole(R::Operator, Write),
        ("GET", "/v1/connect/intentions") => Scope::Narrowed(Visible::Intentions),
        ("GET", "/v1/connect/intentions/{id}") => Scope::Judged(&[(R::Intentions, Read)]),
        ("PUT" | "DELETE", "/v1/connect/intentions/{id}") => Scope::Judged(&[(R::Intentions, Write)]),
        ("POST", "/v1/connect/intentions") => Scope::Judged(&[(R::Intentions, Write)]),
        ("GET", "/v1/connect/intentions/exact" | "/v1/connect/intentions/check") => {
            Scope::Query(R::Intentions, Read, "destination")
        }
        ("PUT" | "DELETE", "/v1/connect/intentions/exact") => Scope::Query(R::Intentions, Write, "destination"),
        ("GET", "/v1/connect/intentions/match") => Scope::Query(R::Intentions, Read, "name"),
        ("GET", "/v1/config/{kind}") => Scope::Narrowed(Visible::ConfigEntries),
        // Whose it is the handler sees; what every proxy has to know is everybody's.
        ("GET", "/v1/config/{kind}/{name}") => Scope::Anyone,
        ("PUT", "/v1/config") | ("DELETE", "/v1/config/{kind}/{name}") => {
            Scope::Judged(&[(R::Service, Write), (R::Intentions, Write), (R::Mesh, Write)])
        }
        (_, _) => Scope::Everything,
    }
}

fn is_of_agent(path: &str) -> bool {
    matches!(
        path,
        "/v1/agent/self" | "/v1/agent/metrics" | "/v1/agent/metrics/stream" | "/v1/agent/version" | "/v1/agent/monitor"
    )
}

/// A query is known by an identifier, behind which any name may stand: the handler sees which.
fn in_queries(method: &str, path: &str) -> Scope {
    match (method, path) {
        ("GET", "/v1/query") => Scope::Narrowed(Visible::Queries),
        ("GET", "/v1/query/{query}/execute") => Scope::Anyone,
        ("GET", _) => Scope::Judged(&[(Resource::Query, Access::Read)]),
        (_, _) => Scope::Judged(&[(Resource::Query, Access::Write)]),
    }
}

fn in_acl(method: &str, path: &str) -> Scope {
    match (method, path) {
        // Each proves by itself who may: once, by a bearer token of somebody else's, or by the token that is to go.
        ("PUT", "/v1/acl/bootstrap") | ("POST", "/v1/acl/login") => Scope::Public,
        ("GET", "/v1/acl/token/self") | ("POST", "/v1/acl/logout") => Scope::Anyone,
        ("GET", "/v1/acl/replication") => Scope::Public,
        ("POST", "/v1/acl/templated-policy/preview/{*name}") => Scope::Whole(Resource::Acl, Access::Read),
        ("GET", _) => Scope::Whole(Resource::Acl, Access::Read),
        (_, _) => Scope::Whole(Resource::Acl, Access::Write),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::table;

    #[test]
    fn every_route_is_said_to_be_about_something_but_snapshots() {
        let silent: Vec<_> = table()
            .iter()
            .filter(|route| scope_of(route.method(), route.path()) == Scope::Everything)
            .map(|route| format!("{} {}", route.method(), route.path()))
            .collect();
        assert_eq!(silent, ["GET /v1/snapshot", "PUT /v1/snapshot"]);
    }

    #[test]
    fn what_is_not_known_needs_the_right_to_everything() {
        for (method, path) in [("GET", "/v1/other"), ("PUT", "/v1/catalog/nodes"), ("PATCH", "/v1/kv/{*key}")] {
            assert_eq!(scope_of(method, path), Scope::Everything, "{method} {path}");
        }
    }
}
