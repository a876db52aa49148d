"""Drives a program that checks a client library, call by call.

The program prints a line of JSON for each step and waits for a line in return, so that what went over the wire in the meantime is of
that step. A step says what the documentation has, and whether its endpoint may be missing; it is then listed as that.
"""

import json
import os
import subprocess

from agent import Agent
from children import Failed
from relay import Relay

HERE = os.path.dirname(os.path.abspath(__file__))
# What Consul answers of a path that it does not have.
MISSING = b"not a recognized HTTP API endpoint"
SHOWN_EXCHANGES = 3
OUTCOMES_MIN = 10


def drive(setting, name, version, command, environment):
    with setting.client(name, version) as client:
        agent = Agent(setting.children, setting.binary, setting.folder(name))
        relay = Relay(agent.http)
        environment = {**os.environ, **environment, "CLIENT_PORT": str(relay.port)}
        program = setting.children.start(
            name, command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=setting.children.folder
        )
        steps = 0
        for line in program.stdout:
            steps += 1
            judge(client, json.loads(line), relay.take())
            program.stdin.write("\n")
            program.stdin.flush()
        if program.wait() != 0 or steps < OUTCOMES_MIN:
            with open(setting.children.log(name), encoding="utf-8", errors="replace") as log:
                raise Failed(f"{' '.join(command)} ended with {program.returncode} after {steps} steps: {log.read()[-1500:]}")
        relay.close()


def judge(client, step, exchanges):
    missing = [each.line for each in exchanges if each.status == 404 and MISSING in each.answered]
    if step["error"] and missing and step["may_be_missing"]:
        client.add(step["what"], "missing", f"no {missing[0].split()[1].split('?')[0]}")
    elif step["error"]:
        shown = "\n    ".join(each.text() for each in exchanges[-SHOWN_EXCHANGES:])
        client.add(step["what"], "fail", f"{step['error']}\n    {shown}\n    documented: {step['documented']}")
    else:
        client.add(step["what"], "pass", step.get("figures") or f"{len(exchanges)} requests")
