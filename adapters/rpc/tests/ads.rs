//! The transport by itself: who is let in, what a stream carries, how it ends.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/mesh.rs"]
mod mesh;

use std::net::SocketAddr;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest};
use hyper_util::rt::TokioIo;
use mesh::{Authority, DEADLINE, LOCALHOST, Server, Source, World, names};
use rustls::pki_types::ServerName;
use starling_identity::Identity;
use starling_model::{AclSecret, Protocol};
use starling_rpc::{AttachError, CONNECTIONS_MAX, Doors, LoopbackListener, Peer, REQUEST_BYTES_MAX};
use starling_tls::{ClientAuth, CredentialSlot, Credentials, TrustRoots, client_config, server_config};
use starling_xds::{Report, ResourceType};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

async fn start() -> (Source, World, Server) {
    let authority = Authority::new();
    let mut world = World::new(&authority, Protocol::Http, SocketAddr::from((LOCALHOST, 1)));
    let source = Source::new(world.next());
    let server = Server::start(&source, SocketAddr::from((LOCALHOST, 0))).await;
    (source, world, server)
}

async fn connect(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

/// A stream of the incremental variant.
struct Stream {
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: Streaming<DeltaDiscoveryResponse>,
}

impl Stream {
    async fn open(channel: Channel) -> Self {
        let (requests, receiver) = mpsc::channel(8);
        let mut client = AggregatedDiscoveryServiceClient::new(channel);
        let responses = client.delta_aggregated_resources(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        Self { requests, responses }
    }

    async fn ask(&self, node: &str, kind: ResourceType, names: &[&str]) {
        let request = DeltaDiscoveryRequest {
            node: Some(Node { id: node.to_owned(), ..Default::default() }),
            type_url: kind.type_url().to_owned(),
            resource_names_subscribe: names.iter().map(|&name| name.to_owned()).collect(),
            ..Default::default()
        };
        self.requests.send(request).await.unwrap();
    }

    async fn take(&self, response: &DeltaDiscoveryResponse) {
        let (type_url, response_nonce) = (response.type_url.clone(), response.nonce.clone());
        let ack = DeltaDiscoveryRequest { type_url, response_nonce, ..Default::default() };
        self.requests.send(ack).await.unwrap();
    }

    async fn next(&mut self) -> Result<DeltaDiscoveryResponse, Status> {
        let next = tokio::time::timeout(DEADLINE, self.responses.message()).await.expect("the stream is silent");
        next.map(|response| response.expect("the stream ended without a status"))
    }
}

#[tokio::test]
async fn plaintext_stays_on_loopback() {
    let anywhere: SocketAddr = "0.0.0.0:0".parse().unwrap();
    for refused in [
        LoopbackListener::bind(anywhere).await.unwrap_err(),
        LoopbackListener::new(TcpListener::bind(anywhere).await.unwrap()).unwrap_err(),
    ] {
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
        assert!(refused.to_string().contains("on loopback only; 0.0.0.0:"), "{refused}");
    }
}

#[tokio::test]
async fn a_stream_carries_resources_and_brings_reports() {
    let (source, world, server) = start().await;
    let mut stream = Stream::open(connect(server.address).await).await;
    stream.ask("web", ResourceType::Listener, &[]).await;
    let listeners = stream.next().await.unwrap();
    assert_eq!(listeners.resources.len(), 1);
    assert_eq!(listeners.resources[0].name, format!("api:{}", world.outbound));
    stream.take(&listeners).await;
    stream.ask("web", ResourceType::Route, &["api"]).await;
    let routes = stream.next().await.unwrap();
    assert_eq!(routes.resources[0].resource.as_ref().unwrap().type_url, ResourceType::Route.type_url());
    stream.take(&routes).await;
    source.applied("web", world.revision()).await;
    assert!(matches!(source.attached.lock().unwrap()[0].1, Peer::Loopback(_)));
    // The feed is dropped with the stream.
    let mut detached = source.detached.subscribe();
    drop(stream);
    tokio::time::timeout(DEADLINE, detached.wait_for(|count| *count == 1)).await.unwrap().unwrap();
    server.stop().await;
}

#[tokio::test]
async fn who_is_not_known_is_told_so() {
    let (_source, _world, server) = start().await;
    let channel = connect(server.address).await;
    let mut stream = Stream::open(channel.clone()).await;
    stream.ask("ghost", ResourceType::Cluster, &[]).await;
    let status = stream.next().await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::NotFound, "no proxy \"ghost\" is registered"));
    // Without a name, and with two.
    let mut stream = Stream::open(channel.clone()).await;
    stream.ask("", ResourceType::Cluster, &[]).await;
    assert_eq!(stream.next().await.unwrap_err().code(), Code::InvalidArgument);
    let mut stream = Stream::open(channel).await;
    stream.ask("web", ResourceType::Cluster, &[]).await;
    stream.next().await.unwrap();
    stream.ask("api", ResourceType::Cluster, &[]).await;
    assert_eq!(stream.next().await.unwrap_err().code(), Code::InvalidArgument);
    server.stop().await;
}

