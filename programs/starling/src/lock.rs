//! `starling lock`: runs a command while a lock of the key-value store is held, with Consul's flags.
//!
//! The lock is the key `PREFIX/.lock`, held by a session that is renewed while the command runs. Should the lock be lost, the command is
//! ended: another may run already.

mod semaphore;

use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::Context;
use http::StatusCode;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::process::Child;
use tokio::time::{Instant, timeout};

use crate::arguments::Surroundings;
use crate::child;
use crate::client::{ApiArgs, ApiError, Call, Client};
use crate::consul;
use crate::outcome::{Outcome, usage};
use crate::print;
use crate::receipt::duration;
use crate::role::Interrupts;
use semaphore::Semaphore;

/// Time to live of the session, which is renewed at a third of it.
const TTL: Duration = Duration::from_secs(15);

/// The flags of a key that is a lock, which Consul's Go client looks at.
const LOCK_FLAG: u64 = 0x2ddc_cbc0_58a5_0c18;

/// How long one question waits for the lock to change.
const WAIT: Duration = Duration::from_secs(5);

/// Pause before a lock that is free, and is not given, is asked for again: while its lock delay goes on.
const PAUSE: Duration = Duration::from_millis(500);

/// Time for a command to end that was asked to, before it is killed.
const END_WITHIN: Duration = Duration::from_secs(5);

/// Run a command while a lock is held
#[derive(Debug, clap::Args)]
pub(crate) struct LockArgs {
    /// The lock is the key PREFIX/.lock
    #[arg(value_name = "PREFIX")]
    prefix: String,

    /// The command, with its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    command: Vec<String>,

    /// How many may hold it at once; all who ask for it say the same
    #[arg(short = 'n', default_value_t = 1, value_name = "N")]
    holders: u32,

    /// Name of the session
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Exit with the code of the command, and not with 1 whenever that is not 0
    #[arg(long)]
    child_exit_code: bool,

    /// Give up if the lock is not to be had for so long, such as 10s
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    r#try: Option<Duration>,

    /// The same, by its former name
    #[arg(long, value_name = "DURATION", value_parser = duration, hide = true, conflicts_with = "try")]
    timeout: Option<Duration>,

    /// Hand a command of one word to the shell
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, value_name = "BOOL")]
    shell: bool,

    /// Times that a look is tried again that failed, a second apart, before the lock counts as lost; without it, until the session is over
    #[arg(long, value_name = "N")]
    monitor_retry: Option<u32>,

    /// Say what happens
    #[arg(long)]
    verbose: bool,

    #[command(flatten)]
    api: ApiArgs,
}

/// The entry that is the lock; as it is by default where there is none.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Lock {
    #[serde(default)]
    session: Option<String>,
    modify_index: u64,
}

/// A session of one's own.
struct Session<'c> {
    client: &'c Client,
    id: String,
    key: String,
}

pub(crate) async fn run(args: LockArgs, surroundings: &Surroundings) -> anyhow::Result<ExitCode> {
    if args.holders == 0 {
        return Err(usage("-n: a lock has a holder"));
    }
    let client = surroundings.client(&args.api)?;
    let name = args.name.clone().unwrap_or_else(|| format!("lock for {} at {}", args.command[0], args.prefix));
    let prefix = args.prefix.trim_matches('/').to_owned();
    // Each holder of a semaphore has a key of its own, which is to go with it.
    let behavior = if args.holders == 1 { "release" } else { "delete" };
    let session = Session::create(&client, &name, format!("{prefix}/.lock"), behavior).await?;
    let held_by = match args.holders {
        1 => Held::Alone(&session),
        limit => Held::Among(Semaphore { session: &session, prefix, limit }),
    };
    let mut interrupts = Interrupts::listen()?;
    let outcome = held(&held_by, &args, async {
        let _ = interrupts.next().await;
    })
    .await;
    held_by.end().await;
    outcome
}

/// What is held: a lock, or a place among several.
enum Held<'s, 'c> {
    Alone(&'s Session<'c>),
    Among(Semaphore<'s, 'c>),
}

