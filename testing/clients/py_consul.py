"""Checks py-consul against the agent at CLIENT_PORT; what it prints is read by library.py."""

import base64
import json
import os
import sys
import threading
import time

import consul
from consul.exceptions import ACLDisabled, ClientError, NotFound

WOKEN_WITHIN_S = 5
CLIENT = consul.Consul(host="127.0.0.1", port=int(os.environ["CLIENT_PORT"]))
STEPS = []


def step(what, documented, may_be_missing=False):
    def add(function):
        STEPS.append((what, documented, may_be_missing, function))
        return function

    return add


def same(seen, wanted):
    if seen != wanted:
        raise AssertionError(f"got {seen!r}, wanted {wanted!r}")


def within(seen, wanted):
    """Whether a record has at least these fields."""
    same({key: seen.get(key) for key in wanted}, wanted)


def until(condition):
    """What has to hold soon: an agent tells its servers beside the answer."""
    ends = time.monotonic() + WOKEN_WITHIN_S
    while True:
        try:
            return condition()
        except (AssertionError, LookupError, TypeError):
            if time.monotonic() > ends:
                raise
            time.sleep(0.05)


@step("kv: put, get, flags, binary value", "PUT /v1/kv/:key answers true; GET gives Value in base64, Flags, CreateIndex, ModifyIndex, LockIndex")
def kv_plain():
    same(CLIENT.kv.get("clients/none"), (CLIENT.kv.get("clients/none")[0], None))
    same(CLIENT.kv.put("clients/a b/ü", bytes(range(256)), flags=2**63), True)
    index, found = CLIENT.kv.get("clients/a b/ü")
    within(found, {"Key": "clients/a b/ü", "Value": bytes(range(256)), "Flags": 2**63, "LockIndex": 0})
    same(found["CreateIndex"], found["ModifyIndex"])
    if int(index) < found["ModifyIndex"]:
        raise AssertionError(f"X-Consul-Index {index} before ModifyIndex {found['ModifyIndex']}")
    same(CLIENT.kv.put("clients/empty", None), True)
    same(CLIENT.kv.get("clients/empty")[1]["Value"], None)


@step("kv: check-and-set", "?cas=0 writes what is not there; ?cas=N where ModifyIndex is N; else false and nothing is written; DELETE likewise")
def kv_cas():
    same(CLIENT.kv.put("clients/cas", "1", cas=0), True)
    same(CLIENT.kv.put("clients/cas", "2", cas=0), False)
    index = CLIENT.kv.get("clients/cas")[1]["ModifyIndex"]
    same(CLIENT.kv.put("clients/cas", "3", cas=index), True)
    same(CLIENT.kv.put("clients/cas", "4", cas=index), False)
    same(CLIENT.kv.get("clients/cas")[1]["Value"], b"3")
    same(CLIENT.kv.delete("clients/cas", cas=index), False)
    same(CLIENT.kv.delete("clients/cas", cas=CLIENT.kv.get("clients/cas")[1]["ModifyIndex"]), True)
    same(CLIENT.kv.get("clients/cas")[1], None)


@step("kv: recurse, keys, separator, delete", "?recurse lists what begins with the prefix; ?keys&separator=/ folds at it; DELETE ?recurse removes all of it")
def kv_tree():
    for key in ("clients/t/a", "clients/t/b/c", "clients/t/b/d", "clients/tz"):
        same(CLIENT.kv.put(key, key), True)
    found = CLIENT.kv.get("clients/t/", recurse=True)[1]
    same([each["Value"].decode() for each in found], ["clients/t/a", "clients/t/b/c", "clients/t/b/d"])
    same(CLIENT.kv.get("clients/t/", keys=True)[1], ["clients/t/a", "clients/t/b/c", "clients/t/b/d"])
    same(CLIENT.kv.get("clients/t/", keys=True, separator="/")[1], ["clients/t/a", "clients/t/b/"])
    same(CLIENT.kv.delete("clients/t/b/c"), True)
    same(CLIENT.kv.delete("clients/t/", recurse=True), True)
    same(CLIENT.kv.get("clients/t/", recurse=True)[1], None)
    same(CLIENT.kv.get("clients/tz")[1]["Value"], b"clients/tz")
    same(CLIENT.kv.delete("clients/never"), True)


