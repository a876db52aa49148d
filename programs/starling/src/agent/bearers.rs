//! Who asks an agent apart: what a token may is the servers' to say, and is remembered for a while.
//!
//! While no server is reached, a known token keeps its rights (Consul's `down_policy = "extend-cache"`) unless the
//! configuration asks for `deny`. An unknown token has no rights then.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Bytes;
use serde::Deserialize;
use starling_http_api::acl::secret_hash;
use starling_http_api::{Bearer, BearerFailure, ServersPort};
use starling_model::{AclRights, AclRule, Action, Uuid};

/// Where servers say what a token may.
const RIGHTS: &str = "/starling/v1/acl/rights";

/// How long an answer holds; Consul's `token_ttl`.
const HOLDS: Duration = Duration::from_secs(30);

/// How long an answer is waited for.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Tokens that are remembered; of a machine's programs there are fewer.
const REMEMBERED_MAX: usize = 1_024;

/// Bytes of an answer: a policy has at most 128 KiB of rules, and a token some of them.
const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;

/// What is known of tokens, by the hashes of their secrets.
pub(super) struct Bearers {
    known: Mutex<BTreeMap<[u8; 32], Known>>,
    denies_in_outage: bool,
}

#[derive(Clone)]
struct Known {
    bearer: Bearer,
    at: Instant,
}

#[derive(Deserialize)]
struct Rights {
    accessor: Uuid,
    default: Action,
    rules: Vec<AclRule>,
}

/// What came of asking.
enum Asked {
    Known(Bearer),
    Refused(BearerFailure),
    Unreached(String),
}

impl Bearers {
    /// No token is known yet; with `denies_in_outage`, none has rights while no server is reached.
    pub(super) fn new(denies_in_outage: bool) -> Self {
        Self { known: Mutex::default(), denies_in_outage }
    }

    /// Who shows this secret, or none.
    pub(super) async fn find(&self, servers: &dyn ServersPort, secret: Option<&str>) -> Result<Bearer, BearerFailure> {
        let key = secret_hash(secret.unwrap_or_default()).0;
        let known = self.lock().get(&key).cloned();
        if let Some(known) = known.as_ref().filter(|known| known.at.elapsed() < HOLDS) {
            return Ok(known.bearer.clone());
        }
        match ask(servers, secret).await {
            Asked::Known(bearer) => {
                self.keep(key, bearer.clone());
                Ok(bearer)
            }
            Asked::Refused(failure) => {
                self.lock().remove(&key);
                Err(failure)
            }
            Asked::Unreached(reason) => match known.filter(|_| !self.denies_in_outage) {
                Some(known) => Ok(known.bearer),
                None => {
                    let text = format!("this agent asks a server who shows a token, and none is reached: {reason}");
                    Err(BearerFailure::Unavailable(text))
                }
            },
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<[u8; 32], Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, key: [u8; 32], bearer: Bearer) {
        let mut known = self.lock();
        if known.len() >= REMEMBERED_MAX && !known.contains_key(&key) {
            let oldest = known.iter().min_by_key(|(_, known)| known.at).map(|(key, _)| *key);
            oldest.and_then(|oldest| known.remove(&oldest));
        }
        known.insert(key, Known { bearer, at: Instant::now() });
    }
}

async fn ask(servers: &dyn ServersPort, secret: Option<&str>) -> Asked {
    let mut request = Request::new(Bytes::new());
    *request.uri_mut() = http::Uri::from_static(RIGHTS);
    if let Some(secret) = secret {
        let Ok(secret) = HeaderValue::from_str(secret) else { return Asked::Refused(BearerFailure::Unknown) };
        request.headers_mut().insert("x-consul-token", secret);
    }
    let asking = async {
        let answer = servers.ask(request).await.map_err(|error| error.to_string())?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        Ok::<_, String>((status, body.map_err(|error| error.to_string())?.to_bytes()))
    };
    match tokio::time::timeout(ANSWER_WITHIN, asking).await {
        Ok(Ok((StatusCode::OK, body))) => match serde_json::from_slice::<Rights>(&body) {
            Ok(Rights { accessor, default, rules }) => {
                Asked::Known(Bearer::new(accessor, AclRights::new(default, &rules)))
            }
            Err(error) => Asked::Unreached(format!("the answer has another form: {error}")),
        },
        Ok(Ok((StatusCode::FORBIDDEN, body))) => Asked::Refused(match String::from_utf8_lossy(&body) {
            text if text == BearerFailure::NotBootstrapped.to_string() => BearerFailure::NotBootstrapped,
            _ => BearerFailure::Unknown,
        }),
        Ok(Ok((status, _))) => Asked::Unreached(status.to_string()),
        Ok(Err(reason)) => Asked::Unreached(reason),
        Err(_late) => Asked::Unreached("no answer in time".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use http::Response;
    use starling_http_api::{Body, Unreached};

    use super::*;

    /// A server that answers as long as it is reached.
    struct FakeServer {
        is_reached: bool,
    }

    #[async_trait]
    impl ServersPort for FakeServer {
        async fn ask(&self, _: Request<Bytes>) -> Result<Response<Body>, Unreached> {
            let rights = r#"{"accessor": "6f1c1b7e-6f2c-4cbb-9d5f-0f6f7f6a8a11", "default": "deny", "rules": []}"#;
            match self.is_reached {
                true => Ok(Response::new(Body::from(rights))),
                false => Err(Unreached("cut off".to_owned())),
            }
        }
    }

    #[tokio::test]
    async fn in_an_outage_a_known_token_keeps_its_rights_unless_the_policy_is_deny() {
        for (denies_in_outage, is_known) in [(false, true), (true, false)] {
            let bearers = Bearers::new(denies_in_outage);
            bearers.find(&FakeServer { is_reached: true }, Some("known")).await.expect("a server answers");
            let long_ago = Instant::now().checked_sub(HOLDS).expect("the machine has run for longer");
            bearers.lock().values_mut().for_each(|known| known.at = long_ago);
            let cut_off = FakeServer { is_reached: false };
            let found = bearers.find(&cut_off, Some("known")).await;
            assert_eq!(found.is_ok(), is_known, "denies_in_outage {denies_in_outage}");
            bearers.find(&cut_off, Some("unknown")).await.expect_err("nobody knows it");
        }
    }
}
