//! Scenario `dns`: what a server answers over UDP, for a second of its CPU time, and how soon at half of the bar's rate.
//!
//! One socket asks in turn for addresses and SRV records of services, first with a fixed number of questions under way, then at a
//! rate. There a latency counts from when the question was due, so that a server that stalls is not let off.

use std::net::{SocketAddr, UdpSocket};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::value_parser;
use http::Method;
use serde::Serialize;
use serde_json::json;

use crate::fleet::Server;
use crate::histogram::Distribution;
use crate::machine::Machine;
use crate::mesh::folder;
use crate::progress::Progress;
use crate::report::{Bar, OutputArgs, Versions};
use crate::table;

/// The report of this scenario.
const JSON_HELP: &str = "\
What --json writes: schema (starling-bench-dns/1), services, instances, seconds, answers, per_second, cpu_us (of the server, for an answer),
per_core (answers for a second of the server's CPU time), rate, p50_ms, p99_ms, max_ms (at that rate), lost, bars[], machine, versions.";

/// Names the shape of the report; the number goes up when something is taken away or means something else.
const SCHEMA: &str = "starling-bench-dns/1";

/// Of the server's CPU time for an answer: 30,000 answers a second on one core.
const CPU_US_MAX: f64 = 1e6 / 30_000.0;

/// At half of that rate.
const P99_MS_MAX: f64 = 2.0;

/// Questions under way at once: what fits into a socket's buffer of the usual size with room to spare.
const UNDER_WAY: u64 = 128;

/// An answer that takes longer is lost.
const LOST_AFTER: Duration = Duration::from_secs(1);

/// Arguments of `starling bench dns`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = JSON_HELP)]
pub(crate) struct Args {
    /// Services that are asked for in turn
    #[arg(long, default_value_t = 1_000, value_parser = value_parser!(u32).range(1..=50_000))]
    services: u32,
    /// Instances of each, on nodes of their own
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u32).range(1..=100))]
    instances: u32,
    /// How long each part takes
    #[arg(long, default_value_t = 10, value_parser = value_parser!(u32).range(1..=3_600))]
    seconds: u32,
    /// Questions a second in the second part
    #[arg(long, default_value_t = 15_000, value_parser = value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// Everything found.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Findings {
    schema: &'static str,
    services: u32,
    instances: u32,
    seconds: u32,
    answers: u64,
    per_second: f64,
    cpu_us: f64,
    per_core: f64,
    rate: u32,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    max_ms: Option<f64>,
    lost: u64,
    bars: Vec<Bar>,
    machine: Machine,
    versions: Versions,
}

/// Runs the scenario.
///
/// # Errors
/// When the server cannot be brought up, or does not answer at all.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let progress = Progress::new();
    args.output.verify()?;
    let directory = folder(args.output.keep)?;
    let server = Server::alone(directory.path()).await?;
    register(&server, &args, &progress).await?;
    let questions: Arc<[Vec<u8>]> = (0..args.services).flat_map(questions).collect();
    let (address, seconds) = (server.dns(), Duration::from_secs(args.seconds.into()));
    progress.say("asking as fast as it answers");
    let cpu = server.cpu_time()?;
    let asked = Arc::clone(&questions);
    let full = tokio::task::spawn_blocking(move || ask_fully(address, &asked, seconds)).await??;
    let cpu = server.cpu_time()?.saturating_sub(cpu);
    progress.say(&format!("asking {} times a second", args.rate));
    let rate = args.rate;
    let paced = tokio::task::spawn_blocking(move || ask_at_rate(address, &questions, rate, seconds)).await??;
    let findings = findings(&args, &full, cpu, &paced);
    args.output.deliver(&findings, &findings.bars, || text(&findings))
}

