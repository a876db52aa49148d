"""Prometheus with `consul_sd_configs`: its targets are the services that are registered, also across a crash of the agent."""

import http.server
import json
import os
import threading
import time
import urllib.request

from agent import Agent
from children import Failed, free_ports, wait_for
from tools import prometheus

SERVICES = 200
GONE = 20
NEW = 10
# Prometheus looks at what its discovery found every five seconds, and asks again fifteen after an answer it could not use.
FOUND_WITHIN_S = 60
FOUND_AFTER_CRASH_WITHIN_S = 90
# Long enough that what was not cut off asks meanwhile, and is refused.
DOWN_S = 5
# How long the targets are looked at after they are all there again: longer than Prometheus takes to ask anew.
WATCHED_S = 25

CONFIG = """
global:
  scrape_interval: 2s
scrape_configs:
  - job_name: services
    consul_sd_configs:
      - server: 127.0.0.1:{agent}
        refresh_interval: 1s
    relabel_configs:
      - source_labels: [__meta_consul_tags]
        regex: .*,scraped,.*
        action: keep
      - source_labels: [__meta_consul_service_metadata_metrics_path]
        target_label: __metrics_path__
      - source_labels: [__meta_consul_service_id]
        target_label: instance
"""


class Metrics(http.server.BaseHTTPRequestHandler):
    """One server for all services, which differ in their path."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = f'served{{path="{self.path}"}} 1\n'.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def service(number, port):
    meta = {"metrics_path": f"/metrics/{number}"}
    return {"Name": f"app-{number}", "ID": f"app-{number}-1", "Address": "127.0.0.1", "Port": port, "Tags": ["scraped"], "Meta": meta}


class Served(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """A connection that Prometheus cuts off at its end is no news."""


class Targets:
    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}/api/v1/targets?state=active"

    def seen(self):
        """The health of each target, by the service's ID."""
        with urllib.request.urlopen(self.url, timeout=10) as answer:
            active = json.load(answer)["data"]["activeTargets"]
        return {each["labels"]["instance"]: (each["health"], each["scrapeUrl"]) for each in active}

    def are(self, numbers):
        """Whether they are exactly these, each scraped at its own path."""
        seen = self.seen()
        wanted = {f"app-{number}-1" for number in numbers}
        wrong = [name for name in seen if not seen[name][1].endswith(f"/metrics/{name.split('-')[1]}")]
        if set(seen) != wanted or wrong:
            raise Failed(f"missing {sorted(wanted - set(seen))[:5]}, too many {sorted(set(seen) - wanted)[:5]}, wrong path {wrong[:5]}")
        down = [name for name, (health, _) in seen.items() if health != "up"]
        if down:
            raise Failed(f"{len(down)} of {len(seen)} are not up: {down[:5]}")
        return True


class Least(threading.Thread):
    """Counts the targets until it is stopped, and keeps the least."""

    def __init__(self, targets):
        super().__init__(daemon=True)
        self.targets = targets
        self.ended = threading.Event()
        self.least = None
        self.looks = 0

    def run(self):
        while not self.ended.wait(0.1):
            try:
                count = len(self.targets.seen())
            except OSError:
                continue
            self.looks += 1
            self.least = count if self.least is None else min(self.least, count)

    def stop(self):
        self.ended.set()
        self.join()
        return self.least


def run(setting):
    binary, version = prometheus(setting.tools)
    with setting.client("prometheus", version) as client:
        agent = Agent(setting.children, setting.binary, setting.folder("prometheus"), durable=True)
        served = Served(("127.0.0.1", 0), Metrics)
        threading.Thread(target=served.serve_forever, daemon=True).start()
        port = served.server_address[1]
        (own,) = free_ports(1)
        folder = setting.folder("prometheus-data")
        os.makedirs(folder)
        config = os.path.join(folder, "prometheus.yml")
        with open(config, "w", encoding="ascii") as file:
            file.write(CONFIG.format(agent=agent.http))
        command = [binary, f"--config.file={config}", f"--storage.tsdb.path={folder}/tsdb", f"--web.listen-address=127.0.0.1:{own}"]
        setting.children.start("prometheus", command, cwd=folder)
        targets = Targets(own)
        wait_for("Prometheus answers", FOUND_WITHIN_S, lambda: targets.seen() == {})
        discovery(client, agent, targets, port)
        served.shutdown()


def catalog(agent):
    """The names of all services, and the index."""
    _, services, headers = agent.ask("GET", "/v1/catalog/services")
    return set(services), int(headers["X-Consul-Index"])


def discovery(client, agent, targets, port):
    numbers = set(range(SERVICES))

    def found(within_s=FOUND_WITHIN_S):
        return wait_for(f"{len(numbers)} targets, exactly those registered, up", within_s, lambda: targets.are(numbers), 0.2)

    with client.check(f"finds and scrapes {SERVICES} services") as check:
        for number in sorted(numbers):
            agent.register(service(number, port))
        check.figures = f"{found():.1f} s until all are up"
    with client.check(f"{GONE} deregistered, {NEW} added: exactly those") as check:
        for number in range(GONE):
            agent.deregister(f"app-{number}-1")
        for number in range(SERVICES, SERVICES + NEW):
            agent.register(service(number, port))
        numbers = set(range(GONE, SERVICES + NEW))
        check.figures = f"{found():.1f} s"
    with client.check("agent killed -9 and started on its data: nothing is lost") as check:
        least = Least(targets)
        least.start()
        before = catalog(agent)
        begun = time.monotonic()
        agent.kill()
        time.sleep(DOWN_S)
        agent.start()
        outage = time.monotonic() - begun
        after = catalog(agent)
        if after[0] != before[0] or after[1] < before[1]:
            raise Failed(f"lost {sorted(before[0] - after[0])[:5]}, new {sorted(after[0] - before[0])[:5]}, index {before[1]} became {after[1]}")
        # Long enough that Prometheus has asked the new process, which a look at targets alone would not show.
        least.ended.wait(WATCHED_S)
        took = found()
        fewest = least.stop()
        check.figures = f"outage {outage:.1f} s, at least {fewest} of {len(numbers)} targets in {least.looks} looks over {WATCHED_S + took:.0f} s"
        if fewest < len(numbers):
            raise Failed(f"the targets fell from {len(numbers)} to {fewest}")
    with client.check("one registered after the crash is found") as check:
        agent.register(service(SERVICES + NEW, port))
        numbers.add(SERVICES + NEW)
        check.figures = f"{found(FOUND_AFTER_CRASH_WITHIN_S):.1f} s"
