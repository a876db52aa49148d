//! Something dies in the middle of a change: one of several servers, or the member of etcd that leads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::task::JoinSet;

use super::{Called, Change, Run};
use crate::api::Api;
use crate::fleet::{Among, Moment};
use crate::fleet_report::{FleetChange, Outage};
use crate::shape::COMMON_UPSTREAM;

/// Pause between two tries of a write, and between two reads of one reader.
const PAUSE: Duration = Duration::from_millis(10);

/// How long one try may take: longer than any that is answered, shorter than what a lost leader leaves hanging.
const TRY_WITHIN: Duration = Duration::from_secs(1);

/// Time within which a write has to be taken again.
const BACK_WITHIN: Duration = Duration::from_secs(60);

/// The revision of whatever has come in force since it is looked at.
const SINCE_WATCHED: u64 = 1;

/// What dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kill {
    /// The server that most nodes are attached to, as another one acknowledges the change
    Server,
    /// The member of etcd that leads, just before the change is asked for, until it is taken
    EtcdLeader,
}

/// Arguments of the scenario.
#[derive(Debug, clap::Args)]
pub(crate) struct FailoverArgs {
    #[command(flatten)]
    pub(super) scenario: super::ScenarioArgs,
    /// What is killed with SIGKILL, and started again after each change
    #[arg(long, value_enum, default_value_t = Kill::Server)]
    pub(super) kill: Kill,
}

impl Run {
    /// Makes a change in the middle of which something dies, and waits until it is in force everywhere; latencies are from
    /// the acknowledgement. What died is back, and every node has a stream in reserve, before the next one.
    pub(super) async fn fail_over(&mut self, change: Change, kill: Kill) -> anyhow::Result<FleetChange> {
        self.servers.settled(self.nodes).await?;
        self.failed_over = true;
        match kill {
            Kill::Server => self.without_a_server(change).await,
            Kill::EtcdLeader => self.without_the_leader(change).await,
        }
    }

    async fn without_a_server(&mut self, change: Change) -> anyhow::Result<FleetChange> {
        let killed = self.servers.busiest().await?;
        self.api = self.servers.at(killed + 1).api();
        self.crew.watch().await?;
        let called = Called::now(&mut self.api, change, &self.upstream).await?;
        self.servers.at(killed).kill();
        let measured = self.since_acknowledged(called).await?;
        self.hear_receipt(called.revision).await?;
        self.servers.at(killed).restart().await?;
        self.usage.servers_are(self.servers.pids());
        Ok(measured)
    }

    async fn without_the_leader(&mut self, change: Change) -> anyhow::Result<FleetChange> {
        let promotions = self.servers.unasked_promotions().await?;
        self.crew.watch().await?;
        let readers = Readers::begin(self.servers.apis());
        let killed = self.servers.etcd()?.kill_leader().await?;
        let died = Instant::now();
        let called = self.called_until_taken(change).await?;
        let revision = called.revision;
        // A try that was given up may have been the one that was carried out, under an earlier revision than the answer's.
        let called = Called { revision: SINCE_WATCHED, ..called };
        let writes_back_ms = called.written.answered.saturating_duration_since(died).as_secs_f64() * 1e3;
        let measured = self.since_acknowledged(called).await?;
        let reads = readers.end().await?;
        let promoted = self.servers.unasked_promotions().await? - promotions;
        self.servers.etcd()?.restart(killed).await?;
        let outage = Outage {
            writes_back_ms,
            reads: reads.made,
            reads_failed: reads.failed,
            reads_slowest_ms: reads.slowest.as_secs_f64() * 1e3,
            streams_lost: promoted.max(0.0),
        };
        Ok(FleetChange { revision, outage: Some(outage), ..measured })
    }

    /// Calls for a change until it is acknowledged. A try that is not answered may have been carried out; the next one then
    /// finds nothing to do, and says so.
    async fn called_until_taken(&mut self, change: Change) -> anyhow::Result<Called> {
        let begun = Instant::now();
        loop {
            let tried = tokio::time::timeout(TRY_WITHIN, Called::now(&mut self.api, change, &self.upstream)).await;
            match tried {
                Ok(Ok(called)) => return Ok(called),
                Ok(Err(error)) if begun.elapsed() > BACK_WITHIN => {
                    return Err(error.context("no write was taken again"));
                }
                Err(_late) if begun.elapsed() > BACK_WITHIN => anyhow::bail!("no write was answered again"),
                Ok(Err(_)) | Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    async fn since_acknowledged(&mut self, called: Called) -> anyhow::Result<FleetChange> {
        let called = Called { since: Moment::of(called.written.answered)?, ..called };
        let measured = self.outcome(called, called.change.name(), Among::All).await?;
        let deadline = self.deadline();
        let traffic_ms = match &mut self.traffic {
            Some(traffic) => {
                let since = called.written.answered;
                Some(traffic.changed(called.change.turn(), called.written, since, deadline).await?)
            }
            None => None,
        };
        Ok(FleetChange { traffic_ms, ..measured })
    }
}

/// Readers of the catalog, one at each server, until they are ended.
struct Readers {
    ends: Arc<AtomicBool>,
    all: JoinSet<Reads>,
}

/// What readers found.
#[derive(Debug, Clone, Copy, Default)]
struct Reads {
    made: u64,
    failed: u64,
    slowest: Duration,
}

impl Readers {
    fn begin(apis: Vec<Api>) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let mut all = JoinSet::new();
        for api in apis {
            all.spawn(read(api, Arc::clone(&ends)));
        }
        Self { ends, all }
    }

    async fn end(mut self) -> anyhow::Result<Reads> {
        self.ends.store(true, Ordering::Relaxed);
        let mut sum = Reads::default();
        while let Some(reads) = self.all.join_next().await {
            let Reads { made, failed, slowest } = reads.context("a reader ended")?;
            sum.made += made;
            sum.failed += failed;
            sum.slowest = sum.slowest.max(slowest);
        }
        Ok(sum)
    }
}

async fn read(mut api: Api, ends: Arc<AtomicBool>) -> Reads {
    let mut reads = Reads::default();
    let target = format!("/v1/health/connect/{COMMON_UPSTREAM}");
    while !ends.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let answered = api.read::<serde_json::Value>(&target, Duration::ZERO).await;
        reads.made += 1;
        reads.failed += u64::from(answered.is_err());
        reads.slowest = reads.slowest.max(begun.elapsed());
        tokio::time::sleep(PAUSE).await;
    }
    reads
}
