use std::collections::BTreeMap;
use std::time::Duration;

use starling_model::{NodeName, OpaqueSettings, Port, ServiceName, UnixSeconds, Weights};

use super::health::OUTPUT_WRITE_INTERVAL;
use super::*;
use crate::journal::Entry;

const SECOND: Duration = Duration::from_secs(1);

fn id(text: &str) -> InstanceId {
    InstanceId::new(text).unwrap()
}

fn check_id(text: &str) -> CheckId {
    CheckId::new(text).unwrap()
}

fn here() -> Registrations {
    let node = Node {
        name: NodeName::new("n1").unwrap(),
        id: String::new(),
        address: "10.0.0.1".to_owned(),
        tagged_addresses: BTreeMap::new(),
        meta: BTreeMap::new(),
    };
    Registrations::new(node, 21000..=21255)
}

fn spec(name: &str, kind: CheckKind) -> CheckSpec {
    CheckSpec {
        id: Some(check_id(name)),
        name: name.to_owned(),
        notes: String::new(),
        initial_status: CheckStatus::Critical,
        definition: CheckDefinition {
            kind,
            interval: SECOND,
            timeout: SECOND,
            success_before_passing: 1,
            failures_before_warning: 1,
            failures_before_critical: 1,
            deregister_after: None,
        },
        interval_text: "1s".to_owned(),
        timeout_text: String::new(),
    }
}

fn ttl(name: &str) -> CheckSpec {
    spec(name, CheckKind::Ttl { ttl: SECOND })
}

fn alias(name: &str, of: &str) -> CheckSpec {
    spec(name, CheckKind::Alias { node: None, service: Some(id(of)) })
}

fn service(name: &str, checks: Vec<CheckSpec>) -> ServiceRegistration {
    let instance = ServiceInstance {
        key: InstanceKey { node: NodeName::new("n1").unwrap(), id: id(name) },
        name: ServiceName::new(name).unwrap(),
        kind: starling_model::InstanceKind::Typical,
        address: None,
        port: Port::try_from(80).ok(),
        tags: Vec::new(),
        meta: BTreeMap::new(),
        tagged_addresses: BTreeMap::new(),
        weights: Weights::default(),
        enable_tag_override: false,
        native: false,
        locality: None,
        kept: starling_model::OpaqueSettings::default(),
    };
    ServiceRegistration { instance, checks, sidecar: None }
}

fn with_sidecar(mut given: ServiceRegistration) -> ServiceRegistration {
    let name = given.instance.name.to_string();
    let mut nested = service(&format!("{name}-sidecar-proxy"), Vec::new());
    nested.instance.port = None;
    nested.instance.kind = starling_model::InstanceKind::Sidecar(Box::new(starling_model::SidecarProxy {
        destination: given.instance.name.clone(),
        destination_id: None,
        local_address: "127.0.0.1".to_owned(),
        local_port: None,
        upstreams: Vec::new(),
        config: OpaqueSettings::default(),
        transparent: None,
        kept: starling_model::OpaqueSettings::default(),
    }));
    given.sidecar = Some(Box::new(nested));
    given
}

/// A node under test, at a time of its own.
struct Story {
    here: Registrations,
    now: Instant,
}

impl Story {
    fn new() -> Self {
        Self { here: here(), now: Instant::now() }
    }

    fn register(&mut self, given: ServiceRegistration) -> Touched {
        self.here.register(given, Source::Caller, ExistingChecks::Keep, self.now).unwrap()
    }

    fn says(&mut self, check: &str, status: CheckStatus, output: &str) -> Touched {
        self.here.report(&check_id(check), Health { status, output: output.to_owned() }, self.now)
    }

    fn status(&self, check: &str) -> CheckStatus {
        self.here.checks()[&check_id(check)].record.status
    }
}

fn keys(touched: &Touched) -> Vec<String> {
    touched.keys.iter().map(RecordKey::encode).collect()
}

