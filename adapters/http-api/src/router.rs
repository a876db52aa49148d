//! From a request to its handler: the route table's rules, in the order in which they are applied.
//!
//! Size of the address, method, tenancy and consistency parameters, permission, body; then the handler. Nothing of a body
//! is read before the request is authorised.

mod wait;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use axum::RequestExt;
use axum::extract::RawPathParams;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use starling_catalog::Command;
use starling_model::Revision;

use crate::acl::{Asked, Bearer, Scope, scope_of};
use crate::answer::{Answer, Rendering};
use crate::audit::{AskedBy, Audited};
use crate::barrier::Wanted;
use crate::blocking::Stopping;
use crate::call::{Asker, Call, Parts, Query};
use crate::error::ApiError;
use crate::filter::{ListFilter, Shape};
use crate::limits::{BODY_TIMEOUT, BodyLimit, URI_BYTES_MAX};
use crate::login::KeyCache;
use crate::ports::{AgentPort, CatalogPort, CommitFailure, Committed};
use crate::relay::{self, Answerer, ServersPort};
use crate::routes::coordinate;
use crate::site::{OnLoopback, check_site};
use crate::volatile::{Coordinates, Events};

/// What a caller must be allowed to do; the words of Consul's rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// Nothing: the answer is public.
    Public,
    /// Read this agent's own state.
    AgentRead,
    /// Make this agent do something.
    AgentWrite,
    /// Read services.
    ServiceRead,
    /// Write services, and be given their certificates.
    ServiceWrite,
    /// Read nodes.
    NodeRead,
    /// Write nodes.
    NodeWrite,
    /// Read intentions.
    IntentionsRead,
    /// Write intentions.
    IntentionsWrite,
    /// Read config entries.
    ConfigRead,
    /// Write config entries.
    ConfigWrite,
    /// Read entries of the key-value store.
    KeyRead,
    /// Write entries of the key-value store.
    KeyWrite,
    /// Read sessions.
    SessionRead,
    /// Make, renew and end sessions.
    SessionWrite,
    /// Read the state of the mesh itself.
    OperatorRead,
    /// Say who may join the mesh.
    OperatorWrite,
    /// Read tokens and what they may.
    AclRead,
    /// Write them.
    AclWrite,
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Public => "none",
            Self::AgentRead => "agent:read",
            Self::AgentWrite => "agent:write",
            Self::ServiceRead => "service:read",
            Self::ServiceWrite => "service:write",
            Self::NodeRead => "node:read",
            Self::NodeWrite => "node:write",
            Self::IntentionsRead => "intentions:read",
            Self::IntentionsWrite => "intentions:write",
            Self::ConfigRead => "config:read",
            Self::ConfigWrite => "config:write",
            Self::KeyRead => "key:read",
            Self::KeyWrite => "key:write",
            Self::SessionRead => "session:read",
            Self::SessionWrite => "session:write",
            Self::OperatorRead => "operator:read",
            Self::OperatorWrite => "operator:write",
            Self::AclRead => "acl:read",
            Self::AclWrite => "acl:write",
        })
    }
}

/// The listeners behind which an API is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryPoint {
    /// A server's or an agent's own. Callers have a token, and whatever the network lets them reach.
    Own,
    /// A server's port for agents. Callers have the certificate of a node, which gives no right over the server.
    Agents,
}

impl EntryPoint {
    /// Whether the route is served here; what its caller may do is judged after that.
    #[must_use]
    pub fn serves(self, route: &Route) -> bool {
        match self {
            Self::Own => true,
            Self::Agents => route.answerer.is_for_agents() && route.permission != Permission::OperatorWrite,
        }
    }

    /// Whether callers are programs of the mesh, which are trusted to ask for themselves (see [`relay::INSIDE`]).
    fn trusts_insiders(self) -> bool {
        self == Self::Agents
    }
}

/// What stands behind the API.
pub struct Ports {
    /// The catalog; where there are `servers`, the part of it that the agent has.
    pub catalog: Arc<dyn CatalogPort>,
    /// The agent of this process; `None` in a server that has none.
    pub agent: Option<Arc<dyn AgentPort>>,
    /// Where an agent finds the rest of the catalog; `None` where all of it is at hand.
    pub servers: Option<Arc<dyn ServersPort>>,
    /// The listeners behind which it is.
    pub entry_point: EntryPoint,
}

