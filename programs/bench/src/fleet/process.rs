//! A process of the fleet: does what the coordinator orders over its standard input, and answers on its standard output.

use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use futures::StreamExt;
use futures::stream;
use starling_model::Revision;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe::Receiver;
use tokio::time::Instant;

use super::faults::Aimed;
use super::ledger::{Ledger, Scribe};
use super::node::{NodeSpec, SimulatedNode, name};
use super::orders::{Among, Collect, Collected, Muster, Order, Word};
use super::slow::{self, Relay};
use crate::shape;

/// Nodes of a fleet that take a step of coming up at the same time: enough to keep a server busy, and few enough that none
/// waits for long, and that those who are up already are heard.
const STEPS_AT_ONCE: usize = 64;

/// The same for one process of it, at least.
const STEPS_AT_ONCE_MIN: usize = 4;

/// Nodes of a process that write to their disks at the same time. With as many threads as nodes the writers would take
/// the cores from those who listen to the server.
const DISK_WRITERS_MAX: usize = 4;

/// Steps after which progress is told.
const PROGRESS_STEPS: u32 = 50;

/// Pause between two looks at whether a change has come in force everywhere. It delays nothing that is measured.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// Nodes that are named as examples.
const EXAMPLES_MAX: usize = 5;

/// Serves until the coordinator closes the input, on a runtime of its own.
///
/// # Errors
/// When an order cannot be carried out; the coordinator has been told then.
pub(crate) async fn run_apart() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(DISK_WRITERS_MAX)
        .build()
        .context("cannot make a runtime")?;
    let ended = tokio::task::spawn_blocking(move || {
        let ended = runtime.block_on(run());
        runtime.shutdown_background();
        ended
    });
    ended.await?
}

async fn run() -> anyhow::Result<()> {
    let input = std::io::stdin().as_fd().try_clone_to_owned().and_then(Receiver::from_owned_fd);
    let mut lines = BufReader::new(input.context("the standard input is not the coordinator's")?).lines();
    let mut post = Post::default();
    while let Some(line) = lines.next_line().await.context("cannot read an order")? {
        let order = serde_json::from_str(&line).context("an order is not understood")?;
        match post.carry_out(order).await {
            Ok(word) => say(&word)?,
            Err(error) => {
                say(&Word::Failed(format!("{error:#}")))?;
                return Err(error);
            }
        }
    }
    Ok(())
}

fn say(word: &Word) -> anyhow::Result<()> {
    let mut line = serde_json::to_string(word).context("cannot write an answer")?;
    line.push('\n');
    let mut output = std::io::stdout().lock();
    output.write_all(line.as_bytes()).and_then(|()| output.flush()).context("the coordinator is gone")
}

/// The nodes of this process.
#[derive(Default)]
struct Post {
    ledger: Arc<Ledger>,
    specs: Vec<NodeSpec>,
    nodes: Vec<SimulatedNode>,
    /// How many of them come up at the same time.
    at_once: usize,
    /// How many nodes are to be there.
    part: usize,
    /// How many have come up, the first of them.
    up: usize,
    /// Of the nodes that can be made to read slowly, if there are any.
    relay: Option<Relay>,
    /// Where agents find the server.
    server: Option<SocketAddr>,
    aimed: Aimed,
}

impl Post {
    async fn carry_out(&mut self, order: Order) -> anyhow::Result<Word> {
        match order {
            Order::Muster(muster) => self.muster(&muster).await?,
            Order::Part(one_in) => {
                self.ledger.rest();
                self.part = (self.specs.len() + self.nodes.len()).div_ceil(usize::try_from(one_in)?.max(1));
                return Ok(Word::Count(u32::try_from(self.part)?));
            }
            Order::Join => {
                let specs = self.specs.drain(..self.part.saturating_sub(self.nodes.len())).collect();
                self.nodes.extend(each(specs, self.at_once, NodeSpec::start).await?);
            }
            Order::Register => {
                let register = |node: SimulatedNode| async move { node.register().await.map(|()| node) };
                let coming = self.nodes.split_off(self.up);
                self.nodes.extend(each(coming, self.at_once, register).await?);
            }
            Order::Certify => {
                let certify = |mut node: SimulatedNode| async move { node.certify().await.map(|()| node) };
                let coming = self.nodes.split_off(self.up);
                self.nodes.extend(each(coming, self.at_once, certify).await?);
                self.up = self.nodes.len();
            }
            Order::Watch => self.ledger.watch(),
            Order::Collect(collect) => return Ok(Word::Collected(self.collect(collect).await?)),
            Order::Slow(rate) => self.relay.iter().for_each(|relay| relay.limit(rate)),
            Order::CatchUp(catch_up) => return Ok(Word::Collected(slow::catch_up(&self.nodes, &catch_up).await?)),
            Order::LookAtSlow(revision) => {
                return Ok(Word::Slow(slow::look(&self.nodes, self.relay.as_ref(), Revision(revision))));
            }
            Order::Aim(count) => {
                let server = self.server.context("nobody knows where the server is")?;
                self.aimed = Aimed::at_random(server, count)?;
                return Ok(Word::Count(self.aimed.count()));
            }
            Order::Reset(during) => {
                let aimed = std::mem::take(&mut self.aimed);
                let count = aimed.count();
                aimed.reset(during).await?;
                return Ok(Word::Count(count));
            }
        }
        Ok(Word::Done)
    }

