//! What is measured: the application without a mesh, and each kind of proxies in a mesh of their own; or two URLs.
//!
//! All of them are up at the same time and take turns. Each mode has its own way through the same mesh:
//! - `both`: the generator calls the caller's sidecar in plaintext, that the service's over mutual TLS, that the
//!   application in plaintext;
//! - `client`: the caller's sidecar speaks mutual TLS with an application that does so itself;
//! - `server`: the generator, with the caller's certificate, speaks mutual TLS with the service's sidecar;
//! - `gateway`: the generator calls an ingress gateway in plaintext, by a host, that the service's sidecar over mutual TLS.
//!
//! With one proxy, TLS at the bare end is the application's or the generator's own work, and is in the figures: that is
//! what a workload without a sidecar does in a mesh.

use std::net::SocketAddr;

use anyhow::Context;
use tempfile::TempDir;

use super::arguments::Args;
use super::limits::Limit;
use super::measure::{Processes, Variant};
use super::points::{baselines, usual_modes};
use super::report::{CostScenario, Mode, ProxyKind, Settings};
use crate::cgroup::{Cgroup, Cgroups, Limits};
use crate::load::{Load, Peer};
use crate::mesh::{Child, Envoy, Ports, folder};
use crate::plane::registrations::{GATEWAY, Service};
use crate::plane::{Application, Kind, PATH, Plane, Setting, load, tls};
use crate::progress::Progress;

/// What runs. Fields are in the order in which they end.
pub(super) struct Subjects {
    pub(super) variants: Vec<Variant>,
    /// What did not come up, and why.
    pub(super) missing: Vec<String>,
    pub(super) envoy: Option<Envoy>,
    pub(super) planes: Vec<(ProxyKind, Plane)>,
    applications: Vec<Child>,
    directory: TempDir,
}

impl Subjects {
    /// Brings up what the arguments ask for, and each proxy in a group of its own if it is told where.
    ///
    /// # Errors
    /// When nothing can be measured: there is no application, or no proxy of the kind that was asked for by name.
    pub(super) async fn start(
        scenario: CostScenario,
        args: &Args,
        settings: &Settings,
        groups: Option<Cgroups>,
        progress: &Progress,
    ) -> anyhow::Result<Self> {
        let directory = folder(args.output.keep)?;
        if args.output.keep {
            progress.say(&format!("data and logs: {}", directory.path().display()));
        }
        let mut subjects = Self {
            variants: Vec::new(),
            missing: Vec::new(),
            envoy: None,
            planes: Vec::new(),
            applications: Vec::new(),
            directory,
        };
        match args.target.loads(settings.payload_bytes).await? {
            Some(loads) => subjects.add_target(scenario, loads),
            None => subjects.bring_up(scenario, args, settings, groups, progress).await?,
        }
        Ok(subjects)
    }

    fn add_target(&mut self, scenario: CostScenario, [load, baseline]: [Load; 2]) {
        self.add_baselines(scenario, &baseline);
        let mode = if scenario == CostScenario::Ingress { Mode::Gateway } else { Mode::Both };
        self.variants.push(Variant { proxy: ProxyKind::Target, mode, load, processes: Processes::default() });
    }

    async fn bring_up(
        &mut self,
        scenario: CostScenario,
        args: &Args,
        settings: &Settings,
        groups: Option<Cgroups>,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        let mut ports = Ports::new();
        let application = self.start_application("application", &mut ports).await?;
        let collector = match settings.tracing {
            true => Some(self.start_application("collector", &mut ports).await?.http),
            false => None,
        };
        let payload = usize::try_from(settings.payload_bytes).context("the payload is larger than memory")?;
        self.add_baselines(scenario, &load(Service::Http, application.http, PATH, payload)?);
        let modes = args.modes(usual_modes(scenario));
        let setting = Setting { groups, ..setting(settings, &modes, collector) };
        for kind in args.kinds() {
            let started = self.start_plane(kind, application, &setting, &mut ports, progress);
            match started.await {
                Ok(plane) => {
                    for mode in &modes {
                        self.variants.push(variant(kind, *mode, &plane, payload).await?);
                    }
                    self.planes.push((kind, plane));
                }
                Err(error) if args.insists_on(kind) => return Err(error),
                Err(error) => self.missing.push(format!("{}: {error:#}", name(kind))),
            }
        }
        Ok(())
    }

    async fn start_application(&mut self, name: &str, ports: &mut Ports) -> anyhow::Result<Application> {
        let application = Application { http: ports.loopback()?, tcp: ports.loopback()? };
        self.applications.push(application.start(name, self.directory.path()).await?);
        Ok(application)
    }

    async fn start_plane(
        &mut self,
        kind: ProxyKind,
        application: Application,
        setting: &Setting,
        ports: &mut Ports,
        progress: &Progress,
    ) -> anyhow::Result<Plane> {
        let kind = if kind == ProxyKind::Envoy { Kind::Envoy(self.envoy()?) } else { Kind::Native };
        progress.say(&format!("bringing up a mesh of {} proxies", kind.name()));
        Plane::start(kind, application, setting, self.directory.path(), ports).await
    }

    fn envoy(&mut self) -> anyhow::Result<Envoy> {
        let envoy = Envoy::find()?;
        self.envoy = Some(envoy.clone());
        Ok(envoy)
    }

