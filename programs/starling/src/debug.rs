//! `starling debug`: what an agent says of itself, several times over a while, in one file to hand on. Nothing in it is a secret: no tokens,
//! no keys, no entries.

use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
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

/// The file of the log.
const LOG: &str = "agent.log";

/// Bytes of the log at most: what says more than this in a while is not read by people.
const LOG_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What can be had, by Consul's words for it and one of Starling's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// What the agent says of itself
    Agent,
    /// What it says of its machine
    Host,
    /// Who is a member
    Members,
    /// What it counts, at each look
    Metrics,
    /// Its log over the while
    Logs,
    /// The CA, and at each look nodes and proxies
    Mesh,
}

/// What is asked once.
const ONCE: [(Part, &str, &str); 4] = [
    (Part::Agent, "agent.json", "/v1/agent/self"),
    (Part::Host, "host.json", "/v1/agent/host"),
    (Part::Members, "members.json", "/v1/agent/members"),
    (Part::Mesh, "ca.json", "/starling/v1/ca"),
];

/// What is asked each time.
const EACH: [(Part, &str, &str); 3] = [
    (Part::Metrics, "metrics.json", "/v1/agent/metrics"),
    (Part::Mesh, "nodes.json", "/starling/v1/nodes"),
    (Part::Mesh, "proxies.json", "/starling/v1/proxies"),
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

    /// What is in it; may be given several times [default: all of it]
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',', hide_default_value = true)]
    capture: Vec<Part>,

    #[command(flatten)]
    api: ApiArgs,
}

impl DebugArgs {
    fn wants(&self, part: Part) -> bool {
        self.capture.is_empty() || self.capture.contains(&part)
    }
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
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
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
    client.send(Call::get("/v1/agent/self")).await?;
    let mut log = Vec::new();
    let ended = {
        let looking = async {
            for (_, file, target) in ONCE.iter().filter(|(part, ..)| args.wants(*part)) {
                ask(client, file, target, bundle, &mut failed).await?;
            }
            look(client, args, bundle, &mut failed).await
        };
        let mut looking = pin!(looking);
        if args.wants(Part::Logs) {
            tokio::select! {
                looked = &mut looking => looked.map(|()| None)?,
                ended = follow(client, &mut log) => {
                    looking.await?;
                    ended
                }
            }
        } else {
            looking.await?;
            None
        }
    };
    failed.extend(ended.map(|reason| json!({"File": LOG, "Reason": reason})));
    if args.wants(Part::Logs) {
        bundle.add_bytes(LOG, &log)?;
    }
    Ok(failed)
}

/// Keeps what the agent logs until it ends; why it does.
async fn follow(client: &Client, log: &mut Vec<u8>) -> Option<String> {
    let call = Call::get("/v1/agent/monitor").query("loglevel", "debug");
    let followed = client.follow(call, |piece| {
        let room = LOG_BYTES_MAX.saturating_sub(log.len());
        log.extend(piece.iter().take(room));
        Ok(())
    });
    followed.await.err().map(|error| error.to_string())
}

/// Asks what changes, until the while is over.
async fn look(client: &Client, args: &DebugArgs, bundle: &mut Bundle, failed: &mut Vec<Value>) -> anyhow::Result<()> {
    let (mut next, end) = (Instant::now(), Instant::now() + args.duration);
    for look in 0_u32.. {
        for (_, file, target) in EACH.iter().filter(|(part, ..)| args.wants(*part)) {
            ask(client, &format!("{look:04}/{file}"), target, bundle, failed).await?;
        }
        next += args.interval;
        if next > end {
            break;
        }
        tokio::select! {
            () = sleep_until(next) => {}
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
    // The log is of the whole while.
    tokio::select! {
        () = sleep_until(end) => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    Ok(())
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
        self.add_bytes(file, &serde_json::to_vec_pretty(value)?)
    }

    fn add_bytes(&mut self, file: &str, text: &[u8]) -> anyhow::Result<()> {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.begun);
        self.tar.append_data(&mut header, format!("{}/{file}", self.name), text)?;
        Ok(())
    }
}
