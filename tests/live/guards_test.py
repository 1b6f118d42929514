#!/usr/bin/env python3
"""guards_test.py REPROBE: checks that look at their probe's site.

Programs and libraries with checks in many forms are built in many ways. A plain uprobe by offset,
as a tracer attaches that knows no counters, must make the guarded blocks run in the rewritten file
while it is attached, in a process that runs already too, and not otherwise; in the original they
never run. restore gives the original. Without root or uprobes, only the untraced part runs.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tracers")]
# pylint: disable=wrong-import-position
import environment
import uprobes
from checks import Checks
from common import run

PROGRAMS = os.path.join(HERE, "guard_programs")
LOOPS = 5
# Which blocks run while a probe is attached: as many times as the source says, with any counter's
# value that is not 0.
EXPECTED = {
    "": [0, 0, 0, 0, 0, 0],
    "branch": [LOOPS, 0, 0, 0, 0, 0],
    "value": [0, LOOPS, 0, 0, 0, 0],
    "left": [0, 0, LOOPS, LOOPS, 0, 0],
    "right": [0, 0, LOOPS, 0, 0, 0],
    "kept": [0, 0, 0, 0, 2 * LOOPS, 0],
    "call": [0, 0, 0, 0, 0, LOOPS],
}
# name: (compiler, options for both, options for the library that holds the checks or None)
BUILDS = {
    "gcc pie": ("gcc", "-O2 -fPIE -pie", None),
    "gcc -O0": ("gcc", "-O0", None),
    "gcc -Os no-pie": ("gcc", "-Os -fno-pie -no-pie", None),
    "gcc -O3 unstripped -g": ("gcc", "-O3 -g", None),
    "gcc static": ("gcc", "-O2 -static -fno-pie -no-pie", None),
    "gcc static-pie": ("gcc", "-O2 -static-pie", None),
    "gcc cf-protection": ("gcc", "-O2 -fcf-protection=full", None),
    "gcc library": ("gcc", "-O2", "-fPIC -shared"),
    "gcc library GOT": ("gcc", "-O2", "-fPIC -shared -Wl,--no-relax"),
    "gcc library -O1": ("gcc", "-O1", "-fPIC -shared"),
    "gcc PIC in a program": ("gcc", "-O2 -fPIC -no-pie", None),
    "clang": ("clang-14", "-O2", None),
    "clang -O0": ("clang-14", "-O0", None),
    "clang -Oz mold": ("clang-14", "-Oz -fuse-ld=mold", None),
    "clang no-pie lld": ("clang-14", "-O2 -no-pie -fuse-ld=lld", None),
    "clang library lld": ("clang-14", "-O0 -fuse-ld=lld", "-fPIC -shared"),
    "gcc library gold": ("gcc", "-O2 -fuse-ld=gold", "-fPIC -shared"),
}
# Code that takes addresses from the GOT may leave one where a callee looks for an argument: one counter
# of these may stay as it is.
MAY_KEEP = {"gcc library", "gcc library GOT", "gcc library gold", "gcc PIC in a program",
            "clang library lld"}
PASSED_ON = "the counter's address may be passed on"
TRACED = {"gcc pie", "gcc -O0", "gcc -Os no-pie", "gcc library", "gcc library GOT", "clang",
          "gcc PIC in a program", "clang no-pie lld"}


def sites(file):
    """{probe: (address, counter)} of probes with one site each."""
    return {name: found[0] for name, found in uprobes.probe_sites(file, "checks").items()}


def kept(file):
    """Probes whose notes name a counter."""
    return {name for name, (_, counter) in sites(file).items() if counter}


def uprobe(file, address):
    return uprobes.Uprobes([(file, uprobes.offset_in(uprobes.segments(file), address))])


class Program:
    """The running program, one pass at a time."""

    def __init__(self, command, env):
        # pylint: disable=consider-using-with
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env={**os.environ, **env})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.process.stdout.close()

    def one_pass(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        said = self.process.stdout.readline()
        total, _, counts = said.partition(" behind")
        return total, [int(count) for count in counts.split()]


def build(folder, name):
    """(the file with the probes, the command, its environment), or what the compiler said."""
    compiler, options, library = BUILDS[name]
    here = os.path.join(folder, re.sub(r"\W+", "-", name))
    os.mkdir(here)
    program, file = os.path.join(here, "program"), os.path.join(here, "program")
    main, checks = os.path.join(PROGRAMS, "main.c"), os.path.join(PROGRAMS, "checks.c")
    env = {}
    if library is None:
        made = run(compiler, *options.split(), main, checks, "-o", program)
    else:
        file = os.path.join(here, "libchecks.so")
        made = run(compiler, *options.split(), *library.split(), checks, "-o", file)
        if made.returncode == 0:
            made = run(compiler, *options.split(), main, file, "-o", program)
        env = {"LD_LIBRARY_PATH": here}
    return (file, [program], env) if made.returncode == 0 else made.stderr


def check_untraced(checks, reprobe, what, file, command, env):
    """Rewrites the file in place; gives the original's path, or None."""
    original = file + ".original"
    with Program(command, env) as program:
        expected = program.one_pass()
    checks.equal(f"{what}: the original's guards are off", expected[1], EXPECTED[""])
    os.rename(file, original)
    # The library's counters are exported, and the program checks none of them.
    made = run(reprobe, "guards", "--to", "site", original, "-o", file, "--allow-exported")
    left = kept(file)
    everything = "(100.0%)" in made.stderr or (what in MAY_KEEP and PASSED_ON in made.stderr)
    if not checks.equal(f"{what}: guards", (made.returncode, everything), (0, True)):
        print(made.stderr)
        return None
    checks.true(f"{what}: notes name no counter but of {left}",
                len(left) <= (1 if what in MAY_KEEP else 0))
    checks.equal(f"{what}: sites stay", [a for a, _ in sites(file).values()],
                 [a for a, _ in sites(original).values()])
    with Program(command, env) as program:
        checks.equal(f"{what}: untraced", program.one_pass(), expected)
    plan = json.loads(run(reprobe, "guards", "--to", "site", "--json", "--dry-run",
                          "--allow-exported", original).stdout)
    probes = {name: (f"{at:#x}", f"{counter:#x}") for name, (at, counter) in sites(original).items()}
    checks.equal(f"{what}: --json", [(g["site"], g["semaphore"]) for g in plan["guards"]],
                 [probes[g["name"]] for g in plan["guards"]])
    verified = run(reprobe, "verify", original, file)
    checks.equal(f"{what}: verify", (verified.returncode, verified.stdout if verified.returncode
                                     else ""), (0, ""))
    checks.equal(f"{what}: audit finds no more", rules(reprobe, file) - rules(reprobe, original),
                 set())
    with open(file, "rb") as data:
        once = data.read()
    again = run(reprobe, "guards", "--to", "site", file)
    with open(file, "rb") as data:
        checks.equal(f"{what}: a second run", (again.returncode, data.read() == once), (0, True))
    checks.equal(f"{what}: no sleds over it", run(reprobe, "sled", file).returncode, 4)
    sledded = file + ".sledded"
    run(reprobe, "sled", original, "-o", sledded)
    if os.path.exists(sledded):
        checks.equal(f"{what}: not over sleds", run(reprobe, "guards", "--to", "site",
                                                    sledded).returncode, 4)
        check_on_over_sleds(checks, reprobe, what, sledded)
    return original


