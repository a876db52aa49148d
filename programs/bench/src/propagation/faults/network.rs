//! Changes over a network that loses packets, and in whose midst connections are reset.

use std::time::Duration;

use super::super::changes::Change;
use super::super::{Called, Run, Subject};
use super::loss::Nft;
use super::{Conditions, together};
use crate::fleet::Among;
use crate::fleet_report::{BadNetwork, FleetChange};

/// From just before the call connections are reset for so long: about as long as a change takes to reach everybody.
const RESETS_DURING: Duration = Duration::from_millis(200);

/// Makes so many changes. Packets are lost from now on until all are made, if `nft` is there; connections are reset during
/// each change.
///
/// # Errors
/// When a call is refused, the fleet breaks, or packets or connections cannot be lost.
pub(super) async fn measure(
    run: &mut Run,
    asked: Conditions,
    nft: Option<Nft>,
    count: u32,
) -> anyhow::Result<(BadNetwork, Vec<FleetChange>)> {
    let Conditions { loss_percent, resets_percent, .. } = asked;
    let what = name(loss_percent > 0.0, resets_percent > 0.0);
    let mut phase = run.progress.phase(format!("changes {what}"), u64::from(count));
    let port = run.servers.first().agents().port();
    let loss = nft.map(|nft| nft.lose(loss_percent, port)).transpose()?;
    let targets = share(run.args.nodes, resets_percent);
    let mut connections_reset = 0;
    let mut changes = Vec::new();
    for change in Change::there_and_back(Subject::Endpoints).into_iter().cycle().take(usize::try_from(count)?) {
        tokio::time::sleep(run.pause()).await;
        // What takes time is done before the call.
        run.crew.aim(targets).await?;
        run.crew.watch().await?;
        let cpu_before = run.servers.cpu_time()?;
        let called = Called::now(&mut run.api, change, &run.upstream);
        let (reset, called) = tokio::join!(run.crew.reset(RESETS_DURING), called);
        let (reset, called) = (reset?, called?);
        connections_reset += u64::from(reset);
        let measured = run.outcome(called, &format!("{} {what}", change.name()), Among::All).await?;
        // Everybody is attached again before the next.
        run.hear_receipt(called.revision).await?;
        let server_cpu = run.servers.cpu_time()?.saturating_sub(cpu_before);
        changes.push(FleetChange { server_cpu_ms: server_cpu.as_secs_f64() * 1e3, ..measured });
        phase.step();
    }
    let packets_lost = loss.as_ref().map(super::loss::PacketLoss::lost).transpose()?.unwrap_or(0);
    let all = together(&changes);
    let found = BadNetwork {
        loss_percent,
        packets_lost,
        resets_percent,
        connections_reset,
        p99_ms: all.map(|it| it.p99),
        max_ms: all.map(|it| it.max),
    };
    Ok((found, changes))
}

fn name(loss: bool, resets: bool) -> &'static str {
    match (loss, resets) {
        (true, true) => "under loss and resets",
        (true, false) => "under loss",
        (false, true | false) => "under resets",
    }
}

/// So many percent of the nodes; one at least, if any are asked for.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a percentage is between 0 and 100")]
fn share(nodes: u32, percent: f64) -> u32 {
    (f64::from(nodes) * percent / 100.0).ceil() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_share_of_few_is_still_somebody() {
        assert_eq!(share(10_000, 5.0), 500);
        assert_eq!(share(10, 5.0), 1);
        assert_eq!(share(10_000, 0.0), 0);
        assert_eq!(share(200, 100.0), 200);
    }
}
