use std::time::Instant;

use starling_model::service::InstanceKey;
use starling_model::{NodeName, Upstream, Weights};

use super::*;
use crate::registrations::{ExistingChecks, Registrations, Role, Source};

fn node() -> Node {
    Node {
        name: NodeName::new("n1").unwrap(),
        id: String::new(),
        address: "10.0.0.1".to_owned(),
        tagged_addresses: BTreeMap::new(),
        meta: BTreeMap::new(),
    }
}

fn port(number: i64) -> Port {
    Port::try_from(number).unwrap()
}

fn service(id: &str, name: &str, number: Option<i64>) -> ServiceRegistration {
    let instance = ServiceInstance {
        key: InstanceKey { node: NodeName::new("elsewhere").unwrap(), id: InstanceId::new(id).unwrap() },
        name: ServiceName::new(name).unwrap(),
        kind: InstanceKind::Typical,
        address: None,
        port: number.map(port),
        tags: Vec::new(),
        meta: BTreeMap::new(),
        tagged_addresses: BTreeMap::new(),
        weights: Weights::default(),
        enable_tag_override: false,
        native: false,
        locality: None,
        kept: starling_model::OpaqueSettings::default(),
    };
    ServiceRegistration { instance, checks: Vec::new(), sidecar: None }
}

fn with_sidecar(mut given: ServiceRegistration, change: impl FnOnce(&mut ServiceRegistration)) -> ServiceRegistration {
    let (id, name) = (given.instance.key.id.to_string(), given.instance.name.to_string());
    let mut nested = service(&format!("{id}-sidecar-proxy"), &format!("{name}-sidecar-proxy"), None);
    nested.instance.kind = InstanceKind::Sidecar(Box::new(plain_proxy(&given.instance.name)));
    change(&mut nested);
    given.sidecar = Some(Box::new(nested));
    given
}

fn proxy(nested: &mut ServiceRegistration) -> &mut SidecarProxy {
    match &mut nested.instance.kind {
        InstanceKind::Sidecar(proxy) => proxy,
        InstanceKind::Typical
        | InstanceKind::IngressGateway(_)
        | InstanceKind::TerminatingGateway(_)
        | InstanceKind::OtherGateway(_) => panic!("a sidecar"),
    }
}

fn upstream(name: &str, address: &str, number: i64) -> Upstream {
    Upstream {
        destination: ServiceName::new(name).unwrap(),
        bind_address: address.parse().unwrap(),
        bind_port: port(number),
        config: OpaqueSettings::default(),
        kind_unsaid: false,
    }
}

fn empty() -> Registrations {
    Registrations::new(node(), 21000..=21002)
}

fn register(here: &mut Registrations, given: ServiceRegistration) -> Result<(), FieldError> {
    here.register(given, Source::Caller, ExistingChecks::Keep, Instant::now()).map(|_| ())
}

fn sidecar_port(here: &Registrations, id: &str) -> Option<u16> {
    here.services()[&InstanceId::new(id).unwrap()].instance.port.map(Port::get)
}

#[test]
fn what_does_not_say_where_it_is_is_where_its_node_is() {
    let locality = |text: &str| Some(Arc::new(text.parse::<Locality>().unwrap()));
    let mut here = empty();
    here.run_at(locality("eu/a"));
    register(&mut here, with_sidecar(service("web", "web", Some(8080)), |_| {})).unwrap();
    let mut elsewhere = with_sidecar(service("api", "api", Some(8081)), |_| {});
    elsewhere.instance.locality = locality("us");
    register(&mut here, elsewhere).unwrap();
    let all = |here: &Registrations| {
        let said = |service: &Service| service.instance.locality.as_ref().map(ToString::to_string).unwrap_or_default();
        let all = here.services().iter().map(|(id, service)| format!("{id} {}", said(service)));
        all.collect::<Vec<_>>().join(", ")
    };
    assert_eq!(all(&here), "api us, api-sidecar-proxy us, web eu/a, web-sidecar-proxy eu/a");

    // The node has moved: what is kept is what was said.
    let Role::Given(given, _) = &here.services()[&InstanceId::new("web").unwrap()].role else { panic!("given") };
    assert_eq!(given.instance.locality, None);
    let given = (**given).clone();
    here.run_at(locality("eu/b"));
    register(&mut here, given).unwrap();
    assert_eq!(all(&here), "api us, api-sidecar-proxy us, web eu/b, web-sidecar-proxy eu/b");
}

