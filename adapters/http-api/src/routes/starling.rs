//! Starling's own endpoints: receipts, proxies, diagnostics, and which rule decides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use starling_catalog::{ChangeReport, Earlier, NodeReport, ProxyReport, Refused, Reporter, Snapshot};
use starling_model::{Action, CheckId, CheckStatus, InstanceKey, LIVENESS_CHECK, NodeName, Revision, ServiceName};
use starling_traffic::{Policy, Request, Verdict, authorise};

use super::intention::{policy, service_side};
use crate::answer::Answer;
use crate::barrier::Wanted;
use crate::call::{Call, Query};
use crate::error::ApiError;
use crate::limits::{CHANGES_LISTED_MAX, RECEIPT_NAMES_DEFAULT, RECEIPT_NAMES_MAX, RECEIPT_WAIT_DEFAULT};
use crate::ports::{Leaving, OthersSay};
use crate::router::{Api, Outcome};

pub(super) async fn changes(api: Arc<Api>, call: Call) -> Outcome {
    let revision = api.catalog.snapshot().revision();
    let (changes, unheard) = if call.query.switch("local")? {
        (api.catalog.own_part_of_changes(CHANGES_LISTED_MAX), Vec::new())
    } else {
        api.catalog.changes(CHANGES_LISTED_MAX).await
    };
    let changes: Vec<Value> = changes.iter().map(change_form).collect();
    Ok(listed(json!({"revision": revision.0, "changes": changes}), &unheard))
}

/// A list that may lack what some servers know.
fn listed(mut form: Value, unheard: &[String]) -> Answer {
    if !unheard.is_empty() {
        form["unheard_servers"] = json!(unheard);
    }
    Answer::json(form)
}

pub(super) async fn leaving(api: Arc<Api>, _: Call) -> Outcome {
    leaving_form(api.catalog.leaving(false))
}

pub(super) async fn leave(api: Arc<Api>, _: Call) -> Outcome {
    leaving_form(api.catalog.leaving(true))
}

fn leaving_form(leaving: Option<Leaving>) -> Outcome {
    let alone = || {
        let reason = "this server shares its store with no other, so nobody would take its agents; stop it instead";
        ApiError::bad_request(reason.to_owned())
    };
    let Leaving { begun, attached, standby, done } = leaving.ok_or_else(alone)?;
    Ok(Answer::json(json!({"leaving": begun, "attached": attached, "standby": standby, "done": done})))
}

pub(super) async fn change(api: Arc<Api>, mut call: Call) -> Outcome {
    let text = call.param("revision");
    let revision: u64 = text.parse().map_err(|_| ApiError::bad_request(format!("revision: {text:?} is no number")))?;
    let names = call.query.count("names", RECEIPT_NAMES_MAX)?.unwrap_or(RECEIPT_NAMES_DEFAULT);
    let revision = Revision(revision);
    if let Some(wanted) = Wanted::of(&call.query)? {
        wanted.refuse_unknown_node(&*api.catalog)?;
        let standing = wanted.standing(&*api.catalog, revision, call.stopping()).await;
        call.judge_again(&api).await?;
        let mut form = receipt(&api, revision, Duration::ZERO, names, None).await?;
        form["until"] = standing.to_string().into();
        return Ok(Answer::json(form));
    }
    let wait = call.query.duration("wait")?.unwrap_or(RECEIPT_WAIT_DEFAULT);
    // Other servers ask for what this one's own nodes have done, all of it.
    let local = if call.query.switch("local")? { Some(earlier(&call.query)?) } else { None };
    let form = match call.wait_for(&api, receipt(&api, revision, wait, names, local.as_ref())).await? {
        Some(form) => form?,
        None => receipt(&api, revision, Duration::ZERO, names, local.as_ref()).await?,
    };
    Ok(Answer::json(form))
}

/// What another server knows of the transactions before.
fn earlier(query: &Query) -> Result<Earlier, ApiError> {
    let text = query.text("earlier").unwrap_or_default();
    text.parse().map_err(|error| ApiError::bad_request(format!("earlier: {text:?} {error}")))
}

async fn receipt(
    api: &Api,
    revision: Revision,
    wait: Duration,
    names: usize,
    local: Option<&Earlier>,
) -> Result<Value, ApiError> {
    let report = match local {
        Some(earlier) => api.catalog.own_part_of_change(revision, earlier, wait).await,
        None => api.catalog.change(revision, wait, names).await,
    };
    report.as_ref().map(change_form).ok_or_else(|| {
        let reason = "it was not a change made here, or it is no longer remembered";
        ApiError::not_found(format!("no receipt for revision {revision}: {reason}"))
    })
}

