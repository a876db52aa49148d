//! Slots of subsets and of those that fail over.

use starling_catalog::Snapshot;
use starling_identity::Layout;
use starling_model::{Action, Change, Record, RecordKey, Revision};

use super::*;

struct World {
    snapshot: Snapshot,
    plane: NativePlane,
}

impl World {
    fn new() -> Self {
        let settings = MeshSettings {
            trust_domain: "mesh.test".parse().unwrap(),
            datacenter: "dc1".parse().unwrap(),
            namespace: "default".parse().unwrap(),
            default_intention_action: Action::Allow,
            layout: Layout::Consul,
        };
        let mut world = Self { snapshot: Snapshot::default(), plane: NativePlane::new(settings) };
        let root = r#"{"id":"r1","name":"","certificate_pem":"r1","serial":1,"signing_key_id":"","trust_domain":"mesh.test","not_before":0,"not_after":1,"active":true}"#;
        world.put("ca-root/r1", root);
        world.put("node/n1", r#"{"name":"n1","id":"","address":"10.0.0.1","tagged_addresses":{},"meta":{}}"#);
        world
    }

    fn commit(&mut self, change: Change) {
        let revision = Revision(self.snapshot.revision().0 + 1);
        let applied = self.snapshot.apply(revision, &[change]);
        self.snapshot = applied.snapshot;
        let touched = applied.events.into_iter().map(|event| event.subject).collect();
        self.plane.apply(&self.snapshot, &touched, &|_| true);
    }

    fn put(&mut self, key: &str, json: &str) {
        let key = RecordKey::decode(key).unwrap();
        self.commit(Change::Put(Record::decode(&key, json.as_bytes()).unwrap()));
    }

    /// A sidecar in a zone of the region `eu`.
    fn near(&mut self, id: &str, of: &str, port: u16, zone: &str, upstreams: &str) {
        let json = format!(
            r#"{{"key":{{"node":"n1","id":"{id}"}},"name":"{of}-sidecar-proxy","kind":{{"sidecar":{{"destination":"{of}","upstreams":[{upstreams}]}}}},"port":{port},"locality":{{"region":"eu","zone":"{zone}"}}}}"#
        );
        self.put(&format!("instance/n1/{id}"), &json);
    }

    fn sidecar(&mut self, id: &str, of: &str, port: u16, version: &str, upstreams: &str) {
        let json = format!(
            r#"{{"key":{{"node":"n1","id":"{id}"}},"name":"{of}-sidecar-proxy","kind":{{"sidecar":{{"destination":"{of}","upstreams":[{upstreams}]}}}},"port":{port},"meta":{{"version":"{version}"}}}}"#
        );
        self.put(&format!("instance/n1/{id}"), &json);
    }

    fn called(&self) -> Vec<String> {
        self.called_by("web")
    }

    /// The ports of each slot that a caller holds, by cluster; those that it fails over to after a slash.
    fn called_by(&self, caller: &str) -> Vec<String> {
        let (_, workload) = self.plane.workloads().find(|(id, _)| id.as_str() == caller).unwrap();
        let ports =
            |list: &[starling_plan::Endpoint]| list.iter().map(|e| e.port.to_string()).collect::<Vec<_>>().join(",");
        let line = |slot: &Arc<Slot<Endpoints>>| {
            let part = slot.load();
            let groups: String = part.failover.iter().map(|group| format!("/{}", ports(&group.endpoints))).collect();
            format!("{} {}{groups}", part.target(), ports(&part.endpoints))
        };
        workload.endpoints.iter().map(line).collect()
    }
}

#[test]
fn an_instance_is_put_into_every_slot_that_it_belongs_to() {
    let mut world = World::new();
    world.put(
        "config/service-resolver/api",
        r#"{"service-resolver":{"service":"api","subsets":{"v1":{"filter":"Service.Meta.version == v1"},"v2":{"filter":"Service.Meta.version == v2"}},"failover":{"by_subset":{"v1":[{"subset":"v2"},{"service":"backup"}]}}}}"#,
    );
    world.put("config/service-defaults/api", r#"{"service-defaults":{"service":"api","protocol":"http"}}"#);
    world.put(
        "config/service-splitter/api",
        r#"{"service-splitter":{"service":"api","splits":[{"weight":5000,"subset":"v1"},{"weight":5000,"subset":"v2"}]}}"#,
    );
    let upstream = r#"{"destination":"api","bind_address":"127.0.0.1","bind_port":9191}"#;
    world.sidecar("web", "web", 21000, "", upstream);
    assert_eq!(world.called(), ["v1.api //", "v2.api "]);
    world.sidecar("api-1", "api", 21001, "v1", "");
    world.sidecar("api-2", "api", 21002, "v2", "");
    world.sidecar("backup", "backup", 21003, "", "");
    assert_eq!(world.called(), ["v1.api 21001/21002/21003", "v2.api 21002"]);

    // Its version changes, and with it the subset.
    world.sidecar("api-1", "api", 21001, "v2", "");
    assert_eq!(world.called(), ["v1.api /21001,21002/21003", "v2.api 21001,21002"]);

    // What is no longer called is no longer kept.
    world.commit(Change::Delete(RecordKey::decode("config/service-splitter/api").unwrap()));
    assert_eq!(world.called(), ["api 21001,21002"]);
    world.sidecar("web", "web", 21000, "", upstream);
    world.sidecar("api-2", "api", 21004, "v2", "");
    assert_eq!(world.called(), ["api 21001,21004"]);
    let kept: Vec<_> = world.plane.endpoints.keys().map(|(target, _)| target.to_string()).collect();
    assert_eq!(kept, ["api"]);
}

#[test]
fn callers_of_one_zone_share_a_slot_of_their_own_order() {
    let mut world = World::new();
    let prefer =
        |mode: &str| format!(r#"{{"service-resolver":{{"service":"api","prioritize_by_locality":"{mode}"}}}}"#);
    world.put("config/service-resolver/api", &prefer("failover"));
    let upstream = r#"{"destination":"api","bind_address":"127.0.0.1","bind_port":9191}"#;
    world.near("web", "web", 21000, "a", upstream);
    world.near("shop", "shop", 21010, "b", upstream);
    world.sidecar("cron", "cron", 21011, "", upstream);
    world.near("api-1", "api", 21001, "a", "");
    world.near("api-2", "api", 21002, "b", "");
    let all = |world: &World| ["web", "shop", "cron"].map(|id| world.called_by(id).join(" "));
    assert_eq!(all(&world), ["api 21001/21002", "api 21002/21001", "api 21001,21002"]);

    // One comes, one goes, and a caller moves.
    world.near("api-3", "api", 21003, "b", "");
    assert_eq!(all(&world), ["api 21001/21002,21003", "api 21002,21003/21001", "api 21001,21002,21003"]);
    world.commit(Change::Delete(RecordKey::decode("instance/n1/api-1").unwrap()));
    assert_eq!(all(&world), ["api 21002,21003", "api 21002,21003", "api 21002,21003"]);
    world.near("api-2", "api", 21002, "a", "");
    world.near("shop", "shop", 21010, "a", upstream);
    assert_eq!(all(&world), ["api 21002/21003", "api 21002/21003", "api 21002,21003"]);

    // All alike from now on, in one slot, and it follows.
    world.put("config/service-resolver/api", &prefer("none"));
    world.near("api-3", "api", 21004, "b", "");
    assert_eq!(all(&world), ["api 21002,21004"; 3]);
}