#[test]
fn a_sidecar_is_filled_in_from_its_parent() {
    let mut given = with_sidecar(service("web-1", "web", Some(8080)), |_| {});
    given.instance.tags = vec!["v1".to_owned()];
    given.instance.meta.insert("team".to_owned(), "a".to_owned());
    let expanded = expand(given, &node(), &BTreeMap::new(), &DEFAULT_SIDECAR_PORTS).unwrap();
    assert_eq!(expanded.main.instance.key.node, node().name);
    let part = expanded.sidecar.unwrap();
    assert_eq!(part.instance.port, Some(port(21000)));
    assert_eq!(part.instance.tags, ["v1"]);
    assert_eq!(part.instance.meta["team"], "a");
    let proxy = part.instance.sidecar().unwrap();
    assert_eq!(proxy.destination.as_str(), "web");
    assert_eq!(proxy.destination_id.as_ref().map(InstanceId::as_str), Some("web-1"));
    assert_eq!(proxy.local_port, Some(port(8080)));
    let checks: Vec<_> = part.checks.iter().map(|(id, spec)| (id.as_str(), &spec.definition.kind)).collect();
    assert_eq!(checks[0].0, "service:web-1-sidecar-proxy:1");
    assert_eq!(*checks[0].1, CheckKind::tcp("127.0.0.1:21000"));
    assert_eq!(checks[1].0, "service:web-1-sidecar-proxy:2");
    let alias = CheckKind::Alias { node: None, service: Some(InstanceId::new("web-1").unwrap()) };
    assert_eq!(*checks[1].1, alias);
}

#[test]
fn what_was_given_wins() {
    let given = with_sidecar(service("web-1", "web", Some(8080)), |nested| {
        nested.instance.port = Some(port(20000));
        nested.instance.address = Some("::1".to_owned());
        nested.instance.tags = vec!["own".to_owned()];
        proxy(nested).local_port = Some(port(9090));
    });
    let part = expand(given, &node(), &BTreeMap::new(), &DEFAULT_SIDECAR_PORTS).unwrap().sidecar.unwrap();
    assert_eq!(part.instance.port, Some(port(20000)));
    assert_eq!(part.instance.tags, ["own"]);
    assert_eq!(part.instance.sidecar().unwrap().local_port, Some(port(9090)));
    assert_eq!(part.checks[0].1.definition.kind, CheckKind::tcp("[::1]:20000"));
}

#[test]
fn ports_are_given_in_order_kept_and_run_out() {
    let mut here = empty();
    for id in ["a", "b", "c"] {
        register(&mut here, with_sidecar(service(id, id, None), |_| {})).unwrap();
    }
    assert_eq!(sidecar_port(&here, "b-sidecar-proxy"), Some(21001));
    let full = register(&mut here, with_sidecar(service("d", "d", None), |_| {})).unwrap_err();
    assert_eq!(full.field, "Connect.SidecarService.Port");
    here.deregister(&InstanceId::new("a").unwrap(), Instant::now()).unwrap();
    // The freed port is lower, but who has one keeps it.
    register(&mut here, with_sidecar(service("b", "b", Some(1)), |_| {})).unwrap();
    assert_eq!(sidecar_port(&here, "b-sidecar-proxy"), Some(21001));
    register(&mut here, with_sidecar(service("d", "d", None), |_| {})).unwrap();
    assert_eq!(sidecar_port(&here, "d-sidecar-proxy"), Some(21000));
}

#[test]
fn a_port_that_something_else_listens_on_is_not_given_out() {
    let mut here = empty();
    register(&mut here, service("plain", "plain", Some(21000))).unwrap();
    let calling = |nested: &mut ServiceRegistration| proxy(nested).upstreams.push(upstream("x", "127.0.0.1", 21001));
    register(&mut here, with_sidecar(service("a", "a", None), calling)).unwrap();
    assert_eq!(sidecar_port(&here, "a-sidecar-proxy"), Some(21002));
}

/// Registers `first`, and expects `second` to be refused at `field`.
fn refused(first: ServiceRegistration, second: ServiceRegistration, field: &str) {
    let mut here = empty();
    register(&mut here, first).unwrap();
    let before = here.services().clone();
    let error = register(&mut here, second).unwrap_err();
    assert_eq!(error.field, field, "{error}");
    assert_eq!(*here.services(), before, "nothing changed");
}

fn on_port(id: &str, number: i64, address: Option<&str>) -> ServiceRegistration {
    with_sidecar(service(id, id, None), |nested| {
        nested.instance.port = Some(port(number));
        nested.instance.address = address.map(str::to_owned);
    })
}

#[test]
fn two_sidecars_on_one_port_are_refused() {
    refused(on_port("a", 20000, None), on_port("b", 20000, None), "Connect.SidecarService.Port");
    // Without an address the listener takes the port on every one.
    refused(on_port("a", 20000, None), on_port("b", 20000, Some("127.0.0.2")), "Connect.SidecarService.Port");
    refused(service("a", "a", Some(20000)), on_port("b", 20000, None), "Connect.SidecarService.Port");
    refused(on_port("a", 20000, None), service("b", "b", Some(20000)), "Port");
    let mut here = empty();
    register(&mut here, on_port("a", 20000, Some("127.0.0.2"))).unwrap();
    register(&mut here, on_port("b", 20000, Some("127.0.0.3"))).unwrap();
    register(&mut here, on_port("b", 20000, Some("127.0.0.3"))).unwrap();
}

