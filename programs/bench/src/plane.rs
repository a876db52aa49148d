//! One mesh: a server, two agents, and the proxies of a data plane, as scenarios measure what proxies cost.

pub(crate) mod registrations;
pub(crate) mod tls;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::api::{Api, Call};
use crate::cgroup::{Cgroup, Cgroups};
use crate::fleet::Server;
use crate::load::{Length, Load, Message, Peer, generate, parse_url};
use crate::mesh::{
    Addresses, Child, Envoy, Ports, Role, Sidecar, SidecarOptions, command, is_ready, logs, own_program, ready,
};
use crate::process;
use registrations::{CALLER, FORBIDDEN, GATEWAY, HOST, Service, caller, ingress, proxy_defaults};

/// A gRPC method by its form, so that all protocols share it.
pub(crate) const PATH: &str = "/bench.Echo/Unary";

/// Variable that holds an agent's join token.
const JOIN_TOKEN: &str = "STARLING_JOIN_TOKEN";

/// Time in which calls must come through.
const REACHED_WITHIN: Duration = Duration::from_secs(30);

/// Pause between two attempts.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(50);

/// What a mesh is brought up with.
#[derive(Debug, Clone, Default)]
pub(crate) struct Setting {
    pub(crate) services: Vec<Service>,
    /// Intentions on each service beside the one of its caller.
    pub(crate) policies: u32,
    pub(crate) access_log: bool,
    /// Where spans of all requests go, if they are traced.
    pub(crate) spans_to: Option<SocketAddr>,
    /// Let the HTTP service be called from outside, too.
    pub(crate) gateway: bool,
    /// Where every proxy gets a group of its own, if it is to have one.
    pub(crate) groups: Option<Cgroups>,
}

/// Which proxies.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Native,
    Envoy(Envoy),
}

/// Where the application listens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Application {
    pub(crate) http: SocketAddr,
    pub(crate) tcp: SocketAddr,
}

/// An agent's process.
struct Agent {
    child: Child,
    addresses: Addresses,
}

/// A mesh that runs. Fields are in the order in which they end.
pub(crate) struct Plane {
    kind: Kind,
    sidecars: BTreeMap<String, Sidecar>,
    /// Proxies that have to be started again, with where their admin port was.
    down: BTreeMap<String, SocketAddr>,
    /// The application without a sidecar, if there is one.
    proxyless: Option<Child>,
    calling: Agent,
    called: Agent,
    server: Server,
    /// Where the caller's sidecar takes requests for a service.
    upstreams: BTreeMap<Service, SocketAddr>,
    /// Where the ingress gateway listens, if there is one.
    gateway: Option<SocketAddr>,
    groups: Option<Cgroups>,
    /// Where the caller itself would listen, and its sidecar.
    caller_at: [SocketAddr; 2],
    /// Where a service's sidecar takes calls over mutual TLS.
    public: BTreeMap<Service, SocketAddr>,
    directory: PathBuf,
}

impl Plane {
    /// Brings one up, and waits until every service is reached through it and what is forbidden is refused.
    ///
    /// # Errors
    /// When a process does not start, a registration is refused, or calls do not come through.
    pub(crate) async fn start(
        kind: Kind,
        application: Application,
        setting: &Setting,
        directory: &Path,
        ports: &mut Ports,
    ) -> anyhow::Result<Self> {
        let directory = directory.join(kind.name());
        std::fs::create_dir_all(logs(&directory)).context("cannot make a folder for logs")?;
        let server = Server::alone(&directory).await?;
        let token = server.join_token().await?;
        let at = (server.agents(), token.as_str(), directory.as_path());
        let calling = Agent::start("calling", &kind, at, ports).await?;
        let called = Agent::start("called", &kind, at, ports).await?;
        let (upstreams, public, sidecars, down) = Default::default();
        let (proxyless, caller_at) = (None, [ports.loopback()?, ports.loopback()?]);
        let gateway = if setting.gateway { Some(ports.loopback()?) } else { None };
        let groups = setting.groups.clone();
        let mut plane = Self {
            kind,
            sidecars,
            down,
            proxyless,
            calling,
            called,
            server,
            upstreams,
            gateway,
            groups,
            caller_at,
            public,
            directory,
        };
        plane.furnish(application, setting, ports).await?;
        plane.reach().await?;
        Ok(plane)
    }

