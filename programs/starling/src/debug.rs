//! `starling debug`: what an agent says of itself, several times over a while, in one file to hand on. Nothing in it is a secret: no tokens,
//! no keys, no entries.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};
use tokio::time::{Instant, sleep_until};

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call, Client};
use crate::outcome::{Outcome, usage};
use crate::print;
use crate::receipt::duration;

/// Times that it is asked at most.
const TIMES_MAX: u32 = 10_000;

/// What is asked once.
const ONCE: [(&str, &str); 4] = [
    ("agent.json", "/v1/agent/self"),
    ("host.json", "/v1/agent/host"),
    ("members.json", "/v1/agent/members"),
    ("ca.json", "/starling/v1/ca"),
];

/// What is asked each time.
const EACH: [(&str, &str); 3] = [
    ("metrics.json", "/v1/agent/metrics"),
    ("nodes.json", "/starling/v1/nodes"),
    ("proxies.json", "/starling/v1/proxies"),
];

/// Write what the agent says of itself, several times over a while, to a file to hand on
#[derive(Debug, clap::Args)]
pub(crate) struct DebugArgs {
    /// The file, without .tar.gz, which must not exist yet [default: starling-debug-TIME]
    #[arg(long, value_name = "NAME")]
    output: Option<PathBuf>,

    /// For how long
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "2m")]
    duration: Duration,

    /// Between two looks
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    interval: Duration,

    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn run(args: DebugArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    if args.interval.is_zero() || args.duration.as_nanos() / args.interval.as_nanos().max(1) > u128::from(TIMES_MAX) {
        return Err(usage(format!("--interval: is so short that there would be more than {TIMES_MAX} looks")));
    }
    let client = surroundings.client(&args.api)?;
    let begun = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
    let named = args.output.clone().unwrap_or_else(|| format!("starling-debug-{begun}").into());
    let name = named.file_name().context("--output names no file")?.to_string_lossy().into_owned();
    let path = named.with_file_name(format!("{name}.tar.gz"));
    let file = std::fs::File::create_new(&path);
    let file = file.map_err(|error| usage(format!("--output: cannot make {}: {error}", path.display())))?;
    let mut bundle = Bundle { tar: Builder::new(GzEncoder::new(file, Compression::default())), name, begun };
    let gathered = gather(&client, &args, &mut bundle).await;
    let written = gathered.and_then(|failed| {
        bundle.add(
            "index.json",
            &json!({
                "Version": env!("CARGO_PKG_VERSION"), "Begun": begun, "Interval": args.interval.as_secs(),
                "Duration": args.duration.as_secs(), "Failed": failed,
            }),
        )?;
        bundle.tar.into_inner()?.finish()?.sync_all()?;
        anyhow::Ok(())
    });
    if let Err(error) = written {
        let _ = std::fs::remove_file(&path);
        return Err(error);
    }
    print::line(&format!("Saved debug archive: {}", path.display()))?;
    Ok(Outcome::Done)
}

/// Asks everything; what could not be had, and why.
async fn gather(client: &Client, args: &DebugArgs, bundle: &mut Bundle) -> anyhow::Result<Vec<Value>> {
    let mut failed = Vec::new();
    // Whoever cannot be asked at all is not worth a file.
    let (own, _) = client.read_at(Call::get(ONCE[0].1)).await?;
    bundle.add(ONCE[0].0, &own)?;
    for (file, target) in &ONCE[1..] {
        ask(client, file, target, bundle, &mut failed).await?;
    }
    let (mut next, end) = (Instant::now(), Instant::now() + args.duration);
    for look in 0_u32.. {
        for (file, target) in EACH {
            ask(client, &format!("{look:04}/{file}"), target, bundle, &mut failed).await?;
        }
        next += args.interval;
        if next > end {
            break;
        }
        tokio::select! {
            () = sleep_until(next) => {}
            _ = tokio::signal::ctrl_c() => break,
        }
    }
    Ok(failed)
}

async fn ask(
    client: &Client,
    file: &str,
    target: &str,
    bundle: &mut Bundle,
    failed: &mut Vec<Value>,
) -> anyhow::Result<()> {
    match client.read_at(Call::get(target)).await {
        Ok((answer, _)) => bundle.add(file, &answer),
        Err(error) => {
            failed.push(json!({"File": file, "Reason": error.to_string()}));
            Ok(())
        }
    }
}

struct Bundle {
    tar: Builder<GzEncoder<std::fs::File>>,
    name: String,
    begun: u64,
}

impl Bundle {
    fn add(&mut self, file: &str, value: &Value) -> anyhow::Result<()> {
        let text = serde_json::to_vec_pretty(value)?;
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.begun);
        self.tar.append_data(&mut header, format!("{}/{file}", self.name), text.as_slice())?;
        Ok(())
    }
}
