//! A mesh whose access is controlled, and its first token.

use std::sync::Arc;

use http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use starling_model::Action;
use tower::ServiceExt;

use super::World;

pub struct Mesh {
    pub world: Arc<World>,
    pub router: axum::Router,
    pub root: String,
}

impl Mesh {
    pub async fn new(default: Action) -> Self {
        let world = World::new();
        world.control_access(default);
        let (answer, token) = world.send("PUT", "/v1/acl/bootstrap", "").await;
        assert_eq!(answer.status(), 200, "{token}");
        let token: Value = serde_json::from_str(&token).unwrap();
        Self { router: world.router(), world, root: token["SecretID"].as_str().unwrap().to_owned() }
    }

    pub async fn ask(&self, token: Option<&str>, method: &str, target: &str, body: impl AsRef<[u8]>) -> (u16, String) {
        let (answer, text) = self.ask_head(token, method, target, body).await;
        (answer.status().as_u16(), text)
    }

    pub async fn ask_head(
        &self,
        token: Option<&str>,
        method: &str,
        target: &str,
        body: impl AsRef<[u8]>,
    ) -> (http::Response<()>, String) {
        let mut request = Request::builder().method(method).uri(target);
        if let Some(token) = token {
            request = request.header("x-consul-token", token);
        }
        let request = request.body(axum::body::Body::from(body.as_ref().to_vec())).unwrap();
        let (head, body) = self.router.clone().oneshot(request).await.unwrap().into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        (http::Response::from_parts(head, ()), String::from_utf8_lossy(&bytes).into_owned())
    }

    pub async fn as_root(&self, method: &str, target: &str, body: impl AsRef<[u8]>) -> Value {
        let (status, text) = self.ask(Some(&self.root), method, target, body).await;
        assert_eq!(status, 200, "{method} {target}: {text}");
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }

    /// The secret of a token with these rules.
    pub async fn token(&self, name: &str, rules: &str) -> String {
        let policy = json!({"Name": name, "Rules": rules}).to_string();
        self.as_root("PUT", "/v1/acl/policy", &policy).await;
        let token = json!({"Policies": [{"Name": name}]}).to_string();
        let token = self.as_root("PUT", "/v1/acl/token", &token).await;
        token["SecretID"].as_str().unwrap().to_owned()
    }
}
