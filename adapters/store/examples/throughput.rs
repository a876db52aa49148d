//! Measures the embedded store against its bars and prints them side by side.
//!
//! `cargo run --release -p starling-store --example throughput [DIRECTORY]`
//!
//! The directory decides which disk is measured; without one, the system's temporary directory
//! does. Figures hang on that disk's sync, so the bare cost of one is printed first.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use starling_store::{EmbeddedOptions, EmbeddedStore, Key, MAX_TRANSACTION_OPERATIONS, Store, Transaction};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Callers that commit at the same time: the API's requests in flight under load.
const CALLERS: usize = 256;

/// How long each rate is measured.
const MEASURED: Duration = Duration::from_secs(5);

/// Puts per transaction when services are registered in batches.
const BATCH: usize = 100;

/// Callers that register batches at the same time.
const BATCH_CALLERS: usize = 32;

/// Entries to load: 178,000 workloads, each with a service and a check.
const ENTRIES: usize = 356_000;

/// Bytes of a typical entry's value.
const VALUE_BYTES: usize = 350;

/// Durable transactions a second.
const BAR_TRANSACTIONS: f64 = 4_000.0;
/// Batched registrations a second.
const BAR_REGISTRATIONS: f64 = 20_000.0;
/// Seconds to open and load [`ENTRIES`].
const BAR_LOAD: f64 = 3.0;

#[tokio::main]
async fn main() -> Outcome<()> {
    let (place, temporary) = match std::env::args_os().nth(1) {
        Some(place) => (PathBuf::from(place), None),
        None => {
            let temporary = tempfile::tempdir()?;
            (temporary.path().to_path_buf(), Some(temporary))
        }
    };
    let place = tempfile::tempdir_in(&place)?;
    println!("disk                     {:>10.0} bare syncs/s", bare_syncs(place.path())?);
    transactions(&place.path().join("transactions")).await?;
    registrations(&place.path().join("registrations")).await?;
    restart(&place.path().join("restart")).await?;
    drop(temporary);
    Ok(())
}

fn line(what: &str, found: f64, unit: &str, bar: f64, met: bool) {
    let verdict = if met { "ok" } else { "MISSED" };
    println!("{what:<24} {found:>10.2} {unit:<8} bar {bar:>8.0}  {verdict}");
}

fn bare_syncs(place: &Path) -> Outcome<f64> {
    let file = File::create(place.join("syncs"))?;
    let begin = Instant::now();
    let mut count = 0_u32;
    while begin.elapsed() < Duration::from_secs(1) {
        file.write_all_at(&count.to_le_bytes().repeat(1024), u64::from(count % 64) * 4096)?;
        file.sync_data()?;
        count += 1;
    }
    Ok(f64::from(count) / begin.elapsed().as_secs_f64())
}

async fn transactions(directory: &Path) -> Outcome<()> {
    let (rate, latencies) = drive(directory, CALLERS, 1).await?;
    line("transactions", rate, "/s", BAR_TRANSACTIONS, rate >= BAR_TRANSACTIONS);
    let at = |share: f64| {
        let index = (latencies.len() as f64 * share) as usize;
        latencies[index.min(latencies.len() - 1)].as_secs_f64() * 1000.0
    };
    println!("  {CALLERS} callers, latency ms: p50 {:.2}, p99 {:.2}, max {:.2}", at(0.5), at(0.99), at(1.0));
    Ok(())
}

async fn registrations(directory: &Path) -> Outcome<()> {
    let (rate, _) = drive(directory, BATCH_CALLERS, BATCH).await?;
    let rate = rate * BATCH as f64;
    line("batched registrations", rate, "/s", BAR_REGISTRATIONS, rate >= BAR_REGISTRATIONS);
    Ok(())
}

/// Callers commit transactions of `puts` fresh keys; answers transactions a second and, sorted,
/// the time each took.
async fn drive(directory: &Path, callers: usize, puts: usize) -> Outcome<(f64, Vec<Duration>)> {
    let store = Arc::new(EmbeddedStore::open(directory, EmbeddedOptions::default())?);
    let begin = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let mut latencies = Vec::new();
                for step in 0.. {
                    if begin.elapsed() >= MEASURED {
                        break;
                    }
                    let started = Instant::now();
                    store.commit(batch(caller * 1_000_003 + step, puts)?).await?;
                    latencies.push(started.elapsed());
                }
                Outcome::Ok(latencies)
            })
        })
        .collect();
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await??);
    }
    let rate = latencies.len() as f64 / begin.elapsed().as_secs_f64();
    store.close().await;
    latencies.sort_unstable();
    Ok((rate, latencies))
}

/// Keys spread over the table as service names are, not in order.
fn batch(number: usize, puts: usize) -> Outcome<Transaction> {
    let mut transaction = Transaction::new();
    for put in 0..puts {
        let scattered = (number * puts + put).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let key = Key::new(format!("service/{scattered:016x}"))?;
        transaction = transaction.put(key, vec![put as u8; VALUE_BYTES]);
    }
    Ok(transaction)
}

async fn restart(directory: &Path) -> Outcome<()> {
    let store = EmbeddedStore::open(directory, EmbeddedOptions::default())?;
    let per_batch = MAX_TRANSACTION_OPERATIONS;
    let batches = ENTRIES.div_ceil(per_batch);
    let filling = &store;
    for first in (0..batches).step_by(64) {
        let group = (first..batches.min(first + 64))
            .map(|number| async move { Outcome::Ok(filling.commit(batch(number, per_batch)?).await?) });
        futures::future::try_join_all(group.collect::<Vec<_>>()).await?;
    }
    // A copy made while the store is open is what a crash would have left.
    let crashed = directory.with_extension("crashed");
    std::fs::create_dir(&crashed)?;
    std::fs::copy(directory.join("store.redb"), crashed.join("store.redb"))?;
    store.close().await;
    for (what, directory) in [("open+load, clean", directory), ("open+load, after crash", &crashed)] {
        let begin = Instant::now();
        let store = EmbeddedStore::open(directory, EmbeddedOptions::default())?;
        let opened = begin.elapsed().as_secs_f64();
        let snapshot = store.load().await?;
        let all = begin.elapsed().as_secs_f64();
        line(what, all, "s", BAR_LOAD, all <= BAR_LOAD);
        println!("  {} entries, of which opening took {opened:.2} s", snapshot.entries.len());
        store.close().await;
    }
    Ok(())
}