async fn register(server: &Server, args: &Args, progress: &Progress) -> anyhow::Result<()> {
    let (mut api, mut phase) = (server.api(), progress.phase("registering", u64::from(args.services)));
    for service in 0..args.services {
        for instance in 0..args.instances {
            let [_, _, high, low] = (service * args.instances + instance).to_be_bytes();
            let body = json!({
                "Node": format!("node-{service}-{instance}"), "Address": format!("10.{instance}.{high}.{low}"),
                "Service": {"Service": format!("service-{service}"), "Port": 8080},
            });
            api.write(Method::PUT, "/v1/catalog/register", &body).await?;
        }
        phase.step();
    }
    Ok(())
}

/// For the addresses, and for the SRV records of a service, as packets whose first two bytes are to be the identifier.
fn questions(service: u32) -> [Vec<u8>; 2] {
    const A: u16 = 1;
    const SRV: u16 = 33;
    [A, SRV].map(|wanted| {
        // Recursion desired; one question, one additional record, which is EDNS's.
        let mut packet = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
        for label in [format!("service-{service}").as_str(), "service", "consul", ""] {
            packet.push(u8::try_from(label.len()).unwrap_or_default());
            packet.extend_from_slice(label.as_bytes());
        }
        packet.extend_from_slice(&wanted.to_be_bytes());
        packet.extend_from_slice(&[0, 1]);
        // RFC 6891: 1,232 bytes are taken.
        packet.extend_from_slice(&[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
        packet
    })
}

/// What came of a part.
#[derive(Debug, Default)]
struct Answered {
    answers: u64,
    lost: u64,
    took: Duration,
    latencies: Distribution,
}

fn socket(server: SocketAddr) -> anyhow::Result<UdpSocket> {
    let socket = UdpSocket::bind("127.0.0.1:0").context("a socket")?;
    socket.connect(server).context("a socket")?;
    socket.set_read_timeout(Some(LOST_AFTER)).context("a socket")?;
    Ok(socket)
}

/// Sends question `number`, which bears the number's last two bytes.
fn send(socket: &UdpSocket, questions: &[Vec<u8>], number: u64, packet: &mut Vec<u8>) -> anyhow::Result<()> {
    let length = questions.len() as u64;
    let which = usize::try_from(number % length).unwrap_or_default();
    packet.clear();
    packet.extend_from_slice(&questions[which]);
    packet[..2].copy_from_slice(&number.to_be_bytes()[6..]);
    socket.send(packet).map(|_| ()).context("asking")
}

/// Waits for an answer; its identifier, or `None` if none came.
fn receive(socket: &UdpSocket) -> Option<u16> {
    let mut answer = [0; 1500];
    let length = socket.recv(&mut answer).ok()?;
    (length > 12 && answer[3] & 0x0f == 0).then(|| u16::from_be_bytes([answer[0], answer[1]]))
}

fn ask_fully(server: SocketAddr, questions: &[Vec<u8>], seconds: Duration) -> anyhow::Result<Answered> {
    let (socket, mut packet) = (socket(server)?, Vec::new());
    let (mut asked, mut answered) = (0, Answered::default());
    let begun = Instant::now();
    while begun.elapsed() < seconds {
        while asked - answered.answers - answered.lost < UNDER_WAY {
            send(&socket, questions, asked, &mut packet)?;
            asked += 1;
        }
        match receive(&socket) {
            Some(_) => answered.answers += 1,
            // Whatever was under way is not coming.
            None => answered.lost = asked - answered.answers,
        }
    }
    answered.took = begun.elapsed();
    anyhow::ensure!(answered.answers > 0, "nothing was answered at {server}");
    Ok(answered)
}

fn ask_at_rate(server: SocketAddr, questions: &[Vec<u8>], rate: u32, seconds: Duration) -> anyhow::Result<Answered> {
    const IDENTIFIERS: usize = 1 << 16;
    let socket = socket(server)?;
    let begun = Instant::now();
    let micros = |at: Instant| u64::try_from(at.duration_since(begun).as_micros()).unwrap_or(u64::MAX);
    // When each question was due, by its identifier, in microseconds; 0 once it is answered.
    let due: Vec<AtomicU64> = (0..IDENTIFIERS).map(|_| AtomicU64::new(0)).collect();
    let over = AtomicBool::new(false);
    let mut answered = Answered::default();
    std::thread::scope(|scope| -> anyhow::Result<()> {
        let asking = scope.spawn(|| -> anyhow::Result<u64> {
            let (mut asked, mut packet) = (0, Vec::new());
            let interval = Duration::from_secs(1) / rate;
            let mut at = begun + Duration::from_millis(1);
            while at < begun + seconds {
                std::thread::sleep(at.saturating_duration_since(Instant::now()));
                due[usize::try_from(asked % IDENTIFIERS as u64).unwrap_or_default()]
                    .store(micros(at), Ordering::Release);
                send(&socket, questions, asked, &mut packet)?;
                asked += 1;
                at += interval;
            }
            over.store(true, Ordering::Release);
            Ok(asked)
        });
        loop {
            let Some(id) = receive(&socket) else {
                if over.load(Ordering::Acquire) {
                    break;
                }
                continue;
            };
            let was_due = due[usize::from(id)].swap(0, Ordering::AcqRel);
            if was_due > 0 {
                answered.answers += 1;
                let latency = micros(Instant::now()).saturating_sub(was_due);
                answered.latencies.record(Duration::from_micros(latency));
            }
        }
        let asked = asking.join().map_err(|_| anyhow::anyhow!("the asking thread panicked"))??;
        answered.lost = asked - answered.answers;
        Ok(())
    })?;
    Ok(answered)
}

#[expect(clippy::cast_precision_loss, reason = "answers are counted in millions")]
fn findings(args: &Args, full: &Answered, cpu: Duration, paced: &Answered) -> Findings {
    let cpu_us = cpu.as_secs_f64() * 1e6 / full.answers as f64;
    let p99_ms = paced.latencies.at(0.99);
    let lost = full.lost + paced.lost;
    let Args { services, instances, seconds, rate, .. } = *args;
    Findings {
        schema: SCHEMA,
        services,
        instances,
        seconds,
        answers: full.answers,
        per_second: full.answers as f64 / full.took.as_secs_f64(),
        cpu_us,
        per_core: 1e6 / cpu_us,
        rate,
        p50_ms: paced.latencies.at(0.5),
        p99_ms,
        max_ms: paced.latencies.at(1.0),
        lost,
        bars: vec![
            Bar::new("server's CPU for an answer, µs", CPU_US_MAX, Some(cpu_us)),
            Bar::new("99 % of answers at that rate, ms", P99_MS_MAX, p99_ms),
            Bar::new("answers that did not come", 0.0, Some(lost as f64)),
        ],
        machine: Machine::read(),
        versions: Versions::of(None),
    }
}

fn text(findings: &Findings) -> String {
    let Findings { services, instances, per_second, per_core, rate, machine, versions, .. } = findings;
    let of_bar = |bar: &Bar| {
        let measured = bar.measured.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"));
        vec![bar.name.to_owned(), measured, format!("≤ {:.2} {}", bar.limit, table::verdict(bar.met))]
    };
    let mut rows: Vec<Vec<String>> = findings.bars.iter().map(of_bar).collect();
    rows.push(vec!["answers a second, as fast as they come".to_owned(), format!("{per_second:.0}"), String::new()]);
    rows.push(vec!["answers for a second of CPU time".to_owned(), format!("{per_core:.0}"), String::new()]);
    let at = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"));
    let latencies = format!("{}; {}", at(findings.p50_ms), at(findings.max_ms));
    rows.push(vec![format!("half, all of answers at {rate}/s, ms"), latencies, String::new()]);
    format!(
        "addresses and SRV records of {services} services with {instances} instances each, over UDP\n{}\n{}\n{}\n",
        table::render(&["", "found", "bar"], rows),
        machine.line(),
        versions.line()
    )
}
