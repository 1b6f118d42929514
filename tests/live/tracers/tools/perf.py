"""perf: what `buildid-cache --add` finds, what `probe` makes events of and `stat` counts.

The build-id cache is a folder of the caller. Events are the machine's: a lock keeps the tests that
run at once apart, and each event is removed again."""
import fcntl
import os
import re
from collections import Counter

from common import REFUSED, run

PROGRAM = "perf"
CONSUMER = "perf"
EVENTS = "/sys/kernel/tracing/uprobe_events"
_DEFINITION = re.compile(r"^p:sdt_(\w+)/(\w+) \S+:0x([0-9a-f]+)", re.M)


def perf(folder, *arguments):
    return run("perf", "--buildid-dir", folder, *arguments, env={"HOME": folder})


def add(file, folder):
    perf(folder, "buildid-cache", "--add", file)


def lists(file, folder):
    """Names and file OFFSETS: what the cache holds of the names that `perf list` shows."""
    add(file, folder)
    shown = set(re.findall(r"sdt_(\w+:\w+)", perf(folder, "list", "sdt").stdout))
    found = Counter()
    for parent, _, names in os.walk(folder):
        if "probes" in names:
            with open(os.path.join(parent, "probes"), encoding="utf-8") as cache:
                found.update((m[1], m[2], int(m[3], 16)) for m in _DEFINITION.finditer(cache.read())
                             if f"{m[1]}:{m[2]}" in shown)
    return found


def counts(file, keys, command, folder):
    add(file, folder)
    with open(EVENTS, encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tried, events = [], []
        try:
            for provider, name in keys:
                tried.append(f"sdt_{provider}:{name}")
                if not perf(folder, "probe", "-q", "-x", file, tried[-1]).returncode:
                    events.append(tried[-1])
            said = perf(folder, "stat", "-x,", "-e", ",".join(events), "--", *command).stderr \
                if events else ""
        finally:
            # One that the kernel refused at its second site has an event at the first.
            for event in tried:
                perf(folder, "probe", "-q", "-d", event)
    hits = {}
    for provider, name in keys:
        m = re.search(rf"^(\d+),,sdt_{provider}:{name},", said, re.M)
        hits[(provider, name)] = int(m[1]) if m else REFUSED
    return hits
