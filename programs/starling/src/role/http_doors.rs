//! Where the HTTP API is served: at a port, over TLS at another, and at a Unix socket, as far as each is wanted.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::ValueEnum;
use nix::unistd::{Gid, Group, Uid, User};
use rustls::ServerConfig;
use starling_admission::Shares;
use starling_http_api::{Door, Guards, Places, Router, audited, guarded};
use starling_model::IpRange;
use starling_telemetry::AuditLog;
use starling_tls::LeastTls;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;

use super::{Serving, doors};
use crate::outcome::usage;

/// Between two looks at whether the certificate was replaced.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The address that others are told of where the API listens at no port.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The doors of the HTTP API beside its port.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct HttpDoorArgs {
    /// Where the HTTP API is served over TLS, too: one address, or several with commas between them
    #[arg(long, value_name = "IP:PORT", value_delimiter = ',', requires = "https_cert_file")]
    pub(crate) https_addr: Vec<SocketAddr>,

    /// The certificate that the API shows there, and what is between it and its CA, in PEM; read again when it is replaced
    #[arg(long, value_name = "FILE", requires_all = ["https_addr", "https_key_file"])]
    pub(crate) https_cert_file: Option<PathBuf>,

    /// Its private key, in PEM
    #[arg(long, value_name = "FILE", requires = "https_cert_file")]
    pub(crate) https_key_file: Option<PathBuf>,

    /// Have callers over TLS show a certificate of one of these CAs
    #[arg(long, value_name = "FILE", requires = "https_addr")]
    pub(crate) https_client_ca_file: Option<PathBuf>,

    /// The oldest version of TLS that is spoken there [default: 1.2]
    #[arg(long, value_enum, value_name = "VERSION", requires = "https_addr")]
    pub(crate) https_tls_min_version: Option<TlsVersion>,

    /// Append writes, logins and denials of the HTTP API to a file, each line with the hash of the one before it
    /// (`starling audit verify` checks it)
    #[arg(long, value_name = "FILE")]
    pub(crate) audit_log: Option<PathBuf>,

    /// A Unix socket at which the HTTP API is served, too
    #[arg(long, value_name = "FILE")]
    pub(crate) http_socket: Option<PathBuf>,

    /// Permissions of the socket, in octal [default: 0600]
    #[arg(long, value_name = "MODE", requires = "http_socket", value_parser = mode)]
    pub(crate) http_socket_mode: Option<u32>,

    /// Who owns the socket: a name or a number
    #[arg(long, value_name = "USER", requires = "http_socket")]
    pub(crate) http_socket_user: Option<String>,

    /// Which group owns it: a name or a number
    #[arg(long, value_name = "GROUP", requires = "http_socket")]
    pub(crate) http_socket_group: Option<String>,

    /// Serve the HTTP API at the socket, and over TLS if that is said, but not at --http-addr
    #[arg(long, requires = "http_socket")]
    pub(crate) http_socket_only: bool,

    /// The networks from which callers may write through the HTTP API, whatever token they show; a Unix socket counts as 127.0.0.1
    /// [default: all]
    #[arg(long, value_name = "NETWORK", value_delimiter = ',')]
    pub(crate) http_allow_write_from: Vec<IpRange>,

    /// Close paths of the HTTP API that begin so, such as /v1/acl, to everybody
    #[arg(long, value_name = "PATH", value_delimiter = ',', value_parser = path)]
    pub(crate) http_block_endpoints: Vec<String>,
}

/// A version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TlsVersion {
    #[value(name = "1.2")]
    V12,
    #[value(name = "1.3")]
    V13,
}

impl HttpDoorArgs {
    /// Whether what HTTPS shows can be used; nothing is opened.
    ///
    /// # Errors
    /// As serving it would have it.
    pub(crate) fn judge(&self) -> anyhow::Result<()> {
        Files::of(self).map_or(Ok(()), |files| files.read().map(drop))
    }
}

/// The beginning of paths.
fn path(text: &str) -> Result<String, String> {
    // Any other would close nothing.
    text.starts_with('/').then(|| text.to_owned()).ok_or_else(|| "a path begins with /".to_owned())
}

/// Where the HTTP API would be at ports of its own, by what is served there.
pub(crate) fn places<'a>(http: &'a [SocketAddr], args: &'a HttpDoorArgs) -> [(&'static str, &'a [SocketAddr]); 2] {
    let http = if args.http_socket_only { &[] } else { http };
    [("the HTTP API", http), ("the HTTP API over TLS", &args.https_addr)]
}

fn mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        Ok(_) | Err(_) => Err("permissions are written in octal, as 0660".to_owned()),
    }
}

/// Sockets of the HTTP API, bound and not served yet.
pub(crate) struct HttpSockets {
    address: SocketAddr,
    tcp: Vec<TcpListener>,
    tls: Option<Https>,
    unix: Option<Socket>,
    guards: Guards,
    audit: Option<Arc<AuditLog>>,
}

