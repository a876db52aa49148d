//! What one change costs, by how many Envoys it concerns: until all of them have applied it, and CPU of the server.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::fleet::Fleet;
use crate::api::{Api, Written};
use crate::histogram::Distribution;
use crate::mesh::Mesh;
use crate::process;
use crate::progress::Progress;
use crate::receipt;

/// Time in which all Envoys must have applied a change, the first one after they attached included.
const APPLIED_DEADLINE: Duration = Duration::from_secs(30);

/// The instance that comes and goes.
const INSTANCE: u32 = 0;

/// Many changes of one kind.
pub(super) struct Changes {
    /// Envoys that each change concerned.
    pub(super) watchers: u32,
    /// From the API's answer until the receipt says that all have applied it.
    pub(super) from_answer: Distribution,
    /// From the call until then.
    pub(super) from_call: Distribution,
    /// By the server's own clock, from the commit until the last Envoy's report; empty if it concerned none.
    pub(super) from_commit: Distribution,
    /// CPU time of the server for one change: the API call, the commit, the fan-out, and the receipt.
    pub(super) cpu_each: Duration,
}

/// Waits until one change concerns every attached Envoy and is applied by all of them.
///
/// # Errors
/// When that does not happen in time.
pub(super) async fn all_attached(mesh: &mut Mesh, fleet: &Fleet) -> anyhow::Result<()> {
    let Some(service) = fleet.watched_by(fleet.attached) else {
        return Ok(());
    };
    let mut api = mesh.api();
    let deadline = Instant::now() + APPLIED_DEADLINE;
    loop {
        write(&mut api, fleet, service, false).await?;
        let written = write(&mut api, fleet, service, true).await?;
        let receipt = receipt::wait(&mut api, revision(&written)?, APPLIED_DEADLINE).await?;
        if receipt.is_applied_by(fleet.attached) {
            return Ok(());
        }
        mesh.check_alive()?;
        if Instant::now() > deadline {
            let attached = fleet.attached;
            bail!("a change that concerns {attached} Envoys has this receipt after {APPLIED_DEADLINE:?}: {receipt}");
        }
    }
}

/// Measures changes that concern all Envoys, one, and none.
///
/// # Errors
/// When a call is refused or a change is not applied by all whom it concerns.
pub(super) async fn measure(
    mesh: &mut Mesh,
    fleet: &Fleet,
    times: u32,
    progress: &Progress,
) -> anyhow::Result<Vec<Changes>> {
    let mut found = Vec::new();
    for watchers in BTreeSet::from([fleet.attached, 1, 0]).into_iter().rev() {
        if let Some(service) = fleet.watched_by(watchers) {
            found.push(measure_kind(mesh, fleet, (service, watchers), times, progress).await?);
        }
    }
    Ok(found)
}

async fn measure_kind(
    mesh: &mut Mesh,
    fleet: &Fleet,
    (service, watchers): (u32, u32),
    times: u32,
    progress: &Progress,
) -> anyhow::Result<Changes> {
    let mut api = mesh.api();
    let [mut from_answer, mut from_call, mut from_commit] = std::array::from_fn(|_| Distribution::default());
    // Even, so that the instance is back at the end.
    let times = times + times % 2;
    let mut phase =
        progress.phase(format!("changes that concern {watchers} of {} Envoys", fleet.attached), u64::from(times));
    let cpu_before = process::cpu_time(mesh.server_pid())?;
    for number in 0..times {
        let written = write(&mut api, fleet, service, number % 2 == 1).await?;
        let receipt = receipt::wait(&mut api, revision(&written)?, APPLIED_DEADLINE).await?;
        let settled = Instant::now();
        if !receipt.is_applied_by(watchers) {
            mesh.check_alive()?;
            bail!("a change that concerns {watchers} Envoys has this receipt after {APPLIED_DEADLINE:?}: {receipt}");
        }
        from_answer.record(settled - written.answered);
        from_call.record(settled - written.called);
        receipt.since_commit().into_iter().for_each(|took| from_commit.record(took));
        phase.step();
    }
    let cpu_each = process::cpu_time(mesh.server_pid())?.saturating_sub(cpu_before) / times;
    Ok(Changes { watchers, from_answer, from_call, from_commit, cpu_each })
}

async fn write(api: &mut Api, fleet: &Fleet, service: u32, there: bool) -> anyhow::Result<Written> {
    let call = if there { fleet.registration(service, INSTANCE) } else { fleet.deregistration(service, INSTANCE) };
    api.write(call.method, &call.target, &call.body).await
}

fn revision(written: &Written) -> anyhow::Result<u64> {
    written.revision.context("the answer to a write names no revision in X-Consul-Index")
}
