//! When traffic changed: probes through the Envoys beside a fleet, and what they showed of each change.

use std::time::{Duration, Instant};

use anyhow::bail;

use super::envoys::{Envoys, FICKLE, STEADY};
use crate::api::Written;
use crate::fleet_report::{Probes, TrafficChange};
use crate::histogram::milliseconds;
use crate::probe::{Outcome, Probe, ProbeOptions, Prober, is_steady};
use crate::verdict::{Sighting, Turn, Watch};

/// Connections through each Envoy.
const LANES: usize = 4;

/// Time between two probes through an Envoy, over all its connections: how exact a moment is. Denser ones would take from
/// the two cores on which the fleet is measured.
const SPACING: Duration = Duration::from_millis(10);

/// Time without the old behaviour after which a change counts as over.
const QUIET: Duration = Duration::from_millis(200);

/// Time in which traffic must flow to both instances.
const STEADY_DEADLINE: Duration = Duration::from_secs(30);

/// Answers in a row, from both instances and without a failure, after which traffic counts as steady.
const STEADY_PROBES: usize = 50;

/// Pause between two looks at the probes; it delays nothing that is measured.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// Traffic through the Envoys beside a fleet.
pub(super) struct Traffic {
    probers: Vec<Prober>,
    /// Of the probers that are no more.
    past: Probes,
    envoys: Envoys,
}

impl Traffic {
    /// None yet.
    pub(super) fn through(envoys: Envoys) -> Self {
        Self { probers: Vec::new(), past: Probes::default(), envoys }
    }

    /// Begins, and waits until both instances of the common upstream answer through every Envoy and nothing fails.
    ///
    /// # Errors
    /// When that is not so in time, or a process has ended.
    pub(super) async fn begin(&mut self) -> anyhow::Result<()> {
        self.end();
        let clock = Instant::now();
        for target in &self.envoys.callers {
            self.probers.push(Prober::start(clock, ProbeOptions { target: *target, lanes: LANES, spacing: SPACING }));
        }
        for prober in &mut self.probers {
            steady(prober, &mut self.envoys).await?;
            prober.reset_totals();
        }
        Ok(())
    }

    /// Ends, so that it takes nothing from what else is measured.
    pub(super) fn end(&mut self) {
        self.past = self.probes();
        self.probers.clear();
    }

    /// The probes so far.
    pub(super) fn probes(&self) -> Probes {
        self.probers.iter().map(Prober::totals).fold(self.past, |sum, totals| Probes {
            sent: sum.sent + totals.sent,
            late: sum.late + totals.late,
            failed: sum.failed + totals.failed,
        })
    }

    /// When a change showed in the traffic through each Envoy, in milliseconds from `since`.
    ///
    /// # Errors
    /// When a process has ended.
    pub(super) async fn changed(
        &mut self,
        turn: Turn,
        written: Written,
        since: Instant,
        within: Duration,
    ) -> anyhow::Result<TrafficChange> {
        let mut moments = Vec::new();
        for prober in &mut self.probers {
            let moment = changed(prober, &mut self.envoys, turn, written, within).await?;
            moments.push(moment.map(|at| milliseconds(at.saturating_sub(prober.at(since)))));
        }
        Ok(TrafficChange::new(moments))
    }
}

async fn steady(prober: &mut Prober, envoys: &mut Envoys) -> anyhow::Result<()> {
    let deadline = Instant::now() + STEADY_DEADLINE;
    let mut recent: Vec<Probe> = Vec::new();
    loop {
        tokio::time::sleep(LOOK_PAUSE).await;
        recent.extend(prober.take());
        recent.drain(..recent.len().saturating_sub(STEADY_PROBES));
        if recent.len() == STEADY_PROBES && is_steady(&recent, [STEADY, FICKLE]) {
            return Ok(());
        }
        envoys.check_alive()?;
        if Instant::now() > deadline {
            let last = recent.iter().rev().find(|probe| matches!(probe.outcome, Outcome::Failed(_)));
            let last = last.or(recent.last()).map(|probe| &probe.outcome);
            bail!("traffic through the Envoys beside the fleet is not steady within {STEADY_DEADLINE:?}: {last:?}");
        }
    }
}

/// When a change showed in the probes of one prober, on its clock; `None` if it did not in time.
async fn changed(
    prober: &mut Prober,
    envoys: &mut Envoys,
    turn: Turn,
    written: Written,
    within: Duration,
) -> anyhow::Result<Option<Duration>> {
    let watch = Watch {
        rule: turn.rule(),
        called: prober.at(written.called),
        answered: prober.at(written.answered),
        lanes: prober.lanes(),
        quiet: QUIET,
    };
    let mut sightings = Vec::new();
    loop {
        sightings.extend(prober.take().into_iter().map(|probe| Sighting {
            lane: probe.lane,
            sent: probe.sent,
            sight: turn.sight(&probe.outcome, FICKLE),
        }));
        if let Some(changed) = watch.judge(&sightings) {
            return Ok(Some(changed.at));
        }
        envoys.check_alive()?;
        if prober.now() > watch.answered + within {
            return Ok(None);
        }
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}
