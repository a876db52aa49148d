//! Handshakes in memory between holders of good and bad certificates.

use std::sync::Arc;

use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, ProtocolVersion, ServerConfig, ServerConnection,
};
use starling_identity::Identity;
use starling_tls::{ClientAuth, PeerError, client_config, peer_identity, server_config};

use crate::mesh::{Mesh, days_ago, now, server, trust_domain, workload};

/// Round trips after which a handshake that has not ended counts as stuck; TLS 1.3 needs two.
const FLIGHTS_MAX: usize = 10;

pub type Shaken = (ClientConnection, ServerConnection);

/// Moves everything that `from` has to say to `to`.
fn carry(from: &mut Connection, to: &mut Connection) -> Result<(), rustls::Error> {
    let mut wire = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut wire).unwrap();
    }
    let mut wire = wire.as_slice();
    while !wire.is_empty() {
        to.read_tls(&mut wire).unwrap();
        to.process_new_packets()?;
    }
    Ok(())
}

pub fn shake(client: ClientConfig, server: ServerConfig) -> Result<Shaken, rustls::Error> {
    let name = ServerName::try_from("any.name.at.all").unwrap();
    let mut client = Connection::Client(ClientConnection::new(Arc::new(client), name).unwrap());
    let mut server = Connection::Server(ServerConnection::new(Arc::new(server)).unwrap());
    for _ in 0..FLIGHTS_MAX {
        carry(&mut client, &mut server)?;
        carry(&mut server, &mut client)?;
        if !client.is_handshaking() && !server.is_handshaking() {
            match (client, server) {
                (Connection::Client(client), Connection::Server(server)) => return Ok((client, server)),
                _ => unreachable!("the two were made above"),
            }
        }
    }
    panic!("the handshake does not end");
}

/// The peer error inside a refused handshake.
fn peer_error(result: Result<Shaken, rustls::Error>) -> PeerError {
    let error = certificate_error(result);
    let CertificateError::Other(other) = &error else { panic!("expected a peer error, got {error:?}") };
    other.0.downcast_ref::<PeerError>().unwrap().clone()
}

fn certificate_error(result: Result<Shaken, rustls::Error>) -> CertificateError {
    let error = result.unwrap_err();
    let rustls::Error::InvalidCertificate(error) = error else { panic!("expected a certificate error, got {error:?}") };
    error
}

fn serving(mesh: &Mesh, client_auth: ClientAuth) -> ServerConfig {
    server_config(mesh.server_credentials(), &mesh.roots(), client_auth).unwrap()
}

fn calling(mesh: &Mesh, service: &str) -> ClientConfig {
    client_config(Some(mesh.workload_credentials(service, now())), &mesh.roots(), server()).unwrap()
}

/// A client that presents `chain` to whomever it meets, trusting the mesh's own server.
fn presenting(mesh: &Mesh, chain: Vec<CertificateDer<'static>>, key: &KeyPair) -> ClientConfig {
    let anonymous = client_config(None, &mesh.roots(), server()).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let certified = rustls::sign::CertifiedKey::from_der(chain, key, anonymous.crypto_provider()).unwrap();
    let mut config = anonymous;
    config.client_auth_cert_resolver = Arc::new(rustls::sign::SingleCertAndKey::from(certified));
    config
}

fn presenting_forged(
    mesh: &Mesh,
    names: &[&str],
    change: impl FnOnce(&mut CertificateParams),
) -> Result<Shaken, rustls::Error> {
    let key = KeyPair::generate().unwrap();
    let certificate = mesh.forge(&key, names, change);
    shake(presenting(mesh, vec![certificate.into()], &key), serving(mesh, ClientAuth::Required))
}

