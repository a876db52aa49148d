//! The command line of `starling load`.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};
use clap::value_parser;
use http::uri::Scheme;
use http::{HeaderName, HeaderValue};

use super::tls::TlsArgs;
use super::{
    Arrivals, Length, Load, Message, Outcome, Pace, Peer, Protocol, Running, Summary, descriptors, hdr_log, parse_url,
};
use crate::report::verify_writable;
use crate::stop::{Stop, Stopped};

/// Time between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// A rate that no single machine's generator reaches.
const RATE_MAX: f64 = 10_000_000.0;

/// What `--json` writes.
const JSON_HELP: &str = "\
What --json writes: requests, rate (successes a second), errors, seconds, status{}, failures{},
interrupted (whether it was ended early), latency_ms.{mean,p50,p75,p90,p95,p99,p999,max}, of an open loop slip_ms.{p99,max} and from_send_ms (as latency_ms, but from
when each request was sent, as generators count it that know no schedule), void (why the figures say nothing, or null), and histogram_us: pairs of microseconds and how many requests took up to that, exact to three digits.

--hdr writes a log that HdrHistogram's tools read, in microseconds. --merge makes one of several: every request counts
once, so its percentiles are those of all requests, and not a mean of percentiles.

The exit code is 1 when a request failed or the generator did not keep its schedule.";

/// Send requests to a server at a steady rate, or as fast as it answers, and tell how long they took
///
/// With --rate the loop is open: requests are due by the clock, whatever the answers do, and a latency counts from when its
/// request was due. Without, or with --closed, each connection sends when it has its answer.
#[derive(Debug, clap::Args)]
#[command(after_long_help = JSON_HELP)]
pub struct LoadArgs {
    /// http://HOST:PORT/PATH, grpc://HOST:PORT/SERVICE/METHOD (unary calls), or tcp://HOST:PORT (an echo server); with
    /// TLS https://, grpcs:// or tls://
    #[arg(value_name = "URL", required_unless_present = "merge")]
    url: Option<String>,
    /// Connections
    #[arg(short, long, default_value_t = 1, value_name = "CONNECTIONS", value_parser = value_parser!(u32).range(1..=100_000))]
    connections: u32,
    /// Requests a second, over all connections
    #[arg(long, value_name = "PER_SECOND", value_parser = rate, conflicts_with = "closed")]
    rate: Option<f64>,
    /// How requests of an open loop follow each other
    #[arg(long, value_enum, default_value_t)]
    arrivals: Arrivals,
    /// Move each request of an open loop, earlier or later, by up to this share of the time between two; 10 without a number
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, default_missing_value = "10", require_equals = true,
        value_parser = value_parser!(u8).range(1..=50), requires = "rate")]
    jitter: Option<u8>,
    /// How long: 30s, 500ms, 2m [default: 10s]
    #[arg(short, long, value_name = "DURATION", value_parser = duration, conflicts_with = "count")]
    duration: Option<Duration>,
    /// How many requests, instead of how long
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Send when the answer to the request before is there; the loop without --rate
    #[arg(long)]
    closed: bool,
    /// Speak HTTP/2 to an http:// or https:// URL
    #[arg(long)]
    http2: bool,
    /// Requests at a time on each connection; HTTP/2 and gRPC only
    #[arg(long, default_value_t = 1, value_name = "STREAMS", value_parser = value_parser!(u32).range(1..=1000))]
    streams: u32,
    /// Bytes of each request's body; without it, HTTP requests are GET
    #[arg(long, default_value_t = 0, value_name = "BYTES", value_parser = value_parser!(u32).range(0..=16_777_216))]
    payload: u32,
    /// A header of each request; may be given several times
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = header)]
    headers: Vec<(HeaderName, HeaderValue)>,
    /// A new connection for each request
    #[arg(long)]
    no_keep_alive: bool,
    /// Send for so long first without counting
    #[arg(long, default_value = "0s", value_name = "DURATION", value_parser = duration)]
    warm_up: Duration,
    /// Longest wait for an answer
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = duration)]
    timeout: Duration,
    /// Threads of the generator [default: half of the CPUs]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=256))]
    threads: Option<u32>,
    /// Write the figures to a file
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Write the latencies to a file, as an HdrHistogram log
    #[arg(long, value_name = "PATH")]
    hdr: Option<PathBuf>,
    /// Send nothing: tell what these runs have in common, from what --hdr wrote of each
    #[arg(long, value_name = "PATH", num_args = 1..,
        conflicts_with_all = ["url", "rate", "duration", "count", "closed"])]
    merge: Vec<PathBuf>,
    #[command(flatten)]
    tls: TlsArgs,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate <= RATE_MAX => Ok(rate),
        _ => Err(format!("a number above 0 and up to {RATE_MAX}")),
    }
}

/// A number with its unit.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err("a number with ms, s, m or h behind it, such as 30s".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| format!("{number:?} is not a number"))?;
    Duration::try_from_secs_f64(number * seconds).map_err(|error| error.to_string())
}

/// `NAME: VALUE`.
pub(crate) fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("NAME: VALUE")?;
    let name = name.trim().parse().map_err(|_| format!("{name:?} is not the name of a header"))?;
    Ok((name, value.trim().parse().map_err(|_| format!("{value:?} is not the value of a header"))?))
}

