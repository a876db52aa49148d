//! `starling ca`: the CA of the mesh, and how another root comes in its place.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde::Deserialize;
use serde_json::{Value, json};
use starling_model::{TrustDomain, UnixSeconds};
use starling_tls::{CertificateAuthority, SealKeys};

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call, Client};
use crate::outcome::{Outcome, usage};
use crate::print::{self, Format, OutputArgs};

/// Where the CA is.
const CA: &str = "/starling/v1/ca";

/// Nodes that a line of the table names.
const NAMES_SHOWN: usize = 10;

/// The CA of the mesh: where its key is, and another root in its place
#[derive(Debug, clap::Args)]
pub(crate) struct CaArgs {
    #[command(subcommand)]
    command: CaCommand,
}

#[derive(Debug, clap::Subcommand)]
enum CaCommand {
    NewSealKey(NewSealKeyArgs),
    /// List the roots that the mesh trusts, which of them signs, and where its key is
    Roots(ShowArgs),
    /// Show how far a rotation is, and for which nodes and relays it waits
    Status(ShowArgs),
    Rotate(RotateArgs),
    Import(ImportArgs),
    /// Go on with a rotation without the nodes and relays that have not applied it, and name them
    ///
    /// What runs there is refused by the others as soon as these have leaves under the new root.
    Proceed(ShowArgs),
    Remove(RemoveArgs),
    /// Seal every key of the CA anew, with the first seal key of the server that is asked
    Reseal(ShowArgs),
}

/// Make a file with a key by which the CA's own is sealed
///
/// It asks no server. Keep a copy in a safe place: without it nobody opens the CA again.
#[derive(Debug, clap::Args)]
struct NewSealKeyArgs {
    /// The file, which must not exist yet
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The file that it replaces: its keys stand behind the new one, so that what they have sealed opens still
    #[arg(long, value_name = "FILE")]
    replaces: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// Have another root trusted, which signs once every node has applied that
///
/// The root before it stays trusted until the last leaf under it has ended. Ask a server: agents do not pass this on.
#[derive(Debug, clap::Args)]
struct RotateArgs {
    /// The time over which agents renew their leaves once it signs, such as 30s or 5m [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    renew_within: Option<Duration>,

    /// A Vault is to sign: that of [ca.vault] in the file of the servers' --config
    #[arg(long)]
    to_vault: bool,

    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// Have the mesh signed by a CA from elsewhere, an intermediate or a root
///
/// Its key is sealed here, and does not leave this machine otherwise. What it signs is tried before anything is changed.
#[derive(Debug, clap::Args)]
struct ImportArgs {
    /// The certificate that signs, and behind it those between it and its root, in PEM
    #[arg(long, value_name = "FILE")]
    cert: PathBuf,

    /// Its private key, ECDSA on P-256, in PEM without a password
    #[arg(long, value_name = "FILE")]
    key: PathBuf,

    /// Roots in PEM, if none ends the certificates
    #[arg(long, value_name = "FILE")]
    roots: Option<PathBuf>,

    /// The seal keys of the servers
    #[arg(long, value_name = "FILE")]
    seal_key_file: PathBuf,

    /// The time over which agents renew their leaves once it signs, such as 30s or 5m [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    renew_within: Option<Duration>,

    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// Trust a root no more: one that has yet to sign, or that has signed before
#[derive(Debug, clap::Args)]
struct RemoveArgs {
    /// The root's ID, of `starling ca roots`
    #[arg(value_name = "ID")]
    id: String,

