//! The CA: which roots there are, which of them signs, and how another comes in its place.

pub(super) mod configuration;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use starling_catalog::{AuthorityCommand, ChangeReport, Command, RotationWaits, Snapshot};
use starling_model::{CaKeyPlace, CaRootRecord, NodeName, Revision, RootOverlap, UnixSeconds};

use crate::answer::{Answer, forms};
use crate::call::Call;
use crate::error::ApiError;
use crate::ports::{AuthorityChange, AuthorityChanged};
use crate::router::{Api, Outcome};

/// Names of nodes that have yet to apply a root in one answer.
const NAMES_MAX: usize = 1_000;

/// Longest time over which leaves are renewed: within the lifetime of the ones that are there.
const RENEW_WITHIN_MAX: Duration = Duration::from_secs(48 * 60 * 60);

pub(super) async fn show(api: Arc<Api>, _: Call) -> Outcome {
    let snapshot = api.catalog.snapshot();
    let roots: Vec<Value> = snapshot.roots().into_iter().map(|root| form(&snapshot, &root.value)).collect();
    let rotation = match snapshot.coming_root() {
        Some(coming) => {
            let report = api.catalog.change(coming.modified, Duration::ZERO, NAMES_MAX).await;
            rotation(&coming.value, coming.modified, report.as_ref(), &api.catalog.rotation_waits_for())
        }
        None => Value::Null,
    };
    let answer = json!({
        "revision": snapshot.revision().0,
        "trust_domain": api.catalog.authority().trust_domain.as_str(),
        "active": snapshot.active_root().map(|root| root.value.id.clone()),
        "roots": roots,
        "rotation": rotation,
    });
    Ok(Answer::json(answer))
}

fn form(snapshot: &Snapshot, root: &CaRootRecord) -> Value {
    let (state, until) = match &root.overlap {
        _ if root.active => ("signs", None),
        Some(RootOverlap::Coming { .. }) => ("coming", None),
        Some(RootOverlap::Going { until }) => ("going", Some(forms::time(*until))),
        None => ("trusted", None),
    };
    let key = snapshot.ca_key(&root.id).map(|key| &key.value);
    let place = match key.map(|key| &key.place) {
        Some(CaKeyPlace::Sealed(sealed)) => json!({"sealed_with": sealed.seal_key}),
        Some(CaKeyPlace::Vault { mount }) => json!({"vault_mount": mount}),
        None => json!({"data_directory": true}),
    };
    let between = key.map_or(0, |key| key.chain_pem.matches("-----BEGIN CERTIFICATE-----").count());
    json!({
        "id": root.id,
        "name": root.name,
        "state": state,
        "key": place,
        "intermediates": between,
        "not_before": forms::time(root.not_before),
        "not_after": forms::time(root.not_after),
        "goes_after": until,
        "certificate": root.certificate_pem,
    })
}

fn rotation(root: &CaRootRecord, revision: Revision, report: Option<&ChangeReport>, waits: &RotationWaits) -> Value {
    let Some(RootOverlap::Coming { since, given_up, given_up_unnamed, given_up_relays, .. }) = &root.overlap else {
        return Value::Null;
    };
    let waits_for = &waits.nodes;
    let refusals = report.map_or(&[][..], |report| &report.rejected);
    let refused: BTreeSet<_> = refusals.iter().map(|(reporter, _)| reporter.node().clone()).collect();
    let rejected: BTreeSet<_> = refused.intersection(waits_for).cloned().collect();
    let names = |names: &BTreeSet<NodeName>| names.iter().map(NodeName::as_str).map(str::to_owned).collect::<Vec<_>>();
    json!({
        "root": root.id,
        "revision": revision.0,
        "since": forms::time(*since),
        "affected": report.map(|report| report.counts.affected),
        "applied": report.map(|report| report.counts.applied),
        "rejected": names(&rejected),
        "pending": names(&waits_for.difference(&rejected).cloned().collect()),
        "pending_unnamed": waits.unnamed,
        "pending_servers": waits.servers.len(),
        "pending_relays": names(&waits.relays),
        "given_up": names(given_up),
        "given_up_unnamed": given_up_unnamed,
        "given_up_relays": names(given_up_relays),
    })
}

pub(super) async fn rotate(api: Arc<Api>, call: Call) -> Outcome {
    let change = {
        let context = Call::context(&api.catalog.authority());
        let mut fields = call.fields(&context)?;
        let renew_within_s = renew_within(fields.duration("RenewWithin")?)?;
        let to_vault = fields.flag("Vault")?;
        fields.finish()?;
        AuthorityChange::Rotate { renew_within_s, to_vault }
    };
    changed(&api, change).await
}

pub(super) async fn import(api: Arc<Api>, call: Call) -> Outcome {
    let change = {
        let context = Call::context(&api.catalog.authority());
        let mut fields = call.fields(&context)?;
        let root_pem = fields.required_text("Root")?;
        let key = fields.required_text("Key")?;
        let key = serde_json::from_str(&key).map_err(|error| fields.error("Key", error))?;
        let renew_within_s = renew_within(fields.duration("RenewWithin")?)?;
        fields.finish()?;
        AuthorityChange::Import { root_pem, key, renew_within_s }
    };
    changed(&api, change).await
}

fn renew_within(given: Option<Duration>) -> Result<u32, ApiError> {
    let given = given.unwrap_or_default();
    if given > RENEW_WITHIN_MAX {
        let text = format!("RenewWithin: is at most {} h", RENEW_WITHIN_MAX.as_secs() / 3600);
        return Err(ApiError::bad_request(text));
    }
    Ok(u32::try_from(given.as_secs()).unwrap_or(u32::MAX))
}

pub(super) async fn reseal(api: Arc<Api>, _: Call) -> Outcome {
    changed(&api, AuthorityChange::Reseal).await
}

async fn changed(api: &Api, change: AuthorityChange) -> Outcome {
    match api.catalog.change_authority(change).await? {
        AuthorityChanged::Trusted { root, revision } => {
            Ok(Answer::json(json!({"root": root, "revision": revision.0})).written_at(revision))
        }
        AuthorityChanged::GivenUp { root, nodes, unnamed, relays, revision } => {
            let names = |names: &BTreeSet<NodeName>| names.iter().map(NodeName::to_string).collect::<Vec<_>>();
            let (nodes, relays) = (names(&nodes), names(&relays));
            let given_up =
                json!({"root": root, "given_up": nodes, "given_up_unnamed": unnamed, "given_up_relays": relays});
            Ok(Answer::json(given_up).written_at(revision))
        }
        AuthorityChanged::Resealed(count) => Ok(Answer::json(json!({"resealed": count}))),
    }
}

pub(super) async fn proceed(api: Arc<Api>, _: Call) -> Outcome {
    changed(&api, AuthorityChange::Proceed).await
}

pub(super) async fn remove(api: Arc<Api>, call: Call) -> Outcome {
    let root = call.param("id").to_owned();
    let at_once = call.query.switch("now")?;
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let now = (!at_once).then_some(UnixSeconds(now.as_secs()));
    let revision = api.catalog.commit(Command::Authority(AuthorityCommand::Remove { root, now })).await?;
    Ok(Answer::empty().written_at(revision))
}
