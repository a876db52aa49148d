//! `starling services list`.

use std::collections::BTreeMap;

use anyhow::Context;
use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, ApiError, Call, Client};
use crate::outcome::Outcome;
use crate::print::{self, Format, OutputArgs};

/// Services that are asked for at a time: enough to keep the API busy, little enough not to crowd out others.
const ASKED_AT_A_TIME: usize = 16;

#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// One service. An instance counts as healthy as the worst of its checks and its node's.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Row {
    name: String,
    instances: usize,
    passing: usize,
    warning: usize,
    critical: usize,
    tags: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Instance {
    checks: Vec<Check>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Check {
    status: String,
}

pub(super) async fn run(args: ListArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let client = surroundings.client(&args.api)?;
    let services: BTreeMap<String, Vec<String>> =
        client.read(Call::get("/v1/catalog/services")).await.context("cannot list services")?;
    let asked = services.into_iter().map(|(name, tags)| row(&client, name, tags));
    let rows: Vec<Row> = futures::stream::iter(asked)
        .buffered(ASKED_AT_A_TIME)
        .try_collect()
        .await
        .context("cannot list the health of services")?;
    match args.output.format {
        Format::Json => print::json(&rows)?,
        Format::Table => show(&rows)?,
    }
    Ok(Outcome::Done)
}

async fn row(client: &Client, name: String, tags: Vec<String>) -> Result<Row, ApiError> {
    let instances: Vec<Instance> = client.read(Call::get("/v1/health/service").segment(&name)).await?;
    Ok(counted(name, tags, &instances))
}

fn counted(name: String, tags: Vec<String>, instances: &[Instance]) -> Row {
    let mut row = Row { name, instances: instances.len(), passing: 0, warning: 0, critical: 0, tags };
    for instance in instances {
        let any = |status: &str| instance.checks.iter().any(|check| check.status == status);
        let count = if any("critical") {
            &mut row.critical
        } else if any("warning") {
            &mut row.warning
        } else {
            &mut row.passing
        };
        *count += 1;
    }
    row
}

fn show(rows: &[Row]) -> anyhow::Result<()> {
    let mut table = print::table(&["Service", "Instances", "Passing", "Warning", "Critical", "Tags"]);
    for row in rows {
        let passing = if row.passing == row.instances { print::good(row.passing) } else { row.passing.into() };
        let warning = if row.warning > 0 { print::unsettled(row.warning) } else { row.warning.into() };
        let critical = if row.critical > 0 { print::bad(row.critical) } else { row.critical.into() };
        let (name, tags) = (row.name.as_str().into(), row.tags.join(",").into());
        table.add_row([name, row.instances.into(), passing, warning, critical, tags]);
    }
    print::rows(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_as_healthy_as_its_worst_check() {
        let instances: Vec<Instance> = serde_json::from_value(serde_json::json!([
            {"Checks": [{"Status": "passing"}, {"Status": "critical"}, {"Status": "warning"}]},
            {"Checks": [{"Status": "warning"}, {"Status": "passing"}]},
            {"Checks": []},
        ]))
        .unwrap();
        let row = counted("web".to_owned(), Vec::new(), &instances);
        assert_eq!((row.instances, row.passing, row.warning, row.critical), (3, 1, 1, 1));
    }
}