#[test]
fn plain_services_may_share_a_port() {
    let mut here = empty();
    register(&mut here, service("a", "a", Some(80))).unwrap();
    register(&mut here, service("b", "b", Some(80))).unwrap();
}

fn calling(id: &str, address: &str, number: i64) -> ServiceRegistration {
    let add = |nested: &mut ServiceRegistration| proxy(nested).upstreams.push(upstream("db", address, number));
    with_sidecar(service(id, id, None), add)
}

#[test]
fn upstream_listeners_that_collide_are_refused() {
    let field = "Connect.SidecarService.Proxy.Upstreams[0].LocalBindPort";
    refused(calling("a", "127.0.0.1", 9000), calling("b", "127.0.0.1", 9000), field);
    refused(calling("a", "127.0.0.1", 9000), calling("b", "0.0.0.0", 9000), field);
    refused(on_port("a", 9000, None), calling("b", "127.0.0.1", 9000), field);
    let mut here = empty();
    register(&mut here, calling("a", "127.0.0.1", 9000)).unwrap();
    register(&mut here, calling("b", "127.0.0.2", 9000)).unwrap();
    let twice = with_sidecar(service("c", "c", None), |nested| {
        proxy(nested).upstreams = vec![upstream("db", "127.0.0.1", 9001), upstream("x", "127.0.0.1", 9001)];
    });
    let error = register(&mut here, twice).unwrap_err();
    assert_eq!(error.field, "Connect.SidecarService.Proxy.Upstreams[1].LocalBindPort");
    let application = with_sidecar(service("c", "c", Some(9001)), |nested| {
        proxy(nested).upstreams = vec![upstream("db", "127.0.0.1", 9001)];
    });
    assert_eq!(register(&mut here, application).unwrap_err().field, field);
}

#[test]
fn proxies_in_namespaces_of_their_own_do_not_collide() {
    let mapped = |id: &str, public: i64| {
        let mut given = calling(id, "127.0.0.1", 9000);
        let nested = given.sidecar.as_mut().unwrap();
        nested.instance.port = Some(port(public));
        proxy(nested).config.insert("bind_port".to_owned(), 20000.into());
        given
    };
    let mut here = empty();
    register(&mut here, mapped("a", 30000)).unwrap();
    register(&mut here, mapped("b", 30001)).unwrap();
    assert_eq!(register(&mut here, mapped("c", 30001)).unwrap_err().field, "Connect.SidecarService.Port");
}

#[test]
fn an_upstream_to_itself_is_refused() {
    let add = |nested: &mut ServiceRegistration| proxy(nested).upstreams.push(upstream("a", "127.0.0.1", 9000));
    let error = register(&mut empty(), with_sidecar(service("a", "a", None), add)).unwrap_err();
    assert_eq!(error.field, "Connect.SidecarService.Proxy.Upstreams[0].DestinationName");
}

#[test]
fn ids_of_sidecars_belong_to_them() {
    let parent = || with_sidecar(service("web", "web", None), |_| {});
    refused(parent(), service("web-sidecar-proxy", "other", Some(1)), "ID");
    refused(service("web-sidecar-proxy", "other", Some(1)), parent(), "Connect.SidecarService.ID");
    let renamed = with_sidecar(service("web", "web", None), |nested| {
        nested.instance.key.id = InstanceId::new("own").unwrap();
    });
    assert_eq!(register(&mut empty(), renamed).unwrap_err().field, "Connect.SidecarService.ID");
}

#[test]
fn a_standalone_proxy_needs_a_port_and_no_known_destination() {
    let mut given = service("proxy", "proxy", None);
    given.instance.kind = InstanceKind::Sidecar(Box::new(plain_proxy(&ServiceName::new("web").unwrap())));
    assert_eq!(register(&mut empty(), given.clone()).unwrap_err().field, "Port");
    given.instance.port = Some(port(20000));
    register(&mut empty(), given).unwrap();
}

#[test]
fn two_checks_of_one_id_are_refused() {
    let mut given = service("web", "web", None);
    let mut check = agent_check("c".to_owned(), CheckKind::tcp("a:1"));
    check.id = Some(CheckId::new("same").unwrap());
    given.checks = vec![check.clone(), check];
    assert_eq!(register(&mut empty(), given).unwrap_err().field, "Checks[1].CheckID");
}