#[test]
fn a_registration_touches_everything_once_and_again_nothing() {
    let mut story = Story::new();
    let given = with_sidecar(service("web", vec![ttl("alive")]));
    let touched = story.register(given.clone());
    let all = [
        "instance/n1/web",
        "instance/n1/web-sidecar-proxy",
        "check/n1/alive",
        "check/n1/service:web-sidecar-proxy:1",
        "check/n1/service:web-sidecar-proxy:2",
    ];
    assert_eq!(keys(&touched), all);
    let again = story.register(given);
    assert!(again.is_empty(), "{again:?}");
    assert!(again.checks.is_empty());
    let gone = story.here.deregister(&id("web"), story.now).unwrap();
    assert_eq!(keys(&gone), all);
    assert!(story.here.services().is_empty() && story.here.checks().is_empty());
    assert!(story.here.owned.is_empty() && story.here.aliases.is_empty());
    assert!(story.here.deregister(&id("web"), story.now).is_none());
}

#[test]
fn a_re_registration_writes_what_differs_and_keeps_the_status() {
    let mut story = Story::new();
    story.register(service("web", vec![ttl("alive"), ttl("old")]));
    story.says("alive", CheckStatus::Passing, "well");
    let mut changed = service("web", vec![ttl("alive")]);
    changed.instance.meta.insert("v".to_owned(), "2".to_owned());
    let touched = story.register(changed);
    assert_eq!(keys(&touched), ["instance/n1/web", "check/n1/old"]);
    assert_eq!(story.status("alive"), CheckStatus::Passing);
    // The sidecar goes with the wish for one.
    story.register(with_sidecar(service("web", Vec::new())));
    let touched = story.register(service("web", Vec::new()));
    assert!(keys(&touched).contains(&"instance/n1/web-sidecar-proxy".to_owned()));
    assert!(!story.here.services().contains_key(&id("web-sidecar-proxy")));
}

#[test]
fn checks_registered_apart_stay_unless_asked_otherwise() {
    let mut story = Story::new();
    story.register(service("web", vec![ttl("own")]));
    let web = id("web");
    story.here.register_check(check_id("apart"), Some(&web), ttl("apart"), Source::Caller, story.now).unwrap();
    let mut tagged = service("web", Vec::new());
    tagged.instance.tags = vec!["t".to_owned()];
    let touched = story.register(tagged.clone());
    assert_eq!(keys(&touched), ["instance/n1/web", "check/n1/apart", "check/n1/own"]);
    assert_eq!(story.here.checks()[&check_id("apart")].record.service.as_ref().unwrap().tags, ["t"]);
    story.here.register(tagged, Source::Caller, ExistingChecks::Replace, story.now).unwrap();
    assert!(story.here.checks().is_empty());
    story.here.register_check(check_id("of-node"), None, ttl("of-node"), Source::Caller, story.now).unwrap();
    let foreign =
        story.here.register(service("web", vec![ttl("of-node")]), Source::Caller, ExistingChecks::Keep, story.now);
    assert_eq!(foreign.unwrap_err().field, "Checks");
}

#[test]
fn a_check_of_a_file_goes_to_whom_the_file_says_whoever_had_it_before() {
    let mut story = Story::new();
    story.register(service("web", vec![ttl("own")]));
    story.register(service("api", Vec::new()));
    let (web, api) = (id("web"), id("api"));
    let mut put = |owner, source| story.here.register_check(check_id("c"), owner, ttl("c"), source, story.now);
    put(Some(&web), Source::Caller).unwrap();
    assert!(put(Some(&api), Source::Caller).is_err(), "one caller does not take it from another");
    let touched = put(Some(&api), Source::File).unwrap();
    assert_eq!(keys(&touched), ["check/n1/c"]);
    put(None, Source::File).unwrap();
    let own = story.here.register_check(check_id("own"), Some(&api), ttl("own"), Source::File, story.now);
    assert!(own.is_err(), "it belongs to its service");
    assert_eq!(story.here.checks()[&check_id("c")].owner(), None);
}

