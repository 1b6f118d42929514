#!/usr/bin/env python3
"""sled_test.py REPROBE: programs that were given sleds do what they did, traced and untraced.

Each program is built in many ways. The sledded file must print what the original prints; bpftrace
must see the same probes with the same arguments as often; gdb, at a stop in each sled, the same
arguments and the same frames. Without root or uprobes, only the untraced part runs.
"""
import os
import re
import sys
import tempfile
from collections import Counter

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tracers")]
# pylint: disable=wrong-import-position
import environment
from common import run

PROGRAMS = os.path.join(HERE, "sled_programs")
KINDS = [("nop10", "auto"), ("nop5", "auto"), ("nop5", "always")]
# name: (compiler, source, options)
BUILDS = {
    "gcc pie": ("gcc", "work.c", "-O2"),
    "gcc semaphores": ("gcc", "work.c", "-O2 -DSEMAPHORES"),
    "gcc -O0": ("gcc", "work.c", "-O0"),
    "gcc -Os no-pie mold": ("gcc", "work.c", "-Os -no-pie -fuse-ld=mold"),
    "gcc static-pie cf-protection": ("gcc", "work.c", "-O2 -static-pie -fcf-protection=full"),
    "gcc lld gc": ("gcc", "work.c", "-O2 -fuse-ld=lld -ffunction-sections -Wl,--gc-sections"),
    "gcc one code segment": ("gcc", "work.c", "-O2 -Wl,-z,noseparate-code"),
    "clang": ("clang-14", "work.c", "-O2"),
    "clang -Os lld": ("clang-14", "work.c", "-Os -fuse-ld=lld"),
    "g++": ("g++", "throws.cc", "-O2 -rdynamic"),
    "g++ static": ("g++", "throws.cc", "-O2 -rdynamic -static"),
    "clang++": ("clang++-14", "throws.cc", "-O2 -rdynamic"),
    "clang++ -Oz mold": ("clang++-14", "throws.cc", "-Oz -rdynamic -fuse-ld=mold"),
}
MOST_ARGUMENTS = 6  # that bpftrace 0.17 knows
# What gdb looks at costs a second a program.
# Kernels take 0.1 s and more to give a site back.
TRACED = {"gcc semaphores", "clang -Os lld", "g++"}
DEBUGGED = {"gcc pie", "gcc semaphores", "gcc -Os no-pie mold", "clang -Os lld", "g++"}


class Checks:
    def __init__(self):
        self.failures = self.passed = 0

    def equal(self, what, got, expected):
        if got == expected:
            self.passed += 1
            return True
        self.failures += 1
        if isinstance(got, Counter) and isinstance(expected, Counter):
            got, expected = got - expected, expected - got
        print(f"FAILED: {what}:\n  expected {str(expected)[-1500:]}\n  found    {str(got)[-1500:]}")
        return False

    def true(self, what, good, said=""):
        return self.equal(what, (bool(good), "" if good else said), (True, ""))


def notes(file):
    """(provider, name, number of arguments, address) of each, as readelf reads them."""
    said = run("readelf", "-n", "-W", file).stdout
    found = re.findall(r"Provider: (\S+)\s+Name: (\S+)\s+Location: 0x(\w+), Base: \S+ Semaphore: "
                       r"\S+\s+Arguments: ?(.*)", said)
    return [(p, n, len(a.split()), int(at, 16)) for p, n, at, a in found]


def traced(file, command):
    """What the command printed, and Counter of (probe, arguments) of every probe of the file."""
    kinds = {}
    for provider, name, arguments, _ in notes(file):
        kinds[provider, name] = min(kinds.get((provider, name), MOST_ARGUMENTS), arguments)
    program = ""
    for (provider, name), count in sorted(kinds.items()):
        fields = ", ".join(["0", *(f"(int64)arg{i}" for i in range(count))])
        program += f"usdt:{file}:{provider}:{name} {{ @{provider}__{name}[{fields}] = count(); }}\n"
    said = run("bpftrace", "--unsafe", "-e", 'BEGIN { system("$COMMAND"); exit(); }\n' + program,
               env={"COMMAND": " ".join(command), "BPFTRACE_MAX_MAP_KEYS": "100000"})
    hits = Counter({m[1]: int(m[2]) for m in re.finditer(r"^(@.*): (\d+)$", said.stdout, re.M)})
    printed = [line for line in said.stdout.splitlines()
               if not line.startswith(("@", "Attaching ")) and line]
    return printed, hits, said.stderr


