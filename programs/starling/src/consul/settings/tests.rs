//! Settings, read and made into arguments.

use super::*;

mod never_wider;

fn read(text: &str) -> anyhow::Result<Settings> {
    let mut settings = Settings::default();
    settings.read(&Text::new("config.json", text, None))?;
    Ok(settings)
}

#[test]
fn settings_become_arguments_and_what_has_no_part_is_told() {
    let mut settings = read(
        r#"{"node_name": "n1", "node_id": "6f1c1b7e-6f2c-4cbb-9d5f-0f6f7f6a8a11", "server": true, "bootstrap": true,
            "data_dir": "/var/lib/consul", "bind_addr": "10.0.0.1", "log_level": "ERR", "datacenter": "dc2",
            "ports": {"http": 1, "dns": -1, "grpc": 2, "grpc_tls": 3, "serf_lan": 4, "https": -1},
            "connect": {"enabled": true, "ca_config": {"cluster_id": "11111111-2222-3333-4444-555555555555", "leaf_cert_ttl": "1h"}},
            "node_meta": {"rack": "a"}, "performance": {"raft_multiplier": 1}, "segments": null,
            "services": [{"name": "web"}]}"#,
    )
    .expect("settings");
    let arguments = settings.arguments(false).expect("arguments");
    let arguments: Vec<_> = arguments.iter().map(|it| it.to_str().expect("text")).collect();
    let expected = "starling dev --data-dir /var/lib/consul --http-addr 127.0.0.1:1 --grpc-addr 127.0.0.1:2 --grpc-tls-addr 10.0.0.1:3 --disable-listener dns \
                    --node-name n1 --datacenter dc2 --advertise-addr 10.0.0.1 \
                    --log-level error";
    assert_eq!(arguments.join(" "), expected);
    let ignored: Vec<_> = settings.ignored.iter().map(String::as_str).collect();
    assert_eq!(ignored, ["connect.ca_config.leaf_cert_ttl", "performance.raft_multiplier", "ports.serf_lan"]);
    let guise = settings.guise().expect("a guise");
    assert_eq!(guise.node_meta["rack"], "a");
    let domain = guise.cluster.map(|cluster| cluster.trust_domain().to_string());
    assert_eq!(domain.as_deref(), Some("11111111-2222-3333-4444-555555555555.consul"));
}

