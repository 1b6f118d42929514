#!/usr/bin/env python3
"""runtime_speed.py REPROBE LIBRARIES [--write DOCUMENT]: what a slot costs while nothing is attached,
and what a hit costs.

Prints the tables of docs/runtime.md, or writes them between the comments there. The rounds of all
variants follow each other in turn, each value is the least of its rounds: others use the machine.
"""
import os
import re
import statistics
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "live"), os.path.join(HERE, "..", "live", "tracers")]
# pylint: disable=wrong-import-position
from common import run

ROUNDS = 12
INCLUDE = os.path.join(HERE, "..", "..", "include")
# name: (SITE of sled_speed.c, kind of sled)
UNTRACED = {"no site": (0, None), "plain nop": (1, None), "nop10 sled": (1, "nop10"),
            "slot sled": (1, "slot"), "semaphore check": (2, None)}


def build(reprobe, folder, source, out, kind, *options):
    out = os.path.join(folder, out)
    run("gcc", "-O2", f"-I{INCLUDE}", os.path.join(HERE, source), *options, "-o", out)
    if kind:
        run(reprobe, "sled", "-q", f"--kind={kind}", out)
    return out


def untraced(reprobe, folder):
    programs = {}
    for name, (site, kind) in UNTRACED.items():
        for loop, option in (("real", "-DREAL"), ("bare", "-DBARE")):
            programs[name, loop] = build(reprobe, folder, "sled_speed.c",
                                         f"{loop}{site}{kind}", kind, f"-DSITE={site}", option)
    cycles = {key: [] for key in programs}
    for _ in range(ROUNDS):
        for key, program in programs.items():
            ns, cycle = run(program, "2000000").stdout.split()[:2]
            cycles[key].append(float(ns) / float(cycle))
    # Other people's work only adds: the least is nearest to the loop's own.
    least = {key: min(values) for key, values in cycles.items()}
    rows = ["| untraced | cycles | more than the plain nop | bare loop: cycles | more |",
            "| --- | --- | --- | --- | --- |"]
    for name in UNTRACED:
        real, bare = least[name, "real"], least[name, "bare"]
        rows.append(f"| {name} | {real:.2f} | {real - least['plain nop', 'real']:+.2f} | "
                    f"{bare:.2f} | {bare - least['plain nop', 'bare']:+.2f} |")
    return rows


def bpftrace_hit(folder, reprobe):
    """Nanoseconds of a hit that bpftrace counts, at a plain nop."""
    program = build(reprobe, folder, "sled_speed.c", "traced", None, "-DSITE=1")
    values = []
    for _ in range(3):
        said = run("bpftrace", "-e", f"usdt:{program}:speed:pass {{ @ = count(); }}", "-c",
                   f"{program} 200000").stdout
        found = re.search(r"^([\d.]+) [\d.]+ [\d.]+ ", said, re.M)
        if found:
            values.append(float(found[1]))
    return min(values) if values else None


def counted_hit(reprobe, folder):
    """Nanoseconds of a hit under `reprobe run --count`."""
    program = build(reprobe, folder, "sled_speed.c", "counted", "slot", "-DSITE=1")
    values, alone = [], []
    for _ in range(ROUNDS // 3):
        alone.append(float(run(program, "2000000").stdout.split()[0]))
        said = run(reprobe, "run", "--count", "--", program, "2000000")
        values.append(float(said.stdout.split()[0]))
    return min(values) - min(alone)


def hits(reprobe, libraries, folder):
    handlers = os.path.join(folder, "handlers.o")
    run("gcc", "-O2", "-mgeneral-regs-only", f"-I{INCLUDE}", "-c",
        os.path.join(HERE, "runtime_handlers.c"), "-o", handlers)
    programs = {count: build(reprobe, folder, "runtime_speed.c", f"hits{count}", "slot",
                             f"-DARGUMENTS={count}", handlers, f"-L{libraries}", "-lreprobe-rt",
                             f"-Wl,-rpath,{libraries}") for count in (0, 2, 6, 12)}
    found = {count: {} for count in programs}
    for _ in range(ROUNDS // 3):
        for count, program in programs.items():
            for name, value in re.findall(r"^(\S+) (\S+)$", run(program).stdout, re.M):
                found[count].setdefault(name, []).append(float(value))
    least = {c: {n: min(v) for n, v in names.items()} for c, names in found.items()}
    trap, counted = bpftrace_hit(folder, reprobe), counted_hit(reprobe, folder)
    two = least[2]
    rows = ["| a hit (two arguments) | ns |", "| --- | --- |",
            f"| a call of an empty function through a pointer | {two['call']:.1f} |",
            f"| an empty `general` handler | {two['general']:.1f} |",
            f"| an empty `full` handler | {two['full']:.1f} |",
            f"| a `general` handler that counts by a locked instruction | {two['count']:.1f} |",
            f"| `reprobe run --count` | {counted:.1f} |"]
    if trap:
        rows.append(f"| bpftrace `count()`, plain nop, the same run | {trap:.0f} "
                    f"({trap / counted:.0f} times `--count`) |")
    rows += ["| bpftime, manual and eBPF (figures of its authors, another machine) | 110, 315 |", "",
             "| arguments | an empty handler, ns | one that reads all, ns |", "| --- | --- | --- |"]
    for count in programs:
        rows.append(f"| {count} | {least[count]['general']:.1f} | {least[count]['arguments']:.1f} |")
    attach = statistics.median(least[c]["attach-detach"] for c in programs) / 1000
    rows += ["", f"Attaching to one site and detaching: {attach:.1f} microseconds of CPU."]
    return rows


def main():
    reprobe, libraries = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="speed-") as folder:
        text = "\n".join([f"Linux {os.uname().release}, the least of {ROUNDS} rounds.", "",
                          *untraced(reprobe, folder), "", *hits(reprobe, libraries, folder)])
    if len(sys.argv) > 4 and sys.argv[3] == "--write":
        with open(sys.argv[4], encoding="utf-8") as document:
            old = document.read()
        new = re.sub(r"(<!-- speed: begin -->\n).*(<!-- speed: end -->)",
                     lambda m: m[1] + text + "\n" + m[2], old, flags=re.S)
        with open(sys.argv[4], "w", encoding="utf-8") as document:
            document.write(new)
    else:
        print(text)


if __name__ == "__main__":
    main()