#[tokio::test]
async fn a_token_comes_with_its_stream_which_ends_when_the_proxy_may_be_served_no_more() {
    let (source, _world, server) = start().await;
    let channel = connect(server.address).await;
    let open = async |token: Option<&[u8]>| {
        let (requests, receiver) = mpsc::channel(8);
        let mut call = tonic::Request::new(ReceiverStream::new(receiver));
        if let Some(token) = token {
            call.metadata_mut().insert("x-consul-token", token.try_into().unwrap());
        }
        let mut client = AggregatedDiscoveryServiceClient::new(channel.clone());
        let responses = client.delta_aggregated_resources(call).await?.into_inner();
        Ok::<_, Status>(Stream { requests, responses })
    };
    for odd in [&b"a b"[..], &[b'a'; 10_000], "é".as_bytes()] {
        assert_eq!(open(Some(odd)).await.err().unwrap().code(), Code::Unauthenticated);
    }
    assert!(source.attached.lock().unwrap().is_empty());
    for token in [None, Some(&b""[..]), Some(b"sesame")] {
        let mut stream = open(token).await.unwrap();
        stream.ask("web", ResourceType::Cluster, &["*"]).await;
        stream.next().await.unwrap();
    }
    assert_eq!(*source.shown.lock().unwrap(), [None, None, AclSecret::new("sesame")]);
    let mut stream = open(None).await.unwrap();
    stream.ask("web", ResourceType::Cluster, &["*"]).await;
    stream.next().await.unwrap();
    source.ends.send_replace(Some(AttachError::Refused { reason: "no more".to_owned() }));
    let ended = stream.next().await.unwrap_err();
    assert_eq!((ended.code(), ended.message()), (Code::PermissionDenied, "no more"));
    server.stop().await;
}