def check_on_over_sleds(checks, reprobe, what, file):
    with open(file, "rb") as data:
        before = data.read()
    made = run(reprobe, "guards", "--to", "on", file, "-o", file + ".on")
    checks.equal(f"{what}: --to on over sleds", made.returncode, 0)
    verified = run(reprobe, "verify", file, file + ".on")
    checks.equal(f"{what}: --to on over sleds, verify", verified.returncode, 0)
    checks.equal(f"{what}: sleds under --to on stay", run(reprobe, "sled", "--undo",
                                                          file + ".on").returncode, 4)
    run(reprobe, "guards", "--to", "restore", file + ".on")
    with open(file + ".on", "rb") as data:
        checks.equal(f"{what}: restore over sleds", data.read() == before, True)


def rules(reprobe, file):
    return set(re.findall(r'"rule": "([\w-]+)"', run(reprobe, "audit", "--json", file).stdout))


def check_traced(checks, what, file, original, command, env):
    found = sites(file)
    checks.equal(f"{what}: probes", set(found), set(EXPECTED) - {""})
    with Program(command, env) as program:
        total = program.one_pass()[0]
        for name, (address, _) in found.items():
            expected = EXPECTED["" if name in kept(file) else name]
            with uprobe(file, address):
                checks.equal(f"{what}: {name} attached", program.one_pass(), (total, expected))
            checks.equal(f"{what}: {name} detached", program.one_pass(), (total, EXPECTED[""]))
    name, address = next((n, a) for n, (a, counter) in found.items() if not counter)
    with uprobe(file, address), Program(command, env) as program:
        checks.equal(f"{what}: started while {name} is attached", program.one_pass(),
                     (total, EXPECTED[name]))
    os.rename(file, file + ".guarded")
    os.rename(original, file)
    with uprobe(file, address), Program(command, env) as program:
        checks.equal(f"{what}: the original, {name} attached", program.one_pass(),
                     (total, EXPECTED[""]))
    os.rename(file, original)
    os.rename(file + ".guarded", file)


def check_on(checks, reprobe, what, file, original, command, env):
    made = run(reprobe, "guards", "--to", "on", original, "-o", file)
    checks.equal(f"{what}: --to on", (made.returncode, "(100.0%)" in made.stderr), (0, True))
    with Program(command, env) as program:
        checks.equal(f"{what}: --to on runs all blocks", program.one_pass()[1],
                     [LOOPS, LOOPS, LOOPS, 0, 2 * LOOPS, LOOPS])
    checks.equal(f"{what}: --to on, verify", run(reprobe, "verify", original, file).returncode, 0)
    checks.equal(f"{what}: --to site over it", run(reprobe, "guards", "--to", "site",
                                                   file).returncode, 4)
    check_restore(checks, reprobe, what + ": on", file, original)


def check_restore(checks, reprobe, what, file, original):
    back = run(reprobe, "guards", "--to", "restore", file)
    with open(file, "rb") as a, open(original, "rb") as b:
        checks.equal(f"{what}: restore", (back.returncode, a.read() == b.read()), (0, True))


def check_program(checks, reprobe, folder, name, tracing):
    made = build(folder, name)
    if not checks.equal(f"{name}: builds", isinstance(made, str), False):
        print(made)
        return
    file, command, env = made
    original = check_untraced(checks, reprobe, name, file, command, env)
    if original is None:
        return
    if tracing and name in TRACED:
        check_traced(checks, name, file, original, command, env)
    check_restore(checks, reprobe, name, file, original)
    check_on(checks, reprobe, name, file, original, command, env)


def main():
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    if os.uname().machine != "x86_64":
        environment.skip("guards are for x86-64")
    environment.need_tools(["gcc", "clang-14", "mold", "ld.lld", "ld.gold", "readelf"])
    tracing = environment.can_trace()
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="reprobe-guards-") as folder:
        for name in BUILDS:
            if len(sys.argv) == 2 or name in sys.argv[2:]:
                check_program(checks, os.path.abspath(sys.argv[1]), folder, name, tracing)
    return checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