/// What handlers reach.
pub(crate) struct Api {
    pub(crate) catalog: Arc<dyn CatalogPort>,
    agent: Option<Arc<dyn AgentPort>>,
    servers: Option<Arc<dyn ServersPort>>,
    entry_point: EntryPoint,
    pub(crate) events: Events,
    pub(crate) login_keys: KeyCache,
    pub(crate) coordinates: Coordinates,
}

impl Api {
    /// The agent of this process.
    pub(crate) fn agent(&self) -> Result<&dyn AgentPort, ApiError> {
        self.agent.as_deref().ok_or_else(|| {
            ApiError::bad_request(
                "this is a server without an agent: services are registered with the agent of their node",
            )
        })
    }

    /// Carries out a command for a caller, if it may.
    pub(crate) async fn transact(&self, call: &Call, command: Command) -> Result<Committed, CommitFailure> {
        self.catalog.transact(call.bearer(), command).await
    }

    /// The same, for who needs no more than the revision.
    pub(crate) async fn commit(&self, call: &Call, command: Command) -> Result<Revision, CommitFailure> {
        Ok(self.transact(call, command).await?.revision)
    }

    /// The token that was shown, or that of who shows this agent none.
    pub(crate) fn token(&self, query: &Query, headers: &HeaderMap) -> Option<String> {
        let default = || self.agent.as_ref().and_then(|agent| agent.default_token());
        token_of(query, headers).or_else(|| default().map(|token| token.reveal().to_owned()))
    }

    /// Whether this is a server, with an agent or without.
    pub(crate) fn is_server(&self) -> bool {
        self.servers.is_none()
    }
}

pub(crate) type Outcome = Result<Answer, ApiError>;
pub(crate) type Handler = fn(Arc<Api>, Call) -> BoxFuture<'static, Outcome>;

/// One line of the route table. There is no other way to serve a path, and none to leave out a part.
#[derive(Debug, Clone, Copy)]
pub struct Route {
    method: &'static str,
    path: &'static str,
    permission: Permission,
    answerer: Answerer,
    body: BodyLimit,
    summary: &'static str,
    handler: Handler,
    filtered: Filtered,
}

/// What of an answer `?filter` is about.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Filtered {
    /// Nothing: it is refused.
    #[default]
    Nothing,
    /// The elements of the list, or the values of the object.
    All(Shape),
    /// Those of its field `Services`.
    Services(Shape),
    /// What the answer is made from; the handler sees to it.
    Source(Shape),
}

impl Filtered {
    /// The filter of a request.
    fn wanted(self, query: &Query) -> Result<Option<ListFilter>, ApiError> {
        let Some(text) = query.text("filter") else { return Ok(None) };
        match self {
            Self::Nothing => Err(ApiError::bad_request("filter: is not supported here; leave it out")),
            Self::All(shape) | Self::Services(shape) | Self::Source(shape) => ListFilter::parse(text, shape).map(Some),
        }
    }
}

impl Route {
    /// A route: method, path with `{parameters}`, what a caller must be allowed, who answers, what body is read, and what it is for.
    pub(crate) const fn new(
        method: &'static str,
        path: &'static str,
        permission: Permission,
        answerer: Answerer,
        body: BodyLimit,
        summary: &'static str,
        handler: Handler,
    ) -> Self {
        Self { method, path, permission, answerer, body, summary, handler, filtered: Filtered::Nothing }
    }

    /// With `?filter`.
    pub(crate) const fn filtered(self, filtered: Filtered) -> Self {
        Self { filtered, ..self }
    }

    /// The method.
    #[must_use]
    pub fn method(&self) -> &'static str {
        self.method
    }

    /// The path with its parameters in braces.
    #[must_use]
    pub fn path(&self) -> &'static str {
        self.path
    }

    /// What a caller must be allowed.
    #[must_use]
    pub fn permission(&self) -> Permission {
        self.permission
    }

    /// Who answers, and so at which listeners it is served.
    #[must_use]
    pub fn answerer(&self) -> Answerer {
        self.answerer
    }

    /// The largest body that is read.
    #[must_use]
    pub fn body(&self) -> BodyLimit {
        self.body
    }

    /// What it is for, in one line.
    #[must_use]
    pub fn summary(&self) -> &'static str {
        self.summary
    }
}

