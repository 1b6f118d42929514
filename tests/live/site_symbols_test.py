#!/usr/bin/env python3
"""site_symbols_test.py REPROBE: `fix --symbols` names each site, and nothing else changes.

The sites are those of readelf's notes, the symbols those of readelf -s. gdb, perf and bpftrace are
given nothing but the symbol's name and count the hits. The record gives the repaired file back byte
for byte; `verify` accepts the result and none in which a byte of what is new is another; a strip
takes the symbols away. Needs root for perf and bpftrace.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tracers")]
# pylint: disable=wrong-import-position
import environment
from checks import Checks
from common import run
from process_target import PROGRAMS, build

HITS = 7
RECORD = ".reprobe.undo.symbols"
BUILDS = {"pie": (), "no-pie": ("-no-pie",), "static": ("-static",),
          "debug": ("-g",), "gold": ("-fuse-ld=gold",),
          "lld": ("-fuse-ld=lld", "-Wl,--build-id=sha1"),
          "relr": ("-Wl,-z,pack-relative-relocs",)}


def read(path):
    with open(path, "rb") as file:
        return file.read()


def wanted(file):
    """{symbol: address} of the notes that readelf prints: numbered where a probe has several."""
    said = run("readelf", "-nW", file).stdout
    places = {}
    for name, at in re.findall(r"Provider: named\s+Name: (\S+)\s+Location: 0x([0-9a-f]+)", said):
        places.setdefault(f"named__{name}", []).append(int(at, 16))
    return {name + (f".{i}" if len(all_at) > 1 else ""): at
            for name, all_at in places.items() for i, at in enumerate(sorted(all_at), 1)}


def symbols(file):
    """[(address, size, type, binding, name), ...] behind the group's first."""
    rows = [line.split() for line in run("readelf", "-sW", file).stdout.splitlines()]
    rows = [r for r in rows if len(r) == 8 and r[0].rstrip(":").isdigit()]
    start = [i for i, r in enumerate(rows) if r[7] == "reprobe.sites"]
    if not start:
        return []
    found = []
    for row in rows[start[0] + 1:]:
        if row[3] == "FILE" or row[4] != "LOCAL":
            break
        found.append((int(row[1], 16), int(row[2]), row[3], row[4], row[7]))
    return found


def check_named(checks, reprobe, plain):
    """Writes the symbols into a copy; gives it."""
    file, repaired = plain + ".named", plain + ".repaired"
    said = run(reprobe, "fix", "--symbols", "--json", plain, "-o", file)
    checks.equal("fix", (said.returncode, said.stderr.count("warning")), (0, 0))
    expected = wanted(plain)
    checks.equal("names", sorted(expected),
                 ["named__one", "named__twice.1", "named__twice.2", "named__under__score"])
    checks.equal("symbols", symbols(file), sorted(
        (at, 1, "FUNC", "LOCAL", name) for name, at in expected.items()))
    stated = {s["name"]: int(s["address"], 16) for s in json.loads(said.stdout)["symbols"]}
    checks.equal("JSON", stated, expected)
    checks.equal("runs", run(file, str(HITS)).returncode, run(plain, str(HITS)).returncode)
    once = read(file)
    checks.equal("again", run(reprobe, "fix", "--symbols", file).returncode, 0)
    checks.true("again changes nothing", read(file) == once)
    checks.equal("a repair", run(reprobe, "fix", file).returncode, 0)
    checks.true("a repair changes nothing", read(file) == once)
    run(reprobe, "fix", plain, "-o", repaired)
    checks.equal("undo", run(reprobe, "fix", "--undo-symbols", file, "-o", file + ".undone")
                 .returncode, 0)
    checks.true("the repaired file is back", read(file + ".undone") == read(repaired))
    for options, code in ((["--symbols"], 0), ([], 1), (["--symbols", "--command", "undo"], 1)):
        checks.equal(f"verify {options}", run(reprobe, "verify", *options, plain, file).returncode,
                     code)
    checks.equal("verify the undo", run(reprobe, "verify", "--command", "undo", file,
                                        file + ".undone").returncode, 0)
    facts = [[(p["provider"], p["name"], p["site"], p["verdict"], p.get("function"))
              for p in json.loads(run(reprobe, "list", "--json", f).stdout)["files"][0]["probes"]]
             for f in (repaired, file)]
    checks.equal("list", facts[1], facts[0])
    checks.true("has probes", facts[0])
    sled = run(reprobe, "sled", file, "-o", file + ".sled")
    checks.equal("a sled would move what the symbols name", sled.returncode, 4)
    return file


def gdb_hits(file, symbol):
    said = run("gdb", "-q", "-nx", "-batch", "-ex", f"break {symbol}", "-ex", "ignore 1 1000",
               "-ex", f"run {HITS}", "-ex", "info breakpoints", file)
    hits = re.search(r"breakpoint already hit (\d+) times", said.stdout)
    return int(hits[1]) if hits else said.stdout[-300:] + said.stderr[-300:]


def bpftrace_hits(file, symbol):
    said = run("bpftrace", "-q", "-e", f"uprobe:{file}:{symbol} {{ @hits = count(); }}", "-c",
               f"{file} {HITS}")
    hits = re.search(r"@hits: (\d+)", said.stdout)
    return int(hits[1]) if hits else said.stderr[-300:]


def perf_hits(file, symbol):
    event = f"reprobe_named_{os.getpid()}:hit"
    home = {"HOME": file + ".home"}  # perf keeps its cache there, by name and not by file
    os.makedirs(home["HOME"], exist_ok=True)
    made = run("perf", "probe", "-x", file, f"{event}={symbol}", env=home)
    if made.returncode:
        return made.stderr[-300:]
    try:
        said = run("perf", "stat", "-x,", "-e", event, file, str(HITS), env=home).stderr
        return int(said.split(",", 1)[0])
    finally:
        run("perf", "probe", "-d", event, env=home)


