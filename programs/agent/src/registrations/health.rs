//! How checks fare: results become statuses, statuses become writes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use starling_model::{CheckId, CheckStatus, InstanceId, RecordKey};

use super::{Health, Kept, Registrations, Touched};
use crate::checks::cut;

/// Time between two writes of a check whose output alone changes; Consul's `check_update_interval`.
pub(super) const OUTPUT_WRITE_INTERVAL: Duration = Duration::from_secs(5 * 60);

impl Registrations {
    /// Takes the result of a run, through the check's thresholds.
    pub(crate) fn observe(&mut self, id: &CheckId, health: Health, now: Instant) -> Touched {
        let Some(check) = self.checks.get_mut(id) else { return Touched::default() };
        let status = check.threshold.observe(health.status, check.record.status);
        self.report(id, Health { status, output: health.output }, now)
    }

    /// Takes a status as it is.
    pub(crate) fn report(&mut self, id: &CheckId, health: Health, now: Instant) -> Touched {
        let mut touched = Touched::default();
        if self.set_health(id, health, now, &mut touched) {
            self.settle_aliases(&mut touched, now);
        }
        touched
    }

    /// Takes a status that a TTL check was given. Its place in the journal is renewed often enough that a restart still
    /// knows it, and not at every heartbeat.
    pub(crate) fn heard(&mut self, id: &CheckId, health: Health, ttl: Duration, now: Instant) -> Touched {
        let mut touched = self.report(id, health, now);
        if let Some(check) = self.checks.get_mut(id) {
            if touched.kept.is_empty() && now.saturating_duration_since(check.kept_at) >= ttl / 4 {
                touched.kept.insert(Kept::Status(id.clone()));
            }
            if !touched.kept.is_empty() {
                check.kept_at = now;
            }
        }
        touched
    }

    /// Puts back a status that outlived a restart; writes nothing by itself.
    pub(crate) fn restore_health(&mut self, id: &CheckId, health: Health, now: Instant) {
        let mut quiet = Touched::default();
        self.set_health(id, health, now, &mut quiet);
        self.settle_aliases(&mut quiet, now);
    }

    /// Whether an instance may ever be condemned.
    pub(crate) fn may_condemn(&self) -> bool {
        self.checks.values().any(|check| check.definition().deregister_after.is_some())
    }

    /// Instances that a critical check has condemned by `now`.
    pub(crate) fn condemned(&self, now: Instant) -> BTreeMap<InstanceId, CheckId> {
        let overdue = self.checks.values().filter(|check| {
            let since = check.critical_since.map(|since| now.saturating_duration_since(since));
            check.definition().deregister_after.zip(since).is_some_and(|(limit, elapsed)| elapsed >= limit)
        });
        overdue.filter_map(|check| Some((check.owner()?.clone(), check.record.id.clone()))).collect()
    }

    /// Whether the status changed.
    pub(super) fn set_health(&mut self, id: &CheckId, health: Health, now: Instant, touched: &mut Touched) -> bool {
        let Some(check) = self.checks.get_mut(id) else { return false };
        let changed = check.record.status != health.status;
        let output = cut(&health.output);
        let stale =
            check.written_output != output && now.saturating_duration_since(check.written_at) >= OUTPUT_WRITE_INTERVAL;
        check.record.status = health.status;
        check.record.output = output;
        if changed {
            check.critical_since = (health.status == CheckStatus::Critical).then_some(now);
            touched.kept.insert(Kept::Status(id.clone()));
        }
        if changed || stale {
            check.written_output.clone_from(&check.record.output);
            check.written_at = now;
            touched.keys.insert(RecordKey::Check(self.node.name.clone(), id.clone()));
        }
        changed
    }
}
