//! `cargo xtask agreement`: whether `starling load` reads what Fortio and wrk read, on the same echo server.
//!
//! Each round runs all of them one after the other, in an order that changes with the round: Fortio and `starling load` at
//! the same rate, wrk and `starling load --closed` as fast as it goes. What is compared is the median of the rounds, from when
//! a request was sent: Fortio counts from there, and `starling load` besides its latency, which counts from when it was due.

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
    /// Connections of each.
    #[arg(short, long, default_value_t = 16)]
    connections: u32,
    /// Requests a second of the open loops.
    #[arg(long, default_value_t = 1000)]
    rate: u32,
    /// Seconds of each run.
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// How often each is run.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

/// Who is run, with the name that the table has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Fortio,
    StarlingOpen,
    Wrk,
    StarlingClosed,
}

const ALL: [(Who, &str); 4] = [
    (Who::Fortio, "fortio"),
    (Who::StarlingOpen, "starling --rate"),
    (Who::Wrk, "wrk"),
    (Who::StarlingClosed, "starling --closed"),
];

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
    fn start(starling: &Path) -> anyhow::Result<Self> {
        let (http, tcp) = (free_address()?, free_address()?);
        let mut command = Command::new(starling);
        command.args(["bench", "echo", "--http", &http.to_string(), "--tcp", &tcp.to_string()]);
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
    let echo = Echo::start(&arguments.starling)?;
    let mut found: [Vec<f64>; 4] = Default::default();
    for round in 0..arguments.rounds {
        for step in 0..ALL.len() {
            // Who comes first has the machine as the round before left it.
            let number = (step + usize::try_from(round)?) % ALL.len();
            let (who, name) = ALL[number];
            let p50 = arguments.measure(who, &echo.url).with_context(|| format!("measure by {name}"))?;
            println!("round {}: {name:<18} p50 {p50:.3} ms", round + 1);
            found[number].push(p50);
        }
    }
    let medians = found.map(median);
    let mut agreed = true;
    for (theirs, ours) in [(0, 1), (2, 3)] {
        let difference = (medians[ours] / medians[theirs] - 1.0) * 100.0;
        let within = difference.abs() <= DIFFERENCE_MAX_PERCENT;
        agreed &= within;
        println!(
            "{:<18} {:.3} ms, {:<18} {:.3} ms: {difference:+.1} % ({} {DIFFERENCE_MAX_PERCENT} %)",
            ALL[theirs].1,
            medians[theirs],
            ALL[ours].1,
            medians[ours],
            if within { "within" } else { "beyond" },
        );
    }
    Ok(if agreed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl AgreementArgs {
    /// The median latency of one run, in milliseconds.
    fn measure(&self, who: Who, url: &str) -> anyhow::Result<f64> {
        let (connections, rate) = (self.connections.to_string(), self.rate.to_string());
        let length = format!("{}s", self.seconds);
        let of_starling = |pace: &[&str]| {
            let file = std::env::temp_dir().join(format!("starling-agreement-{}.json", std::process::id()));
            let mut command = Command::new(&self.starling);
            command.args(["load", url, "-c", &connections, "-d", &length]).args(pace).arg("--json").arg(&file);
            let ran = output(&mut command);
            let text = std::fs::read(&file).with_context(|| format!("read {}", file.display()));
            let _ = std::fs::remove_file(&file);
            ran?;
            let json: Value = serde_json::from_slice(&text?)?;
            // Counted as the others count, and not from when a request was due.
            let counted = if who == Who::StarlingOpen { "from_send_ms" } else { "latency_ms" };
            json[counted]["p50"].as_f64().with_context(|| format!("there is no {counted}.p50"))
        };
        match who {
            Who::StarlingOpen => of_starling(&["--rate", &rate]),
            Who::StarlingClosed => of_starling(&["--closed"]),
            Who::Fortio => {
                // Its clients begin spread over a gap and do not catch up, as ours; and its steps are of 10 µs.
                let mut command = Command::new(&self.fortio);
                command.args(["load", "-c", &connections, "-qps", &rate, "-t", &length, "-uniform", "-nocatchup"]);
                command.args(["-r", "0.00001", "-p", "50", "-loglevel", "Error", "-json", "-", url]);
                of_fortio(&output(&mut command)?)
            }
            Who::Wrk => {
                let mut command = Command::new(&self.wrk);
                of_wrk(&output(command.args(["-t1", "-c", &connections, "-d", &length, "--latency", url]))?)
            }
        }
    }
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

fn of_fortio(text: &str) -> anyhow::Result<f64> {
    let from = text.find('{').context("fortio wrote no JSON")?;
    let json: Value = serde_json::Deserializer::from_str(&text[from..]).into_iter().next().context("no JSON")??;
    let percentiles = json["DurationHistogram"]["Percentiles"].as_array().context("there are no percentiles")?;
    let median = percentiles.iter().find(|it| it["Percentile"] == 50.0 || it["Percentile"] == 50);
    Ok(median.and_then(|it| it["Value"].as_f64()).context("there is no median")? * 1e3)
}

/// Of a line such as `     50%  643.00us`.
fn of_wrk(text: &str) -> anyhow::Result<f64> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix("50%")).context("wrk told no median")?.trim();
    let digits = line.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(line.len());
    let (number, unit) = line.split_at(digits);
    let scale = match unit {
        "us" => 1e-3,
        "ms" => 1.0,
        "s" => 1e3,
        _ => bail!("{line:?} is of no unit of wrk's"),
    };
    Ok(number.parse::<f64>().with_context(|| format!("{line:?} is no duration"))? * scale)
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
        assert_eq!(of_wrk("  Latency Distribution\n     50%  643.00us\n     75%    1.20ms\n").unwrap(), 0.643);
        assert!(of_wrk("nothing").is_err());
        let fortio = r#"noise {"DurationHistogram":{"Percentiles":[{"Percentile":50,"Value":0.00025}]}}"#;
        assert_eq!(of_fortio(fortio).unwrap(), 0.25);
        assert_eq!((median(vec![3.0, 1.0, 2.0]), median(vec![1.0, 2.0])), (2.0, 1.5));
    }
}
