//! Certificates on the gateway's machine: read when they are put in force, and again when their files change.
//!
//! Workers share what was read. What cannot be read any more stays in force as it was; whoever looks is told, and whoever
//! serves hears of it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use anyhow::Context;
use arc_swap::{ArcSwap, ArcSwapOption};
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use starling_model::{CertificateFiles, IngressTls};
use starling_plan::Edge;
use starling_telemetry::{Measure, MeasureFamily, Measurement};
use starling_tls::{Alpn, EdgeCertificate, EdgeCertificates, edge_server_config};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::keys::Keys;
use crate::snapshot::CertificateSnapshot;
use crate::worker::ListenError;

/// How often files are looked at: a renewed certificate is in force before anybody misses it.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Bytes of a file of certificates or a key; a chain has a few thousand.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// TLS of one port of a gateway, the same for all workers.
#[derive(Debug)]
pub(crate) struct EdgeTls {
    pub(crate) config: Arc<ServerConfig>,
    files: Option<Arc<FileCertificates>>,
}

impl EdgeTls {
    fn new(tls: &IngressTls, is_l7: bool, keys: &Keys, told: &Arc<watch::Sender<()>>) -> anyhow::Result<Self> {
        let alpn = if is_l7 { Alpn::AnyHttp } else { Alpn::Opaque };
        let (files, resolver): (_, Arc<dyn ResolvesServerCert>) = if tls.certificates.is_empty() {
            (None, keys.resolver())
        } else {
            let files = Arc::new(FileCertificates::read(&tls.certificates, told)?);
            (Some(Arc::clone(&files)), files)
        };
        Ok(Self { config: Arc::new(edge_server_config(resolver, tls.min_version, alpn)?), files })
    }

    /// What was read from files.
    pub(crate) fn snapshot(&self) -> Vec<CertificateSnapshot> {
        let Some(files) = &self.files else { return Vec::new() };
        let loaded = files.loaded.load();
        let shown = |it: &EdgeCertificate| CertificateSnapshot { names: it.names().to_vec(), validity: it.validity() };
        loaded.certificates.iter().map(shown).collect()
    }

    /// Why files that have changed since are not what is shown.
    pub(crate) fn refused(&self) -> Option<Arc<String>> {
        self.files.as_ref()?.refused()
    }

    /// Whether two hosts have certificates, and not the same.
    pub(crate) fn are_apart(&self, one: &str, other: &str) -> bool {
        let Some(files) = &self.files else { return false };
        let loaded = files.loaded.load();
        let places = loaded.certificates.find(one).zip(loaded.certificates.find(other));
        places.is_some_and(|(one, other)| one != other)
    }
}

/// TLS of the ports of one workload.
pub(crate) type EdgeConfigs = BTreeMap<SocketAddr, Arc<EdgeTls>>;

/// What was last made for the ports of a workload, and from what.
#[derive(Debug, Clone, Default)]
pub(crate) struct Prepared(Vec<Made>);

#[derive(Debug, Clone)]
struct Made {
    bind: SocketAddr,
    tls: IngressTls,
    is_l7: bool,
    keys: Arc<Keys>,
    made: Arc<EdgeTls>,
}

impl Prepared {
    /// What the ports of a plan need: what is there already, else made anew. Where that fails what was there stays, and the
    /// reason is told. Reads files.
    pub(crate) fn prepare(
        &mut self,
        edges: &[Arc<Edge>],
        keys: &Arc<Keys>,
        told: &Arc<watch::Sender<()>>,
    ) -> (EdgeConfigs, Vec<ListenError>) {
        let (mut next, mut errors) = (Vec::new(), Vec::new());
        for edge in edges {
            let Some(tls) = &edge.tls else { continue };
            let is_l7 = edge.protocol.is_l7();
            let at = self.0.iter().position(|old| old.bind == edge.bind);
            let old = at.map(|at| self.0.swap_remove(at));
            if let Some(old) = old.as_ref().filter(|old| {
                (&old.tls, old.is_l7) == (tls, is_l7) && (old.made.files.is_some() || Arc::ptr_eq(&old.keys, keys))
            }) {
                old.made.files.iter().for_each(|files| files.refresh());
                let refused = old.made.refused().map(|reason| reason.to_string());
                errors.extend(refused.map(|reason| ListenError { address: edge.bind, listens: true, reason }));
            } else {
                match EdgeTls::new(tls, is_l7, keys, told) {
                    Ok(made) => {
                        let (tls, keys) = (tls.clone(), Arc::clone(keys));
                        next.push(Made { bind: edge.bind, tls, is_l7, keys, made: Arc::new(made) });
                        continue;
                    }
                    Err(error) => {
                        let (listens, reason) = (old.is_some(), format!("{error:#}"));
                        errors.push(ListenError { address: edge.bind, listens, reason });
                    }
                }
            }
            next.extend(old);
        }
        self.0 = next;
        (self.0.iter().map(|it| (it.bind, Arc::clone(&it.made))).collect(), errors)
    }

