//! Lists of receipts.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/world.rs"]
mod world;

use serde_json::Value;
use starling_http_api::limits::CHANGES_LISTED_MAX;
use world::World;

#[tokio::test]
async fn a_list_of_receipts_has_the_newest_changes_and_no_more_than_its_limit() {
    let world = World::new();
    for number in 0..=CHANGES_LISTED_MAX {
        let node = format!(r#"{{"Node": "n{number}", "Address": "10.0.0.2"}}"#);
        let (head, text) = world.send("PUT", "/v1/catalog/register", &node).await;
        assert_eq!(head.status().as_u16(), 200, "{text}");
    }
    let (_, text) = world.send("GET", "/starling/v1/changes", "").await;
    let list: Value = serde_json::from_str(&text).unwrap();
    let revisions: Vec<u64> =
        list["changes"].as_array().unwrap().iter().map(|change| change["revision"].as_u64().unwrap()).collect();
    assert_eq!(revisions.len(), CHANGES_LISTED_MAX);
    assert_eq!(revisions.first(), list["revision"].as_u64().as_ref());
    assert!(revisions.is_sorted_by(|newer, older| newer > older), "{revisions:?}");
}
