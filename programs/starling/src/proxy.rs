//! `starling proxy`: the native data plane in a process of its own, for one workload or as a gateway.
//!
//! Looks the sidecar or gateway up at the local agent, as `connect envoy` does, follows its plan, and serves it. It goes on
//! serving while the agent is away.

mod arguments;
mod dial;
mod follow;
mod handover;
mod rest;

use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use starling_model::InstanceId;
use starling_proxy::admin::{self, AdminAddress, AdminListener};
use starling_proxy::{Engine, Inherited, Timeouts};
use starling_telemetry::Registry;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::arguments::Surroundings;
use crate::connect::gateway;
use crate::connect::sidecar::{self, Wanted};
use crate::connect::xds::Xds;
use crate::descriptors;
use crate::memory;
use crate::role::arguments::proxy_workers;
use crate::role::{self, Interrupts, Role};
use dial::Dial;
use follow::{Follower, comes_true};
use handover::{Incumbent, Meeting, Parting, Starting, Successor, Visitor};

pub(crate) use arguments::ProxyArgs;

pub(crate) async fn run(args: ProxyArgs, surroundings: &Surroundings) -> anyhow::Result<()> {
    let interrupts = Interrupts::listen()?;
    let stop_within = args.drain_time + role::STOP_WITHIN;
    role::run_within(interrupts, stop_within, start(args, surroundings)).await
}

async fn start(args: ProxyArgs, surroundings: &Surroundings) -> anyhow::Result<OwnProcess> {
    let client = surroundings.client(&args.api)?;
    let wanted = match &args.gateway {
        Some(name) => Wanted::Gateway(name, args.gateway_kind),
        None => Wanted::of(&args.sidecar, &surroundings.environment)?,
    };
    let sidecar = match wanted {
        Wanted::Gateway(name, kind) => gateway::find(&client, (name, kind), &args.registering).await?,
        Wanted::SidecarFor(_) | Wanted::Proxy(_) => sidecar::find(&client, wanted).await?,
    };
    let agent = sidecar::agent(&client).await?;
    let dial = Dial::new(Xds::find(&args.xds, &client, &surroundings.environment, &agent)?)?;
    let id = InstanceId::new(&sidecar.id).context("the sidecar's ID")?;
    // By whatever name it is called, its node's ID is the same.
    let agent = if agent.node_id.is_empty() { dial.to_string() } else { agent.node_id };
    if args.take_over {
        // Or the one that serves would wait for this one, and follow nobody meanwhile.
        dial.connect().await.context("--take-over")?;
    }
    let Met { meeting, starting, incumbent, sockets, successor } = meet(&args, &agent, &id).await?;
    let inherited = Inherited::new(sockets)?;
    let workers = proxy_workers(args.workers);
    let share = descriptors::of_proxy()?;
    let engine = Engine::limited(workers, Timeouts::default(), inherited, share).context("starting the workers")?;
    let engine = Arc::new(engine);
    let alone = watch::Sender::new(successor.is_none());
    let token = client.token().map(str::to_owned);
    let follower = Follower::new(id, dial, token, Arc::clone(&engine), alone.subscribe());
    let follower = follower.of_gateway(args.gateway.as_ref().map(|_| args.gateway_kind));
    let mut admin = Admin { address: args.admin_bind.clone(), task: None };
    admin.open(&engine).await?;
    let place = Place { engine, admin, meeting, starting, incumbent, successor, serves: false, alone };
    Ok(OwnProcess { follower, place, drain_time: args.drain_time, left: None })
}

/// How this process stands to others of the same proxy.
#[derive(Default)]
struct Met {
    meeting: Option<Meeting>,
    /// If this process takes over.
    starting: Option<Starting>,
    incumbent: Option<Incumbent>,
    sockets: Vec<OwnedFd>,
    successor: Option<Successor>,
}