    async fn muster(&mut self, muster: &Muster) -> anyhow::Result<()> {
        let Muster { nodes, workloads, seed, own, servers, token, directory, slow } = muster;
        let fleet = shape::fleet(*nodes, *workloads, *seed)?;
        let own: Vec<_> = (0_u32..).zip(fleet).filter(|(number, _)| own.contains(number)).collect();
        if own.is_empty() {
            bail!("there are no nodes to be");
        }
        let server = servers.first().context("there is no server to attach to")?;
        let address = server.parse().with_context(|| format!("the server's address is {server:?}"))?;
        self.server = Some(address);
        if own.iter().any(|(number, _)| slow.contains(number)) {
            self.relay = Some(Relay::open(address).await?);
        }
        let relayed = self.relay.as_ref().map(|relay| relay.address().to_string());
        for (node, (number, workloads)) in own.into_iter().enumerate() {
            let relayed = relayed.as_ref().filter(|_| slow.contains(&number));
            let mut servers = relayed.map_or_else(|| servers.clone(), |relay| vec![relay.clone()]);
            let first = usize::try_from(number)? % servers.len();
            servers.rotate_left(first);
            self.specs.push(NodeSpec {
                number,
                workloads,
                servers,
                token: token.clone(),
                directory: directory.join(name(number)),
                in_force: Arc::new(Scribe { ledger: Arc::clone(&self.ledger), node }),
                slow: relayed.is_some(),
            });
        }
        self.part = self.specs.len();
        let share = STEPS_AT_ONCE * self.part / usize::try_from(*nodes)?.max(1);
        self.at_once = share.max(STEPS_AT_ONCE_MIN);
        Ok(())
    }

    async fn collect(&self, collect: Collect) -> anyhow::Result<Collected> {
        let Collect { revision, expected, within, among } = collect;
        let deadline = Instant::now() + within;
        let counts = |node: &SimulatedNode| match among {
            Among::All => true,
            Among::Prompt => !node.is_slow(),
        };
        let sizes: Vec<u32> = self.nodes.iter().map(|node| if counts(node) { node.size() } else { 0 }).collect();
        let reached = loop {
            let reached = self.ledger.reached(Revision(revision), &sizes);
            let is_everywhere = reached.iter().zip(&sizes).all(|(reached, size)| count(reached) == *size);
            if is_everywhere || Instant::now() > deadline {
                break reached;
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        };
        let mut collected = Collected::default();
        for ((node, reached), size) in self.nodes.iter().zip(reached).zip(sizes).filter(|((node, _), _)| counts(node)) {
            collected.workloads += u64::from(size);
            let knows = node.knows(expected)?;
            if count(&reached) < size || !knows {
                collected.amiss += 1;
                if collected.examples.len() < EXAMPLES_MAX {
                    let knows = if knows { "" } else { ", and does not know the change" };
                    let (name, reached) = (node.name(), count(&reached));
                    collected.examples.push(format!("{name} put something in force at {reached} of {size}{knows}"));
                }
            }
            // What came in force at a node that does not know the change was something else.
            if knows {
                collected.reached.extend(reached);
            }
        }
        Ok(collected)
    }
}

fn count(reached: &[(super::Moment, u32)]) -> u32 {
    reached.iter().map(|(_, workloads)| workloads).sum()
}

/// Takes a step with each, several at once and on every core, and tells how far it is. The order stays.
async fn each<N: Send + 'static, F, R>(nodes: Vec<N>, at_once: usize, step: impl Fn(N) -> F) -> anyhow::Result<Vec<R>>
where
    F: Future<Output = anyhow::Result<R>> + Send + 'static,
    R: Send + 'static,
{
    let mut done = Vec::with_capacity(nodes.len());
    let steps = nodes.into_iter().map(|node| {
        let step = step(node);
        async move { tokio::spawn(step).await.map_err(anyhow::Error::from).flatten() }
    });
    let mut steps = stream::iter(steps).buffered(at_once);
    let mut untold = 0;
    while let Some(outcome) = steps.next().await {
        done.push(outcome?);
        untold += 1;
        if untold == PROGRESS_STEPS {
            say(&Word::Progress(untold))?;
            untold = 0;
        }
    }
    if untold > 0 {
        say(&Word::Progress(untold))?;
    }
    Ok(done)
}
