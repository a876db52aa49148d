//! The contract of [`Store`](starling_store::Store), held against both implementations, and what is particular to etcd.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]

mod cases;
mod etcd_alone;
mod etcd_process;
mod filled;
mod leases;
mod model;

use starling_store::{EmbeddedOptions, EmbeddedStore, EtcdStore, Revision, Store};

use etcd_process::Etcd;
use filled::{DirectoryBeyond, EtcdBeyond};

/// Where a store is kept, so that it can be opened again.
trait Bed {
    type Store: Store;

    async fn open(&self) -> Self::Store;
}

/// A store's directory.
struct Directory(tempfile::TempDir);

impl Directory {
    fn start() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
}

impl Bed for Directory {
    type Store = EmbeddedStore;

    async fn open(&self) -> EmbeddedStore {
        EmbeddedStore::open(self.0.path(), EmbeddedOptions::default()).unwrap()
    }
}

impl Bed for Etcd {
    type Store = EtcdStore;

    async fn open(&self) -> EtcdStore {
        EtcdStore::open(self.options()).await.unwrap()
    }
}

/// The revision before the first transaction: etcd begins elsewhere than at 0.
async fn base(store: &impl Store) -> u64 {
    let Revision(base) = store.load().await.unwrap().revision;
    base
}

macro_rules! on_both {
    ($($case:ident),* $(,)?) => {
        mod embedded {
            use super::*;
            $(#[tokio::test]
            async fn $case() {
                cases::$case(&Directory::start()).await;
            })*
        }

        mod etcd {
            use super::*;
            $(#[tokio::test]
            async fn $case() {
                cases::$case(&Etcd::start()).await;
            })*
        }

        /// In the place of a store with higher revisions.
        mod embedded_beyond {
            use super::*;
            $(#[tokio::test]
            async fn $case() {
                cases::$case(&DirectoryBeyond::start()).await;
            })*
        }

        mod etcd_beyond {
            use super::*;
            $(#[tokio::test]
            async fn $case() {
                cases::$case(&EtcdBeyond::start().await).await;
            })*
        }
    };
}

on_both!(
    entries_remember_when_they_were_created_and_modified,
    a_condition_that_fails_leaves_no_trace_and_says_what_it_found,
    of_concurrent_creators_exactly_one_wins,
    deleting_what_is_absent_is_not_a_change,
    transactions_over_a_limit_are_refused,
    a_watch_yields_everything_after_its_start_and_waits_for_more,
);
