//! `Tracing` of proxy-defaults; Starling's own.

use starling_model::{Percent, Tracing};

use super::field::{FieldError, Fields};
use super::router::percent;

/// One request in a hundred: enough to see what is slow, and little to send.
const SAMPLED_HUNDREDTHS: u16 = 100;

pub(super) fn parse(fields: &mut Fields<'_>) -> Result<Tracing, FieldError> {
    let Some(mut tracing) = fields.object("Tracing")? else { return Ok(Tracing::default()) };
    let endpoint = tracing.required_text("Endpoint")?;
    let collector = endpoint.parse().map_err(|error| tracing.error("Endpoint", error))?;
    let default = || Percent::of_hundredths(SAMPLED_HUNDREDTHS).unwrap_or_default();
    let sampled = percent(&mut tracing, "Percent")?.unwrap_or_else(default);
    tracing.finish()?;
    Ok(Tracing { collector: Some(collector), sampled })
}
