//! The generator over TLS.

use clap::{Args, FromArgMatches};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use tokio_rustls::TlsAcceptor;

use super::super::tls::TlsArgs;
use super::*;

/// A CA, a server's configuration by it, and files of what a caller needs.
struct Tls {
    server: Arc<ServerConfig>,
    folder: tempfile::TempDir,
}

impl Tls {
    /// A server that speaks `alpn`, and wants a certificate of its callers or not.
    fn new(alpn: &[&str], wants_certificate: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let signed = |name: &str| {
            let key = KeyPair::generate().unwrap();
            (CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &ca).unwrap(), key)
        };
        let (certificate, key) = signed("127.0.0.1");
        let (caller, caller_key) = signed("caller");
        for (name, text) in
            [("ca.pem", ca.pem()), ("caller.pem", caller.pem()), ("caller.key", caller_key.serialize_pem())]
        {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = if wants_certificate {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(ca.der().clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let mut server = builder.with_single_cert(vec![certificate.der().clone()], key).unwrap();
        server.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        Self { server: Arc::new(server), folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Takes TLS off, and hands what is in it to the server of plaintext.
    async fn before(&self, inner: SocketAddr) -> Server {
        let acceptor = TlsAcceptor::from(Arc::clone(&self.server));
        server(|listener| async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let mut to = TcpStream::connect(inner).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut to).await;
                });
            }
        })
        .await
    }
}

fn over_tls(scheme: &str, http2: bool, address: SocketAddr, arguments: &[&str]) -> Load {
    let command = TlsArgs::augment_args(clap::Command::new("load").no_binary_name(true));
    let given = TlsArgs::from_arg_matches(&command.try_get_matches_from(arguments).unwrap()).unwrap();
    let (protocol, uri) = parse_url(&format!("{scheme}://{address}/echo.Echo/Unary"), http2).unwrap();
    let tls = given.configuration("127.0.0.1", protocol).unwrap();
    let peer = Peer { address, tls: Some(tls) };
    let length = Length::Requests(30);
    Load { connections: 3, length, ..Load::new(peer, protocol, Message::new(protocol, uri, Vec::new(), 100)) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_protocol_gets_its_answers_over_tls() {
    let http = server(|listener| echo::serve(listener, echo::http(Duration::ZERO))).await;
    let tcp = server(|listener| echo::serve(listener, echo::tcp_connection)).await;
    let tls = Tls::new(&["h2", "http/1.1"], true);
    let (http, tcp) = (tls.before(http.address).await, tls.before(tcp.address).await);
    let [ca, cert, key] = ["ca.pem", "caller.pem", "caller.key"].map(|name| tls.path(name));
    let arguments = ["--ca", &ca, "--cert", &cert, "--key", &key];
    for (scheme, http2) in [("https", false), ("https", true), ("grpcs", false), ("tls", false)] {
        let address = if scheme == "tls" { tcp.address } else { http.address };
        for keep_alive in [true, false] {
            let load = Load { keep_alive, ..over_tls(scheme, http2, address, &arguments) };
            let summary = Summary::of(&generate(load).await.unwrap());
            let found = (summary.requests, summary.errors, summary.status.get("200"));
            assert_eq!(found, (30, 0, Some(&30)), "{scheme} {http2} {keep_alive} {:?}", summary.failures);
        }
    }
    // Without a certificate of its own, nobody is let in.
    let refused = generate(over_tls("https", false, http.address, &["--ca", &ca])).await;
    assert!(refused.map_or(true, |outcome| outcome.tally.latency.count() == 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_trusted_is_refused_with_what_helps() {
    let http = server(|listener| echo::serve(listener, echo::http(Duration::ZERO))).await;
    let tls = Tls::new(&["http/1.1"], false);
    let front = tls.before(http.address).await;
    let stranger = Tls::new(&[], false);
    let refused = generate(over_tls("https", false, front.address, &["--ca", &stranger.path("ca.pem")])).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("--ca") && refused.contains("--insecure"), "{refused}");
    let taken = generate(over_tls("https", false, front.address, &["--insecure"])).await.unwrap();
    assert_eq!((taken.tally.latency.count(), taken.tally.errors), (30, 0));
    // One that has no HTTP/2 to offer, and one that has no TLS.
    let without = Tls::new(&[], false).before(http.address).await;
    let refused = generate(over_tls("https", true, without.address, &["--insecure"])).await.unwrap_err().to_string();
    assert!(refused.contains("does not offer HTTP/2"), "{refused}");
    let refused = generate(over_tls("https", false, http.address, &["--insecure"])).await.unwrap_err().to_string();
    assert!(refused.contains("TLS"), "{refused}");
}