@step("session: create, info, list, node, renew, destroy", "PUT /v1/session/create answers the ID; renew answers the session, or 404 where it is gone")
def session():
    made = CLIENT.session.create(name="s", ttl=30, lock_delay=1, behavior="delete")
    index, found = CLIENT.session.info(made)
    within(found, {"ID": made, "Name": "s", "Node": "n1", "TTL": "30s", "Behavior": "delete", "LockDelay": 10**9})
    same([each["ID"] for each in CLIENT.session.list()[1]], [made])
    same([each["ID"] for each in CLIENT.session.node("n1")[1]], [made])
    same(CLIENT.session.node("none")[1], [])
    same(CLIENT.session.renew(made)["ID"], made)
    same(CLIENT.session.destroy(made), True)
    same(CLIENT.session.info(made)[1], None)
    try:
        CLIENT.session.renew(made)
    except NotFound:
        return
    raise AssertionError("the renewal of a session that is gone was not answered 404")


@step("kv: acquire, release; a session that ends", "?acquire=ID answers true to one session; Session and LockIndex tell; behavior delete removes the key with its session")
def kv_lock():
    one = CLIENT.session.create(ttl=60, lock_delay=0)
    two = CLIENT.session.create(ttl=60, lock_delay=0, behavior="delete")
    same(CLIENT.kv.put("clients/lock", "one", acquire=one), True)
    same(CLIENT.kv.put("clients/lock", "two", acquire=two), False)
    within(CLIENT.kv.get("clients/lock")[1], {"Session": one, "LockIndex": 1, "Value": b"one"})
    same(CLIENT.kv.put("clients/lock", "two", release=two), False)
    same(CLIENT.kv.put("clients/lock", "free", release=one), True)
    free = CLIENT.kv.get("clients/lock")[1]
    same((free.get("Session"), free["LockIndex"], free["Value"]), (None, 1, b"free"))
    same(CLIENT.kv.put("clients/lock", "two", acquire=two), True)
    same(CLIENT.kv.get("clients/lock")[1]["LockIndex"], 2)
    same(CLIENT.session.destroy(two), True)
    until(lambda: same(CLIENT.kv.get("clients/lock")[1], None))
    same(CLIENT.session.destroy(one), True)


@step("kv: blocking query with an index", "?index&wait answers when the key changes, or after the wait (and at most a sixteenth more) with the same index")
def kv_blocking():
    same(CLIENT.kv.put("clients/watched", "1"), True)
    index, _ = CLIENT.kv.get("clients/watched")
    begun = time.monotonic()
    again, _ = CLIENT.kv.get("clients/watched", index=index, wait="1s")
    took = time.monotonic() - begun
    if again != index or not 0.9 < took < 2:
        raise AssertionError(f"index {index} became {again} after {took:.2f} s, though nothing was written")
    other = consul.Consul(host="127.0.0.1", port=CLIENT.http.port)
    written = []

    def write():
        written.append(time.monotonic())
        other.kv.put("clients/watched", "2")
        written.append(time.monotonic())

    timer = threading.Timer(0.3, write)
    timer.start()
    after, found = CLIENT.kv.get("clients/watched", index=index, wait="20s")
    took = time.monotonic() - written[0]
    timer.join()
    same(found["Value"], b"2")
    if int(after) <= int(index) or took > WOKEN_WITHIN_S:
        raise AssertionError(f"index {index} became {after} after {took:.2f} s")
    return f"woken {took * 1000:.0f} ms after the write was sent, which was answered after {(written[1] - written[0]) * 1000:.0f} ms"


