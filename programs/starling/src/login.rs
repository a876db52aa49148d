//! `starling login` and `starling logout`, with Consul's flags.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call};
use crate::outcome::{Outcome, usage};
use crate::print;

/// Bytes of a file that holds a bearer token.
const BEARER_BYTES_MAX: u64 = 64 * 1024;

/// Get a token for what somebody else says that you are
#[derive(Debug, clap::Args)]
pub(crate) struct LoginArgs {
    /// The auth method
    #[arg(long, value_name = "NAME")]
    method: String,

    /// The file that holds the JSON Web Token
    #[arg(long, value_name = "FILE")]
    bearer_token_file: PathBuf,

    /// The file to which the secret of the new token is written, readable by its owner alone
    #[arg(long, value_name = "FILE")]
    token_sink_file: PathBuf,

    /// Something that the token's description is to say; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    meta: Vec<String>,

    /// Taken, and of no effect: the method has a type
    #[arg(long = "type", value_name = "TYPE", hide = true)]
    kind: Option<String>,

    #[command(flatten)]
    api: ApiArgs,
}

/// End the token that is shown, which came of a login
#[derive(Debug, clap::Args)]
pub(crate) struct LogoutArgs {
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn login(args: LoginArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let file = &args.bearer_token_file;
    let cannot = |error: std::io::Error| usage(format!("--bearer-token-file: cannot read {}: {error}", file.display()));
    if std::fs::metadata(file).map_err(cannot)?.len() > BEARER_BYTES_MAX {
        return Err(usage(format!("--bearer-token-file: {} is too large for a token", file.display())));
    }
    let bearer = std::fs::read_to_string(file).map_err(cannot)?;
    let mut meta = Map::new();
    for pair in &args.meta {
        let (key, value) = pair.split_once('=').ok_or_else(|| usage(format!("--meta {pair:?} is not KEY=VALUE")))?;
        meta.insert(key.to_owned(), value.into());
    }
    let body = json!({"AuthMethod": args.method, "BearerToken": bearer.trim(), "Meta": meta});
    let made: Value = surroundings.client(&args.api)?.read(Call::post("/v1/acl/login").json(&body)).await?;
    let secret = made["SecretID"].as_str().ok_or_else(|| usage("the API made a token without a secret"))?;
    sink(&args.token_sink_file, secret)?;
    Ok(Outcome::Done)
}

/// Puts a file in place that was never anybody else's to read.
fn sink(path: &Path, secret: &str) -> anyhow::Result<()> {
    let cannot = |error: std::io::Error| usage(format!("--token-sink-file: cannot write {}: {error}", path.display()));
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let beside = path.with_file_name(name);
    let mut options = std::fs::OpenOptions::new();
    let written = options.write(true).create_new(true).mode(0o600).open(&beside);
    let written = written.and_then(|mut file| file.write_all(secret.as_bytes()).and_then(|()| file.sync_all()));
    let placed = written.and_then(|()| std::fs::rename(&beside, path));
    if placed.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    placed.map_err(cannot)
}

pub(crate) async fn logout(args: LogoutArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    surroundings.client(&args.api)?.send(Call::post("/v1/acl/logout")).await?;
    print::line("The token is ended")?;
    Ok(Outcome::Done)
}