fn change_form(report: &ChangeReport) -> Value {
    let ChangeReport { revision, earlier, counts, latency, reached, applied, pending, rejected, lost, unheard } =
        report;
    let named = applied.iter().map(|(who, _)| who).chain(pending).chain(rejected.iter().map(|(who, _)| who));
    let affected: BTreeSet<&Reporter> = named.collect();
    let applied = applied.iter().map(|(who, us)| json!({"proxy": who.to_string(), "latency_us": us}));
    let rejected = rejected.iter().map(|(who, refused)| refused_form(who, refused));
    let mut form = json!({
        "revision": revision.0,
        "settled": report.is_settled(),
        "counts": {
            "affected": counts.affected,
            "applied": counts.applied,
            "pending": counts.pending,
            "rejected": counts.rejected,
            "lost": counts.lost,
        },
        "affected": affected.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "applied": applied.collect::<Vec<_>>(),
        "pending": pending.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "rejected": rejected.collect::<Vec<_>>(),
        "lost": lost.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "latency_us": {
            "p50": latency.map(|latency| latency.p50),
            "p90": latency.map(|latency| latency.p90),
            "p99": latency.map(|latency| latency.p99),
            "max": latency.map(|latency| latency.max),
        },
        "reached_us": {"50%": reached.half, "99%": reached.most, "100%": reached.all},
    });
    if !earlier.is_empty() {
        form["earlier"] = earlier.to_string().into();
    }
    if !unheard.is_empty() {
        form["unheard_servers"] = json!(unheard);
    }
    form
}

fn refused_form(who: &Reporter, refused: &Refused) -> Value {
    let proxy = match &refused.proxy {
        Some(proxy) => format!("{}/{proxy}", who.node()),
        None => who.to_string(),
    };
    json!({
        "proxy": proxy,
        "revision": refused.revision.0,
        "type_url": refused.type_url,
        "resources": refused.resources,
        "reason": refused.text,
    })
}

pub(super) async fn rotate_leaves(api: Arc<Api>, _: Call) -> Outcome {
    api.agent()?.rotate_leaves();
    Ok(Answer::empty())
}

pub(super) async fn proxies(api: Arc<Api>, call: Call) -> Outcome {
    let snapshot = api.catalog.snapshot();
    let form = |(key, report): &(InstanceKey, ProxyReport)| {
        let service = snapshot.instance(key).map(|entry| entry.value.identity().to_string());
        json!({
            "proxy": key.to_string(),
            "node": key.node.as_str(),
            "id": key.id.as_str(),
            "service": service,
            "connected": report.connected,
            "applied_through": report.applied_through.0,
            "lag": report.owes,
            "refused": report.refused.as_ref().map(|refused| refused_form(&Reporter::Proxy(key.clone()), refused)),
        })
    };
    let proxies: Vec<Value> = api.catalog.proxies().iter().map(form).collect();
    let (proxies, unheard) = with_others(&api, &call, "proxies", "proxy", proxies).await?;
    Ok(listed(json!({"revision": snapshot.revision().0, "proxies": proxies}), &unheard))
}

pub(super) async fn nodes(api: Arc<Api>, call: Call) -> Outcome {
    let form = |node: &NodeReport, stale_for: Duration, lost: bool| {
        let refused = node.refused.iter().map(|(who, refused)| refused_form(who, refused));
        json!({
            "node": node.node.as_str(),
            "connected": node.connected,
            "lost": lost,
            "applied_through": node.applied_through.0,
            "lag": node.owes,
            "staleness_us": u64::try_from(stale_for.as_micros()).unwrap_or(u64::MAX),
            "refused": refused.collect::<Vec<_>>(),
        })
    };
    let (snapshot, known) = (api.catalog.snapshot(), api.catalog.nodes());
    let here: BTreeSet<_> = known.iter().map(|(node, _)| &node.node).collect();
    let alive = CheckId::new(LIVENESS_CHECK).expect("invariant: an identifier");
    // Of these nothing is expected any more: their agents did not come back within the grace.
    let lost = snapshot.nodes().map(|node| &node.value.name).filter(|name| {
        let alive = snapshot.check(name, &alive);
        !here.contains(name) && alive.is_some_and(|check| check.value.status == CheckStatus::Critical)
    });
    let nobody = |node: &NodeName| NodeReport {
        node: node.clone(),
        connected: false,
        applied_through: Revision(0),
        owes: 0,
        owes_since_us: None,
        refused: Vec::new(),
    };
    let lost = lost.map(|name| form(&nobody(name), Duration::ZERO, true));
    let known = known.iter().map(|(node, stale_for)| form(node, *stale_for, false));
    let nodes: Vec<Value> = known.chain(lost).collect();
    let (nodes, unheard) = with_others(&api, &call, "nodes", "node", nodes).await?;
    Ok(listed(json!({"revision": snapshot.revision().0, "nodes": nodes}), &unheard))
}

