//! Changes that concern nobody of a fleet, many a second: instances of its services come and go on nodes that nobody runs.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::bail;
use http::Method;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::api::{Api, Call};
use crate::fleet::Server;
use crate::shape;

/// Changes in a second.
const RATE: u32 = 200;

/// Clients that share them, so that a slow answer does not hold up the next change.
const CLIENTS: u32 = 8;

/// Changes that are late by more than this are too few: the server does not keep up.
const RATE_MIN: f64 = 0.9;

/// The first address of an instance.
const ADDRESS_FIRST: u32 = 0x0a60_0001;

/// Clients that make changes until they are told to end.
pub(super) struct Churn {
    begun: Instant,
    stop: tokio::sync::watch::Sender<bool>,
    clients: JoinSet<anyhow::Result<u32>>,
}

impl Churn {
    /// Begins, spread over the services of a fleet of so many workloads.
    pub(super) fn begin(server: &Server, workloads: u32) -> Self {
        let services = shape::services(workloads);
        let stop = tokio::sync::watch::Sender::new(false);
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            clients.spawn(make_changes(server.api(), client, services.clone(), stop.subscribe()));
        }
        Self { begun: Instant::now(), stop, clients }
    }

    /// Ends; tells how many changes were made in a second.
    ///
    /// # Errors
    /// When a change was refused, or there were far fewer than there should be.
    pub(super) async fn end(mut self) -> anyhow::Result<f64> {
        let lasted = self.begun.elapsed();
        self.stop.send_replace(true);
        let mut made = 0;
        while let Some(ended) = self.clients.join_next().await {
            made += ended??;
        }
        let rate = f64::from(made) / lasted.as_secs_f64();
        if rate < f64::from(RATE) * RATE_MIN {
            bail!("only {rate:.0} of {RATE} changes a second were made meanwhile: the server does not keep up");
        }
        Ok(rate)
    }
}

/// Registers an instance of every service, one after the other, then deregisters them, and so on.
async fn make_changes(
    mut api: Api,
    client: u32,
    services: Vec<String>,
    stop: tokio::sync::watch::Receiver<bool>,
) -> anyhow::Result<u32> {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) * CLIENTS / RATE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut made = 0;
    let mut registers = true;
    loop {
        for service in &services {
            ticks.tick().await;
            if *stop.borrow() {
                return Ok(made);
            }
            let Call { method, target, body } = call(client, service, registers);
            api.write(method, &target, &body).await?;
            made += 1;
        }
        registers = !registers;
    }
}

fn call(client: u32, service: &str, registers: bool) -> Call {
    let (node, id) = (format!("bench-churn-{client}"), format!("{service}-churn-{client}"));
    let (target, body) = if registers {
        let address = Ipv4Addr::from(ADDRESS_FIRST + client);
        let service = json!({ "ID": id, "Service": service, "Port": 9090, "Connect": { "Native": true } });
        ("/v1/catalog/register", json!({ "Node": node, "Address": address, "Service": service }))
    } else {
        ("/v1/catalog/deregister", json!({ "Node": node, "ServiceID": id }))
    };
    Call { method: Method::PUT, target: target.to_owned(), body }
}
