//! Follows the agent: each newer state of the plan is put in force and answered for.

use std::sync::Arc;
use std::time::Duration;

use starling_model::{InstanceId, ServiceName};
use starling_proxy::{Engine, LeafPem, Serving};
use starling_rpc::{CallError, Follows, PlanMirror, PlanStream, PlanStreamError};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::dial::Dial;
use crate::connect::gateway::GatewayKind;

/// Before the first try after a stream that had served, at most: an agent that is restarted has all its proxies come back.
const RETURN_WITHIN: Duration = Duration::from_millis(100);

/// Between tries, at most.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(2);

/// After a listener that somebody else holds.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// So long another process has to be in this one's place before this one gives up: it may be about to end, as one is that
/// this one takes over from.
const OCCUPIED_FOR: Duration = Duration::from_secs(3);

/// Why nobody is let in.
const UNREGISTERED: &str = "not registered with the agent any more";

/// Why a stream is left after a refusal: there is no way to take one back but to come anew with everything.
const CURED: &str = "what was refused is in force now";

/// Why a stream is left when what was in force is not as planned any more: all of it is to come again, and be refused.
const SPOILT: &str = "what was in force is not as planned any more";

/// The way from the agent to the engine.
pub(super) struct Follower {
    id: InstanceId,
    /// By what the agent tells this process from another one for the same sidecar.
    process: String,
    dial: Dial,
    token: Option<String>,
    engine: Arc<Engine>,
    mirror: PlanMirror,
    serving: Serving,
    /// Since when another process is in this one's place, as far as the agent says.
    occupied: Option<Instant>,
    /// Why not all that was said is in force, if so.
    refused: Option<String>,
    /// Whether all that has arrived is in force.
    settled: bool,
    /// Whether the agent has said that this proxy is not registered any more, and nothing since.
    withdrawn: bool,
    /// Which kind of gateway it is, if it is one.
    gateway: Option<GatewayKind>,
    /// Changes when files of certificates turn out not to fit.
    files: watch::Receiver<()>,
    /// Whether it was said that nobody is let in at the gateway.
    said_closed: bool,
    /// Whether anything ever was in force.
    in_force: watch::Sender<bool>,
    /// Whether nobody else serves what was in force before: only then is what is in force here all that is.
    alone: watch::Receiver<bool>,
}

/// What has become of a state.
enum Outcome {
    /// It is in force.
    InForce,
    /// It is not, or not all of it.
    Refused(String),
    /// There is not enough of it yet.
    Incomplete,
}

impl Follower {
    /// Nothing is reported before `alone` is true.
    pub(super) fn new(
        id: InstanceId,
        dial: Dial,
        token: Option<String>,
        engine: Arc<Engine>,
        alone: watch::Receiver<bool>,
    ) -> Self {
        let files = engine.files();
        Self {
            files,
            id,
            process: format!("{:016x}", fastrand::u64(..)),
            occupied: None,
            dial,
            token,
            engine,
            mirror: PlanMirror::default(),
            serving: Serving::default(),
            refused: None,
            settled: true,
            withdrawn: false,
            gateway: None,
            said_closed: false,
            in_force: watch::Sender::new(false),
            alone,
        }
    }

    /// Which kind of gateway it is: one listens only where a config entry says.
    pub(super) fn of_gateway(self, gateway: Option<GatewayKind>) -> Self {
        Self { gateway, ..self }
    }

    /// Whether it is certain that another process serves: one that has just ended, or just failed, may look so for a moment.
    fn is_occupied(&mut self, said: Option<&PlanStreamError>) -> bool {
        match said {
            Some(PlanStreamError::Occupied { .. }) => {
                self.occupied.get_or_insert_with(Instant::now).elapsed() > OCCUPIED_FOR
            }
            Some(_) | None => false,
        }
    }

    /// Turns true when the first state is in force.
    pub(super) fn in_force(&self) -> watch::Receiver<bool> {
        self.in_force.subscribe()
    }

    /// Serves what the agent says, and what it said last while it is away. Safe to drop, and to be begun again.
    ///
    /// # Errors
    /// If the agent will have nothing to do with this proxy and never had.
    pub(super) async fn follow(&mut self) -> anyhow::Result<()> {
        let mut tries = 0;
        loop {
            match self.attend().await {
                Ok(never) => match never {},
                Err(Lost { error, had_served }) => {
                    if !self.settled {
                        // A port may have become free, whether or not the agent is there.
                        self.put_in_force().await;
                    }
                    let serves = *self.in_force.borrow();
                    let said = error.downcast_ref();
                    let unregistered = matches!(said, Some(PlanStreamError::Unregistered { .. }));
                    let refused = matches!(said, Some(PlanStreamError::Call(CallError::Refused { .. })));
                    let occupied = self.is_occupied(error.downcast_ref());
                    if (refused || unregistered || occupied) && !serves {
                        return Err(error);
                    }
                    tries = if had_served { 0 } else { tries + 1 };
                    if unregistered || occupied {
                        let why = if unregistered { UNREGISTERED } else { "another process serves it now" };
                        self.mirror = PlanMirror::default();
                        self.withdraw(why).await;
                    } else if tries == 1 && !self.withdrawn {
                        let serves = if serves { "; serving goes on" } else { "" };
                        tracing::warn!(error = format!("{error:#}"), "the agent is away{serves}");
                    } else {
                        tracing::debug!(error = format!("{error:#}"), "the agent is away");
                    }
                }
            }
            sleep(pause(tries)).await;
        }
    }

