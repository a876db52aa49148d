//! A native proxy's side of xDS: one stream to its agent, on which its plan comes in parts.
//!
//! Reconnecting is the caller's business. What arrived stays with the [`PlanMirror`], and the next stream begins where it
//! stands: parts that did not change are not sent again.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, Value};
use envoy_types::pb::google::rpc::Status as Refusal;
use http::uri::PathAndQuery;
use hyper::client::conn::http2::Builder;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use starling_model::{Revision, ServiceName};
use starling_plan::{Assembly, Plan};
use starling_xds::{BESIDE, BESIDE_ANOTHER, Leaf, NativePart, NativePartError, ResourceType};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::Http2;
use crate::call::CallError;
use crate::service::DELTA_PATH;

/// By what a native proxy is told from others.
pub const NATIVE_PROXY: &str = "starling";

/// The field of its metadata that tells processes from each other: whoever comes again under the same name is the same.
pub const PROCESS: &str = "process";

/// Bytes of one response: an agent sends [`starling_xds::RESPONSE_BYTES_MAX`] at once, and more only where a single part is
/// larger.
const RESPONSE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// An agent that has said nothing for so long is asked whether it is there.
const PING_AFTER: Duration = Duration::from_secs(5);

/// Time for its answer.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers on their way to the agent: to one response at a time, behind the first request and the word that nobody serves beside.
const REQUESTS_MAX: usize = 4;

/// `google.rpc.Code.INVALID_ARGUMENT`.
const INVALID_ARGUMENT: i32 = 3;

/// What has arrived of a plan.
#[derive(Default)]
pub struct PlanMirror {
    assembly: Assembly,
    /// With its name and its version.
    leaf: Option<(Leaf, String, String)>,
    /// Of services for which the proxy stands, each with the version.
    service_leaves: BTreeMap<ServiceName, (Leaf, String, String)>,
    revision: Revision,
    /// Whether what came last left nothing.
    withdrawn: bool,
}

impl fmt::Debug for PlanMirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlanMirror")
            .field("revision", &self.revision)
            .field("parts", &self.assembly.versions().len())
            .finish_non_exhaustive()
    }
}

impl PlanMirror {
    /// The plan and the leaf; `None` until enough is there.
    #[must_use]
    pub fn state(&self) -> Option<(Plan, &Leaf)> {
        let (leaf, ..) = self.leaf.as_ref()?;
        Some((self.assembly.plan(self.revision)?, leaf))
    }

    /// The certificates of services for which the proxy stands.
    pub fn service_leaves(&self) -> impl Iterator<Item = (&ServiceName, &Leaf)> {
        self.service_leaves.iter().map(|(service, (leaf, ..))| (service, leaf))
    }

    /// Whether the agent has taken back all that it gave: the proxy is not registered any more.
    #[must_use]
    pub fn is_withdrawn(&self) -> bool {
        self.withdrawn
    }

    fn take(&mut self, response: DeltaDiscoveryResponse) -> Result<(), NativePartError> {
        let brings_nothing = response.resources.is_empty();
        let decoded: Result<Vec<_>, _> = response.resources.into_iter().map(decode).collect();
        for (name, version, part) in decoded? {
            match part {
                NativePart::Plan(part) => self.assembly.put(part, &version),
                NativePart::Leaf(leaf) => self.leaf = Some((leaf, name, version)),
                NativePart::ServiceLeaf(service, leaf) => {
                    self.service_leaves.insert(service, (leaf, name, version));
                }
            }
        }
        for name in &response.removed_resources {
            match NativePart::service_of(name) {
                Some(service) => drop(self.service_leaves.remove(&service)),
                None => self.assembly.remove(name),
            }
        }
        self.withdrawn = brings_nothing && self.assembly.is_empty();
        if self.withdrawn {
            // A key is kept no longer than it may be shown.
            self.leaf = None;
            self.service_leaves.clear();
        }
        self.revision = response.system_version_info.parse().map_or(self.revision, Revision);
        Ok(())
    }

    /// What has arrived, by name, as the agent calls it.
    fn versions(&self) -> HashMap<String, String> {
        let leaves = self.leaf.iter().chain(self.service_leaves.values());
        let leaves = leaves.map(|(_, name, version)| (&**name, &**version));
        self.assembly.versions().chain(leaves).map(|(name, version)| (name.to_owned(), version.to_owned())).collect()
    }
}

