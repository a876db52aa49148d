//! One workload on its way into the engine: each newer state of its plan and its certificate is put in force as it comes.

use std::sync::Arc;

use anyhow::Context;
use starling_model::InstanceId;
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
        let keys = self.keys(leaf, &plan.trust.roots_pem)?;
        let workload = Arc::new(Workload::following(self.workload.as_deref(), plan));
        let errors = engine.serve(id, &workload, &keys).await;
        self.workload = Some(workload);
        match errors.first() {
            None => Ok(()),
            Some(error) => anyhow::bail!("{error}"),
        }
    }

    /// A renewed certificate replaces the one in the keys, other roots make other keys.
    fn keys(&mut self, leaf: LeafPem<'_>, roots: &[String]) -> anyhow::Result<Arc<Keys>> {
        match &mut self.shown {
            Some(shown) if shown.roots == roots => {
                if shown.certificate_chain != leaf.certificate_chain {
                    shown.keys.renew(credentials(leaf)?);
                    leaf.certificate_chain.clone_into(&mut shown.certificate_chain);
                }
                Ok(Arc::clone(&shown.keys))
            }
            _ => {
                let own = credentials(leaf)?;
                let trusted = TrustRoots::trusted_in(own.identity().trust_domain(), roots.iter().map(String::as_str));
                let keys = Arc::new(Keys::new(own, trusted.context("the mesh's roots")?)?);
                self.shown = Some(Shown {
                    certificate_chain: leaf.certificate_chain.to_owned(),
                    roots: roots.to_vec(),
                    keys: Arc::clone(&keys),
                });
                Ok(keys)
            }
        }
    }
}

fn credentials(leaf: LeafPem<'_>) -> anyhow::Result<Credentials> {
    let key = LeafKey::from_pem(leaf.private_key).context("the workload's key")?;
    Credentials::new(leaf.certificate_chain, &key).context("the workload's certificate")
}