#[tokio::test]
async fn too_large_a_request_ends_its_stream_only() {
    let (_source, _world, server) = start().await;
    let channel = connect(server.address).await;
    let mut good = Stream::open(channel.clone()).await;
    good.ask("web", ResourceType::Cluster, &[]).await;
    good.next().await.unwrap();
    let mut bad = Stream::open(channel.clone()).await;
    let name = "x".repeat(1_000);
    bad.ask("web", ResourceType::Endpoints, &vec![name.as_str(); REQUEST_BYTES_MAX / 1_000]).await;
    assert_eq!(bad.next().await.unwrap_err().code(), Code::OutOfRange);
    let mut many = Stream::open(channel).await;
    let names: Vec<String> = (0..=starling_xds::session::NAMES_PER_KIND_MAX).map(|n| n.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    many.ask("web", ResourceType::Endpoints, &names).await;
    assert_eq!(many.next().await.unwrap_err().code(), Code::InvalidArgument);
    good.ask("web", ResourceType::Secret, &["roots"]).await;
    good.next().await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_stopping_server_sends_its_streams_elsewhere() {
    let (_source, _world, server) = start().await;
    let channel = connect(server.address).await;
    let mut stream = Stream::open(channel.clone()).await;
    stream.ask("web", ResourceType::Cluster, &[]).await;
    stream.next().await.unwrap();
    // One that has not said who it is must not keep the server, either.
    let mut silent = Stream::open(channel).await;
    server.stop().await;
    assert_eq!(stream.next().await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(silent.next().await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn who_says_nothing_does_not_hold_a_stopping_server() {
    let (_source, _world, server) = start().await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    // Its answer shows that the silent one, which came before, has been accepted.
    let mut stream = Stream::open(connect(server.address).await).await;
    stream.ask("web", ResourceType::Cluster, &[]).await;
    stream.next().await.unwrap();
    server.stop().await;
    let mut rest = Vec::new();
    // Reset or closed; either way it is over.
    let _ = tokio::time::timeout(DEADLINE, silent.read_to_end(&mut rest)).await.expect("the connection stays open");
}

#[tokio::test]
async fn state_of_the_world_comes_over_the_same_door() {
    let (source, world, server) = start().await;
    let (requests, receiver) = mpsc::channel(8);
    let mut client = AggregatedDiscoveryServiceClient::new(connect(server.address).await);
    let stream = client.stream_aggregated_resources(ReceiverStream::new(receiver)).await.unwrap();
    let mut responses = stream.into_inner();
    let mut request = DiscoveryRequest {
        node: Some(Node { id: "api".to_owned(), ..Default::default() }),
        type_url: ResourceType::Listener.type_url().to_owned(),
        ..Default::default()
    };
    requests.send(request.clone()).await.unwrap();
    let response = responses.message().await.unwrap().unwrap();
    assert_eq!(response.resources[0].type_url, ResourceType::Listener.type_url());
    request.response_nonce = response.nonce;
    request.error_detail =
        Some(envoy_types::pb::google::rpc::Status { message: "no".to_owned(), ..Default::default() });
    requests.send(request).await.unwrap();
    let report = source.report("api", |report| matches!(report, Report::Rejected { .. })).await;
    let Report::Rejected { resources, text, .. } = report else { unreachable!() };
    assert_eq!((resources.len(), text.as_str()), (1, "no"));
    assert!(resources[0].ends_with(&world.public.to_string()));
    server.stop().await;
}

async fn tls_to(
    address: SocketAddr,
    config: Arc<rustls::ClientConfig>,
) -> std::io::Result<TokioIo<tokio_rustls::client::TlsStream<TcpStream>>> {
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("starling").expect("a valid name");
    Ok(TokioIo::new(tokio_rustls::TlsConnector::from(config).connect(name, stream).await?))
}

fn slot(authority: &Authority, name: &str) -> Arc<CredentialSlot> {
    let (key, chain) = authority.key_and_chain(name);
    CredentialSlot::new(Credentials::new(&chain, &key).unwrap())
}

#[tokio::test]
async fn members_of_the_mesh_are_known_by_their_certificates() {
    let authority = Authority::new();
    let mut world = World::new(&authority, Protocol::Http, SocketAddr::from((LOCALHOST, 1)));
    let source = Source::new(world.next());
    let roots = TrustRoots::from_pem([authority.root_pem()]).unwrap();
    let tls = Arc::new(server_config(slot(&authority, "server"), &roots, ClientAuth::Required).unwrap());
    let listener = TcpListener::bind((LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let doors = Doors { proxies: Some(Arc::new(source.clone())), ..Doors::default() };
    let server = tokio::spawn(starling_rpc::serve_tls(listener, tls, doors, CONNECTIONS_MAX, std::future::pending()));

    let expected = Identity::Workload(mesh::identity("server"));
    let dial = async |credentials: Option<Arc<CredentialSlot>>| {
        let config = Arc::new(client_config(credentials, &roots, expected.clone()).unwrap());
        let connector = tower::service_fn(move |_| tls_to(address, Arc::clone(&config)));
        Endpoint::from_static("http://starling").connect_with_connector(connector).await
    };
    let mut stream = Stream::open(dial(Some(slot(&authority, "web"))).await.unwrap()).await;
    stream.ask("web", ResourceType::Cluster, &[]).await;
    assert_eq!(stream.next().await.unwrap().resources.len(), 1);
    let peer = source.attached.lock().unwrap()[0].1.clone();
    let Peer::Member { identity, is_local: true, .. } = peer else { panic!("no local member: {peer:?}") };
    assert_eq!(identity.to_uri(), names().identity_of(&mesh::service("web")));
    // A certificate of another CA, and none at all: the handshake fails, at the latest when the first answer is read.
    for refused in [Some(slot(&Authority::new(), "web")), None] {
        let Ok(channel) = dial(refused).await else { continue };
        let mut client = AggregatedDiscoveryServiceClient::new(channel);
        let request = tokio_stream::pending::<DeltaDiscoveryRequest>();
        assert!(client.delta_aggregated_resources(request).await.is_err());
    }
    assert_eq!(source.attached.lock().unwrap().len(), 1);
    server.abort();
}
