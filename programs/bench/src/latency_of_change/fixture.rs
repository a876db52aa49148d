//! The mesh of this scenario: `web` calls `api`, which has two instances; three Envoys, all HTTP.

use std::net::SocketAddr;

use http::Method;
use serde_json::{Value, json};

use super::change::{CLIENT, FICKLE, SERVICE, STEADY, check_id};
use crate::mesh::{Mesh, MeshOptions};
use crate::progress::Progress;

/// Worker threads of each Envoy: more than one, because a change has taken hold only when every worker has it.
const ENVOY_WORKERS: usize = 2;

/// A TTL that never runs out during a run, so that a check changes only when it is told to.
const CHECK_TTL: &str = "24h";

/// The mesh, ready for traffic.
pub(super) struct Fixture {
    pub(super) mesh: Mesh,
    /// Where the client's sidecar takes calls for `api`.
    pub(super) upstream: SocketAddr,
    /// The body that registers the instance that comes and goes.
    pub(super) registration: Value,
}

impl Fixture {
    /// Brings everything up.
    ///
    /// # Errors
    /// When a process does not start, or a registration is refused.
    pub(super) async fn start(options: MeshOptions, progress: &Progress) -> anyhow::Result<Self> {
        progress.say("starting a server");
        let mut mesh = Mesh::start(options).await?;
        let mut api = mesh.api();
        let defaults = json!({ "Kind": "service-defaults", "Name": SERVICE, "Protocol": "http" });
        api.write(Method::PUT, "/v1/config", &defaults).await?;

        progress.say("starting two applications");
        let mut registration = Value::Null;
        for instance in [STEADY, FICKLE] {
            let application = mesh.free_address()?;
            mesh.start_fake_service(instance, application).await?;
            registration = register_api(instance, application, mesh.free_address()?);
            api.write(Method::PUT, "/v1/agent/service/register", &registration).await?;
        }
        let upstream = mesh.free_address()?;
        let client = register_client(mesh.free_address()?, mesh.free_address()?, upstream);
        api.write(Method::PUT, "/v1/agent/service/register", &client).await?;

        progress.say("starting three Envoys");
        for instance in [STEADY, FICKLE, CLIENT] {
            mesh.start_envoy(instance, ENVOY_WORKERS)?;
        }
        mesh.envoys_ready(|| ()).await?;
        Ok(Self { mesh, upstream, registration })
    }
}

/// An instance with a check that passes until told otherwise. Its sidecar has only the alias of that check: the usual
/// TCP check on top would run at its own pace, and so be a second change.
fn register_api(instance: &str, application: SocketAddr, sidecar: SocketAddr) -> Value {
    json!({
        "ID": instance,
        "Name": SERVICE,
        "Address": application.ip(),
        "Port": application.port(),
        "Check": { "CheckID": check_id(instance), "Name": "alive", "TTL": CHECK_TTL, "Status": "passing" },
        "Connect": { "SidecarService": {
            "Port": sidecar.port(),
            "Checks": [{ "Name": "instance", "AliasService": instance }],
        } },
    })
}

/// The calling side. It has no process: the probes stand in for it.
fn register_client(application: SocketAddr, sidecar: SocketAddr, upstream: SocketAddr) -> Value {
    json!({
        "ID": CLIENT,
        "Name": CLIENT,
        "Address": application.ip(),
        "Port": application.port(),
        "Connect": { "SidecarService": {
            "Port": sidecar.port(),
            "Checks": [{ "Name": "instance", "AliasService": CLIENT }],
            "Proxy": { "Upstreams": [{
                "DestinationName": SERVICE,
                "LocalBindAddress": upstream.ip(),
                "LocalBindPort": upstream.port(),
            }] },
        } },
    })
}
