#!/usr/bin/env python3
"""legacy_speed.py REPROBE: the table of docs/legacy.md: what 1,000,000 hits of a probe of SystemTap up
to 1.3 cost, in nanoseconds a hit, as it is, upgraded, and with a sled, untraced and traced with
bpftrace (which counts in a map). The best of five runs. Traced: as root."""
import os
import re
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "live", "tracers"))
# pylint: disable=wrong-import-position
import environment
from common import run

HITS = 1000000
RUNS = 5
FORMS = {"uprobe, v1": 1, "uprobe, v2": 2, "kprobe, v1": 3, "utrace, v1": 4, "kprobe, v2": 5}


def build(folder, form):
    out = os.path.join(folder, f"form{form}")
    option = f"-DLEGACY_FORM={form}" if form else "-DNO_PROBE"
    said = run("gcc", "-O2", "-fPIE", "-pie", option, os.path.join(HERE, "legacy_speed.c"), "-o", out)
    assert said.returncode == 0, said.stderr
    return out


def nanoseconds(text):
    found = re.search(r"nanoseconds (\S+)", text)
    return float(found[1]) if found else None


def untraced(file):
    return min(nanoseconds(run(file, str(HITS)).stdout) for _ in range(RUNS))


def traced(file, probe):
    """The best of the runs in which every hit was counted."""
    times = []
    for _ in range(RUNS):
        said = run("bpftrace", "-e", probe + " { @hits = count(); }", "-c", f"{file} {HITS}")
        hits = re.search(r"@hits: (\d+)", said.stdout)
        if hits and int(hits[1]) >= HITS:
            times.append(nanoseconds(said.stdout))
    return min(times) if times else None


def old_probe(reprobe, file, form):
    """How the old tracer saw a hit: a breakpoint, or a probe of the system call."""
    if form > 2:
        number = 0xbead if form == 4 else 0x6c
        return f"tracepoint:raw_syscalls:sys_enter /args->id == {number}/"
    site = re.search(r"(0x\w+) +live +legacy", run(reprobe, "list", file).stdout)[1]
    return f"uprobe:{file}:{site}"


def row(reprobe, folder, form):
    file = build(folder, form)
    provider = "old" if form in (2, 5) else "legacy"
    upgraded, sled = file + "u", file + "s"
    said = run(reprobe, "fix", file, "-o", upgraded)
    assert said.returncode == 0, said.stderr
    said = run(reprobe, "sled", "--kind=nop5", upgraded, "-o", sled)
    has_sled = said.returncode == 0  # refused where no site can get one
    cells = []
    for program, probe in ((file, old_probe(reprobe, file, form)),
                           (upgraded, f"usdt:{upgraded}:{provider}:hit"),
                           (sled, f"usdt:{sled}:{provider}:hit")):
        measured = program != sled or has_sled
        cells += [untraced(program), traced(program, probe)] if measured else [None, None]
    return cells


def cell(value):
    return "-" if value is None else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    environment.need_kernel()
    reprobe = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="reprobe-speed-") as folder:
        print(f"The loop without a probe: {untraced(build(folder, 0)):.1f} ns. "
              f"Linux {os.uname().release}.\n")
        print("| form | plain | plain, traced | upgraded | upgraded, traced | with a sled | "
              "with a sled, traced |")
        print("|---|---|---|---|---|---|---|")
        for name, form in FORMS.items():
            print(f"| {name} | " + " | ".join(cell(v) for v in row(reprobe, folder, form)) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
