//! rustls configurations of the mesh: TLS 1.3, HTTP/2, both ends known by SPIFFE ID.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::Resumption;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, ServerName, SignatureVerificationAlgorithm, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{
    NoServerSessionStorage, ParsedCertificate, ProducesTickets, VerifierBuilderError, WebPkiClientVerifier,
};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, OtherError, ServerConfig, SignatureScheme,
};
use starling_identity::{Identity, RootFingerprint};
use starling_model::TrustDomain;

use crate::belief::{Belief, Believing};
use crate::credentials::{CredentialSlot, Credentials};
use crate::peer::{PeerError, member_identity, peer_identity};
use crate::roots::TrustRoots;

/// The protocol spoken inside: HTTP/2 over TLS (RFC 9113, section 3.1).
const ALPN_HTTP2: &[u8] = b"h2";

/// HTTP/1.1 over TLS (RFC 7301, section 6).
const ALPN_HTTP1: &[u8] = b"http/1.1";

/// Servers whose last sessions an agent remembers; a mesh has three or five.
const SERVERS_REMEMBERED: usize = 5;

/// What rustls sets aside for the tickets of one server; [`agent_server_config`] fills one of them.
const TICKETS_PER_SERVER: usize = 8;

/// Why a configuration cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// TLS 1.3 is not offered by the crypto provider.
    #[error("TLS 1.3 is not available")]
    Protocol(#[source] rustls::Error),
    /// The roots cannot verify clients.
    #[error("client certificates cannot be verified")]
    Verifier(#[source] VerifierBuilderError),
    /// The system has no randomness to give for the keys of session tickets.
    #[error("session tickets cannot be made")]
    Tickets(#[source] rustls::Error),
}

/// Whether a client must show who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAuth {
    /// No certificate, no connection.
    Required,
    /// A client may come without a certificate; one that it shows must be good.
    Optional,
}

/// The configuration of a server that knows its clients by their certificates.
///
/// Sessions are never resumed: a resumed one would outlive the client's certificate and its root. A full handshake
/// costs a fraction of a millisecond.
///
/// # Errors
/// [`ConfigError`] if the crypto provider or the roots do not allow it.
pub fn server_config(
    credentials: Arc<CredentialSlot>,
    roots: &TrustRoots,
    client_auth: ClientAuth,
) -> Result<ServerConfig, ConfigError> {
    let verifier = Arc::new(MemberVerifier::new(roots, client_auth)?);
    server_config_with(credentials, verifier)
}

/// The members that those roots vouch for.
impl MemberVerifier {
    fn new(roots: &TrustRoots, client_auth: ClientAuth) -> Result<Self, ConfigError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = WebPkiClientVerifier::builder_with_provider(roots.store(), provider);
        let builder = match client_auth {
            ClientAuth::Required => builder,
            ClientAuth::Optional => builder.allow_unauthenticated(),
        };
        let chain = builder.build().map_err(ConfigError::Verifier)?;
        Ok(Self { chain, trust_domain: roots.trust_domain().clone() })
    }
}