impl Held<'_, '_> {
    async fn acquire(&self) -> anyhow::Result<bool> {
        match self {
            Self::Alone(session) => session.acquire().await,
            Self::Among(semaphore) => semaphore.acquire().await,
        }
    }

    /// Returns once it is held no more, with the reason.
    async fn lost(&self, tries: Option<u32>) -> String {
        let mut watch = Watch { index: None, known: Instant::now(), failures: 0, tries };
        loop {
            let step = async {
                self.session().renew().await?;
                match self {
                    Self::Alone(session) => session.is_held(watch.index).await,
                    Self::Among(semaphore) => semaphore.is_held(watch.index).await,
                }
            };
            match step.await {
                Ok((true, now)) => watch = Watch { index: Some(now), known: Instant::now(), failures: 0, tries },
                Ok((false, _)) => return "somebody else has it".to_owned(),
                Err(error) => match watch.failed(&error) {
                    Some(reason) => return reason,
                    None => tokio::time::sleep(PAUSE).await,
                },
            }
        }
    }

    fn session(&self) -> &Session<'_> {
        match self {
            Self::Alone(session) => session,
            Self::Among(semaphore) => semaphore.session,
        }
    }

    async fn end(&self) {
        match self {
            Self::Alone(session) => session.end().await,
            Self::Among(semaphore) => semaphore.end().await,
        }
    }

    fn key(&self) -> &str {
        match self {
            Self::Alone(session) => &session.key,
            Self::Among(semaphore) => &semaphore.prefix,
        }
    }
}

/// What is known of what is held while a command runs.
struct Watch {
    /// The index of what was seen last.
    index: Option<u64>,
    known: Instant,
    failures: u32,
    /// Failures after which it counts as lost.
    tries: Option<u32>,
}

impl Watch {
    /// Whether a look that failed means that it is lost: at once where the server says no, since a session that is gone does not come
    /// back, and otherwise once nobody can tell for as long as the session lives.
    fn failed(&mut self, error: &anyhow::Error) -> Option<String> {
        self.failures += 1;
        let is_final = match error.downcast_ref::<ApiError>() {
            Some(ApiError::Refused { status, .. }) => {
                status.is_client_error() && *status != StatusCode::TOO_MANY_REQUESTS
            }
            Some(_) => false,
            None => true,
        };
        let is_over = self.tries.is_some_and(|tries| self.failures > tries) || self.known.elapsed() >= TTL;
        (is_final || is_over).then(|| format!("{error:#}"))
    }
}

async fn held(
    session: &Held<'_, '_>,
    args: &LockArgs,
    told_to_end: impl Future<Output = ()>,
) -> anyhow::Result<ExitCode> {
    let mut told_to_end = std::pin::pin!(told_to_end);
    let say = |text: &str| {
        if args.verbose {
            print::note(text);
        }
    };
    say("waiting for the lock");
    let acquire = async {
        match args.r#try.or(args.timeout) {
            Some(patience) => timeout(patience, session.acquire()).await.unwrap_or(Ok(false)),
            None => session.acquire().await,
        }
    };
    let acquired = tokio::select! {
        acquired = acquire => acquired,
        () = &mut told_to_end => return Ok(Outcome::No.into()),
    };
    if !acquired? {
        print::note(&format!("error: the lock {} was not to be had in time", session.key()));
        return Ok(Outcome::No.into());
    }
    say("the lock is held");
    let mut child = child::spawn(&args.command, args.shell, |command| command.env("CONSUL_LOCK_HELD", "true"))?;
    let status = tokio::select! {
        status = child.wait() => status?,
        why = session.lost(args.monitor_retry) => {
            print::note(&format!("error: the lock is lost: {why}; the command is ended"));
            end(&mut child).await?;
            return Ok(Outcome::No.into());
        }
        // Not without the command: whoever has the lock next would run beside it.
        () = &mut told_to_end => {
            end(&mut child).await?;
            return Ok(Outcome::No.into());
        }
    };
    say("the command has ended");
    Ok(ended(args, status))
}