def check_tracers(checks, file, debug):
    for symbol in wanted(file):
        for name, hits in (("gdb", gdb_hits), ("bpftrace", bpftrace_hits)):
            checks.equal(f"{name} {symbol}", hits(file, symbol), HITS)
        found = perf_hits(file, symbol)
        # Where there is debug information perf probes every address of the site's line.
        places = found // HITS if debug and isinstance(found, int) else 1
        checks.true(f"perf {symbol}", places > 0 and found == places * HITS, found)
    said = run("gdb", "-q", "-nx", "-batch", "-ex", "break named__twice.1", "-ex", "run 1", "-ex",
               "x/i $pc", file).stdout
    checks.true("gdb stops at the nop", re.search(r"=> .*nop\b", said), said)


def check_forgeries(checks, reprobe, plain, file):
    """No byte of what is new may be another, and none of the headers' place."""
    data, size = read(file), len(read(plain))
    folder = file + ".forged"
    os.makedirs(folder)

    def accepted(at):
        forged = bytearray(data)
        forged[at] ^= 0x41
        path = os.path.join(folder, str(at))
        with open(path, "wb") as out:
            out.write(forged)
        said = subprocess.run([reprobe, "verify", "--symbols", "--second-opinion=never", plain, path],
                              capture_output=True, check=False)
        os.remove(path)
        return said.returncode == 0

    step = max(1, (len(data) - size) // 400)
    places = list(range(40, 64)) + list(range(size, len(data), step))
    with ThreadPoolExecutor(2) as pool:
        wrong = [at for at, good in zip(places, pool.map(accepted, places)) if good]
    checks.equal("verify refuses each forgery", wrong, [])
    checks.true("there are forgeries", len(places) > 300)


def check_strips(checks, reprobe, file, plain):
    for tool in (["strip"], ["llvm-strip-14"], ["eu-strip"]):
        stripped = file + "." + tool[0]
        made = run(*tool, "-o", stripped, file)
        if made.returncode:
            raise SystemExit(f"FAILED: {tool}: {made.stderr}")
        checks.name = f"after {tool[0]}"
        checks.equal("no symbols", symbols(stripped), [])
        checks.equal("runs", run(stripped, str(HITS)).returncode, 0)
        undo = run(reprobe, "fix", "--undo-symbols", stripped, "-o", stripped + ".undone")
        checks.equal("undo is refused", (undo.returncode, os.path.exists(stripped + ".undone")),
                     (4, False))
    checks.name = "a stripped program"
    run("strip", "-o", plain + ".stripped", plain)
    named = plain + ".stripped.named"
    checks.equal("fix", run(reprobe, "fix", "--symbols", plain + ".stripped", "-o", named)
                 .returncode, 0)
    checks.equal("symbols", [s[4] for s in symbols(named)],
                 [name for name, _ in sorted(wanted(plain).items(), key=lambda item: item[1])])
    checks.equal("verify", run(reprobe, "verify", "--symbols", plain + ".stripped", named)
                 .returncode, 0)
    checks.equal("bpftrace", bpftrace_hits(named, "named__one"), HITS)
    checks.equal("gdb", gdb_hits(named, "named__one"), HITS)


def check_refusals(checks, reprobe, folder):
    def refused(what, file, reason):
        checks.name = what
        said = run(reprobe, "fix", "--symbols", file, "-o", file + ".out")
        checks.equal("exit", said.returncode, 4)
        checks.true("reason", reason in said.stderr, said.stderr)
        checks.equal("symbols", [s[4] for s in symbols(file + ".out")].count("named__one"), 0)

    library = build(folder, "named.c", "named.so", "-shared", "-fPIC", "-s")
    refused("a stripped library", library, "would hide its exported functions")
    taken = build(folder, "named.c", "taken", "-Dfirst=named__one")
    refused("a name that is taken", taken, "another symbol has the name")
    checks.equal("others are named", [s[4] for s in symbols(taken + ".out")],
                 ["named__twice.1", "named__twice.2", "named__under__score"])
    linked = build(folder, "named.c", "debuglink")
    run("objcopy", "--only-keep-debug", linked, linked + ".debug")
    run("strip", linked)
    run("objcopy", f"--add-gnu-debuglink={linked}.debug", linked)
    refused("a file with separate symbols", linked, "would hide the symbols")


def check_32_bit(checks, reprobe, folder):
    checks.name = "32-bit"
    file = os.path.join(folder, "named32")
    made = run("i686-linux-gnu-gcc", "-O2", os.path.join(PROGRAMS, "named.c"), "-idirafter",
               "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu", "-o", file)
    if made.returncode:
        raise SystemExit(f"FAILED: the 32-bit program: {made.stderr}")
    named = check_named(checks, reprobe, file)
    checks.equal("perf", perf_hits(named, "named__twice.2"), HITS)


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    environment.need_kernel()
    environment.need_tools(["gcc", "bpftrace", "gdb", "perf", "ld.lld", "eu-strip", "readelf",
                            "llvm-strip-14"])
    reprobe = os.path.abspath(sys.argv[1])
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="reprobe-named-") as folder:
        for name, options in BUILDS.items():
            checks.name = name
            plain = build(folder, "named.c", f"named-{name}", *options)
            file = check_named(checks, reprobe, plain)
            if name in ("pie", "no-pie", "debug"):
                check_tracers(checks, file, name == "debug")
            if name == "pie":
                check_forgeries(checks, reprobe, plain, file)
                check_strips(checks, reprobe, file, plain)
        check_refusals(checks, reprobe, folder)
        check_32_bit(checks, reprobe, folder)
    return checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