#[test]
fn a_sidecar_follows_its_parent_in_the_same_step() {
    let mut story = Story::new();
    story.register(with_sidecar(service("web", vec![ttl("alive")])));
    let follows = "service:web-sidecar-proxy:2";
    assert_eq!(story.status(follows), CheckStatus::Critical);
    let touched = story.says("alive", CheckStatus::Passing, "");
    assert_eq!(keys(&touched), ["check/n1/alive", "check/n1/service:web-sidecar-proxy:2"]);
    assert_eq!(story.status(follows), CheckStatus::Passing);
    story.here.register_check(check_id("disk"), None, ttl("disk"), Source::Caller, story.now).unwrap();
    assert_eq!(story.status(follows), CheckStatus::Critical, "a check of the node counts for everybody on it");
    story.says("disk", CheckStatus::Warning, "filling up");
    assert_eq!(story.status(follows), CheckStatus::Warning);
    let output = &story.here.checks()[&check_id(follows)].record.output;
    assert_eq!(output, "Aliased check \"disk\" failing: filling up");
}

#[test]
fn aliases_of_nothing_are_critical_until_it_comes() {
    let mut story = Story::new();
    story.register(service("a", vec![alias("looks", "b")]));
    assert_eq!(story.status("looks"), CheckStatus::Critical);
    story.register(service("b", Vec::new()));
    assert_eq!(story.status("looks"), CheckStatus::Passing);
    story.here.deregister(&id("b"), story.now).unwrap();
    assert_eq!(story.status("looks"), CheckStatus::Critical);
}

#[test]
fn instances_that_look_at_each_other_recover_together() {
    let mut story = Story::new();
    story.register(service("a", vec![ttl("alive"), alias("a-looks", "b")]));
    story.register(service("b", vec![alias("b-looks", "a")]));
    for status in [CheckStatus::Passing, CheckStatus::Critical, CheckStatus::Passing] {
        story.says("alive", status, "");
        assert_eq!((story.status("a-looks"), story.status("b-looks")), (status, status));
    }
}

#[test]
fn output_alone_is_written_at_a_slow_pace() {
    let mut story = Story::new();
    story.register(service("web", vec![ttl("alive")]));
    assert!(!story.says("alive", CheckStatus::Passing, "1").is_empty());
    story.now += SECOND;
    assert!(story.says("alive", CheckStatus::Passing, "2").is_empty());
    assert_eq!(story.here.checks()[&check_id("alive")].record.output, "2", "seen here at once");
    story.now += OUTPUT_WRITE_INTERVAL;
    assert_eq!(keys(&story.says("alive", CheckStatus::Passing, "2")), ["check/n1/alive"]);
    assert!(story.says("alive", CheckStatus::Passing, "2").is_empty());
}

#[test]
fn heartbeats_are_kept_a_few_times_per_ttl() {
    let mut story = Story::new();
    story.register(service("web", vec![ttl("alive")]));
    let mut kept = 0;
    for _ in 0..100 {
        let health = Health { status: CheckStatus::Passing, output: String::new() };
        let touched = story.here.heard(&check_id("alive"), health, SECOND * 10, story.now);
        kept += touched.kept.len();
        story.now += SECOND / 10;
    }
    assert!((4..=6).contains(&kept), "{kept}");
}

#[test]
fn a_service_is_condemned_only_by_a_check_that_stays_critical() {
    let mut story = Story::new();
    let mut check = ttl("alive");
    check.definition.deregister_after = Some(SECOND * 60);
    story.register(service("web", vec![check]));
    story.now += SECOND * 59;
    assert!(story.here.condemned(story.now).is_empty());
    story.says("alive", CheckStatus::Passing, "");
    story.says("alive", CheckStatus::Critical, "");
    story.now += SECOND * 59;
    story.says("alive", CheckStatus::Critical, "still");
    assert!(story.here.condemned(story.now).is_empty());
    story.now += SECOND;
    assert_eq!(story.here.condemned(story.now).into_keys().collect::<Vec<_>>(), [id("web")]);
}

