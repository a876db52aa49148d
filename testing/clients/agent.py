"""The agent that the clients speak to: the binary under the name of Consul, on free ports."""

import json
import os
import signal
import urllib.error
import urllib.request

from children import Ended, Failed, free_ports, wait_for

START_WITHIN_S = 60
ANSWER_WITHIN_S = 20


def ask(port, method, path, body=None, within_s=ANSWER_WITHIN_S):
    """The status, the body (from JSON where it is JSON) and the headers of an answer."""
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=within_s) as answer:
            status, text, headers = answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as refused:
        status, text, headers = refused.code, refused.read(), refused.headers
    try:
        return status, json.loads(text) if text else None, headers
    except ValueError:
        return status, text.decode(errors="replace"), headers


class Agent:
    def __init__(self, children, binary, folder, durable=False):
        self.children = children
        os.makedirs(folder)
        link = os.path.join(folder, "consul")
        os.symlink(binary, link)
        self.http, dns, grpc, grpc_tls = free_ports(4)
        self.command = [link, "agent", "-node", "n1", "-http-port", str(self.http), "-dns-port", str(dns)]
        self.command += ["-grpc-port", str(grpc), "-grpc-tls-port", str(grpc_tls)]
        self.command += ["-server", "-data-dir", os.path.join(folder, "data")] if durable else ["-dev"]
        self.name = os.path.basename(folder)
        self.child = None
        self.start()

    def start(self):
        """Starts it, and returns how long it took until it took writes."""
        self.child = self.children.start(f"agent-{self.name}", self.command, cwd=self.children.folder)

        def ready():
            if self.child.poll() is not None:
                raise Ended(f"the agent ended with {self.child.returncode}; see {self.children.log('agent-' + self.name)}")
            return self.ask("PUT", "/v1/kv/ready", b"yes")[:2] == (200, True)

        return wait_for("the agent takes writes", START_WITHIN_S, ready)

    def kill(self):
        self.children.end(self.child, signal.SIGKILL)

    def ask(self, method, path, body=None):
        return ask(self.http, method, path, body)

    def register(self, service):
        self.must("PUT", "/v1/agent/service/register", service)

    def deregister(self, service_id):
        self.must("PUT", f"/v1/agent/service/deregister/{service_id}")

    def must(self, method, path, body=b""):
        status, answer, _ = self.ask(method, path, body)
        if status != 200:
            raise Failed(f"{method} {path} was answered {status} {answer!r}")