/// Builds the router of every route in [`crate::routes::table`].
pub fn router(ports: Ports) -> axum::Router {
    let Ports { catalog, agent, servers, entry_point } = ports;
    let (events, coordinates, login_keys) = Default::default();
    let api = Arc::new(Api { catalog, agent, servers, entry_point, events, coordinates, login_keys });
    let mut paths: BTreeMap<&'static str, Vec<Route>> = BTreeMap::new();
    for route in crate::routes::table() {
        paths.entry(route.path).or_default().push(route);
    }
    let mut router = axum::Router::new();
    for (path, routes) in paths {
        let (api, routes) = (Arc::clone(&api), Arc::<[Route]>::from(routes));
        let serve = move |request| respond(Arc::clone(&api), Arc::clone(&routes), request);
        router = router.route(path, axum::routing::any(serve));
    }
    router.fallback(move |request| respond(Arc::clone(&api), Arc::from([]), request))
}

async fn respond(
    api: Arc<Api>,
    routes: Arc<[Route]>,
    request: Request<axum::body::Body>,
) -> Response<axum::body::Body> {
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let (default_policy, translates) = {
        let facts = api.catalog.authority();
        (facts.acl_default.unwrap_or(facts.default_intention_action), facts.translates_addresses)
    };
    let rendering = Rendering::of(&query, default_policy, Arc::clone(&api.catalog));
    let asking = request.extensions().get::<Audited>().map(|_| api.token(&query, request.headers()));
    let is_read = request.method() == Method::GET;
    let _waiting = match wait::begin(&routes, &request, &query) {
        Ok(waiting) => waiting,
        Err(error) => return rendering.error(&error),
    };
    let mut response = match dispatch(&api, &routes, request, query).await {
        Ok(Reply::Own(answer)) => rendering.answer(answer),
        Ok(Reply::OfServer(response)) => response,
        Err(Stop::Error(error)) => rendering.error(&error),
        Err(Stop::Method { method, allow }) => rendering.wrong_method(&method, &allow),
    };
    if let Some(token) = asking
        && (!is_read || response.status() == StatusCode::FORBIDDEN)
    {
        let bearer = api.catalog.bearer(token.as_deref()).await;
        response.extensions_mut().insert(AskedBy(bearer.ok().and_then(|bearer| bearer.accessor())));
    }
    if translates {
        response.headers_mut().insert("x-consul-translate-addresses", http::HeaderValue::from_static("true"));
    }
    response
}

/// Whose answer it is.
enum Reply {
    Own(Answer),
    OfServer(Response<axum::body::Body>),
}

enum Stop {
    Error(ApiError),
    Method { method: Method, allow: String },
}

impl From<ApiError> for Stop {
    fn from(error: ApiError) -> Self {
        Self::Error(error)
    }
}

/// A request that may be handled.
struct Admitted<'r> {
    route: &'r Route,
    call: Call,
    wanted: Option<Wanted>,
}

/// What is to be done with a request.
enum Admission<'r> {
    Handle(Box<Admitted<'r>>),
    /// A server has answered.
    Answered(Response<axum::body::Body>),
}

async fn dispatch(
    api: &Arc<Api>,
    routes: &[Route],
    request: Request<axum::body::Body>,
    query: Query,
) -> Result<Reply, Stop> {
    // What it takes to admit a request is in boxes, and gone when a query waits, which it may for minutes.
    let Admitted { route, call, wanted } = match Box::pin(admit(api, routes, request, query)).await? {
        Admission::Handle(admitted) => *admitted,
        Admission::Answered(response) => return Ok(Reply::OfServer(response)),
    };
    let stopping = call.stopping().clone();
    let answer = handled(api, route, call).await?;
    match (wanted, answer.written()) {
        (Some(wanted), Some(revision)) => {
            let standing = Box::pin(wanted.standing(&*api.catalog, revision, &stopping)).await;
            Ok(Reply::Own(answer.until(standing)))
        }
        (_, _) => Ok(Reply::Own(answer)),
    }
}

