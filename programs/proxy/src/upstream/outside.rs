//! Calls of services outside the mesh, for which a gateway stands: by address or by name, over TLS by files or in plaintext.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use starling_model::BalancePolicy;
use starling_plan::{Exit, Origins};
use starling_traffic::balance::Balancer;

use super::{Place, Upstream};
use crate::exits::origin_tls::OriginTlsConfig;
use crate::host::Host;
use crate::metrics::SideMetrics;
use crate::workload::Slot;

impl Upstream {
    /// A service outside the mesh.
    pub(crate) fn outside(
        exit: &Exit,
        origins: Arc<Slot<Origins>>,
        tls: Option<Arc<OriginTlsConfig>>,
        metrics: Rc<SideMetrics>,
    ) -> Rc<Self> {
        Rc::new(Self {
            name: format!("exit:{}", exit.target()),
            protocol: exit.protocol,
            place: Place::Outside(origins, tls),
            tls: Vec::new(),
            check: None,
            balance: BalancePolicy::default(),
            retry_budget: None,
            connect_timeout: exit.connect_timeout,
            quota: None,
            active: Cell::new(0),
            retries: Cell::new(0),
            hosts: RefCell::default(),
            began: Instant::now(),
            metrics,
        })
    }

    /// Whether this is how the service of an exit is called, but for TLS.
    pub(crate) fn is_of(&self, exit: &Exit, origins: &Arc<Slot<Origins>>) -> bool {
        let same_slot = matches!(&self.place, Place::Outside(own, _) if Arc::ptr_eq(own, origins));
        same_slot && self.protocol == exit.protocol && self.connect_timeout == exit.connect_timeout
    }

    /// Brings the list into line with the slot, if that is another one. Those that stay keep their connections.
    pub(super) fn follow_outside(&self, slot: &Slot<Origins>) {
        let current = slot.peek();
        let mut hosts = self.hosts.borrow_mut();
        if hosts.seen_outside.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &current)) {
            return;
        }
        let key = |host: &Rc<Host>| (host.address, host.name.clone(), host.weight);
        let mut old: BTreeMap<_, _> = hosts.list.drain(..).map(|host| (key(&host), host)).collect();
        for origin in &current.origins {
            let address = origin.ip().map(|ip| SocketAddr::new(ip, origin.port));
            let name = address.is_none().then(|| (origin.address.clone(), origin.port));
            let fresh = || match &name {
                Some(name) => Host::named(name.clone(), origin.weight),
                None => Host::new(address, origin.weight, 0),
            };
            let kept = old.remove(&(address, name.clone(), origin.weight));
            hosts.list.push(kept.unwrap_or_else(fresh));
        }
        old.values().for_each(|gone| gone.leave());
        let named: Vec<_> =
            current.origins.iter().map(|it| (format!("{}:{}", it.address, it.port), it.weight)).collect();
        hosts.balancer = Some(Balancer::new(self.balance, &named));
        hosts.seen_outside = Some(Arc::clone(&current));
    }
}
