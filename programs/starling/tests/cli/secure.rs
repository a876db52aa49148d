//! The API behind HTTPS.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::api::run;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]";

/// Serves one answer to everybody, with a certificate of its own, which it leaves in `ca`.
fn serve(ca: &Path) -> SocketAddr {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned(), "api.example".to_owned()]);
    let made = made.expect("a certificate");
    std::fs::write(ca, made.cert.pem()).expect("a file");
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("TLS")
        .with_no_client_auth()
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
    let address = serve(&ca).to_string();
    let ca = ca.to_str().unwrap();
    let nobody = "Node  ID  Address  DC\n";
    run(&format!("nodes -http-addr https://{address} -ca-file {ca}"), "", &[]).prints(0, nobody);
    let by_variables = [("CONSUL_HTTP_ADDR", address.as_str()), ("CONSUL_HTTP_SSL", "true"), ("CONSUL_CACERT", ca)];
    run("nodes", "", &by_variables).prints(0, nobody);
    let other_name = [&by_variables[..], &[("CONSUL_TLS_SERVER_NAME", "other.example")]].concat();
    run("nodes", "", &other_name).fails(3, &["cannot reach", "not valid for name"]);

    let other = folder.path().join("other.pem");
    serve(&other);
    run(&format!("nodes -http-addr https://{address} -ca-file {}", other.display()), "", &[])
        .fails(3, &["cannot reach"]);
    std::fs::write(&other, "no PEM").unwrap();
    run(&format!("nodes -http-addr https://{address} -ca-file {}", other.display()), "", &[])
        .fails(2, &["holds no certificate"]);
}
