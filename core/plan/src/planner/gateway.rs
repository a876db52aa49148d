//! Plans of gateways.

use std::collections::BTreeMap;
use std::sync::Arc;

use starling_model::{IngressGateway, OpaqueSettings, ServiceInstance};

use super::{Calls, Draft, Planner, Written};
use crate::parts::cluster::CallSettings;
use crate::parts::exit::OriginsKey;
use crate::parts::{edge, exit};
use crate::plan::{Edge, Exit, Origins};
use crate::view::View;

impl Planner {
    /// The listeners of a gateway and where what comes in there goes.
    pub(super) fn edges(
        &mut self,
        draft: &mut Draft<'_>,
        view: &mut View<'_>,
        instance: &ServiceInstance,
        (config, node_address): (&OpaqueSettings, Option<&str>),
    ) -> (Vec<Arc<Edge>>, Calls) {
        let Some(entry) = view.ingress_gateway(&instance.name) else {
            draft.diagnostics.insert(edge::without_entry(instance));
            return (Vec::new(), Calls::default());
        };
        let (standing, diagnostics) = edge::standing(instance, config, node_address);
        draft.diagnostics.extend(diagnostics);
        let Some(standing) = standing else { return (Vec::new(), Calls::default()) };
        let (mut edges, mut calls) = (Vec::new(), Calls::default());
        // Those with the lowest ports first, wherever they stand.
        let mut listeners: Vec<_> = entry.listeners.iter().enumerate().collect();
        listeners.sort_by_key(|(_, listener)| listener.port);
        for listener in listeners {
            if entry.lacks_secret(listener.1) {
                draft.diagnostics.insert(edge::without_secret(entry, listener.0));
                continue;
            }
            let (edge, diagnostics) = edge::build(view, entry, listener, &standing);
            draft.diagnostics.extend(diagnostics);
            self.let_in(draft, &mut calls, entry, &edge);
            let key = (instance.key.clone(), edge.bind);
            edges.push(self.edges.keep(&key, edge, |a, b| a == b));
        }
        calls.routes.sort_by(|a, b| a.service.cmp(&b.service));
        (edges, calls)
    }

    /// Has the services called that a listener lets in.
    fn let_in(&mut self, draft: &mut Draft<'_>, calls: &mut Calls, entry: &IngressGateway, edge: &Edge) {
        let listener = entry.listeners.iter().find(|listener| listener.port.get() == edge.bind.port());
        let written = listener.map(starling_model::IngressListener::services).unwrap_or_default();
        for host in edge.hosts() {
            let own = written.iter().find(|service| service.service == host.service);
            let settings = CallSettings::plain(own.map_or(entry.defaults, |own| own.settings.or(entry.defaults)));
            let by = Written::Gateway { entry: &entry.gateway, service: &host.service };
            self.call_service(draft, calls, by, settings);
        }
    }

    /// What a gateway stands for, and where that is, ordered by service and subset.
    pub(super) fn exits(
        &mut self,
        draft: &mut Draft<'_>,
        view: &mut View<'_>,
        instance: &ServiceInstance,
        (config, node_address): (&OpaqueSettings, Option<&str>),
    ) -> Vec<(Arc<Exit>, Arc<Origins>)> {
        let Some(entry) = view.terminating_gateway(&instance.name) else {
            draft.diagnostics.insert(exit::without_entry(instance));
            return Vec::new();
        };
        let (bind, diagnostics) = exit::bind(instance, config, node_address);
        draft.diagnostics.extend(diagnostics);
        let Some(bind) = bind else { return Vec::new() };
        let (mut exits, mut asked) = (Vec::new(), BTreeMap::new());
        for (service, link) in exit::linked(view, entry) {
            // Names in a handshake have no case.
            if let Some(other) = asked.insert(service.as_str().to_ascii_lowercase(), service.clone()) {
                draft.diagnostics.insert(exit::asked_alike(entry, &service, &other));
                continue;
            }
            let policy = draft.take(self.policy(draft.mesh, &service));
            for target in exit::targets(view, &service) {
                let built = exit::build(view, &self.settings, &target, bind, (link, Arc::clone(&policy)));
                let exit = self.exits.keep(&(instance.key.clone(), target.clone()), built, exit::same);
                let key = OriginsKey { target, rewrites: !link.keeps_host, shuns_local: link.shuns_local() };
                let origins = self.origins.fetch(&key, draft.mesh, |view| exit::origins(view, &key));
                exits.push((exit, draft.take(origins)));
            }
        }
        exits.sort_by_key(|(exit, _)| exit.target());
        exits
    }
}
