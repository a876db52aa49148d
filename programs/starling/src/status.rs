//! `starling status`: whether every proxy does what it should, and if not, why.

use anyhow::Context;
use comfy_table::Cell;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call};
use crate::outcome::Outcome;
use crate::print::{self, Format, OutputArgs};

/// Show the leader, the revision, and what each proxy has applied or refused
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Deserialize)]
struct Answer {
    revision: u64,
    proxies: Vec<Proxy>,
}

#[derive(Debug, Deserialize)]
struct Proxy {
    node: String,
    id: String,
    service: Option<String>,
    connected: bool,
    applied_through: u64,
    lag: usize,
    refused: Option<Refused>,
}

#[derive(Debug, Deserialize)]
struct Refused {
    revision: u64,
    type_url: String,
    resources: Vec<String>,
    reason: String,
}

#[derive(Debug, Deserialize)]
struct Diagnostic {
    object: String,
    field: String,
    reason: String,
    fix: String,
}

pub(crate) async fn run(args: StatusArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let client = surroundings.client(&args.api)?;
    let cannot = "cannot read the status";
    let leader: String = client.read(Call::get("/v1/status/leader")).await.context(cannot)?;
    let mut proxies: Value = client.read(Call::get("/starling/v1/proxies")).await.context(cannot)?;
    let changes: Value = client.read(Call::get("/starling/v1/changes")).await.context(cannot)?;
    add_lag(&mut proxies, &changes);
    let diagnostics: Value = client.read(Call::get("/starling/v1/diagnostics")).await.context(cannot)?;
    let diagnostics = diagnostics["diagnostics"].clone();
    if args.output.format == Format::Json {
        print::json(&json!({
            "leader": leader,
            "revision": proxies["revision"],
            "proxies": proxies["proxies"],
            "diagnostics": diagnostics,
        }))?;
        return Ok(Outcome::Done);
    }
    let unknown = "the API answers in another form than this command knows";
    show(&leader, Answer::deserialize(&proxies).context(unknown)?)?;
    for diagnostic in Vec::<Diagnostic>::deserialize(&diagnostics).context(unknown)? {
        let Diagnostic { object, field, reason, fix } = diagnostic;
        print::line(&format!("\n{object}: {field}: {reason}\n  {fix}"))?;
    }
    Ok(Outcome::Done)
}

/// Gives each proxy its `lag`: how many recent changes it has yet to apply.
///
/// The distance between revisions would not do: what does not concern a proxy does not move it.
fn add_lag(proxies: &mut Value, changes: &Value) {
    let changes = changes["changes"].as_array().map_or(&[][..], Vec::as_slice);
    for proxy in proxies["proxies"].as_array_mut().into_iter().flatten() {
        let is_pending =
            |change: &&Value| change["pending"].as_array().is_some_and(|names| names.contains(&proxy["proxy"]));
        proxy["lag"] = changes.iter().filter(is_pending).count().into();
    }
}

fn show(leader: &str, answer: Answer) -> anyhow::Result<()> {
    let Answer { revision, proxies } = answer;
    let leader = if leader.is_empty() { "none" } else { leader };
    let (all, connected) = (proxies.len(), proxies.iter().filter(|proxy| proxy.connected).count());
    print::line(&format!("Leader    {leader}\nRevision  {revision}\nProxies   {all}, {connected} connected"))?;
    if proxies.is_empty() {
        return Ok(());
    }
    let mut table = print::table(&["Proxy", "Service", "Node", "Connected", "Applied", "Lag", "State"]);
    for proxy in &proxies {
        let connected = if proxy.connected { print::good("yes") } else { print::bad("no") };
        table.add_row([
            Cell::new(&proxy.id),
            Cell::new(proxy.service.as_deref().unwrap_or("-")),
            Cell::new(&proxy.node),
            connected,
            Cell::new(proxy.applied_through),
            Cell::new(proxy.lag),
            state(proxy),
        ]);
    }
    print::line("")?;
    print::rows(&table)?;
    // Envoy's words are long; they would tear the table apart.
    for proxy in &proxies {
        if let Some(Refused { revision, type_url, resources, reason }) = &proxy.refused {
            let kind = type_url.rsplit('.').next().unwrap_or(type_url);
            let resources = resources.join(", ");
            print::line(&format!("\n{} refused revision {revision}, {kind} {resources}:\n  {reason}", proxy.id))?;
        }
    }
    Ok(())
}

fn state(proxy: &Proxy) -> Cell {
    if proxy.refused.is_some() {
        print::bad("refused")
    } else if !proxy.connected {
        print::bad("away")
    } else if proxy.lag > 0 {
        print::unsettled("behind")
    } else {
        print::good("current")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_concerns_a_proxy_counts_as_lag() {
        let mut proxies = json!({"revision": 9, "proxies": [{"proxy": "n1/a"}, {"proxy": "n1/b"}]});
        let changes = json!({"changes": [{"pending": ["n1/b"]}, {"pending": []}, {"pending": ["n1/b", "n1/c"]}]});
        add_lag(&mut proxies, &changes);
        assert_eq!((&proxies["proxies"][0]["lag"], &proxies["proxies"][1]["lag"]), (&json!(0), &json!(2)));
    }
}
