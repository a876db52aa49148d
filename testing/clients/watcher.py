"""The pattern of Registrator and Fabio: one consistent blocking query on the state of all checks, answered for each change and never else."""

import concurrent.futures
import time

from agent import Agent, ask
from children import Failed, wait_for
from relay import Relay

CHANGES = 20
WOKEN_WITHIN_S = 2
QUIET_S = 8
PATH = "/v1/health/state/any?consistent&index={index}&wait=60s"
SERVICE = {"Name": "web", "ID": "web-1", "Port": 80, "Check": {"CheckID": "alive", "TTL": "1h", "Status": "passing"}}


def run(setting):
    with setting.client("watch of all checks", "urllib") as client:
        agent = Agent(setting.children, setting.binary, setting.folder("watcher"))
        relay = Relay(agent.http)
        with concurrent.futures.ThreadPoolExecutor(1) as beside:
            watch = Watch(relay, beside)
            agent.register(SERVICE)
            wait_for("the check is in the catalog", WOKEN_WITHIN_S, lambda: "alive" in watch.ask(0))
            try:
                changes(client, agent, watch)
                quiet(client, agent, watch)
            finally:
                # Nothing is to be waited for when a check has failed in the middle of a query.
                agent.kill()
        relay.close()


class Watch:
    """Asks as those programs do: with the index of the answer before."""

    def __init__(self, relay, beside):
        self.relay = relay
        self.beside = beside
        self.index = 0

    def ask(self, index):
        status, checks, headers = ask(self.relay.port, "GET", PATH.format(index=index), within_s=70)
        if status != 200 or headers["X-Consul-KnownLeader"] != "true":
            raise Failed(f"answered {status}, {dict(headers)}")
        self.index = int(headers["X-Consul-Index"])
        if self.index < max(index, 1):
            raise Failed(f"the index went from {index} to {self.index}")
        return {check["CheckID"]: (check["Status"], check["Output"]) for check in checks}

    def begin(self):
        """Asks beside, and returns once the question is on its way."""
        before = self.relay.count
        asked = self.beside.submit(self.ask, self.index)
        wait_for("the query is sent", WOKEN_WITHIN_S, lambda: self.relay.count > before, 0.001)
        return asked


def updated(agent, watch, status, output):
    """Has the check changed, and returns how long it took until a watch showed it, and in how many answers."""
    asked = watch.begin()
    begun = time.monotonic()
    agent.must("PUT", "/v1/agent/check/update/alive", {"Status": status, "Output": output})
    for answers in range(1, 10):
        try:
            seen = asked.result(max(begun + WOKEN_WITHIN_S - time.monotonic(), 0.001))
        except concurrent.futures.TimeoutError:
            raise Failed(f"not woken within {WOKEN_WITHIN_S} s by a check that became {status}") from None
        if seen["alive"] == (status, output):
            return time.monotonic() - begun, answers
        asked = watch.begin()
    raise Failed(f"nine answers without the change to {status}; the last {seen}")


def changes(client, agent, watch):
    with client.check(f"woken by each of {CHANGES} changes") as check:
        took = []
        total = 0
        for number in range(CHANGES):
            each, answers = updated(agent, watch, ("critical", "passing")[number % 2], f"change {number}")
            took.append(each)
            total += answers
        took.sort()
        check.figures = f"{took[len(took) // 2] * 1000:.0f} ms in the middle, {took[-1] * 1000:.0f} ms at most, {total} answers"
        if total != CHANGES:
            raise Failed(f"{total} answers for {CHANGES} changes")


def quiet(client, agent, watch):
    with client.check(f"a heartbeat a second that changes nothing wakes nobody in {QUIET_S} s") as check:
        asked = watch.begin()
        before = watch.relay.count
        for _ in range(QUIET_S):
            agent.must("PUT", "/v1/agent/check/update/alive", {"Status": "passing", "Output": f"change {CHANGES - 1}"})
            time.sleep(1)
        check.figures = f"{watch.relay.count - before} further requests"
        if asked.done():
            raise Failed(f"answered, with {asked.result()} at index {watch.index}, though nothing had changed")
        agent.must("PUT", "/v1/agent/check/update/alive", {"Status": "warning", "Output": "at last"})
        if asked.result(WOKEN_WITHIN_S)["alive"] != ("warning", "at last"):
            raise Failed("woken, but without the change")
