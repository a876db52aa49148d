//! How services outside are called over TLS: by files on the gateway's machine, read when they are put in force, and again when
//! they change. What cannot be read any more stays in force as it was; whoever looks is told.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use arc_swap::{ArcSwap, ArcSwapOption};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use starling_model::{OriginTls, Protocol};
use starling_plan::{Exit, Target};
use starling_tls::{Alpn, origin_client_config};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::edge::certificates::{LOOK_EVERY, Look, look_at, read_file};
use crate::worker::ListenError;

/// How the exits of one workload are called that want TLS.
pub(crate) type OriginConfigs = BTreeMap<Target, Arc<OriginTlsConfig>>;

/// How one service outside is called.
#[derive(Debug)]
pub(crate) struct OriginTlsConfig {
    tls: OriginTls,
    alpn: Alpn,
    name: Option<ServerName<'static>>,
    loaded: ArcSwap<Loaded>,
    /// Who holds it reads.
    reading: Mutex<()>,
    refused: ArcSwapOption<String>,
    told: Arc<watch::Sender<()>>,
    watched: AtomicBool,
}

#[derive(Debug)]
struct Loaded {
    /// What the files looked like before they were read, in order.
    seen: Vec<Look>,
    config: Arc<ClientConfig>,
}

impl OriginTlsConfig {
    fn read(exit: &Exit, tls: &OriginTls, told: &Arc<watch::Sender<()>>) -> anyhow::Result<Self> {
        let alpn = alpn(exit.protocol);
        let name = tls.server_name.as_ref().map(|name| ServerName::try_from(name.clone())).transpose();
        let name = name.with_context(|| format!("the SNI of {}", exit.target()))?;
        let loaded = ArcSwap::from_pointee(Loaded::read(tls, alpn)?);
        Ok(Self {
            tls: tls.clone(),
            alpn,
            name,
            loaded,
            reading: Mutex::default(),
            refused: ArcSwapOption::empty(),
            told: Arc::clone(told),
            watched: AtomicBool::new(false),
        })
    }

    /// What connections are made with now.
    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.loaded.load().config)
    }

    /// The name that is asked for, and has to stand in the certificate.
    pub(crate) fn name(&self) -> Option<&ServerName<'static>> {
        self.name.as_ref()
    }

    /// Reads files that have changed.
    fn refresh(&self) {
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = if look_at(paths(&self.tls)) == self.loaded.load().seen {
            None
        } else {
            match Loaded::read(&self.tls, self.alpn) {
                Ok(loaded) => {
                    self.loaded.store(Arc::new(loaded));
                    None
                }
                Err(error) => Some(format!("renewed files do not fit: {error:#}")),
            }
        };
        let before = self.refused.load();
        if before.as_deref() != refused.as_ref() {
            if let Some(error) = &refused {
                tracing::warn!(error, "files cannot be read anew; what was read before stays in force");
            }
            self.refused.store(refused.map(Arc::new));
            self.told.send_replace(());
        }
    }

    /// Looks at the files from time to time, for as long as somebody holds this.
    pub(crate) fn watch(this: &Arc<Self>) {
        if this.watched.swap(true, Ordering::Relaxed) {
            return;
        }
        let held = Arc::downgrade(this);
        tokio::spawn(async move {
            loop {
                sleep(LOOK_EVERY).await;
                let Some(config) = held.upgrade() else { return };
                // One that panics was told of.
                let _ = tokio::task::spawn_blocking(move || config.refresh()).await;
            }
        });
    }
}

impl Loaded {
    fn read(tls: &OriginTls, alpn: Alpn) -> anyhow::Result<Self> {
        // First, so that a change while they are read is seen later.
        let seen = look_at(paths(tls));
        let authorities = read_file(&tls.authorities)?;
        let shown = tls.certificate.as_ref();
        let shown =
            shown.map(|files| anyhow::Ok((read_file(&files.certificate)?, read_file(&files.key)?))).transpose()?;
        let pair = shown.as_ref().map(|(chain, key)| (chain.as_slice(), key.as_slice()));
        let config = origin_client_config(&authorities, pair, tls.server_name.is_some(), alpn);
        let named = || match &tls.certificate {
            Some(files) => format!("{} with {}", tls.authorities.display(), files.certificate.display()),
            None => tls.authorities.display().to_string(),
        };
        Ok(Self { seen, config: Arc::new(config.with_context(named)?) })
    }
}

fn paths(tls: &OriginTls) -> impl Iterator<Item = &Path> {
    let shown = tls.certificate.iter().flat_map(|files| [&*files.certificate, &*files.key]);
    std::iter::once(&*tls.authorities).chain(shown)
}

fn alpn(protocol: Protocol) -> Alpn {
    match protocol {
        Protocol::Tcp => Alpn::Opaque,
        Protocol::Http => Alpn::Http1,
        Protocol::Http2 | Protocol::Grpc => Alpn::Http2,
    }
}

/// What the exits of a plan are called by: what is there already, else read anew. Where that fails what was there stays, and the
/// reason is told. Reads files.
pub(crate) fn prepare(
    mut before: OriginConfigs,
    exits: &[Arc<Exit>],
    told: &Arc<watch::Sender<()>>,
) -> (OriginConfigs, Vec<ListenError>) {
    let (mut next, mut errors) = (OriginConfigs::new(), Vec::new());
    let mut refuse = |address: SocketAddr, listens: bool, reason: String| {
        errors.push(ListenError { address, listens, reason });
    };
    for exit in exits {
        let Some(tls) = &exit.tls else { continue };
        let target = exit.target();
        let old = before.remove(&target);
        let same = old.as_ref().filter(|old| old.tls == *tls && old.alpn == alpn(exit.protocol));
        if let Some(same) = same {
            same.refresh();
            if let Some(reason) = same.refused.load_full() {
                refuse(exit.bind, true, format!("{target}: {reason}"));
            }
            next.insert(target, Arc::clone(same));
            continue;
        }
        match OriginTlsConfig::read(exit, tls, told) {
            Ok(read) => {
                next.insert(target, Arc::new(read));
            }
            // Nobody is called by what was said before of another service's files.
            Err(error) => refuse(exit.bind, false, format!("{target}: {error:#}")),
        }
    }
    (next, errors)
}