impl HttpSockets {
    /// Binds those that are wanted; of several addresses the first is where others are told to ask.
    pub(crate) async fn bind(addresses: &[SocketAddr], args: &HttpDoorArgs) -> anyhow::Result<Self> {
        let mut tcp = Vec::new();
        for address in addresses.iter().filter(|_| !args.http_socket_only) {
            tcp.push(doors::http(*address)?);
        }
        let tls = Https::bind(args).await?;
        let first = tcp.first().or(tls.as_ref().and_then(|https| https.listeners.first()));
        let said = || addresses.first().copied().unwrap_or(NOWHERE);
        let address = first.map_or_else(|| Ok(said()), TcpListener::local_addr)?;
        let unix = args.http_socket.as_deref().map(|path| Socket::bind(path, args)).transpose()?;
        let guards = Guards { closed: args.http_block_endpoints.clone(), writers: args.http_allow_write_from.clone() };
        let audit = args.audit_log.as_deref().map(AuditLog::open).transpose()?.map(Arc::new);
        Ok(Self { address, tcp, tls, unix, guards, audit })
    }

    /// The router, with an audit log if there is one.
    pub(crate) fn audited(&self, router: Router) -> Router {
        match &self.audit {
            Some(log) => audited(router, Arc::clone(log)),
            None => router,
        }
    }

    /// Where the port is, or would be.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it is served, in words: every place, and none that is not open.
    pub(crate) fn places(&self) -> String {
        let tcp = self.tcp.iter().filter_map(|listener| listener.local_addr().ok()).map(|at| at.to_string());
        let tls = self.tls.iter().flat_map(|https| &https.listeners);
        let tls = tls.filter_map(|listener| listener.local_addr().ok()).map(|at| format!("https://{at}"));
        let unix = self.unix.iter().map(|socket| format!("unix://{}", socket.file.path.display()));
        tcp.chain(tls).chain(unix).collect::<Vec<_>>().join(",")
    }

    /// Serves the same at all of them, until the end.
    pub(crate) async fn serve(self, serving: &Serving, router: Router, shares: &Shares) {
        let guards = self.guards.clone();
        // Also of a path that is closed, or to whoever may not write from where it is.
        let router = self.audited(guarded(router, guards));
        let places = Places::new(shares.http, shares.health);
        for listener in self.tcp {
            serving
                .spawn(starling_http_api::serve(listener, router.clone(), Arc::clone(&places), serving.stopped()))
                .await;
        }
        if let Some(Https { listeners, files, config, read }) = self.tls {
            for listener in listeners {
                let door = Door::Tls(listener, config.subscribe());
                serving
                    .spawn(starling_http_api::serve(door, router.clone(), Arc::clone(&places), serving.stopped()))
                    .await;
            }
            serving.spawn_endless(follow(files, config, read)).await;
        }
        if let Some(Socket { listener, file }) = self.unix {
            let served = starling_http_api::serve(Door::Unix(listener), router, places, serving.stopped());
            let gone_after = async move {
                served.await;
                drop(file);
            };
            serving.spawn(gone_after).await;
        }
    }
}

/// A socket for HTTPS, and what is shown there.
struct Https {
    listeners: Vec<TcpListener>,
    files: Files,
    config: watch::Sender<Arc<ServerConfig>>,
    read: Stamp,
}

/// When each of the files was last written.
type Stamp = Vec<Option<SystemTime>>;

struct Files {
    certificate: PathBuf,
    key: PathBuf,
    callers: Option<PathBuf>,
    least: LeastTls,
}

impl Https {
    async fn bind(args: &HttpDoorArgs) -> anyhow::Result<Option<Self>> {
        let Some(files) = Files::of(args) else { return Ok(None) };
        let read = files.stamp();
        let config = watch::Sender::new(files.read()?);
        let mut listeners = Vec::new();
        for address in &args.https_addr {
            let listener = TcpListener::bind(address).await;
            let listener = listener.with_context(|| doors::taken("the HTTP API over TLS", *address, "--https-addr"))?;
            tracing::info!(address = %listener.local_addr()?, "the HTTP API is served over TLS");
            listeners.push(listener);
        }
        Ok(Some(Self { listeners, files, config, read }))
    }
}

impl Files {
    /// Those of HTTPS, if it is wanted.
    fn of(args: &HttpDoorArgs) -> Option<Self> {
        let (certificate, key) = (args.https_cert_file.clone()?, args.https_key_file.clone()?);
        let callers = args.https_client_ca_file.clone();
        let least = match args.https_tls_min_version {
            Some(TlsVersion::V13) => LeastTls::Tls13,
            Some(TlsVersion::V12) | None => LeastTls::Tls12,
        };
        (!args.https_addr.is_empty()).then_some(Self { certificate, key, callers, least })
    }

