//! The catalog: transactions in, numbered snapshots and events out.
//!
//! [`Snapshot`] is an immutable, cheaply cloned view with the indexes that readers need. [`Snapshot::apply`] turns a
//! committed transaction into the next snapshot and into [`Event`]s, one per touched [`Subject`]. [`decide`] turns a
//! command into a transaction or refuses it. [`FanOut`] keeps who waits for which subject, and [`Receipts`] who has
//! applied which revision. Nothing here knows a clock, a socket or the store.

mod acl;
pub mod apply;
pub mod command;
mod coordination;
pub mod fan_out;
mod members;
pub mod mesh;
mod outside;
mod prepared_query;
pub mod quarantine;
pub mod receipts;
pub mod snapshot;
mod sorted;
pub mod subject;

pub use apply::{Applied, Event};
pub use command::{
    ACL_RECORDS_MAX, ACL_TOKENS_MAX, AclCommand, AclRefusal, AuthorityCommand, AuthorityRefusal, Charge, CheckWrite,
    Command, CoordinationCommand, CoordinationRefusal, Decision, EnrolmentCommand, EnrolmentRefusal, IntentionById,
    IntentionRefusal, JoinRequest, JoinTokenCommand, JoinTokenRefusal, KvAnswer, KvFailure, KvOperation, KvWrite,
    LIVENESS_NODES_MAX, LOGIN_TOKENS_MAX, LivenessCommand, METHOD_TOKENS_MAX, NameHolder, NewJoinToken, OVERLAP_MIN,
    Operation, OperationAnswer, OperationFailure, RecordOperation, Refusal, Registers, RotationWaits, SESSIONS_MAX,
    Said, Seen, TXN_OPERATIONS_MAX, decide, decide_again, ground, kv_answers, reports_as, reusable_token_of,
    transaction_answers, written_enrolments,
};
pub use fan_out::{FanOut, SubscriberId};
pub use mesh::{Front, Marks, MeshRead};
pub use prepared_query::{QUERIES_MAX, QUERY_KIND, StoredQuery};
pub use quarantine::{Interpreted, Quarantined, StoredRecord, StoredWrite};
pub use receipts::{
    Barrier, ChangeReport, Counts, Earlier, EarlierError, NodeReport, Progress, ProxyReport, Receipts, Refused,
    Reporter, ReporterId, Until, UntilError,
};
pub use snapshot::{Health, Snapshot};
pub use subject::Subject;