    /// The files of all of them.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Arc<FileCertificates>> {
        self.0.iter().filter_map(|it| it.made.files.as_ref())
    }
}

/// By port, whether the files of its certificates were renewed by some that do not fit.
pub(crate) fn renewals<'a>(all: impl Iterator<Item = &'a Prepared>) -> MeasureFamily {
    let of_port = |made: &Made| {
        let files = made.made.files.as_ref()?;
        let measure = Measure::Gauge(if files.refused().is_some() { 1.0 } else { 0.0 });
        Some(Measurement { labels: vec![("listener", made.bind.to_string())], measure })
    };
    let series = all.flat_map(|prepared| prepared.0.iter().filter_map(of_port)).collect();
    let help = "1 while renewed files of certificates do not fit, and the former are shown on";
    MeasureFamily { name: "proxy_certificate_files_refused", help, series }
}

/// Certificates that were read from files.
#[derive(Debug)]
pub(crate) struct FileCertificates {
    files: Vec<CertificateFiles>,
    loaded: ArcSwap<Loaded>,
    /// Who holds it reads.
    reading: Mutex<()>,
    /// Why files that have changed since cannot be read anew.
    refused: ArcSwapOption<String>,
    /// Told when that changes.
    told: Arc<watch::Sender<()>>,
    watched: std::sync::atomic::AtomicBool,
}

#[derive(Debug)]
struct Loaded {
    /// What the files looked like before they were read, in order.
    seen: Vec<Look>,
    certificates: EdgeCertificates,
}

/// What tells a file from what it was before: when it was changed, its length, and which it is. `None` if it is not there.
pub(crate) type Look = Option<(i64, i64, u64, u64)>;

impl FileCertificates {
    fn read(files: &[CertificateFiles], told: &Arc<watch::Sender<()>>) -> anyhow::Result<Self> {
        let loaded = ArcSwap::from_pointee(Loaded::read(files)?);
        let (reading, refused, told) = (Mutex::default(), ArcSwapOption::empty(), Arc::clone(told));
        Ok(Self { files: files.to_vec(), loaded, reading, refused, told, watched: false.into() })
    }

    fn refused(&self) -> Option<Arc<String>> {
        self.refused.load_full()
    }

    /// Reads files that have changed.
    pub(crate) fn refresh(&self) {
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        if look_at(paths(&self.files)) == self.loaded.load().seen {
            self.refuse(None);
            return;
        }
        match Loaded::read(&self.files) {
            Ok(loaded) => {
                self.loaded.store(Arc::new(loaded));
                tracing::info!(files = self.files.len() * 2, "certificates were read anew");
                self.refuse(None);
            }
            Err(error) => self.refuse(Some(format!("renewed certificates do not fit: {error:#}"))),
        }
    }

    /// Remembers why files cannot be read anew, if they cannot, and says so once.
    fn refuse(&self, reason: Option<String>) {
        let before = self.refused.load();
        if before.as_deref() == reason.as_ref() {
            return;
        }
        if let Some(error) = &reason {
            tracing::warn!(error, "certificates cannot be read anew; those read before stay in force");
        }
        self.refused.store(reason.map(Arc::new));
        self.told.send_replace(());
    }

