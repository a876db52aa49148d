//! Agents and servers over real connections: strangers that join, members that come back, and who is not let in.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rcgen::KeyPair;
use rustls::pki_types::ServerName;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, HandshakeKind, ServerConfig, ServerConnection, StreamOwned,
};
use starling_identity::{Identity, RootFingerprint};
use starling_tls::{
    Caller, CredentialSlot, Credentials, LeafKey, PeerError, TrustRoots, agent_client_config, agent_server_config,
    client_config, join_client_config,
};

use crate::mesh::{DAY, Mesh, agent, days_ago, now, server, slot, trust_domain};

/// After which a test that waits for the other end has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// How a connection went, as the server saw it.
#[derive(Debug)]
struct Met {
    kind: HandshakeKind,
    caller: Result<Caller, PeerError>,
    later: Result<Caller, PeerError>,
}

/// Why nobody met: what the side says that refused the other's certificate.
#[derive(Debug)]
struct Refused(io::Error);

impl Refused {
    fn certificate(&self) -> Option<&CertificateError> {
        let rustls::Error::InvalidCertificate(error) = self.0.get_ref()?.downcast_ref()? else { return None };
        Some(error)
    }

    fn peer(&self) -> &PeerError {
        PeerError::behind(&self.0).unwrap_or_else(|| panic!("expected a peer error, got {:?}", self.0))
    }
}

/// Connects over TCP and carries a byte each way, after which the client has the server's ticket.
fn meet(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> Result<Met, Refused> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = Arc::clone(server);
    let serving = thread::spawn(move || -> io::Result<Met> {
        let (socket, _) = listener.accept()?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut stream = StreamOwned::new(ServerConnection::new(server).unwrap(), socket);
        stream.read_exact(&mut [0])?;
        stream.write_all(&[1])?;
        let chain = stream.conn.peer_certificates();
        Ok(Met {
            kind: stream.conn.handshake_kind().unwrap(),
            caller: Caller::of(chain, now()),
            later: Caller::of(chain, now().plus(4 * DAY)),
        })
    });
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let name = ServerName::from(address.ip());
    let mut stream = StreamOwned::new(ClientConnection::new(Arc::clone(client), name).unwrap(), socket);
    let called = stream.write_all(&[0]).and_then(|()| stream.read_exact(&mut [0]));
    drop(stream);
    match (called, serving.join().unwrap()) {
        (Ok(()), Ok(met)) => Ok(met),
        (Err(called), Err(served)) => {
            let mut refused = [Refused(called), Refused(served)].into_iter();
            Err(refused.find(|refused| refused.certificate().is_some()).unwrap())
        }
        (called, served) => panic!("client: {called:?}, server: {served:?}"),
    }
}

fn serving(mesh: &Mesh) -> Arc<ServerConfig> {
    Arc::new(agent_server_config(mesh.server_credentials(), &mesh.roots()).unwrap())
}

fn presenting(credentials: Arc<CredentialSlot>, mesh: &Mesh) -> Arc<ServerConfig> {
    Arc::new(agent_server_config(credentials, &mesh.roots()).unwrap())
}

fn joining(mesh: &Mesh) -> Arc<ClientConfig> {
    Arc::new(join_client_config(mesh.authority.root_fingerprint()).unwrap())
}

fn calling(mesh: &Mesh, credentials: Credentials) -> Arc<ClientConfig> {
    Arc::new(agent_client_config(credentials, &mesh.roots(), server()).unwrap())
}

/// The identity of a caller that was let in as a member.
fn identity(caller: Result<Caller, PeerError>) -> Option<Identity> {
    match caller {
        Ok(Caller::Member { identity, .. }) => Some(identity),
        Ok(Caller::Stranger) | Err(_) => None,
    }
}

#[test]
fn a_stranger_with_the_fingerprint_of_the_root_is_let_in_as_a_stranger() {
    let mesh = Mesh::new();
    for _ in 0..2 {
        let met = meet(&joining(&mesh), &serving(&mesh)).unwrap();
        assert_eq!((met.caller, met.kind), (Ok(Caller::Stranger), HandshakeKind::Full));
    }
}

#[test]
fn a_server_below_another_root_is_refused_before_anything_is_said() {
    // Of the same trust domain and with the same names: only the root differs.
    let (mesh, other) = (Mesh::new(), Mesh::new());
    let refused = meet(&joining(&mesh), &serving(&other)).unwrap_err();
    assert_eq!(refused.peer(), &PeerError::OtherRoot);
    assert!(refused.peer().to_string().contains("join token"));
}

#[test]
fn whoever_sends_the_right_root_must_also_be_signed_by_it() {
    let (mesh, other) = (Mesh::new(), Mesh::new());
    let key = LeafKey::generate().unwrap();
    let chain = other.issue_server(&key).certificate_pem + &mesh.authority.root().certificate_pem;
    let refused = meet(&joining(&mesh), &presenting(slot(&chain, &key), &mesh)).unwrap_err();
    assert_eq!(refused.certificate(), Some(&CertificateError::UnknownIssuer));
}

#[test]
fn the_root_must_be_sent() {
    let mesh = Mesh::new();
    let key = LeafKey::generate().unwrap();
    let bare = slot(&mesh.issue_server(&key).certificate_pem, &key);
    let refused = meet(&joining(&mesh), &presenting(bare, &mesh)).unwrap_err();
    assert_eq!(refused.peer(), &PeerError::OtherRoot);
}

