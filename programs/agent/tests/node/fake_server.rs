//! A server in memory: it keeps what is committed, remembers in which transactions, and can be taken away.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use starling_agent::{AliasView, IssuedLeaf, LinkError, OwnRecords, ServerLink};
use starling_identity::{IssuanceRules, Layout, SpiffeId};
use starling_model::{
    Change, Check, CheckStatus, Datacenter, InstanceId, Namespace, NodeName, Record, RecordKey, Revision, ServiceName,
    TrustDomain, UnixSeconds,
};
use starling_tls::CertificateAuthority;
use tokio::sync::{Notify, watch};

/// Time after which a condition is not going to hold any more.
pub const DEADLINE: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    Up,
    Down,
    /// Refuses transactions that write an instance of this id.
    Refusing(String),
    /// Fails at transactions of more bytes than this.
    Narrow(usize),
    /// Gives transactions these answers, one each, and then none any more.
    Dying(VecDeque<LinkError>),
}

pub struct FakeServer {
    state: Mutex<State>,
    changed: watch::Sender<u64>,
    authority: CertificateAuthority,
    /// Holds commits back until notified, if set.
    pub gate: Mutex<Option<Arc<Notify>>>,
    _directory: tempfile::TempDir,
}

pub struct State {
    pub mode: Mode,
    pub records: BTreeMap<String, Record>,
    pub commits: Vec<Vec<String>>,
    pub leaves_issued: u64,
    /// Lifetime claimed for leaves.
    pub leaf_seconds: u64,
    pub elsewhere: AliasView,
}

pub fn now() -> UnixSeconds {
    starling_agent::system_clock()()
}

impl FakeServer {
    pub fn new() -> Arc<Self> {
        let directory = tempfile::tempdir().unwrap();
        let trust_domain = TrustDomain::new("test.consul").unwrap();
        let state = State {
            mode: Mode::Up,
            records: BTreeMap::new(),
            commits: Vec::new(),
            leaves_issued: 0,
            leaf_seconds: 3600,
            elsewhere: AliasView::default(),
        };
        Arc::new(Self {
            state: Mutex::new(state),
            changed: watch::channel(0).0,
            authority: CertificateAuthority::create(&directory.path().join("ca"), &trust_domain, now()).unwrap(),
            gate: Mutex::new(None),
            _directory: directory,
        })
    }

    pub fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        let result = look(&mut self.state.lock().unwrap());
        self.changed.send_modify(|count| *count += 1);
        result
    }

    pub fn look<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.lock().unwrap())
    }

    pub fn keys(&self) -> Vec<String> {
        self.look(|state| state.records.keys().cloned().collect())
    }

    pub fn check(&self, id: &str) -> Option<Check> {
        self.look(|state| {
            let Some(Record::Check(check)) = state.records.get(&format!("check/n1/{id}")) else { return None };
            Some(check.clone())
        })
    }

    /// Waits until the state is so.
    pub async fn until(&self, what: &str, holds: impl Fn(&State) -> bool) {
        let mut changed = self.changed.subscribe();
        let waiting = async {
            while !self.look(&holds) {
                changed.changed().await.unwrap();
            }
        };
        if tokio::time::timeout(DEADLINE, waiting).await.is_err() {
            panic!("never came: {what}; records {:?}", self.look(|state| state.records.clone()));
        }
    }

    pub async fn until_status(&self, id: &str, status: CheckStatus) -> Check {
        let key = format!("check/n1/{id}");
        let is = |state: &State| matches!(state.records.get(&key), Some(Record::Check(c)) if c.status == status);
        self.until(&format!("{id} {status:?}"), is).await;
        self.check(id).unwrap()
    }

    fn refusal(mode: &Mode, changes: &[Change]) -> Option<LinkError> {
        match mode {
            Mode::Up | Mode::Dying(_) => None,
            Mode::Down => Some(LinkError::Unavailable("taken away".to_owned())),
            Mode::Refusing(id) => {
                let hit = changes.iter().any(|change| {
                    matches!(change, Change::Put(Record::Instance(instance)) if instance.key.id.as_str() == id)
                });
                hit.then(|| LinkError::Refused("not this one".to_owned()))
            }
            Mode::Narrow(bytes_max) => {
                let bytes = changes.iter().map(|change| match change {
                    Change::Put(record) => change.key().encode().len() + record.encode().len(),
                    Change::Delete(key) => key.encode().len(),
                });
                let bytes: usize = bytes.sum();
                (bytes > *bytes_max).then(|| LinkError::Unavailable(format!("{bytes} bytes at once")))
            }
        }
    }
}

