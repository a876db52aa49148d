//! Follows the agent: each newer state of the plan is put in force and answered for.

use std::sync::Arc;
use std::time::Duration;

use starling_model::InstanceId;
use starling_proxy::{Engine, LeafPem, Serving};
use starling_rpc::{CallError, PlanMirror, PlanStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::dial::Dial;

/// Before the first try after a stream that had served, at most: an agent that is restarted has all its proxies come back.
const RETURN_WITHIN: Duration = Duration::from_millis(100);

/// Between tries, at most.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(2);

/// After a listener that somebody else holds.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Why a stream is left after a refusal: there is no way to take one back but to come anew with everything.
const CURED: &str = "what was refused is in force now";

/// The way from the agent to the engine.
pub(super) struct Follower {
    id: InstanceId,
    dial: Dial,
    token: Option<String>,
    engine: Arc<Engine>,
    mirror: PlanMirror,
    serving: Serving,
    /// Why not all that was said is in force, if so.
    refused: Option<String>,
    /// Whether all that has arrived is in force.
    settled: bool,
    /// Whether anything ever was in force.
    in_force: watch::Sender<bool>,
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
    pub(super) fn new(id: InstanceId, dial: Dial, token: Option<String>, engine: Arc<Engine>) -> Self {
        Self {
            id,
            dial,
            token,
            engine,
            mirror: PlanMirror::default(),
            serving: Serving::default(),
            refused: None,
            settled: true,
            in_force: watch::Sender::new(false),
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
                    let refused = matches!(error.downcast_ref(), Some(CallError::Refused { .. }));
                    if refused && !serves {
                        return Err(error);
                    }
                    tries = if had_served { 0 } else { tries + 1 };
                    if tries == 1 {
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
        let mut stream = PlanStream::open(connection, self.id.as_str(), self.token.as_deref(), &self.mirror).await?;
        loop {
            tokio::select! {
                news = stream.next(&mut self.mirror) => {
                    news?;
                    let was_refused = self.refused.is_some();
                    match self.put_in_force().await {
                        Outcome::InForce => {
                            if !std::mem::replace(had_served, true) {
                                tracing::info!(sidecar = %self.id, "serving as the agent says");
                            }
                            stream.accept()?;
                            anyhow::ensure!(!was_refused, CURED);
                        }
                        Outcome::Incomplete => stream.accept()?,
                        Outcome::Refused(text) => stream.refuse(text)?,
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

    async fn put_in_force(&mut self) -> Outcome {
        self.settled = false;
        let Some((plan, leaf)) = self.mirror.state() else { return Outcome::Incomplete };
        let leaf = LeafPem { certificate_chain: &leaf.certificate_chain_pem, private_key: &leaf.private_key_pem };
        match self.serving.put_in_force(&self.id, plan, leaf, &self.engine).await {
            Ok(()) => {
                self.refused = None;
                self.settled = true;
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
