//! `cargo xtask agreement`: whether `starling load` reads what Fortio and wrk read, on the same echo server.
//!
//! Each trial is one of them and `starling load`, one after the other, in an order that changes with the round; what is
//! compared is the median of the rounds. Latencies count from when a request was sent: Fortio counts from there, and
//! `starling load` besides its latency, which counts from when it was due.
//!
//! Trials are judged on an echo server that takes milliseconds. On one that answers at once every tool reads, for the most
//! part, itself: those trials are told and not judged, with the share of its connections' time that a closed loop accounts
//! for (connections = rate x mean latency, Little's law): what is less than all of it is time that a tool does not count.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

/// The difference at the median that is allowed, in percent.
const DIFFERENCE_MAX_PERCENT: f64 = 5.0;

/// Time in which the echo server has to be up.
const UP_WITHIN: Duration = Duration::from_secs(10);

/// Milliseconds that the echo server takes where trials are judged.
const SERVICE_TIME_MS: u32 = 5;

/// What is compared.
#[derive(clap::Args)]
pub(crate) struct AgreementArgs {
    /// The program, as a release build.
    starling: PathBuf,
    /// Fortio, as `cargo xtask install fortio` has it.
    #[arg(long, default_value = ".tools/bin/fortio")]
    fortio: PathBuf,
    /// wrk, as Debian has it.
    #[arg(long, default_value = "wrk")]
    wrk: PathBuf,
    /// Seconds of each run.
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// How often each is run.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

/// Who is held beside `starling load`.
#[derive(Clone, Copy)]
enum Other {
    Fortio,
    Wrk,
}

/// A pair of runs.
struct Trial {
    other: Other,
    service_time_ms: u32,
    connections: u32,
    /// Requests a second; closed without.
    rate: Option<u32>,
}

const TRIALS: [Trial; 6] = [
    Trial { other: Other::Fortio, service_time_ms: SERVICE_TIME_MS, connections: 16, rate: Some(1000) },
    Trial { other: Other::Fortio, service_time_ms: SERVICE_TIME_MS, connections: 16, rate: None },
    Trial { other: Other::Wrk, service_time_ms: SERVICE_TIME_MS, connections: 16, rate: None },
    Trial { other: Other::Fortio, service_time_ms: 0, connections: 16, rate: Some(1000) },
    Trial { other: Other::Wrk, service_time_ms: 0, connections: 1, rate: None },
    Trial { other: Other::Wrk, service_time_ms: 0, connections: 16, rate: None },
];

/// What a run told.
#[derive(Clone, Copy)]
struct Reading {
    p50_ms: f64,
    mean_ms: f64,
    /// Answers a second.
    rate: f64,
}

/// The echo server, which ends with this.
struct Echo {
    child: Child,
    url: String,
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Echo {
    fn start(starling: &Path, service_time_ms: u32) -> anyhow::Result<Self> {
        let (http, tcp) = (free_address()?, free_address()?);
        let mut command = Command::new(starling);
        command.args(["bench", "echo", "--http", &http.to_string(), "--tcp", &tcp.to_string()]);
        command.args(["--service-time", &service_time_ms.to_string()]);
        let child = command.spawn().with_context(|| format!("start {}", starling.display()))?;
        let echo = Self { child, url: format!("http://{http}/") };
        let begun = Instant::now();
        while TcpStream::connect(http).is_err() {
            if begun.elapsed() > UP_WITHIN {
                bail!("the echo server is not up after {UP_WITHIN:?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(echo)
    }
}

fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0").context("find a free port")?.local_addr()?)
}

pub(crate) fn run(arguments: &AgreementArgs) -> anyhow::Result<ExitCode> {
    let mut agreed = true;
    for trial in &TRIALS {
        let (theirs, ours) = arguments.pair(trial).with_context(|| trial.name())?;
        let difference = (median_of(&ours, |it| it.p50_ms) / median_of(&theirs, |it| it.p50_ms) - 1.0) * 100.0;
        let within = difference.abs() <= DIFFERENCE_MAX_PERCENT;
        let is_judged = trial.service_time_ms > 0;
        agreed &= within || !is_judged;
        let verdict = match (is_judged, within) {
            (true, true) => "within 5 %",
            (true, false) => "BEYOND 5 %",
            (false, _) => "not judged",
        };
        println!("{:<44} p50 {difference:+6.1} %  {verdict}", trial.name());
        println!("    {:<8} {}", trial.other.name(), trial.told(&theirs));
        println!("    starling {}", trial.told(&ours));
    }
    Ok(if agreed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Other {
    fn name(self) -> &'static str {
        match self {
            Self::Fortio => "fortio",
            Self::Wrk => "wrk",
        }
    }
}

impl Trial {
    fn name(&self) -> String {
        let Self { other, service_time_ms, connections, rate } = self;
        let pace = rate.map_or_else(|| "closed loop".to_owned(), |rate| format!("{rate}/s"));
        format!("{}, {connections} conn., {pace}, server takes {service_time_ms} ms", other.name())
    }

    fn told(&self, readings: &[Reading]) -> String {
        let of = |read: fn(&Reading) -> f64| median_of(readings, read);
        let mut text = format!(
            "p50 {:.3} ms, mean {:.3} ms, {:.0} answers/s",
            of(|it| it.p50_ms),
            of(|it| it.mean_ms),
            of(|it| it.rate)
        );
        if self.rate.is_none() {
            let counted = of(|it| it.mean_ms * it.rate) / 10.0 / f64::from(self.connections);
            text.push_str(&format!(", counts {counted:.0} % of its connections' time"));
        }
        text
    }
}

impl AgreementArgs {
    /// The rounds of a trial: the other's, and ours.
    fn pair(&self, trial: &Trial) -> anyhow::Result<(Vec<Reading>, Vec<Reading>)> {
        let echo = Echo::start(&self.starling, trial.service_time_ms)?;
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for round in 0..self.rounds {
            // Who comes first has the machine as the round before left it.
            for is_ours in [round % 2 == 0, round % 2 != 0] {
                match is_ours {
                    true => ours.push(self.starling(trial, &echo.url)?),
                    false => theirs.push(self.other(trial, &echo.url)?),
                }
            }
        }
        Ok((theirs, ours))
    }

    fn starling(&self, trial: &Trial, url: &str) -> anyhow::Result<Reading> {
        let place = tempfile::tempdir().context("make a folder")?;
        let file = place.path().join("load.json");
        let pace =
            trial.rate.map_or_else(|| vec!["--closed".to_owned()], |rate| vec!["--rate".into(), rate.to_string()]);
        let mut command = Command::new(&self.starling);
        command.args(["load", url, "-c", &trial.connections.to_string(), "-d", &format!("{}s", self.seconds)]);
        output(command.args(pace).arg("--json").arg(&file))?;
        let json: Value = serde_json::from_slice(&std::fs::read(&file).context("read what starling wrote")?)?;
        // Counted as the others count, and not from when a request was due.
        let counted = &json[if trial.rate.is_some() { "from_send_ms" } else { "latency_ms" }];
        let number = |value: &Value| value.as_f64().context("a figure is missing in what starling wrote");
        Ok(Reading {
            p50_ms: number(&counted["p50"])?,
            mean_ms: number(&counted["mean"])?,
            rate: number(&json["rate"])?,
        })
    }

    fn other(&self, trial: &Trial, url: &str) -> anyhow::Result<Reading> {
        let (connections, length) = (trial.connections.to_string(), format!("{}s", self.seconds));
        match trial.other {
            Other::Fortio => {
                // Its clients begin spread over a gap and do not catch up, as ours; and its steps are of 10 µs.
                let rate = trial.rate.unwrap_or(0).to_string();
                let mut command = Command::new(&self.fortio);
                command.args(["load", "-c", &connections, "-qps", &rate, "-t", &length, "-uniform", "-nocatchup"]);
                command.args(["-r", "0.00001", "-p", "50", "-loglevel", "Error", "-json", "-", url]);
                of_fortio(&output(&mut command)?)
            }
            Other::Wrk => {
                let mut command = Command::new(&self.wrk);
                of_wrk(&output(command.args(["-t1", "-c", &connections, "-d", &length, "--latency", url]))?)
            }
        }
    }
}

fn median_of(readings: &[Reading], read: fn(&Reading) -> f64) -> f64 {
    median(readings.iter().map(read).collect())
}

/// What a program prints; it has to succeed.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let shown = format!("{command:?}");
    let output = command.stderr(Stdio::piped()).output().with_context(|| format!("start {shown}"))?;
    if !output.status.success() {
        bail!("{shown}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn of_fortio(text: &str) -> anyhow::Result<Reading> {
    let from = text.find('{').context("fortio wrote no JSON")?;
    let json: Value = serde_json::Deserializer::from_str(&text[from..]).into_iter().next().context("no JSON")??;
    let latencies = &json["DurationHistogram"];
    let percentiles = latencies["Percentiles"].as_array().context("fortio told no percentiles")?;
    let median = percentiles.iter().find(|it| it["Percentile"] == 50.0 || it["Percentile"] == 50);
    let p50 = median.and_then(|it| it["Value"].as_f64()).context("fortio told no median")?;
    let mean = latencies["Avg"].as_f64().context("fortio told no mean")?;
    let rate = json["ActualQPS"].as_f64().context("fortio told no rate")?;
    Ok(Reading { p50_ms: p50 * 1e3, mean_ms: mean * 1e3, rate })
}

/// Of lines such as `    Latency   140.82us  249.59us   4.41ms`, `     50%  643.00us` and `Requests/sec:  99207.03`.
fn of_wrk(text: &str) -> anyhow::Result<Reading> {
    let after = |prefix: &str| {
        let mut words = text.lines().filter_map(|line| line.trim().strip_prefix(prefix)?.split_whitespace().next());
        words.find(|word| word.starts_with(|letter: char| letter.is_ascii_digit()))
    };
    Ok(Reading {
        p50_ms: of_wrk_duration(after("50%").context("wrk told no median")?)?,
        mean_ms: of_wrk_duration(after("Latency").context("wrk told no mean")?)?,
        rate: after("Requests/sec:").context("wrk told no rate")?.parse().context("wrk's rate is no number")?,
    })
}

/// In milliseconds.
fn of_wrk_duration(text: &str) -> anyhow::Result<f64> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit {
        "us" => 1e-3,
        "ms" => 1.0,
        "s" => 1e3,
        _ => bail!("{text:?} is of no unit of wrk's"),
    };
    Ok(number.parse::<f64>().with_context(|| format!("{text:?} is no duration"))? * scale)
}

/// Of at least one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_others_print_is_read() {
        let wrk = "    Latency   140.82us  249.59us   4.41ms   97.69%\n  Latency Distribution\n     50%  643.00us\n\
                   Requests/sec:  99207.03\n";
        let Reading { p50_ms, mean_ms, rate } = of_wrk(wrk).unwrap();
        assert_eq!(((p50_ms * 1e3).round(), (mean_ms * 1e5).round(), rate), (643.0, 14_082.0, 99_207.03));
        assert!(of_wrk("nothing").is_err());
        let fortio = r#"noise {"ActualQPS":995.5,"DurationHistogram":{"Avg":0.0005,
            "Percentiles":[{"Percentile":50,"Value":0.00025}]}}"#;
        let Reading { p50_ms, mean_ms, rate } = of_fortio(fortio).unwrap();
        assert_eq!((p50_ms, mean_ms, rate), (0.25, 0.5, 995.5));
        assert_eq!((median(vec![3.0, 1.0, 2.0]), median(vec![1.0, 2.0])), (2.0, 1.5));
    }
}
