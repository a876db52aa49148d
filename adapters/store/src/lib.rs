//! The store: an ordered map of keys to bytes in which every accepted transaction has a number.
//!
//! [`Store`] is the whole contract: commit a conditional transaction, load everything, watch what
//! follows. Its semantics are the common ground of its two implementations: [`EmbeddedStore`] on a
//! local redb file, and [`EtcdStore`] on an etcd that servers share. Nothing here knows what the bytes mean.
//!
//! What is promised, by both:
//!
//! * a transaction is acknowledged only once it is durable, and watchers see it only then;
//! * transactions are serialised: conditions are judged against every earlier transaction;
//! * a watcher sees each transaction once, in order, or is told that it cannot.

mod embedded;
mod etcd;
mod fill;
mod lease;
mod store;
mod store_id;
mod transaction;

pub use embedded::{
    DirectoryLock, EPOCHS_MAX, EmbeddedOptions, EmbeddedStore, Epoch, ExaminedStore, Holder, LostState, OpenError,
};
pub use etcd::{
    EtcdCredentials, EtcdIdentity, EtcdOpenError, EtcdOptions, EtcdPrefix, EtcdPrefixError, EtcdStore, EtcdTls,
    EtcdTrouble, ExaminedEtcd, FillingEtcd,
};
pub use fill::fill;
pub use lease::{Lease, LeaseId};
pub use store::{CommitError, Failure, LoadError, Quantity, Store, StoreMember, Watch, WatchError};
pub use store_id::StoreId;
pub use transaction::{
    Committed, Condition, Entry, Expected, Key, KeyError, MAX_KEY_BYTES, MAX_TRANSACTION_BYTES,
    MAX_TRANSACTION_CONDITIONS, MAX_TRANSACTION_OPERATIONS, Revision, Snapshot, Transaction, Write,
};
