//! Joining: how a node that has no certificate gets one, from whichever server lets it in.
//!
//! What may pass is waited for: a server that is not up yet, one that has too much to sign, a node of the same name that is
//! away for a moment. What will not pass ends it at once, by the server's own words. The state of the attempts is kept
//! apart from the connections, so that it can be tried without any.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use starling_identity::JoinToken;
use starling_model::{NodeId, NodeName};
use starling_rpc::{CallError, ConnectError, JoinAnswer, JoinRequest, ServerClient};
use starling_tls::{AgentIdentity, LeafKey, join_client_config};
use tokio::time::Instant;

use crate::remote::uplink::CONNECT_TIMEOUT;

/// How long a node that has nothing to serve from waits to be let in: longer than a fleet of 10,000 takes to join, a node
/// to count as lost and a server to be restarted. Whoever started it should hear of what lasts longer.
pub const PATIENCE: Duration = Duration::from_secs(5 * 60);

/// For an answer: twice what a server lets a request wait for its signature.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(40);

/// The pause after the first round over all servers, doubled after each, and its ceiling.
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// What a server may ask an agent to wait at most, so that none is sent away for ever.
const RETRY_ASKED_MAX: Duration = Duration::from_secs(60);

/// Why a node was not let in by one server.
#[derive(Debug)]
enum Turned {
    /// It never will be, by any server: they share one catalog.
    Away(anyhow::Error),
    /// It never will be by this one, which another may not share.
    AwayHere(anyhow::Error),
    /// Not now; and when to ask again, if that was said.
    Later(anyhow::Error, Option<Duration>),
}

impl From<CallError> for Turned {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused { .. } | CallError::BeginAnew { .. } => Self::Away(error.into()),
            CallError::Unavailable { .. } => Self::Later(error.into(), None),
            CallError::Overloaded { retry_after, .. } => Self::Later(error.into(), Some(retry_after)),
        }
    }
}

impl From<ConnectError> for Turned {
    fn from(error: ConnectError) -> Self {
        match &error {
            ConnectError::NotTrusted { .. } | ConnectError::NoTls { .. } => Self::AwayHere(error.into()),
            // An address that is none, such as one without a port.
            ConnectError::Unreachable { source, .. } if source.kind() == std::io::ErrorKind::InvalidInput => {
                Self::AwayHere(error.into())
            }
            ConnectError::Unreachable { .. }
            | ConnectError::Tls { .. }
            | ConnectError::Http2 { .. }
            | ConnectError::TimedOut { .. } => Self::Later(error.into(), None),
        }
    }
}

/// Who asks to be let in.
#[derive(Debug, Clone)]
pub struct Newcomer {
    /// What it is called.
    pub name: NodeName,
    /// A node's UUID; empty if it has none.
    pub node_id: NodeId,
    /// Whether it is a relay, and no node.
    pub relay: bool,
}

/// Has a node or a relay let in by one of `servers`, and keeps the identity that it is given in `data_dir`. What may pass is waited
/// for up to `patience`; every server is tried once at least.
///
/// # Errors
/// When it is not let in, with the reason of the last server that was tried.
pub async fn join(
    servers: &[String],
    join_token: Option<&str>,
    newcomer: &Newcomer,
    data_dir: &Path,
    patience: Duration,
) -> anyhow::Result<AgentIdentity> {
    let Newcomer { name, node_id, relay } = newcomer.clone();
    let Some(text) = join_token else {
        let (what, flag) = if relay { ("relay", " --relay") } else { ("node", "") };
        bail!("{what} {name} has no certificate yet; give it a join token (starling token create --join{flag})");
    };
    let token: JoinToken = text.parse().context("the join token")?;
    let tls = Arc::new(join_client_config(token.root)?);
    // A node that was in the mesh proves by its key that it is the same.
    let key = AgentIdentity::kept_key(data_dir)?.map_or_else(LeafKey::generate, Ok)?;
    let request =
        JoinRequest { token: text.to_owned(), node: name, node_id, csr_der: key.csr_der()?, relay, through: None };
    let ask = |server: String| ask(server, Arc::clone(&tls), request.clone());
    let answer = until_let_in(servers, patience, ask).await?;
    Ok(AgentIdentity::save(data_dir, &answer.leaf.chain_pem, &key, &answer.roots_pem)?)
}

async fn ask(server: String, tls: Arc<rustls::ClientConfig>, request: JoinRequest) -> Result<JoinAnswer, Turned> {
    let client = ServerClient::connect(&*server, tls, CONNECT_TIMEOUT).await?;
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, client.join(&request)).await;
    let late = || CallError::unavailable(format!("no answer within {} s", ANSWER_TIMEOUT.as_secs()));
    Ok(answer.map_err(|_| late())??)
}