@step("agent: service with TTL check", "PUT /v1/agent/service/register takes names in any case; a TTL check begins critical, and is what pass, warn and fail last said")
def service():
    check = consul.Check.ttl("30s")
    registered = CLIENT.agent.service.register(
        "web", service_id="web-1", address="10.0.0.1", port=80, tags=["v1", "a"], meta={"k": "v"}, check=check, weights={"Passing": 3, "Warning": 2}
    )
    same(registered, True)
    within(CLIENT.agent.services()["web-1"], {"Service": "web", "Port": 80, "Tags": ["v1", "a"], "Meta": {"k": "v"}, "Weights": {"Passing": 3, "Warning": 2}})
    within(CLIENT.agent.service_definition("web-1"), {"ID": "web-1", "Service": "web", "Port": 80})
    within(CLIENT.agent.checks()["service:web-1"], {"Status": "critical", "ServiceID": "web-1", "Type": "ttl"})
    for call, status in ((CLIENT.agent.check.ttl_warn, "warning"), (CLIENT.agent.check.ttl_fail, "critical"), (CLIENT.agent.check.ttl_pass, "passing")):
        same(call("service:web-1", notes=f"is {status}"), True)
        within(CLIENT.agent.checks()["service:web-1"], {"Status": status, "Output": f"is {status}"})
    same(list(CLIENT.agent.services(filter_expr='Service == "web"')), ["web-1"])
    # Of a check that it does not know, the agent answers 404, of which this library makes a "no".
    same(CLIENT.agent.check.ttl_pass("none"), False)


@step("agent: check of a node, of a service", "PUT /v1/agent/check/register, with ServiceID for one of a service; deregister takes it away")
def checks():
    same(CLIENT.agent.check.register("disk", check=consul.Check.ttl("60s"), check_id="disk", notes="of the node"), True)
    same(CLIENT.agent.check.register("more", check=consul.Check.ttl("60s"), check_id="more", service_id="web-1"), True)
    same(CLIENT.agent.check.ttl_pass("disk"), True)
    within(CLIENT.agent.checks()["disk"], {"Name": "disk", "Notes": "of the node", "ServiceID": "", "Status": "passing"})
    within(CLIENT.agent.checks()["more"], {"ServiceName": "web", "Status": "critical"})
    for check in ("disk", "more"):
        same(CLIENT.agent.check.deregister(check), True)
    same(list(CLIENT.agent.checks()), ["service:web-1"])


@step("health: service, checks, node, state", "GET /v1/health/service/:name gives Node, Service and Checks; ?passing leaves out the others; ?tag; ?filter")
def health():
    entry = until(lambda: CLIENT.health.service("web", passing=True, tag="v1")[1][0])
    within(entry["Service"], {"ID": "web-1", "Service": "web", "Address": "10.0.0.1", "Port": 80})
    same(entry["Node"]["Node"], "n1")
    same(sorted(check["CheckID"] for check in entry["Checks"]), ["serfHealth", "service:web-1"])
    same(CLIENT.health.service("web", tag="none")[1], [])
    same(len(CLIENT.health.service("web", filter_expr='Service.Meta.k == "v"')[1]), 1)
    same([check["CheckID"] for check in CLIENT.health.checks("web")[1]], ["service:web-1"])
    same(sorted(check["CheckID"] for check in CLIENT.health.node("n1")[1]), ["serfHealth", "service:web-1"])
    same(sorted(check["CheckID"] for check in CLIENT.health.state("passing")[1]), ["serfHealth", "service:web-1"])
    index, _ = CLIENT.health.service("web", passing=True)
    same(CLIENT.agent.check.ttl_fail("service:web-1"), True)
    same(CLIENT.health.service("web", passing=True, index=index, wait="5s")[1], [])
    same(len(CLIENT.health.service("web")[1]), 1)