/// Judges a request, as far as that takes no look at what it asks for, and reads it.
async fn admit<'r>(
    api: &Arc<Api>,
    routes: &'r [Route],
    mut request: Request<axum::body::Body>,
    query: Query,
) -> Result<Admission<'r>, Stop> {
    let length = request.uri().path_and_query().map_or(0, |text| text.as_str().len());
    if length > URI_BYTES_MAX {
        let text = format!("the address has {length} bytes; at most {URI_BYTES_MAX} are allowed");
        return Err(ApiError::new(StatusCode::URI_TOO_LONG, text).into());
    }
    if routes.is_empty() {
        return Err(ApiError::not_found("Invalid URL path: not a recognized HTTP API endpoint").into());
    }
    let Some(route) = routes.iter().find(|route| route.method == request.method().as_str()) else {
        let allow = routes.iter().map(|route| route.method).collect::<Vec<_>>().join(",");
        return Err(Stop::Method { method: request.method().clone(), allow });
    };
    check_scope(api, &query, request.headers())?;
    // At the port for agents nobody has a browser, and agents have judged what they pass on, whose Host they leave out.
    if api.entry_point == EntryPoint::Own {
        check_site(request.method(), request.uri(), request.headers(), request.extensions().get::<OnLoopback>())?;
    }
    if !api.entry_point.serves(route) {
        let text = format!(
            "Permission denied: token lacks permission '{}' at the port for agents, which serves no {} {}: ask a server directly",
            route.permission, route.method, route.path
        );
        return Err(ApiError::new(StatusCode::FORBIDDEN, text).into());
    }
    let params = request.extract_parts::<RawPathParams>().await;
    let params = params.map_err(|_| ApiError::bad_request("the path is no UTF-8 text"))?;
    let params = params.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect::<Vec<_>>();
    let (head, body) = request.into_parts();
    let bearer = authorised(api, route, &head.headers, &params, &query).await?;
    let wanted = Wanted::of_write(&head.method, &query)?;
    let filter = route.filtered.wanted(&query)?;
    let (body, stream) = if route.body == BodyLimit::SNAPSHOT {
        refuse_large(route, &head.headers)?;
        (Bytes::new(), body)
    } else {
        (read_body(route, &head.headers, body).await?, axum::body::Body::empty())
    };
    let stopping = head.extensions.get::<Stopping>().cloned().unwrap_or_default();
    if let Some(response) = relayed(api, route, &head, &body, &stopping).await? {
        return Ok(Admission::Answered(response));
    }
    if query.has("consistent") && head.method == Method::GET {
        let current = stopping.cuts_short(api.catalog.catch_up()).await;
        current.unwrap_or(Ok(())).map_err(ApiError::from)?;
    }
    let (headers, filter, asker) = (Arc::new(head.headers), filter.map(Arc::new), Asker::new(bearer));
    let call = Call::new(Parts { params, query, route: *route, asker, headers, body, stream, filter, stopping });
    Ok(Admission::Handle(Box::new(Admitted { route, call, wanted })))
}

/// What the handler answers, as far as its caller may see and wants to.
async fn handled(api: &Arc<Api>, route: &Route, call: Call) -> Outcome {
    let (params, asker, filter) = (call.params.clone(), call.asker(), call.filter.clone());
    let near = coordinate::near(api, &call.query, &call.headers);
    let mut answer = (route.handler)(Arc::clone(api), call).await?;
    if let Some((near, rows)) = near.zip(answer.rows()) {
        coordinate::sort(api, &near, rows);
    }
    let answer = match scope_of(route.method, route.path).visible() {
        Some(visible) => {
            let service = params.iter().find(|(name, _)| name == "service").map_or("", |(_, value)| value.as_str());
            answer.seen_by(&asker.latest(), visible, service)
        }
        None => answer,
    };
    Ok(match (filter, route.filtered) {
        (Some(filter), Filtered::All(_)) => answer.filtered(&filter, None),
        (Some(filter), Filtered::Services(_)) => answer.filtered(&filter, Some("Services")),
        (_, _) => answer,
    })
}

/// Whether a server answers, who judges then.
fn is_passed_on(api: &Api, route: &Route) -> bool {
    api.servers.is_some() && route.answerer != Answerer::Agent
}

/// Who asks, if they may.
pub(crate) async fn authorised(
    api: &Api,
    route: &Route,
    headers: &HeaderMap,
    params: &[(String, String)],
    query: &Query,
) -> Result<Bearer, ApiError> {
    let facts = api.catalog.authority();
    let is_of_acl = route.path.starts_with("/v1/acl/") || route.path.starts_with("/v1/agent/token/");
    if facts.acl_default.is_none() && is_of_acl {
        return Err(ApiError::new(StatusCode::UNAUTHORIZED, "ACL support disabled"));
    }
    let scope = scope_of(route.method, route.path);
    let is_inside = api.entry_point.trusts_insiders() && headers.contains_key(relay::INSIDE);
    let asks_for_itself = is_inside && route.method == "GET" && Scope::is_for_insiders(route.path);
    if facts.acl_default.is_none() || scope == Scope::Public || asks_for_itself || is_passed_on(api, route) {
        return Ok(Bearer::unrestricted());
    }
    let bearer = api.catalog.bearer(api.token(query, headers).as_deref()).await?;
    let asked = Asked { params, query, own_node: facts.node_name.as_str() };
    scope.check(&bearer, &asked)?;
    Ok(bearer)
}