/// Asks one server after the other until one answers, none ever will, or `patience` is over.
async fn until_let_in<T, F: Future<Output = Result<T, Turned>>>(
    servers: &[String],
    patience: Duration,
    ask: impl Fn(String) -> F,
) -> anyhow::Result<T> {
    let start = Instant::now();
    let mut retry = RETRY_FIRST;
    let mut told = None;
    loop {
        let (mut last, mut asked_to_wait, mut may_pass) = (None, None::<Duration>, false);
        for server in servers {
            let error = match ask(server.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(Turned::Away(error)) => return Err(error.context(through(server))),
                Err(Turned::AwayHere(error)) => error,
                Err(Turned::Later(error, after)) => {
                    may_pass = true;
                    asked_to_wait = asked_to_wait.into_iter().chain(after).min();
                    error
                }
            };
            last = Some(error.context(through(server)));
        }
        let last = last.unwrap_or_else(|| anyhow::anyhow!("no server was named"));
        let pause = asked_to_wait.unwrap_or(retry).clamp(retry, RETRY_ASKED_MAX);
        if !may_pass || start.elapsed() + pause > patience {
            return Err(given_up(last, start.elapsed()));
        }
        tell(&last, pause, patience.saturating_sub(start.elapsed()), &mut told);
        tokio::time::sleep(pause.mul_f64(0.75 + fastrand::f64() / 4.0)).await;
        retry = (retry * 2).min(RETRY_MAX);
    }
}

fn through(server: &str) -> String {
    format!("joining through {server}")
}

fn given_up(last: anyhow::Error, after: Duration) -> anyhow::Error {
    match after.as_secs() {
        0 => last,
        seconds => last.context(format!("this node was not let in, after {seconds} s of trying")),
    }
}

/// Says what is waited for: once for each reason, since most are the same for minutes.
fn tell(reason: &anyhow::Error, pause: Duration, left: Duration, told: &mut Option<String>) {
    let reason = format!("{reason:#}");
    if told.as_ref() == Some(&reason) {
        return;
    }
    tracing::warn!(reason, again_in = ?pause, gives_up_in_s = left.as_secs(), "this node is not let in yet; it waits");
    *told = Some(reason);
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// Servers that answer by a script: each attempt takes the next line.
    async fn tried(
        servers: &[&str],
        patience: Duration,
        script: Vec<Result<&str, Turned>>,
    ) -> (String, usize, Duration) {
        let start = Instant::now();
        let (script, asked) = (RefCell::new(script.into_iter()), Cell::new(0));
        let servers: Vec<_> = servers.iter().map(|server| (*server).to_owned()).collect();
        let ask = |_: String| {
            asked.set(asked.get() + 1);
            let next = script.borrow_mut().next();
            std::future::ready(next.unwrap_or_else(|| Err(CallError::unavailable("down for good").into())))
        };
        let ended = until_let_in(&servers, patience, ask).await;
        let ended = ended.map_or_else(|error| format!("{error:#}"), str::to_owned);
        (ended, asked.get(), start.elapsed())
    }

    fn later<T>(reason: &str) -> Result<T, Turned> {
        Err(CallError::unavailable(reason).into())
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_pass_is_waited_for() {
        let script = vec![later("not up"), later("not up"), later("n1 is away for a moment"), Ok("let in")];
        let (ended, asked, took) = tried(&["a:1"], PATIENCE, script).await;
        assert_eq!((ended.as_str(), asked), ("let in", 4));
        let doubled = RETRY_FIRST * (1 + 2 + 4);
        assert!(doubled.mul_f64(0.75) <= took && took <= doubled, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_with_too_much_to_do_says_when_to_ask_again() {
        let after = Duration::from_secs(30);
        let overloaded = CallError::Overloaded { reason: "much to sign".to_owned(), retry_after: after };
        let (ended, asked, took) = tried(&["a:1"], PATIENCE, vec![Err(overloaded.into()), Ok("let in")]).await;
        assert_eq!((ended.as_str(), asked), ("let in", 2));
        assert!(after.mul_f64(0.75) <= took && took <= after, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_ends_it_at_once() {
        let refused = || Err(CallError::refused("the join token is not known").into());
        let (ended, asked, took) = tried(&["a:1", "b:1"], PATIENCE, vec![later("not up"), refused()]).await;
        assert_eq!(ended, "joining through b:1: refused: the join token is not known");
        assert_eq!((asked, took), (2, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_is_passed_over_for_the_next_and_is_none_to_wait_for() {
        let source = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
        let nowhere = || Err(ConnectError::Unreachable { address: "a".to_owned(), source: source() }.into());
        let (ended, ..) = tried(&["a", "b:1"], PATIENCE, vec![nowhere(), Ok("let in")]).await;
        assert_eq!(ended, "let in");
        let (ended, asked, took) = tried(&["a", "b"], PATIENCE, vec![nowhere(), nowhere()]).await;
        assert!(ended.starts_with("joining through b: the server at a cannot be reached"), "{ended}");
        assert_eq!((asked, took), (2, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever() {
        let (ended, asked, took) = tried(&["a:1"], PATIENCE, Vec::new()).await;
        assert!(PATIENCE - RETRY_MAX <= took && took <= PATIENCE, "{took:?}");
        assert!(asked > 30, "{asked}");
        assert!(ended.contains("s of trying: joining through a:1: unavailable: down for good"), "{ended}");
        // Without patience each server is tried once.
        let (ended, asked, took) = tried(&["a:1", "b:1"], Duration::ZERO, Vec::new()).await;
        assert_eq!((asked, took), (2, Duration::ZERO));
        assert_eq!(ended, "joining through b:1: unavailable: down for good");
    }
}
