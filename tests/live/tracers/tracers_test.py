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
import shutil
import sys
import tempfile
from multiprocessing.pool import ThreadPool

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
# pylint: disable=wrong-import-position
import fixtures
import measure
import table
from common import run
from tools import bolt, bpftrace, eu_readelf, gdb, libbpf, perf, readelf, systemtap, tplist

TRACEFS = "/sys/kernel/tracing"


def skip(reason):
    print(f"SKIP: {reason}")
    sys.exit(77)


def need_kernel():
    if os.uname().machine != "x86_64":
        skip("the programs are written for x86-64")
    if os.geteuid() != 0:
        skip("tracing needs root")
    if not os.path.exists("/sys/bus/event_source/devices/uprobe"):
        skip("this kernel has no uprobes")
    if not os.path.exists(TRACEFS + "/trace"):
        # A mount namespace of its own leaves the machine as it was.
        if os.environ.get("TRACERS_TEST_NAMESPACE"):
            if run("mount", "-t", "tracefs", "none", TRACEFS).returncode:
                skip("no tracefs")
        elif run("unshare", "--mount", "true").returncode:
            skip("no tracefs, and no right to mount it")
        else:
            os.environ["TRACERS_TEST_NAMESPACE"] = "1"
            os.execvp("unshare", ["unshare", "--mount", sys.executable, *sys.argv])


def need_tools():
    """scripts/packages brings all of them: what is missing is a failure."""
    programs = [t.PROGRAM for t in (bolt, bpftrace, eu_readelf, gdb, libbpf, perf, readelf,
                                    systemtap, tplist)]
    missing = [p for p in [*programs, *fixtures.LINKERS.values(), "gcc", "eu-elflint", "eu-strip",
                           "strip", "llvm-strip-14"] if not shutil.which(p)]
    if missing:
        print(f"FAILED: missing, though scripts/packages names them: {', '.join(missing)}")
        sys.exit(1)


class Test:
    def __init__(self, reprobe, folder):
        self.reprobe = reprobe
        self.folder = folder
        self.failures = []

    def fail(self, text):
        self.failures.append(text)
        print(f"FAILED: {text}", flush=True)

    def audit(self, file):
        """The `consumers` object of the file's audit."""
        said = run(self.reprobe, "audit", "--json", file)
        try:
            return json.loads(said.stdout)["files"][0].get("consumers", {})
        except (ValueError, KeyError, IndexError):
            self.fail(f"{file}: audit --json: exit {said.returncode}, {said.stderr.strip()[:200]}")
            return {}

    def fix(self, f):
        said = run(self.reprobe, "fix", f.path)
        if said.returncode:
            self.fail(f"{f.name}: fix: exit {said.returncode}: {said.stderr.strip()}")
        return said.stderr.strip()


def lint(path):
    said = run("eu-elflint", path)
    # Section numbers may change, complaints must not.
    return set(re.sub(r"\[ *\d+\]", "[N]", (said.stdout + said.stderr).replace(path, "FILE"))
               .splitlines()) - {"No errors"}


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
    need_kernel()
    need_tools()
    with tempfile.TemporaryDirectory(prefix="reprobe-tracers-") as folder:
        test = Test(os.path.abspath(options.reprobe), folder)
        failed = check(test, build(folder, options.only), options)
    print(f"{failed} checks failed")
    return 1 if failed else 0


def check(test, chosen, options):
    bench = measure.Bench(test.folder)
    if problem := bench.cannot_trace(chosen[0]):
        skip(problem)
    pool = ThreadPool(os.cpu_count())
    before = bench.all(chosen, pool)
    audits = dict(zip((f.name for f in chosen), pool.map(lambda f: test.audit(f.path), chosen)))
    outputs = {f.name: output(f) for f in chosen}
    complaints = {f.name: lint(f.path) for f in chosen}
    for f in chosen:
        measure.compare_audit(test, f, "before", before[f.name], audits[f.name])
    for f in chosen:
        test.fix(f)
    after = bench.all(chosen, pool, before)
    audits = dict(zip((f.name for f in chosen), pool.map(lambda f: test.audit(f.path), chosen)))
    for f in chosen:
        measure.compare_audit(test, f, "after", after[f.name], audits[f.name])
        if output(f) != outputs[f.name]:
            test.fail(f"{f.name}: prints {output(f)}, before {outputs[f.name]}")
        if new := lint(f.path) - complaints[f.name]:
            test.fail(f"{f.name}: eu-elflint: {sorted(new)}")
        if f.repairable:
            for tool, result in after[f.name].items():
                if (cell := table.cell(f, tool, result)) != "ok":
                    test.fail(f"{f.name}: {tool} after fix: {cell}")
    measured = table.render(chosen, before, after)
    print(measured)
    if options.page and options.only == "*":
        table.compare(test, options.page, measured, options.write)
    return len(test.failures)


if __name__ == "__main__":
    sys.exit(main())
