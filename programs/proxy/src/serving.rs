//! One workload on its way into the engine: each newer state of its plan and its certificate is put in force as it comes.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use starling_model::{InstanceId, ServiceName};
use starling_plan::Plan;
use starling_tls::{Credentials, LeafKey, TrustRoots};

use crate::engine::Engine;
use crate::keys::Keys;
use crate::workload::Workload;

/// A certificate and its key, both in PEM.
#[derive(Clone, Copy)]
pub struct LeafPem<'a> {
    /// The leaf, then intermediates.
    pub certificate_chain: &'a str,
    /// The key.
    pub private_key: &'a str,
}

/// What was last put in force of a workload.
#[derive(Default)]
pub struct Serving {
    shown: Option<Shown>,
    /// By the service for which it stands.
    shown_for: BTreeMap<ServiceName, Shown>,
    workload: Option<Arc<Workload>>,
}

struct Shown {
    certificate_chain: String,
    roots: Vec<String>,
    keys: Arc<Keys>,
}

impl Serving {
    /// Puts a state in force; what was in force before serves where it cannot be.
    ///
    /// # Errors
    /// If the certificate or the roots are of no use, or a listener cannot be had; everything else is in force then.
    pub async fn put_in_force(
        &mut self,
        id: &InstanceId,
        plan: Plan,
        leaf: LeafPem<'_>,
        engine: &Engine,
    ) -> anyhow::Result<()> {
        self.put_gateway_in_force(id, plan, leaf, std::iter::empty(), engine).await
    }

    /// The same for one that stands for services; `others` are their certificates.
    ///
    /// # Errors
    /// As [`Serving::put_in_force`].
    pub async fn put_gateway_in_force<'l>(
        &mut self,
        id: &InstanceId,
        plan: Plan,
        leaf: LeafPem<'_>,
        others: impl Iterator<Item = (&'l ServiceName, LeafPem<'l>)>,
        engine: &Engine,
    ) -> anyhow::Result<()> {
        let roots = &plan.trust.roots_pem;
        let keys = shown(self.shown.take(), leaf, roots)?;
        let keys = Arc::clone(&self.shown.insert(keys).keys);
        let mut before = std::mem::take(&mut self.shown_for);
        for (service, leaf) in others {
            let shown =
                shown(before.remove(service), leaf, roots).with_context(|| format!("standing for {service}"))?;
            self.shown_for.insert(service.clone(), shown);
        }
        let of_others =
            self.shown_for.iter().map(|(service, shown)| (service.clone(), Arc::clone(&shown.keys))).collect();
        let workload = Workload::following(self.workload.as_deref(), plan);
        let workload = Arc::new(workload.standing_for(self.workload.as_deref(), &of_others));
        let errors = engine.serve(id, &workload, &keys).await;
        self.workload = Some(workload);
        match errors.first() {
            None => Ok(()),
            Some(error) => anyhow::bail!("{error}"),
        }
    }
}

/// What is shown after `before`: a renewed certificate replaces the one in the keys, other roots make other keys.
fn shown(before: Option<Shown>, leaf: LeafPem<'_>, roots: &[String]) -> anyhow::Result<Shown> {
    match before {
        Some(mut shown) if shown.roots == roots => {
            if shown.certificate_chain != leaf.certificate_chain {
                shown.keys.renew(credentials(leaf)?);
                leaf.certificate_chain.clone_into(&mut shown.certificate_chain);
            }
            Ok(shown)
        }
        Some(_) | None => {
            let own = credentials(leaf)?;
            let trusted = TrustRoots::trusted_in(own.identity().trust_domain(), roots.iter().map(String::as_str));
            let keys = Arc::new(Keys::new(own, trusted.context("the mesh's roots")?)?);
            let certificate_chain = leaf.certificate_chain.to_owned();
            Ok(Shown { certificate_chain, roots: roots.to_vec(), keys })
        }
    }
}

fn credentials(leaf: LeafPem<'_>) -> anyhow::Result<Credentials> {
    let key = LeafKey::from_pem(leaf.private_key).context("the workload's key")?;
    Credentials::new(leaf.certificate_chain, &key).context("the workload's certificate")
}