#[test]
fn members_of_a_mesh_know_each_other() {
    let mesh = Mesh::new();
    let (client, server_side) = shake(calling(&mesh, "web"), serving(&mesh, ClientAuth::Required)).unwrap();
    assert_eq!(client.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    assert_eq!(client.alpn_protocol(), Some(&b"h2"[..]));
    assert_eq!(peer_identity(client.peer_certificates().unwrap()), Ok(server()));
    assert_eq!(peer_identity(server_side.peer_certificates().unwrap()), Ok(Identity::Workload(workload("web"))));
}

#[test]
fn a_restarted_ca_still_signs_for_the_same_root() {
    let mesh = Mesh::new();
    let serving = serving(&mesh, ClientAuth::Required);
    let reopened = starling_tls::CertificateAuthority::open(mesh.folder.path()).unwrap();
    let restarted = Mesh { authority: reopened, folder: mesh.folder };
    shake(calling(&restarted, "web"), serving).unwrap();
}

#[test]
fn workloads_call_one_another_by_spiffe_id() {
    let mesh = Mesh::new();
    let api = || server_config(mesh.workload_credentials("api", now()), &mesh.roots(), ClientAuth::Required).unwrap();
    let web = |expected| client_config(Some(mesh.workload_credentials("web", now())), &mesh.roots(), expected).unwrap();
    shake(web(Identity::Workload(workload("api"))), api()).unwrap();
    let refusal = peer_error(shake(web(Identity::Workload(workload("db"))), api()));
    assert_eq!(
        refusal,
        PeerError::Unexpected {
            found: Box::new(Identity::Workload(workload("api"))),
            wanted: Box::new(Identity::Workload(workload("db"))),
        }
    );
}

#[test]
fn a_workload_cannot_pose_as_a_server() {
    let mesh = Mesh::new();
    let posing = server_config(mesh.workload_credentials("web", now()), &mesh.roots(), ClientAuth::Required).unwrap();
    assert!(matches!(peer_error(shake(calling(&mesh, "web"), posing)), PeerError::Unexpected { .. }));
}

#[test]
fn a_client_of_another_ca_is_refused() {
    // The foreign CA has the same trust domain and the same names: only its key differs.
    let (mesh, foreign) = (Mesh::new(), Mesh::new());
    let caller = client_config(Some(foreign.workload_credentials("web", now())), &mesh.roots(), server()).unwrap();
    let error = certificate_error(shake(caller, serving(&mesh, ClientAuth::Required)));
    assert_eq!(error, CertificateError::UnknownIssuer);
}

#[test]
fn a_server_of_another_ca_is_refused() {
    let (mesh, foreign) = (Mesh::new(), Mesh::new());
    let error = certificate_error(shake(calling(&mesh, "web"), serving(&foreign, ClientAuth::Required)));
    assert_eq!(error, CertificateError::UnknownIssuer);
}

#[test]
fn a_client_without_certificate_is_let_in_only_where_that_is_optional() {
    let mesh = Mesh::new();
    let anonymous = || client_config(None, &mesh.roots(), server()).unwrap();
    assert_eq!(
        shake(anonymous(), serving(&mesh, ClientAuth::Required)).unwrap_err(),
        rustls::Error::NoCertificatesPresented
    );
    let (_, server_side) = shake(anonymous(), serving(&mesh, ClientAuth::Optional)).unwrap();
    assert_eq!(peer_identity(server_side.peer_certificates().unwrap_or_default()), Err(PeerError::NoCertificate));

    // Optional means absent or good, not absent or anything.
    let foreign = Mesh::new();
    let bad = client_config(Some(foreign.workload_credentials("web", now())), &mesh.roots(), server()).unwrap();
    assert_eq!(certificate_error(shake(bad, serving(&mesh, ClientAuth::Optional))), CertificateError::UnknownIssuer);
}

#[test]
fn expired_certificates_are_refused_at_both_ends() {
    let mesh = Mesh::born(days_ago(30));
    let expired = || mesh.workload_credentials("web", days_ago(10));
    let caller = client_config(Some(expired()), &mesh.roots(), server()).unwrap();
    let error = certificate_error(shake(caller, serving(&mesh, ClientAuth::Required)));
    assert!(matches!(error, CertificateError::ExpiredContext { .. }), "{error:?}");

    let stale = server_config(expired(), &mesh.roots(), ClientAuth::Required).unwrap();
    let web = Identity::Workload(workload("web"));
    let caller = client_config(Some(mesh.workload_credentials("api", now())), &mesh.roots(), web).unwrap();
    let error = certificate_error(shake(caller, stale));
    assert!(matches!(error, CertificateError::ExpiredContext { .. }), "{error:?}");

    let early = mesh.workload_credentials("web", now().plus(2 * crate::mesh::DAY));
    let caller = client_config(Some(early), &mesh.roots(), server()).unwrap();
    let error = certificate_error(shake(caller, serving(&mesh, ClientAuth::Required)));
    assert!(matches!(error, CertificateError::NotValidYetContext { .. }), "{error:?}");
}

#[test]
fn exactly_one_identity_is_accepted() {
    let mesh = Mesh::new();
    let (web, db) = (workload("web").to_uri(), workload("db").to_uri());
    presenting_forged(&mesh, &[&web], |_| {}).unwrap();
    for (names, count) in [(&[web.as_str(), db.as_str()][..], 2), (&[web.as_str(), "https://example.com"], 2), (&[], 0)]
    {
        assert_eq!(peer_error(presenting_forged(&mesh, names, |_| {})), PeerError::UriCount { count });
    }
}

#[test]
fn identities_that_no_client_may_have_are_refused() {
    let mesh = Mesh::new();
    let authority = Identity::Authority(trust_domain()).to_uri();
    assert_eq!(peer_error(presenting_forged(&mesh, &[&authority], |_| {})), PeerError::Authority);
    let foreign = "spiffe://other.consul/ns/default/dc/dc1/svc/web";
    assert!(matches!(peer_error(presenting_forged(&mesh, &[foreign], |_| {})), PeerError::TrustDomain { .. }));
    let escaped = format!("{}%00", workload("web"));
    assert!(matches!(peer_error(presenting_forged(&mesh, &[&escaped], |_| {})), PeerError::SpiffeId(_)));
}

#[test]
fn a_server_certificate_alone_does_not_make_a_client() {
    let mesh = Mesh::new();
    let web = workload("web").to_uri();
    let result = presenting_forged(&mesh, &[&web], |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    assert!(matches!(
        certificate_error(result),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. }
    ));
}

#[test]
fn a_leaf_signs_nobody() {
    let mesh = Mesh::new();
    let (web, db) = (workload("web").to_uri(), workload("db").to_uri());
    // "web" is a true leaf of the mesh and signs "db" with its own key.
    let web_key = KeyPair::generate().unwrap();
    let web_leaf = mesh.forge(&web_key, &[&web], |params| params.is_ca = rcgen::IsCa::ExplicitNoCa);
    let issuer = rcgen::Issuer::from_ca_cert_der(web_leaf.der(), web_key).unwrap();
    let db_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![rcgen::SanType::URI(db.as_str().try_into().unwrap())];
    params.not_before = date_time_ymd(2020, 1, 1);
    let db_leaf = params.signed_by(&db_key, &issuer).unwrap();
    let caller = presenting(&mesh, vec![db_leaf.into(), web_leaf.into()], &db_key);
    assert!(matches!(shake(caller, serving(&mesh, ClientAuth::Required)), Err(rustls::Error::InvalidCertificate(_))));
}

#[test]
fn renewed_credentials_are_used_from_the_next_handshake_on() {
    let mesh = Mesh::new();
    let slot = mesh.workload_credentials("web", now());
    let caller = client_config(Some(Arc::clone(&slot)), &mesh.roots(), server()).unwrap();
    let seen = |caller: &ClientConfig| {
        let (_, server_side) = shake(caller.clone(), serving(&mesh, ClientAuth::Required)).unwrap();
        server_side.peer_certificates().unwrap()[0].clone().into_owned()
    };
    let first = seen(&caller);
    assert_eq!(seen(&caller), first);
    slot.replace(mesh.workload_credentials("web", now()).current());
    let second = seen(&caller);
    assert_ne!(second, first);
    assert_eq!(peer_identity(&[second]), Ok(Identity::Workload(workload("web"))));
}

#[test]
fn a_root_is_rotated_by_overlap() {
    let (old, new) = (Mesh::new(), Mesh::new());
    let both = starling_tls::TrustRoots::new([old.authority.root(), new.authority.root()]).unwrap();
    for mesh in [&old, &new] {
        let caller = client_config(Some(mesh.workload_credentials("web", now())), &both, server()).unwrap();
        for serving in [&old, &new] {
            let serving = server_config(serving.server_credentials(), &both, ClientAuth::Required).unwrap();
            shake(caller.clone(), serving).unwrap();
        }
    }
}

#[test]
fn garbage_is_no_identity() {
    assert_eq!(peer_identity(&[]), Err(PeerError::NoCertificate));
    assert_eq!(peer_identity(&[CertificateDer::from(vec![0x30, 0x03, 1, 2, 3])]), Err(PeerError::Malformed));
    let mesh = Mesh::new();
    let certificate = mesh.forge(&KeyPair::generate().unwrap(), &[&workload("web").to_uri()], |_| {});
    let mut longer = certificate.der().to_vec();
    longer.push(0);
    assert_eq!(peer_identity(&[CertificateDer::from(longer)]), Err(PeerError::Malformed));
}