    async fn furnish(&mut self, application: Application, setting: &Setting, ports: &mut Ports) -> anyhow::Result<()> {
        let mut api = self.server.api();
        let mut called = self.called_api();
        let Call { method, target, body } = proxy_defaults(setting.access_log, setting.spans_to);
        api.write(method, &target, &body).await?;
        let callers = if setting.gateway { &[CALLER, GATEWAY][..] } else { &[CALLER] };
        for service in setting.services.iter().copied() {
            for Call { method, target, body } in service.settings(callers, setting.policies) {
                api.write(method, &target, &body).await?;
            }
            let public = ports.loopback()?;
            let behind = match service {
                Service::Http | Service::Http2 | Service::Grpc => application.http,
                Service::Tcp => application.tcp,
                Service::Proxyless => public,
            };
            let Call { method, target, body } = service.registration(behind, public);
            called.write(method, &target, &body).await?;
            self.public.insert(service, public);
            self.upstreams.insert(service, ports.loopback()?);
            if service == Service::Proxyless {
                self.proxyless = Some(self.start_proxyless(public, ports).await?);
                continue;
            }
            let agent = self.called.addresses;
            self.proxy(Role::SidecarOf(service.name()), agent, ports.loopback()?).await?;
        }
        self.call_also([]).await?;
        let agent = self.calling.addresses;
        if let Some(gateway) = self.gateway {
            let Call { method, target, body } = ingress(gateway.port());
            api.write(method, &target, &body).await?;
            self.proxy(Role::Gateway(GATEWAY), agent, ports.loopback()?).await?;
        }
        self.proxy(Role::SidecarOf(CALLER), agent, ports.loopback()?).await
    }

    async fn start_proxyless(&self, listen: SocketAddr, ports: &mut Ports) -> anyhow::Result<Child> {
        let (name, folder) = (Service::Proxyless.name(), self.directory.join("identity"));
        tls::write_identity(&mut Api::new(self.called.addresses.http), name, &folder).await?;
        let application = Application { http: ports.loopback()?, tcp: ports.loopback()? };
        let mut command = application.command()?;
        command.args(["--tls", &listen.to_string(), "--identity"]).arg(folder);
        application.spawn(name, &mut command, &self.directory).await
    }

    /// Has the caller's sidecar take requests for these services, too, each where it is said.
    ///
    /// # Errors
    /// When the registration is refused.
    pub(crate) async fn call_also(&self, others: impl IntoIterator<Item = (String, SocketAddr)>) -> anyhow::Result<()> {
        let own = self.upstreams.iter().map(|(service, at)| (service.name().to_owned(), *at));
        let [application, sidecar] = self.caller_at;
        self.register_caller(&caller(CALLER, application, sidecar, own.chain(others))).await
    }

    /// Registers an instance at the agent of the calling node.
    pub(crate) async fn register_caller(&self, registration: &Call) -> anyhow::Result<()> {
        let Call { method, target, body } = registration;
        Api::new(self.calling.addresses.http).write(method.clone(), target, body).await?;
        Ok(())
    }

    /// Starts the sidecar of an instance on the calling node.
    pub(crate) async fn further_sidecar(&mut self, instance: &str, ports: &mut Ports) -> anyhow::Result<()> {
        let agent = self.calling.addresses;
        self.proxy(Role::SidecarOf(instance), agent, ports.loopback()?).await
    }

    /// Starts what the kernel has killed for its memory again, and waits until calls come through; whether there was any.
    ///
    /// # Errors
    /// When it does not start, or calls do not come through; it is tried again the next time.
    pub(crate) async fn revive(&mut self) -> anyhow::Result<bool> {
        let killed = self.sidecars.iter().filter(|(_, sidecar)| sidecar.was_killed());
        let killed: Vec<_> = killed.map(|(instance, _)| instance.clone()).collect();
        self.start_again(killed).await
    }

    /// Starts every proxy anew, with nothing that the last one had in its memory.
    ///
    /// # Errors
    /// As for [`Plane::revive`].
    pub(crate) async fn restart(&mut self) -> anyhow::Result<()> {
        let all = self.sidecars.keys().cloned().collect();
        self.start_again(all).await.map(|_| ())
    }

    async fn start_again(&mut self, instances: Vec<String>) -> anyhow::Result<bool> {
        for instance in instances {
            // Its group has to go before there can be another of its name.
            if let Some(ended) = self.sidecars.remove(&instance) {
                self.down.insert(instance, ended.admin());
            }
        }
        let down = self.down.clone();
        for (instance, admin) in &down {
            let role = if instance == GATEWAY { Role::Gateway(GATEWAY) } else { Role::SidecarOf(instance) };
            let is_called = self.public.keys().any(|service| service.name() == instance);
            let agent = if is_called { self.called.addresses } else { self.calling.addresses };
            self.proxy(role, agent, *admin).await?;
            self.down.remove(instance);
        }
        if !down.is_empty() {
            self.reach().await?;
        }
        Ok(!down.is_empty())
    }

