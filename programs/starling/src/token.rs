//! `starling token`: what lets the agents of new nodes in.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use starling_identity::{JOIN_TOKEN_TTL_MAX, JOIN_TOKEN_TTL_MIN};
use starling_model::ServicePattern;

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call};
use crate::outcome::{Outcome, usage};
use crate::print::{self, Format, OutputArgs};

/// Where join tokens are.
const JOIN_TOKENS: &str = "/starling/v1/tokens/join";

/// Say who may join the mesh
#[derive(Debug, clap::Args)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, clap::Subcommand)]
enum TokenCommand {
    Create(CreateArgs),
    List(ListArgs),
    Revoke(RevokeArgs),
}

/// Make a token, and print it: it is shown once
///
/// Ask a server: agents do not pass this on.
#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// A token by which the agent of a new node joins (`starling agent --join-token`)
    #[arg(long)]
    join: bool,

    /// One by which a relay joins (`starling relay`), and no node: a relay speaks for the nodes behind it
    #[arg(long, requires = "join")]
    relay: bool,

    /// Good for any number of nodes, and not for one only
    #[arg(long)]
    reusable: bool,

    /// How long it is good, such as 30m, 24h or 90d, from a minute to a year
    #[arg(long, default_value = "24h", value_name = "TIME", value_parser = lifetime)]
    ttl: Duration,

    /// Services that the node may register: names, prefixes such as pay-*, or * for all, separated by commas.
    /// Without it: all without access control, none with it
    #[arg(long, value_name = "SERVICES", value_delimiter = ',', conflicts_with = "relay")]
    services: Vec<ServicePattern>,

    /// What it is for
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,

    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// List the tokens, without their texts
#[derive(Debug, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// Revoke a token; nodes that have joined by it stay
#[derive(Debug, clap::Args)]
struct RevokeArgs {
    /// The token's ID, of `starling token list`
    #[arg(value_name = "ID")]
    id: String,

    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Deserialize)]
struct Created {
    token: String,
}

#[derive(Debug, Deserialize)]
struct Listed {
    tokens: Vec<Token>,
}

#[derive(Debug, Deserialize)]
struct Token {
    id: String,
    description: String,
    #[serde(default)]
    for_relays: bool,
    reusable: bool,
    #[serde(default)]
    services: Option<Vec<String>>,
    used: Option<Use>,
    expires_at: String,
}

#[derive(Debug, Deserialize)]
struct Use {
    node: String,
}

fn lifetime(text: &str) -> Result<Duration, String> {
    // Consul's times know no days, and tokens last for many.
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok());
    let days = days.map(|days| Duration::from_secs(u64::from(days) * 24 * 60 * 60));
    let parsed = days.or_else(|| starling_http_api::parse::parse_duration(text));
    match parsed {
        None => Err("must be a number with a unit, such as 30m, 24h or 90d".to_owned()),
        Some(ttl) if (JOIN_TOKEN_TTL_MIN..=JOIN_TOKEN_TTL_MAX).contains(&ttl) => Ok(ttl),
        Some(_) => Err("must be from a minute (1m) to a year (365d)".to_owned()),
    }
}

pub(crate) async fn run(args: TokenArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    match args.command {
        TokenCommand::Create(args) => create(args, surroundings).await,
        TokenCommand::List(args) => list(args, surroundings).await,
        TokenCommand::Revoke(args) => {
            let call = Call::delete(JOIN_TOKENS).segment(&args.id);
            surroundings.client(&args.api)?.send(call).await?;
            Ok(Outcome::Done)
        }
    }
}

async fn create(args: CreateArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    if !args.join {
        return Err(usage("which kind of token? --join makes one by which a node joins"));
    }
    let body = json!({
        "ForRelays": args.relay,
        "Reusable": args.reusable,
        "TTL": format!("{}ms", args.ttl.as_millis()),
        "Description": args.description,
        "Services": args.services.iter().map(ServicePattern::to_string).collect::<Vec<_>>(),
    });
    let call = Call::put(JOIN_TOKENS).json(&body);
    let created: Value = surroundings.client(&args.api)?.read(call).await?;
    match args.output.format {
        Format::Json => print::json(&created)?,
        // Nothing else, so that it can be put into a file or a variable.
        Format::Table => print::line(&serde_json::from_value::<Created>(created)?.token)?,
    }
    Ok(Outcome::Done)
}

async fn list(args: ListArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let client = surroundings.client(&args.api)?;
    let call = Call::get(JOIN_TOKENS);
    match args.output.format {
        Format::Json => print::json(&client.read::<Value>(call).await?)?,
        Format::Table => {
            let mut table = print::table(&["ID", "Good for", "Services", "State", "Expires", "Description"]);
            let now = jiff::Timestamp::now();
            for token in client.read::<Listed>(call).await?.tokens {
                let good_for = match (token.for_relays, token.reusable) {
                    (false, true) => "any number of nodes",
                    (false, false) => "one node",
                    (true, true) => "any number of relays",
                    (true, false) => "one relay",
                };
                let state = token.state(now);
                let services = token.services.map_or_else(|| "-".to_owned(), |services| services.join(", "));
                table.add_row([token.id, good_for.to_owned(), services, state, token.expires_at, token.description]);
            }
            print::rows(&table)?;
        }
    }
    Ok(Outcome::Done)
}

impl Token {
    fn state(&self, now: jiff::Timestamp) -> String {
        match &self.used {
            Some(by) => format!("used by {}", by.node),
            None if self.expires_at.parse().is_ok_and(|expires: jiff::Timestamp| expires <= now) => {
                "expired".to_owned()
            }
            None => "good".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_is_from_a_minute_to_a_year_in_days_too() {
        assert_eq!(lifetime("90d"), lifetime("2160h"));
        assert_eq!(lifetime("365d"), Ok(JOIN_TOKEN_TTL_MAX));
        for outside in ["59s", "366d", "400d", "8761h", "4294967295d"] {
            assert!(lifetime(outside).is_err_and(|said| said.contains("365d")), "{outside}");
        }
        for wrong in ["", "d", "1.5d", "-1d", "90"] {
            assert!(lifetime(wrong).is_err_and(|said| said.contains("unit")), "{wrong}");
        }
    }
}
