#!/usr/bin/env python3
"""fork_sweep.py REPROBE FOLDER [SCENARIO...]: every x86-64 fixture that runs is fixed, traced at its live sites by the
kernel's uprobes, and forks while it is traced; the child passes the sites again (fork_again.c). Neither may die, and
what both hit is counted. FOLDER is what Makefile.fixtures built. By hand, as root: minutes (fixtures_RECORD.md)."""
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tracers")]
# pylint: disable=wrong-import-position
import environment
from fixtures_test import collect, plan
from uprobes import offset_in, segments



def say(*command):
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120)


def main_of(path):
    found = re.search(r"^(\w+) [Tt] main$", say("nm", path).stdout, re.M)
    return found[1] if found else None


def places(reprobe, path):
    """The offsets in the file of the live sites. Of ambiguous ones some are inside an instruction."""
    files = json.loads(say(reprobe, "list", "--json", path).stdout)["files"]
    loaded = segments(path)
    sites = {int(probe["site"], 16) for entry in files for probe in entry["probes"] if probe["verdict"] == "live"}
    return [f"{offset_in(loaded, site):x}" for site in sorted(sites)]


def ends(text):
    return [line for line in text.splitlines() if re.match("parent|child", line)]


def one(job):
    reprobe, fixture, tools = job
    with tempfile.TemporaryDirectory(dir=tools) as folder:
        return fixture, *check(reprobe, fixture, tools, folder)


def check(reprobe, fixture, tools, folder):
    """What went wrong, and the counts."""
    path = os.path.join(folder, "forked")
    # The host loads the library by this path, a program runs from it.
    _, _, error = plan(reprobe, fixture.path, path, "--second-opinion=never")
    if error:
        return f"fix: {error}", {}
    if not os.path.exists(path):
        with open(fixture.path, "rb") as source, open(path, "wb") as out:
            out.write(source.read())
        os.chmod(path, 0o755)
    twin = fixture.path
    if fixture.manifest.get("twin"):
        twin = os.path.join(os.path.dirname(fixture.path), fixture.manifest["twin"])
    host = fixture.manifest["host"] and os.path.join(fixture.folder, fixture.manifest["host"])
    start = main_of(host or twin)
    if not start:
        return "no main", {}
    command = [os.path.join(tools, "fork_again"), start, *([host] if host else []), path]
    untraced = say(*command)
    if ends(untraced.stdout) != ["child: returns 0", "parent: exit 0"]:
        return f"untraced: {untraced.stdout.strip()[-200:]!r}", {}
    offsets = places(reprobe, path)
    if not offsets:
        return "", {"without a site": 1}
    traced = say(os.path.join(tools, "uprobe_multi"), path, ",".join(offsets), *command)
    printed, _, hits = traced.stdout.partition("hits: ")
    if printed != untraced.stdout or not hits:
        return f"traced: {traced.stdout.strip()[-200:]!r} {traced.stderr[-100:]}", {}
    if int(hits) % 2:
        return f"{hits} hits: the parent and the child do not pass the same sites", {}
    return "", {"traced": 1, "sites": len(offsets), "hits": int(hits), "traced without a hit": int(hits) == 0}


def main():
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    environment.need_kernel()
    reprobe = os.path.abspath(sys.argv[1])
    fixtures = [f for f in collect(os.path.abspath(sys.argv[2]), sys.argv[3:])
                if f.manifest["toolchain"] in ("gcc", "clang") and f.runnable]
    counts, failed = Counter(), 0
    with tempfile.TemporaryDirectory(prefix="reprobe-forked-") as folder:
        for tool in ("fork_again", "uprobe_multi"):
            subprocess.run(["gcc", "-O1", "-Wall", os.path.join(HERE, tool + ".c"), "-o", os.path.join(folder, tool)], check=True)
        # What takes the time is waiting for the kernel.
        with multiprocessing.Pool(8) as pool:
            for fixture, error, more in pool.imap_unordered(one, [(reprobe, f, folder) for f in fixtures]):
                counts.update(more)
                failed += bool(error)
                if error:
                    print(f"FAIL {os.path.relpath(fixture.path, sys.argv[2])}: {error}", flush=True)
    print(f"{len(fixtures)} fixtures, {failed} failed; " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    return 1 if failed or not fixtures else 0


if __name__ == "__main__":
    sys.exit(main())