@step("catalog: nodes, services, node, register, deregister", "PUT /v1/catalog/register enters a node that has no agent, with service and check; deregister takes each away")
def catalog():
    same(CLIENT.catalog.datacenters(), ["dc1"])
    within(CLIENT.catalog.nodes()[1][0], {"Node": "n1", "Datacenter": "dc1"})
    same(sorted(CLIENT.catalog.services()[1]), ["consul", "web"])
    same(sorted(CLIENT.catalog.services()[1]["web"]), ["a", "v1"])
    entered = {"Service": "db", "ID": "db-1", "Port": 5432, "Tags": ["primary"]}
    check = {"Node": "out", "CheckID": "service:db-1", "Name": "alive", "Status": "passing", "ServiceID": "db-1"}
    same(CLIENT.catalog.register("out", "10.9.9.9", service=entered, check=check), True)
    found = CLIENT.catalog.service("db")[1]
    within(found[0], {"Node": "out", "Address": "10.9.9.9", "ServiceID": "db-1", "ServicePort": 5432, "ServiceTags": ["primary"]})
    same(len(CLIENT.health.service("db", passing=True)[1]), 1)
    same(list(CLIENT.catalog.node("out")[1]["Services"]), ["db-1"])
    same(CLIENT.catalog.node("none")[1], None)
    same([each["Node"] for each in CLIENT.catalog.nodes(filter_expr='Node == "out"')[1]], ["out"])
    same(CLIENT.catalog.deregister("out", check_id="service:db-1"), True)
    same(CLIENT.health.checks("db")[1], [])
    same(CLIENT.catalog.deregister("out", service_id="db-1"), True)
    same(CLIENT.catalog.service("db")[1], [])
    same(CLIENT.catalog.deregister("out"), True)
    same([each["Node"] for each in CLIENT.catalog.nodes()[1]], ["n1"])


@step("txn", "PUT /v1/txn does all or nothing: Results in order, or 409 with Errors by OpIndex")
def txn():
    def kv(verb, key, value=None, **more):
        return {"KV": {"Verb": verb, "Key": key, **({} if value is None else {"Value": base64.b64encode(value).decode()}), **more}}

    done = CLIENT.txn.put([kv("set", "clients/x", b"1"), kv("set", "clients/y", b"2"), kv("get", "clients/x")])
    same([each["KV"]["Key"] for each in done["Results"]], ["clients/x", "clients/y", "clients/x"])
    same(base64.b64decode(done["Results"][2]["KV"]["Value"]), b"1")
    try:
        CLIENT.txn.put([kv("set", "clients/x", b"3"), kv("cas", "clients/y", b"4", Index=1)])
    except ClientError as refused:
        answer = json.loads(str(refused).split(" ", 1)[1])
        same((str(refused)[:3], [each["OpIndex"] for each in answer["Errors"]]), ("409", [1]))
    else:
        raise AssertionError("a transaction whose check fails was not answered 409")
    same(CLIENT.kv.get("clients/x")[1]["Value"], b"1")


@step("agent: self, members; status", "GET /v1/agent/self has Config and Member; /v1/status/leader an address, /v1/status/peers a list")
def status():
    within(CLIENT.agent.self()["Config"], {"NodeName": "n1", "Datacenter": "dc1", "Server": True})
    same([each["Name"] for each in CLIENT.agent.members()], ["n1"])
    same(CLIENT.status.leader() in CLIENT.status.peers(), True)


@step("config entries, intentions' CA", "PUT /v1/config and GET /v1/config/:kind/:name; GET /v1/connect/ca/roots has ActiveRootID")
def config():
    same(CLIENT.config.set("service-defaults", "web", {"Protocol": "http"}), True)
    within(CLIENT.config.get("service-defaults", "web"), {"Kind": "service-defaults", "Name": "web", "Protocol": "http"})
    same([each["Name"] for each in CLIENT.config.list("service-defaults")], ["web"])
    same(CLIENT.config.delete("service-defaults", "web"), True)
    same("ActiveRootID" in CLIENT.connect.ca.roots(), True)


