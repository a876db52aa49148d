//! Probes: a steady stream of small requests through a sidecar, each remembered with when it was sent and what it
//! showed.
//!
//! Probes go out in turn on several keep-alive connections ("lanes"), each at a moment that was fixed beforehand, whether
//! or not the others are answered. A lane whose last answer is late sends as soon as it can, and counts the delay.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::connection::{Answer, Connection};
use crate::histogram::Distribution;

/// Probes that wait to be looked at; many seconds' worth, after which lanes wait (and count as late).
const QUEUE_MAX: usize = 65_536;

/// Longest wait for one answer. Longer than any change may take, so that a hanging request is seen as what it is.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);

/// Pause of a lane after a failed connection, so that a mesh that is down is not flooded.
const RECONNECT_PAUSE: Duration = Duration::from_millis(10);

/// Where probes go, and how densely.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProbeOptions {
    /// The sidecar's listener for the upstream.
    pub(crate) target: SocketAddr,
    /// Connections.
    pub(crate) lanes: usize,
    /// Time between two probes, over all lanes.
    pub(crate) spacing: Duration,
}

/// What a probe showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// An application answered, and this is its name.
    Answered(String),
    /// Status 403: an intention denied it.
    Denied,
    /// Neither: another status, or none; in words.
    Failed(String),
}

/// One probe. Times are counted from the clock the probes were started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Probe {
    /// The connection.
    pub(crate) lane: usize,
    /// Just before it was written.
    pub(crate) sent: Duration,
    /// How long the answer took; none came for a failure.
    pub(crate) took: Option<Duration>,
    /// How long after its moment it was sent.
    pub(crate) late: Duration,
    /// What it showed.
    pub(crate) outcome: Outcome,
}

/// Running probes; they end when this is dropped.
pub(crate) struct Prober {
    clock: Instant,
    options: ProbeOptions,
    probes: mpsc::Receiver<Probe>,
    totals: Totals,
    _tasks: JoinSet<()>,
}

/// Figures of many probes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Totals {
    /// Probes sent.
    pub(crate) sent: u64,
    /// Probes sent so late that the lane's next one was due.
    pub(crate) late: u64,
    /// Probes that showed neither an application nor a denial.
    pub(crate) failed: u64,
    /// From sending to the answer.
    pub(crate) round_trips: Distribution,
}

impl Prober {
    /// Starts all lanes, spread evenly over one turn.
    pub(crate) fn start(clock: Instant, options: ProbeOptions) -> Self {
        let (queue, probes) = mpsc::channel(QUEUE_MAX);
        let mut tasks = JoinSet::new();
        let turn = options.turn();
        let start = Instant::now();
        for lane in 0..options.lanes {
            let first = start + options.spacing * u32::try_from(lane).unwrap_or(u32::MAX);
            let lane = Lane { number: lane, target: options.target, clock, turn, connection: None };
            tasks.spawn(lane.run(first, queue.clone()));
        }
        Self { clock, options, probes, totals: Totals::default(), _tasks: tasks }
    }

    /// Now, on the clock of the probes.
    pub(crate) fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    /// A moment on the clock of the probes.
    pub(crate) fn at(&self, moment: Instant) -> Duration {
        moment.saturating_duration_since(self.clock)
    }

    /// How many connections there are.
    pub(crate) fn lanes(&self) -> usize {
        self.options.lanes
    }

    /// The probes that were answered since the last call. Per lane they are in the order of sending.
    pub(crate) fn take(&mut self) -> Vec<Probe> {
        let probes: Vec<Probe> = std::iter::from_fn(|| self.probes.try_recv().ok()).collect();
        let turn = self.options.turn();
        probes.iter().for_each(|probe| self.totals.count(probe, turn));
        probes
    }

    /// The figures of all probes taken since the last [`Prober::reset_totals`].
    pub(crate) fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Begins the figures anew.
    pub(crate) fn reset_totals(&mut self) {
        self.totals = Totals::default();
    }
}

impl ProbeOptions {
    /// Time between two probes of one lane.
    fn turn(&self) -> Duration {
        self.spacing.saturating_mul(u32::try_from(self.lanes).unwrap_or(u32::MAX))
    }
}

impl Totals {
    fn count(&mut self, probe: &Probe, turn: Duration) {
        self.sent += 1;
        self.late += u64::from(probe.late >= turn);
        self.failed += u64::from(matches!(probe.outcome, Outcome::Failed(_)));
        if let Some(took) = probe.took {
            self.round_trips.record(took);
        }
    }
}

/// Whether each of these was answered, and both applications are among those who did.
pub(crate) fn is_steady(probes: &[Probe], applications: [&str; 2]) -> bool {
    let has_answered = |name: &str| probes.iter().any(|it| matches!(&it.outcome, Outcome::Answered(by) if by == name));
    applications.into_iter().all(has_answered)
        && probes.iter().all(|probe| matches!(probe.outcome, Outcome::Answered(_)))
}

