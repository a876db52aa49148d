//! The nouns of the mesh, parsed into valid values.
//!
//! Everything here is plain data that cannot be written down wrongly: a [`ServiceName`] obeys its grammar, a
//! [`Port`] is never 0, a permission has an action. Untrusted bytes become these types once, at a door; behind it nobody
//! checks again. The crate owns no behaviour beyond construction, ordering and its stored (JSON) form.

pub mod access_log;
pub mod acl;
pub mod authority;
pub mod check;
pub mod config_entry;
pub mod coordination;
pub mod enrolment;
pub mod expression;
pub mod filter;
pub mod host;
pub mod ingress;
pub mod intention;
pub mod ip_range;
pub mod join_token;
pub mod kept;
pub mod locality;
pub mod name;
pub mod node;
pub mod opaque;
pub mod percent;
pub mod prepared_query;
pub mod record;
pub mod registration;
pub mod resolver;
pub mod router;
pub mod server;
pub mod service;
pub mod splitter;
pub mod terminating;
pub mod time;
pub mod tracing;
pub mod upstream_config;
pub mod uuid;
pub mod virtual_address;

pub use access_log::{AccessLog, LogFilter, LogForm, LogTarget, LogTemplate};
pub use acl::{
    ANONYMOUS_SECRET, ANONYMOUS_TOKEN, Access, AclAuthMethod, AclBindingRule, AclGrants, AclKey, AclName, AclNameError,
    AclPolicy, AclRecord, AclRights, AclRole, AclRule, AclSecret, AclToken, AuthMethodConfig, BuiltinPolicy,
    NodeIdentity, Resource, RuleName, ServiceIdentity, TemplatedPolicy,
};
pub use authority::{CaKeyPlace, CaKeyRecord, RootOverlap, SealedKey, TrustReport};
pub use check::{
    CONSUL_SERVICE, Check, CheckDefinition, CheckKind, CheckStatus, CheckTls, CheckedService, LIVENESS_CHECK,
    LIVENESS_LOST, OUTPUT_BYTES_MAX,
};
pub use config_entry::{ConfigEntry, ConfigEntryKey, ConfigKind, MeshEntry, Protocol, ProxyDefaults, ServiceDefaults};
pub use coordination::{
    CoordinationKey, CoordinationRecord, KV_KEY_BYTES_MAX, KV_VALUE_BYTES_MAX, KvEntry, KvKey, KvKeyError, KvValue,
    KvValueError, LockDelay, Session, SessionBehavior, SessionRenewal,
};
pub use enrolment::{
    Enrolment, Holder, KeyFingerprint, Member, PREVIOUS_KEYS_MAX, SERVICE_PATTERNS_MAX, ServicePattern,
    ServicePatternError,
};
pub use expression::{Expression, FilterError, Operator, WrittenTest, parse_expression};
pub use filter::Filter;
pub use host::{HostPattern, HostPatternError};
pub use ingress::{
    CertificateFiles, HttpsRedirect, IngressGateway, IngressListener, IngressRoute, IngressService, IngressTls,
    ListenerTls, SecretService, TlsVersion,
};
pub use intention::{
    Action, HeaderMatch, HeaderTest, IntentionPermission, IntentionSubject, PathMatch, ServiceIntentions,
    SourceDecision, SourceIntention,
};
pub use ip_range::{IpRange, IpRangeError};
pub use join_token::{JoinTokenId, JoinTokenIdError, JoinTokenRecord, JoinTokenUse, JoinTokenUses, SecretHash};
pub use kept::{KeptEntry, KeptKind};
pub use locality::{Locality, LocalityMode, Nearness};
pub use name::{
    CheckId, Datacenter, InstanceId, JoinTokenDescription, NameError, Namespace, NodeName, Port, Region, ServiceName,
    SubsetName, TrustDomain, Zone,
};
pub use node::{Node, NodeId};
pub use opaque::OpaqueSettings;
pub use percent::Percent;
pub use prepared_query::{PreparedQuery, ServiceQuery};
pub use record::{CaRootRecord, Change, Fence, OnNode, Record, RecordError, RecordKey, Revision, Versioned};
pub use registration::{CheckSpec, ServiceRegistration};
pub use resolver::{
    BalancePolicy, Failovers, HashOn, HashPolicy, LoadBalancer, ServiceResolver, ServiceTarget, Subset,
};
pub use router::{
    Fault, FaultAbort, FaultDelay, HeaderEdits, Mirror, QueryMatch, QueryTest, RedirectPath, RedirectStatus,
    RequestMatch, RetryBudget, RetryOn, RetryPolicy, RouteAction, RouteDestination, RouteRedirect, ServiceRoute,
    ServiceRouter,
};
pub use server::{AttachmentRecord, LeaderRecord, RECORD_LEVEL, ServerId, ServerIdError, ServerRecord};
pub use service::{
    InstanceKey, InstanceKind, OtherGateway, OtherGatewayKind, ServiceInstance, SidecarProxy, TaggedAddress,
    TransparentProxy, Upstream, Weights,
};
pub use splitter::{ServiceSplit, ServiceSplitter, Splits, SplitsError};
pub use terminating::{LinkedName, LinkedService, OriginTls, TerminatingGateway};
pub use time::UnixSeconds;
pub use tracing::{Collector, Tracing};
pub use upstream_config::{PassiveHealthCheck, RateLimit, UpstreamConfig, UpstreamSettings};
pub use uuid::{Uuid, UuidError};
pub use virtual_address::{VirtualAddress, virtual_v6};
