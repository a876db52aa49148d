"""What runs beside the script, and waiting for it: child processes that end with the script, free ports, deadlines."""

import os
import signal
import socket
import subprocess
import time


class Failed(Exception):
    """A check that does not hold; the text says what was seen."""


class Ended(Exception):
    """A child that is gone while something is wanted of it, for which there is no use in waiting."""


class Children:
    """Child processes, each the leader of a group of its own, so that what it starts ends with it."""

    def __init__(self, folder):
        self.folder = folder
        self.running = []

    def start(self, name, command, **options):
        log = open(self.log(name), "ab")
        options.setdefault("stdout", log)
        options.setdefault("stderr", log)
        options.setdefault("stdin", subprocess.DEVNULL)
        child = subprocess.Popen(command, start_new_session=True, **options)
        log.close()
        self.running.append(child)
        return child

    def log(self, name):
        return os.path.join(self.folder, f"{name}.log")

    def end(self, child, how=signal.SIGKILL):
        try:
            os.killpg(child.pid, how)
        except ProcessLookupError:
            pass
        child.wait()
        if child in self.running:
            self.running.remove(child)

    def end_all(self):
        for child in list(self.running):
            self.end(child)


def free_ports(count):
    """Ports that nobody listens on; all are held until all are known, so that they differ."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def wait_for(what, within_s, condition, every_s=0.05):
    """Calls `condition` until it gives something true, and returns how long that took; what it raises is the last thing seen."""
    begun = time.monotonic()
    while True:
        try:
            seen = condition()
            if seen:
                return time.monotonic() - begun
        except (OSError, ValueError, Failed) as error:
            seen = error
        if time.monotonic() - begun > within_s:
            raise Failed(f"not within {within_s} s: {what}; seen last: {seen!r}"[:1500])
        time.sleep(every_s)


def cpu_seconds(pid):
    """Processor time that a process has used, from /proc."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