    async fn proxy(&mut self, role: Role<'_>, agent: Addresses, admin: SocketAddr) -> anyhow::Result<()> {
        let options = SidecarOptions { agent, role, workers: 1, admin };
        let logs = logs(&self.directory);
        let mut sidecar = match &self.kind {
            Kind::Envoy(envoy) => Sidecar::start(envoy, options, &logs)?,
            Kind::Native => Sidecar::start_native(options, &logs)?,
        };
        if let Some(groups) = &self.groups {
            sidecar.confine(groups.make(&format!("{}-{}", self.kind.name(), role.name()))?)?;
        }
        sidecar.ready().await?;
        self.sidecars.insert(role.name().to_owned(), sidecar);
        Ok(())
    }

    async fn reach(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + REACHED_WITHIN;
        for (name, load) in self.ways(PATH)? {
            while let Err(error) = reached(load.clone()).await {
                if Instant::now() > deadline {
                    let plane = self.kind.name();
                    return Err(error.context(format!("{name} is not reached through {plane} proxies")));
                }
                tokio::time::sleep(ATTEMPT_PAUSE).await;
            }
        }
        let is_authorised_by_path = |name: &str| [Service::Http.name(), GATEWAY].contains(&name);
        for (name, forbidden) in self.ways(FORBIDDEN)?.into_iter().filter(|(name, _)| is_authorised_by_path(name)) {
            let outcome = generate(Load { length: Length::Requests(1), ..forbidden }).await?;
            if !outcome.tally.status.contains_key(&403) {
                let (plane, found) = (self.kind.name(), outcome.tally.failures);
                bail!(
                    "what an intention forbids is not refused by {plane} proxies on the way through {name}: {found:?}"
                );
            }
        }
        Ok(())
    }

    /// Calls of a path through the caller's sidecar, of each service, and through the gateway; with what they go through.
    fn ways(&self, path: &str) -> anyhow::Result<Vec<(&'static str, Load)>> {
        let payload = if path == FORBIDDEN { 0 } else { 16 };
        let services = self.upstreams.keys();
        let inside = services.map(|service| Ok((service.name(), self.load_of(*service, path, payload)?)));
        let outside = self.gateway.map(|gateway| Ok((GATEWAY, load_from_outside(gateway, path, payload)?)));
        inside.chain(outside).collect()
    }

    /// Calls of a service through both hops.
    ///
    /// # Errors
    /// When its address makes no URL, which it does.
    pub(crate) fn load(&self, service: Service, payload: usize) -> anyhow::Result<Load> {
        self.load_of(service, PATH, payload)
    }

    /// Calls of the HTTP service through the ingress gateway.
    ///
    /// # Errors
    /// When there is no gateway.
    pub(crate) fn load_from_outside(&self, payload: usize) -> anyhow::Result<Load> {
        load_from_outside(self.gateway.context("this mesh has no ingress gateway")?, PATH, payload)
    }

    fn load_of(&self, service: Service, path: &str, payload: usize) -> anyhow::Result<Load> {
        load(service, self.upstream(service), path, payload)
    }

    /// Where the caller's sidecar takes requests for a service.
    pub(crate) fn upstream(&self, service: Service) -> SocketAddr {
        self.upstreams[&service]
    }

    /// Where a service's sidecar takes calls over mutual TLS.
    pub(crate) fn public(&self, service: Service) -> SocketAddr {
        self.public[&service]
    }

    /// The HTTP API of the calling node's agent.
    pub(crate) fn calling_api(&self) -> Api {
        Api::new(self.calling.addresses.http)
    }

    /// The HTTP API of the agent on the services' node.
    pub(crate) fn called_api(&self) -> Api {
        Api::new(self.called.addresses.http)
    }

    /// The HTTP API of the server.
    pub(crate) fn server_api(&self) -> Api {
        self.server.api()
    }

    /// The processes of both proxies on the way to a service with a sidecar: the caller's, then the service's.
    pub(crate) fn proxies(&self, service: Service) -> [u32; 2] {
        [CALLER, service.name()].map(|instance| self.proxy_of(instance))
    }

    /// The process that serves an instance.
    pub(crate) fn proxy_of(&self, instance: &str) -> u32 {
        self.sidecars[instance].pid()
    }

    /// The group of the proxy that serves an instance, if it was given one.
    pub(crate) fn group_of(&self, instance: &str) -> Option<&Cgroup> {
        self.sidecars.get(instance)?.group()
    }

    /// The same, to change its limits.
    pub(crate) fn group_of_mut(&mut self, instance: &str) -> Option<&mut Cgroup> {
        self.sidecars.get_mut(instance)?.group_mut()
    }

