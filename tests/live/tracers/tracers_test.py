#!/usr/bin/env python3
"""tracers_test.py REPROBE [PAGE] [--write] [--only GLOB]: what real tracers make of each fixture,
before and after `reprobe fix`.

After it every tracer must list and count exactly the live probes; before and after, the verdict of
`reprobe audit` for each tracer must be what that tracer did; the program must print the same, and
eu-elflint have no new complaint. The table in PAGE (docs/consumers.md) must be what was measured;
--write writes it. Needs root, uprobes and BPF; exits 77 where they are missing.
"""
import argparse
import fnmatch
import json
import os
import re
import sys
import tempfile
from multiprocessing.pool import ThreadPool

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
# pylint: disable=wrong-import-position
import environment
import fixtures
import measure
import table
from common import run
from tools import bolt, bpftrace, eu_readelf, gdb, libbpf, perf, readelf, systemtap, tplist

class Test:
    def __init__(self, reprobe, folder):
        self.reprobe = reprobe
        self.folder = folder
        self.failures = []

    def fail(self, text):
        self.failures.append(text)
        print(f"FAILED: {text}", flush=True)

    def audit(self, f):
        """The file's object of `audit --json`."""
        said = run(self.reprobe, "audit", "--json", f.path)
        try:
            return json.loads(said.stdout)["files"][0]
        except (ValueError, KeyError, IndexError):
            self.fail(f"{f.name}: audit --json: exit {said.returncode}, {said.stderr.strip()}")
            return {"findings": [], "consumers": {}}

    def check_audit(self, f, stage, results, audit, expect_rule):
        rules = sorted({finding["rule"] for finding in audit["findings"]})
        if expect_rule and f.rule not in rules:
            self.fail(f"{f.name} {stage}: audit does not name {f.rule}, but {rules}")
        for difference in measure.disagreements(f, results, audit.get("consumers", {})):
            self.fail(f"{f.name} {stage}: {difference}")

    def fix(self, f):
        said = run(self.reprobe, "fix", f.path)
        # 4: something stays as it is.
        if said.returncode not in ((0,) if f.repairable else (0, 4)):
            self.fail(f"{f.name}: fix: exit {said.returncode}: {said.stderr.strip()}")


def lint(path):
    said = run("eu-elflint", path)
    # Numbers and names of sections and places of notes may change, complaints must not.
    return set(re.sub(r"section \[ *\d+\] '[^']*'|at offset \d+", "N", said.stdout + said.stderr)
               .replace(path, "FILE").splitlines()) - {"No errors"}


def output(f):
    said = run(*f.command)
    return said.returncode, said.stdout


def build(folder, pattern):
    builder = fixtures.Builder(folder)
    healthy = builder.link("healthy", "bfd", "pie", [], ["-DNO_DEAD"])
    builder.add("healthy", healthy)
    fixtures.collected(builder)
    fixtures.notes(builder, healthy)
    fixtures.semaphores(builder, healthy)
    chosen = [f for f in builder.fixtures if fnmatch.fnmatch(f.name, pattern)]
    measure.find_sites(chosen)
    return chosen


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("reprobe")
    parser.add_argument("page", nargs="?")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", default="*")
    options = parser.parse_args()
    environment.need_kernel()
    environment.need_tools([t.PROGRAM for t in (bolt, bpftrace, eu_readelf, gdb, libbpf, perf,
                                                readelf, systemtap, tplist)] +
                           [*fixtures.LINKERS.values(), "gcc", "eu-elflint", "eu-strip", "strip",
                            "llvm-strip-14"])
    with tempfile.TemporaryDirectory(prefix="reprobe-tracers-") as folder:
        test = Test(os.path.abspath(options.reprobe), folder)
        failed = check(test, build(folder, options.only), options)
    print(f"{failed} checks failed")
    return 1 if failed else 0


STRIPPED = {"lld-19 pie", "mold shared"}
STRIPS = [["strip"], ["strip", "-g"], ["strip", "-s"], ["eu-strip"], ["llvm-strip-14", "-g"],
          ["llvm-strip-14", "--strip-unneeded"]]


def check_strip(test, bench, f, strip):
    """What keeps the notes keeps the repair."""
    what = f"{f.name} after fix and {' '.join(strip)}"
    out = f.path + "".join(strip)
    made = run(*strip, "-o", out, f.path)
    if made.returncode:
        test.fail(f"{what}: {made.stderr.strip()}")
    command = [out if part == f.path else part for part in f.command]
    if run(*command).stdout != run(*f.command).stdout:
        test.fail(f"{what}: prints {run(*command).stdout}")
    for tool, hits in bench.hits(out, list(f.sites), command).items():
        if hits != f.passed:
            test.fail(f"{what}: {tool} counts {hits}")


def check(test, chosen, options):
    bench = measure.Bench(test.folder)
    pool = ThreadPool(os.cpu_count())
    if problem := bench.cannot_trace(chosen[0]):
        environment.skip(problem)
    before = bench.all(chosen, pool)
    audits = dict(zip((f.name for f in chosen), pool.map(test.audit, chosen)))
    outputs = {f.name: output(f) for f in chosen}
    complaints = {f.name: lint(f.path) for f in chosen}
    for f in chosen:
        test.check_audit(f, "before", before[f.name], audits[f.name], bool(f.rule))
    cells = table.cells(chosen, before)
    for f in chosen:
        test.fix(f)
    after = bench.all(chosen, pool, before)
    cells_after = table.cells(chosen, after)
    audits = dict(zip((f.name for f in chosen), pool.map(test.audit, chosen)))
    for f in chosen:
        test.check_audit(f, "after", after[f.name], audits[f.name], not f.repairable)
        if output(f) != outputs[f.name]:
            test.fail(f"{f.name}: prints {output(f)}, before {outputs[f.name]}")
        if new := lint(f.path) - complaints[f.name]:
            test.fail(f"{f.name}: eu-elflint: {sorted(new)}")
        for tool, cell in cells_after[f.name].items():
            if f.repairable and cell != table.RIGHT:
                test.fail(f"{f.name}: {tool} after fix: {cell}")
    pool.starmap(check_strip, [(test, bench, f, strip) for f in chosen if f.name in STRIPPED
                               for strip in STRIPS])
    measured = table.render(chosen, cells, cells_after)
    print(measured)
    if options.page and options.only == "*":
        table.compare(test, options.page, measured, options.write)
    return len(test.failures)


if __name__ == "__main__":
    sys.exit(main())
