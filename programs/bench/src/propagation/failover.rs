//! One of several servers is killed in the middle of a change: its nodes have it from another.

use std::time::Duration;

use super::{Called, Change, Run};
use crate::fleet::{Among, Moment};
use crate::fleet_report::FleetChange;

impl Run {
    /// Makes a change, kills the server that most nodes are attached to as soon as the change is acknowledged by another,
    /// and waits until it is in force everywhere; latencies are from the acknowledgement. The server comes back, and every
    /// node has a stream in reserve again before this is over.
    pub(super) async fn fail_over(&mut self, change: Change) -> anyhow::Result<FleetChange> {
        self.servers.settled(self.nodes).await?;
        let killed = self.servers.busiest().await?;
        self.api = self.servers.at(killed + 1).api();
        self.crew.watch().await?;
        let called = Called::now(&mut self.api, change, &self.upstream).await?;
        self.servers.at(killed).kill();
        self.failed_over = true;
        let called = Called { since: Moment::of(called.written.answered)?, ..called };
        let measured = self.outcome(called, change.name(), Among::All).await?;
        self.hear_receipt(called.revision).await?;
        let traffic_ms = match &mut self.traffic {
            Some(traffic) => {
                let (since, within) = (called.written.answered, Duration::from_secs(self.args.deadline));
                Some(traffic.changed(change.turn(), called.written, since, within).await?)
            }
            None => None,
        };
        self.servers.at(killed).restart().await?;
        self.usage.servers_are(self.servers.pids());
        Ok(FleetChange { traffic_ms, ..measured })
    }
}
