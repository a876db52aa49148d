//! What each variable accepts and how a refusal reads.

use super::*;

fn config(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let lookup = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    Config::from_env(lookup)
}

#[test]
fn nothing_set_gives_the_defaults_of_the_original() {
    let defaults = config(&[]).unwrap();
    assert_eq!(defaults, Config::default());
    assert_eq!(defaults.listen_addr, "0.0.0.0:9090");
    assert_eq!(config(&[("ERROR_RATE", ""), ("NAME", "")]).unwrap(), defaults);
}

#[test]
fn every_variable_lands_in_its_field() {
    let read = config(&[
        ("LISTEN_ADDR", ":1234"),
        ("NAME", "web"),
        ("MESSAGE", r#"{"hello": [1]}"#),
        ("SERVER_TYPE", "grpc"),
        ("UPSTREAM_URIS", "http://127.0.0.1:1/x, grpc://b:2 ,"),
        ("UPSTREAM_WORKERS", "4"),
        ("UPSTREAM_REQUEST_BODY", "payload"),
        ("HTTP_CLIENT_KEEP_ALIVES", "true"),
        ("HTTP_CLIENT_APPEND_REQUEST", "false"),
        ("HTTP_CLIENT_REQUEST_TIMEOUT", "250ms"),
        ("ERROR_RATE", "0.25"),
        ("ERROR_TYPE", "delay"),
        ("ERROR_CODE", "503"),
        ("ERROR_DELAY", "2s"),
        ("TIMING_50_PERCENTILE", "1ms"),
        ("TIMING_99_PERCENTILE", "1.5s"),
        ("TIMING_VARIANCE", "10"),
        ("HEALTH_CHECK_RESPONSE_CODE", "500"),
        ("READY_CHECK_RESPONSE_CODE", "204"),
        ("READY_CHECK_RESPONSE_FAILURE_CODE", "429"),
        ("READY_CHECK_RESPONSE_DELAY", "1m"),
    ])
    .unwrap();
    let expected = Config {
        listen_addr: "0.0.0.0:1234".to_owned(),
        name: "web".to_owned(),
        message: serde_json::json!({"hello": [1]}),
        server_type: ServerType::Grpc,
        upstreams: vec!["http://127.0.0.1:1/x".parse().unwrap(), "grpc://b:2".parse().unwrap()],
        upstream_workers: 4,
        upstream_request_body: "payload".to_owned(),
        client_keep_alives: true,
        client_append_request: false,
        client_request_timeout: Duration::from_millis(250),
        fault: Fault {
            rate: 0.25,
            kind: FaultKind::Delay(Duration::from_secs(2)),
            code: FaultCode::from_number(503).unwrap(),
        },
        timing: Timing::new(Duration::from_millis(1), Duration::ZERO, Duration::from_millis(1500), 10),
        health_code: http::StatusCode::INTERNAL_SERVER_ERROR,
        ready_code: http::StatusCode::NO_CONTENT,
        unready_code: http::StatusCode::TOO_MANY_REQUESTS,
        ready_delay: Duration::from_secs(60),
    };
    assert_eq!(read, expected);
}

#[test]
fn the_newer_name_of_the_ready_code_wins() {
    let read = config(&[("READY_CHECK_RESPONSE_CODE", "201"), ("READY_CHECK_RESPONSE_SUCCESS_CODE", "202")]).unwrap();
    assert_eq!(read.ready_code, http::StatusCode::ACCEPTED);
}

#[test]
fn a_broken_json_message_is_a_string() {
    assert_eq!(config(&[("MESSAGE", "{oops")]).unwrap().message, Value::from("{oops"));
}

#[test]
fn bad_values_are_refused_by_variable_value_and_expectation() {
    for (variable, value) in [
        ("LISTEN_ADDR", "9090"),
        ("LISTEN_ADDR", "host:70000"),
        ("LISTEN_ADDR", "::1:80"),
        ("SERVER_TYPE", "http2"),
        ("UPSTREAM_URIS", "https://b"),
        ("UPSTREAM_URIS", "b:9090"),
        ("UPSTREAM_URIS", "grpc://b"),
        ("UPSTREAM_URIS", "http://"),
        ("UPSTREAM_URIS", "http://b:99999"),
        ("UPSTREAM_WORKERS", "0"),
        ("UPSTREAM_WORKERS", "many"),
        ("ERROR_RATE", "1.01"),
        ("ERROR_RATE", "NaN"),
        ("ERROR_RATE", "10%"),
        ("ERROR_CODE", "200"),
        ("ERROR_CODE", "17"),
        ("ERROR_TYPE", "http"),
        ("ERROR_DELAY", "5"),
        ("TIMING_50_PERCENTILE", "1"),
        ("TIMING_90_PERCENTILE", "fast"),
        ("TIMING_99_PERCENTILE", "2h"),
        ("TIMING_VARIANCE", "101"),
        ("HTTP_CLIENT_KEEP_ALIVES", "yes"),
        ("HTTP_CLIENT_REQUEST_TIMEOUT", "0s"),
        ("HEALTH_CHECK_RESPONSE_CODE", "99"),
        ("READY_CHECK_RESPONSE_CODE", "100"),
    ] {
        let error = config(&[(variable, value)]).expect_err(variable);
        assert_eq!((error.variable, error.value.as_str()), (variable, value));
        assert!(!error.expected.is_empty());
    }
    let error = config(&[("ERROR_RATE", "1.5")]).unwrap_err();
    assert_eq!(error.to_string(), r#"ERROR_RATE: "1.5" is not a number from 0 to 1"#);
    let error = config(&[("UPSTREAM_URIS", "http://ok,ftp://b")]).unwrap_err();
    assert!(error.to_string().starts_with(r#"UPSTREAM_URIS: "ftp://b" is not http://"#), "{error}");
}

#[test]
fn too_many_upstreams_are_refused() {
    let uris = vec!["http://b"; UPSTREAMS_MAX + 1].join(",");
    assert_eq!(config(&[("UPSTREAM_URIS", &uris)]).unwrap_err().variable, "UPSTREAM_URIS");
}

#[test]
fn variables_without_a_place_are_named() {
    let lookup = |name: &str| (name == "RATE_LIMIT").then(|| "5".to_owned());
    assert_eq!(unsupported(lookup), ["RATE_LIMIT"]);
}
