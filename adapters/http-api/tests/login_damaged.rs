//! Bearer tokens that were changed on their way, and claims of any shape.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/login.rs"]
mod login;
#[path = "world/world.rs"]
mod world;

use std::cell::LazyCell;

use login::{Issuer, Mesh, claims, config};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// A mesh that lets in whoever this issuer has signed.
struct Door {
    runtime: Runtime,
    mesh: Mesh,
    issuer: Issuer,
}

impl Door {
    fn new() -> Self {
        let (runtime, issuer) = (Runtime::new().unwrap(), Issuer::new());
        let mesh = runtime.block_on(async {
            let mesh = Mesh::new().await;
            mesh.method(config(json!({"JWTValidationPubKeys": [issuer.public_pem()]}))).await;
            mesh.rule("service", "${value.service}", "").await;
            mesh
        });
        Self { runtime, mesh, issuer }
    }

    fn login(&self, bearer: &str) -> u16 {
        self.runtime.block_on(self.mesh.login(bearer)).0
    }
}

thread_local! {
    static DOOR: LazyCell<Door> = LazyCell::new(Door::new);
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        Just(json!("mesh")),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        let list = prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from);
        let object = prop::collection::btree_map("[a-z/]{0,6}", inner, 0..4);
        prop_oneof![list, object.prop_map(|map| Value::Object(map.into_iter().collect()))]
    })
}

fn any_claims() -> impl Strategy<Value = Value> {
    let name =
        prop::sample::select(vec!["iss", "aud", "sub", "iat", "nbf", "exp", "kubernetes", "roles", "admin", "x"]);
    prop::collection::btree_map(name, any_value(), 0..4).prop_map(|over| {
        claims(Value::Object(over.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()))
    })
}

proptest! {
    #[test]
    fn whatever_of_a_token_is_changed_it_is_refused(
        at in any::<prop::sample::Index>(), replaced in "[A-Za-z0-9_.=-]|\\PC", cut in any::<bool>(),
    ) {
        DOOR.with(|door| {
            let good = door.issuer.sign(&claims(json!({})));
            let (before, after) = good.split_at(at.index(good.len()));
            let changed = if cut { before.to_owned() } else { format!("{before}{replaced}{}", &after[1..]) };
            prop_assert_eq!(door.login(&good), 200);
            prop_assert!(changed == good || door.login(&changed) / 100 == 4, "{} was let in", changed);
            Ok(())
        })?;
    }

    #[test]
    fn what_is_signed_lets_in_or_is_refused_whatever_its_shape(claims in any_claims()) {
        DOOR.with(|door| {
            let status = door.login(&door.issuer.sign(&claims));
            prop_assert!(status == 200 || status == 403, "{}: {}", status, claims);
            Ok(())
        })?;
    }
}
