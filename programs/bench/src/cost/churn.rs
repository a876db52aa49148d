//! Requests while the mesh around them changes: routes, endpoints and certificates in turn, at a steady rate.
//!
//! Changes are made through the mesh's API and by agents, as people and their tools make them, and each is a real one: a
//! route that sets another header, an endpoint that comes or goes, new certificates of one node. A round counts if they
//! were made at the rate that was asked for, and the last of them was in force at its end: a mesh in which changes do not
//! arrive is at rest.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context;
use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use super::report::{Churn, WorstSecond};
use crate::api::{Api, Call, Written};
use crate::histogram::Distribution;
use crate::load::Each;
use crate::plane::Plane;
use crate::plane::registrations::{Service, another_way, elsewhere, no_longer_elsewhere, put};
use crate::plane::tls;
use crate::receipt;

/// Changes a second that a scenario makes unless told otherwise; none is what the others are held against.
pub(super) const CHANGES_PER_SECOND: [f64; 2] = [0.0, 10.0];

/// Fewer changes than this share of what was asked for are no steady rate.
const MADE_AT_LEAST: f64 = 0.9;

/// The instance that comes and goes: the same sidecar under another name and address.
const FICKLE: &str = "bench-comes-and-goes";

/// Within this of the last change everybody must have applied it.
const APPLIED_WITHIN: Duration = Duration::from_secs(10);

/// Kinds of changes, in the order in which they take turns.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Routes,
    Endpoints,
    Certificates,
}

const KINDS: [Kind; 3] = [Kind::Routes, Kind::Endpoints, Kind::Certificates];

/// Changes that are being made; dropping it ends them.
pub(super) struct Changing {
    stop: tokio::sync::watch::Sender<bool>,
    maker: Option<JoinHandle<Maker>>,
}

/// Who makes them.
struct Maker {
    server: Api,
    /// Of the node of the caller, and of the service's.
    agents: [Api; 2],
    there: Call,
    per_second: f64,
    begun: Instant,
    ended: Instant,
    number: u64,
    made: BTreeMap<String, u64>,
    refused: BTreeMap<String, u64>,
    /// The newest revision of each kind of change that has one.
    revisions: BTreeMap<&'static str, u64>,
    /// Where the service's sidecar shows its certificate, and the one that it showed before.
    sidecar: SocketAddr,
    shown_before: Vec<u8>,
}

impl Changing {
    /// Begins to change a mesh so many times a second.
    ///
    /// # Errors
    /// When the service's sidecar shows no certificate that could change.
    pub(super) async fn begin(plane: &Plane, per_second: f64) -> anyhow::Result<Self> {
        let sidecar = plane.public(Service::Http);
        let shown_before = tls::shown_at(sidecar, &tls::as_caller(&mut plane.calling_api()).await?).await?;
        let (stop, mut stopped) = tokio::sync::watch::channel(false);
        let now = Instant::now();
        let mut maker = Maker {
            server: plane.server_api(),
            agents: [plane.calling_api(), plane.called_api()],
            there: elsewhere(Service::Http.name(), FICKLE, another_way(sidecar)),
            per_second,
            begun: now,
            ended: now,
            number: 0,
            made: BTreeMap::new(),
            refused: BTreeMap::new(),
            revisions: BTreeMap::new(),
            sidecar,
            shown_before,
        };
        let making = tokio::spawn(async move {
            let mut clock = tokio::time::interval(Duration::from_secs_f64(1.0 / per_second));
            clock.set_missed_tick_behavior(MissedTickBehavior::Burst);
            while !*stopped.borrow() {
                tokio::select! {
                    _ = clock.tick() => maker.change().await,
                    _ = stopped.changed() => {}
                }
            }
            maker.ended = Instant::now();
            maker
        });
        Ok(Self { stop, maker: Some(making) })
    }

