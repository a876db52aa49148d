//! One run: a cluster, clients, faults by a seed, and what is left of it all in the end.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;
use starling_e2e::http;
use tokio::time::sleep;

use crate::cluster::{COUNT, Cluster, Programs, Role};
use crate::faults::{Blow, Fault, Harm, Target, cuts, plan};
use crate::history::{Event, Findings, Key, Kind, Mode};
use crate::load::board::Board;
pub use crate::load::board::Entered;
use crate::load::request::query_of;
use crate::load::{self, Caller};
use crate::network::CutId;
use crate::register::Call;

/// Load before the first fault, so that there is something to lose.
const QUIET: Duration = Duration::from_secs(3);

/// Time between two looks whether a program has ended by itself.
const SUPERVISE_INTERVAL: Duration = Duration::from_millis(200);

/// Time in which answers arrive that were on their way when their server was killed or stopped.
const LAST_ANSWERS: Duration = Duration::from_millis(100);

/// Longest time from the last fault's end until every server takes writes and all of them agree.
const HEAL_TIME_MAX: Duration = Duration::from_secs(60);

/// Pause between two attempts at the end.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Longest wait for one answer about everything.
const DUMP_TIME_MAX: Duration = Duration::from_secs(20);

/// What everything is, by what is asked.
const DUMPS: [&str; 4] =
    ["/v1/catalog/nodes", "/v1/config/service-defaults", "/v1/config/service-resolver", "/v1/kv/?recurse"];

/// What to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many faults.
    pub faults: usize,
    /// From which all of it is drawn.
    pub seed: u64,
    /// Where the programs are.
    pub programs: Programs,
    /// No new fault begins after this long.
    pub duration: Option<Duration>,
}

/// A fault that took place.
#[derive(Clone, Debug, Serialize)]
pub struct Struck {
    /// What and for how long.
    pub fault: Fault,
    /// Whom it hit.
    pub role: Role,
    /// Whether that was the member that led.
    pub was_leader: bool,
    /// Microseconds since the run began.
    pub begun: u64,
    /// When it was over.
    pub ended: u64,
}

/// What a run left to be judged.
pub struct Remains {
    /// Everything that clients did.
    pub events: Vec<Event>,
    /// The faults, in the order of their ends.
    pub faults: Vec<Struck>,
    /// Registrations that were acknowledged and never written again.
    pub ledger: BTreeMap<String, Entered>,
    /// The answers about everything, of each server; of each its index and its text.
    pub dumps: Vec<Vec<(u64, String)>>,
    /// Promises found broken.
    pub findings: Findings,
    /// Programs that ended though nobody killed them.
    pub ended_by_themselves: Vec<(Role, String)>,
    /// How often a server read everything anew, as etcd no longer had what it had missed.
    pub read_anew: usize,
    /// How long healing took after the last fault.
    pub healed_in: Duration,
    /// The run's folder: logs and data, to be kept or removed.
    pub folder: Folder,
}

/// The folder of a run, removed with it unless it is kept.
pub struct Folder(Option<Cluster>);

impl Folder {
    /// That of a run that never was.
    #[cfg(test)]
    pub(crate) fn of_nothing() -> Self {
        Self(None)
    }

    /// Ends the cluster and keeps its logs and data.
    #[must_use]
    pub fn keep(mut self) -> PathBuf {
        self.0.as_mut().map(Cluster::keep).unwrap_or_default()
    }
}