    /// One connection to the agent.
    async fn attend(&mut self) -> Result<std::convert::Infallible, Lost> {
        let (mut had_served, since) = (false, Instant::now());
        match self.attend_to(&mut had_served).await {
            Ok(never) => Ok(never),
            Err(error) => Err(Lost { error, had_served: had_served || since.elapsed() > RETRY_AFTER_MAX }),
        }
    }

    async fn attend_to(&mut self, had_served: &mut bool) -> anyhow::Result<std::convert::Infallible> {
        let connection = self.dial.connect().await?;
        if !self.settled {
            // What is not in force is not had: the agent sends it again, and is answered for it.
            self.mirror = PlanMirror::default();
        }
        // What it accepts counts once nobody serves what was in force before; it goes on taking what is new meanwhile.
        let mut beside_another = !*self.alone.borrow();
        let who = Follows { id: self.id.as_str(), process: &self.process, beside_another };
        let mut stream = PlanStream::open(connection, who, self.token.as_deref(), &self.mirror).await?;
        loop {
            tokio::select! {
                news = stream.next(&mut self.mirror) => {
                    news?;
                    self.occupied = None;
                    let was_refused = self.refused.is_some();
                    match self.put_in_force().await {
                        Outcome::InForce => {
                            if !std::mem::replace(had_served, true) && !self.withdrawn {
                                tracing::info!(sidecar = %self.id, "serving as the agent says");
                            }
                            stream.accept()?;
                            anyhow::ensure!(!was_refused, CURED);
                        }
                        Outcome::Incomplete => stream.accept()?,
                        Outcome::Refused(text) => stream.refuse(text)?,
                    }
                }
                () = comes_true(&mut self.alone), if beside_another => {
                    beside_another = false;
                    stream.is_alone()?;
                }
                // What this stream has not brought anew is what the one before did.
                Ok(()) = self.files.changed(), if self.refused.is_none() && self.settled && self.serves() => {
                    if matches!(self.put_in_force().await, Outcome::Refused(_)) {
                        anyhow::bail!(SPOILT);
                    }
                }
                () = sleep(AGAIN_AFTER), if self.refused.is_some() => {
                    if matches!(self.put_in_force().await, Outcome::InForce) {
                        *had_served = true;
                        anyhow::bail!(CURED);
                    }
                }
            }
        }
    }

    /// Lets nobody in any more: the agent may give the ports to somebody else. What is under way is finished.
    async fn withdraw(&mut self, why: &str) {
        self.engine.remove(&self.id).await;
        self.serving = Serving::default();
        (self.settled, self.refused) = (true, None);
        if !std::mem::replace(&mut self.withdrawn, true) {
            tracing::warn!(sidecar = %self.id, "{why}: no connection is taken until that changes");
        }
    }

    /// Whether anything is in force.
    fn serves(&self) -> bool {
        *self.in_force.borrow() && !self.withdrawn
    }

    /// Says once that a gateway has nothing to do, and what is to be done.
    fn say_closed(&mut self, closed: Option<(GatewayKind, &ServiceName)>) {
        let said = std::mem::replace(&mut self.said_closed, closed.is_some());
        if let Some((kind, name)) = closed.filter(|_| !said) {
            let (kind, what) = match kind {
                GatewayKind::Ingress => (kind.as_str(), "a listener"),
                GatewayKind::Terminating => (kind.as_str(), "a service"),
            };
            tracing::warn!(
                "no {kind} entry {name} with {what} yet; nothing is served until there is one: \
                 `starling config write FILE`, with Kind = \"{kind}\" and Name = \"{name}\""
            );
        }
    }

    async fn put_in_force(&mut self) -> Outcome {
        if self.mirror.is_withdrawn() {
            self.withdraw(UNREGISTERED).await;
            return Outcome::InForce;
        }
        self.settled = false;
        let Some((plan, leaf)) = self.mirror.state() else { return Outcome::Incomplete };
        let name = plan.service.clone();
        let closed = self.gateway.filter(|_| plan.edges.is_empty() && plan.exits.is_empty());
        let own = LeafPem { certificate_chain: &leaf.certificate_chain_pem, private_key: &leaf.private_key_pem };
        let others = self.mirror.service_leaves().map(|(service, leaf)| {
            let pem = LeafPem { certificate_chain: &leaf.certificate_chain_pem, private_key: &leaf.private_key_pem };
            (service, pem)
        });
        match self.serving.put_gateway_in_force(&self.id, plan, own, others, &self.engine).await {
            Ok(()) => {
                (self.settled, self.refused) = (true, None);
                self.say_closed(closed.map(|kind| (kind, &name)));
                if std::mem::take(&mut self.withdrawn) {
                    tracing::info!(sidecar = %self.id, "registered again; serving as the agent says");
                }
                self.in_force.send_replace(true);
                Outcome::InForce
            }
            Err(error) => {
                let text = format!("{error:#}");
                if self.refused.as_ref() != Some(&text) {
                    tracing::warn!(sidecar = %self.id, error = text, "not served as planned");
                    self.refused = Some(text.clone());
                }
                Outcome::Refused(text)
            }
        }
    }
}

/// Returns when it is true, or nobody is left to say so.
pub(super) async fn comes_true(what: &mut watch::Receiver<bool>) {
    let _ = what.wait_for(|is_true| *is_true).await;
}

/// Why a connection to the agent is over.
struct Lost {
    error: anyhow::Error,
    /// Whether anything was put in force over it.
    had_served: bool,
}

/// Before the next try, after so many in vain: spread, as the proxies of a node lose their agent together.
fn pause(tries: u32) -> Duration {
    let ceiling = RETURN_WITHIN.saturating_mul(1 << tries.min(8)).min(RETRY_AFTER_MAX);
    ceiling.mul_f64(fastrand::f64())
}