struct Lane {
    number: usize,
    target: SocketAddr,
    clock: Instant,
    turn: Duration,
    connection: Option<Connection>,
}

impl Lane {
    async fn run(mut self, first: Instant, queue: mpsc::Sender<Probe>) {
        let mut due = first;
        loop {
            tokio::time::sleep_until(due.into()).await;
            let probe = self.probe(due).await;
            let has_failed = probe.took.is_none();
            if queue.send(probe).await.is_err() {
                return;
            }
            if has_failed {
                tokio::time::sleep(RECONNECT_PAUSE).await;
            }
            // A turn that is already over is left out rather than made up for in a burst.
            let now = Instant::now();
            due += self.turn;
            while due + self.turn <= now {
                due += self.turn;
            }
        }
    }

    async fn probe(&mut self, due: Instant) -> Probe {
        let begun = Instant::now();
        let exchange = tokio::time::timeout(ANSWER_DEADLINE, self.exchange()).await;
        let (sent, took, outcome) = match exchange {
            Ok(Ok(answer)) => (answer.sent, Some(answer.arrived - answer.sent), outcome(&answer)),
            Ok(Err(error)) => (begun, None, Outcome::Failed(format!("{error:#}"))),
            Err(_) => (begun, None, Outcome::Failed(format!("no answer within {ANSWER_DEADLINE:?}"))),
        };
        let late = sent.saturating_duration_since(due);
        Probe { lane: self.number, sent: sent.saturating_duration_since(self.clock), took, late, outcome }
    }

    async fn exchange(&mut self) -> anyhow::Result<Answer> {
        // Taken, so that an exchange that fails or is given up halfway leaves no connection behind.
        let mut connection = Connection::reuse_or_open(self.connection.take(), self.target).await?;
        let answer = connection.call(Method::GET, "/", Bytes::new()).await?;
        self.connection = Some(connection);
        Ok(answer)
    }
}

fn outcome(answer: &Answer) -> Outcome {
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    if answer.status == StatusCode::FORBIDDEN {
        return Outcome::Denied;
    }
    if answer.status != StatusCode::OK {
        let text = String::from_utf8_lossy(&answer.body);
        return Outcome::Failed(format!("answered {}: {}", answer.status, text.trim()));
    }
    match serde_json::from_slice(&answer.body) {
        Ok(Named { name }) => Outcome::Answered(name),
        Err(error) => Outcome::Failed(format!("answered something else than a fake service does: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    fn answer(status: u16, body: &'static str) -> Answer {
        let now = Instant::now();
        let (status, body) = (StatusCode::from_u16(status).unwrap(), Bytes::from_static(body.as_bytes()));
        Answer { status, headers: HeaderMap::new(), body, sent: now, arrived: now }
    }

    #[test]
    fn an_answer_names_who_gave_it() {
        let body = r#"{"name": "api-2", "uri": "/", "code": 200}"#;
        assert_eq!(outcome(&answer(200, body)), Outcome::Answered("api-2".to_owned()));
    }

    #[test]
    fn a_denial_is_no_failure_and_everything_else_is() {
        assert_eq!(outcome(&answer(403, "RBAC: access denied")), Outcome::Denied);
        for (status, body) in [(503, "no healthy upstream"), (200, "not JSON"), (200, "{}"), (404, "")] {
            assert!(matches!(outcome(&answer(status, body)), Outcome::Failed(_)), "{status} {body}");
        }
        let Outcome::Failed(why) = outcome(&answer(503, "no healthy upstream\n")) else { panic!("a failure") };
        assert_eq!(why, "answered 503 Service Unavailable: no healthy upstream");
    }

    #[test]
    fn traffic_is_steady_when_both_answer_and_nothing_fails() {
        let probe = |outcome| Probe { lane: 0, sent: Duration::ZERO, took: None, late: Duration::ZERO, outcome };
        let from = |name: &str| probe(Outcome::Answered(name.to_owned()));
        let both = ["a", "b"];
        assert!(is_steady(&[from("a"), from("b")], both));
        assert!(!is_steady(&[from("a"), from("a")], both));
        assert!(!is_steady(&[from("a"), probe(Outcome::Denied), from("b")], both));
        assert!(!is_steady(&[], both));
    }

    #[test]
    fn totals_count_what_was_late_and_what_failed() {
        let turn = Duration::from_millis(8);
        let mut totals = Totals::default();
        let probe = |late: u64, outcome| Probe {
            lane: 0,
            sent: Duration::ZERO,
            took: Some(Duration::from_millis(1)),
            late: Duration::from_millis(late),
            outcome,
        };
        totals.count(&probe(0, Outcome::Denied), turn);
        totals.count(&probe(8, Outcome::Failed(String::new())), turn);
        assert_eq!((totals.sent, totals.late, totals.failed), (2, 1, 1));
        assert_eq!(totals.round_trips.summary().unwrap().count, 2);
    }
}