/// Runs it, telling each fault as it begins.
///
/// # Errors
/// If the cluster cannot be had, or does not come back after the last fault.
pub async fn run(options: &Options) -> anyhow::Result<Remains> {
    let cluster = Cluster::start(options.programs.clone()).await?;
    let board = Arc::new(Board::new(std::array::from_fn(|server| cluster.api(server))));
    let stage = Stage {
        cluster: RefCell::new(cluster),
        board: Arc::clone(&board),
        struck: RefCell::default(),
        until: options.duration.map(|duration| Instant::now() + duration),
    };
    let clients = load::start(&board, options.seed);
    let [members, servers] = plan(options.seed, options.faults);
    let lanes = async {
        sleep(QUIET).await;
        tokio::try_join!(stage.lane(members), stage.lane(servers)).map(|_| ())
    };
    stage.supervised(lanes).await?;
    let healing = Instant::now();
    stage.supervised(stage.healed()).await?;
    let healed_in = healing.elapsed();
    board.end();
    clients.join_all().await;
    stage.supervised(stage.read_all()).await?;
    let dumps = stage.supervised(stage.dumps()).await?;
    let Stage { cluster, struck, .. } = stage;
    let cluster = cluster.into_inner();
    Ok(Remains {
        events: board.recorder.events(),
        faults: struck.into_inner(),
        ledger: board.ledger(),
        dumps,
        findings: board.recorder.findings(),
        ended_by_themselves: cluster.ended_by_themselves.clone(),
        read_anew: cluster.logged("it is read anew"),
        healed_in,
        folder: Folder(Some(cluster)),
    })
}

struct Stage {
    // All on one thread; it is never borrowed over an await.
    cluster: RefCell<Cluster>,
    board: Arc<Board>,
    struck: RefCell<Vec<Struck>>,
    until: Option<Instant>,
}

impl Stage {
    /// Does something while what ends by itself is started again.
    async fn supervised<T>(&self, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        let supervise = async {
            loop {
                self.cluster.borrow_mut().supervise()?;
                sleep(SUPERVISE_INTERVAL).await;
            }
        };
        tokio::select! {
            done = work => done,
            failed = supervise => failed,
        }
    }

    async fn lane(&self, blows: Vec<Blow>) -> anyhow::Result<()> {
        for blow in blows {
            if self.until.is_some_and(|until| Instant::now() > until) {
                return Ok(());
            }
            let asked = self.cluster.borrow().leader();
            let leader = asked.await;
            let mut hit: Vec<Role> = Vec::new();
            for fault in &blow.faults {
                let role = whom(fault.target, leader, &hit);
                hit.push(role);
            }
            let faults = blow.faults.iter().zip(hit);
            let all = faults.map(|(fault, role)| self.strike(*fault, role, Some(role) == leader.map(Role::Member)));
            futures(all).await?;
            sleep(blow.pause).await;
        }
        Ok(())
    }

    async fn strike(&self, fault: Fault, role: Role, was_leader: bool) -> anyhow::Result<()> {
        let begun = self.board.recorder.now();
        let led = if was_leader { " (leader)" } else { "" };
        let (seconds, held) = (begun as f64 / 1e6, fault.held.as_secs_f64());
        println!("{seconds:8.1} s  {role}{led}: {:?} for {held:.1} s", fault.harm);
        let server = match role {
            Role::Server(number) => Some(number),
            Role::Member(_) => None,
        };
        match fault.harm {
            Harm::Kill => {
                server.into_iter().for_each(|server| self.board.falls(server));
                self.cluster.borrow_mut().kill9(role);
                self.falls_again(server).await;
                sleep(fault.held).await;
                self.cluster.borrow_mut().revive(role)?;
            }
            Harm::Stop => {
                server.into_iter().for_each(|server| self.board.falls(server));
                self.cluster.borrow_mut().stop(role)?;
                self.falls_again(server).await;
                sleep(fault.held).await;
                // What was asked of it while it was stopped says nothing of it now.
                server.into_iter().for_each(|server| self.board.falls(server));
                self.cluster.borrow_mut().resume(role)?;
            }
            Harm::Cut(shape) => {
                let id: CutId = self.cluster.borrow_mut().cut(cuts(role, shape))?;
                sleep(fault.held).await;
                self.cluster.borrow_mut().mend(id)?;
            }
        }
        let ended = self.board.recorder.now();
        self.struck.borrow_mut().push(Struck { fault, role, was_leader, begun, ended });
        Ok(())
    }

