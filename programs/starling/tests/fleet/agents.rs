//! Agents: the real uplink and mirror, without workloads of their own.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use starling_agent::remote::mirror::Mirror;
use starling_agent::remote::servers::Servers;
use starling_agent::remote::uplink::{Listener, Uplink, UplinkConfig, run};
use starling_attach::Replica;
use starling_attach::message::Welcome;
use starling_catalog::{MeshRead, Subject};
use starling_identity::{Identity, IssuanceRules};
use starling_model::{Datacenter, NodeName, UnixSeconds};
use starling_tls::{CertificateAuthority, Credentials, LeafKey, TrustRoots, agent_client_config};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::relay::Relay;
use crate::server::Server;

/// Subjects that each follows.
pub(crate) const SUBJECTS: usize = 3;

/// Between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) struct Agents {
    mirrors: Vec<Arc<Mirror>>,
    witness: Arc<Witness>,
    _running: JoinSet<()>,
}

/// Sees whether what any of them hears ever goes back.
#[derive(Default)]
struct Witness {
    went_back: AtomicBool,
}

struct Ear {
    mirror: Arc<Mirror>,
    newest: AtomicU64,
    witness: Arc<Witness>,
}

impl Listener for Ear {
    fn welcomed(&self, _: &Welcome) {}

    fn heard(&self, _: &BTreeSet<Subject>) {
        let through = self.mirror.replica().through().0;
        if self.newest.swap(through, Ordering::Relaxed) > through {
            self.witness.went_back.store(true, Ordering::Relaxed);
        }
    }
}

impl Agents {
    /// Agents of these numbers, each with a certificate of its own.
    pub(crate) fn start(numbers: Range<usize>, server: &Server, relay: &Relay) -> Self {
        let authority = server.authority();
        let mut running = JoinSet::new();
        let mut mirrors = Vec::with_capacity(numbers.len());
        let witness = Arc::new(Witness::default());
        for number in numbers {
            let node: NodeName = format!("n{number}").parse().expect("a name");
            let tls = watch::Sender::new(tls(&authority, &node));
            let own = [
                Subject::Endpoints("web".parse().expect("a name")),
                Subject::Intentions("web".parse().expect("a name")),
                Subject::Roots,
            ];
            assert_eq!(own.len(), SUBJECTS);
            let mirror = Mirror::new(Replica::default(), own);
            let servers = Arc::new(Servers::new(node.clone(), vec![relay.address.clone()]));
            let config = UplinkConfig { servers, standby: true, node, tls: tls.subscribe() };
            let ear = Ear { mirror: Arc::clone(&mirror), newest: AtomicU64::new(0), witness: Arc::clone(&witness) };
            running.spawn(run(config, Uplink::new(), Arc::clone(&mirror), Arc::new(ear)));
            mirrors.push(mirror);
        }
        Self { mirrors, witness, _running: running }
    }

    /// Waits until each has what the server has.
    pub(crate) async fn until_current(&self, server: &Server, deadline: Duration) {
        let should = server.ports().await;
        let behind = Mutex::new(0);
        let current = async {
            loop {
                let count = self.mirrors.iter().filter(|mirror| ports(mirror) != should).count();
                *behind.lock().unwrap_or_else(PoisonError::into_inner) = count;
                if count == 0 {
                    return;
                }
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        };
        let ended = tokio::time::timeout(deadline, current).await;
        assert!(
            ended.is_ok(),
            "{} of {} are behind after {deadline:?}",
            behind.lock().expect("whole"),
            self.mirrors.len()
        );
    }

    pub(crate) fn assert_never_went_back(&self) {
        assert!(!self.witness.went_back.load(Ordering::Relaxed), "an agent heard of a revision after a later one");
    }
}

/// The instances of `web` and their ports, as an agent has them.
fn ports(mirror: &Mirror) -> BTreeSet<(u16, u64)> {
    let mut ports = BTreeSet::new();
    mirror.replica().visit_fronts(&"web".parse().expect("a name"), &mut |front| {
        let id = front.key.id.as_str().strip_prefix("web-").and_then(|number| number.parse().ok());
        ports.extend(id.zip(front.port.map(|port| u64::from(port.get()))));
    });
    ports
}

fn tls(authority: &CertificateAuthority, node: &NodeName) -> Arc<rustls::ClientConfig> {
    let datacenter: Datacenter = "dc1".parse().expect("a name");
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("a clock that is set").as_secs();
    let key = LeafKey::generate().expect("a key");
    let csr = key.csr_der().expect("a request");
    let rules = IssuanceRules::default();
    let leaf = authority.issue_agent(&csr, &datacenter, node, &rules, UnixSeconds(now)).expect("a certificate");
    let credentials = Credentials::new(&leaf.chain_pem, &key).expect("it fits");
    let roots = TrustRoots::new([authority.root()]).expect("a root");
    let server = Identity::Server { trust_domain: authority.trust_domain().clone(), datacenter };
    Arc::new(agent_client_config(credentials, &roots, server).expect("a configuration"))
}
