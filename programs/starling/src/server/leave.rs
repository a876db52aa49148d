//! `starling server leave`: a server that goes without anybody noticing.

use std::time::Duration;

use serde::Deserialize;

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call};
use crate::outcome::Outcome;
use crate::print;

/// Where it is asked.
const LEAVE: &str = "/starling/v1/server/leave";

/// Between two looks at how far it is.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Have a server leave the mesh, and wait until it has: its agents go to the other servers first, and then it ends
///
/// Ask the server itself: agents do not pass this on. A request to terminate (SIGTERM) does the same.
#[derive(Debug, clap::Args)]
pub(crate) struct LeaveArgs {
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Leaving {
    attached: u32,
    standby: u32,
    done: bool,
}

pub(super) async fn run(args: &LeaveArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let client = surroundings.client(&args.api)?;
    let mut known: Leaving = client.read(Call::put(LEAVE)).await?;
    print::line(&format!("leaving: {}", told(&known)))?;
    while !known.done {
        tokio::time::sleep(LOOK_EVERY).await;
        // A server that has left answers nobody.
        let Ok(now) = client.read::<Leaving>(Call::get(LEAVE)).await else { break };
        if now != known {
            print::line(&told(&now))?;
        }
        known = now;
    }
    print::line(&format!("left {}", client.address()))?;
    Ok(Outcome::Done)
}

fn told(leaving: &Leaving) -> String {
    format!("{} agents attached, {} in reserve", leaving.attached, leaving.standby)
}
