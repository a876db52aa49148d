//! Where Envoy finds xDS, and how it speaks with it.

use std::net::IpAddr;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::arguments::XdsArgs;
use super::bootstrap::Endpoint;
use super::sidecar::Agent;
use crate::client::address::host_and_port;
use crate::client::{Address, Authorities, Client};
use crate::environment::Environment;
use crate::outcome::usage;

/// Where xDS is served in plaintext unless somebody says otherwise.
const PLAINTEXT_PORT: u16 = 8502;

/// Where xDS is served over TLS unless somebody says otherwise.
const TLS_PORT: u16 = 8503;

/// A server of xDS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Xds {
    /// Where it is.
    pub(crate) endpoint: Endpoint,
    /// How it is known, and how Envoy is known to it; without it, they speak in plaintext.
    pub(crate) tls: Option<XdsTls>,
}

/// Mutual TLS towards a server of xDS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct XdsTls {
    /// CA certificates in PEM.
    pub(crate) authorities: String,
    /// A name or an IP in the server's certificate. Without it, any workload of the mesh could pass for the server.
    pub(crate) name: String,
    /// Envoy's certificate.
    pub(crate) certificate: PathBuf,
    /// Its private key.
    pub(crate) key: PathBuf,
}

impl Xds {
    /// As given, else where the API is, at the port that the agent tells.
    ///
    /// # Errors
    /// [`crate::outcome::UsageError`] if the address is none, or TLS lacks a certificate.
    pub(crate) fn find(
        args: &XdsArgs,
        client: &Client,
        environment: &Environment,
        agent: &Agent,
    ) -> anyhow::Result<Self> {
        let authorities = Authorities::given(args.grpc_ca_file.clone(), args.grpc_ca_path.clone());
        let given = args.grpc_addr.as_ref().or(environment.grpc_addr.as_ref());
        let (rest, is_tls) = match given.map(|text| text.split_once("://").unwrap_or(("http", text))) {
            Some(("https", rest)) => (Some(rest), true),
            // A CA that does nothing would feel like safety.
            _ if authorities.is_some() => {
                return Err(usage("--grpc-ca-file and --grpc-ca-path are for TLS: give --grpc-addr https://HOST:PORT"));
            }
            Some(("unix", path)) => return Ok(Self { endpoint: Endpoint::Unix { path: path.to_owned() }, tls: None }),
            Some(("http", rest)) => (Some(rest), false),
            Some((other, _)) => {
                return Err(usage(format!("--grpc-addr: scheme {other:?} is not one of http, https, unix")));
            }
            None => (None, false),
        };
        let Some(text) = rest else {
            let host = match client.address() {
                Address::Tcp { host, .. } => host.clone(),
                Address::Unix(_) => "127.0.0.1".to_owned(),
            };
            let port = agent.xds_port.unwrap_or(PLAINTEXT_PORT);
            return Ok(Self { endpoint: Endpoint::Tcp { host, port }, tls: None });
        };
        let (host, port) =
            host_and_port(text).ok_or_else(|| usage(format!("--grpc-addr {text:?} is not of the form IP:PORT")))?;
        let port = port.unwrap_or(if is_tls { TLS_PORT } else { PLAINTEXT_PORT });
        let authorities = authorities.or_else(|| environment.grpc_authorities.clone());
        let tls = if is_tls { Some(XdsTls::new(&host, authorities, client)?) } else { None };
        Ok(Self { endpoint: Endpoint::Tcp { host, port }, tls })
    }
}

impl XdsTls {
    fn new(host: &str, authorities: Option<Authorities>, client: &Client) -> anyhow::Result<Self> {
        let settings = client.tls_settings();
        let authorities = authorities.or_else(|| settings.authorities.clone()).ok_or_else(|| {
            usage("xDS over TLS needs the CA that signed the server's certificate: give --grpc-ca-file")
        })?;
        let (certificate, key) = settings.credentials()?.ok_or_else(|| {
            usage("xDS over TLS is mutual: give --client-cert and --client-key, such as the service's own leaf")
        })?;
        Ok(Self {
            authorities: authorities.pem()?,
            name: settings.server_name.clone().unwrap_or_else(|| host.to_owned()),
            certificate: certificate.to_owned(),
            key: key.to_owned(),
        })
    }

    /// The cluster's transport socket.
    pub(super) fn transport_socket(&self) -> Value {
        let is_ip = self.name.parse::<IpAddr>().is_ok();
        let mut context = json!({
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "common_tls_context": {
                // Envoy as a client stops at 1.2 unless told otherwise; the mesh begins at 1.3.
                "tls_params": {"tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3"},
                "alpn_protocols": ["h2"],
                "tls_certificates": [{
                    "certificate_chain": {"filename": self.certificate},
                    "private_key": {"filename": self.key},
                }],
                "validation_context": {
                    "trusted_ca": {"inline_string": self.authorities},
                    "match_typed_subject_alt_names": [{
                        "san_type": if is_ip { "IP_ADDRESS" } else { "DNS" },
                        "matcher": {"exact": self.name},
                    }],
                },
            },
        });
        if !is_ip {
            context["sni"] = self.name.as_str().into();
        }
        json!({"name": "envoy.transport_sockets.tls", "typed_config": context})
    }
}