fn server_config_with(
    credentials: Arc<CredentialSlot>,
    verifier: Arc<dyn ClientCertVerifier>,
) -> Result<ServerConfig, ConfigError> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .map_err(ConfigError::Protocol)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(credentials);
    config.alpn_protocols = vec![ALPN_HTTP2.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// The configuration of a client that accepts `expected` and nobody else, whatever name or address it dials.
///
/// Without credentials the client stays anonymous.
///
/// # Errors
/// [`ConfigError::Protocol`] if the crypto provider does not allow it.
pub fn client_config(
    credentials: Option<Arc<CredentialSlot>>,
    roots: &TrustRoots,
    expected: Identity,
) -> Result<ClientConfig, ConfigError> {
    known(credentials, roots, expected, Relays::AreNobody)
}

fn known(
    credentials: Option<Arc<CredentialSlot>>,
    roots: &TrustRoots,
    expected: Identity,
    relays: Relays,
) -> Result<ClientConfig, ConfigError> {
    client(credentials, Trust::Known { roots: roots.clone(), expected: Box::new(expected), relays })
}

/// The configuration of the port where servers meet agents: strangers may come without a certificate to ask for one, and
/// sessions are resumed. Whom it let in is asked by [`crate::Caller::of`].
///
/// A session is a ticket that the agent keeps, about a kilobyte with its certificate; the server keeps none. The keys of the
/// tickets live as long as this configuration: a restart, or a new configuration with other roots, ends all sessions, and the
/// next handshakes are full ones.
///
/// # Errors
/// [`ConfigError`] if the crypto provider or the roots do not allow it.
pub fn agent_server_config(credentials: Arc<CredentialSlot>, roots: &TrustRoots) -> Result<ServerConfig, ConfigError> {
    Ok(rotating_server_config(credentials, roots)?.0)
}

/// The same, with the place where the roots are replaced while it serves. Other roots end all sessions, since a resumed one
/// is not held against them.
///
/// # Errors
/// As [`agent_server_config`].
pub fn rotating_server_config(
    credentials: Arc<CredentialSlot>,
    roots: &TrustRoots,
) -> Result<(ServerConfig, Arc<TrustSlot>), ConfigError> {
    let slot = Arc::new(TrustSlot(RwLock::new(Trusted::new(roots)?)));
    let mut config = server_config_with(credentials, Arc::clone(&slot) as _)?;
    config.ticketer = Arc::clone(&slot) as _;
    config.send_tls13_tickets = 1;
    Ok((config, slot))
}

/// The configuration of an agent or a relay that has its certificate: [`client_config`] with sessions that are resumed, and a
/// relay of the server's datacentre is as good as the server.
///
/// It takes the credentials themselves rather than a slot: a session from before a renewal would go on showing the old
/// certificate, so renewed credentials, like other roots, need a new configuration.
///
/// # Errors
/// As [`client_config`].
pub fn agent_client_config(
    credentials: Credentials,
    roots: &TrustRoots,
    server: Identity,
) -> Result<ClientConfig, ConfigError> {
    let mut config = known(Some(CredentialSlot::new(credentials)), roots, server, Relays::StandForServers)?;
    config.resumption = Resumption::in_memory_sessions(SERVERS_REMEMBERED * TICKETS_PER_SERVER);
    Ok(config)
}

/// The configuration of an agent that has a join token and nothing else: it stays anonymous, and accepts any server or relay of
/// the mesh whose root has this fingerprint. The server must send that root, as [`crate::CertificateAuthority::issue_server`]
/// lets it.
///
/// # Errors
/// [`ConfigError::Protocol`] if the crypto provider does not allow it.
pub fn join_client_config(root: RootFingerprint) -> Result<ClientConfig, ConfigError> {
    client(None, Trust::Pinned(root))
}

/// What is spoken over a connection between workloads, in the order in which it is preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alpn {
    /// Whatever the client speaks, without a word about it.
    Opaque,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
    /// HTTP/2 or HTTP/1.1; for servers.
    AnyHttp,
}

impl Alpn {
    pub(crate) fn protocols(self) -> Vec<Vec<u8>> {
        match self {
            Self::Opaque => Vec::new(),
            Self::Http1 => vec![ALPN_HTTP1.to_vec()],
            Self::Http2 => vec![ALPN_HTTP2.to_vec()],
            Self::AnyHttp => vec![ALPN_HTTP2.to_vec(), ALPN_HTTP1.to_vec()],
        }
    }
}

/// The configuration of a workload's public listener: [`server_config`] for what workloads speak.
///
/// # Errors
/// As [`server_config`].
pub fn workload_server_config(
    credentials: Arc<CredentialSlot>,
    roots: &TrustRoots,
    alpn: Alpn,
) -> Result<ServerConfig, ConfigError> {
    let mut config = server_config(credentials, roots, ClientAuth::Required)?;
    config.alpn_protocols = alpn.protocols();
    Ok(config)
}

/// The configuration with which a workload calls another: [`client_config`] for what workloads speak.
///
/// # Errors
/// As [`client_config`].
pub fn workload_client_config(
    credentials: Arc<CredentialSlot>,
    roots: &TrustRoots,
    expected: Identity,
    alpn: Alpn,
) -> Result<ClientConfig, ConfigError> {
    let mut config = client_config(Some(credentials), roots, expected)?;
    config.alpn_protocols = alpn.protocols();
    Ok(config)
}

fn client(credentials: Option<Arc<CredentialSlot>>, trust: Trust) -> Result<ClientConfig, ConfigError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let belief = ServerVerifier { algorithms: provider.signature_verification_algorithms.all, trust };
    let verifier = Believing::new(belief, Arc::clone(&provider));
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(ConfigError::Protocol)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match credentials {
        Some(slot) => builder.with_client_cert_resolver(slot),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![ALPN_HTTP2.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn refused(error: PeerError) -> rustls::Error {
    rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))))
}

/// Accepts clients whose chain ends at a root and whose leaf is a member of its trust domain.
#[derive(Debug)]
struct MemberVerifier {
    chain: Arc<dyn ClientCertVerifier>,
    trust_domain: TrustDomain,
}

