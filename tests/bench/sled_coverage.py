#!/usr/bin/env python3
"""sled_coverage.py REPROBE ROOT DOCUMENT: writes the measured tables of docs/sleds.md.

ROOT holds the unpacked Debian 12 packages of FILES. The part of DOCUMENT between the two lines
with "measured" comments is replaced.
"""
import collections
import json
import os
import re
import resource
import subprocess
import sys
import tempfile

LIB = "usr/lib/x86_64-linux-gnu/"
FILES = ["usr/lib/jvm/java-17-openjdk-amd64/lib/server/libjvm.so",
         "usr/lib/postgresql/15/bin/postgres", LIB + "libruby-3.1.so.3.1.2",
         LIB + "libvirt.so.0.9000.0", LIB + "sssd/libsss_ldap_common.so", "usr/bin/stap",
         "usr/bin/php8.2", "usr/bin/python3.11", LIB + "libpython3.11.so.1.0",
         LIB + "libstdc++.so.6.0.30"]
TACTICS = ["in-place", "call-target", "jump-target", "displace", "hop"]
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def cpu_seconds():
    """Of finished children: other work on the machine does not count."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def table(reprobe, root, kind, folder):
    rows, reasons = [], []
    total = done = 0
    for name in FILES:
        file, out = os.path.join(root, name), os.path.join(folder, "out")
        start = cpu_seconds()
        said = subprocess.run([reprobe, "sled", "--json", "--allow-fork", f"--kind={kind}", file, "-o", out],
                              capture_output=True, text=True, check=True)
        seconds = cpu_seconds() - start
        plan = json.loads(said.stdout)
        used = collections.Counter(site["tactic"] for site in plan["sites"])
        sites = len(plan["sites"]) + len(plan["refused"])
        total, done = total + sites, done + len(plan["sites"])
        grown = os.path.getsize(out) - os.path.getsize(file)
        limit = 65536 + 64 * sites
        if grown > limit:
            raise SystemExit(f"FAILED: {name} grows by {grown}, more than {limit}")
        rows.append([os.path.basename(name), f"{len(plan['sites'])}/{sites}",
                     *(str(used[t]) for t in TACTICS), str(grown), f"{seconds:.2f}"])
        reasons += [f"- {os.path.basename(name)} {r['provider']}:{r['name']} {r['site']}: "
                    f"{r['reason']} ({r.get('detail', '')})" for r in plan["refused"]]
    rows.append(["all", f"{done}/{total} ({100 * done / total:.1f}%)", *[""] * 7])
    head = ["file", "probes with sleds", *TACTICS, "bytes grown", "s of CPU"]
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    return f"Kind {kind}:\n\n" + "\n".join(lines) + "\n\nLeft as they are:\n\n" + "\n".join(reasons)


def main():
    if len(sys.argv) != 4:
        print(__doc__, file=sys.stderr)
        return 2
    _, reprobe, root, document = sys.argv
    with tempfile.TemporaryDirectory(prefix="reprobe-coverage-") as folder:
        text = "\n\n".join(table(reprobe, root, kind, folder) for kind in ("nop10", "nop5"))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    text += f"\n\nMost memory of a run: {peak} MiB."
    with open(document, encoding="utf-8") as old:
        before = old.read()
    with open(document, "w", encoding="utf-8") as out:
        out.write(re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{text}\n{END}", before,
                         flags=re.S))
    return 0


if __name__ == "__main__":
    sys.exit(main())
