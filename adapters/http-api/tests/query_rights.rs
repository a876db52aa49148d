//! Who may read, write and carry out which prepared query.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/login.rs"]
mod login;
#[path = "world/world.rs"]
mod world;

use login::Mesh;
use serde_json::{Value, json};

async fn token(mesh: &Mesh, name: &str, rules: &str) -> String {
    mesh.put("/v1/acl/policy", json!({"Name": name, "Rules": rules})).await;
    let token = mesh.put("/v1/acl/token", json!({"Policies": [{"Name": name}]})).await;
    token["SecretID"].as_str().unwrap().to_owned()
}

fn named(name: &str) -> Value {
    json!({"Name": name, "Service": {"Service": "db"}})
}

fn template(name: &str) -> Value {
    json!({"Name": name, "Template": {"Type": "name_prefix_match"}, "Service": {"Service": "db"}})
}

#[tokio::test]
async fn a_query_is_known_by_its_name_and_a_template_by_what_names_begin_with() {
    let mesh = Mesh::new().await;
    let one = token(&mesh, "one", "query \"web\" { policy = \"write\" }").await;
    let many =
        token(&mesh, "many", "query_prefix \"geo-\" { policy = \"write\" } query \"geo-no\" { policy = \"deny\" }")
            .await;
    let reader = token(&mesh, "reader", "query \"web\" { policy = \"read\" }").await;
    let post = async |token: &str, body: &Value| mesh.ask(token, "POST", "/v1/query", body).await;
    for (token, body, wanted) in [
        (&one, named("web"), 200),
        (&one, named("webs"), 403),
        (&one, named(""), 403),
        (&one, template("web"), 403),
        (&many, named("geo-db"), 200),
        (&many, named("geo-no"), 403),
        (&many, named("geo"), 403),
        // It would make queries of the name that is denied.
        (&many, template("geo-"), 403),
        (&many, template("geo-x"), 200),
        (&many, template(""), 403),
        (&reader, named("other"), 403),
        (&mesh.root, named(""), 200),
        (&mesh.root, template(""), 200),
    ] {
        let (status, text) = post(token, &body).await;
        assert_eq!(status, wanted, "{body}: {text}");
    }
    let (_, all) = mesh.ask(&mesh.root, "GET", "/v1/query", &Value::Null).await;
    let id = |name: &str| {
        let found =
            all.as_array().unwrap().iter().find(|query| query["Name"] == name && query["Template"]["Type"] == "");
        format!("/v1/query/{}", found.unwrap()["ID"].as_str().unwrap())
    };
    let (web, geo, nameless) = (id("web"), id("geo-db"), id(""));
    for (token, method, target, body, wanted) in [
        (&reader, "GET", web.clone(), Value::Null, 200),
        (&reader, "GET", "/v1/query/web/execute".to_owned(), Value::Null, 200),
        (&reader, "GET", format!("{web}/explain"), Value::Null, 200),
        (&reader, "GET", geo.clone(), Value::Null, 403),
        (&reader, "GET", format!("{geo}/explain"), Value::Null, 403),
        // What it finds is judged, which is nothing here.
        (&reader, "GET", "/v1/query/geo-db/execute".to_owned(), Value::Null, 200),
        (&reader, "GET", nameless.clone(), Value::Null, 403),
        (&reader, "GET", "/v1/query/elsewhere/execute".to_owned(), Value::Null, 200),
        (&reader, "PUT", web.clone(), named("web"), 403),
        (&reader, "DELETE", web.clone(), Value::Null, 403),
        // Neither is another's query taken, nor one's own given another's name.
        (&one, "PUT", geo.clone(), named("web"), 403),
        (&one, "PUT", web.clone(), named("geo-db"), 403),
        (&one, "DELETE", geo.clone(), Value::Null, 403),
        (&one, "DELETE", nameless, Value::Null, 403),
        (&one, "PUT", web.clone(), named("web"), 200),
        (&one, "DELETE", web, Value::Null, 200),
        (&many, "DELETE", geo, Value::Null, 200),
    ] {
        let (status, text) = mesh.ask(token, method, &target, &body).await;
        assert_eq!(status, wanted, "{method} {target}: {text}");
    }
    let (_, seen) = mesh.ask(&many, "GET", "/v1/query", &Value::Null).await;
    let names: Vec<_> = seen.as_array().unwrap().iter().map(|query| query["Name"].as_str().unwrap()).collect();
    assert_eq!(names, ["geo-x"]);
}