impl ClientCertVerifier for MemberVerifier {
    fn offer_client_auth(&self) -> bool {
        self.chain.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.chain.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.chain.verify_client_cert(end_entity, intermediates, now)?;
        member_identity(end_entity, &self.trust_domain).map_err(refused)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// The roots that clients are held against, and the keys of the sessions that they resume, replaced while a server runs.
#[derive(Debug)]
pub struct TrustSlot(RwLock<Trusted>);

#[derive(Debug, Clone)]
struct Trusted {
    members: Arc<MemberVerifier>,
    tickets: Arc<dyn ProducesTickets>,
}

impl Trusted {
    fn new(roots: &TrustRoots) -> Result<Self, ConfigError> {
        let members = Arc::new(MemberVerifier::new(roots, ClientAuth::Optional)?);
        Ok(Self { members, tickets: aws_lc_rs::Ticketer::new().map_err(ConfigError::Tickets)? })
    }
}

impl TrustSlot {
    /// Holds clients against these roots from the next handshake on.
    ///
    /// # Errors
    /// [`ConfigError`] if the roots do not allow it; the ones before stay.
    pub fn replace(&self, roots: &TrustRoots) -> Result<(), ConfigError> {
        let trusted = Trusted::new(roots)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = trusted;
        Ok(())
    }

    fn current(&self) -> Trusted {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ClientCertVerifier for TrustSlot {
    fn offer_client_auth(&self) -> bool {
        true
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// None: they change, and a client of the mesh has one certificate to show.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.current().members.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.current().members.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.current().members.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.current().members.supported_verify_schemes()
    }
}

impl ProducesTickets for TrustSlot {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        self.current().tickets.lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.current().tickets.encrypt(plain)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.current().tickets.decrypt(cipher)
    }
}

/// Accepts a server by its identity; DNS names play no part.
#[derive(Debug)]
struct ServerVerifier {
    algorithms: &'static [&'static dyn SignatureVerificationAlgorithm],
    trust: Trust,
}

/// Which servers a client trusts.
#[derive(Debug)]
enum Trust {
    /// One identity, below roots that are known.
    Known { roots: TrustRoots, expected: Box<Identity>, relays: Relays },
    /// Any server or relay of the mesh, below a root of which no more is known than this.
    Pinned(RootFingerprint),
}

/// Whether a relay may stand for the server that is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relays {
    /// As to agents, and to relays.
    StandForServers,
    /// As to servers and workloads.
    AreNobody,
}

impl Relays {
    /// Whether who was found is whom the client expects.
    fn admit(self, found: &Identity, expected: &Identity) -> bool {
        match (self, found, expected) {
            (
                Self::StandForServers,
                Identity::Relay { trust_domain, datacenter, .. },
                Identity::Server { trust_domain: of_server, datacenter: its },
            ) => trust_domain == of_server && datacenter == its,
            _ => found == expected,
        }
    }
}

impl ServerVerifier {
    fn verify_chain(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        roots: &TrustRoots,
        now: UnixTime,
    ) -> Result<Identity, rustls::Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots.store(), intermediates, now, self.algorithms)?;
        member_identity(end_entity, roots.trust_domain()).map_err(refused)
    }
}

impl Belief for ServerVerifier {
    fn believe(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        match &self.trust {
            Trust::Known { roots, expected, relays } => {
                let found = self.verify_chain(end_entity, intermediates, roots, now)?;
                if !relays.admit(&found, expected) {
                    return Err(refused(PeerError::Unexpected { found: Box::new(found), wanted: expected.clone() }));
                }
            }
            Trust::Pinned(fingerprint) => {
                let named = intermediates.iter().find(|sent| RootFingerprint::of(sent) == *fingerprint);
                let named = named.ok_or_else(|| refused(PeerError::OtherRoot))?;
                // A root from elsewhere names no trust domain; the token names the root, and the root vouches for the server.
                let server = peer_identity(std::slice::from_ref(end_entity)).map_err(refused)?;
                let roots = TrustRoots::from_der(named.clone().into_owned(), server.trust_domain());
                let roots = roots.map_err(|_| refused(PeerError::OtherRoot))?;
                match self.verify_chain(end_entity, intermediates, &roots, now)? {
                    Identity::Server { .. } | Identity::Relay { .. } => {}
                    found @ (Identity::Workload(_) | Identity::Agent { .. } | Identity::Authority(_)) => {
                        return Err(refused(PeerError::NotAServer { found: Box::new(found) }));
                    }
                }
            }
        }
        Ok(())
    }
}