#[async_trait]
impl ServerLink for FakeServer {
    async fn commit(&self, changes: Vec<Change>) -> Result<Revision, LinkError> {
        let gate = self.gate.lock().unwrap().clone();
        if let Some(gate) = gate {
            gate.notified().await;
        }
        let last_words = self.with(|state| match &mut state.mode {
            Mode::Dying(answers) => Some(answers.pop_front()),
            Mode::Up | Mode::Down | Mode::Refusing(_) | Mode::Narrow(_) => None,
        });
        match last_words {
            Some(Some(answer)) => return Err(answer),
            Some(None) => return std::future::pending().await,
            None => {}
        }
        self.with(|state| {
            if let Some(error) = Self::refusal(&state.mode, &changes) {
                return Err(error);
            }
            state.commits.push(changes.iter().map(|change| change.key().encode()).collect());
            for change in changes {
                let key = change.key().encode();
                match change {
                    Change::Put(record) => state.records.insert(key, record),
                    Change::Delete(_) => state.records.remove(&key),
                };
            }
            Ok(Revision(state.commits.len() as u64))
        })
    }

    async fn leave(&self, changes: Vec<Change>) -> Result<Revision, LinkError> {
        self.commit(changes).await
    }

    async fn own_records(&self, _since: Option<Revision>) -> Result<OwnRecords, LinkError> {
        self.look(|state| match &state.mode {
            Mode::Down => Err(LinkError::Unavailable("taken away".to_owned())),
            Mode::Up | Mode::Refusing(_) | Mode::Narrow(_) | Mode::Dying(_) => Ok(OwnRecords {
                revision: Revision(state.commits.len() as u64),
                records: Some(state.records.values().cloned().collect()),
                again_after_s: 0,
            }),
        })
    }

    async fn issue_leaf(&self, service: &ServiceName, csr_der: Vec<u8>) -> Result<IssuedLeaf, LinkError> {
        let lifetime = self.with(|state| match &state.mode {
            Mode::Up => {
                state.leaves_issued += 1;
                Ok(state.leaf_seconds)
            }
            Mode::Down | Mode::Refusing(_) | Mode::Narrow(_) | Mode::Dying(_) => {
                Err(LinkError::Unavailable("taken away".to_owned()))
            }
        })?;
        let id = SpiffeId::new(
            Layout::Consul,
            self.authority.trust_domain().clone(),
            Namespace::new("default").unwrap(),
            Datacenter::new("dc1").unwrap(),
            service.clone(),
        );
        let issued = self.authority.issue_leaf(&csr_der, &id, &IssuanceRules::default(), now(), None);
        let mut issued = issued.map_err(|error| LinkError::Refused(error.to_string()))?;
        issued.not_before = now();
        issued.not_after = now().plus(lifetime);
        Ok(issued)
    }

    fn follow_checks(&self, _: &NodeName, _: Option<&InstanceId>) -> BoxStream<'static, AliasView> {
        // Told once; a test that changes its mind changes it before following.
        let view = self.look(|state| state.elsewhere.clone());
        futures::stream::iter([view]).chain(futures::stream::pending()).boxed()
    }
}

/// The key of the node's own record.
pub fn node_key() -> String {
    RecordKey::Node(NodeName::new("n1").unwrap()).encode()
}

/// Waits for something of which nobody tells.
pub async fn until(what: &str, holds: impl Fn() -> bool) {
    let mut interval = tokio::time::interval(Duration::from_millis(2));
    let waiting = async {
        while !holds() {
            interval.tick().await;
        }
    };
    assert!(tokio::time::timeout(DEADLINE, waiting).await.is_ok(), "never came: {what}");
}
