//! Where the HTTP API is served: at a port, over TLS at another, and at a Unix socket, as far as each is wanted.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use nix::unistd::{Gid, Group, Uid, User};
use rustls::ServerConfig;
use starling_http_api::{Door, Places, Router};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;

use super::{Serving, doors};
use crate::outcome::usage;

/// Between two looks at whether the certificate was replaced.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The doors of the HTTP API beside its port.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct HttpDoorArgs {
    /// Where the HTTP API is served over TLS, too
    #[arg(long, value_name = "IP:PORT", requires = "https_cert_file")]
    pub(crate) https_addr: Option<SocketAddr>,

    /// The certificate that the API shows there, and what is between it and its CA, in PEM; read again when it is replaced
    #[arg(long, value_name = "FILE", requires_all = ["https_addr", "https_key_file"])]
    pub(crate) https_cert_file: Option<PathBuf>,

    /// Its private key, in PEM
    #[arg(long, value_name = "FILE", requires = "https_cert_file")]
    pub(crate) https_key_file: Option<PathBuf>,

    /// Have callers over TLS show a certificate of one of these CAs
    #[arg(long, value_name = "FILE", requires = "https_addr")]
    pub(crate) https_client_ca_file: Option<PathBuf>,

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
    tcp: Option<TcpListener>,
    tls: Option<Https>,
    unix: Option<Socket>,
}

impl HttpSockets {
    /// Binds those that are wanted.
    pub(crate) async fn bind(address: SocketAddr, args: &HttpDoorArgs) -> anyhow::Result<Self> {
        let tcp = if args.http_socket_only { None } else { Some(doors::http(address).await?) };
        let address = tcp.as_ref().map_or(Ok(address), TcpListener::local_addr)?;
        let tls = Https::bind(args).await?;
        let unix = args.http_socket.as_deref().map(|path| Socket::bind(path, args)).transpose()?;
        Ok(Self { address, tcp, tls, unix })
    }

    /// Where the port is, or would be.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves the same at all of them, until the end.
    pub(crate) async fn serve(self, serving: &Serving, router: Router, places: Places) {
        if let Some(listener) = self.tcp {
            serving.spawn(starling_http_api::serve(listener, router.clone(), places, serving.stopped())).await;
        }
        if let Some(Https { listener, files, config, read }) = self.tls {
            let door = Door::Tls(listener, config.subscribe());
            serving.spawn(starling_http_api::serve(door, router.clone(), places, serving.stopped())).await;
            serving.spawn_endless(follow(files, config, read)).await;
        }
        if let Some(Socket { listener, path }) = self.unix {
            let served = starling_http_api::serve(Door::Unix(listener), router, places, serving.stopped());
            let gone_after = async move {
                served.await;
                drop(path);
            };
            serving.spawn(gone_after).await;
        }
    }
}

/// A socket for HTTPS, and what is shown there.
struct Https {
    listener: TcpListener,
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
}

impl Https {
    async fn bind(args: &HttpDoorArgs) -> anyhow::Result<Option<Self>> {
        let (Some(address), Some(certificate), Some(key)) =
            (args.https_addr, &args.https_cert_file, &args.https_key_file)
        else {
            return Ok(None);
        };
        let callers = args.https_client_ca_file.clone();
        let files = Files { certificate: certificate.clone(), key: key.clone(), callers };
        let read = files.stamp();
        let config = watch::Sender::new(files.read()?);
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| doors::taken("the HTTP API over TLS", address, "--https-addr"))?;
        tracing::info!(address = %listener.local_addr()?, "the HTTP API is served over TLS");
        Ok(Some(Self { listener, files, config, read }))
    }
}

impl Files {
    fn read(&self) -> anyhow::Result<Arc<ServerConfig>> {
        let bytes =
            |path: &Path| fs::read(path).map_err(|error| usage(format!("cannot read {}: {error}", path.display())));
        let callers = self.callers.as_deref().map(bytes).transpose()?;
        let config =
            starling_tls::api_server_config(&bytes(&self.certificate)?, &bytes(&self.key)?, callers.as_deref());
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
    path: SocketFile,
}

/// The file of a socket, removed when dropped.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
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
        fs::rename(&hidden, path).map_err(|e| said(&e))?;
        Ok(Self { listener, path: SocketFile(path.to_owned()) })
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
