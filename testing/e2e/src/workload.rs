//! One instance of a service: registered, with its application and its sidecar running.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::app::App;
use crate::mesh::Mesh;
use crate::own_proxy::OwnProxy;
use crate::ports::free_port;
use crate::sidecar::{Sidecar, Xds};
use crate::{http, wait};

/// Requests that show who answers: with two instances in turn, the chance that one of them is missed is below 10⁻⁹.
const SAMPLE: usize = 30;

/// What an instance shall be.
#[derive(Debug, Clone)]
pub struct Workload {
    name: String,
    id: String,
    upstreams: Vec<(String, &'static str)>,
    environment: Vec<(String, String)>,
    fields: Value,
    upstream_fields: Value,
    xds: Xds,
}

/// Who serves as an instance's sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plane {
    /// The agent's own process.
    Native,
    /// An Envoy.
    Envoy,
    /// A native proxy in a process of its own.
    Own,
}

/// What serves as an instance's sidecar.
#[derive(Debug)]
pub enum Served {
    /// The agent.
    ByAgent,
    /// This Envoy.
    ByEnvoy(Sidecar),
    /// This native proxy.
    ByOwn(OwnProxy),
}

impl Served {
    /// Has the instance `id` served, and waits until its sidecar listens on all `ports`.
    ///
    /// # Panics
    /// If it does not.
    pub async fn start(mesh: &Mesh, plane: Plane, id: &str, ports: &[u16], xds: Xds) -> Self {
        match plane {
            Plane::Envoy => Self::ByEnvoy(Sidecar::start(mesh, id, ports, xds).await),
            Plane::Own => Self::ByOwn(OwnProxy::start(mesh, id, ports).await),
            Plane::Native => {
                wait::listens(ports).await;
                Self::ByAgent
            }
        }
    }

    /// The Envoy, if it is one.
    #[must_use]
    pub fn envoy(&self) -> Option<&Sidecar> {
        match self {
            Self::ByEnvoy(sidecar) => Some(sidecar),
            Self::ByAgent | Self::ByOwn(_) => None,
        }
    }

    /// The native proxy of its own, if it is one.
    ///
    /// # Panics
    /// If it is not.
    pub fn own(&mut self) -> &mut OwnProxy {
        match self {
            Self::ByOwn(proxy) => proxy,
            Self::ByAgent | Self::ByEnvoy(_) => panic!("the sidecar is no native proxy of its own"),
        }
    }
}

/// A running instance.
#[derive(Debug)]
pub struct Instance<S = Sidecar> {
    /// Its id.
    pub id: String,
    /// The application.
    pub app: App,
    /// The sidecar.
    pub sidecar: S,
    /// Where peers' sidecars connect to.
    pub public_port: u16,
    /// Where its application calls each upstream.
    pub upstream_ports: BTreeMap<String, u16>,
    /// What was registered.
    pub registration: Value,
}

