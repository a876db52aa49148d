//! Starling's own commits, as the server makes them: the store, without a server around it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use anyhow::Context;
use starling_store::{EtcdOptions, EtcdStore, Key, Store, Transaction};

use super::Load;

/// Where in etcd; the key of an entry follows it and `k/`.
pub(crate) const PREFIX: &str = "/starling-bench/";

/// Bytes of a key as etcd has it.
pub(crate) const KEY_BYTES: usize = PREFIX.len() + "k/".len() + 16;

/// Writes through the store, each a transaction of one put; gives the time of each.
pub(crate) async fn run(members: &[String], load: Load) -> anyhow::Result<Timed> {
    let prefix = PREFIX.parse().context("the prefix of the benchmark")?;
    let store = match EtcdStore::open(EtcdOptions { prefix, ..EtcdOptions::new(members.to_vec()) }).await {
        Ok(store) => Arc::new(store),
        Err(error) => return Err(error).context("the store of the benchmark"),
    };
    let begun = Instant::now();
    let next = Arc::new(AtomicU32::new(0));
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..load.callers {
        let (store, next) = (Arc::clone(&store), Arc::clone(&next));
        callers.spawn(async move {
            let mut times = Vec::new();
            while next.fetch_add(1, Ordering::Relaxed) < load.writes {
                // As etcd's benchmark does it: a random one of as many keys as there are writes.
                let key = Key::new(format!("{:016x}", fastrand::u32(..load.writes)))?;
                let transaction = Transaction::new().put(key, vec![0x5a; load.value_bytes as usize]);
                let called = Instant::now();
                store.commit(transaction).await?;
                times.push(called.elapsed());
            }
            anyhow::Ok(times)
        });
    }
    let mut times = Vec::new();
    while let Some(caller) = callers.join_next().await {
        times.extend(caller.context("a caller ended")??);
    }
    Ok(Timed { seconds: begun.elapsed().as_secs_f64(), times })
}

/// Writes with their times.
pub(crate) struct Timed {
    pub(crate) seconds: f64,
    pub(crate) times: Vec<std::time::Duration>,
}
