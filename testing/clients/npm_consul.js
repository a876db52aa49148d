// Checks npm's `consul` against the agent at CLIENT_PORT; what it prints is read by library.py.
"use strict";

const assert = require("node:assert").strict;
const readline = require("node:readline");
const Consul = require("consul");

const WOKEN_WITHIN_MS = 5000;
const client = new Consul({ host: "127.0.0.1", port: process.env.CLIENT_PORT });
const steps = [];

function step(what, documented, run) {
  steps.push({ what, documented, run });
}

/** Whether a record has at least these fields. */
function within(seen, wanted) {
  const part = Object.fromEntries(Object.keys(wanted).map((key) => [key, seen?.[key]]));
  assert.deepEqual(part, wanted);
}

/** What has to hold soon: an agent tells its servers beside the answer. */
async function until(condition) {
  const ends = Date.now() + WOKEN_WITHIN_MS;
  for (;;) {
    try {
      return await condition();
    } catch (error) {
      if (Date.now() > ends) throw error;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}

async function refused(call, status) {
  await assert.rejects(call, (error) => {
    assert.equal(error.statusCode, status, `${error.message}`);
    return true;
  });
}

step("kv: set, get, raw, keys, recurse, delete", "PUT answers true; GET Value in base64, with ?raw the bytes; ?keys; ?recurse; 404 of what is not there", async () => {
  assert.equal(await client.kv.get("js/none"), undefined);
  assert.equal(await client.kv.set({ key: "js/a b/ü", value: "grün", flags: 7 }), true);
  within(await client.kv.get("js/a b/ü"), { Key: "js/a b/ü", Value: "grün", Flags: 7, LockIndex: 0 });
  assert.deepEqual(await client.kv.get({ key: "js/a b/ü", raw: true }), Buffer.from("grün"));
  assert.equal(await client.kv.set("js/t/x", "1"), true);
  assert.equal(await client.kv.set("js/t/y/z", "2"), true);
  assert.deepEqual((await client.kv.get({ key: "js/t/", recurse: true })).map((each) => each.Value), ["1", "2"]);
  assert.deepEqual(await client.kv.keys({ key: "js/t/", separator: "/" }), ["js/t/x", "js/t/y/"]);
  assert.equal(await client.kv.del({ key: "js/t/", recurse: true }), true);
  assert.equal(await client.kv.get({ key: "js/t/", recurse: true }), undefined);
  await refused(client.kv.keys("js/t/"), 404);
});

step("kv: check-and-set", "?cas=0 writes what is not there; ?cas=N where ModifyIndex is N; else false", async () => {
  assert.equal(await client.kv.set({ key: "js/cas", value: "1", cas: 0 }), true);
  // Of an answer `false` this library makes `undefined`.
  assert.equal(await client.kv.set({ key: "js/cas", value: "2", cas: 0 }), undefined);
  const { ModifyIndex: cas } = await client.kv.get("js/cas");
  assert.equal(await client.kv.set({ key: "js/cas", value: "3", cas }), true);
  assert.equal(await client.kv.del({ key: "js/cas", cas }), undefined);
  assert.equal((await client.kv.get("js/cas")).Value, "3");
});

step("session: create, get, list, node, renew, destroy; kv: acquire, release", "a session's ID locks a key with ?acquire; renew of one that is gone answers 404", async () => {
  const { ID: id } = await client.session.create({ name: "s", ttl: "30s", lockdelay: "1s" });
  within(await client.session.get(id), { ID: id, Name: "s", Node: "n1", TTL: "30s", Behavior: "release", LockDelay: 1e9 });
  assert.deepEqual((await client.session.list()).map((each) => each.ID), [id]);
  assert.deepEqual((await client.session.node("n1")).map((each) => each.ID), [id]);
  assert.equal((await client.session.renew(id))[0].ID, id);
  assert.equal(await client.kv.set({ key: "js/lock", value: "held", acquire: id }), true);
  within(await client.kv.get("js/lock"), { Session: id, LockIndex: 1 });
  assert.equal(await client.kv.set({ key: "js/lock", value: "free", release: id }), true);
  assert.equal((await client.kv.get("js/lock")).Session, undefined);
  await client.session.destroy(id);
  assert.equal(await client.session.get(id), undefined);
  await refused(client.session.renew(id), 404);
  await assert.rejects(client.kv.set({ key: "js/lock", value: "held", acquire: id }));
});

step("agent: service with checks, checks of its own", "PUT /v1/agent/service/register; TTL checks are what pass, warn and fail last said; an unknown check is 404", async () => {
  const checks = [{ name: "alive", checkid: "alive", ttl: "30s", status: "passing" }, { http: "http://127.0.0.1:1/", interval: "10s", timeout: "1s" }];
  await client.agent.service.register({ name: "web", id: "web-1", address: "10.0.0.1", port: 80, tags: ["v1"], meta: { k: "v" }, checks });
  within((await client.agent.service.list())["web-1"], { Service: "web", Address: "10.0.0.1", Port: 80, Tags: ["v1"], Meta: { k: "v" } });
  within((await client.agent.check.list())["service:web-1:2"], { ServiceID: "web-1", Status: "critical", Type: "http" });
  await client.agent.check.register({ name: "disk", id: "disk", ttl: "60s", notes: "of the node" });
  for (const [call, status] of [["warn", "warning"], ["fail", "critical"], ["pass", "passing"]]) {
    await client.agent.check[call]({ id: "disk", note: `is ${status}` });
    within((await client.agent.check.list()).disk, { Status: status, Output: `is ${status}` });
  }
  await client.agent.check.deregister("disk");
  await refused(client.agent.check.pass("disk"), 404);
  await client.agent.service.register({ name: "web", id: "web-2", port: 81, check: { ttl: "30s" } });
  await client.agent.check.pass("service:web-2");
});

step("health: service, checks, node, state", "GET /v1/health/service/:name gives Node, Service and Checks; ?passing leaves out the others", async () => {
  const entries = await until(async () => {
    const found = await client.health.service({ service: "web", passing: true });
    assert.deepEqual(found.map((each) => each.Service.ID), ["web-2"]);
    return found;
  });
  within(entries[0].Node, { Node: "n1", Datacenter: "dc1" });
  assert.equal((await client.health.service("web")).length, 2);
  assert.equal((await client.health.service({ service: "web", tag: "v1" })).length, 1);
  assert.equal((await client.health.service({ service: "web", filter: "Service.Port == 81" })).length, 1);
  assert.deepEqual((await client.health.checks("web")).map((each) => each.CheckID).sort(), ["alive", "service:web-1:2", "service:web-2"]);
  assert.equal((await client.health.node("n1")).some((each) => each.CheckID === "serfHealth"), true);
  assert.deepEqual((await client.health.state("critical")).map((each) => each.CheckID), ["service:web-1:2"]);
});

step("catalog: datacenters, nodes, services, register, deregister", "PUT /v1/catalog/register enters a node that has no agent; deregister takes it away", async () => {
  assert.deepEqual(await client.catalog.datacenters(), ["dc1"]);
  assert.deepEqual((await client.catalog.node.list()).map((each) => each.Node), ["n1"]);
  assert.deepEqual(await client.catalog.service.list(), { consul: [], web: ["v1"] });
  const service = { service: "db", id: "db-1", port: 5432, tags: ["primary"] };
  await client.catalog.register({ node: "out", address: "10.9.9.9", service });
  within((await client.catalog.service.nodes("db"))[0], { Node: "out", Address: "10.9.9.9", ServiceID: "db-1", ServicePort: 5432 });
  assert.deepEqual(Object.keys((await client.catalog.node.services("out")).Services), ["db-1"]);
  await client.catalog.deregister("out");
  assert.deepEqual(await client.catalog.service.nodes("db"), []);
});

step("transaction", "PUT /v1/txn does all or nothing: Results in order, or 409 with Errors by OpIndex", async () => {
  const kv = (Verb, Key, Value, more = {}) => ({ KV: { Verb, Key, ...(Value && { Value: Buffer.from(Value).toString("base64") }), ...more } });
  const done = await client.transaction.create([kv("set", "js/x", "1"), kv("get", "js/x")]);
  assert.equal(Buffer.from(done.Results[1].KV.Value, "base64").toString(), "1");
  await refused(client.transaction.create([kv("set", "js/x", "2"), kv("cas", "js/x", "3", { Index: 1 })]), 409);
  assert.equal((await client.kv.get("js/x")).Value, "1");
});

step("watch: key, service; ends", "?index&wait answers at each change with a greater X-Consul-Index, and with the same one after the wait", async () => {
  await client.kv.set("js/watched", "0");
  let seen = [];
  let fault;
  const watch = client.watch({ method: client.kv.get, options: { key: "js/watched", wait: "10s" } });
  watch.on("change", (data) => seen.push(data?.Value));
  watch.on("error", (error) => (fault = error));
  const took = [];
  for (let value = 1; value <= 10; value += 1) {
    const begun = Date.now();
    await client.kv.set("js/watched", `${value}`);
    await until(async () => assert.equal(seen.at(-1), `${value}`));
    took.push(Date.now() - begun);
  }
  watch.end();
  assert.equal(fault, undefined);

  seen = [];
  const services = client.watch({ method: client.health.service, options: { service: "web", passing: true, wait: "10s" } });
  services.on("change", (data) => seen.push(data.map((each) => each.Service.ID)));
  services.on("error", (error) => (fault = error));
  await until(async () => assert.deepEqual(seen.at(-1), ["web-2"]));
  await client.agent.check.fail("service:web-2");
  await until(async () => assert.deepEqual(seen.at(-1), []));
  await client.agent.check.pass("service:web-2");
  await until(async () => assert.deepEqual(seen.at(-1), ["web-2"]));
  services.end();
  assert.equal(fault, undefined);
  return `10 writes seen, each within ${Math.max(...took)} ms`;
});

step("watch: rests while nothing changes", "a blocking query without a change is answered after its wait, and not before", async () => {
  let answers = 0;
  const method = function (options) {
    answers += 1;
    return client.kv.get.call(client.kv, options);
  };
  const watch = client.watch({ method, options: { key: "js/watched", wait: "2s" } });
  await new Promise((resolve) => setTimeout(resolve, 5000));
  watch.end();
  // The first, which does not wait, and three of two seconds each and a sixteenth at most.
  assert.ok(answers >= 3 && answers <= 4, `${answers} requests in 5 s`);
  return `${answers} requests in 5 s with a wait of 2 s`;
});

step("agent: self, members; status", "GET /v1/agent/self has Config and Member; /v1/status/leader and /peers are addresses", async () => {
  within((await client.agent.self()).Config, { NodeName: "n1", Datacenter: "dc1", Server: true });
  assert.deepEqual((await client.agent.members()).map((each) => each.Name), ["n1"]);
  assert.ok((await client.status.peers()).includes(await client.status.leader()));
});

step("agent: maintenance of a service and of the node", "critical checks `_service_maintenance:ID` and `_node_maintenance` while it is enabled", async () => {
  await client.agent.service.maintenance({ id: "web-2", enable: true, reason: "why not" });
  within((await client.agent.check.list())["_service_maintenance:web-2"], { Status: "critical", Notes: "why not" });
  await client.agent.service.maintenance({ id: "web-2", enable: false });
  await client.agent.maintenance({ enable: true, reason: "rest" });
  within((await client.agent.check.list())._node_maintenance, { Status: "critical", Notes: "rest" });
  await client.agent.maintenance(false);
});

step("event: fire, list", "PUT /v1/event/fire/:name answers the event; GET /v1/event/list has it with its Payload in base64", async () => {
  const { ID: id } = await client.event.fire("deploy", "42");
  await until(async () => within((await client.event.list("deploy")).find((each) => each.ID === id), { Name: "deploy", Payload: "42" }));
});

step("query: create, get, execute, destroy", "POST /v1/query answers the ID; /execute by ID or name answers Service and Nodes", async () => {
  const { ID: query } = await client.query.create({ name: "web-query", service: { service: "web" } });
  within(await client.query.get(query), { ID: query, Name: "web-query" });
  within(await client.query.execute("web-query"), { Service: "web" });
  await client.query.destroy(query);
  await refused(client.query.get(query), 404);
});

step("agent: services deregistered", "PUT /v1/agent/service/deregister/:id removes it and its checks, also from the catalog", async () => {
  await client.agent.service.deregister("web-1");
  await client.agent.service.deregister("web-2");
  assert.deepEqual(await client.agent.service.list(), {});
  assert.deepEqual(await client.agent.check.list(), {});
  await until(async () => assert.deepEqual(Object.keys(await client.catalog.service.list()), ["consul"]));
});

async function main() {
  const replies = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  for (const { what, documented, run } of steps) {
    let error = null;
    let figures = null;
    try {
      figures = (await run()) ?? null;
    } catch (failure) {
      error = `${failure.name}: ${failure.message}`.replaceAll("\n", " ").slice(0, 800);
    }
    console.log(JSON.stringify({ what, documented, may_be_missing: false, error, figures }));
    await replies.next();
  }
  process.exit(0);
}

main();
