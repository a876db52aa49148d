//! Measures one row once, on both planes.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::figure::Figure;
use super::{Row, bulk, change, idle, services};
use crate::load::{Arrivals, Length, Load, Outcome, Pace, Peer, Summary, generate};
use crate::plane::registrations::Service;
use crate::plane::{Application, PATH, Plane, load, tls};

/// Sent before what counts.
const WARM_UP: Duration = Duration::from_millis(500);

/// After which a proxy that nobody calls is at rest, and holds what it holds then.
pub(super) const RESTING: Duration = Duration::from_secs(12);

/// Below it a measurement under load says nothing but that it was made.
const SHORTEST_BELIEVED: Duration = Duration::from_secs(1);

/// Whose a reading is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Who {
    Native,
    Envoy,
    NoMesh,
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Reading {
    pub(super) who: Who,
    pub(super) round: u32,
    /// The figure of the table, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) figure: Option<Figure>,
    pub(super) name: Cow<'static, str>,
    pub(super) value: f64,
}

/// What is measured, and what was found so far.
pub(super) struct Bench {
    pub(super) native: Plane,
    pub(super) envoy: Plane,
    pub(super) application: Application,
    pub(super) seconds: Duration,
    pub(super) idle_connections: u32,
    pub(super) services: u32,
    pub(super) readings: Vec<Reading>,
    pub(super) problems: Vec<String>,
}

impl Bench {
    /// Measures a row on both planes, in random order. What cannot be measured is remembered as a problem.
    pub(super) async fn measure(&mut self, row: Row, round: u32) {
        let direct = if row == Row::Latency { self.latency(None, round).await } else { Ok((0.0, 0.0)) };
        let direct = match direct {
            Ok(direct) => direct,
            Err(error) => return self.problem(Who::NoMesh, row, &format!("{error:#}")),
        };
        let mut who = [Who::Native, Who::Envoy];
        fastrand::shuffle(&mut who);
        for who in who {
            let measured = self.measure_one(who, row, round, direct).await;
            if let Err(error) = measured.and_then(|()| self.plane_mut(who).check_alive()) {
                self.problem(who, row, &format!("{error:#}"));
            }
        }
    }

    async fn measure_one(&mut self, who: Who, row: Row, round: u32, direct: (f64, f64)) -> anyhow::Result<()> {
        match row {
            Row::Throughput => self.throughput(who, round).await?,
            Row::Latency => {
                let (p50, p99) = self.latency(Some(who), round).await?;
                self.figure(who, round, Figure::AddedP50Ms, p50 - direct.0);
                self.figure(who, round, Figure::AddedP99Ms, p99 - direct.1);
            }
            Row::Http2 => self.streams(who, round, Service::Http2, Figure::Http2PerSecond).await?,
            Row::Grpc => self.streams(who, round, Service::Grpc, Figure::GrpcPerSecond).await?,
            Row::Bulk => {
                let address = self.plane(who).upstream(Service::Tcp);
                let found = bulk::megabytes_per_second(address, self.seconds).await?;
                self.figure(who, round, Figure::BulkMbPerSecond, found);
            }
            Row::Memory => self.memory(who, round).await?,
            Row::Handshakes => self.handshakes(who, round).await?,
            Row::Change => self.change(who, round).await?,
            Row::Connections => {
                let found = idle::memory(self.plane(who), self.idle_connections).await?;
                self.reading(who, round, "idle connections", f64::from(found.connections));
                self.figure(who, round, Figure::IdleConnectionKb, found.kilobytes_each);
                self.figure(who, round, Figure::AfterBurstTimes, found.times_idle_after);
            }
            Row::Services => {
                let services = self.services;
                let found = services::memory_mb(self.plane_mut(who), services).await?;
                self.figure(who, round, Figure::ServicesMb, found);
            }
        }
        Ok(())
    }

    /// HTTP/1.1 keep-alive, 64 connections, closed loop.
    async fn throughput(&mut self, who: Who, round: u32) -> anyhow::Result<()> {
        let load = Load { connections: 64, ..self.plane(who).load(Service::Http, 0)? };
        let (outcome, cpu) = self.under_load(who, Service::Http, load).await?;
        let summary = self.sound(who, Row::Throughput, &outcome);
        #[expect(clippy::cast_precision_loss, reason = "an f64 is exact up to 2^53 requests")]
        let requests = outcome.tally.answered.max(1) as f64;
        self.figure(who, round, Figure::RequestsPerSecond, summary.rate);
        self.figure(who, round, Figure::CpuPerRequestUs, cpu.as_secs_f64() * 1e6 / requests);
        self.reading(who, round, "cores of both proxies", cpu.as_secs_f64() / outcome.elapsed.as_secs_f64());
        Ok(())
    }

    /// Open loop at 1,000 requests a second of 1 KB over 16 connections; p50 and p99 in milliseconds.
    async fn latency(&mut self, who: Option<Who>, round: u32) -> anyhow::Result<(f64, f64)> {
        let load = match who {
            Some(who) => self.plane(who).load(Service::Http, 1024)?,
            None => load(Service::Http, self.application.http, PATH, 1024)?,
        };
        let pace = Pace::Open { rate: 1000.0, arrivals: Arrivals::Constant };
        let load = Load { connections: 16, pace, length: Length::Time(self.seconds), warm_up: WARM_UP, ..load };
        let outcome = generate(load).await?;
        let who = who.unwrap_or(Who::NoMesh);
        let summary = self.sound(who, Row::Latency, &outcome);
        let (p50, p99) = summary.latency_ms.map_or((f64::INFINITY, f64::INFINITY), |it| (it.p50, it.p99));
        self.reading(who, round, "p50 at 1,000/s, ms", p50);
        self.reading(who, round, "p99 at 1,000/s, ms", p99);
        Ok((p50, p99))
    }

