#!/usr/bin/env python3
"""sled_verdicts_test.py REPROBE: what is known of a file's probes is still known with sleds.

Programs from which code was dropped, and one whose sites need no stub: the result verifies, prints
the same, each probe keeps its verdict, and the original comes back byte for byte.
"""
import json
import os
import re
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tracers")]
# pylint: disable=wrong-import-position
import environment
from checks import Checks
from common import run
from sled_test import KINDS, PROGRAMS, notes, sled

GC = "-O2 -ffunction-sections -Wl,--gc-sections"
# name: (compiler, source, options, how many dangling)
BUILDS = {
    "lld": ("gcc", "dropped.c", f"{GC} -fuse-ld=lld", 10),
    "lld no-pie": ("clang-14", "dropped.c", f"{GC} -fuse-ld=lld -no-pie", 10),
    "mold": ("gcc", "dropped.c", f"{GC} -fuse-ld=mold", 10),
    "lld, no unwind tables": ("gcc", "dropped.c",
                              f"{GC} -fuse-ld=lld -fno-asynchronous-unwind-tables", 10),
    "in place": ("gcc", "in_place.c", "-O2", 0),
    "in place, mold": ("gcc", "in_place.c", "-O2 -fuse-ld=mold", 0),
}


def verdicts(reprobe, file):
    said = run(reprobe, "list", "--json", file)
    probes = json.loads(said.stdout)["files"][0]["probes"]
    return [(p["provider"], p["name"], p["verdict"]) for p in probes]


def check_program(checks, reprobe, folder, name):
    compiler, source, options, dangling = BUILDS[name]
    file = os.path.join(folder, re.sub(r"\W+", "-", name))
    made = run(compiler, *options.split(), os.path.join(PROGRAMS, source), "-o", file)
    if not checks.true(f"{name}: builds", made.returncode == 0, made.stderr):
        return
    expected = run(file)
    before = verdicts(reprobe, file)
    # The truth is in the source: app:dead* were dropped.
    checks.equal(f"{name}: dangling", sorted(n for _, n, v in before if v == "dangling"),
                 sorted(n for _, n, _ in before if n.startswith("dead")))
    checks.equal(f"{name}: how many", sum(v == "dangling" for _, _, v in before), dangling)
    for kind, guard in KINDS:
        what = f"{name}, {kind}, guard {guard}"
        out = f"{file}.{kind}-{guard}"
        made = sled(reprobe, file, out, kind, guard)
        if not checks.true(f"{what}: sled", made.returncode == 0, made.stderr):
            continue
        in_place = source == "in_place.c" and kind == "nop5"
        moved = sum(a[3] != b[3] for a, b in zip(notes(file), notes(out)))
        checks.equal(f"{what}: sites that moved", moved,
                     0 if in_place and guard == "auto" else sum(v == "live" for *_, v in before))
        checks.equal(f"{what}: verdicts", verdicts(reprobe, out), before)
        checks.equal(f"{what}: prints", run(out).stdout, expected.stdout)
        verified = run(reprobe, "verify", file, out)
        checks.equal(f"{what}: verify", verified.returncode, 0)
        back = run(reprobe, "sled", "--undo", out, "-o", out + ".back")
        checks.true(f"{what}: undo", back.returncode == 0, back.stderr)
        with open(out + ".back", "rb") as a, open(file, "rb") as b:
            checks.true(f"{what}: undo gives the original", a.read() == b.read())


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    if os.uname().machine != "x86_64":
        environment.skip("sleds are for x86-64")
    environment.need_tools(["gcc", "clang-14", "mold", "ld.lld", "readelf"])
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="reprobe-sled-verdicts-") as folder:
        for name in BUILDS:
            check_program(checks, os.path.abspath(sys.argv[1]), folder, name)
    return checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
