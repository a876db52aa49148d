//! Every command against an API that answers as it should.

use serde_json::{Value, json};

use crate::api::{Api, run};

const EXACT: &str = "/v1/connect/intentions/exact?source=web&destination=db";

fn intention(action: &str) -> String {
    format!(r#"{{"SourceName":"web","DestinationName":"db","Action":"{action}","Precedence":9}}"#)
}

#[test]
fn check_and_can_answer_with_their_exit_code() {
    let check = "GET /v1/connect/intentions/check?source=web&destination=db";
    Api::serve(&[(check, 200, r#"{"Allowed":true}"#)]).run("intention check web db").prints(0, "Allowed\n");
    Api::serve(&[(check, 200, r#"{"Allowed":false}"#)]).run("intention check web db").prints(1, "Denied\n");

    let can = "GET /starling/v1/can?source=web&destination=db&path=%2Fa%3Fb&method=GET&header=x-a%3A1&header=x-b%3A2";
    let denied = r#"{"allowed":false,"protocol":"http","reason":"the default policy"}"#;
    let api = Api::serve(&[(can, 200, denied)]);
    let line = "can web db -path /a?b --method GET --header x-a:1 --header=x-b:2";
    api.run(line).prints(1, "Denied: web => db (http): the default policy\n");
    let absent = r#"{"allowed":true,"protocol":"tcp","reason":"the default policy","notes":["no service named a is registered"]}"#;
    Api::serve(&[("GET /starling/v1/can?source=a&destination=b", 200, absent)])
        .run("can a b")
        .prints(0, "Allowed: a => b (tcp): the default policy\nnote: no service named a is registered\n");
    let json = api.run(&format!("{line} -o json"));
    assert_eq!(
        (json.code, serde_json::from_str::<Value>(&json.stdout).unwrap()["allowed"].as_bool()),
        (1, Some(false))
    );
}

#[test]
fn an_intention_is_created_once_and_replaced_on_request() {
    let (get, put) = (format!("GET {EXACT}"), format!("PUT {EXACT}"));
    let deny = intention("deny");
    let api = Api::serve(&[(get.as_str(), 200, &deny), (put.as_str(), 200, "true")]);
    api.run("intention create web db").fails(1, &["there is one already, web => db (deny)", "--replace"]);
    assert_eq!(api.seen().len(), 1, "nothing is written");
    api.run("intention create -deny -replace web db").prints(0, "Replaced: web => db (deny)\n");
    assert!(api.seen().contains(&format!(r#"{put} {{"Action":"deny"}}"#)), "{:?}", api.seen());
    api.run("intention create -allow -deny web db").fails(2, &["--allow", "--deny"]);
    api.run("intention create web").fails(2, &["SRC and DST"]);
}

#[test]
fn an_intention_file_names_the_intention() {
    let put = format!("PUT {EXACT}");
    let api = Api::serve(&[(put.as_str(), 200, "true")]);
    let file = r#"{"SourceName": "web", "DestinationName": "db", "Permissions": [{"Action": "allow"}]}"#;
    // What was written cannot be read back here, which is said.
    api.run_with("intention create -file -", file, &[]).fails(1, &["web => db"]);
    assert!(api.seen().contains(&format!(r#"{put} {{"Permissions":[{{"Action":"allow"}}]}}"#)), "{:?}", api.seen());
    api.run_with("intention create -file -", "{}", &[]).fails(2, &["standard input: SourceName must be given"]);
}

#[test]
fn intentions_are_listed_deleted_and_missed() {
    let list =
        format!("[{},{}]", intention("allow"), r#"{"SourceName":"*","DestinationName":"db","Permissions":[1,2]}"#);
    let (get, delete) = (format!("GET {EXACT}"), format!("DELETE {EXACT}"));
    let matching = format!(r#"{{"db":{list}}}"#);
    let allow = intention("allow");
    let api = Api::serve(&[
        ("GET /v1/connect/intentions", 200, &list),
        ("GET /v1/connect/intentions/match?by=destination&name=db", 200, &matching),
        (get.as_str(), 200, &allow),
        (delete.as_str(), 200, "true"),
    ]);
    api.run("intention list").prints(
        0,
        "Source  Action         Destination  Precedence\n\
         web     allow          db           9\n\
         *       2 permissions  db           0\n",
    );
    api.run("intention match db").prints(0, "web => db (allow)\n* => db (2 permissions)\n");
    api.run("intention delete web db").prints(0, "Intention deleted.\n");
    api.run("intention delete gone db").fails(1, &["there is no intention gone => db"]);
    api.run("intention get gone db").fails(1, &["there is no intention gone => db"]);
    for command in ["get", "delete"] {
        let line = format!("intention {command} 5f0c44a7-1d4c-7d4b-9f3c-7c5b3a2f0e11");
        api.run(&line).fails(1, &["there is no intention with the ID 5f0c44a7"]);
    }
}

#[test]
fn config_entries_are_written_from_hcl_with_a_condition() {
    let api = Api::serve(&[
        ("PUT /v1/config?cas=7", 200, "true"),
        ("PUT /v1/config?cas=8", 200, "false"),
        ("PUT /v1/config", 400, "Protocol: unknown protocol \"htp\""),
        ("DELETE /v1/config/service-defaults/web", 200, "{}"),
        ("DELETE /v1/config/service-defaults/web?cas=6", 200, "false"),
        ("GET /v1/config/service-defaults", 200, r#"[{"Name":"api"},{"Name":"web"}]"#),
    ]);
    let file = "Kind = \"service-defaults\"\nName = \"web\"\nProtocol = \"http\"\n";
    let written = "Config entry written: service-defaults/web\n";
    api.run_with("config write -cas -modify-index=7 -", file, &[]).prints(0, written);
    let sent = r#"PUT /v1/config?cas=7 {"Kind":"service-defaults","Name":"web","Protocol":"http"}"#;
    assert_eq!(api.seen(), [sent]);
    api.run_with("config write -cas -modify-index 8 -", file, &[]).fails(1, &["not updated: service-defaults/web"]);
    api.run_with("config write -", file, &[])
        .fails(2, &["service-defaults/web", "unknown protocol \"htp\"", "HTTP 400"]);
    api.run_with("config write -cas -", file, &[]).fails(2, &["--modify-index"]);
    api.run_with("config write -", "Name = \"web\"", &[]).fails(2, &["Kind must be given"]);
    api.run("config list -kind=service-defaults").prints(0, "api\nweb\n");
    let deleted = "Config entry deleted: service-defaults/web\n";
    api.run("config delete -kind service-defaults -name web").prints(0, deleted);
    api.run("config delete -kind service-defaults -name web -cas -modify-index 6").fails(1, &["not deleted"]);
    api.run_with("config delete -filename -", file, &[]).prints(0, deleted);
    api.run("config delete -kind service-defaults").fails(2, &["--name"]);
    api.run("config delete -filename - -name web").fails(2, &["--filename"]);
}

#[test]
fn services_are_registered_as_they_stand_in_files() {
    let api = Api::serve(&[
        ("GET /v1/agent/self", 200, r#"{"Config":{"NodeName":"n1","Datacenter":"dc1"}}"#),
        ("PUT /v1/agent/service/register", 200, ""),
        ("PUT /v1/agent/service/deregister/web%2F1", 200, ""),
    ]);
    let file = r#"service { name = "web" id = "web-1" port = 80 connect { sidecar_service {} } }"#;
    api.run_with("services register -", file, &[]).prints(0, "Registered service: web\n");
    let body = r#"{"name":"web","id":"web-1","port":80,"connect":{"sidecar_service":{}}}"#;
    assert_eq!(api.seen()[1], format!("PUT /v1/agent/service/register {body}"));
    api.run("services register -name=api -port 81 -tag a -tag b -meta k=v").prints(0, "Registered service: api\n");
    let body = r#"{"Name":"api","Tags":["a","b"],"Meta":{"k":"v"},"Port":81}"#;
    assert_eq!(api.seen()[2], format!("PUT /v1/agent/service/register {body}"));
    api.run("services deregister -id web/1").prints(0, "Deregistered service: web/1\n");
    let requests = api.seen().len();
    let wrong = "service { name = \"ok\" }\nservice { name = \"web\" port = 70000 }";
    api.run_with("services register -", wrong, &[]).fails(2, &["standard input: ", "70000"]);
    assert_eq!(api.seen().len(), requests + 1, "the agent is asked for its name, and nothing is registered");
}

#[test]
fn a_service_is_registered_with_whatever_consuls_flags_say() {
    let api = Api::serve(&[
        ("PUT /v1/agent/service/register", 200, ""),
        ("GET /v1/agent/self", 200, r#"{"Config":{"NodeName":"n1","Datacenter":"dc1"}}"#),
        ("PUT /v1/agent/service/deregister/web-1", 200, ""),
    ]);
    let line = "services register -name web -id web-1 -kind ingress-gateway -address 10.0.0.1 -port 80 \
                -tagged-address lan=10.0.0.1:80 -tagged-address v6=[::1]:81";
    api.run(line).prints(0, "Registered service: web\n");
    let body = r#"{"Name":"web","Tags":[],"Meta":{},"ID":"web-1","Kind":"ingress-gateway","Address":"10.0.0.1","Port":80,"TaggedAddresses":{"lan":{"Address":"10.0.0.1","Port":80},"v6":{"Address":"::1","Port":81}}}"#;
    assert_eq!(api.seen(), [format!("PUT /v1/agent/service/register {body}")]);
    api.run("services register -name web -socket /run/web.sock").prints(0, "Registered service: web\n");
    assert!(api.seen()[1].contains(r#""SocketPath":"/run/web.sock""#), "{:?}", api.seen());
    api.run("services register -name web -socket /run/web.sock -port 80").fails(2, &["--socket", "--port"]);
    api.run("services register -name web -tagged-address lan").fails(2, &["--tagged-address \"lan\""]);
    api.run("services register -name web -tagged-address lan=a:b").fails(2, &["\"a:b\" is not of the form"]);
    api.run("services register -kind x").fails(2, &["--name"]);
    assert_eq!(api.seen().len(), 2);
    let file = r#"{"service": {"name": "web", "id": "web-1"}}"#;
    api.run_with("services deregister -", file, &[]).prints(0, "Deregistered service: web-1\n");
}

#[test]
fn services_are_listed_with_their_health() {
    let api = Api::serve(&[
        ("GET /v1/catalog/services", 200, r#"{"web":["a","b"],"api":[]}"#),
        ("GET /v1/health/service/api", 200, r#"[{"Checks":[{"Status":"critical"}]}]"#),
        ("GET /v1/health/service/web", 200, r#"[{"Checks":[]},{"Checks":[{"Status":"passing"}]}]"#),
    ]);
    api.run("services").prints(
        0,
        "Service  Instances  Passing  Warning  Critical  Tags\n\
         api      1          0        0        1\n\
         web      2          2        0        0         a,b\n",
    );
}

const PROXIES: &str = r#"{"revision":12,"proxies":[
    {"proxy":"n1/web-proxy","node":"n1","id":"web-proxy","service":"web","connected":true,"applied_through":10,"lag":0,"refused":
        {"proxy":"n1/web-proxy","revision":12,"type_url":"type.googleapis.com/envoy.config.listener.v3.Listener",
         "resources":["upstream:9000"],"reason":"cannot bind '203.0.113.1:9000'"}},
    {"proxy":"n1/db-proxy","node":"n1","id":"db-proxy","service":"db","connected":false,"applied_through":11,"lag":1,"refused":null}]}"#;

const NODES: &str = r#"{"revision":12,"nodes":[
    {"node":"n1","connected":true,"applied_through":10,"lag":1,"staleness_us":1234567,"refused":[
        {"proxy":"n1/web-proxy","revision":10,"type_url":"x/y.Cluster","resources":["db"],"reason":"no such port"}]},
    {"node":"n2","connected":true,"applied_through":12,"lag":0,"staleness_us":0,"refused":[]},
    {"node":"n3","connected":false,"lost":true,"applied_through":0,"lag":0,"staleness_us":0,"refused":[]}]}"#;

/// A receipt of 300 proxies, of which 298 have applied the change and few are named.
fn receipt(pending: bool, rejected: bool, until: Option<&str>) -> String {
    let (late, refused) = (u64::from(pending), u64::from(rejected));
    let mut receipt = json!({
        "revision": 12,
        "settled": !pending,
        "counts": {"affected": 298 + late + refused, "applied": 298, "pending": late, "rejected": refused},
        "affected": ["n1/a", "n1/b", "n1/c"],
        "applied": [{"proxy": "n1/a", "latency_us": 1500}],
        "pending": if pending { json!(["n1/b"]) } else { json!([]) },
        "rejected": if rejected { json!([{"proxy": "n1/c", "reason": "no such port"}]) } else { json!([]) },
        "latency_us": {"p50": 1500, "p99": 1500, "max": 1500},
    });
    if let Some(until) = until {
        receipt["until"] = until.into();
    }
    receipt.to_string()
}

#[test]
fn status_shows_every_proxy_and_what_it_refused() {
    let diagnostics =
        r#"{"diagnostics":[{"object":"service/a","field":"Port","reason":"is taken","fix":"choose another"}]}"#;
    let api = Api::serve(&[
        ("GET /v1/status/leader", 200, r#""127.0.0.1:8500""#),
        ("GET /starling/v1/proxies", 200, PROXIES),
        ("GET /starling/v1/nodes", 200, NODES),
        ("GET /starling/v1/diagnostics", 200, diagnostics),
    ]);
    api.run("status").prints(
        0,
        "Leader    127.0.0.1:8500\n\
         Revision  12\n\
         Nodes     3, 2 connected, 1 lost\n\
         Proxies   2, 1 connected\n\
         \n\
         Node  Connected  Applied  Lag  Stale for  State\n\
         n1    yes        10       1    1234.5 ms  refused\n\
         n2    yes        12       0    -          current\n\
         n3    no         0        0    -          lost\n\
         \n\
         n1/web-proxy refused revision 10, Cluster db:\n  no such port\n\
         \n\
         Proxy      Service  Node  Connected  Applied  Lag  State\n\
         web-proxy  web      n1    yes        10       0    refused\n\
         db-proxy   db       n1    no         11       1    away\n\
         \n\
         web-proxy refused revision 12, Listener upstream:9000:\n  cannot bind '203.0.113.1:9000'\n\
         \n\
         service/a: Port: is taken\n  choose another\n",
    );
    let json: Value = serde_json::from_str(&api.run("status -o json").stdout).unwrap();
    assert_eq!(json["leader"], "127.0.0.1:8500");
    assert_eq!((&json["proxies"][1]["lag"], &json["nodes"][0]["lag"]), (&json!(1), &json!(1)));
}

#[test]
fn waiting_for_a_change_ends_with_what_came_of_it() {
    let until = "until=applied%3Aall&wait=250ms";
    let (plain, never) = (receipt(true, true, None), receipt(true, true, Some("never")));
    let list = format!(r#"{{"revision":12,"changes":[{plain}]}}"#);
    let api = Api::serve(&[
        ("GET /starling/v1/changes", 200, &list),
        ("GET /starling/v1/changes/12", 200, &plain),
        (&format!("GET /starling/v1/changes/12?{until}"), 200, &never),
        (&format!("GET /starling/v1/changes/13?{until}"), 200, &receipt(true, false, Some("timeout"))),
        (&format!("GET /starling/v1/changes/14?{until}"), 200, &receipt(false, false, Some("met"))),
    ]);
    let shown = "Change 12: 300 affected, 298 applied, 1 pending, 1 rejected\n\
                 Latency: p50 1.5 ms, p99 1.5 ms, max 1.5 ms\n  \
                 applied   n1/a  1.5 ms\n  applied   and 297 more\n  pending   n1/b\n  rejected  n1/c: no such port\n";
    api.run("changes 12").prints(0, shown);
    api.run("changes").prints(
        0,
        "Revision  Affected  Applied  Pending  Rejected  p50     p99     Max\n\
         12        300       298      1        1         1.5 ms  1.5 ms  1.5 ms\n",
    );
    api.run("changes -wait=250ms").prints(1, shown);
    // An API whose wait is over early is asked again, as long as there is time.
    assert_eq!(api.run("changes 14 --wait 250ms").code, 0);
    api.run("changes 99").fails(1, &["receipt of change 99", "HTTP 404"]);
    api.run("changes 99 --wait 250ms").fails(1, &["receipt of change 99", "HTTP 404"]);
    api.run("changes 12 --wait soon").fails(2, &["soon"]);
}

#[test]
fn a_share_or_a_node_can_be_waited_for() {
    let met = receipt(true, false, Some("met"));
    let api = Api::serve(&[
        ("GET /starling/v1/changes/12?until=applied%3A99%25&wait=30000ms", 200, &met),
        ("GET /starling/v1/changes/12?until=node%3Dn1&wait=1000ms", 200, &met),
        ("GET /starling/v1/changes/12?until=applied%3Aall&wait=30000ms", 200, &met),
    ]);
    for line in ["--until applied:99%", "-wait -until applied:99%", "-until node=n1 -wait 1s", "--wait"] {
        assert_eq!(api.run(&format!("changes 12 {line}")).code, 0, "{line}: {:?}", api.seen());
    }
    api.run("changes 12 --until most").fails(2, &["\"most\"", "applied:all", "node=NAME"]);
}

const WEB: &str = "Kind = \"service-defaults\"\nName = \"web\"\nProtocol = \"http\"\n";

#[test]
fn entries_are_applied_from_files_and_folders_once_all_of_them_can_be_read() {
    let api = Api::serve(&[
        ("PUT /v1/config", 200, "true"),
        ("GET /v1/config/service-defaults/web", 200, r#"{"ModifyIndex":12}"#),
        ("GET /v1/config/proxy-defaults/global", 200, r#"{"ModifyIndex":13}"#),
    ]);
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("b.hcl", WEB);
    write("a.json", r#"[{"Kind": "proxy-defaults", "Name": "global"}]"#);
    write("notes.txt", "not read");
    let path = folder.path().display();
    api.run(&format!("apply -f {path}")).prints(
        0,
        "Config entry applied: proxy-defaults/global (revision 13)\n\
         Config entry applied: service-defaults/web (revision 12)\n",
    );
    let json: Value = serde_json::from_str(&api.run(&format!("apply -f {path}/b.hcl -o json")).stdout).unwrap();
    assert_eq!(json, json!([{"entry": "service-defaults/web", "revision": 12, "receipt": null}]));
    let requests = api.seen().len();
    write("c.hcl", "Name = \"web\"");
    api.run(&format!("apply -f {path}")).fails(2, &["c.hcl", "Kind must be given"]);
    assert_eq!(api.seen().len(), requests, "nothing is written");
    api.run_with("apply -f -", "[]", &[]).fails(2, &["there is no config entry"]);
    api.run_with("apply -f -", "[1]", &[]).fails(2, &["standard input: must hold objects"]);
    api.run("apply").fails(2, &["--file"]);
    api.run("apply -f gone.hcl").fails(2, &["gone.hcl"]);
}

#[test]
fn applying_ends_with_what_came_of_the_entries() {
    let until = "?until=applied%3Aall&wait=";
    for (standing, pending, rejected, code) in
        [("met", false, false, 0), ("never", false, true, 1), ("timeout", true, false, 4)]
    {
        let receipt = receipt(pending, rejected, Some(standing));
        let api = Api::serve(&[
            ("PUT /v1/config", 200, "true"),
            ("GET /v1/config/service-defaults/web", 200, r#"{"ModifyIndex":12}"#),
            (&format!("GET /starling/v1/changes/12{until}0ms"), 200, &receipt),
        ]);
        let run = api.run_with("apply -f - --wait 0s", WEB, &[]);
        assert_eq!(run.code, code, "{standing}: {run:?} {:?}", api.seen());
        assert!(run.stdout.contains(" 298 applied, "), "{run:?}");
        assert_eq!(run.stdout.contains("rejected  n1/c: no such port"), rejected, "{run:?}");
        let json: Value = serde_json::from_str(&api.run_with("apply -f - -wait=0s -o json", WEB, &[]).stdout).unwrap();
        assert_eq!(json[0]["receipt"]["until"], standing);
    }
    // Its receipt is forgotten: it was in effect long before.
    let api = Api::serve(&[
        ("PUT /v1/config", 200, "true"),
        ("GET /v1/config/service-defaults/web", 200, r#"{"ModifyIndex":2}"#),
    ]);
    let applied = "Config entry applied: service-defaults/web (revision 2)\n";
    api.run_with("apply -f - --wait", WEB, &[]).prints(0, applied);
}

#[test]
fn nodes_are_columns_or_json() {
    let nodes = r#"[{"Node":"n1","ID":"i","Address":"10.0.0.1","Datacenter":"dc1"}]"#;
    let api = Api::serve(&[("GET /v1/catalog/nodes", 200, nodes)]);
    api.run("nodes").prints(0, "Node  ID  Address   DC\nn1    i   10.0.0.1  dc1\n");
    let json: Value = serde_json::from_str(&api.run("nodes -o=json").stdout).unwrap();
    assert_eq!(json[0]["Address"], "10.0.0.1");
}

#[test]
fn version_needs_no_api() {
    let json: Value = serde_json::from_str(&run("version -o json", "", &[]).stdout).unwrap();
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
    assert!(run("version", "", &[]).stdout.starts_with("Starling "));
}
