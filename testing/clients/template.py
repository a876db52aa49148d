"""consul-template over `service`, `key`, `ls` and `services`: each change is rendered, and while there is none, it rests."""

import os
import time

from agent import Agent
from children import Failed, cpu_seconds, wait_for
from relay import Relay
from tools import consul_template

RENDERED_WITHIN_S = 2
STARTED_WITHIN_S = 30
QUIET_S = 10
# Four blocking queries of a minute each: in ten seconds one of each may come back, and no more.
QUIET_REQUESTS_MAX = 4
QUIET_CPU_MAX_S = 0.5

TEMPLATE = """{{ range service "web" }}service {{ .ID }} {{ .Address }}:{{ .Port }}
{{ end }}key {{ key "clients/size" }}
{{ range ls "clients/folder" }}ls {{ .Key }}={{ .Value }}
{{ end }}{{ range services }}services {{ .Name }}
{{ end }}"""


def run(setting):
    binary, version = consul_template(setting.tools)
    with setting.client("consul-template", version) as client:
        agent = Agent(setting.children, setting.binary, setting.folder("template"))
        relay = Relay(agent.http)
        folder = setting.folder("template-files")
        os.makedirs(folder)
        source, rendered = os.path.join(folder, "in.tpl"), os.path.join(folder, "out.txt")
        with open(source, "w", encoding="ascii") as file:
            file.write(TEMPLATE)
        agent.must("PUT", "/v1/kv/clients/size", b"1")
        agent.must("PUT", "/v1/kv/clients/folder/a", b"1")
        command = [binary, "-consul-addr", f"127.0.0.1:{relay.port}", "-template", f"{source}:{rendered}", "-log-level", "info"]
        process = setting.children.start("consul-template", command, cwd=folder)
        changes(client, agent, rendered)
        rest(client, relay, process.pid)
        crash_free(process)
        relay.close()


def lines(rendered):
    with open(rendered, encoding="utf-8") as file:
        return set(file.read().splitlines())


def changes(client, agent, rendered):
    def shows(present=(), absent=()):
        seen = lines(rendered)
        if not seen.issuperset(present) or seen.intersection(absent):
            raise Failed(f"rendered {sorted(seen)}, wanted {list(present)} and not {list(absent)}")
        return True

    with client.check("renders what is there at the start") as check:
        took = wait_for("the first file", STARTED_WITHIN_S, lambda: shows(["key 1", "ls a=1", "services consul"]))
        check.figures = f"{took * 1000:.0f} ms"

    web = {"Name": "web", "ID": "web-1", "Address": "10.0.0.1", "Port": 80}
    ttl = {**web, "Check": {"TTL": "1h", "Status": "passing"}}
    steps = [
        ("key: a write", lambda: agent.must("PUT", "/v1/kv/clients/size", b"2"), ["key 2"], ["key 1"]),
        ("ls: a new key", lambda: agent.must("PUT", "/v1/kv/clients/folder/b", b"x"), ["ls a=1", "ls b=x"], []),
        ("ls: a write", lambda: agent.must("PUT", "/v1/kv/clients/folder/a", b"3"), ["ls a=3", "ls b=x"], ["ls a=1"]),
        ("ls: a key deleted", lambda: agent.must("DELETE", "/v1/kv/clients/folder/b"), ["ls a=3"], ["ls b=x"]),
        ("service, services: registered", lambda: agent.register(ttl), ["service web-1 10.0.0.1:80", "services web"], []),
        ("service: another port", lambda: agent.register({**ttl, "Port": 81}), ["service web-1 10.0.0.1:81"], ["service web-1 10.0.0.1:80"]),
        ("service: critical, so left out", lambda: agent.must("PUT", "/v1/agent/check/fail/service:web-1"),
         ["services web"], ["service web-1 10.0.0.1:81"]),
        ("service: passing again", lambda: agent.must("PUT", "/v1/agent/check/pass/service:web-1"), ["service web-1 10.0.0.1:81"], []),
        ("service, services: deregistered", lambda: agent.deregister("web-1"), [], ["service web-1 10.0.0.1:81", "services web"]),
    ]
    for what, change, present, absent in steps:
        with client.check(what) as check:
            begun = time.monotonic()
            change()
            wait_for(what, RENDERED_WITHIN_S, lambda present=present, absent=absent: shows(present, absent), 0.005)
            took = time.monotonic() - begun
            check.figures = f"{took * 1000:.0f} ms"
            if took > RENDERED_WITHIN_S:
                raise Failed(f"rendered after {took:.1f} s")


def rest(client, relay, pid):
    with client.check(f"rests while nothing changes for {QUIET_S} s") as check:
        # What the last change still sets off: an unchanged count for a second.
        wait_for("the last queries are sent", STARTED_WITHIN_S, lambda: settled(relay))
        relay.take()
        before, cpu = relay.count, cpu_seconds(pid)
        time.sleep(QUIET_S)
        requests, cpu = relay.count - before, cpu_seconds(pid) - cpu
        check.figures = f"{requests} requests, {cpu * 1000:.0f} ms of CPU time"
        if requests > QUIET_REQUESTS_MAX or cpu > QUIET_CPU_MAX_S:
            raise Failed(f"{requests} requests and {cpu:.2f} s of CPU time: {[each.line for each in relay.take()][:10]}")


def settled(relay):
    before = relay.count
    time.sleep(1)
    return relay.count == before


def crash_free(process):
    if process.poll() is not None:
        raise Failed(f"consul-template ended with {process.returncode}")