    /// CPU time that both proxies on the way to a service have used.
    ///
    /// # Errors
    /// When one is gone.
    pub(crate) fn cpu_time(&self, service: Service) -> anyhow::Result<Duration> {
        self.proxies(service).into_iter().map(process::cpu_time_of_threads).sum()
    }

    /// Resident memory of the larger of both proxies, in bytes.
    ///
    /// # Errors
    /// When one is gone.
    pub(crate) fn resident(&self, service: Service) -> anyhow::Result<u64> {
        let [calling, called] = self.proxies(service);
        Ok(process::resident(calling)?.max(process::resident(called)?))
    }

    /// Fails if a process has ended by itself.
    ///
    /// # Errors
    /// With the name of the process, how it ended, and the end of its log.
    pub(crate) fn check_alive(&mut self) -> anyhow::Result<()> {
        let agents = [self.calling.child.ended(), self.called.child.ended(), self.server.ended()];
        let agents = agents.into_iter().chain(self.proxyless.as_mut().map(Child::ended));
        match agents.chain(self.sidecars.values_mut().map(Sidecar::ended)).flatten().next() {
            Some(how) => bail!("{how}"),
            None => Ok(()),
        }
    }
}

async fn reached(load: Load) -> anyhow::Result<()> {
    let load = Load { length: Length::Requests(1), timeout: Duration::from_secs(2), ..load };
    match generate(load).await?.tally.failures.keys().next() {
        Some(failure) => bail!("{failure}"),
        None => Ok(()),
    }
}

fn load_from_outside(gateway: SocketAddr, path: &str, payload: usize) -> anyhow::Result<Load> {
    let (protocol, uri) = parse_url(&format!("http://{HOST}:{}{path}", gateway.port()), false)?;
    let peer = Peer { address: gateway, tls: None };
    Ok(Load::new(peer, protocol, Message::new(protocol, uri, Vec::new(), payload)))
}

/// Calls of a service at an address.
///
/// # Errors
/// As for [`Plane::load`].
pub(crate) fn load(service: Service, address: SocketAddr, path: &str, payload: usize) -> anyhow::Result<Load> {
    let (scheme, http2) = match service {
        Service::Http | Service::Proxyless => ("http", false),
        Service::Http2 => ("http", true),
        Service::Grpc => ("grpc", false),
        Service::Tcp => ("tcp", false),
    };
    let (protocol, uri) = parse_url(&format!("{scheme}://{address}{path}"), http2)?;
    Ok(Load::new(Peer { address, tls: None }, protocol, Message::new(protocol, uri, Vec::new(), payload)))
}

impl Application {
    /// Starts it as a process of its own, with its log below a folder.
    ///
    /// # Errors
    /// When it ends or does not become ready in time.
    pub(crate) async fn start(self, name: &str, directory: &Path) -> anyhow::Result<Child> {
        self.spawn(name, &mut self.command()?, directory).await
    }

    fn command(self) -> anyhow::Result<Command> {
        let mut command = command(&own_program()?);
        command.args(["bench", "echo", "--http", &self.http.to_string(), "--tcp", &self.tcp.to_string()]);
        Ok(command)
    }

    async fn spawn(self, name: &str, command: &mut Command, directory: &Path) -> anyhow::Result<Child> {
        let mut child = Child::spawn(name, command, &logs(directory))?;
        ready(&mut child, || async move { is_ready(self.http, "/").await }).await?;
        Ok(child)
    }
}

impl Setting {
    /// Every service with a sidecar, and nothing beside.
    pub(crate) fn plain() -> Self {
        Self { services: Service::ALL.to_vec(), ..Self::default() }
    }
}

impl Kind {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Envoy(_) => "envoy",
        }
    }
}

impl Agent {
    async fn start(
        node: &str,
        kind: &Kind,
        (server, token, directory): (SocketAddr, &str, &Path),
        ports: &mut Ports,
    ) -> anyhow::Result<Self> {
        let addresses = Addresses { http: ports.loopback()?, grpc: ports.loopback()? };
        let Addresses { http, grpc } = addresses;
        let mut command = command(&own_program()?);
        command.env(JOIN_TOKEN, token);
        command.args(["agent", "--node-name", node, "--server", &server.to_string()]);
        command.arg("--data-dir").arg(directory.join(node));
        command.args(["--http-addr", &http.to_string(), "--grpc-addr", &grpc.to_string()]);
        command.args(["--dns-addr", &ports.loopback()?.to_string()]);
        command.args(["--data-plane", kind.name(), "--proxy-workers", "1"]);
        let mut child = Child::spawn(&format!("agent-{node}"), &mut command, &logs(directory))?;
        ready(&mut child, || async move { is_ready(http, "/v1/agent/self").await }).await?;
        Ok(Self { child, addresses })
    }
}