    fn add_baselines(&mut self, scenario: CostScenario, load: &Load) {
        let variant = |mode: &Mode| Variant {
            proxy: ProxyKind::None,
            mode: *mode,
            load: load.clone(),
            processes: Processes::default(),
        };
        self.variants.extend(baselines(scenario).iter().map(variant));
    }

    /// Holds the proxies on the way of a variant to a limit, and the others of them to none.
    ///
    /// # Errors
    /// When one has more memory already.
    pub(super) fn hold(&mut self, variant: usize, limit: Limit) -> anyhow::Result<()> {
        let Variant { proxy, mode, .. } = self.variants[variant];
        for (_, plane) in self.planes.iter_mut().filter(|(kind, _)| *kind == proxy) {
            for (instance, limits) in on_the_way(mode, limit) {
                if let Some(group) = plane.group_of_mut(instance) {
                    group.limit(limits).with_context(|| instance.to_owned())?;
                }
            }
        }
        Ok(())
    }

    /// The groups of the proxies on the way of a variant that a limit holds.
    pub(super) fn held(&self, variant: usize, limit: Limit) -> Vec<&Cgroup> {
        let Variant { proxy, mode, .. } = self.variants[variant];
        let plane = self.planes.iter().find(|(kind, _)| *kind == proxy);
        let held = on_the_way(mode, limit).into_iter().filter(|(_, limits)| limits.is_some());
        held.filter_map(|(instance, _)| plane?.1.group_of(instance)).collect()
    }

    /// Starts proxies again that the kernel has killed for their memory.
    ///
    /// # Errors
    /// When they do not come back.
    pub(super) async fn revive(&mut self) -> anyhow::Result<()> {
        for (kind, plane) in &mut self.planes {
            let revived = plane.revive().await;
            if revived.with_context(|| format!("{} proxies do not come back", name(*kind)))? {
                renew(&mut self.variants, *kind, plane);
            }
        }
        Ok(())
    }

    /// Starts all proxies anew: a process does not give back all that it had.
    ///
    /// # Errors
    /// When they do not come back.
    pub(super) async fn restart(&mut self) -> anyhow::Result<()> {
        for (kind, plane) in &mut self.planes {
            let restarted = plane.restart().await;
            restarted.with_context(|| format!("{} proxies do not come back", name(*kind)))?;
            renew(&mut self.variants, *kind, plane);
        }
        Ok(())
    }

    /// How a process of the meshes has ended by itself, if one has.
    pub(super) fn ended(&mut self) -> Option<String> {
        self.planes.iter_mut().find_map(|(_, plane)| plane.check_alive().err()).map(|error| format!("{error:#}"))
    }
}

/// Has the variants of a kind know the processes that there are now.
fn renew(variants: &mut [Variant], kind: ProxyKind, plane: &Plane) {
    for variant in variants.iter_mut().filter(|variant| variant.proxy == kind) {
        variant.processes = processes(variant.mode, plane);
    }
}

/// The proxies on the way of a mode, and what a limit holds each of them to.
fn on_the_way(mode: Mode, limit: Limit) -> Vec<(&'static str, Option<Limits>)> {
    let gateway = (mode == Mode::Gateway).then(|| (GATEWAY, limit.of_gateway()));
    gateway.into_iter().chain([(Service::Http.name(), limit.of_sidecar())]).collect()
}

/// What a mesh is told, with no more services than the modes need.
fn setting(settings: &Settings, modes: &[Mode], spans_to: Option<SocketAddr>) -> Setting {
    let mut services = vec![Service::Http];
    services.extend(modes.contains(&Mode::Client).then_some(Service::Proxyless));
    let Settings { policies, access_log, .. } = *settings;
    let gateway = modes.contains(&Mode::Gateway);
    Setting { services, policies, access_log, spans_to, gateway, ..Setting::default() }
}

async fn variant(proxy: ProxyKind, mode: Mode, plane: &Plane, payload: usize) -> anyhow::Result<Variant> {
    let load = match mode {
        Mode::Client => plane.load(Service::Proxyless, payload)?,
        Mode::Server => {
            let tls = tls::as_caller(&mut plane.calling_api()).await?;
            let peer = Peer { address: plane.public(Service::Http), tls: Some(tls) };
            Load { peer, ..plane.load(Service::Http, payload)? }
        }
        Mode::Gateway => plane.load_from_outside(payload)?,
        Mode::Both | Mode::Baseline | Mode::BaselineAgain => plane.load(Service::Http, payload)?,
    };
    Ok(Variant { proxy, mode, load, processes: processes(mode, plane) })
}

/// The proxies on the way of a mode.
fn processes(mode: Mode, plane: &Plane) -> Processes {
    let [caller, service] = plane.proxies(Service::Http).map(Some);
    match mode {
        Mode::Client => Processes { caller, service: None },
        Mode::Server => Processes { caller: None, service },
        Mode::Gateway => Processes { caller: Some(plane.proxy_of(GATEWAY)), service },
        Mode::Both | Mode::Baseline | Mode::BaselineAgain => Processes { caller, service },
    }
}

/// For people.
pub(crate) fn name(kind: ProxyKind) -> &'static str {
    match kind {
        ProxyKind::None => "no mesh",
        ProxyKind::Native => "native",
        ProxyKind::Envoy => "Envoy",
        ProxyKind::Target => "target",
    }
}
