"""Runs clients of Consul's API that others wrote against an agent, and prints what came of it.

Usage: run.py --binary PATH [--only NAME]… [--tools DIR]

Exits with 1 when a check fails, with 2 for wrong usage. An endpoint that is known not to be there is listed as `missing`.
"""

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time

import scraper
import template
import tools
import watcher
from children import Children, Failed
from library import HERE, drive

ROOT = os.path.dirname(os.path.dirname(HERE))


def py_consul(setting):
    python, version = tools.py_consul(setting.tools)
    drive(setting, "py-consul", version, [python, os.path.join(HERE, "py_consul.py")], {})


def npm_consul(setting):
    modules, version = tools.npm_consul(setting.tools)
    drive(setting, "npm-consul", version, ["node", os.path.join(HERE, "npm_consul.js")], {"NODE_PATH": modules})


CLIENTS = {
    "prometheus": scraper.run,
    "consul-template": template.run,
    "py-consul": py_consul,
    "npm-consul": npm_consul,
    "watch": watcher.run,
}


class Check:
    figures = ""


class Client:
    """The rows of one client."""

    def __init__(self, name, version):
        self.name = name
        self.version = version
        self.rows = []

    def add(self, what, outcome, figures):
        self.rows.append((self.name, self.version, what, outcome, figures))
        print(f"{outcome:7} {self.name} {self.version}: {what}: {figures}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def check(self, what):
        check = Check()
        try:
            yield check
        except Exception as error:  # Whatever a client meets is a result; the next check may still tell something.
            self.add(what, "fail", f"{type(error).__name__}: {error}; {check.figures}")
        else:
            self.add(what, "pass", check.figures)


class Setting:
    """What every client is given: the binary, folders of its own, and children that end with the run."""

    def __init__(self, binary, tools_folder, folder):
        self.binary = binary
        self.tools = tools_folder
        self.children = Children(folder)
        self.rows = []

    def folder(self, name):
        return os.path.join(self.children.folder, name)

    @contextlib.contextmanager
    def client(self, name, version):
        client = Client(name, version)
        try:
            yield client
        except Exception as error:
            client.add("the run as a whole", "fail", f"{type(error).__name__}: {error}")
        finally:
            self.rows += client.rows
            self.children.end_all()


def table(rows):
    """The rows in columns; what a failure has beyond its first line comes after them."""
    heads = ("client", "version", "what", "result", "figures")
    lines = [heads] + [(*row[:4], "" if row[3] == "fail" else row[4]) for row in rows]
    widths = [max(len(line[at]) for line in lines) for at in range(4)]
    shown = ["  ".join([*(line[at].ljust(widths[at]) for at in range(4)), line[4]]).rstrip() for line in lines]
    failures = [f"\n{name}: {what}\n    {figures}" for name, _, what, outcome, figures in rows if outcome == "fail"]
    return "\n".join(shown + failures)


def interrupted(_signal, _frame):
    raise KeyboardInterrupt


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", required=True, help="the binary `starling`; built before this")
    parser.add_argument("--only", action="append", choices=sorted(CLIENTS), help="this client alone; may be repeated")
    parser.add_argument("--tools", type=os.path.abspath, default=os.path.join(ROOT, ".tools", "clients"), help="where the clients are installed")
    given = parser.parse_args()
    given.binary = os.path.realpath(given.binary)
    if not os.access(given.binary, os.X_OK):
        parser.error(f"no binary at {given.binary}: cargo build --bin starling")
    return given


def main():
    given = arguments()
    signal.signal(signal.SIGTERM, interrupted)
    os.makedirs(given.tools, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="starling-clients-")
    setting = Setting(given.binary, given.tools, folder)
    begun = time.monotonic()
    code = 1
    try:
        for name in given.only or CLIENTS:
            try:
                CLIENTS[name](setting)
            except Failed as error:
                setting.rows.append((name, "", "installation", "fail", str(error)))
        code = 1 if any(row[3] == "fail" for row in setting.rows) else 0
    except KeyboardInterrupt:
        code = 130
    finally:
        setting.children.end_all()
        if code == 1:
            print(f"logs are kept in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if setting.rows:
        print(table(setting.rows))
        outcomes = [row[3] for row in setting.rows]
        counts = ", ".join(f"{outcomes.count(each)} {each}" for each in ("pass", "fail", "missing"))
        print(f"\n{counts}; {time.monotonic() - begun:.0f} s")
    return code


sys.exit(main())