    /// Ends, with what was made and why the round does not count, if it does not; the mesh is as it was before.
    ///
    /// # Errors
    /// When the mesh cannot be put back.
    pub(super) async fn end(
        mut self,
    ) -> anyhow::Result<(BTreeMap<String, u64>, BTreeMap<String, u64>, Option<String>)> {
        self.stop.send_replace(true);
        let maker = self.maker.take().context("changes end once")?;
        let mut maker = maker.await.context("changes ended early")?;
        let mut void = maker.too_few();
        if void.is_none() {
            void = maker.not_applied().await;
        }
        if void.is_none() {
            void = maker.same_certificate().await.context("the service's sidecar shows no certificate")?;
        }
        maker.put_back().await.context("cannot take changes back")?;
        Ok((maker.made, maker.refused, void))
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        if let Some(maker) = &self.maker {
            maker.abort();
        }
    }
}

impl Maker {
    async fn change(&mut self) {
        let kind = KINDS[usize::try_from(self.number).unwrap_or(usize::MAX) % KINDS.len()];
        let outcome = match kind {
            Kind::Routes => self.write(kind, &route(self.number)).await,
            Kind::Endpoints if self.is_even() => self.write(kind, &self.there.clone()).await,
            Kind::Endpoints => self.write(kind, &no_longer_elsewhere(FICKLE)).await,
            Kind::Certificates => {
                let agent = &mut self.agents[usize::from(self.number.is_multiple_of(2))];
                agent.write(Method::PUT, "/starling/v1/agent/leaves/rotate", &Value::Null).await.map(|_| ())
            }
        };
        self.number += 1;
        match outcome {
            Ok(()) => *self.made.entry(kind.name().to_owned()).or_default() += 1,
            Err(error) => *self.refused.entry(format!("{error:#}")).or_default() += 1,
        }
    }

    /// Of the times that each kind has had its turn.
    fn is_even(&self) -> bool {
        (self.number / KINDS.len() as u64).is_multiple_of(2)
    }

    async fn write(&mut self, kind: Kind, call: &Call) -> anyhow::Result<()> {
        let Written { revision, .. } = self.server.write(call.method.clone(), &call.target, &call.body).await?;
        if let Some(revision) = revision {
            self.revisions.insert(kind.name(), revision);
        }
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "an f64 is exact up to 2^53 changes")]
    fn too_few(&self) -> Option<String> {
        let seconds = self.ended.duration_since(self.begun).as_secs_f64();
        let made = self.made.values().sum::<u64>() as f64;
        let expected = self.per_second * seconds;
        // Less than one may be on its way.
        (made < (MADE_AT_LEAST * expected - 1.0).floor()).then(|| {
            let refused = self.refused.iter().next().map_or_else(String::new, |(why, _)| format!(": {why}"));
            format!("{expected:.0} changes were to be made, {made:.0} were{refused}")
        })
    }

    /// Why the last change of a kind cannot be counted as being in force.
    async fn not_applied(&mut self) -> Option<String> {
        if self.revisions.is_empty() {
            return Some("no change was made".to_owned());
        }
        for (kind, revision) in self.revisions.clone() {
            let why = match receipt::wait(&mut self.server, revision, APPLIED_WITHIN).await {
                // One that concerns nobody is none: the caller's sidecar has a part in each.
                Ok(receipt) if receipt.is_applied_by_at_least(1) => continue,
                Ok(receipt) => format!("was not in force after {APPLIED_WITHIN:?}: {receipt}"),
                Err(error) => format!("is not known to be in force: {error:#}"),
            };
            return Some(format!("the last change of {kind} {why}"));
        }
        None
    }

    /// Why new certificates cannot be counted as being in force.
    async fn same_certificate(&mut self) -> anyhow::Result<Option<String>> {
        let caller = tls::as_caller(&mut self.agents[0]).await?;
        let turns = self.made.get(Kind::Certificates.name()).copied().unwrap_or_default();
        let is_same = tls::shown_at(self.sidecar, &caller).await? == self.shown_before;
        // Both nodes take turns.
        Ok((is_same && turns > 1).then(|| format!("after {turns} changes of certificates the service's is the same")))
    }

    async fn put_back(&mut self) -> anyhow::Result<()> {
        self.write(Kind::Endpoints, &no_longer_elsewhere(FICKLE)).await?;
        let target = format!("/v1/config/service-router/{}", Service::Http.name());
        self.server.write(Method::DELETE, &target, &Value::Null).await?;
        Ok(())
    }
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Routes => "routes",
            Self::Endpoints => "endpoints",
            Self::Certificates => "certificates",
        }
    }
}