fn decode(resource: Resource) -> Result<(String, String, NativePart), NativePartError> {
    let message = resource.resource.map(|any| any.value).unwrap_or_default();
    let part = NativePart::decode(&resource.name, &message)?;
    // What is kept is known by its own name, and the agent speaks of the resource's.
    let is_named_so = matches!(&part, NativePart::Plan(part) if part.name() != resource.name);
    if is_named_so {
        let source = serde::de::Error::custom("a part under another's name");
        return Err(NativePartError { name: resource.name, source });
    }
    Ok((resource.name, resource.version, part))
}

/// Why a stream to the agent does not begin, or ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanStreamError {
    /// The agent has no such proxy.
    #[error("the agent says: {reason}")]
    Unregistered {
        /// The agent's words.
        reason: String,
    },
    /// Another process is attached as this proxy.
    #[error("the agent says: {reason}")]
    Occupied {
        /// The agent's words.
        reason: String,
    },
    /// Anything else.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl From<Status> for PlanStreamError {
    fn from(status: Status) -> Self {
        let (code, reason) = (status.code(), status.message().to_owned());
        if code == Code::NotFound {
            Self::Unregistered { reason }
        } else if code == Code::AlreadyExists {
            Self::Occupied { reason }
        } else {
            Self::Call(status.into())
        }
    }
}

/// A stream to the agent.
pub struct PlanStream {
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: Streaming<DeltaDiscoveryResponse>,
    nonce: String,
    /// By what the agent knows this process.
    id: String,
}

/// Who follows its plan.
#[derive(Debug, Clone, Copy)]
pub struct Follows<'a> {
    /// The proxy.
    pub id: &'a str,
    /// By what the agent knows who comes again.
    pub process: &'a str,
    /// Whether another process of the proxy serves beside this one, by an earlier plan: until that is over nothing counts as in
    /// force, though plans are taken and accepted.
    pub beside_another: bool,
}

impl fmt::Debug for PlanStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlanStream").field("nonce", &self.nonce).finish_non_exhaustive()
    }
}

impl PlanStream {
    /// Asks for a proxy's plan, beyond what `mirror` has of it. The agent takes no two at a time for one proxy.
    ///
    /// # Errors
    /// [`PlanStreamError`].
    pub async fn open(
        connection: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        who: Follows<'_>,
        token: Option<&str>,
        mirror: &PlanMirror,
    ) -> Result<Self, PlanStreamError> {
        let (http2, driver) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_AFTER)
            .keep_alive_while_idle(true)
            .keep_alive_timeout(PING_TIMEOUT)
            .handshake(TokioIo::new(connection))
            .await
            .map_err(CallError::unavailable)?;
        tokio::spawn(async move {
            if let Err(error) = driver.await {
                tracing::debug!(%error, "connection to the agent ended");
            }
        });
        let (requests, queued) = mpsc::channel(REQUESTS_MAX);
        let mut fields = vec![(PROCESS, who.process)];
        fields.extend(who.beside_another.then_some((BESIDE, BESIDE_ANOTHER)));
        let node = Node { user_agent_name: NATIVE_PROXY.to_owned(), ..node(who.id, &fields) };
        let first = DeltaDiscoveryRequest {
            node: Some(node),
            resource_names_subscribe: vec!["*".to_owned()],
            initial_resource_versions: mirror.versions(),
            ..request()
        };
        // There is room: nothing was queued before.
        let _ = requests.try_send(first);
        let mut call = Request::new(ReceiverStream::new(queued));
        if let Some(token) = token {
            let token = MetadataValue::try_from(token).map_err(CallError::refused)?;
            call.metadata_mut().insert("x-consul-token", token);
        }
        let origin = http::Uri::from_static("http://agent");
        let mut grpc = Grpc::with_origin(Http2(http2), origin).max_decoding_message_size(RESPONSE_BYTES_MAX);
        grpc.ready().await.map_err(CallError::unavailable)?;
        let codec = ProstCodec::<DeltaDiscoveryRequest, DeltaDiscoveryResponse>::default();
        let answer = grpc.streaming(call, PathAndQuery::from_static(DELTA_PATH), codec).await?;
        Ok(Self { requests, responses: answer.into_inner(), nonce: String::new(), id: who.id.to_owned() })
    }

    /// Waits for what is new and puts it into `mirror`. To be answered with [`Self::accept`] or [`Self::refuse`]; until then
    /// nothing more comes. Safe to drop.
    ///
    /// # Errors
    /// [`PlanStreamError`] when the stream is over, which it is also after what is not understood: the agent is told, and what came
    /// beside it comes again on the next stream.
    pub async fn next(&mut self, mirror: &mut PlanMirror) -> Result<(), PlanStreamError> {
        let response = self.responses.message().await?;
        let response = response.ok_or_else(|| CallError::unavailable("the agent ended the stream"))?;
        self.nonce.clone_from(&response.nonce);
        mirror.take(response).or_else(|error| {
            let text = format!("{error}: {}", error.source);
            self.refuse(text.clone())?;
            Err(CallError::refused(format!("the agent sent what this proxy does not understand: {text}")).into())
        })
    }

    /// What came last is in force.
    ///
    /// # Errors
    /// [`CallError::Unavailable`] if the stream is over.
    pub fn accept(&mut self) -> Result<(), CallError> {
        self.answer(None)
    }

    /// What came last is not in force, for this reason.
    ///
    /// # Errors
    /// [`CallError::Unavailable`] if the stream is over.
    pub fn refuse(&mut self, text: String) -> Result<(), CallError> {
        self.answer(Some(Refusal { code: INVALID_ARGUMENT, message: text, ..Refusal::default() }))
    }

    /// No other process serves beside this one any more: what was accepted is in force.
    ///
    /// # Errors
    /// [`CallError::Unavailable`] if the stream is over.
    pub fn is_alone(&mut self) -> Result<(), CallError> {
        let node = Some(node(&self.id, &[(BESIDE, "")]));
        self.send(DeltaDiscoveryRequest { node, ..request() })
    }

    fn answer(&mut self, error_detail: Option<Refusal>) -> Result<(), CallError> {
        let response_nonce = std::mem::take(&mut self.nonce);
        let answer = DeltaDiscoveryRequest { response_nonce, error_detail, ..request() };
        self.send(answer)
    }

    fn send(&mut self, request: DeltaDiscoveryRequest) -> Result<(), CallError> {
        self.requests.try_send(request).map_err(|_| CallError::unavailable("the stream to the agent is over"))
    }
}