/// Takes what the one before hands over if this process is to take its place, else its own place.
async fn meet(args: &ProxyArgs, agent: &str, id: &InstanceId) -> anyhow::Result<Met> {
    let meeting = args.runtime_dir().and_then(|folder| Meeting::at(&folder, agent, id.as_str()));
    let meeting = match meeting {
        Ok(meeting) => meeting,
        Err(error) if args.take_over => return Err(error.context("--take-over")),
        // Somebody else's: to go on would let two processes serve at once.
        Err(error) if args.runtime_dir().is_ok_and(|folder| folder.exists()) => {
            return Err(error.context("say another folder with --runtime-dir"));
        }
        Err(error) => {
            tracing::warn!(error = format!("{error:#}"), "no other process will be able to take over");
            return Ok(Met::default());
        }
    };
    let starting = meeting.begin(args.take_over).await.with_context(|| id.to_string())?;
    if args.take_over {
        match meeting.take_over().await {
            Ok(Some((sockets, successor))) => {
                let (starting, successor) = (Some(starting), Some(successor));
                return Ok(Met { meeting: Some(meeting), starting, incumbent: None, sockets, successor });
            }
            Ok(None) => tracing::info!(sidecar = %id, "nobody serves it here; starting anew"),
            Err(error) => {
                let incumbent = Some(meeting.succeed().await.ok_or(error)?);
                return Ok(Met { meeting: Some(meeting), incumbent, ..Met::default() });
            }
        }
    }
    let incumbent = Some(meeting.wait().await.with_context(|| id.to_string())?);
    Ok(Met { meeting: Some(meeting), incumbent, ..Met::default() })
}

/// Time in which connections that wait for another request are closed once the next process serves: the native data plane
/// gives them half of it.
const LAST_REQUESTS_WITHIN: Duration = Duration::from_secs(1);

/// A proxy that is all that its process does.
struct OwnProcess {
    follower: Follower,
    place: Place,
    drain_time: Duration,
    /// The next process, if it serves in the place of this one.
    left: Option<Parting>,
}

/// What is served here, and who takes whose place.
struct Place {
    engine: Arc<Engine>,
    admin: Admin,
    /// Where processes of this proxy meet.
    meeting: Option<Meeting>,
    /// This process, as far as it takes over.
    starting: Option<Starting>,
    /// This process, as far as it waits there for the next one.
    incumbent: Option<Incumbent>,
    /// This process, as far as the one before waits for its word.
    successor: Option<Successor>,
    /// Whether anything was ever in force.
    serves: bool,
    /// Whether nobody serves beside this process what was in force before.
    alone: watch::Sender<bool>,
}

/// The door for operators.
struct Admin {
    address: Option<AdminAddress>,
    task: Option<JoinHandle<()>>,
}

impl Admin {
    async fn open(&mut self, engine: &Arc<Engine>) -> anyhow::Result<()> {
        let Some(address) = &self.address else { return Ok(()) };
        let bound = AdminListener::bind(address).await;
        let listener = bound.with_context(|| format!("--admin-bind: cannot listen on {address}"))?;
        let registry = Registry::default();
        memory::register(&registry);
        self.task = Some(tokio::spawn(admin::serve(listener, Arc::clone(engine), registry)));
        Ok(())
    }

    async fn close(&mut self) {
        if let Some(mut task) = self.task.take() {
            task.abort();
            // Its address is free when it has ended; that it was aborted is what is waited for.
            let _ = (&mut task).await;
        }
    }
}

impl Place {
    /// The first state is in force.
    ///
    /// # Errors
    /// If the one before goes on serving.
    async fn serves(&mut self) -> anyhow::Result<()> {
        self.serves = true;
        self.engine.forget_inherited();
        if let Some(successor) = self.successor.take() {
            match successor.serves().await {
                Ok(predecessor) => {
                    self.wait_for_the_next().await;
                    predecessor.has_left().await;
                }
                Err(error) => self.left_alone(error).await?,
            }
        }
        self.alone.send_replace(true);
        Ok(())
    }

