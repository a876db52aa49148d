//! The nouns of the mesh, parsed into valid values.
//!
//! Everything here is plain data that cannot be written down wrongly: a [`ServiceName`] obeys its grammar, a
//! [`Port`] is never 0, a permission has an action. Untrusted bytes become these types once, at a door; behind it nobody
//! checks again. The crate owns no behaviour beyond construction, ordering and its stored (JSON) form.

pub mod check;
pub mod config_entry;
pub mod intention;
pub mod join_token;
pub mod name;
pub mod node;
pub mod record;
pub mod registration;
pub mod service;
pub mod time;

pub use check::{Check, CheckDefinition, CheckKind, CheckStatus, CheckedService, LIVENESS_CHECK, OUTPUT_BYTES_MAX};
pub use config_entry::{ConfigEntry, ConfigEntryKey, ConfigKind, Protocol, ProxyDefaults, ServiceDefaults};
pub use intention::{
    Action, HeaderMatch, HeaderTest, IntentionPermission, IntentionSubject, PathMatch, ServiceIntentions,
    SourceDecision, SourceIntention,
};
pub use join_token::{JoinTokenId, JoinTokenIdError, JoinTokenRecord, JoinTokenUse, JoinTokenUses, SecretHash};
pub use name::{
    CheckId, Datacenter, InstanceId, JoinTokenDescription, NameError, Namespace, NodeName, Port, ServiceName,
    TrustDomain,
};
pub use node::{Node, NodeId};
pub use record::{CaRootRecord, Change, Fence, Record, RecordError, RecordKey, Revision, Versioned};
pub use registration::{CheckSpec, ServiceRegistration};
pub use service::{InstanceKey, InstanceKind, ServiceInstance, SidecarProxy, TaggedAddress, Upstream, Weights};
pub use time::UnixSeconds;