impl Workload {
    /// An instance of the service `name`, with the same id.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let (name, id) = (name.to_owned(), name.to_owned());
        Self {
            name,
            id,
            upstreams: Vec::new(),
            environment: Vec::new(),
            fields: json!({}),
            upstream_fields: json!({}),
            xds: Xds::default(),
        }
    }

    /// With another id.
    #[must_use]
    pub fn id(mut self, id: &str) -> Self {
        id.clone_into(&mut self.id);
        self
    }

    /// Calls `service` over HTTP for each request.
    #[must_use]
    pub fn calls(mut self, service: &str) -> Self {
        self.upstreams.push((service.to_owned(), "http"));
        self
    }

    /// Calls `service` over gRPC for each request.
    #[must_use]
    pub fn calls_grpc(mut self, service: &str) -> Self {
        self.upstreams.push((service.to_owned(), "grpc"));
        self
    }

    /// With a variable in its application's environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With a field of its registration.
    #[must_use]
    pub fn field(mut self, name: &str, value: Value) -> Self {
        self.fields[name] = value;
        self
    }

    /// With a field of each upstream.
    #[must_use]
    pub fn upstream_field(mut self, name: &str, value: Value) -> Self {
        self.upstream_fields[name] = value;
        self
    }

    /// With a sidecar that speaks this form of xDS.
    #[must_use]
    pub fn xds(mut self, xds: Xds) -> Self {
        self.xds = xds;
        self
    }

    /// Registers it and starts its application and its sidecar; all is ready when this returns.
    ///
    /// # Panics
    /// If something does not become ready.
    pub async fn start(self, mesh: &Mesh) -> Instance {
        let xds = self.xds;
        self.start_with(mesh, async |id: &str, ports: &[u16]| Sidecar::start(mesh, id, ports, xds).await).await
    }

    /// The same with a sidecar of either kind; the mesh must be one of the native data plane.
    ///
    /// # Panics
    /// If something does not become ready.
    pub async fn start_on(self, mesh: &Mesh, plane: Plane) -> Instance<Served> {
        let xds = self.xds;
        self.start_with(mesh, async |id: &str, ports: &[u16]| Served::start(mesh, plane, id, ports, xds).await).await
    }

    async fn start_with<S>(self, mesh: &Mesh, sidecar: impl AsyncFnOnce(&str, &[u16]) -> S) -> Instance<S> {
        let (app_port, public_port) = (free_port(), free_port());
        let upstream_ports: BTreeMap<_, _> =
            self.upstreams.iter().map(|(service, _)| (service.clone(), free_port())).collect();
        let registration = self.registration(app_port, public_port, &upstream_ports);
        let uris = self.upstreams.iter().map(|(service, scheme)| {
            let port = upstream_ports[service];
            format!("{scheme}://127.0.0.1:{port}")
        });
        let uris = uris.collect::<Vec<_>>().join(",");
        let mut environment = vec![("UPSTREAM_URIS", uris.as_str())];
        environment.extend(self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let ports: Vec<_> = upstream_ports.values().copied().chain([public_port]).collect();
        // It is called as soon as it is registered.
        let app = App::start(&self.id, app_port, &environment).await;
        mesh.register(&registration).await;
        let sidecar = sidecar(&self.id, &ports).await;
        Instance { id: self.id, app, sidecar, public_port, upstream_ports, registration }
    }

    fn registration(&self, app_port: u16, public_port: u16, upstream_ports: &BTreeMap<String, u16>) -> Value {
        let upstreams = self.upstreams.iter().map(|(service, _)| {
            let mut upstream = json!({"DestinationName": service, "LocalBindPort": upstream_ports[service]});
            merge(&mut upstream, &self.upstream_fields);
            upstream
        });
        let mut registration = json!({
            "ID": self.id,
            "Name": self.name,
            "Address": "127.0.0.1",
            "Port": app_port,
            "Connect": {"SidecarService": {
                "Port": public_port,
                "Proxy": {"Upstreams": upstreams.collect::<Vec<_>>()},
            }},
        });
        merge(&mut registration, &self.fields);
        registration
    }
}

fn merge(object: &mut Value, fields: &Value) {
    for (name, value) in fields.as_object().into_iter().flatten() {
        object[name] = value.clone();
    }
}

impl<S> Instance<S> {
    /// HOST:PORT at which its application calls `upstream`.
    #[must_use]
    pub fn upstream(&self, upstream: &str) -> String {
        format!("127.0.0.1:{}", self.upstream_ports[upstream])
    }

    /// HOST:PORT of its public listener.
    #[must_use]
    pub fn public(&self) -> String {
        format!("127.0.0.1:{}", self.public_port)
    }

    /// Waits until its calls of `upstream` are all answered, by exactly the instances `expected`.
    ///
    /// # Panics
    /// If they are not in time.
    pub async fn served_by(&self, upstream: &str, expected: &[&str], when: &str) {
        let expected: BTreeSet<_> = expected.iter().map(|name| (*name).to_owned()).collect();
        wait::eventually(&format!("{expected:?} serve when {when}"), async || {
            let mut names = BTreeSet::new();
            for _ in 0..SAMPLE {
                let answer = http::get(&self.upstream(upstream), "/").await?;
                anyhow::ensure!(answer.status == 200, "{}", answer.status);
                names.extend(answer.json()["name"].as_str().map(str::to_owned));
            }
            anyhow::ensure!(names == expected, "{names:?}");
            Ok(())
        })
        .await;
    }
}