    /// Looks at the files from time to time, for as long as somebody holds this.
    pub(crate) fn watch(this: &Arc<Self>) {
        if this.watched.swap(true, std::sync::atomic::Ordering::Relaxed) {
            return;
        }
        let held: Weak<Self> = Arc::downgrade(this);
        tokio::spawn(async move {
            loop {
                sleep(LOOK_EVERY).await;
                let Some(files) = held.upgrade() else { return };
                // One that panics was told of.
                let _ = tokio::task::spawn_blocking(move || files.refresh()).await;
            }
        });
    }
}

impl ResolvesServerCert for FileCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.loaded.load().certificates.choose(hello.server_name()))
    }
}

impl Loaded {
    fn read(files: &[CertificateFiles]) -> anyhow::Result<Self> {
        // First, so that a change while they are read is seen later.
        let seen = look_at(paths(files));
        let mut all = files.iter().map(read_certificate);
        let first = all.next().context("no certificate is named")??;
        let rest = all.collect::<anyhow::Result<_>>()?;
        Ok(Self { seen, certificates: EdgeCertificates::new(first, rest) })
    }
}

/// The files of certificates and their keys, in order.
fn paths(files: &[CertificateFiles]) -> impl Iterator<Item = &Path> {
    files.iter().flat_map(|files| [&*files.certificate, &*files.key])
}

/// What files look like now, in order.
pub(crate) fn look_at<'p>(files: impl Iterator<Item = &'p Path>) -> Vec<Look> {
    let look = |path: &Path| {
        let file = std::fs::metadata(path).ok()?;
        Some((file.mtime(), file.mtime_nsec(), file.size(), file.ino()))
    };
    files.map(look).collect()
}

fn read_certificate(files: &CertificateFiles) -> anyhow::Result<EdgeCertificate> {
    let (chain, key) = (read_file(&files.certificate)?, read_file(&files.key)?);
    EdgeCertificate::from_pem(&chain, &key).with_context(|| format!("certificate {}", files.certificate.display()))
}

pub(crate) fn read_file(path: &Path) -> anyhow::Result<Vec<u8>> {
    let length = std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len();
    anyhow::ensure!(length <= FILE_BYTES_MAX, "{} is larger than {FILE_BYTES_MAX} bytes", path.display());
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn make(folder: &Path, host: &str) -> CertificateFiles {
        let key = KeyPair::generate().expect("a key");
        let certificate = CertificateParams::new(vec![host.to_owned()]).and_then(|params| params.self_signed(&key));
        let files = CertificateFiles { certificate: folder.join("a.crt"), key: folder.join("a.key") };
        for (path, text) in
            [(&files.certificate, certificate.expect("a certificate").pem()), (&files.key, key.serialize_pem())]
        {
            std::fs::write(path.with_extension("new"), text).expect("a file");
            std::fs::rename(path.with_extension("new"), path).expect("its name");
        }
        files
    }

    fn names(files: &FileCertificates) -> Vec<String> {
        files.loaded.load().certificates.iter().flat_map(|it| it.names().to_vec()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn files_that_change_are_found_by_themselves() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = Arc::new(
            FileCertificates::read(&[make(folder.path(), "one.example")], &Arc::default()).expect("certificates"),
        );
        FileCertificates::watch(&files);
        assert_eq!(names(&files), ["one.example"]);
        make(folder.path(), "two.example");
        let begin = tokio::time::Instant::now();
        while names(&files) != ["two.example"] {
            assert!(begin.elapsed() < 3 * LOOK_EVERY, "not within the time");
            sleep(Duration::from_millis(100)).await;
            // The reading itself takes time that is not paused.
            tokio::task::spawn_blocking(std::thread::yield_now).await.expect("an end");
        }
        let mut told = files.told.subscribe();
        std::fs::write(folder.path().join("a.key"), KeyPair::generate().expect("a key").serialize_pem())
            .expect("a file");
        told.changed().await.expect("it lives");
        assert!(files.refused().is_some_and(|reason| reason.contains("a.crt")), "it says which");
        assert_eq!(names(&files), ["two.example"], "what was read before stays");
        make(folder.path(), "three.example");
        told.changed().await.expect("it lives");
        assert_eq!((files.refused(), names(&files)), (None, vec!["three.example".to_owned()]));
        let held = Arc::downgrade(&files);
        drop(files);
        sleep(2 * LOOK_EVERY).await;
        assert!(held.upgrade().is_none(), "nobody holds what nobody serves");
    }
}
