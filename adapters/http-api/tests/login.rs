//! Logging in by JSON Web Tokens that are really signed, and by ones that are not.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/login.rs"]
mod login;
#[path = "world/world.rs"]
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use login::{Issuer, Mesh, claims, config, now};
use serde_json::{Value, json};

#[tokio::test]
async fn who_is_known_elsewhere_gets_what_binding_rules_say_until_it_leaves_or_the_method_goes() {
    let (mesh, issuer) = (Mesh::new().await, Issuer::new());
    mesh.method(config(json!({"JWTValidationPubKeys": [Issuer::new().public_pem(), issuer.public_pem()]}))).await;
    let bearer = issuer.sign(&claims(json!({})));
    assert_eq!(mesh.login(&bearer).await.0, 403, "nothing is bound yet");
    mesh.put("/v1/acl/policy", json!({"Name": "of-shop", "Rules": "key \"k\" { policy = \"write\" }"})).await;
    mesh.rule("service", "${value.service}", "\"dev\" in list.roles and value.admin == true").await;
    mesh.rule("policy", "of-${value.namespace}", "").await;
    mesh.rule("policy", "of-nobody", "").await;
    mesh.rule("role", "r", "value.namespace == other").await;
    mesh.rule("node", "node-of-${ value.namespace }", "value.namespace != other").await;
    let templated = json!({"AuthMethod": "jwt", "BindType": "templated-policy", "BindName": "builtin/node",
        "BindVars": {"Name": "${value.namespace}"}});
    mesh.put("/v1/acl/binding-rule", templated).await;

    let (status, token) = mesh.login(&bearer).await;
    assert_eq!(status, 200, "{token}");
    assert_eq!(token["AuthMethod"], "jwt");
    assert_eq!(token["Description"], "token created via login: {\"pod\":\"p1\"}");
    assert_eq!(token["ServiceIdentities"], json!([{"ServiceName": "web-1"}]));
    assert_eq!(token["NodeIdentities"][0]["NodeName"], "node-of-shop");
    assert_eq!((&token["Policies"][0]["Name"], token["Policies"].as_array().unwrap().len()), (&json!("of-shop"), 1));
    assert_eq!(token["TemplatedPolicies"][0]["TemplateVariables"]["Name"], "shop");
    assert!(token["Roles"].is_null() && token["Local"] == true && token["ExpirationTime"].is_string(), "{token}");
    let secret = token["SecretID"].as_str().unwrap().to_owned();
    assert_eq!(mesh.ask(&secret, "PUT", "/v1/kv/k", &json!(1)).await.0, 200);
    assert_eq!(mesh.ask(&secret, "PUT", "/v1/kv/other", &json!(1)).await.0, 403);
    let (_, listed) = mesh.ask(&mesh.root, "GET", "/v1/acl/tokens?authmethod=jwt", &Value::Null).await;
    assert_eq!(listed.as_array().unwrap().len(), 1);

    // It leaves; what did not come of a login does not.
    assert_eq!(mesh.ask(&mesh.root, "POST", "/v1/acl/logout", &Value::Null).await.0, 403);
    assert_eq!(mesh.ask(&secret, "POST", "/v1/acl/logout", &Value::Null).await.0, 200);
    assert_eq!(mesh.ask(&secret, "PUT", "/v1/kv/k", &json!(1)).await.0, 403);
    assert_eq!(mesh.send("POST", "/v1/acl/logout", "").await.0, 403);

    // The method goes, with everybody who has come by it.
    let (_, token) = mesh.login(&bearer).await;
    let secret = token["SecretID"].as_str().unwrap().to_owned();
    assert_eq!(mesh.ask(&secret, "PUT", "/v1/kv/k", &json!(1)).await.0, 200);
    assert_eq!(mesh.ask(&mesh.root, "DELETE", "/v1/acl/auth-method/jwt", &Value::Null).await.0, 200);
    assert_eq!(mesh.ask(&secret, "PUT", "/v1/kv/k", &json!(1)).await.0, 403);
    let (_, left) = mesh.ask(&mesh.root, "GET", "/v1/acl/tokens", &Value::Null).await;
    assert_eq!(left.as_array().unwrap().len(), 2, "the first and the anonymous one: {left}");
    assert_eq!(mesh.login(&bearer).await.0, 403);
}