impl LoadArgs {
    async fn load(&self) -> anyhow::Result<Load> {
        let url = self.url.as_deref().context("there is no URL")?;
        let (protocol, uri) = parse_url(url, self.http2)?;
        self.check(protocol, url)?;
        if uri.scheme() != Some(&Scheme::HTTPS) && self.tls.is_given() {
            bail!("{url} is not TLS: write https://, grpcs:// or tls://");
        }
        let peer = Peer::of(&uri, protocol, &self.tls).await?;
        let payload = usize::try_from(self.payload).context("the payload is larger than memory")?;
        let message = Message::new(protocol, uri.clone(), self.headers.clone(), payload);
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        Ok(Load {
            connections: self.connections,
            streams: self.streams,
            pace: self.rate.map_or(Pace::Closed, |rate| Pace::Open { rate, arrivals: self.arrivals }),
            jitter: f64::from(self.jitter.unwrap_or(0)) / 100.0,
            length: match (self.count, self.duration) {
                (Some(count), _) => Length::Requests(count),
                (None, duration) => Length::Time(duration.unwrap_or(Duration::from_secs(10))),
            },
            warm_up: self.warm_up,
            timeout: self.timeout,
            keep_alive: !self.no_keep_alive,
            threads: self.threads.unwrap_or_else(|| u32::try_from(cpus / 2).unwrap_or(1).max(1)),
            ..Load::new(peer, protocol, message)
        })
    }

    /// What makes no sense together.
    fn check(&self, protocol: Protocol, url: &str) -> anyhow::Result<()> {
        if self.streams > 1 && !matches!(protocol, Protocol::Http2 | Protocol::Grpc) {
            bail!("--streams is for HTTP/2 and gRPC; one connection of {url} carries one request at a time");
        }
        if protocol == Protocol::Tcp && self.payload == 0 {
            bail!("over TCP there has to be something to send: --payload BYTES");
        }
        if self.jitter.is_some() && self.arrivals == Arrivals::Poisson {
            bail!("--jitter is for constant arrivals; those of --arrivals poisson are random by themselves");
        }
        Ok(())
    }

    /// Writes the files that were asked for, and prints the figures.
    fn report(&self, summary: &Summary, outcome: &Outcome, began: SystemTime) -> anyhow::Result<ExitCode> {
        let write = |path: &Path, bytes: &[u8]| {
            std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
        };
        if let Some(path) = &self.json {
            let mut json = serde_json::to_string_pretty(summary)?;
            json.push('\n');
            write(path, json.as_bytes())?;
        }
        if let Some(path) = &self.hdr {
            write(path, &hdr_log::render(outcome, summary.void.as_deref(), began)?)?;
        }
        // Last: whoever reads it may have gone, and the files are there all the same.
        let told = std::io::stdout().write_all(summary.text().as_bytes());
        if let Err(error) = told
            && error.kind() != std::io::ErrorKind::BrokenPipe
        {
            return Err(error).context("cannot write to standard output");
        }
        Ok(if summary.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// How much there is to do, for the progress.
    fn planned(&self) -> String {
        match (self.count, self.duration) {
            (Some(count), _) => format!("of {count} requests"),
            (None, duration) => {
                let length = duration.unwrap_or(Duration::from_secs(10)) + self.warm_up;
                format!("of {:.0} s", length.as_secs_f64())
            }
        }
    }
}

/// Sends the load, and prints what came of it. SIGINT and SIGTERM end it early, with the figures so far.
///
/// # Errors
/// When the arguments make no sense together, the server cannot be reached at all, the system's limits are too low, or a
/// file cannot be read or written.
pub async fn run(args: LoadArgs) -> anyhow::Result<ExitCode> {
    if !args.merge.is_empty() {
        let merged = hdr_log::merge(&args.merge)?;
        if merged.foreign > 0 {
            crate::said::note(&format!(
                "{} of the logs are not of `starling load`: their errors are not known",
                merged.foreign
            ));
        }
        return args.report(&merged.summary(), &merged.outcome, merged.began);
    }
    for path in args.json.iter().chain(&args.hdr) {
        verify_writable(path)?;
    }
    let load = args.load().await?;
    descriptors::provide(&load)?;
    let (outcome, stopped) = watched(Running::start(load), &args.planned()).await?;
    let began = SystemTime::now().checked_sub(outcome.elapsed).unwrap_or(SystemTime::UNIX_EPOCH);
    let summary = Summary { interrupted: stopped.is_some(), ..Summary::of(&outcome) };
    let code = args.report(&summary, &outcome, began)?;
    Ok(stopped.map_or(code, Stopped::code))
}

/// Tells every second how far it is.
async fn watched(mut running: Running, planned: &str) -> anyhow::Result<(Outcome, Option<Stopped>)> {
    let (mut stop, mut stopped) = (Stop::listen()?, None);
    let (begun, mut told) = (Instant::now(), 0);
    let mut ticks = tokio::time::interval(PROGRESS_INTERVAL);
    ticks.tick().await;
    let terminal = std::io::stderr().is_terminal();
    loop {
        tokio::select! {
            outcome = running.outcome() => {
                if terminal {
                    crate::said::over("");
                }
                return outcome.map(|outcome| (outcome, stopped));
            }
            _ = ticks.tick() => {
                let done = running.done();
                let (seconds, failed) = (begun.elapsed().as_secs_f64(), running.failed());
                let line = format!("{seconds:.0} s {planned}: {done} requests, {}/s, {failed} errors", done - told);
                told = done;
                if terminal { crate::said::over(&line) } else { crate::said::note(&line) }
            }
            how = stop.came() => {
                stopped = Some(how);
                running.stop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for wrong in ["10", "s", "1d", "-1s", "1.2.3s", ""] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_and_headers_are_read_or_refused() {
        assert_eq!(rate("0.5"), Ok(0.5));
        for wrong in ["0", "-1", "NaN", "inf", "many"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
        assert_eq!(header("X-A: b c").unwrap(), ("x-a".parse().unwrap(), "b c".parse().unwrap()));
        assert!(header("x").is_err() && header("a b: c").is_err() && header("a: b\rc").is_err());
    }
}
