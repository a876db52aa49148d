//! The processes of a fleet, as the coordinator sees them: told the same at the same time, heard until all have answered.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use futures::future::try_join_all;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::mpsc;

use super::orders::{Collect, Collected, Expected, Muster, Order, Word};
use super::server::Server;
use crate::mesh::{Child, Pipes, command, own_program};
use crate::progress::Phase;

/// Nodes of one process: each has a connection and a journal open, and 20,000 descriptors are all that is had everywhere.
const NODES_PER_PROCESS_MAX: u32 = 9_000;

/// Beyond its own deadline a process has this long to tell what came of a change.
const TELLING: Duration = Duration::from_secs(30);

/// How large a fleet is, and what decides who is where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) nodes: u32,
    pub(crate) workloads: u32,
    pub(crate) seed: u64,
}

/// The processes; they are killed when dropped.
pub(crate) struct Crew {
    posts: Vec<Post>,
}

struct Post {
    child: Child,
    orders: ChildStdin,
    words: Lines<BufReader<ChildStdout>>,
}

/// What a crew is told on its way up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Join and attach.
    Join,
    /// Register every workload.
    Register,
    /// Get every certificate.
    Certify,
}

impl Crew {
    /// Starts the processes of a fleet, whose nodes are not yet started. `disks` is where those write what real ones write
    /// to theirs.
    ///
    /// # Errors
    /// When one cannot be started or its part of the fleet is impossible.
    pub(crate) async fn muster(size: Size, server: &Server, logs: &Path, disks: &Path) -> anyhow::Result<Self> {
        let Size { nodes, workloads, seed } = size;
        let token = server.join_token().await?;
        let mut crew = Self { posts: Vec::new() };
        let processes = nodes.div_ceil(NODES_PER_PROCESS_MAX).max(1);
        let first = |process: u32| u32::try_from(u64::from(nodes) * u64::from(process) / u64::from(processes));
        for process in 0..processes {
            let mut command = command(&own_program()?);
            command.args(["bench", "fleet"]);
            let (child, pipes) = Child::spawn_spoken_to(&format!("fleet-{process}"), &mut command, logs)?;
            let mut post = Post::new(child, pipes)?;
            let muster = Muster {
                nodes,
                workloads,
                seed,
                own: first(process)?..first(process + 1)?,
                server: server.agents().to_string(),
                token: token.clone(),
                directory: disks.to_owned(),
            };
            post.order(&Order::Muster(muster)).await?;
            post.done(None).await?;
            crew.posts.push(post);
        }
        Ok(crew)
    }

    /// The processes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.posts.iter().map(|post| post.child.pid()).collect()
    }

    /// Has every node take a step on its way up; `phase` is advanced by one for each.
    ///
    /// # Errors
    /// When a node cannot; the text names it.
    pub(crate) async fn step(&mut self, step: Step, phase: &mut Phase) -> anyhow::Result<()> {
        let order = match step {
            Step::Join => Order::Join,
            Step::Register => Order::Register,
            Step::Certify => Order::Certify,
        };
        let (told, mut steps) = mpsc::unbounded_channel();
        let taken = try_join_all(self.posts.iter_mut().map(|post| {
            let (order, told) = (&order, told.clone());
            async move {
                post.order(order).await?;
                post.done(Some(told)).await
            }
        }));
        drop(told);
        let shown = async {
            while let Some(more) = steps.recv().await {
                (0..more).for_each(|_| phase.step());
            }
        };
        tokio::join!(taken, shown).0?;
        Ok(())
    }

    /// From now on every node notes what comes in force.
    ///
    /// # Errors
    /// When a process is gone.
    pub(crate) async fn watch(&mut self) -> anyhow::Result<()> {
        for post in &mut self.posts {
            post.order(&Order::Watch).await?;
        }
        try_join_all(self.posts.iter_mut().map(|post| post.done(None))).await?;
        Ok(())
    }

    /// Where a change came in force, once that is everywhere or the time is over.
    ///
    /// # Errors
    /// When a process is gone or does not tell.
    pub(crate) async fn collect(
        &mut self,
        revision: u64,
        expected: Expected,
        within: Duration,
    ) -> anyhow::Result<Collected> {
        let order = Order::Collect(Collect { revision, expected, within });
        for post in &mut self.posts {
            post.order(&order).await?;
        }
        let all = try_join_all(self.posts.iter_mut().map(Post::collected));
        let all =
            tokio::time::timeout(within + TELLING, all).await.context("the fleet does not tell what it saw")??;
        let mut collected = Collected::default();
        all.into_iter().for_each(|part| collected.merge(part));
        Ok(collected)
    }
}

impl Post {
    fn new(child: Child, pipes: Pipes) -> anyhow::Result<Self> {
        let orders = ChildStdin::from_std(pipes.input).context("cannot speak with a process of the fleet")?;
        let words = ChildStdout::from_std(pipes.output).context("cannot hear a process of the fleet")?;
        Ok(Self { child, orders, words: BufReader::new(words).lines() })
    }

    async fn order(&mut self, order: &Order) -> anyhow::Result<()> {
        let mut line = serde_json::to_string(order).context("cannot write an order")?;
        line.push('\n');
        let sent = self.orders.write_all(line.as_bytes()).await;
        sent.with_context(|| format!("{} is gone; {}", self.child.name(), self.child.log_tail()))
    }

    async fn word(&mut self) -> anyhow::Result<Word> {
        let name = self.child.name();
        let line = self.words.next_line().await.with_context(|| format!("cannot hear {name}"))?;
        let line = line.with_context(|| format!("{name} is gone; {}", self.child.log_tail()))?;
        match serde_json::from_str(&line).with_context(|| format!("{name} said {line:?}"))? {
            Word::Failed(why) => bail!("{name}: {why}"),
            word @ (Word::Progress(_) | Word::Done | Word::Collected(_)) => Ok(word),
        }
    }

    /// Hears until the order is carried out; `steps` is told of each that is taken.
    async fn done(&mut self, steps: Option<mpsc::UnboundedSender<u32>>) -> anyhow::Result<()> {
        loop {
            match self.word().await? {
                Word::Progress(more) => {
                    // Nobody looks if the run is given up.
                    let _ = steps.as_ref().map(|steps| steps.send(more));
                }
                Word::Done => return Ok(()),
                other @ (Word::Collected(_) | Word::Failed(_)) => bail!("{} said {other:?}", self.child.name()),
            }
        }
    }

    async fn collected(&mut self) -> anyhow::Result<Collected> {
        match self.word().await? {
            Word::Collected(collected) => Ok(collected),
            other @ (Word::Progress(_) | Word::Done | Word::Failed(_)) => {
                bail!("{} said {other:?}", self.child.name())
            }
        }
    }
}
