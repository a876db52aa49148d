//! `starling snapshot inspect`.

use serde_json::json;

use super::reading::{Verified, read};
use super::{InspectArgs, notes};
use crate::outcome::Outcome;
use crate::print::{self, Format};

pub(super) fn run(args: InspectArgs) -> anyhow::Result<Outcome> {
    let Verified { header, summary, checksum } = read(&args.file, drop)?;
    let saved_at = i64::try_from(header.saved_at).ok().and_then(|at| jiff::Timestamp::from_second(at).ok());
    let age = saved_at.map(|at| jiff::Timestamp::now().as_second() - at.as_second());
    let saved_at = saved_at.map(|at| at.to_string()).unwrap_or_default();
    match args.output.format {
        Format::Json => print::json(&json!({
            "format": starling_backup::file::VERSION,
            "store": header.store,
            "revision": header.revision,
            "saved_at": saved_at,
            "age_s": age,
            "program": header.program,
            "sha256": checksum.to_string(),
            "records": summary.records,
            "bytes": summary.bytes,
            "kinds": summary.kinds,
            "sealed_ca_key": summary.has_sealed_key(),
        }))?,
        Format::Table => {
            let mut table = print::table(&["Snapshot", ""]);
            let key = if summary.has_sealed_key() {
                "sealed, in it"
            } else if notes::lacks_key(&summary) {
                "not in it: it is in DATA_DIR/ca of the server, of which a copy is needed, too"
            } else {
                "none"
            };
            for (name, value) in [
                ("Revision", header.revision.to_string()),
                ("Saved", format!("{saved_at} ({} ago)", said(age))),
                ("Store", header.store),
                ("Program", header.program),
                ("SHA-256", format!("{checksum} (verified)")),
                ("Records", format!("{} ({} bytes)", summary.records, summary.bytes)),
                ("CA key", key.to_owned()),
            ] {
                table.add_row([name.to_owned(), value]);
            }
            print::rows(&table)?;
            print::line("")?;
            let mut table = print::table(&["Kind", "Records"]);
            for (kind, count) in &summary.kinds {
                table.add_row([kind.clone(), count.to_string()]);
            }
            print::rows(&table)?;
        }
    }
    Ok(Outcome::Done)
}

/// A time in the unit that tells most.
fn said(seconds: Option<i64>) -> String {
    const UNITS: [(i64, &str); 3] = [(24 * 60 * 60, "days"), (60 * 60, "hours"), (60, "minutes")];
    let Some(seconds) = seconds else { return "unknown".to_owned() };
    let unit = UNITS.into_iter().find(|(length, _)| seconds >= 2 * length);
    unit.map_or_else(|| format!("{seconds} s"), |(length, name)| format!("{} {name}", seconds / length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_told_in_the_unit_that_tells_most() {
        for (seconds, text) in [(0, "0 s"), (119, "119 s"), (120, "2 minutes"), (7_200, "2 hours"), (200_000, "2 days")]
        {
            assert_eq!(said(Some(seconds)), text);
        }
        assert_eq!(said(None), "unknown");
    }
}
