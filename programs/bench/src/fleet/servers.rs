//! The servers that a fleet is attached to: one with its own store, or several on three members of etcd.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::server::{Counters, Server, Setup, Shared, Streams};
use crate::api::Api;
use crate::etcd::Members;
use crate::mesh::Ports;
use crate::process;

/// Time within which every node is to have a stream to two servers.
const SETTLED_DEADLINE: Duration = Duration::from_secs(60);

/// Pause between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(200);

/// Servers that run, one at least. They are killed when dropped, and the members of etcd after them.
pub(crate) struct Servers {
    all: Vec<Server>,
    etcd: Option<Members>,
}

impl Servers {
    /// Starts so many below `directory`, and waits until all are ready.
    ///
    /// # Errors
    /// When no port is free, etcd is needed and not there, or something ends or does not become ready in time; the text has
    /// the end of its log.
    pub(crate) async fn start(directory: &Path, count: u32) -> anyhow::Result<Self> {
        let mut ports = Ports::new();
        let etcd = if count > 1 { Some(Members::start(directory, &mut ports).await?) } else { None };
        let shared = etcd.as_ref().map(|members| Shared::on(members, "", directory)).transpose()?;
        let mut all = Vec::new();
        for number in 0..count {
            let name = if count == 1 { "server".to_owned() } else { format!("server-{number}") };
            all.push(Server::start(Setup::new(name, directory.to_owned(), &mut ports, shared.clone())?).await?);
        }
        Ok(Self { all, etcd })
    }

    /// The first of them; the only one where there is one.
    pub(crate) fn first(&self) -> &Server {
        &self.all[0]
    }

    /// As [`Servers::first`].
    pub(crate) fn first_mut(&mut self) -> &mut Server {
        &mut self.all[0]
    }

    /// One of them, by its place.
    pub(crate) fn at(&mut self, place: usize) -> &mut Server {
        let count = self.all.len();
        &mut self.all[place % count]
    }

    /// Where agents find each.
    pub(crate) fn agents(&self) -> Vec<String> {
        self.all.iter().map(|server| server.agents().to_string()).collect()
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.all.iter().map(Server::pid).collect()
    }

    /// How one ended that has ended by itself.
    pub(crate) fn ended(&mut self) -> Option<String> {
        self.all.iter_mut().find_map(Server::ended)
    }

    /// What all have counted.
    ///
    /// # Errors
    /// As for [`Server::counters`].
    pub(crate) async fn counters(&self) -> anyhow::Result<Counters> {
        let mut sum = Counters::default();
        for server in &self.all {
            sum = sum + server.counters().await?;
        }
        Ok(sum)
    }

    /// CPU time that all have used.
    ///
    /// # Errors
    /// When one is gone.
    pub(crate) fn cpu_time(&self) -> anyhow::Result<Duration> {
        self.all.iter().map(Server::cpu_time).sum()
    }

    /// Resident memory of all.
    ///
    /// # Errors
    /// When one is gone.
    pub(crate) fn resident(&self) -> anyhow::Result<u64> {
        self.pids().into_iter().map(process::resident).sum()
    }

    /// The etcd that several share.
    ///
    /// # Errors
    /// When there is one server, with a store of its own.
    pub(crate) fn etcd(&mut self) -> anyhow::Result<&mut Members> {
        self.etcd.as_mut().context("one server has no etcd")
    }

    /// A client of each.
    pub(crate) fn apis(&self) -> Vec<Api> {
        self.all.iter().map(Server::api).collect()
    }

    /// How often a stream in reserve has become a node's primary at any of them, other than to balance them.
    ///
    /// # Errors
    /// When one does not tell.
    pub(crate) async fn unasked_promotions(&self) -> anyhow::Result<f64> {
        let mut sum = 0.0;
        for server in &self.all {
            sum += server.promotions().await? - server.moves().await?;
        }
        Ok(sum)
    }

    /// The place of the one that most nodes are attached to.
    ///
    /// # Errors
    /// When one does not tell.
    pub(crate) async fn busiest(&self) -> anyhow::Result<usize> {
        let streams = self.streams().await?;
        let busiest = streams.iter().enumerate().max_by(|(_, one), (_, other)| one.primary.total_cmp(&other.primary));
        Ok(busiest.map_or(0, |(place, _)| place))
    }

    /// Waits until each of so many nodes is attached to one of several servers, and has a stream in reserve to another.
    ///
    /// # Errors
    /// When that is not so in time; the text tells how it stands.
    pub(crate) async fn settled(&self, nodes: u32) -> anyhow::Result<()> {
        let deadline = Instant::now() + SETTLED_DEADLINE;
        loop {
            let streams = self.streams().await?;
            let (primary, standby) =
                streams.iter().fold((0.0, 0.0), |sum, it| (sum.0 + it.primary, sum.1 + it.standby));
            if primary >= f64::from(nodes) && standby >= f64::from(nodes) {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "of {nodes} nodes {primary} are attached and {standby} have a stream in reserve after {SETTLED_DEADLINE:?}"
            );
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }

    async fn streams(&self) -> anyhow::Result<Vec<Streams>> {
        let mut all = Vec::new();
        for server in &self.all {
            all.push(server.streams().await?);
        }
        Ok(all)
    }
}