fn node(id: &str, fields: &[(&str, &str)]) -> Node {
    let text = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
    let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), text(value))).collect();
    Node { id: id.to_owned(), metadata: Some(Struct { fields }), ..Node::default() }
}

fn request() -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest { type_url: ResourceType::PlanPart.type_url().to_owned(), ..DeltaDiscoveryRequest::default() }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::google::protobuf::Any;

    use super::*;

    fn resource(name: &str, value: impl Into<Vec<u8>>) -> Resource {
        let value = Any { value: value.into(), ..Any::default() };
        Resource { name: name.to_owned(), version: "1".to_owned(), resource: Some(value), ..Resource::default() }
    }

    fn response(resources: Vec<Resource>) -> DeltaDiscoveryResponse {
        DeltaDiscoveryResponse { resources, system_version_info: "7".to_owned(), ..DeltaDiscoveryResponse::default() }
    }

    #[test]
    fn what_comes_beside_what_is_not_understood_is_not_taken_for_had() {
        let whose = r#"{"proxy":{"proxy":{"node":"n1","id":"web"},"service":"web"}}"#;
        let proxy = || resource("proxy", whose);
        let leaf = || resource("leaf", r#"{"certificate_chain_pem":"a","private_key_pem":"b"}"#);
        let mut mirror = PlanMirror::default();
        for odd in [resource("later/x", r#"{"later":{}}"#), resource("trust", "{"), resource("trust", whose)] {
            let name = odd.name.clone();
            let error = mirror.take(response(vec![proxy(), odd, leaf()])).expect_err("not understood");
            assert_eq!(error.name, name);
            // The next stream says what is there; the agent sends whatever is not.
            assert!(mirror.versions().is_empty() && mirror.leaf.is_none(), "{mirror:?}");
            assert_eq!(mirror.revision, Revision(0));
        }
        mirror.take(response(vec![proxy(), leaf()])).expect("understood");
        let had = [("leaf", "1"), ("proxy", "1")].map(|(name, version)| (name.to_owned(), version.to_owned()));
        assert_eq!(mirror.versions(), HashMap::from(had));
        assert_eq!((mirror.leaf.is_some(), mirror.revision), (true, Revision(7)));
    }
}
