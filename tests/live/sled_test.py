#!/usr/bin/env python3
"""sled_test.py REPROBE: programs that were given sleds do what they did, traced and untraced.

Each program is built in many ways. The sledded file must print what the original prints; bpftrace
must see the same probes with the same arguments as often, and perf the same number of hits; gdb, at
a stop in each sled, the same arguments and the same frames, the stub named after its function. Without root or uprobes, only the untraced part runs.
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
from checks import Checks
from common import run
from tools import perf

PROGRAMS = os.path.join(HERE, "sled_programs")
KINDS = [("nop10", "auto"), ("nop5", "auto"), ("nop5", "always"), ("slot", "auto")]
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
    # The stub is named after its function. gdb 13 takes a suffix for one that Ada compilers add, and
    # demangles that of a C++ name.
    text = re.sub(r"^(#\d+  .*)\[(\w+)\]", r"\1.\2", text, flags=re.M)
    text = re.sub(r"^(#0  .*?)(\.sled| \[clone \.sled\])(?= \(\))", r"\1", text, flags=re.M)
    return [line for line in text.splitlines()
            if re.match(r"#|0x|stop|[a-z]+$", line)], said.stderr[-300:]


def functions(file):
    """(start, size, name) of each function that readelf finds in .symtab."""
    table = run("readelf", "-sW", file).stdout.partition("'.symtab'")[2]
    found = re.findall(r"^ *\d+: (\w+) +(\d+) FUNC +\S+ +\S+ +\d+ (\S+)$", table, re.M)
    return [(int(start, 16), int(size), name) for start, size, name in found]


def names_at(symbols, address):
    return {name for start, size, name in symbols if start <= address < start + size}


def check_names(checks, what, file, out):
    """Every stub has its function's name, or, where the copy of a large table is too much, none."""
    old, new = functions(file), functions(out)
    added = [symbol for symbol in new if symbol[2].endswith(".sled")]
    checks.equal(f"{what}: the other symbols", [s for s in new if s not in added], old)
    limit = 65536 + 64 * len(notes(file))
    grown = os.path.getsize(out) - os.path.getsize(file)
    checks.true(f"{what}: growth", grown <= limit, f"{grown} of {limit}")
    if not added:
        # All of the table and the stubs' entries, which are more than a tenth of the limit.
        size = sum(int(s, 16) for s in re.findall(
            r"\.(?:sym|str)tab +\S+ +\w+ \w+ (\w+)", run("readelf", "-SW", file).stdout))
        checks.true(f"{what}: no names only where there is no room", grown + size > limit * 0.9,
                    f"{grown} + {size} of {limit}")
        return
    wrong = []
    for before, after in zip(notes(file), notes(out)):
        wanted = {name + ".sled" for name in names_at(old, before[3])}
        found = names_at(new, after[3])
        if before[3] != after[3] and wanted and not (len(found) == 1 and found <= wanted):
            wrong.append((before, wanted, found))
    checks.equal(f"{what}: names of the stubs", wrong, [])


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
        check_names(checks, what, file, out)
        said = run(out, *command[1:])
        checks.equal(f"{what}: untraced", (said.returncode, said.stdout, said.stderr),
                     (0, expected.stdout, expected.stderr))
        if tracing:
            printed, found, stderr = traced(out, [out, *command[1:]])
            checks.equal(f"{what}: printed under bpftrace", printed, expected.stdout.splitlines())
            if not checks.equal(f"{what}: hits of bpftrace", found, hits):
                print(stderr[-600:])
            if guard == "auto":
                check_perf(checks, what, file, out, command, hits, folder)
        if at_stops:
            checks.true(f"{name}: gdb stops", len(at_stops) > 50, str(at_stops))
            found, stderr = stops(out, [out, "9"])
            if not checks.equal(f"{what}: stops of gdb", found, at_stops):
                print(stderr)
        findings = run(reprobe, "audit", "--json", out)
        new = set(rules(findings)) - set(rules(audited))
        # What every nop5 is, whoever puts it there: these programs do not fork.
        of_nop5 = {"nop5-fork"} if kind == "nop5" else set()
        checks.equal(f"{what}: new findings of audit", new, of_nop5 - set(rules(audited)))
        back = run(reprobe, "sled", "--undo", out, "-o", out + ".back")
        checks.true(f"{what}: undo", back.returncode == 0, back.stderr)
        with open(out + ".back", "rb") as a, open(file, "rb") as b:
            checks.true(f"{what}: undo gives the original", a.read() == b.read())


