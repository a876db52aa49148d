//! What a client may send and how long it may take; every limit has its name in the answer that refuses it.

use std::time::Duration;

/// The largest body that a route reads.
///
/// There is no way to make one but the constants here, so that every limit has a name and a reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyLimit {
    name: &'static str,
    bytes: usize,
}

impl BodyLimit {
    /// The route reads no body.
    pub const NONE: Self = Self { name: "none", bytes: 0 };
    /// A service with its sidecar, upstreams and checks; thousands of upstreams fit.
    pub const REGISTRATION: Self = Self { name: "registration", bytes: 512 * 1024 };
    /// A config entry; the store's records stay below this.
    pub const CONFIG_ENTRY: Self = Self { name: "config-entry", bytes: 1024 * 1024 };
    /// One intention with its permissions.
    pub const INTENTION: Self = Self { name: "intention", bytes: 256 * 1024 };
    /// A check's result; its output is cut far below this.
    pub const CHECK_RESULT: Self = Self { name: "check-result", bytes: 64 * 1024 };
    /// A snapshot of the catalog: that of a fleet of twice the size that is tested is some 400 MB. Read piece by piece.
    pub const SNAPSHOT: Self = Self { name: "snapshot", bytes: 1024 * 1024 * 1024 };
    /// Certificates of a CA with its sealed key.
    pub const CERTIFICATES: Self = Self { name: "certificates", bytes: 64 * 1024 };
    /// The value of an entry of the key-value store.
    pub const KV_VALUE: Self = Self { name: "kv-value", bytes: starling_model::KV_VALUE_BYTES_MAX };
    /// A transaction, its values in base64. The store takes a megabyte at once, and counts a key three times.
    pub const TRANSACTION: Self = Self { name: "transaction", bytes: 320 * 1024 };
    /// What an event carries; Serf's limit is half of that, with the name.
    pub const EVENT: Self = Self { name: "event", bytes: 1024 };
    /// A token, a role, or a policy with its rules.
    pub const ACL: Self = Self { name: "acl", bytes: 256 * 1024 };
    /// A handful of short fields.
    pub const SMALL: Self = Self { name: "small", bytes: 16 * 1024 };

    /// The name that the refusal and the reference page give.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.bytes
    }
}

/// Bytes of a request's path and query; longer than any that a client of Consul writes.
pub const URI_BYTES_MAX: usize = 8 * 1024;

/// Bytes of a request's head; beyond it hyper answers 431.
pub const HEAD_BYTES_MAX: usize = 32 * 1024;

/// Header fields of a request; beyond it hyper answers 431.
pub const HEADERS_MAX: usize = 100;

/// Time for the first head on a new connection: bounds what strangers can hold open by saying nothing.
pub const FIRST_HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for the head on a connection that holds a place of the reserve: it asks about health, and others wait for the place.
pub const RESERVED_HEAD_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for each later head to arrive, and so for an idle connection to stay open. Go's client closes idle connections
/// after 90 s; closing first would cut off requests that it has just sent.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(100);

/// Time for a request's body to arrive; the largest is a megabyte.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Connections at a time, where file descriptors allow as many. Blocking queries hold one each.
pub const CONNECTIONS_MAX: usize = 16_384;

/// Receipts in a list: each is summed up anew when it is asked for, and an older one can be asked for by its revision.
pub const CHANGES_LISTED_MAX: usize = 100;

/// Time that open requests have to end when the server stops; none of them waits for anything then.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(3);

/// How long a read from an index that another server gave is held back until this one has come to it: an election of the
/// store's leader takes less.
pub(crate) const CATCH_UP_MAX: Duration = Duration::from_secs(5);

/// How long a blocking query waits unless it says otherwise; Consul's.
pub const WAIT_DEFAULT: Duration = Duration::from_secs(5 * 60);

/// How long a blocking query waits at most, jitter not counted; Consul's.
pub const WAIT_MAX: Duration = Duration::from_secs(10 * 60);

/// The part of its wait by which a blocking query may be lengthened, so that waits begun together do not end together;
/// Consul's.
pub const WAIT_JITTER_FRACTION: u32 = 16;

/// How long a barrier is waited for unless the request says otherwise; DESIGN section 7.
pub const UNTIL_WAIT_DEFAULT: Duration = Duration::from_secs(30);

/// Names of each kind that a receipt gives unless the request says otherwise; its counts speak of all.
pub const RECEIPT_NAMES_DEFAULT: usize = 1_000;

/// Names of each kind that a receipt gives at most: some megabytes, for a fleet of twice the size that is tested.
pub const RECEIPT_NAMES_MAX: usize = 20_000;

/// How long a receipt is waited for unless the request says otherwise: not at all.
pub const RECEIPT_WAIT_DEFAULT: Duration = Duration::ZERO;