    /// Also while leaves under it are valid: whoever still uses one is refused everywhere
    #[arg(long)]
    now: bool,

    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Deserialize)]
struct Shown {
    roots: Vec<Root>,
    rotation: Option<Rotation>,
}

#[derive(Debug, Deserialize)]
struct Root {
    id: String,
    name: String,
    state: String,
    key: Value,
    not_after: String,
    goes_after: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Rotation {
    root: String,
    affected: Option<u64>,
    applied: Option<u64>,
    pending: Vec<String>,
    rejected: Vec<String>,
    given_up: Vec<String>,
    #[serde(default)]
    pending_unnamed: u64,
    #[serde(default)]
    given_up_unnamed: u64,
    #[serde(default)]
    pending_servers: u64,
    #[serde(default)]
    pending_relays: Vec<String>,
    #[serde(default)]
    given_up_relays: Vec<String>,
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed = starling_http_api::parse::parse_duration(text).filter(|given| given.as_secs() > 0);
    parsed.ok_or_else(|| "must be a time of 1s at least, such as 30s or 5m".to_owned())
}

pub(crate) async fn run(args: CaArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    match args.command {
        CaCommand::NewSealKey(args) => new_seal_key(&args),
        CaCommand::Roots(args) => roots(&args, surroundings).await,
        CaCommand::Status(args) => status(&args, surroundings).await,
        CaCommand::Rotate(args) => rotate(args, surroundings).await,
        CaCommand::Import(args) => import(args, surroundings).await,
        CaCommand::Proceed(args) => proceed(&args, surroundings).await,
        CaCommand::Remove(args) => {
            let call = Call::delete("/starling/v1/ca/roots").segment(&args.id);
            let call = if args.now { call.query("now", "true") } else { call };
            surroundings.client(&args.api)?.send(call).await?;
            Ok(Outcome::Done)
        }
        CaCommand::Reseal(args) => reseal(&args, surroundings).await,
    }
}

fn new_seal_key(args: &NewSealKeyArgs) -> anyhow::Result<Outcome> {
    let keys = SealKeys::create(&args.file, args.replaces.as_deref())?;
    print::line(keys.id())?;
    Ok(Outcome::Done)
}

async fn roots(args: &ShowArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let value: Value = surroundings.client(&args.api)?.read(Call::get(CA)).await?;
    if args.output.format == Format::Json {
        print::json(&value)?;
        return Ok(Outcome::Done);
    }
    let shown = Shown::deserialize(value).context("the API shows the CA in an unknown form")?;
    let mut table = print::table(&["ID", "Name", "State", "Key", "Valid until", "Goes after"]);
    for root in shown.roots {
        let key = root.place();
        table.add_row([root.id, root.name, root.state, key, root.not_after, root.goes_after.unwrap_or_default()]);
    }
    print::rows(&table)?;
    Ok(Outcome::Done)
}

impl Root {
    fn place(&self) -> String {
        match (self.key["sealed_with"].as_str(), self.key["vault_mount"].as_str()) {
            (Some(key), _) => format!("sealed with {key}"),
            (None, Some(mount)) => format!("Vault, {mount}"),
            (None, None) => "data directory".to_owned(),
        }
    }
}

async fn status(args: &ShowArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let value: Value = surroundings.client(&args.api)?.read(Call::get(CA)).await?;
    if args.output.format == Format::Json {
        print::json(&value["rotation"])?;
        return Ok(Outcome::Done);
    }
    let shown = Shown::deserialize(value).context("the API shows the CA in an unknown form")?;
    for root in &shown.roots {
        let going = root.goes_after.as_ref().map(|until| format!(", goes after {until}")).unwrap_or_default();
        print::line(&format!("{}  {}{going}", root.id, root.state))?;
    }
    let Some(rotation) = shown.rotation else {
        print::line("no root is being introduced")?;
        return Ok(Outcome::Done);
    };
    let count = |count: Option<u64>| count.map_or("?".to_owned(), |count| count.to_string());
    let (applied, affected) = (count(rotation.applied), count(rotation.affected));
    // Of nodes that are away the receipt knows nothing: they are among those that are waited for.
    print::line(&format!("{} is trusted by {applied} of {affected} nodes whose agents are attached", rotation.root))?;
    if rotation.pending_servers > 0 {
        print::line(&format!("waits for {} of the servers to say how their nodes are", rotation.pending_servers))?;
    }
    let waits = [
        ("waits for", &rotation.pending, rotation.pending_unnamed),
        ("waits for relays", &rotation.pending_relays, 0),
        ("refused by", &rotation.rejected, 0),
        ("given up", &rotation.given_up, rotation.given_up_unnamed),
        ("given up relays", &rotation.given_up_relays, 0),
    ];
    for (what, nodes, unnamed) in waits {
        if !nodes.is_empty() || unnamed > 0 {
            let more = if unnamed > 0 { format!(", and {unnamed} more") } else { String::new() };
            print::line(&format!("{what}: {}{more}", names(nodes)))?;
        }
    }
    print::line("it signs once nothing is waited for; `starling ca proceed` goes on without")?;
    Ok(Outcome::Done)
}

fn names(nodes: &[String]) -> String {
    let shown = nodes.iter().take(NAMES_SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match nodes.len().saturating_sub(NAMES_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

async fn rotate(args: RotateArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let client = surroundings.client(&args.api)?;
    let body = json!({"RenewWithin": within(args.renew_within), "Vault": args.to_vault});
    trusted(&client, Call::put("/starling/v1/ca/rotate").json(&body), args.output.format).await
}

fn within(given: Option<Duration>) -> Option<String> {
    given.map(|given| format!("{}s", given.as_secs()))
}

async fn trusted(client: &Client, call: Call, format: Format) -> anyhow::Result<Outcome> {
    let value: Value = client.read(call).await?;
    match format {
        Format::Json => print::json(&value)?,
        Format::Table => print::line(value["root"].as_str().unwrap_or_default())?,
    }
    Ok(Outcome::Done)
}

async fn import(args: ImportArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let seal = SealKeys::read(&args.seal_key_file).map_err(|error| usage(format!("--seal-key-file: {error}")))?;
    let (certificates, key) = (read("--cert", &args.cert)?, zeroize::Zeroizing::new(read("--key", &args.key)?));
    let roots = args.roots.as_deref().map(|path| read("--roots", path)).transpose()?;
    let client = surroundings.client(&args.api)?;
    let shown: Value = client.read(Call::get(CA)).await?;
    let trust_domain = shown["trust_domain"].as_str().context("the API shows the CA in an unknown form")?;
    let trust_domain: TrustDomain = trust_domain.parse().context("the mesh's trust domain")?;
    let now = UnixSeconds(std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs());
    let authority = CertificateAuthority::import(&certificates, &key, roots.as_deref(), &trust_domain, now)?;
    let body = json!({
        "Root": authority.root().certificate_pem,
        "Key": serde_json::to_string(&authority.sealed(&seal)?)?,
        "RenewWithin": within(args.renew_within),
    });
    trusted(&client, Call::put("/starling/v1/ca/import").json(&body), args.output.format).await
}

fn read(flag: &str, path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).map_err(|error| usage(format!("{flag}: cannot read {}: {error}", path.display())))
}

async fn proceed(args: &ShowArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let value: Value = surroundings.client(&args.api)?.read(Call::put("/starling/v1/ca/proceed")).await?;
    match args.output.format {
        Format::Json => print::json(&value)?,
        Format::Table => {
            for node in value["given_up"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                print::line(node)?;
            }
            if let Some(unnamed @ 1..) = value["given_up_unnamed"].as_u64() {
                print::line(&format!("and {unnamed} more"))?;
            }
            for relay in value["given_up_relays"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                print::line(&format!("relay {relay}"))?;
            }
        }
    }
    Ok(Outcome::Done)
}

async fn reseal(args: &ShowArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let value: Value = surroundings.client(&args.api)?.read(Call::put("/starling/v1/ca/reseal")).await?;
    match args.output.format {
        Format::Json => print::json(&value)?,
        Format::Table => print::line(&format!("{} keys were sealed anew", value["resealed"]))?,
    }
    Ok(Outcome::Done)
}