    /// The one before waits no longer: it goes on serving, or it has ended, and then this one serves in its place.
    ///
    /// # Errors
    /// `error`, if it goes on serving.
    async fn left_alone(&mut self, error: anyhow::Error) -> anyhow::Result<()> {
        self.successor = None;
        let Some(meeting) = &self.meeting else { return Err(error) };
        self.incumbent = Some(meeting.succeed().await.ok_or(error)?);
        self.starting = None;
        Ok(())
    }

    /// Ends when the one before does not wait for this one any more. Safe to drop.
    async fn abandoned(&self) -> anyhow::Error {
        match &self.successor {
            Some(successor) => successor.abandoned().await,
            None => std::future::pending().await,
        }
    }

    async fn wait_for_the_next(&mut self) {
        let Some(meeting) = &self.meeting else { return };
        match meeting.wait().await {
            Ok(incumbent) => self.incumbent = Some(incumbent),
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "no other process will be able to take over");
            }
        }
        self.starting = None;
    }

    /// Returns when the next one serves.
    async fn hand_over(&mut self, visitor: Visitor) -> anyhow::Result<Parting> {
        // The next one takes the same addresses.
        self.admin.close().await;
        visitor.hand_over(self.engine.sockets().await?, &mut self.incumbent).await
    }

    /// Waits for somebody who takes over. Safe to drop.
    async fn visited(&self) -> Visitor {
        match &self.incumbent {
            Some(incumbent) => incumbent.visited().await,
            None => std::future::pending().await,
        }
    }
}

impl Role for OwnProcess {
    const FINISHES_START: bool = false;

    async fn serve(&mut self) -> anyhow::Result<()> {
        let Self { follower, place, left, .. } = self;
        let mut resting = pin!(rest::watch());
        loop {
            let mut in_force = follower.in_force();
            let visitor = {
                // Dropped at the end of this, and its stream with it: the agent takes no second one beside it.
                let mut following = pin!(follower.follow());
                loop {
                    tokio::select! {
                        never = &mut resting => match never {},
                        followed = &mut following => return followed,
                        visitor = place.visited() => break visitor,
                        () = comes_true(&mut in_force), if !place.serves => tokio::select! {
                            serves = place.serves() => serves?,
                            // What is new is taken also while the one before leaves.
                            followed = &mut following => return followed,
                            never = &mut resting => match never {},
                        },
                        error = place.abandoned() => place.left_alone(error).await?,
                    }
                }
            };
            // From here on it does not follow: the next one does.
            tracing::info!("another process takes over");
            match place.hand_over(visitor).await {
                Ok(next) => {
                    *left = Some(next);
                    return Ok(());
                }
                Err(error) => {
                    tracing::warn!(error = format!("{error:#}"), "it did not; serving goes on here");
                    if let Err(error) = place.admin.open(&place.engine).await {
                        tracing::warn!(error = format!("{error:#}"), "operators cannot be served any more");
                    }
                    if place.incumbent.is_none() {
                        place.wait_for_the_next().await;
                    }
                }
            }
        }
    }

    async fn stop(self) {
        let Self { mut place, drain_time, left, .. } = self;
        // Nobody who comes now shall find it.
        place.incumbent = None;
        if left.is_some() {
            place.engine.leave().await;
        } else {
            place.engine.drain().await;
        }
        let standing = place.engine.standing().await;
        let why = if left.is_some() { "the next process serves" } else { "asked to end" };
        tracing::info!("{why}; draining {standing} connections, for at most {drain_time:?}");
        let mut left_to_drain = drain_time;
        if let Some(next) = left {
            // On a connection that stands one more request may come, which is judged by what was in force here.
            let last_requests = LAST_REQUESTS_WITHIN.min(drain_time);
            role::drained(&place.engine, last_requests).await;
            drop(next);
            left_to_drain -= last_requests;
        }
        match role::drained(&place.engine, left_to_drain).await {
            0 => tracing::info!("drained; ending"),
            cut => tracing::warn!("the drain time is over; ending, and cutting off {cut} connections"),
        }
        place.admin.close().await;
        role::finish(&place.engine).await;
    }
}
