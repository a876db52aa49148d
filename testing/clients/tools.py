"""Gets the clients, at pinned versions, into a folder below `.tools/`."""

import os
import shutil
import subprocess
import sys

from children import Failed

PROMETHEUS = "v0.316.0"
# Of its ways to find targets this one alone: the others bring the clients of a dozen clouds.
PROMETHEUS_TAGS = "remove_all_sd,enable_consul_sd"
CONSUL_TEMPLATE = "v0.41.1"
PY_CONSUL = "1.8.0"
NPM_CONSUL = "2.0.1"


def run(command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}: {done.stdout[-2000:]}")
    return done.stdout


def need(program, how):
    found = shutil.which(program)
    if not found:
        raise Failed(f"no {program} in the search path; {how}")
    return found


def go_install(folder, package, version, tags=""):
    """The program that a package of the Go module proxy is, built once."""
    name = os.path.basename(package)
    binary = os.path.join(folder, "bin", f"{name}-{version}")
    if not os.path.exists(binary):
        go = need("go", f"install Go (https://go.dev/dl), which builds {name}")
        built = os.path.join(folder, "bin")
        os.makedirs(built, exist_ok=True)
        print(f"building {name} {version} (some minutes, once)", file=sys.stderr, flush=True)
        run([go, "install", "-tags", tags, f"{package}@{version}"], env={**os.environ, "GOBIN": built}, cwd=folder)
        os.rename(os.path.join(built, name), binary)
    return binary


def prometheus(folder):
    """Built, as Debian's package has no `consul_sd_configs`. Its modules count from zero: v0.316.0 is 3.16.0."""
    binary = go_install(folder, "github.com/prometheus/prometheus/cmd/prometheus", PROMETHEUS, PROMETHEUS_TAGS)
    _, minor, patch = PROMETHEUS.split(".")
    return binary, f"{int(minor) // 100}.{int(minor) % 100}.{patch}"


def consul_template(folder):
    return go_install(folder, "github.com/hashicorp/consul-template", CONSUL_TEMPLATE), CONSUL_TEMPLATE.lstrip("v")


def py_consul(folder):
    """The Python of a virtual environment that has py-consul."""
    venv = os.path.join(folder, f"py-consul-{PY_CONSUL}")
    python = os.path.join(venv, "bin", "python")
    if not os.path.exists(os.path.join(venv, "complete")):
        run([sys.executable, "-m", "venv", "--clear", venv])
        run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"py-consul=={PY_CONSUL}"])
        open(os.path.join(venv, "complete"), "w", encoding="ascii").close()
    return python, PY_CONSUL


def npm_consul(folder):
    """The folder of modules that has npm's `consul`."""
    need("node", "install Node.js 18 or later")
    npm = need("npm", "install it: apt-get install npm")
    place = os.path.join(folder, f"npm-consul-{NPM_CONSUL}")
    if not os.path.exists(os.path.join(place, "complete")):
        shutil.rmtree(place, ignore_errors=True)
        os.makedirs(place)
        run([npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", place, f"consul@{NPM_CONSUL}"], cwd=place)
        open(os.path.join(place, "complete"), "w", encoding="ascii").close()
    return os.path.join(place, "node_modules"), NPM_CONSUL
