//! What a route does to the heads of messages.

use bytes::BytesMut;
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use starling_http1::put_field;
use starling_model::HeaderEdits;

/// Appends fields, edited. Nothing is looked up where nothing is edited.
pub(crate) fn put_fields<'a, 'e>(
    out: &mut BytesMut,
    fields: impl Iterator<Item = (&'a str, &'a [u8])>,
    edits: impl Iterator<Item = &'e HeaderEdits>,
) {
    let edits: Vec<_> = edits.collect();
    for (name, value) in fields {
        if edits.is_empty() || !is_replaced(name, &edits) {
            put_field(out, name, value);
        }
    }
    for (place, edit) in edits.iter().enumerate() {
        // What a later edit takes off or sets anew is not written first.
        let stays = |name: &String| !is_replaced(name, &edits[place + 1..]);
        for (name, value) in edit.set.iter().chain(&edit.add).filter(|(name, _)| stays(name)) {
            put_field(out, name, value.as_bytes());
        }
    }
}

fn is_replaced(name: &str, edits: &[&HeaderEdits]) -> bool {
    let name = name.to_ascii_lowercase();
    edits.iter().any(|edit| edit.remove.contains(&name) || edit.set.contains_key(&name))
}

/// Edits a header list.
pub(crate) fn edit_map<'e>(map: &mut HeaderMap, edits: impl Iterator<Item = &'e HeaderEdits>) {
    for edit in edits {
        for name in &edit.remove {
            map.remove(name.as_str());
        }
        for (name, value) in pairs(&edit.set) {
            map.insert(name, value);
        }
        for (name, value) in pairs(&edit.add) {
            map.append(name, value);
        }
    }
}

fn pairs(fields: &std::collections::BTreeMap<String, String>) -> impl Iterator<Item = (HeaderName, HeaderValue)> + '_ {
    // Both were checked at the door; what is no field all the same is left out.
    fields.iter().filter_map(|(name, value)| {
        Some((HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_str(value).ok()?))
    })
}