#[test]
fn tokens_count_whichever_file_says_that_access_is_controlled() {
    let text = |text: &str| Text::new("a.json", text, None);
    let tokens = text(r#"{"acl": {"tokens": {"initial_management": "root", "dns": "d"}}}"#);
    let enabled = text(r#"{"acl": {"enabled": true}}"#);
    for order in [[&tokens, &enabled], [&enabled, &tokens]] {
        let mut settings = Settings::default();
        order.iter().for_each(|file| settings.read(file).expect("settings"));
        let given = settings.guise().expect("a guise").tokens;
        assert!(given.initial_management.is_some() && given.dns.is_some(), "{order:?}");
    }
    let alone = read(r#"{"acl": {"tokens": {"default": "d"}}}"#).expect("settings");
    assert!(alone.guise().expect("a guise").tokens.default.is_none(), "a server without access control");
    assert!(alone.agent_tokens().default.is_some(), "an agent, whose servers know");
    for refused in [
        r#"{"acl": {"tokens": {"defalt": "d"}}}"#,
        r#"{"default_intention_policy": "Deny"}"#,
        r#"{"default_intention_policy": "denyy"}"#,
    ] {
        assert!(read(refused).is_err(), "{refused}");
    }
}

#[test]
fn addresses_are_translated_where_that_is_said() {
    for (text, translates) in [("{}", false), (r#"{"translate_wan_addrs": true}"#, true)] {
        let guise = read(text).expect("settings").guise().expect("a guise");
        assert_eq!(guise.translates_addresses, translates, "{text}");
    }
}

#[test]
fn connect_is_on_unless_it_is_turned_off() {
    for (text, off) in [("{}", false), (r#"{"connect": {}}"#, false), (r#"{"connect": {"enabled": false}}"#, true)] {
        assert_eq!(read(text).expect("settings").guise().expect("a guise").connect_off, off, "{text}");
    }
}

#[test]
fn access_control_is_on_with_its_tokens_where_it_is_enabled() {
    let acl = r#"{"acl": {"enabled": ENABLED, "default_policy": "deny", "down_policy": "extend-cache",
                  "tokens": {"initial_management": "root", "agent": "root", "default": "d"}}}"#;
    let line = |enabled| {
        let mut settings = read(&acl.replace("ENABLED", enabled)).expect("settings");
        let arguments = settings.arguments(true).expect("arguments");
        let line = arguments.iter().map(|it| it.to_str().expect("text")).collect::<Vec<_>>().join(" ");
        (line, settings.guise().expect("a guise").tokens)
    };
    let (on, tokens) = line("true");
    assert!(on.contains("--acl-default-policy deny --default-intention-policy deny") && !on.contains("root"), "{on}");
    assert_eq!(tokens.initial_management.as_ref().map(|token| token.reveal()), Some("root"));
    assert_eq!(tokens.default.as_ref().map(|token| token.reveal()), Some("d"));
    let (off, tokens) = line("false");
    assert!(!off.contains("policy"), "{off}");
    assert_eq!(tokens, super::super::GivenTokens::default());
}

#[test]
fn sockets_and_certificates_become_doors() {
    let line = |text: &str| {
        let mut settings = read(text)?;
        let arguments = settings.arguments(true)?;
        let words: Vec<_> = arguments.iter().map(|it| it.to_str().expect("text")).collect();
        anyhow::Ok((words.join(" "), settings.ignored))
    };
    let (unix, _) = line(
        r#"{"addresses": {"http": "unix:///run/consul.sock"}, "unix_sockets": {"mode": "0770", "user": "consul", "group": "42"}}"#,
    )
    .expect("a socket");
    let socket = "--http-socket /run/consul.sock --http-socket-only --http-socket-mode 0770 --http-socket-user consul \
                  --http-socket-group 42";
    assert!(unix.contains(socket), "{unix}");
    let old = r#"{"ports": {"https": 8501}, "ca_file": "ca", "cert_file": "cert", "key_file": "key", "verify_incoming": true}"#;
    let (https, _) = line(old).expect("HTTPS");
    let served = "--https-addr 127.0.0.1:8501 --https-cert-file cert --https-key-file key";
    assert!(https.contains(&format!("{served} --https-client-ca-file ca")), "{https}");
    let new = r#"{"ports": {"https": 8501}, "tls": {"defaults": {"ca_file": "ca", "verify_incoming": true, "verify_outgoing": true},
        "https": {"cert_file": "cert", "key_file": "key", "verify_incoming": false}}}"#;
    let (https, ignored) = line(new).expect("HTTPS");
    assert!(https.contains(served) && !https.contains("--https-client-ca-file"), "{https}");
    assert!(ignored.contains("tls.defaults.verify_outgoing"), "{ignored:?}");
    let (none, ignored) = line(r#"{"ports": {"https": 8501}}"#).expect("nothing to show");
    assert!(!none.contains("--https") && ignored.iter().any(|it| it.starts_with("ports.https")), "{none}");
    let nobody = r#"{"ports": {"https": 1}, "cert_file": "c", "key_file": "k", "verify_incoming": true}"#;
    assert!(line(nobody).expect_err("no CA").to_string().contains("ca_file"));
    assert!(line(r#"{"addresses": {"dns": "unix:///x"}}"#).expect_err("DNS").to_string().contains("addresses.dns"));
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    for (text, reason) in [
        (r#"{"colour": "red"}"#, "colour"),
        (r#"{"node_name": "a b"}"#, "node_name"),
        (r#"{"ports": {"http": "x"}}"#, "ports.http"),
        (r#"{"node_id": "x"}"#, "node_id"),
        (r#"{"acl": {"enabled": true, "default_policy": "some"}}"#, "acl.default_policy"),
        (r#"{"acl": {"enabled": true, "defualt_policy": "deny"}}"#, "acl.defualt_policy"),
        (r#"{"acl": {"enabled": true}, "acl_default_policy": "deny"}"#, "acl_default_policy"),
        (r#"{"http_config": {"allow_write_http_from": ["localhost"]}}"#, "http_config.allow_write_http_from"),
        (r#"{"http_config": {"block_endpoints": ["v1/acl"]}}"#, "http_config.block_endpoints"),
        (r#"{"http_config": {"block_endpoint": ["/v1/acl"]}}"#, "http_config.block_endpoint"),
        (r#"{"acl": {"enabled": true, "tokens": {"initial_management": "a b"}}}"#, "acl.tokens.initial_management"),
        (r#"{"tls": {"https": {"tls_min_version": "TLSv9"}}}"#, "tls.https.tls_min_version"),
        (r#"{"ports": {"http": 70000}}"#, "ports.http"),
        (r#"{"ports": {"htpt": 1}}"#, "ports.htpt"),
        (r#"{"ports": {"serf_lan": 70000}}"#, "ports.serf_lan"),
        (r#"{"telemetry": {"statsd_adress": "x"}}"#, "telemetry.statsd_adress"),
        (r#"{"performance": {"raft_multiplyer": 1}}"#, "performance.raft_multiplyer"),
        (r#"{"ui_config": {"metrics_proxy": {"url": "x"}}}"#, "ui_config.metrics_proxy.url"),
        (r#"{"autopilot": {"cleanup": true}}"#, "autopilot.cleanup"),
        (r#"{"tls": {"grpc": {"verify_incomming": true}}}"#, "tls.grpc.verify_incomming"),
        (r#"{"tls": {"https": {"verify": true}}}"#, "tls.https.verify"),
        (r#"{"tls": {"http": {}}}"#, "tls.http"),
    ] {
        let error = read(text).expect_err(text).to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
    let nowhere = read(r#"{"server": true}"#).expect("settings").arguments(false).expect_err("nowhere to keep it");
    assert!(nowhere.to_string().contains("data_dir"), "{nowhere}");
    assert!(line(r#"{"server": true, "data_dir": ""}"#, false).expect_err("nowhere").to_string().contains("data_dir"));
    assert!(read("{}").expect("settings").arguments(true).is_ok());
}

fn line(text: &str, keeps_nothing: bool) -> anyhow::Result<String> {
    let arguments = read(text)?.arguments(keeps_nothing)?;
    let words: Vec<_> = arguments.iter().map(|it| it.to_str().expect("text")).collect();
    Ok(words.join(" "))
}

#[test]
fn an_agent_that_is_no_server_joins_those_that_are_named() {
    let joins = r#"{"server": false, "data_dir": "/d", "bind_addr": "10.0.0.9", "retry_join": ["10.0.0.1", "s2:8301", "s3:9503", "::1"],
                    "auto_config": {"intro_token_file": "/t"}}"#;
    let joined = line(joins, false).expect("arguments");
    let expected = "starling agent --data-dir /d --http-addr 127.0.0.1:8500 --dns-addr 127.0.0.1:8600 --grpc-addr 127.0.0.1:8502 \
                    --datacenter dc1 --advertise-addr 10.0.0.9 --log-level info --server 10.0.0.1,s2,s3:9503,[::1] --join-token-file /t \
                    --leave-on-terminate --leave-on-interrupt";
    assert_eq!(joined, expected);
    let unsaid = line(r#"{"data_dir": "/d", "start_join": ["s1"]}"#, false).expect("arguments");
    assert!(unsaid.starts_with("starling agent ") && unsaid.contains("--server s1 "), "{unsaid}");
    for server in [r#"{"server": true, "data_dir": "/d"}"#, r#"{"bootstrap": true, "data_dir": "/d"}"#] {
        assert!(line(server, false).expect("arguments").starts_with("starling dev "), "{server}");
    }
    assert!(line("{}", true).expect("-dev").starts_with("starling dev "));
    for (text, reason) in [
        (r#"{"data_dir": "/d"}"#, "no server, and joins none"),
        (r#"{"server": false, "data_dir": "/d"}"#, "no server, and joins none"),
        (r#"{"server": true, "data_dir": "/d", "bootstrap_expect": 3}"#, "bootstrap_expect"),
        (r#"{"server": true, "data_dir": "/d", "retry_join": ["s1"]}"#, "retry_join"),
        (r#"{"data_dir": "/d", "retry_join": ["provider=aws tag_key=x"]}"#, "provider=aws"),
        (r#"{"retry_join": ["s1"]}"#, "data_dir"),
    ] {
        let error = line(text, false).expect_err(text).to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
    let vain = read(r#"{"server": true, "bootstrap_expect": 1, "retry_join": ["s1"]}"#).expect("settings");
    assert!(vain.joining.names_members_in_vain(false));
}

#[test]
fn how_an_agent_ends_is_as_it_is_said_and_a_server_does_not_leave_by_a_signal() {
    for (said, leaves) in [
        ("", vec!["--leave-on-terminate", "--leave-on-interrupt"]),
        (
            r#""leave_on_terminate": true, "skip_leave_on_interrupt": false,"#,
            vec!["--leave-on-terminate", "--leave-on-interrupt"],
        ),
        (r#""leave_on_terminate": false,"#, vec!["--leave-on-interrupt"]),
        (r#""skip_leave_on_interrupt": true,"#, vec!["--leave-on-terminate"]),
        (r#""leave_on_terminate": false, "skip_leave_on_interrupt": true,"#, vec![]),
    ] {
        let agent = line(&format!(r#"{{{said} "data_dir": "/d", "retry_join": ["s1"]}}"#), false).expect("arguments");
        let words: Vec<_> = agent.split(' ').filter(|word| word.starts_with("--leave")).collect();
        assert_eq!(words, leaves, "{said}");
        let server = format!(r#"{{{said} "data_dir": "/d", "server": true}}"#);
        assert!(!line(&server, false).expect("arguments").contains("--leave"), "{said}");
        let mut server = read(&server).expect("settings");
        server.arguments(false).expect("arguments");
        let vain = said.contains("_terminate\": true") || said.contains("_interrupt\": false");
        assert_eq!(server.ignored.iter().any(|name| name.contains("leave")), vain, "{said}");
    }
}

#[test]
fn doors_are_at_every_address_that_is_named() {
    let both = r#"{"client_addr": "127.0.0.1 {{ GetInterfaceIP \"lo\" }} ::1", "bind_addr": "127.0.0.1",
                   "addresses": {"dns": "127.0.0.2"}, "ports": {"grpc": -1}}"#;
    let both = line(both, true).expect("arguments");
    assert!(
        both.contains("--http-addr 127.0.0.1:8500,[::1]:8500 --dns-addr 127.0.0.2:8600 --grpc-tls-addr 127.0.0.1:8503 --disable-listener grpc"),
        "{both}"
    );
    for (text, reason) in [
        (r#"{"bind_addr": "10.0.0.1 10.0.0.2"}"#, "bind_addr: has to be one"),
        (r#"{"addresses": {"grpc": "10.0.0.1"}}"#, "addresses.grpc"),
        (r#"{"client_addr": "{{ GetSecretIP }}"}"#, "client_addr: there is no \"GetSecretIP\""),
    ] {
        let error = line(text, true).expect_err(text).to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn tls_of_1_3_alone_is_asked_of_the_door_and_older_versions_are_satisfied() {
    let served =
        |tls: &str| line(&format!(r#"{{"ports": {{"https": 1}}, "cert_file": "c", "key_file": "k", {tls}}}"#), true);
    for tls in [r#""tls_min_version": "TLSv1_3""#, r#""tls": {"defaults": {"tls_min_version": "TLSv1_3"}}"#] {
        assert!(served(tls).expect(tls).contains("--https-tls-min-version 1.3"), "{tls}");
    }
    assert!(!served(r#""tls": {"defaults": {"tls_min_version": "TLSv1_2"}}"#).expect("1.2").contains("min-version"));
}

#[test]
fn sidecars_are_given_ports_of_the_range_that_is_said() {
    let ports = |text: &str| read(text).expect("settings").guise().map(|guise| guise.sidecar_ports);
    assert_eq!(ports("{}").expect("none"), None);
    let said = ports(r#"{"ports": {"sidecar_min_port": 22000, "sidecar_max_port": 22010, "expose_min_port": 1}}"#);
    assert_eq!(said.expect("a range"), Some(22000..=22010));
    assert!(ports(r#"{"ports": {"sidecar_min_port": 22000}}"#).is_err());
}

#[test]
fn documented_settings_without_a_part_are_told_by_their_keys_and_guards_that_guard_nothing_are() {
    let told = |text: &str| {
        let mut settings = read(text).expect(text);
        settings.arguments(true).expect(text);
        settings.ignored.into_iter().collect::<Vec<_>>()
    };
    let blocks = r#"{"telemetry": {"statsd_address": "x", "disable_hostname": true}, "ui_config": {"enabled": true, "metrics_proxy": {"base_url": "x"}},
        "performance": {}, "limits": {"request_limits": {"mode": "enforcing"}}, "tls": {"internal_rpc": {"verify_incoming": true, "ca_file": "c"}}}"#;
    let expected = [
        "limits.request_limits.mode",
        "telemetry.disable_hostname",
        "telemetry.statsd_address",
        "tls.internal_rpc.ca_file",
        "ui_config.enabled",
        "ui_config.metrics_proxy.base_url",
    ];
    assert_eq!(told(blocks), expected);
    for asks in [r#""verify_incoming": true"#, r#""tls": {"https": {"verify_incoming": true}}"#] {
        let said = told(&format!("{{{asks}}}"));
        assert!(
            said.iter().any(|it| it.starts_with("verify_incoming (nothing is served over HTTPS")),
            "{asks}: {said:?}"
        );
        let served =
            format!(r#"{{{asks}, "ports": {{"https": 1}}, "ca_file": "a", "cert_file": "c", "key_file": "k"}}"#);
        assert_eq!(told(&served), [""; 0], "{asks}");
    }
    assert_eq!(told(r#"{"tls": {"grpc": {"verify_incoming": false}}}"#), ["tls.grpc.verify_incoming"]);
}

#[test]
fn who_is_turned_away_at_the_api_is_told_to_it() {
    let http = r#"{"http_config": {"allow_write_http_from": ["127.0.0.0/8", "10.1.2.3/16", "::1"], "block_endpoints": ["/v1/acl"], "use_cache": true}}"#;
    let said = line(http, true).expect("arguments");
    let expected = "--http-allow-write-from 127.0.0.0/8 --http-allow-write-from 10.1.0.0/16 --http-allow-write-from ::1/128 \
                    --http-block-endpoints /v1/acl";
    assert!(said.contains(expected), "{said}");
    assert_eq!(read(http).expect("settings").ignored.into_iter().collect::<Vec<_>>(), ["http_config.use_cache"]);
}
