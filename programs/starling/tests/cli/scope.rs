//! Flags about the whole of a request: the datacentre, and how fresh a read must be.

use crate::api::Api;

#[test]
fn the_datacentre_goes_with_every_request_and_stale_with_reads() {
    let check = "/v1/connect/intentions/check?source=a&destination=b&dc=dc1&stale";
    let exact = "/v1/connect/intentions/exact?source=a&destination=b&dc=dc1";
    let api = Api::serve(&[
        ("GET /v1/catalog/nodes?dc=dc1&stale", 200, "[]"),
        (&format!("GET {check}"), 200, r#"{"Allowed":true}"#),
        (&format!("GET {exact}&stale"), 200, r#"{"SourceName":"a","DestinationName":"b"}"#),
        (&format!("DELETE {exact}"), 200, "true"),
    ]);
    for line in
        ["nodes -datacenter dc1 -stale", "-datacenter=dc1 -stale nodes", "-stale nodes -datacenter dc1 -stale=true"]
    {
        assert_eq!(api.run(line).code, 0, "{line}: {:?}", api.seen());
    }
    api.run("intention check a b -datacenter dc1 -stale").prints(0, "Allowed\n");
    api.run("intention delete a b -datacenter dc1 -stale").prints(0, "Intention deleted.\n");
}

#[test]
fn the_apis_word_on_another_datacentre_or_namespace_is_passed_on() {
    let api = Api::serve(&[
        ("GET /v1/catalog/nodes?dc=dc2", 500, "No path to datacenter"),
        ("GET /v1/catalog/nodes?ns=team&partition=west", 400, "Namespaces are a Consul Enterprise feature"),
        ("GET /v1/catalog/nodes?ns=default", 200, "[]"),
    ]);
    api.run("nodes -datacenter dc2").fails(3, &["No path to datacenter (HTTP 500)"]);
    api.run("nodes -namespace team -partition west").fails(2, &["Consul Enterprise feature (HTTP 400)"]);
    let variables = [("CONSUL_NAMESPACE", "team"), ("CONSUL_PARTITION", "west")];
    api.run_with("nodes", "", &variables).fails(2, &["Consul Enterprise feature"]);
    assert_eq!(api.run_with("nodes -namespace default", "", &variables[..1]).code, 0);
    assert_eq!(api.run_with("nodes", "", &[("STARLING_NAMESPACE", "default"), variables[0]]).code, 0);
}

#[test]
fn flags_of_a_client_do_not_start_a_mesh() {
    for flags in ["-datacenter dc2", "-stale", "-http-addr x:1"] {
        crate::api::run(&format!("{flags} dev"), "", &[]).fails(2, &["in front of `dev`"]);
    }
}
