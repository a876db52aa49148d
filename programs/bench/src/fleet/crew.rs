//! The processes of a fleet, as the coordinator sees them: told the same at the same time, heard until all have answered.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use futures::future::try_join_all;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::mpsc;

use super::orders::{Among, CatchUp, Collect, Collected, Expected, Muster, Order, SlowNodes, Word};
use super::server::Server;
use super::servers::Servers;
use crate::mesh::{Child, Pipes, command, own_program};
use crate::progress::Phase;

/// Descriptors that the nodes of one process use: 20,000 are all that is had everywhere, and some more are open for a moment
/// while nodes come up.
const DESCRIPTORS_PER_PROCESS_MAX: u32 = 18_000;

/// What a node has open: a connection, its journal, and up to where that was acknowledged.
const DESCRIPTORS_PER_NODE: u32 = 3;

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
    /// to theirs; the nodes of `slow` can be made to read slowly.
    ///
    /// # Errors
    /// When one cannot be started or its part of the fleet is impossible.
    pub(crate) async fn muster(
        size: Size,
        slow: &BTreeSet<u32>,
        servers: &Servers,
        logs: &Path,
        disks: &Path,
    ) -> anyhow::Result<Self> {
        Self::muster_at(size, slow, servers.first(), &[servers.agents()], logs, disks).await
    }

    /// The same, where each process attaches its nodes at another of `places`, in turn: each is the addresses of those who
    /// serve agents there.
    ///
    /// # Errors
    /// As for [`Crew::muster`].
    pub(crate) async fn muster_at(
        size: Size,
        slow: &BTreeSet<u32>,
        server: &Server,
        places: &[Vec<String>],
        logs: &Path,
        disks: &Path,
    ) -> anyhow::Result<Self> {
        let Size { nodes, workloads, seed } = size;
        let token = server.join_token().await?;
        let mut crew = Self { posts: Vec::new() };
        // A node has a stream in reserve, and so two connections, where there is somebody to have it with.
        let has_reserve = places.iter().any(|place| place.len() > 1);
        let each_max = DESCRIPTORS_PER_PROCESS_MAX / (DESCRIPTORS_PER_NODE + u32::from(has_reserve));
        // As many for each place.
        let places_count = u32::try_from(places.len())?.max(1);
        let processes = nodes.div_ceil(each_max).max(1).next_multiple_of(places_count);
        let mut places = places.iter().cycle();
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
                servers: places.next().context("nowhere to attach")?.clone(),
                token: token.clone(),
                directory: disks.to_owned(),
                slow: slow.clone(),
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

    /// Has only one in so many nodes take the steps that follow, those that have not; how many nodes are there then.
    ///
    /// # Errors
    /// When a process is gone.
    pub(crate) async fn part(&mut self, one_in: u32) -> anyhow::Result<u32> {
        for post in &mut self.posts {
            post.order(&Order::Part(one_in)).await?;
        }
        Ok(try_join_all(self.posts.iter_mut().map(Post::count)).await?.into_iter().sum())
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
        among: Among,
        within: Duration,
    ) -> anyhow::Result<Collected> {
        self.collected(&Order::Collect(Collect { revision, expected, within, among }), within).await
    }

    async fn collected(&mut self, order: &Order, within: Duration) -> anyhow::Result<Collected> {
        for post in &mut self.posts {
            post.order(order).await?;
        }
        let all = try_join_all(self.posts.iter_mut().map(Post::collected));
        let all =
            tokio::time::timeout(within + TELLING, all).await.context("the fleet does not tell what it saw")??;
        let mut collected = Collected::default();
        all.into_iter().for_each(|part| collected.merge(part));
        Ok(collected)
    }

    /// Has the nodes that can be made to read slowly take so many bytes a second, or as many as there are.
    ///
    /// # Errors
    /// When a process is gone.
    pub(crate) async fn slow(&mut self, rate: Option<NonZeroU32>) -> anyhow::Result<()> {
        for post in &mut self.posts {
            post.order(&Order::Slow(rate)).await?;
        }
        try_join_all(self.posts.iter_mut().map(|post| post.done(None))).await?;
        Ok(())
    }

    /// Where those nodes are, once they know what they should, or the time is over.
    ///
    /// # Errors
    /// As for [`Crew::collect`].
    pub(crate) async fn catch_up(
        &mut self,
        revision: u64,
        expected: Vec<Expected>,
        within: Duration,
    ) -> anyhow::Result<Collected> {
        self.collected(&Order::CatchUp(CatchUp { revision, expected, within }), within).await
    }

    /// How those nodes are, seen from a revision.
    ///
    /// # Errors
    /// When a process is gone.
    pub(crate) async fn look_at_slow(&mut self, revision: u64) -> anyhow::Result<SlowNodes> {
        let mut all = SlowNodes::default();
        for post in &mut self.posts {
            post.order(&Order::LookAtSlow(revision)).await?;
            match post.word().await? {
                Word::Slow(SlowNodes { behind, ended }) => {
                    all.behind += behind;
                    all.ended += ended;
                }
                other @ (Word::Progress(_) | Word::Done | Word::Collected(_) | Word::Count(_) | Word::Failed(_)) => {
                    bail!("{} said {other:?}", post.child.name())
                }
            }
        }
        Ok(all)
    }

    /// Chooses connections to the server at random, so many in all; how many there are to be reset.
    ///
    /// # Errors
    /// When a process is gone, or does not see its connections.
    pub(crate) async fn aim(&mut self, count: u32) -> anyhow::Result<u32> {
        let posts = u32::try_from(self.posts.len())?;
        for (place, post) in (0_u32..).zip(&mut self.posts) {
            let share = count / posts + u32::from(place < count % posts);
            post.order(&Order::Aim(share)).await?;
        }
        Ok(try_join_all(self.posts.iter_mut().map(Post::count)).await?.into_iter().sum())
    }

    /// Resets the chosen ones, each at a random moment of the time from now on; returns when all are.
    ///
    /// # Errors
    /// When a process is gone, or may not.
    pub(crate) async fn reset(&mut self, during: Duration) -> anyhow::Result<u32> {
        for post in &mut self.posts {
            post.order(&Order::Reset(during)).await?;
        }
        Ok(try_join_all(self.posts.iter_mut().map(Post::count)).await?.into_iter().sum())
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
            word @ (Word::Progress(_) | Word::Done | Word::Collected(_) | Word::Slow(_) | Word::Count(_)) => Ok(word),
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
                other @ (Word::Collected(_) | Word::Slow(_) | Word::Count(_) | Word::Failed(_)) => {
                    bail!("{} said {other:?}", self.child.name())
                }
            }
        }
    }

    async fn count(&mut self) -> anyhow::Result<u32> {
        match self.word().await? {
            Word::Count(count) => Ok(count),
            other @ (Word::Progress(_) | Word::Done | Word::Collected(_) | Word::Slow(_) | Word::Failed(_)) => {
                bail!("{} said {other:?}", self.child.name())
            }
        }
    }

    async fn collected(&mut self) -> anyhow::Result<Collected> {
        match self.word().await? {
            Word::Collected(collected) => Ok(collected),
            other @ (Word::Progress(_) | Word::Done | Word::Slow(_) | Word::Count(_) | Word::Failed(_)) => {
                bail!("{} said {other:?}", self.child.name())
            }
        }
    }
}
