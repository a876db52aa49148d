//! What holds of every text that somebody writes for Consul: rules, agent's files, config entries, operations of transactions. Included by
//! the fuzz target and by the test that replays what it has found.

use starling_http_api::parse::acl::parse_rules;
use starling_http_api::parse::file::agent_fields;
use starling_http_api::parse::hcl::parse_hcl;
use starling_http_api::parse::{
    Context, Dialect, Fields, parse_config_entry_file, parse_definitions, parse_json, parse_operation,
};

fn context(dialect: Dialect) -> Context {
    Context::new(dialect, "n1".parse().expect("a name"), "dc1".parse().expect("a datacentre"))
}

/// It is read or refused with a reason, and what is read can be written.
pub fn consul_text(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        match parse_hcl(text) {
            Ok(value) => assert!(serde_json::to_string(&value).is_ok()),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        if let Err(error) = parse_rules("Rules", text) {
            assert!(error.to_string().starts_with("Rules"), "{error}");
        }
    }
    for file in ["a.json", "a.hcl"] {
        let context = context(Dialect::File);
        for refused in [
            parse_definitions(file, data, &context).err(),
            parse_config_entry_file(file, data, &context).err(),
            agent_fields(file, data, None, &context).err(),
        ] {
            assert!(refused.is_none_or(|error| !error.to_string().is_empty()));
        }
    }
    let Ok(body) = parse_json(data) else { return };
    let context = context(Dialect::Api);
    for kind in ["Node", "Service", "Check"] {
        let operations = body.as_array().cloned().unwrap_or_else(|| vec![body.clone()]);
        for operation in operations {
            if let Ok(fields) = Fields::of(&context, "", operation) {
                let _ = parse_operation(fields, kind);
            }
        }
    }
}