@step(
    "agent: maintenance of a service and of the node",
    "PUT /v1/agent/service/maintenance/:id and /v1/agent/maintenance with ?enable and ?reason: critical checks `_service_maintenance:ID`, `_node_maintenance`",
)
def maintenance():
    same(CLIENT.agent.service.maintenance("web-1", True, "why not"), True)
    within(CLIENT.agent.checks()["_service_maintenance:web-1"], {"Status": "critical", "Notes": "why not"})
    same(CLIENT.agent.service.maintenance("web-1", False), True)
    same(CLIENT.agent.maintenance(True, "rest"), True)
    within(CLIENT.agent.checks()["_node_maintenance"], {"Status": "critical", "Notes": "rest"})
    same(CLIENT.agent.maintenance(False), True)
    same(list(CLIENT.agent.checks()), ["service:web-1"])


@step("event: fire, list", "PUT /v1/event/fire/:name answers the event; GET /v1/event/list has it with its Payload in base64")
def event():
    fired = CLIENT.event.fire("deploy", "42")
    same(fired["Name"], "deploy")
    found = until(lambda: [each for each in CLIENT.event.list("deploy")[1] if each["ID"] == fired["ID"]][0])
    same(found["Payload"], b"42")


@step("coordinate: datacenters, update, nodes, node", "PUT /v1/coordinate/update is taken soon; GET /v1/coordinate/nodes and /node/:node give Node, Segment and Coord")
def coordinate():
    same([each["Datacenter"] for each in CLIENT.coordinate.datacenters()], ["dc1"])
    place = {"Adjustment": 0.5, "Error": 1.5, "Height": 0.25, "Vec": [0.5, 0, 0, 0, 0, 0, 0, 0]}
    same(CLIENT.coordinate.update("n1", place), True)
    until(lambda: same([(each["Node"], each["Coord"]) for each in CLIENT.coordinate.nodes()[1]], [("n1", place)]))
    same(CLIENT.coordinate.node("n1")[1][0]["Coord"]["Height"], 0.25)


@step("query: create, get, update, execute, explain, delete", "POST /v1/query answers the ID; /execute by ID or name answers Service and Nodes")
def query():
    same(CLIENT.agent.check.ttl_pass("service:web-1"), True)
    until(lambda: same(len(CLIENT.health.service("web", passing=True)[1]), 1))
    made = CLIENT.query.create("web", name="web-query", onlypassing=True)["ID"]
    same(CLIENT.query.get(made)[0]["Name"], "web-query")
    for asked in (made, "web-query"):
        answer = CLIENT.query.execute(asked)
        within(answer, {"Service": "web", "Datacenter": "dc1", "Failovers": 0})
        same([each["Service"]["ID"] for each in answer["Nodes"]], ["web-1"])
    same(CLIENT.query.explain("web-query")["Query"]["ID"], made)
    same(CLIENT.query.update(made, service="web", name="web-query", tags=["none"]), True)
    same(CLIENT.query.execute(made)["Nodes"], [])
    same(CLIENT.query.delete(made), True)
    same(CLIENT.query.list(), [])


@step("acl: where there are none", "401 `ACL support disabled` of every /v1/acl/… while ACLs are off")
def acl():
    try:
        found = CLIENT.acl.token.list()
    except ACLDisabled:
        return
    raise AssertionError(f"answered {found!r}")


@step("agent: service deregistered", "PUT /v1/agent/service/deregister/:id removes it and its checks, also from the catalog")
def deregister():
    same(CLIENT.agent.service.deregister("web-1"), True)
    same((CLIENT.agent.services(), CLIENT.agent.checks()), ({}, {}))
    until(lambda: same(list(CLIENT.catalog.services()[1]), ["consul"]))


for what, documented, may_be_missing, function in STEPS:
    error, figures = None, None
    try:
        figures = function()
    except Exception as failure:  # Whatever the library makes of an answer is a result.
        error = f"{type(failure).__name__}: {failure}"[:800]
    print(json.dumps({"what": what, "documented": documented, "may_be_missing": may_be_missing, "error": error, "figures": figures}), flush=True)
    sys.stdin.readline()