/// A list of this server with those of the others, each entry once, and the servers that were not heard. Which server
/// knows most of an entry is the one to which it is connected, then one that does not hold it for lost, then the one to
/// which it has reported most.
async fn with_others(
    api: &Api,
    call: &Call,
    list: &str,
    name: &str,
    own: Vec<Value>,
) -> Result<(Vec<Value>, Vec<String>), ApiError> {
    if call.query.switch("local")? {
        return Ok((own, Vec::new()));
    }
    let OthersSay { mut answers, unheard } = api.catalog.others_say(&format!("/starling/v1/{list}?local")).await;
    let others = answers.iter_mut().filter_map(|answer| answer[list].as_array_mut()).flat_map(std::mem::take);
    let known = |entry: &Value| {
        (entry["connected"] == true, entry["lost"] != true, entry["applied_through"].as_u64().unwrap_or_default())
    };
    let mut best: BTreeMap<String, Value> = BTreeMap::new();
    for entry in own.into_iter().chain(others) {
        let key = entry[name].as_str().unwrap_or_default().to_owned();
        match best.get(&key) {
            Some(other) if known(other) >= known(&entry) => {}
            Some(_) | None => {
                best.insert(key, entry);
            }
        }
    }
    Ok((best.into_values().collect(), unheard))
}

pub(super) async fn diagnostics(api: Arc<Api>, _: Call) -> Outcome {
    let revision = api.catalog.snapshot().revision();
    let mut rows = api.catalog.diagnostics();
    rows.extend(super::quarantine::diagnostics(&api));
    let form = |row: &crate::ports::DiagnosticRow| json!({"object": row.object, "field": row.field, "reason": row.reason, "fix": row.fix});
    let rows: Vec<Value> = rows.iter().map(form).collect();
    Ok(Answer::json(json!({"revision": revision.0, "diagnostics": rows})))
}

pub(super) async fn can(api: Arc<Api>, call: Call) -> Outcome {
    let (source, destination) = (service_side(&call.query, "source")?, service_side(&call.query, "destination")?);
    let snapshot = api.catalog.snapshot();
    let mut headers = Vec::new();
    for text in call.query.all("header") {
        let (name, value) = text
            .split_once([':', '='])
            .ok_or_else(|| ApiError::bad_request(format!("header: {text:?} is not of the form NAME:VALUE")))?;
        headers.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
    }
    let method = call.query.text("method").unwrap_or("GET");
    let method = http::Method::from_bytes(method.to_ascii_uppercase().as_bytes())
        .map_err(|_| ApiError::bad_request(format!("method: {method:?} is no HTTP method")))?;
    let path = call.query.text("path");
    let asks_request = path.is_some() || call.query.has("method") || !headers.is_empty();
    let protocol = snapshot.protocol(&destination);
    let policy = policy(&api, &snapshot, &destination);
    let verdict = if asks_request && protocol.is_l7() {
        let request = Request::new(method.as_str(), path.unwrap_or("/"), &headers)
            .map_err(|error| ApiError::bad_request(format!("path: {error}")))?;
        authorise(&policy, &source, Some(&request))
    } else {
        authorise(&policy, &source, None)
    };
    Ok(Answer::json(json!({
        "allowed": verdict.action == Action::Allow,
        "source": source.as_str(),
        "destination": destination.as_str(),
        "protocol": protocol.as_str(),
        "decided_by": decider_form(&policy, verdict),
        "reason": verdict.explain(&policy),
        "notes": notes_on(&snapshot, &[source, destination]),
        "revision": snapshot.revision().0,
    })))
}

/// What an answer about these services should not leave unsaid: rules may be about services that are not there.
fn notes_on(snapshot: &Snapshot, services: &[ServiceName]) -> Vec<String> {
    let absent: BTreeSet<_> = services.iter().filter(|name| snapshot.instances_of(name).next().is_none()).collect();
    absent.into_iter().map(|name| format!("no service named {name} is registered")).collect()
}

fn decider_form(policy: &Policy, verdict: Verdict) -> Value {
    match verdict.rule().and_then(|rule| policy.rules.get(rule)) {
        None => json!({"kind": "default", "action": policy.default.as_str()}),
        Some(rule) => json!({
            "kind": "intention",
            "source": rule.source.as_str(),
            "destination": rule.written_for.as_str(),
            "precedence": rule.precedence,
            "permission": verdict.permission(),
        }),
    }
}