/// The answer of a server, where it is asked; an error if it is needed and not reached.
async fn relayed(
    api: &Api,
    route: &Route,
    head: &http::request::Parts,
    body: &Bytes,
    stopping: &Stopping,
) -> Result<Option<Response<axum::body::Body>>, ApiError> {
    let Some(servers) = &api.servers else { return Ok(None) };
    if !is_passed_on(api, route) {
        return Ok(None);
    }
    let answerer = route.answerer.at_agent(&head.method, head.uri.path());
    let node = api.catalog.authority().node_name;
    let mut request = relay::passed_on(&head.method, &head.uri, &head.headers, body.clone(), &node);
    let query = Query::parse(head.uri.query().unwrap_or_default());
    let token = token_of(&query, &head.headers).is_none().then(|| api.token(&query, &head.headers)).flatten();
    if let Some(token) = token.and_then(|token| http::HeaderValue::from_str(&token).ok()) {
        request.headers_mut().insert("x-consul-token", token);
    }
    match relay::ask(&**servers, request, stopping).await {
        Ok(response) => Ok(Some(response)),
        Err(_) if answerer == Answerer::ServersElseAgent => Ok(None),
        Err(reason) => Err(relay::unanswered(&head.method, head.uri.path(), &reason)),
    }
}

/// Refuses what other datacentres, Consul Enterprise or a later release would answer.
fn check_scope(api: &Api, query: &Query, headers: &HeaderMap) -> Result<(), ApiError> {
    for (name, header, feature) in
        [("ns", "X-Consul-Namespace", "Namespaces"), ("partition", "X-Consul-Partition", "Partitions")]
    {
        if query.text(name).is_some_and(|value| value != "default") {
            let text = format!("Invalid query parameter: {name:?} - {feature} are a Consul Enterprise feature");
            return Err(ApiError::bad_request(text));
        }
        if headers.get(header).is_some_and(|value| !value.is_empty() && value != "default") {
            let text = format!("Invalid header: {header:?} - {feature} are a Consul Enterprise feature");
            return Err(ApiError::bad_request(text));
        }
    }
    if query.text("dc").is_some_and(|dc| dc != api.catalog.authority().datacenter.as_str()) {
        return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "No path to datacenter"));
    }
    for name in ["peer", "sg"] {
        if query.text(name).is_some() {
            return Err(ApiError::bad_request(format!("{name}: is not supported in this release; leave it out")));
        }
    }
    if query.has("stale") && query.has("consistent") {
        return Err(ApiError::bad_request("Cannot specify ?stale with ?consistent, conflicting semantics."));
    }
    Ok(())
}

fn token_of(query: &Query, headers: &HeaderMap) -> Option<String> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = || text("authorization").and_then(|value| value.strip_prefix("Bearer "));
    let token = query.text("token").or_else(|| text("x-consul-token")).or_else(bearer);
    token.map(str::trim).filter(|token| !token.is_empty()).map(str::to_owned)
}

fn too_large(route: &Route) -> ApiError {
    let (bytes, name) = (route.body.bytes(), route.body.name());
    let of = format!("limit {name:?} of {} {}", route.method, route.path);
    let text = format!("body: is larger than {bytes} bytes, the {of}");
    // Consul's for these two, and clients tell it from a mistake in what they sent.
    let is_data = [BodyLimit::KV_VALUE, BodyLimit::TRANSACTION].contains(&route.body);
    ApiError::new(if is_data { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::BAD_REQUEST }, text)
}

/// Refuses a body that says itself that it is over the limit.
fn refuse_large(route: &Route, headers: &HeaderMap) -> Result<(), ApiError> {
    let declared = headers.get(http::header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let declared = declared.and_then(|text| text.parse::<u64>().ok());
    let is_large = |bytes| usize::try_from(bytes).map_or(true, |bytes| bytes > route.body.bytes());
    if declared.is_some_and(is_large) { Err(too_large(route)) } else { Ok(()) }
}

async fn read_body(route: &Route, headers: &HeaderMap, body: axum::body::Body) -> Result<Bytes, ApiError> {
    let limit = route.body;
    if limit == BodyLimit::NONE {
        return Ok(Bytes::new());
    }
    refuse_large(route, headers)?;
    match tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, limit.bytes()).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large(route)),
        Ok(Err(error)) => Err(ApiError::bad_request(format!("the request body could not be read: {error}"))),
        Err(_) => {
            let text = format!("the request body did not arrive within {} s", BODY_TIMEOUT.as_secs());
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, text))
        }
    }
}