    /// Takes back what a server seems to stand for by an answer that was on its way when it fell.
    async fn falls_again(&self, server: Option<usize>) {
        let Some(server) = server else { return };
        sleep(LAST_ANSWERS).await;
        self.board.falls(server);
    }

    /// Waits until a write through each server is acknowledged.
    async fn healed(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        let mut random = fastrand::Rng::with_seed(0);
        for server in 0..COUNT {
            let name = format!("healed-{server}");
            let key = Arc::new(Key { kind: Kind::Node, name: name.clone() });
            let mut caller = Caller::new(&self.board, &name, Some(server), random.fork());
            while caller.operate(server, &key, Call::Write(1), Mode::Write, "").await.is_none() {
                anyhow::ensure!(
                    begun.elapsed() < HEAL_TIME_MAX,
                    "server {server} takes no writes after the last fault"
                );
                sleep(RETRY_PAUSE).await;
            }
        }
        Ok(())
    }

    /// Reads every key that was ever written, consistently, through every server.
    async fn read_all(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        let mut random = fastrand::Rng::with_seed(0);
        for server in 0..COUNT {
            let mut caller = Caller::new(&self.board, &format!("last-{server}"), Some(server), random.fork());
            for key in self.board.keys() {
                let mode = Mode::Consistent;
                while caller.operate(server, &key, Call::Read, mode, query_of(mode)).await.is_none() {
                    let text = format!("server {server} does not answer a read of {key:?} in the end");
                    anyhow::ensure!(begun.elapsed() < HEAL_TIME_MAX * 3, text);
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
        Ok(())
    }

    /// Everything, as each server has it, once all are at the same index or have had the time to be.
    async fn dumps(&self) -> anyhow::Result<Vec<Vec<(u64, String)>>> {
        let begun = Instant::now();
        loop {
            let mut dumps = Vec::new();
            for address in &self.board.addresses {
                let mut dump = Vec::new();
                for target in DUMPS {
                    let asked = tokio::time::timeout(DUMP_TIME_MAX, http::get(address, target)).await;
                    let answer = asked.context("a server does not answer about everything")??;
                    dump.push((answer.index(), answer.text()));
                }
                dumps.push(dump);
            }
            if dumps.iter().all(|dump| *dump == dumps[0]) || begun.elapsed() > HEAL_TIME_MAX {
                return Ok(dumps);
            }
            sleep(RETRY_PAUSE).await;
        }
    }
}

/// Whom a fault hits, never one that another fault of the same blow hits.
fn whom(target: Target, leader: Option<usize>, hit: &[Role]) -> Role {
    let (first, second) = match target {
        Target::This(role) => (Some(role), role),
        Target::Leader(number) => (leader.map(Role::Member), Role::Member(number)),
    };
    let others = Role::all().filter(|role| matches!(role, Role::Member(_)) == matches!(second, Role::Member(_)));
    let mut candidates = first.into_iter().chain([second]).chain(others);
    candidates.find(|role| !hit.contains(role)).unwrap_or(second)
}

/// All at once, until the last one is done or the first one fails.
async fn futures<F: Future<Output = anyhow::Result<()>>>(all: impl Iterator<Item = F>) -> anyhow::Result<()> {
    let mut all: Vec<_> = all.collect();
    let second = all.pop();
    let first = all.pop();
    let or_nothing = |one: Option<F>| async { if let Some(one) = one { one.await } else { Ok(()) } };
    tokio::try_join!(or_nothing(first), or_nothing(second)).map(|_| ())
}

/// The names of nodes in an answer about all of them.
pub(crate) fn node_names(dump: &str) -> anyhow::Result<std::collections::BTreeSet<String>> {
    let rows: Vec<Value> = serde_json::from_str(dump).context("the list of nodes")?;
    Ok(rows.iter().filter_map(|row| row["Node"].as_str()).map(str::to_owned).collect())
}