fn ended(args: &LockArgs, status: ExitStatus) -> ExitCode {
    match status.code() {
        Some(0) => Outcome::Done.into(),
        // As Consul's does.
        _ if consul::is_speaking() => ExitCode::from(if args.child_exit_code { 2 } else { 0 }),
        Some(code) if args.child_exit_code => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        _ => Outcome::No.into(),
    }
}

async fn end(child: &mut Child) -> anyhow::Result<()> {
    if let Some(id) = child.id().and_then(|id| i32::try_from(id).ok()) {
        // It may have ended by itself.
        let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
    }
    if timeout(END_WITHIN, child.wait()).await.is_err() {
        child.kill().await?;
    }
    Ok(())
}

impl<'c> Session<'c> {
    /// `behavior` is what becomes of the keys that it holds when it ends.
    async fn create(client: &'c Client, name: &str, key: String, behavior: &str) -> anyhow::Result<Self> {
        let wanted = json!({"Name": name, "TTL": format!("{}s", TTL.as_secs()), "Behavior": behavior});
        let made: Value = client.read(Call::put("/v1/session/create").json(&wanted)).await?;
        let id = made["ID"].as_str().context("the API made a session without an ID")?.to_owned();
        Ok(Self { client, id, key })
    }

    fn entry(&self, call: Call) -> Call {
        call.path(&self.key)
    }

    /// Returns once the lock is held, renewing the session meanwhile.
    async fn acquire(&self) -> anyhow::Result<bool> {
        let mut renewed = Instant::now();
        loop {
            let call = self.entry(Call::put("/v1/kv")).query("acquire", &self.id);
            if self.client.read::<bool>(call.query("flags", &LOCK_FLAG.to_string())).await? {
                return Ok(true);
            }
            let (lock, index) = self.look(None).await?;
            if lock.session.is_some() {
                self.look(Some((index, WAIT))).await?;
            } else {
                tokio::time::sleep(PAUSE).await;
            }
            if renewed.elapsed() >= TTL / 3 {
                self.renew().await?;
                renewed = Instant::now();
            }
        }
    }

    /// How it stands with the lock, and the index of that: as it is now, or after it has changed or the time is over.
    async fn look(&self, after: Option<(u64, Duration)>) -> anyhow::Result<(Lock, u64)> {
        let mut call = self.entry(Call::get("/v1/kv"));
        if let Some((index, wait)) = after {
            call = call.query("index", &index.to_string()).wait(wait);
        }
        let (entries, index) = self.client.find_at::<Vec<Lock>>(call.query("consistent", "true")).await?;
        Ok((entries.and_then(|mut entries| entries.pop()).unwrap_or_default(), index))
    }

    async fn renew(&self) -> anyhow::Result<()> {
        self.client.send(Call::put("/v1/session/renew").segment(&self.id)).await?;
        Ok(())
    }

    /// Whether the lock is held, and the index of that.
    async fn is_held(&self, after: Option<u64>) -> anyhow::Result<(bool, u64)> {
        let (lock, now) = self.look(after.map(|index| (index, WAIT))).await?;
        Ok((lock.session.as_ref() == Some(&self.id), now))
    }

    /// Gives the lock back, and leaves no key behind that nobody wants.
    async fn end(&self) {
        let release = async {
            let _: bool = self.client.read(self.entry(Call::put("/v1/kv")).query("release", &self.id)).await?;
            let (lock, _) = self.look(None).await?;
            self.client.send(Call::put("/v1/session/destroy").segment(&self.id)).await?;
            if lock.session.is_none() && lock.modify_index > 0 {
                let call = self.entry(Call::delete("/v1/kv")).query("cas", &lock.modify_index.to_string());
                self.client.send(call).await?;
            }
            anyhow::Ok(())
        };
        // The session ends by itself otherwise.
        if let Err(error) = release.await {
            print::note(&format!("warning: the lock is given back when its session ends: {error:#}"));
        }
    }
}
