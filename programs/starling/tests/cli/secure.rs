//! The API behind HTTPS.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use crate::api::run;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]";

/// Serves one answer to everybody, with a certificate of its own, which it leaves in `ca`; or, with `clients`, to those
/// who show that certificate.
fn serve(ca: &Path, clients: Option<CertificateDer<'static>>) -> SocketAddr {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned(), "api.example".to_owned()]);
    let made = made.expect("a certificate");
    std::fs::write(ca, made.cert.pem()).expect("a file");
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = match clients {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(certificate) => {
            let mut roots = RootCertStore::empty();
            roots.add(certificate).expect("a root");
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
            verifier.build().expect("a verifier")
        }
    };
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("TLS")
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .expect("a server's configuration");
    let (listener, config) = (TcpListener::bind("127.0.0.1:0").expect("a free port"), Arc::new(config));
    let address = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let session = ServerConnection::new(Arc::clone(&config)).expect("a session");
            let mut stream = StreamOwned::new(session, stream);
            // A client that turns away is what some tests are about.
            let _ = stream.read(&mut [0; 1024]).and_then(|_| stream.write_all(ANSWER));
        }
    });
    address
}

#[test]
fn https_is_spoken_with_those_whom_the_ca_vouches_for() {
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    let address = serve(&ca, None).to_string();
    let ca = ca.to_str().unwrap();
    let nobody = "Node  ID  Address  DC\n";
    run(&format!("nodes -http-addr https://{address} -ca-file {ca}"), "", &[]).prints(0, nobody);
    let by_variables = [("CONSUL_HTTP_ADDR", address.as_str()), ("CONSUL_HTTP_SSL", "true"), ("CONSUL_CACERT", ca)];
    run("nodes", "", &by_variables).prints(0, nobody);
    let other_name = [&by_variables[..], &[("CONSUL_TLS_SERVER_NAME", "other.example")]].concat();
    run("nodes", "", &other_name).fails(3, &["cannot reach", "CONSUL_TLS_SERVER_NAME"]);
    run("nodes -tls-server-name api.example", "", &other_name).prints(0, nobody);
    let (directory, plain) = (folder.path().to_str().unwrap(), [("STARLING_HTTP_ADDR", address.as_str())]);
    run(&format!("nodes -http-addr https://{address} -ca-path {directory}"), "", &plain).prints(0, nobody);
    run("nodes", "", &[&by_variables[..2], &[("CONSUL_CAPATH", directory)]].concat()).prints(0, nobody);

    let other = folder.path().join("other.pem");
    serve(&other, None);
    run(&format!("nodes -http-addr https://{address} -ca-file {}", other.display()), "", &[])
        .fails(3, &["cannot reach", "--ca-file names its CA"]);
    let unverified = [&by_variables[..2], &[("CONSUL_HTTP_SSL_VERIFY", "false")]].concat();
    let shown = run("nodes", "", &unverified);
    assert!(
        shown.code == 0 && shown.stdout == nobody && shown.stderr.contains("whoever answers is believed"),
        "{shown:?}"
    );
    let of_the_machine = [&by_variables[..2], &[("SSL_CERT_FILE", ca), ("SSL_CERT_DIR", "/nowhere")]].concat();
    run("nodes", "", &of_the_machine).prints(0, nobody);
    std::fs::write(&other, "no PEM").unwrap();
    run(&format!("nodes -http-addr https://{address} -ca-file {}", other.display()), "", &[])
        .fails(2, &["holds no certificate"]);
}

#[test]
fn the_client_shows_its_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let [ca, certificate, key] = ["ca.pem", "client.pem", "client-key.pem"].map(|name| folder.path().join(name));
    let own = rcgen::generate_simple_self_signed(["client.example".to_owned()]).unwrap();
    std::fs::write(&certificate, own.cert.pem()).unwrap();
    std::fs::write(&key, own.signing_key.serialize_pem()).unwrap();
    let address = serve(&ca, Some(own.cert.der().clone())).to_string();
    let [ca, certificate, key] = [&ca, &certificate, &key].map(|path| path.to_str().unwrap());
    let line = format!("nodes -http-addr https://{address} -ca-file {ca}");
    let shown = "Node  ID  Address  DC\n";
    run(&format!("{line} -client-cert {certificate} -client-key {key}"), "", &[]).prints(0, shown);
    let variables = [("CONSUL_CLIENT_CERT", certificate), ("STARLING_CLIENT_KEY", key), ("CONSUL_CLIENT_KEY", ca)];
    run(&line, "", &variables).prints(0, shown);
    run(&line, "", &[]).fails(3, &["--client-cert", "CONSUL_CLIENT_KEY"]);
    run(&format!("{line} -client-cert {certificate}"), "", &[]).fails(2, &["--client-key"]);
}
