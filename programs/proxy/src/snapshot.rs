//! What a worker is doing at one moment, for whoever asks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use starling_identity::Validity;
use starling_model::{InstanceId, Protocol, ServiceName};

use crate::connections::Connection;
use crate::keys::Keys;
use crate::workload::Workload;

/// Connections of one listener of one worker that are told of one by one; all are counted.
pub const CONNECTIONS_SHOWN_MAX: usize = 1_000;

/// One worker.
#[derive(Debug, Clone)]
pub struct WorkerSnapshot {
    /// What it serves.
    pub workloads: Vec<WorkloadSnapshot>,
    /// Connections that stand though nobody listens any more where they came in: they end with what they carry.
    pub leaving: usize,
    /// Nobody is let in any more.
    pub draining: bool,
}

/// One workload as one worker serves it.
#[derive(Debug, Clone)]
pub struct WorkloadSnapshot {
    /// Its name.
    pub id: InstanceId,
    /// Its plan.
    pub workload: Arc<Workload>,
    /// What it shows, and whom it believes.
    pub keys: Arc<Keys>,
    /// Where it listens.
    pub listeners: Vec<ListenerSnapshot>,
    /// Where it calls.
    pub upstreams: Vec<UpstreamSnapshot>,
}

/// One listener.
#[derive(Debug, Clone)]
pub struct ListenerSnapshot {
    /// Where it listens.
    pub address: SocketAddr,
    /// The service that is called there; `None` for the workload itself.
    pub upstream: Option<ServiceName>,
    /// What is spoken.
    pub protocol: Protocol,
    /// Connections that stand.
    pub standing: usize,
    /// The oldest of them, [`CONNECTIONS_SHOWN_MAX`] at most.
    pub connections: Vec<ConnectionSnapshot>,
    /// Certificates from files that are shown to callers from outside.
    pub certificates: Vec<CertificateSnapshot>,
    /// Why they are not those of the files, which have changed since.
    pub files_refused: Option<Arc<String>>,
}

/// A certificate from a file.
#[derive(Debug, Clone)]
pub struct CertificateSnapshot {
    /// The hosts that it is for.
    pub names: Vec<String>,
    /// When it is valid; `None` if that cannot be told.
    pub validity: Option<Validity>,
}

/// One connection of a client.
#[derive(Debug, Clone)]
pub struct ConnectionSnapshot {
    /// The other end.
    pub remote: SocketAddr,
    /// Its identity, if it has shown one.
    pub identity: Option<String>,
    /// How long it stands.
    pub age: Duration,
    /// Requests that it has brought to their end.
    pub requests: u64,
}

impl ConnectionSnapshot {
    pub(crate) fn of(connection: &Connection) -> Self {
        Self {
            remote: connection.remote(),
            identity: connection.identity().map(str::to_owned),
            age: connection.since.elapsed(),
            requests: connection.requests.get(),
        }
    }
}

/// What calls of one service go to.
#[derive(Debug, Clone)]
pub struct UpstreamSnapshot {
    /// Its name.
    pub name: String,
    /// What is spoken.
    pub protocol: Protocol,
    /// Calls under way.
    pub calls: u32,
    /// Its endpoints.
    pub hosts: Vec<HostSnapshot>,
}

/// One endpoint.
#[derive(Debug, Clone)]
pub struct HostSnapshot {
    /// `None` for an application that is known by name.
    pub address: Option<SocketAddr>,
    /// Share of load.
    pub weight: u32,
    /// Calls under way.
    pub calls: u32,
    /// It has failed and is not called for a while.
    pub ejected: bool,
    /// Connections kept for the next call.
    pub idle_connections: usize,
    /// Connections of HTTP/2.
    pub shared_connections: usize,
}