#[test]
fn what_is_undone_was_never_there() {
    let mut story = Story::new();
    story.register(service("web", vec![ttl("alive")]));
    story.register(service("looker", vec![alias("looks", "web-2")]));
    let before = (story.here.services().clone(), format!("{:?}", story.here.owned));
    let touched = story.register(service("web-2", Vec::new()));
    assert_eq!(story.status("looks"), CheckStatus::Passing);
    story.here.undo(touched.before, story.now);
    let changed = story.register(with_sidecar(service("web", Vec::new())));
    story.here.undo(changed.before, story.now);
    assert_eq!((story.here.services().clone(), format!("{:?}", story.here.owned)), before);
    assert_eq!(story.status("looks"), CheckStatus::Critical);
}

#[test]
fn what_is_kept_makes_the_same_node_again() {
    let mut story = Story::new();
    story.register(with_sidecar(service("web", vec![ttl("alive"), ttl("other")])));
    let api = with_sidecar(service("api", Vec::new()));
    story.here.register(api, Source::File, ExistingChecks::Keep, story.now).unwrap();
    story.here.deregister(&id("api-sidecar-proxy"), story.now).unwrap();
    story.here.deregister_check(&check_id("other"), story.now).unwrap();
    story.here.register_check(check_id("apart"), Some(&id("api")), ttl("apart"), Source::Caller, story.now).unwrap();
    story.here.register_check(check_id("disk"), None, ttl("disk"), Source::File, story.now).unwrap();
    let mut copy = here();
    let mut apart = Vec::new();
    let mut register = |given: ServiceRegistration, source| {
        copy.register(given, source, ExistingChecks::Keep, story.now).unwrap();
    };
    for entry in story.here.entries(UnixSeconds(1)) {
        match entry {
            Entry::Service(given) => register(*given, Source::Caller),
            Entry::ServiceOfFile(given) => register(*given, Source::File),
            Entry::Check { id, service, spec } => apart.push((id, service, *spec, Source::Caller)),
            Entry::CheckOfFile { id, service, spec } => apart.push((id, service, *spec, Source::File)),
            Entry::ServiceGone(_) | Entry::CheckGone(_) | Entry::Status { .. } => {}
        }
    }
    for (id, service, spec, source) in apart {
        copy.register_check(id, service.as_ref(), spec, source, story.now).unwrap();
    }
    assert_eq!(copy.services(), story.here.services());
    assert_eq!(copy.checks().keys().collect::<Vec<_>>(), story.here.checks().keys().collect::<Vec<_>>());
    assert_eq!(copy.checks()[&check_id("disk")].origin, Origin::Apart(Source::File));
}

#[test]
fn a_check_of_a_file_stays_when_its_file_is_read_again_and_goes_when_a_caller_replaces_all() {
    let mut story = Story::new();
    let web = id("web");
    let service = || service("web", Vec::new());
    story.here.register(service(), Source::File, ExistingChecks::Replace, story.now).unwrap();
    story.here.register_check(check_id("of-file"), Some(&web), ttl("of-file"), Source::File, story.now).unwrap();
    story.here.register_check(check_id("of-caller"), Some(&web), ttl("of-caller"), Source::Caller, story.now).unwrap();
    story.here.register(service(), Source::File, ExistingChecks::Replace, story.now).unwrap();
    assert_eq!(story.here.checks().keys().collect::<Vec<_>>(), [&check_id("of-file")]);
    story.here.register(service(), Source::Caller, ExistingChecks::Replace, story.now).unwrap();
    assert!(story.here.checks().is_empty());
}
