//! What somebody who does no harm gets: latencies of the API, of health, of handshakes and of traffic.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use starling_e2e::{http, tls};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Probes of each kind, one after the other, at [`EVERY`].
const PROBES: usize = 200;

/// Time between two probes of one kind.
const EVERY: Duration = Duration::from_millis(20);

/// A probe that takes longer counts as taking so long.
const LONGEST: Duration = Duration::from_secs(2);

/// Latencies of one kind, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    failed: usize,
}

/// What was measured.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) name: &'static str,
    pub(crate) api: Latency,
    pub(crate) health: Latency,
    pub(crate) handshake: Latency,
    pub(crate) traffic: Latency,
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p50 {:.1} ms, p99 {:.1} ms, {} failed", self.p50, self.p99, self.failed)
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, api, health, handshake, traffic } = self;
        writeln!(f, "{name}")?;
        writeln!(f, "  API        {api}")?;
        writeln!(f, "  health     {health}")?;
        writeln!(f, "  handshake  {handshake}")?;
        write!(f, "  traffic    {traffic}")
    }
}

/// Where is asked.
pub(crate) struct Probes {
    pub(crate) http: String,
    pub(crate) grpc_tls: String,
    pub(crate) upstream: String,
}

impl Probes {
    /// Measures all kinds beside each other.
    pub(crate) async fn measure(&self, name: &'static str) -> anyhow::Result<Figures> {
        let tls = TlsConnector::from(Arc::new(anybody()?));
        let api = probe(async || Ok(http::get(&self.http, "/v1/catalog/services").await?.status == 200));
        let health = probe(async || Ok(http::get(&self.http, "/starling/v1/health/ready").await?.status == 200));
        let traffic = probe(async || Ok(http::get(&self.upstream, "/").await?.status == 200));
        let handshake = probe(async || {
            let stream = TcpStream::connect(&self.grpc_tls).await?;
            tls.connect(ServerName::try_from("starling")?, stream).await?;
            Ok(true)
        });
        let (api, health, handshake, traffic) = tokio::join!(api, health, handshake, traffic);
        Ok(Figures { name, api, health, handshake, traffic })
    }
}

async fn probe(ask: impl AsyncFn() -> anyhow::Result<bool>) -> Latency {
    let (mut took, mut failed) = (Vec::with_capacity(PROBES), 0);
    for _ in 0..PROBES {
        let began = Instant::now();
        let answered = timeout(LONGEST, ask()).await;
        let is_well = matches!(answered, Ok(Ok(true)));
        failed += usize::from(!is_well);
        took.push(if is_well { began.elapsed() } else { LONGEST });
        tokio::time::sleep(EVERY).await;
    }
    took.sort_unstable();
    let at = |hundredths: usize| took[(took.len() * hundredths / 100).min(took.len() - 1)].as_secs_f64() * 1e3;
    Latency { p50: at(50), p99: at(99), failed }
}

/// TLS that trusts any server: the probe measures how long the handshake takes.
fn anybody() -> anyhow::Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.context("TLS")?.dangerous().with_custom_certificate_verifier(tls::trusts_anybody());
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}
