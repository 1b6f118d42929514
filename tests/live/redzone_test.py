#!/usr/bin/env python3
"""redzone_test.py REPROBE: what Linux 6.17 to 7.1 does at sites that are not a one-byte nop.

It replaces a five-byte nop by a call, whose return address overwrites what a leaf function keeps
below its stack pointer: the traced program computes wrong values. It cannot do so where the nop
crosses a page, and it refuses nops with a segment prefix. `reprobe audit` must name each.
Exits 77 on other kernels, and where tracing is not possible.
"""
import json
import os
import platform
import re
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tracers")]
# pylint: disable=wrong-import-position
import environment
from common import REFUSED, run
from tools import bpftrace, libbpf, perf

PASSES = 100000
PROBE = ("traced", "leaf")
SOURCE = os.path.join(HERE, "tracers", "programs", "redzone.c")
RULES = {"redzone-nop5", "site-page-cross", "site-prefixed-nop"}
NOP5 = ".byte 0x0f, 0x1f, 0x44, 0, 0"
# The store before the site has five bytes.
PAGE_END = ".balign 4096; .skip 4096 - 2 - 5; "

# name: (what stands before the function, the site, values that come back wrong, hits counted in a
# program that is started after the attach, and in one that runs already, rule)
CASES = {
    "nop": ("", "nop", 0, PASSES, PASSES, None),
    # The first pass is before the kernel replaces the instruction.
    "nop5": ("", NOP5, PASSES - 1, PASSES, PASSES, "redzone-nop5"),
    "nop5 of operand-size prefixes": ("", ".byte 0x66, 0x66, 0x66, 0x66, 0x90", PASSES - 1, PASSES,
                                      PASSES, "redzone-nop5"),
    "nop5 across a page": (PAGE_END, NOP5, 0, PASSES, PASSES, "site-page-cross"),
    # ENOTSUPP (524) for a running program; without one, no error, and nothing ever arrives.
    "nop5 with a ds prefix": ("", ".byte 0x3e, 0x0f, 0x1f, 0x40, 0", 0, 0, REFUSED,
                              "site-prefixed-nop"),
    "nop10 with a cs prefix": ("", ".byte 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0", 0, 0,
                               REFUSED, "site-prefixed-nop"),
}


def kernel():
    major, minor = re.match(r"(\d+)\.(\d+)", platform.release()).groups()
    return int(major), int(minor)


def wrong_values(said):
    m = re.search(r"^wrong (\d+)$", said, re.M)
    return int(m[1]) if m else said.strip()[-200:]


def remove_events(file):
    """Refused, bcc tries an event of tracefs, is refused again and leaves it there."""
    with open(perf.EVENTS, encoding="utf-8") as events:
        left = [line.split()[0][2:] for line in events if f" {file}:" in line]
    for event in left:
        # Not open(..., "a"): it seeks, and the kernel says EINVAL.
        events = os.open(perf.EVENTS, os.O_WRONLY | os.O_APPEND)
        os.write(events, f"-:{event}\n".encode())
        os.close(events)


def hits_running(file, command):
    """bpftrace -c attaches to the process that it has started."""
    said = run("bpftrace", "-e", f"usdt:{file}:{':'.join(PROBE)} {{ @ = count(); }}", "-c",
               " ".join(command))
    remove_events(file)
    m = re.search(r"^@: (\d+)$", said.stdout, re.M)
    return int(m[1]) if m else REFUSED if "Error attaching probe" in said.stderr else \
        said.stderr[-200:]


def build(folder, name, before, site):
    out = os.path.join(folder, re.sub(r"\W", "-", name))
    made = run("gcc", "-O2", f'-DBEFORE="{before}"', f'-DNOP="{site}"', SOURCE, "-o", out)
    if made.returncode:
        raise SystemExit(f"FAILED: {name}: {made.stderr}")
    return out


def rules(reprobe, file):
    said = run(reprobe, "audit", "--json", file)
    findings = json.loads(said.stdout)["files"][0]["findings"]
    return {f["rule"] for f in findings} & RULES


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    if not (6, 17) <= kernel() <= (7, 1):
        environment.skip(f"Linux {platform.release()} leaves five-byte nops alone")
    environment.need_kernel()
    environment.need_tools(["gcc", bpftrace.PROGRAM, libbpf.PROGRAM])
    failures = 0
    with tempfile.TemporaryDirectory(prefix="reprobe-redzone-") as folder:
        if problem := libbpf.build(folder):
            raise SystemExit(f"FAILED: libbpf_attach: {problem}")
        for name, (before, site, wrong, hits, running, rule) in CASES.items():
            file = build(folder, name, before, site)
            command = [file, str(PASSES)]
            said, counted = bpftrace.trace(file, [PROBE], command)
            if name == "nop" and counted != {PROBE: PASSES}:
                environment.skip(f"bpftrace cannot trace here: {said.strip()[-200:]}")
            got = {
                "wrong values untraced": wrong_values(run(*command).stdout),
                "wrong values under bpftrace": wrong_values(said) if counted else 0,
                "bpftrace counts": (counted or {}).get(PROBE, REFUSED),
                "bpftrace -c counts": hits_running(file, command),
                "libbpf counts": libbpf.counts(file, [PROBE], command, folder)[PROBE],
                "audit": rules(sys.argv[1], file),
            }
            expected = dict(zip(got, (0, wrong, hits, running, hits, {rule} - {None})))
            for what, value in got.items():
                good = value == expected[what]
                failures += not good
                print(f"{'ok' if good else 'FAILED'}: {name}: {what}: {value}" +
                      ("" if good else f", expected {expected[what]}"))
    print(f"{failures} checks failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