/// Where requests go anyway, with a header of its own each time.
fn route(number: u64) -> Call {
    let name = Service::Http.name();
    put(
        "/v1/config",
        json!({ "Kind": "service-router", "Name": name, "Routes": [{
            "Match": { "HTTP": { "PathPrefix": "/" } },
            "Destination": {
                "Service": name,
                "RequestHeaders": { "Set": { "x-bench-change": number.to_string() } },
            },
        }] }),
    )
}

/// What requests of a round tell of its worst second; `None` of no requests.
pub(super) fn worst_second(each: &[Each]) -> Option<WorstSecond> {
    let begun = each.iter().map(|each| each.due).min()?;
    let mut seconds: BTreeMap<u64, (u64, Distribution)> = BTreeMap::new();
    for each in each {
        let (errors, latencies) = seconds.entry(each.due.duration_since(begun).as_secs()).or_default();
        match each.latency {
            Some(latency) => latencies.record(latency),
            None => *errors += 1,
        }
    }
    let seconds = seconds.into_iter().map(|(number, (errors, latencies))| WorstSecond {
        number: u32::try_from(number).unwrap_or(u32::MAX),
        requests: errors + latencies.count(),
        errors,
        p99: latencies.at(0.99),
        max: latencies.at(1.0),
    });
    WorstSecond::of(seconds)
}

/// The findings of a round of which every request was kept.
pub(super) fn findings(each: &[Each]) -> Option<Churn> {
    Some(Churn { made: BTreeMap::new(), refused: BTreeMap::new(), worst_second: worst_second(each)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_second_is_the_one_with_errors_and_else_the_slowest() {
        let begun = Instant::now();
        let each = |ms: u64, latency_ms: Option<u64>| Each {
            due: begun + Duration::from_millis(ms),
            latency: latency_ms.map(Duration::from_millis),
        };
        assert_eq!(worst_second(&[]), None);
        let quiet: Vec<_> = (0..30).map(|step| each(step * 100, Some(if step / 10 == 1 { 9 } else { 2 }))).collect();
        let worst = worst_second(&quiet).unwrap();
        assert_eq!((worst.number, worst.requests, worst.errors, worst.max), (1, 10, 0, Some(9.0)));
        let mut broken = quiet.clone();
        broken[25] = each(2500, None);
        let worst = worst_second(&broken).unwrap();
        assert_eq!((worst.number, worst.requests, worst.errors, worst.p99), (2, 10, 1, Some(2.0)));
    }

    #[test]
    fn changes_that_do_not_come_at_their_rate_make_no_round() {
        let now = Instant::now();
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let maker = |made: u64| Maker {
            server: Api::new(address),
            agents: [Api::new(address), Api::new(address)],
            there: no_longer_elsewhere("x"),
            per_second: 10.0,
            begun: now,
            ended: now + Duration::from_secs(5),
            number: 50,
            made: BTreeMap::from([("routes".to_owned(), made)]),
            refused: BTreeMap::from([("no".to_owned(), 1)]),
            revisions: BTreeMap::new(),
            sidecar: address,
            shown_before: Vec::new(),
        };
        assert_eq!((maker(50).too_few(), maker(46).too_few()), (None, None));
        assert_eq!(maker(20).too_few().as_deref(), Some("50 changes were to be made, 20 were: no"));
    }

    #[test]
    fn every_route_is_another() {
        assert_ne!(route(1).body, route(2).body);
        assert_eq!(route(7).body["Routes"][0]["Destination"]["RequestHeaders"]["Set"]["x-bench-change"], "7");
    }
}
