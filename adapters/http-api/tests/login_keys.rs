//! Keys for logins that are fetched: by one for all, not again at once when that fails, and where an issuer says that they are.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/login.rs"]
mod login;
#[path = "world/world.rs"]
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::routing::get;
use http::StatusCode;
use jsonwebtoken::{Algorithm, Header};
use login::{Issuer, Mesh, claims, config};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

/// Somebody who serves keys.
#[derive(Clone)]
struct Keys {
    /// What is answered at each path, and the body.
    set: Arc<Value>,
    /// What it says of itself; its own address is put in for `SELF`.
    configuration: Arc<std::sync::Mutex<String>>,
    status: Arc<AtomicU16>,
    asked: Arc<AtomicUsize>,
    /// How many answers may go out.
    gate: Arc<Semaphore>,
    url: String,
}

impl Keys {
    async fn serve(issuers: &[(&Issuer, &str)]) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let set: Vec<Value> = issuers.iter().map(|(issuer, kid)| issuer.jwk(kid)).collect();
        let configuration = json!({"issuer": url, "jwks_uri": format!("{url}/keys")}).to_string();
        let keys = Self {
            set: Arc::new(json!({"keys": set})),
            configuration: Arc::new(configuration.into()),
            status: Arc::new(AtomicU16::new(200)),
            asked: Arc::default(),
            gate: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
            url,
        };
        let router = axum::Router::new()
            .route("/keys", get(Self::answer))
            .route("/.well-known/openid-configuration", get(Self::configure))
            .with_state(keys.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        keys
    }

    async fn answer(State(keys): State<Self>) -> (StatusCode, String) {
        keys.asked.fetch_add(1, Ordering::SeqCst);
        keys.gate.acquire().await.unwrap().forget();
        (StatusCode::from_u16(keys.status.load(Ordering::SeqCst)).unwrap(), keys.set.to_string())
    }

    async fn configure(State(keys): State<Self>) -> String {
        keys.configuration.lock().unwrap().clone()
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn answer_with(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }
}

async fn pass(seconds: u64) {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(seconds)).await;
    tokio::time::resume();
}

fn named(kid: &str) -> Header {
    Header { kid: Some(kid.to_owned()), ..Header::new(Algorithm::ES256) }
}

#[tokio::test]
async fn of_many_who_log_in_at_once_one_fetches_the_keys() {
    let (mesh, issuer) = (Mesh::new().await, Issuer::new());
    let keys = Keys::serve(&[(&issuer, "1")]).await;
    mesh.method(config(json!({"JWKSURL": format!("{}/keys", keys.url)}))).await;
    mesh.rule("service", "web", "").await;
    keys.gate.forget_permits(Semaphore::MAX_PERMITS);
    let bearer = issuer.sign_as(&named("1"), &claims(json!({})));
    let logins = futures::future::join_all((0..20).map(|_| mesh.login(&bearer)));
    let open = async {
        while keys.asked() == 0 {
            tokio::task::yield_now().await;
        }
        keys.gate.add_permits(1);
    };
    let (answers, ()) = tokio::join!(logins, open);
    for (status, text) in answers {
        assert_eq!(status, 200, "{text}");
    }
    assert_eq!(keys.asked(), 1);
}

#[tokio::test]
async fn a_set_that_cannot_be_had_is_let_be_and_one_that_was_had_is_used_for_a_while() {
    let (mesh, issuer) = (Mesh::new().await, Issuer::new());
    let keys = Keys::serve(&[(&issuer, "1")]).await;
    mesh.method(config(json!({"JWKSURL": format!("{}/keys", keys.url)}))).await;
    mesh.rule("service", "web", "").await;
    let bearer = |issuer: &Issuer, kid: &str| issuer.sign_as(&named(kid), &claims(json!({})));
    keys.answer_with(503);
    for _ in 0..5 {
        let (status, text) = mesh.login(&bearer(&issuer, "1")).await;
        assert!(status == 403 && text.as_str().unwrap().contains("cannot be had now"), "{status} {text}");
    }
    assert_eq!(keys.asked(), 1, "it was let be");
    pass(4).await;
    keys.answer_with(200);
    assert_eq!(mesh.login(&bearer(&issuer, "1")).await.0, 200);
    assert_eq!(keys.asked(), 2);
    // A refresh is due, and fails.
    pass(5 * 60).await;
    keys.answer_with(500);
    for _ in 0..3 {
        assert_eq!(mesh.login(&bearer(&issuer, "1")).await.0, 200, "the set that was had is used");
    }
    assert_eq!(mesh.login(&bearer(&Issuer::new(), "2")).await.0, 403, "nobody is in by a key that is not in it");
    assert_eq!(keys.asked(), 3);
    // For an hour, and no longer.
    pass(56 * 60).await;
    assert_eq!(mesh.login(&bearer(&issuer, "1")).await.0, 403);
    pass(4).await;
    keys.answer_with(200);
    assert_eq!(mesh.login(&bearer(&issuer, "1")).await.0, 200);
}

#[tokio::test]
async fn an_issuer_says_where_its_keys_are_and_has_to_be_who_it_is_taken_for() {
    let (mesh, issuer) = (Mesh::new().await, Issuer::new());
    let keys = Keys::serve(&[(&issuer, "1")]).await;
    let mut settings = config(json!({"OIDCDiscoveryURL": keys.url}));
    settings.as_object_mut().unwrap().remove("BoundIssuer");
    mesh.method(settings.clone()).await;
    mesh.rule("service", "web", "").await;
    let login = async |over: Value| mesh.login(&issuer.sign_as(&named("1"), &claims(over))).await;
    let (status, text) = login(json!({"iss": keys.url})).await;
    assert_eq!(status, 200, "{text}");
    let (status, text) = login(json!({"iss": "https://issuer.test"})).await;
    assert!(status == 403 && text.as_str().unwrap().contains("issuer"), "{status} {text}");
    for (said, reason) in [
        (json!({"issuer": "https://evil.test", "jwks_uri": format!("{}/keys", keys.url)}), "is the issuer"),
        (json!({"issuer": keys.url, "jwks_uri": "http://evil.test/keys"}), "no https URL"),
        (json!({"issuer": keys.url, "jwks_uri": "file:///etc/passwd"}), "no https URL"),
        (json!({"issuer": keys.url}), "no configuration"),
        (json!([]), "no configuration"),
        (
            json!({"issuer": keys.url, "jwks_uri": format!("{}/.well-known/openid-configuration", keys.url)}),
            "no set of keys",
        ),
    ] {
        *keys.configuration.lock().unwrap() = said.to_string();
        // Beyond what is let be, and what an earlier set is used for.
        pass(2 * 60 * 60).await;
        let (status, text) = login(json!({"iss": keys.url})).await;
        assert!(status == 403 && text.as_str().unwrap().contains(reason), "{said}: {status} {text}");
    }
}
