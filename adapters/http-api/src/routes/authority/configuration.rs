//! The configuration of the CA as Consul's clients know it: <https://developer.hashicorp.com/consul/api-docs/connect/ca>.
//!
//! What cannot be obeyed is refused. A root that is given comes as every other does: it is trusted, and signs once everybody trusts it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use starling_catalog::Snapshot;
use starling_identity::IssuanceRules;
use starling_model::{CaKeyPlace, CaRootRecord, Revision};

use crate::answer::Answer;
use crate::call::{Call, log_notices};
use crate::error::ApiError;
use crate::parse::{FieldError, Fields, duration_text};
use crate::ports::{AuthorityChange, AuthorityChanged, PrivateKeyText};
use crate::router::{Api, Outcome};

/// Leaves that are renewed in a second once another root signs, as far as the time for it allows.
const RENEWED_PER_SECOND: usize = 8;

/// Least time over which they are.
const RENEW_WITHIN_MIN: Duration = Duration::from_secs(5);

/// Most time over which they are, the usual one.
const RENEW_WITHIN_MAX: Duration = Duration::from_secs(5 * 60);

/// What signs, in Consul's words.
fn provider(snapshot: &Snapshot) -> &'static str {
    let active = snapshot.active_root().and_then(|root| snapshot.ca_key(&root.value.id));
    match active.map(|key| &key.value.place) {
        Some(CaKeyPlace::Vault { .. }) => "vault",
        Some(CaKeyPlace::Sealed(_)) | None => "consul",
    }
}

fn lifetime(root: &CaRootRecord) -> Duration {
    Duration::from_secs(root.not_after.since(root.not_before))
}

pub(in crate::routes) async fn show(api: Arc<Api>, _: Call) -> Outcome {
    let snapshot = api.catalog.snapshot();
    let active = snapshot.active_root();
    let config = json!({
        "LeafCertTTL": duration_text(IssuanceRules::default().leaf_ttl()),
        "RootCertTTL": duration_text(active.map_or(Duration::ZERO, |root| lifetime(&root.value))),
        "PrivateKeyType": "ec",
        "PrivateKeyBits": 256,
    });
    let (created, modified) = active.map_or((Revision(0), Revision(0)), |root| (root.created, root.modified));
    let answer = json!({
        "Provider": provider(&snapshot),
        "Config": config,
        "State": null,
        "ForceWithoutCrossSigning": false,
        "CreateIndex": created.0,
        "ModifyIndex": modified.0,
    });
    Ok(Answer::json(answer).read_at(modified))
}

pub(in crate::routes) async fn set(api: Arc<Api>, call: Call) -> Outcome {
    let change = {
        let context = Call::context(&api.catalog.authority());
        let change = parse(call.fields(&context)?, &api.catalog.snapshot())?;
        log_notices(&context);
        change
    };
    let change = change.map(|mut change| {
        if let AuthorityChange::Take { no_leaf_beside, .. } = &mut change {
            *no_leaf_beside = api.agent().is_ok_and(|agent| agent.has_no_leaf());
        }
        change
    });
    let Some(change) = change else { return Ok(Answer::empty().written_at(api.catalog.snapshot().revision())) };
    match api.catalog.change_authority(change).await? {
        AuthorityChanged::Trusted { revision, .. } | AuthorityChanged::GivenUp { revision, .. } => {
            Ok(Answer::empty().written_at(revision))
        }
        AuthorityChanged::Resealed(_) => Ok(Answer::empty()),
    }
}

/// What is to change; nothing if all is as it is said to be.
fn parse(mut fields: Fields<'_>, snapshot: &Snapshot) -> Result<Option<AuthorityChange>, ApiError> {
    let provider = provider(snapshot);
    let wanted = fields.required_text("Provider")?;
    if wanted != provider {
        let how = "go over to a Vault, or back, by the server's own configuration and `starling ca rotate`";
        return Err(fields.error("Provider", format!("{provider:?} signs, and not {wanted:?}: {how}")).into());
    }
    if fields.flag("ForceWithoutCrossSigning")? {
        let how = "whoever does not trust a root in time is named by `starling ca status`, and given up by `starling ca proceed`";
        return Err(fields
            .error("ForceWithoutCrossSigning", format!("no root signs before it is trusted: {how}"))
            .into());
    }
    if !fields.opaque("State")?.is_empty() {
        return Err(fields.error("State", "is read, and not written").into());
    }
    fields.ignored(&["CreateIndex", "ModifyIndex"]);
    let config = fields.object("Config")?;
    fields.finish()?;
    let Some(mut config) = config else { return Ok(None) };
    let leaf = IssuanceRules::default().leaf_ttl();
    let root = snapshot.active_root().map_or(Duration::ZERO, |root| lifetime(&root.value));
    only(&mut config, "LeafCertTTL", leaf, "leaves are valid that long, and renewed after two thirds of it")?;
    only(
        &mut config,
        "RootCertTTL",
        root,
        "the root is valid that long; bring one of your own by RootCert and PrivateKey",
    )?;
    if config.text("PrivateKeyType")?.is_some_and(|kind| kind != "ec") {
        return Err(config.error("PrivateKeyType", "keys are of kind ec").into());
    }
    if config.integer("PrivateKeyBits")?.is_some_and(|bits| bits != 0 && bits != 256) {
        return Err(config.error("PrivateKeyBits", "keys have 256 bits, on P-256").into());
    }
    for name in ["IntermediateCertTTL", "RotationPeriod", "CSRMaxPerSecond", "CSRMaxConcurrent", "SkipValidate"] {
        config.without_effect(name);
    }
    let (certificate, key) = (config.text("RootCert")?, config.text("PrivateKey")?);
    let change = match (certificate, key) {
        (None, None) => None,
        (Some(certificates_pem), Some(key)) => {
            let nodes = snapshot.nodes().count();
            let within = Duration::from_secs((nodes / RENEWED_PER_SECOND) as u64);
            let within = within.clamp(RENEW_WITHIN_MIN, RENEW_WITHIN_MAX);
            let renew_within_s = u32::try_from(within.as_secs()).unwrap_or(u32::MAX);
            let (key, no_leaf_beside) = (PrivateKeyText::new(key), false);
            Some(AuthorityChange::Take { certificates_pem, key, renew_within_s, no_leaf_beside })
        }
        (Some(_), None) => return Err(config.missing("PrivateKey", "must be given with RootCert").into()),
        (None, Some(_)) => return Err(config.missing("RootCert", "must be given with PrivateKey").into()),
    };
    config.finish()?;
    Ok(change)
}

/// Refuses a duration that is not the one that holds.
fn only(config: &mut Fields<'_>, name: &str, holds: Duration, why: &str) -> Result<(), FieldError> {
    match config.duration(name)? {
        Some(given) if given != holds => {
            Err(config.error(name, format!("is {}, and nothing else: {why}", duration_text(holds))))
        }
        Some(_) | None => Ok(()),
    }
}