def stops(file, command):
    """At each stop in a probe: its arguments and its frames, as gdb prints them."""
    probes = sorted({(p, n, count) for p, n, count, _ in notes(file)})
    script = ["set confirm off", "set pagination off", "set print frame-arguments none",
              "set print address off", "set backtrace past-main off", "set width 0"]
    for number, (provider, name, count) in enumerate(probes, 1):
        script += [f"break -probe-stap {provider}:{name}", f"commands {number}", "silent",
                   f"echo stop {name}\\n"]
        script += [f"output/x (long)$_probe_arg{i}\necho \\n" for i in range(min(count, 3))]
        script += ["backtrace", "continue", "end"]
    script += ["run", "quit"]
    path = file + ".gdb"
    with open(path, "w", encoding="utf-8") as out:
        out.write("\n".join(script) + "\n")
    said = run("gdb", "-nx", "-batch", "-x", path, "--args", *command)
    text = said.stdout.partition("\nstop ")[2]
    # Where the innermost frame is has a name in the function only: sleds have no symbols.
    text = re.sub(r"^#0 .*$", "#0", text, flags=re.M)
    return [line for line in text.splitlines()
            if re.match(r"#|0x|stop|[a-z]+$", line)], said.stderr[-300:]


def sled(reprobe, file, out, kind, guard):
    return run(reprobe, "sled", f"--kind={kind}", f"--guard={guard}", file, "-o", out)


def check_program(checks, reprobe, folder, name, tracing):
    compiler, source, options = BUILDS[name]
    file = os.path.join(folder, re.sub(r"\W+", "-", name))
    made = run(compiler, *options.split(), os.path.join(PROGRAMS, source), "-o", file)
    if not checks.true(f"{name}: builds", made.returncode == 0, made.stderr):
        return
    tracing = tracing and name in TRACED
    command = [file, "40"]
    expected = run(*command)
    checks.true(f"{name}: runs", expected.returncode == 0 and expected.stdout, expected.stderr)
    hits, stderr = traced(file, command)[1:] if tracing else (None, "")
    if tracing:
        checks.true(f"{name}: bpftrace traces", sum(hits.values()) > 150, stderr)
    at_stops = stops(file, [file, "9"])[0] if name in DEBUGGED else None
    audited = run(reprobe, "audit", "--json", file)
    for kind, guard in KINDS:
        what = f"{name}, {kind}, guard {guard}"
        out = f"{file}.{kind}-{guard}"
        made = sled(reprobe, file, out, kind, guard)
        if not checks.true(f"{what}: sled", made.returncode == 0, made.stderr):
            continue
        moved = sum(a[3] != b[3] for a, b in zip(notes(file), notes(out)))
        checks.true(f"{what}: most sites have sleds", moved * 10 >= len(notes(file)) * 7,
                    made.stderr)
        said = run(out, *command[1:])
        checks.equal(f"{what}: untraced", (said.returncode, said.stdout, said.stderr),
                     (0, expected.stdout, expected.stderr))
        if tracing:
            printed, found, stderr = traced(out, [out, *command[1:]])
            checks.equal(f"{what}: printed under bpftrace", printed, expected.stdout.splitlines())
            if not checks.equal(f"{what}: hits of bpftrace", found, hits):
                print(stderr[-600:])
        if at_stops:
            checks.true(f"{name}: gdb stops", len(at_stops) > 50, str(at_stops))
            found, stderr = stops(out, [out, "9"])
            if not checks.equal(f"{what}: stops of gdb", found, at_stops):
                print(stderr)
        findings = run(reprobe, "audit", "--json", out)
        new = set(rules(findings)) - set(rules(audited))
        checks.equal(f"{what}: new findings of audit", new, set())
        back = run(reprobe, "sled", "--undo", out, "-o", out + ".back")
        checks.true(f"{what}: undo", back.returncode == 0, back.stderr)
        with open(out + ".back", "rb") as a, open(file, "rb") as b:
            checks.true(f"{what}: undo gives the original", a.read() == b.read())


def rules(said):
    return sorted(set(re.findall(r'"rule": "([\w-]+)"', said.stdout)))


def main():
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    if os.uname().machine != "x86_64":
        environment.skip("sleds are for x86-64")
    environment.need_tools(["gcc", "g++", "clang-14", "gdb", "mold", "ld.lld", "bpftrace"])
    tracing = os.geteuid() == 0 and os.path.exists("/sys/bus/event_source/devices/uprobe")
    if tracing:
        environment.need_kernel()
    else:
        print("NOTE: untraced only: no root or no uprobes")
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="reprobe-sled-") as folder:
        for name in BUILDS:
            if len(sys.argv) == 2 or name in sys.argv[2:]:
                check_program(checks, os.path.abspath(sys.argv[1]), folder, name, tracing)
    print(f"{checks.passed} checks passed, {checks.failures} failed")
    return 1 if checks.failures else 0


if __name__ == "__main__":
    sys.exit(main())