    fn read(&self) -> anyhow::Result<Arc<ServerConfig>> {
        let bytes =
            |path: &Path| fs::read(path).map_err(|error| usage(format!("cannot read {}: {error}", path.display())));
        let callers = self.callers.as_deref().map(bytes).transpose()?;
        let config = starling_tls::api_server_config(
            &bytes(&self.certificate)?,
            &bytes(&self.key)?,
            callers.as_deref(),
            self.least,
        );
        config.map_err(|error| {
            let files: Vec<_> = self.all().map(|path| path.display().to_string()).collect();
            usage(format!("HTTPS cannot be served with {}: {error}", files.join(", ")))
        })
    }

    fn all(&self) -> impl Iterator<Item = &Path> {
        [self.certificate.as_path(), &self.key].into_iter().chain(self.callers.as_deref())
    }

    fn stamp(&self) -> Stamp {
        self.all().map(|path| fs::metadata(path).and_then(|found| found.modified()).ok()).collect()
    }
}

/// Reads the files again whenever one was written; as long as they cannot be used, those before hold.
async fn follow(files: Files, config: watch::Sender<Arc<ServerConfig>>, mut read: Stamp) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = files.stamp();
        if now == read {
            continue;
        }
        read = now;
        match files.read() {
            Ok(new) => {
                config.send_replace(new);
                tracing::info!("the HTTP API shows another certificate");
            }
            Err(error) => tracing::warn!(%error, "the HTTP API keeps the certificate that it has"),
        }
    }
}

/// A Unix socket; its file goes with this.
struct Socket {
    listener: UnixListener,
    file: SocketFile,
}

/// The file of a socket, removed when dropped: this very one, and not what a successor has put in its place.
struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|there| there == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

impl Socket {
    /// Binds it where nobody can come in before its owner and permissions are what they are to be, and puts it in place then.
    fn bind(path: &Path, args: &HttpDoorArgs) -> anyhow::Result<Self> {
        let said = |error: &dyn std::fmt::Display| usage(format!("--http-socket {}: {error}", path.display()));
        if let Ok(there) = fs::symlink_metadata(path) {
            if !there.file_type().is_socket() {
                return Err(said(&"there is a file that is no socket; it is left as it is"));
            }
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                return Err(said(&"somebody listens there; is another starling running?"));
            }
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let private = tempfile::Builder::new().prefix(".s").rand_bytes(4).tempdir_in(folder).map_err(|e| said(&e))?;
        let hidden = private.path().join("s");
        let listener = UnixListener::bind(&hidden).map_err(|e| said(&e))?;
        let mode = args.http_socket_mode.unwrap_or(0o600);
        fs::set_permissions(&hidden, fs::Permissions::from_mode(mode)).map_err(|e| said(&e))?;
        let user = args.http_socket_user.as_deref().map(user).transpose()?;
        let group = args.http_socket_group.as_deref().map(group).transpose()?;
        std::os::unix::fs::chown(&hidden, user, group).map_err(|e| said(&e))?;
        // Moved as it is, it stays the same file.
        let identity = identity(&hidden).map_err(|e| said(&e))?;
        fs::rename(&hidden, path).map_err(|e| said(&e))?;
        Ok(Self { listener, file: SocketFile { path: path.to_owned(), identity } })
    }
}

fn user(text: &str) -> anyhow::Result<u32> {
    let named = || User::from_name(text).ok().flatten().map(|user| user.uid);
    let found = text.parse().ok().map(Uid::from_raw).or_else(named);
    found.map(Uid::as_raw).ok_or_else(|| usage(format!("--http-socket-user: there is no user {text:?}")))
}

fn group(text: &str) -> anyhow::Result<u32> {
    let named = || Group::from_name(text).ok().flatten().map(|group| group.gid);
    let found = text.parse().ok().map(Gid::from_raw).or_else(named);
    found.map(Gid::as_raw).ok_or_else(|| usage(format!("--http-socket-group: there is no group {text:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(path: &Path) -> HttpDoorArgs {
        HttpDoorArgs { http_socket: Some(path.to_owned()), http_socket_only: true, ..HttpDoorArgs::default() }
    }

    #[tokio::test]
    async fn a_socket_goes_with_who_made_it_and_that_of_a_successor_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("api.sock");
        let any = [SocketAddr::from(([127, 0, 0, 1], 0))];
        let first = HttpSockets::bind(&any, &args(&path)).await.expect("bound");
        assert_eq!(first.places(), format!("unix://{}", path.display()), "no port is named that is not open");
        // What a successor does that finds nobody listening there.
        std::fs::rename(&path, folder.path().join("aside")).expect("moved");
        let second = HttpSockets::bind(&any, &args(&path)).await.expect("bound");
        drop(first);
        assert!(path.exists(), "the successor's socket is gone");
        drop(second);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn the_api_is_served_at_every_address_that_is_said() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let sockets = HttpSockets::bind(&[any, any], &HttpDoorArgs::default()).await.expect("bound");
        let places: Vec<_> = sockets.places().split(',').map(str::to_owned).collect();
        assert!(
            places.len() == 2 && places[0] != places[1] && places[0] == sockets.address().to_string(),
            "{places:?}"
        );
    }
}
