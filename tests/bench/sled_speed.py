#!/usr/bin/env python3
"""sled_speed.py REPROBE DOCUMENT [ROUNDS]: writes the table of speeds in docs/sleds.md.

Builds sled_speed.c in each way, gives sleds to the plain probe, and runs all of them in turn, ROUNDS
(15) times untraced and a third of that traced by bpftrace's count(), on one processor. The part of
DOCUMENT between the two lines with "speed" comments is replaced. Needs root for the traced part.
Exits 1 where the untraced sled costs more than 1.5 cycles more than the plain nop.
"""
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
BEGIN, END = "<!-- speed: begin -->", "<!-- speed: end -->"
PASSES, TRACED_PASSES = 20000000, 400000
MOST_CYCLES = 1.5
# What stands in the loop: (SITE of sled_speed.c, kind of the sled)
VARIANTS = {
    "no site": (0, None),
    "plain nop": (1, None),
    "nop10 sled": (1, "nop10"),
    "nop5 sled": (1, "nop5"),
    "semaphore check": (2, None),
    "load and jump of 2006": (3, None),
}
TRACED = ("plain nop", "nop10 sled", "nop5 sled")


def run(*command, **environment):
    return subprocess.run(command, capture_output=True, text=True, check=True,
                          env={**os.environ, **environment}).stdout


def build(reprobe, folder):
    """The programs by (variant, loop)."""
    programs = {}
    for loop in ("dependent", "bare"):
        for name, (site, kind) in VARIANTS.items():
            path = os.path.join(folder, f"{name}-{loop}".replace(" ", "-"))
            run("gcc", "-O2", "-no-pie", f"-DSITE={site}", *(["-DBARE"] if loop == "bare" else []),
                os.path.join(HERE, "sled_speed.c"), "-o", path)
            if kind:
                run(reprobe, "sled", "-q", f"--kind={kind}", path)
            programs[name, loop] = path
    return programs


def site_of(program):
    found = re.search(r"Location: 0x(\w+)", run("readelf", "-n", "-W", program))
    return found[1] if found else "0"


def measured(said):
    """ns a pass, ns a cycle, ns of a system call, byte at the site, is the trampoline mapped."""
    loop, cycle, call, byte, trampoline = said.split()[:5]
    return float(loop), float(cycle), float(call), byte, trampoline == "1"


def untraced(program):
    return measured(run("taskset", "-c", "1", program, str(PASSES), site_of(program)))


def traced(program, folder):
    out = os.path.join(folder, "said")
    script = os.path.join(folder, "command.sh")
    with open(script, "w", encoding="ascii") as text:
        text.write(f"taskset -c 1 {program} {TRACED_PASSES} {site_of(program)} > {out}\n")
    said = run("bpftrace", "--unsafe", "-e", 'BEGIN { system("$COMMAND"); exit(); } '
               f"usdt:{program}:speed:pass {{ @hits = count(); }}", COMMAND=f"sh {script}")
    hits = int(re.search(r"@hits: (\d+)", said)[1])
    if hits != 5 * TRACED_PASSES:
        raise SystemExit(f"FAILED: {program}: {hits} hits of {5 * TRACED_PASSES}")
    with open(out, encoding="ascii") as text:
        return measured(text.read())


def table(rows):
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main():
    if len(sys.argv) not in (3, 4):
        print(__doc__, file=sys.stderr)
        return 2
    reprobe, document = os.path.abspath(sys.argv[1]), sys.argv[2]
    rounds = int(sys.argv[3]) if len(sys.argv) == 4 else 15
    with tempfile.TemporaryDirectory(prefix="reprobe-sled-speed-") as folder:
        programs = build(reprobe, folder)
        runs = {key: [] for key in programs}
        hits = {name: [] for name in TRACED}
        for i in range(rounds):
            for key, program in programs.items():
                runs[key].append(untraced(program))
            for name in TRACED if i % 3 == 0 and os.geteuid() == 0 else ():
                hits[name].append(traced(programs[name, "dependent"], folder))
    every = [said for of_one in runs.values() for said in of_one]
    cycle = min(said[1] for said in every)
    call = statistics.median(said[2] for said in every)

    def cycles(name, loop):
        return statistics.median(said[0] for said in runs[name, loop]) / cycle

    plain = {loop: cycles("plain nop", loop) for loop in ("dependent", "bare")}
    rows = [["untraced", "ns", "cycles", "more than the plain nop", "bare loop: cycles", "more"],
            ["---"] * 6]
    for name in VARIANTS:
        rows.append([name, f"{cycles(name, 'dependent') * cycle:.2f}",
                     f"{cycles(name, 'dependent'):.2f}",
                     f"{cycles(name, 'dependent') - plain['dependent']:+.2f}",
                     f"{cycles(name, 'bare'):.2f}", f"{cycles(name, 'bare') - plain['bare']:+.2f}"])
    kernel = platform.release().partition("-")[0]
    text = (f"Linux {kernel}, {rounds} rounds, medians; a cycle is {cycle:.3f} ns, a system call "
            f"that does next to nothing {call:.0f} ns.\n\n{table(rows)}")
    if hits["plain nop"]:
        nanoseconds = {name: [said[0] for said in hits[name]] for name in TRACED}
        base = statistics.median(nanoseconds["plain nop"])
        rows = [["traced by count()", "ns, median", "of the plain nop", "ns, least",
                 "byte at the site", "trampoline"], ["---"] * 6]
        for name in TRACED:
            middle = statistics.median(nanoseconds[name])
            rows.append([name, f"{middle:.0f}", f"{middle / base:.2f}",
                         f"{min(nanoseconds[name]):.0f}", hits[name][-1][3],
                         "mapped" if hits[name][-1][4] else "none"])
        text += f"\n\n{table(rows)}"
    with open(document, encoding="utf-8") as old:
        before = old.read()
    with open(document, "w", encoding="utf-8") as out:
        out.write(re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{text}\n{END}", before,
                         flags=re.S))
    print(text)
    worst = max(cycles(name, "dependent") for name in ("nop10 sled", "nop5 sled"))
    return 1 if worst - plain["dependent"] > MOST_CYCLES else 0


if __name__ == "__main__":
    sys.exit(main())