#[tokio::test]
async fn whatever_is_not_signed_for_this_mesh_and_this_moment_is_refused() {
    let (mesh, issuer) = (Mesh::new().await, Issuer::new());
    mesh.method(config(json!({"JWTValidationPubKeys": [issuer.public_pem()]}))).await;
    mesh.rule("service", "web", "").await;
    let good = issuer.sign(&claims(json!({})));
    assert_eq!(mesh.login(&good).await.0, 200);
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let unsigned = format!("{}.{}.", part(&json!({"alg": "none", "typ": "JWT"})), part(&claims(json!({}))));
    let public = issuer.public_pem();
    let by_public =
        encode(&Header::new(Algorithm::HS256), &claims(json!({})), &EncodingKey::from_secret(public.as_bytes()));
    let (head, rest) = good.split_once('.').unwrap();
    let (_, signature) = rest.split_once('.').unwrap();
    let (root, others) = (part(&claims(json!({"sub": "root"}))), Issuer::new());
    let far = now() + 3_600;
    for (what, bearer) in [
        ("another key", others.sign(&claims(json!({})))),
        ("another issuer", issuer.sign(&claims(json!({"iss": "https://issuer.test.evil"})))),
        ("no issuer", issuer.sign(&claims(json!({"iss": null})))),
        ("a subject that is none", issuer.sign(&claims(json!({"sub": {"a": 1}})))),
        ("another audience", issuer.sign(&claims(json!({"aud": "others"})))),
        ("no audience", issuer.sign(&claims(json!({"aud": null})))),
        ("an audience that is none", issuer.sign(&claims(json!({"aud": {"mesh": true}})))),
        ("expired", issuer.sign(&claims(json!({"iat": now() - 900, "exp": now() - 600})))),
        ("expired long after it was made", issuer.sign(&claims(json!({"iat": now() - 900, "exp": null})))),
        ("not yet", issuer.sign(&claims(json!({"nbf": far, "exp": far + 60})))),
        ("made in the future", issuer.sign(&claims(json!({"iat": far, "exp": far + 60})))),
        ("no time at all", issuer.sign(&claims(json!({"iat": null, "exp": null})))),
        ("a time that is none", issuer.sign(&claims(json!({"exp": "tomorrow"})))),
        ("a time before all time", issuer.sign(&claims(json!({"exp": -1})))),
        ("unsigned", unsigned),
        ("signed with the public key as a secret", by_public.unwrap()),
        ("other claims under the signature", format!("{head}.{root}.{signature}")),
        ("no signature", format!("{head}.{rest_of}.", rest_of = rest.split_once('.').unwrap().0)),
        ("claims that are no object", issuer.sign(&json!(["a"]))),
        ("huge", format!("{head}.{}.{signature}", "A".repeat(100_000))),
        ("huge and signed", issuer.sign(&claims(json!({"more": "x".repeat(50_000)})))),
        ("nested", format!("{head}.{}.{signature}", URL_SAFE_NO_PAD.encode("[".repeat(9_000)))),
        ("no token", "token".to_owned()),
        ("dots", "...".to_owned()),
        ("other letters", "é.ü.\u{0}".to_owned()),
    ] {
        let (status, text) = mesh.login(&bearer).await;
        assert!(
            status == 403 && text.as_str().is_some_and(|text| text.starts_with("Permission denied: ")),
            "{what}: {status} {text}"
        );
    }
    for (body, wanted) in [
        (json!({}), 400),
        (json!({"AuthMethod": "jwt"}), 400),
        (json!({"AuthMethod": "other", "BearerToken": good}), 403),
        (json!({"AuthMethod": "a/b", "BearerToken": good}), 403),
        (json!({"AuthMethod": "jwt", "BearerToken": [good]}), 400),
        (json!({"AuthMethod": "jwt", "BearerToken": good, "Meta": {"a": "x".repeat(5_000)}}), 400),
        (json!({"AuthMethod": "jwt", "BearerToken": good, "Namespace": "other"}), 400),
    ] {
        let (status, text) = mesh.send("POST", "/v1/acl/login", &body.to_string()).await;
        assert_eq!(status, wanted, "{text}");
    }
    // Only these are left: nobody was let in by a refusal.
    let (_, listed) = mesh.ask(&mesh.root, "GET", "/v1/acl/tokens?authmethod=jwt", &Value::Null).await;
    assert_eq!(listed.as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_caller_of_whom_a_rule_makes_no_name_is_refused_and_leeways_hold() {
    let (mesh, issuer) = (Mesh::new().await, Issuer::new());
    let mut settings = config(json!({"JWTValidationPubKeys": [issuer.public_pem()]}));
    settings["ClockSkewLeeway"] = json!("10m");
    mesh.method(settings).await;
    mesh.rule("service", "${value.service}", "").await;
    let late = issuer.sign(&claims(json!({"exp": now() - 300})));
    assert_eq!(mesh.login(&late).await.0, 200, "within the leeway");
    for sub in [json!("../other"), json!("a b"), json!(""), json!(null), json!("x".repeat(300))] {
        let (status, text) = mesh.login(&issuer.sign(&claims(json!({"sub": sub})))).await;
        assert!(status == 403 && text.as_str().unwrap().contains("binding rule"), "{sub}: {status} {text}");
    }
}

#[tokio::test]
async fn methods_and_rules_that_could_let_nobody_in_are_refused_when_they_are_written() {
    let (mesh, issuer) = (Mesh::new().await, Issuer::new());
    let pem = issuer.public_pem();
    for (config, field) in [
        (json!({}), "JWTValidationPubKeys"),
        (json!({"JWTValidationPubKeys": ["key"]}), "JWTValidationPubKeys"),
        (json!({"JWTValidationPubKeys": [pem], "JWKSURL": "https://a"}), "JWKSURL"),
        (json!({"JWKSURL": "http://issuer.test/keys"}), "JWKSURL"),
        (json!({"JWKSURL": "file:///etc/passwd"}), "JWKSURL"),
        (json!({"OIDCDiscoveryURL": "http://issuer.test"}), "OIDCDiscoveryURL"),
        (json!({"OIDCDiscoveryURL": "https://issuer.test", "JWKSURL": "https://issuer.test/keys"}), "OIDCDiscoveryURL"),
        (json!({"OIDCDiscoveryURL": "https://issuer.test", "OIDCClientID": "x"}), "OIDCClientID"),
        (json!({"JWTValidationPubKeys": [pem], "JWTSupportedAlgs": ["HS256"]}), "JWTSupportedAlgs"),
        (json!({"JWTValidationPubKeys": [pem], "JWTSupportedAlgs": ["none"]}), "JWTSupportedAlgs"),
        (json!({"JWTValidationPubKeys": [pem], "OIDCDiscoveryURL": "https://a"}), "OIDCDiscoveryURL"),
        (json!({"JWTValidationPubKeys": [pem], "BoundIsuer": "x"}), "BoundIsuer"),
        (json!({"JWTValidationPubKeys": [pem], "ClockSkewLeeway": "soon"}), "ClockSkewLeeway"),
    ] {
        let method = json!({"Name": "jwt", "Type": "jwt", "Config": config});
        let (status, text) = mesh.ask(&mesh.root, "PUT", "/v1/acl/auth-method", &method).await;
        assert!(
            status == 400 && text.as_str().unwrap().contains(&format!("Config.{field}")),
            "{config}: {status} {text}"
        );
    }
    mesh.method(config(json!({"JWTValidationPubKeys": [pem]}))).await;
    for (selector, name, field) in [
        ("value.a ==", "x", "Selector"),
        ("serviceaccount.name == a", "x", "Selector"),
        ("", "${value.a", "BindName"),
        ("", "${list.a}", "BindName"),
        // No claim is called so by the method.
        ("", "web-${value.servce}", "BindName"),
        ("", "${value.roles}", "BindName"),
        ("value.servce == web", "x", "Selector"),
        ("value.service == web and dev in list.groups", "x", "Selector"),
        ("not (\"/value/roles\" == dev)", "x", "Selector"),
        ("list.service is empty", "x", "Selector"),
    ] {
        let rule = json!({"AuthMethod": "jwt", "BindType": "service", "BindName": name, "Selector": selector});
        let (status, text) = mesh.ask(&mesh.root, "PUT", "/v1/acl/binding-rule", &rule).await;
        assert!(status == 400 && text.as_str().unwrap().contains(field), "{rule}: {status} {text}");
    }
}

#[tokio::test]
async fn keys_are_fetched_and_a_new_one_is_found() {
    let (mesh, first, second) = (Mesh::new().await, Issuer::new(), Issuer::new());
    let asked = Arc::new(AtomicUsize::new(0));
    let (counted, sets) =
        (Arc::clone(&asked), [json!({"keys": [first.jwk("1")]}), json!({"keys": [first.jwk("1"), second.jwk("2")]})]);
    let answer = move || {
        let set = sets[counted.fetch_add(1, Ordering::SeqCst).min(1)].to_string();
        std::future::ready(set)
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        axum::serve(listener, axum::Router::new().route("/keys", axum::routing::get(answer))).await
    });
    mesh.method(config(json!({"JWKSURL": url}))).await;
    mesh.rule("service", "web", "").await;
    let with = |kid: &str| Header { kid: Some(kid.to_owned()), ..Header::new(Algorithm::ES256) };
    for _ in 0..3 {
        let (status, text) = mesh.login(&first.sign_as(&with("1"), &claims(json!({})))).await;
        assert_eq!(status, 200, "{text}");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1, "the set is kept");
    assert_eq!(mesh.login(&second.sign_as(&with("1"), &claims(json!({})))).await.0, 403, "under another's name");
    // One that is not known is looked for, but not each time that somebody names one.
    assert_eq!(mesh.login(&second.sign_as(&with("2"), &claims(json!({})))).await.0, 403);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    tokio::time::pause();
    tokio::time::advance(std::time::Duration::from_secs(11)).await;
    tokio::time::resume();
    let (status, text) = mesh.login(&second.sign_as(&with("2"), &claims(json!({})))).await;
    assert_eq!((status, asked.load(Ordering::SeqCst)), (200, 2), "{text}");
    serving.abort();
}
