//! A proxy that rests gives back the memory that only its start or a burst needed: most of it is the program's own code.

use std::convert::Infallible;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use tokio::time::sleep;

use crate::memory::Code;

/// How often it is looked whether the proxy rests.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// CPU time in that while, up to which it rests: below half a percent, faults on code cost nothing that anybody sees.
const RESTING_CPU: Duration = Duration::from_millis(25);

/// Looks for as long as it is not dropped.
pub(super) async fn watch() -> Infallible {
    let code = Code::find().inspect_err(|error| tracing::debug!(%error, "the program's code is not found"));
    let mut before = cpu_time();
    loop {
        sleep(LOOK_EVERY).await;
        let now = cpu_time();
        let rests = now.saturating_sub(before) <= RESTING_CPU;
        before = now;
        if let Ok(code) = &code
            && rests
        {
            match code.let_go_of() {
                Ok(bytes) => tracing::debug!(bytes, "at rest: code was let go of"),
                Err(error) => tracing::debug!(%error, "code cannot be let go of"),
            }
        }
    }
}

fn cpu_time() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return Duration::ZERO };
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}