def counted_by_perf(file, keys, command, folder):
    """{(provider, name): hits}, by `perf probe sdt_...` from a build-id cache of its own."""
    with tempfile.TemporaryDirectory(prefix="cache-", dir=folder) as cache:
        return perf.counts(file, keys, command, cache)


def single_sites(file, original):
    """Some probes with one site each, which has a sled in `file`."""
    count = Counter(note[:2] for note in notes(file))
    moved = [now[:2] for old, now in zip(notes(original), notes(file)) if old[3] != now[3]]
    return [key for key in moved if count[key] == 1][:5]


def check_perf(checks, what, file, out, command, hits, folder):
    """perf counts what bpftrace counts of the original. (In a file that lld links perf finds no
    site; with sleds it does, since the base has moved to them.)"""
    keys = single_sites(out, file)
    expected = {(p, n): sum(count for key, count in hits.items() if key.startswith(f"@{p}__{n}["))
                for p, n in keys}
    checks.true(f"{what}: perf has something to count", len(keys) > 2 and all(expected.values()))
    checks.equal(f"{what}: hits of perf",
                 counted_by_perf(out, keys, [out, *command[1:]], folder), expected)


def check_forged(checks, reprobe, file, out):
    """verify finds each byte of the new symbols that is another."""
    table = re.search(r"\] \.symtab +SYMTAB +\w+ (\w+) (\w+) 18 +\d+ +(\d+)",
                      run("readelf", "-SW", out).stdout)
    names = re.search(r"\] \.strtab +STRTAB +\w+ (\w+) (\w+)", run("readelf", "-SW", out).stdout)
    at, size, first_global = int(table[1], 16), int(table[2], 16), int(table[3])
    end_of_names = int(names[1], 16) + int(names[2], 16)
    places = {"old symbol": at + 24 * 2 + 8, "last global": at + size - 24 + 8,
              "old name": int(names[1], 16) + 1, "new name": end_of_names - 4,
              **{f"byte {i} of a stub's": at + 24 * (first_global - 1) + i for i in range(24)}}
    with open(out, "rb") as whole:
        good = whole.read()
    for what, place in places.items():
        with open(out + ".forged", "wb") as forged:
            forged.write(good[:place] + bytes([good[place] ^ 1]) + good[place + 1:])
        said = run(reprobe, "verify", file, out + ".forged")
        checks.true(f"verify: {what} differs", said.returncode == 1 and
                    "verify-section" in said.stdout, said.stdout + said.stderr)


STRIPS = ("strip -g", "strip", "eu-strip", "llvm-strip-14", "llvm-strip-19 --strip-debug")


def check_stripped(checks, reprobe, folder):
    """Tools that strip a file understand it with sleds; what they leave runs and has its probes."""
    file = os.path.join(folder, "to-strip")
    out = file + ".sled"
    run("gcc", "-O2", "-g", os.path.join(PROGRAMS, "work.c"), "-o", file)
    expected = run(file, "40").stdout
    checks.true("strip: sled", sled(reprobe, file, out, "nop10", "auto").returncode == 0)
    check_forged(checks, reprobe, file, out)
    sleds = notes(out)
    for tool in STRIPS:
        made = run(*tool.split(), "-o", out + ".stripped", out)
        checks.true(f"{tool}: strips", made.returncode == 0 and not made.stderr, made.stderr)
        said = run(out + ".stripped", "40")
        checks.equal(f"{tool}: prints", (said.returncode, said.stdout), (0, expected))
        # llvm-strip drops the notes: reprobe audit warns of that.
        checks.equal(f"{tool}: notes", notes(out + ".stripped"),
                     [] if tool == "llvm-strip-14" else sleds)
        if "-g" in tool or "debug" in tool:
            checks.equal(f"{tool}: symbols", sorted(functions(out + ".stripped")),
                         sorted(functions(out)))


def rules(said):
    return sorted(set(re.findall(r'"rule": "([\w-]+)"', said.stdout)))


def main():
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    if os.uname().machine != "x86_64":
        environment.skip("sleds are for x86-64")
    environment.need_tools(["gcc", "g++", "clang-14", "gdb", "mold", "ld.lld", "bpftrace", "perf"])
    tracing = environment.can_trace()
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="reprobe-sled-") as folder:
        for name in BUILDS:
            if len(sys.argv) == 2 or name in sys.argv[2:]:
                check_program(checks, os.path.abspath(sys.argv[1]), folder, name, tracing)
        check_stripped(checks, os.path.abspath(sys.argv[1]), folder)
    return checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