    /// 16 streams on each of 4 connections, closed loop.
    async fn streams(&mut self, who: Who, round: u32, service: Service, figure: Figure) -> anyhow::Result<()> {
        let load = Load { connections: 4, streams: 16, ..self.plane(who).load(service, 16)? };
        let (outcome, cpu) = self.under_load(who, service, load).await?;
        let summary = self.sound(who, figure.row(), &outcome);
        self.figure(who, round, figure, summary.rate);
        self.reading(who, round, "cores of both proxies", cpu.as_secs_f64() / outcome.elapsed.as_secs_f64());
        Ok(())
    }

    /// Before any load, and at the end of one.
    async fn memory(&mut self, who: Who, round: u32) -> anyhow::Result<()> {
        // A run that short shows that all works, and its figures are nobody's.
        let resting = if self.seconds < SHORTEST_BELIEVED { self.seconds } else { RESTING };
        tokio::time::sleep(resting).await;
        let idle = self.plane(who).resident(Service::Http)?;
        let load =
            Load { connections: 64, length: Length::Time(self.seconds), ..self.plane(who).load(Service::Http, 0)? };
        let mut running = crate::load::Running::start(load);
        tokio::time::sleep(self.seconds.mul_f64(0.9)).await;
        let loaded = self.plane(who).resident(Service::Http)?;
        let outcome = running.outcome().await?;
        self.sound(who, Row::Memory, &outcome);
        self.figure(who, round, Figure::MemoryIdleMb, megabytes(idle));
        self.figure(who, round, Figure::MemoryUnderLoadMb, megabytes(loaded));
        Ok(())
    }

    /// A connection of mutual TLS for every request, straight to the sidecar of the service.
    async fn handshakes(&mut self, who: Who, round: u32) -> anyhow::Result<()> {
        let plane = self.plane(who);
        let tls = tls::as_caller(&mut plane.calling_api()).await?;
        let peer = Peer { address: plane.public(Service::Http), tls: Some(tls) };
        let load = Load { peer, connections: 16, keep_alive: false, ..plane.load(Service::Http, 0)? };
        let (outcome, cpu) = self.under_load(who, Service::Http, load).await?;
        let summary = self.sound(who, Row::Handshakes, &outcome);
        self.figure(who, round, Figure::HandshakesPerSecond, summary.rate);
        self.reading(who, round, "cores of both proxies", cpu.as_secs_f64() / outcome.elapsed.as_secs_f64());
        Ok(())
    }

    async fn change(&mut self, who: Who, round: u32) -> anyhow::Result<()> {
        let found = change::under_load(self.plane(who), self.seconds).await?;
        // Envoy may not come up to this rate on a small machine, which is no fault of what is measured.
        if found.void && who == Who::Native {
            self.problem(who, Row::Change, "the generator could not keep the rate");
        }
        #[expect(clippy::cast_precision_loss, reason = "an f64 is exact up to 2^53 errors")]
        self.figure(who, round, Figure::ChangeErrors, found.errors as f64);
        self.figure(who, round, Figure::ChangeStepMs, found.step_ms);
        self.reading(who, round, "slowest of all while an endpoint changes, ms", found.worst_ms);
        Ok(())
    }

    /// A run, and the CPU time that both proxies used during it; the warm-up before it does not count.
    async fn under_load(&self, who: Who, service: Service, load: Load) -> anyhow::Result<(Outcome, Duration)> {
        generate(Load { length: Length::Time(WARM_UP), ..load.clone() }).await?;
        let before = self.plane(who).cpu_time(service)?;
        let outcome = generate(Load { length: Length::Time(self.seconds), ..load }).await?;
        let used = self.plane(who).cpu_time(service)?.saturating_sub(before);
        Ok((outcome, used))
    }

    /// The figures of a run; what is wrong with them is remembered.
    fn sound(&mut self, who: Who, row: Row, outcome: &Outcome) -> Summary {
        let summary = Summary::of(outcome);
        if let Some((failure, _)) = summary.failures.first_key_value() {
            self.problem(who, row, &format!("{} of {} requests failed: {failure}", summary.errors, summary.requests));
        }
        if let Some(void) = &summary.void {
            self.problem(who, row, void);
        }
        summary
    }

    fn problem(&mut self, who: Who, row: Row, what: &str) {
        self.problems.push(format!("{} on {who:?}: {what}", row.name()));
    }

    fn figure(&mut self, who: Who, round: u32, figure: Figure, value: f64) {
        self.readings.push(Reading { who, round, figure: Some(figure), name: figure.name().into(), value });
    }

    fn reading(&mut self, who: Who, round: u32, name: &'static str, value: f64) {
        self.readings.push(Reading { who, round, figure: None, name: name.into(), value });
    }

    fn plane(&self, who: Who) -> &Plane {
        if who == Who::Envoy { &self.envoy } else { &self.native }
    }

    fn plane_mut(&mut self, who: Who) -> &mut Plane {
        if who == Who::Envoy { &mut self.envoy } else { &mut self.native }
    }
}

#[expect(clippy::cast_precision_loss, reason = "an f64 is exact up to 2^53 bytes")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