#[test]
fn a_leaf_is_no_root_even_if_a_token_names_it() {
    let mesh = Mesh::new();
    let key = LeafKey::generate().unwrap();
    let pem = mesh.issue_server(&key).certificate_pem;
    let der = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap().1.contents;
    let client = Arc::new(join_client_config(RootFingerprint::of(&der)).unwrap());
    let chain = pem.clone() + &pem;
    let refused = meet(&client, &presenting(slot(&chain, &key), &mesh)).unwrap_err();
    assert_eq!(refused.peer(), &PeerError::OtherRoot);
}

#[test]
fn a_member_does_not_pose_as_a_server_to_one_that_joins() {
    let mesh = Mesh::new();
    let key = LeafKey::generate().unwrap();
    let chain = mesh.issue(&key, "web", now(), None).chain_pem + &mesh.authority.root().certificate_pem;
    let refused = meet(&joining(&mesh), &presenting(slot(&chain, &key), &mesh)).unwrap_err();
    assert!(matches!(refused.peer(), PeerError::NotAServer { .. }), "{refused:?}");
}

#[test]
fn an_expired_server_lets_nobody_join() {
    let mesh = Mesh::born(days_ago(30));
    let key = LeafKey::generate().unwrap();
    let chain = mesh.issue_server_at(&key, days_ago(10)).chain_pem;
    let refused = meet(&joining(&mesh), &presenting(slot(&chain, &key), &mesh)).unwrap_err();
    assert!(matches!(refused.certificate(), Some(CertificateError::ExpiredContext { .. })), "{refused:?}");
}

#[test]
fn foreign_and_expired_agents_are_refused_where_strangers_are_not() {
    let mesh = Mesh::born(days_ago(30));
    let foreign = calling(&mesh, Mesh::new().agent_credentials("n1", now()));
    assert_eq!(meet(&foreign, &serving(&mesh)).unwrap_err().certificate(), Some(&CertificateError::UnknownIssuer));
    let expired = calling(&mesh, mesh.agent_credentials("n1", days_ago(10)));
    let refused = meet(&expired, &serving(&mesh)).unwrap_err();
    assert!(matches!(refused.certificate(), Some(CertificateError::ExpiredContext { .. })), "{refused:?}");
}

#[test]
fn a_resumed_session_carries_the_identity_until_the_certificate_is_over() {
    let mesh = Mesh::new();
    let (client, server) = (calling(&mesh, mesh.agent_credentials("n1", now())), serving(&mesh));
    for expected in [HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::Resumed] {
        let met = meet(&client, &server).unwrap();
        assert_eq!((met.kind, identity(met.caller)), (expected, Some(agent("n1"))));
        assert!(matches!(met.later, Err(PeerError::Expired { .. })), "{:?}", met.later);
    }
}

#[test]
fn sessions_are_of_one_agent_each() {
    let mesh = Mesh::new();
    let server = serving(&mesh);
    let agents = ["n1", "n2"].map(|node| (node, calling(&mesh, mesh.agent_credentials(node, now()))));
    for expected in [HandshakeKind::Full, HandshakeKind::Resumed] {
        for (node, client) in &agents {
            let met = meet(client, &server).unwrap();
            assert_eq!((met.kind, identity(met.caller)), (expected, Some(agent(node))));
        }
    }
}

#[test]
fn a_restarted_server_knows_its_agents_by_a_full_handshake() {
    let mesh = Mesh::new();
    let client = calling(&mesh, mesh.agent_credentials("n1", now()));
    for server in [serving(&mesh), serving(&mesh)] {
        let met = meet(&client, &server).unwrap();
        assert_eq!((met.kind, identity(met.caller)), (HandshakeKind::Full, Some(agent("n1"))));
    }
}

#[test]
fn a_session_does_not_outlive_the_trust_in_its_root() {
    let (old, new) = (Mesh::new(), Mesh::new());
    let both = TrustRoots::new([old.authority.root(), new.authority.root()]).unwrap();
    let credentials = old.agent_credentials("n1", now());
    let client = Arc::new(agent_client_config(credentials, &both, server()).unwrap());
    let rotating = Arc::new(agent_server_config(new.server_credentials(), &both).unwrap());
    meet(&client, &rotating).unwrap();
    assert_eq!(meet(&client, &rotating).unwrap().kind, HandshakeKind::Resumed);
    assert_eq!(meet(&client, &serving(&new)).unwrap_err().certificate(), Some(&CertificateError::UnknownIssuer));
}

#[test]
fn agents_take_a_relay_of_their_datacentre_for_a_server_and_servers_do_not() {
    let mesh = Mesh::new();
    let relay = |datacenter: &str| {
        let key = KeyPair::generate().unwrap();
        let uri = format!("spiffe://{}/agent/relay/dc/{datacenter}/id/r1", trust_domain());
        let chain = mesh.forge(&key, &[&uri], |_| {}).pem() + &mesh.authority.root().certificate_pem;
        slot(&chain, &LeafKey::from_pem(&key.serialize_pem()).unwrap())
    };
    let agent = calling(&mesh, mesh.agent_credentials("n1", now()));
    meet(&agent, &presenting(relay("dc1"), &mesh)).unwrap();
    meet(&joining(&mesh), &presenting(relay("dc1"), &mesh)).unwrap();
    let elsewhere = meet(&agent, &presenting(relay("dc2"), &mesh)).unwrap_err();
    assert!(matches!(elsewhere.peer(), PeerError::Unexpected { .. }), "{elsewhere:?}");
    let peer = Arc::new(client_config(Some(mesh.server_credentials()), &mesh.roots(), server()).unwrap());
    let refused = meet(&peer, &presenting(relay("dc1"), &mesh)).unwrap_err();
    assert!(matches!(refused.peer(), PeerError::Unexpected { .. }), "{refused:?}");
}
