#!/usr/bin/env python3
"""sled_windows_test.py REPROBE: sites with something in their way, in programs that run.

sled_programs/windows.S has sites whose windows hold a jump table's entry, a landing pad, a label
whose address is taken, a symbol, another probe, an endbr64, and so on. Each site must get the
tactic that serves it, or be left alone for the right reason; the program must print the same, and
bpftrace must count the same hits. Without root or uprobes, only the untraced part runs.
"""
import json
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tracers")]
# pylint: disable=wrong-import-position
import environment
from checks import Checks
from common import run
from sled_test import PROGRAMS, notes, traced

# name: (compilers for C and C++, options for both, options of the link, traced)
BUILDS = {
    "gcc pie": ("gcc", "g++", "-O2 -fPIE", "-pie", True),
    "gcc no-pie": ("gcc", "g++", "-O2 -fno-pie", "-no-pie", True),
    "gcc cet": ("gcc", "g++", "-Os -fPIE -fcf-protection=full", "-pie", False),
    "gcc static no-pie": ("gcc", "g++", "-O0 -fno-pie", "-no-pie -static", False),
    "gcc mold no-pie": ("gcc", "g++", "-O3 -fno-pie", "-no-pie -fuse-ld=mold", False),
    "clang pie": ("clang-14", "clang++-14", "-O2 -fPIE", "-pie", False),
    "clang no-pie": ("clang-14", "clang++-14", "-O2 -fno-pie", "-no-pie", False),
    "clang lld pie": ("clang-14", "clang++-14", "-Os -fPIE", "-pie -fuse-ld=lld", False),
}
KINDS = ("nop10", "nop5")

# What becomes of each site of windows.S and windows_end.S: a tactic, or the words of the reason.
# With several targets in one place their names are joined; all of ours must be among them.
EXPECTED = {
    "table_one_first": "a target in the window: jump table",
    "table_one_second": "a target in the window: jump table",
    "table_one_long": "a target in the window: word",
    "table_whole_six": "displace",
    "table_whole_five": "hop",
    "table_whole_three": "hop",
    "label_taken_one": "control flow not understood",
    "label_taken_free": "control flow not understood",
    "symbol_in_short": "an address in data that may be an instruction's",
    "symbol_label_dead": "a target in the window: branch, symbol",
    "symbol_label_two": "displace",
    "twins_a": "displace",
    "twins_b": "displace",
    "endbr_after": "an address in data that may be an instruction's",
    "endbr_bare": "a target in the window: endbr",
    "block_long": "displace",
    "block_short": "displace",
    "prefix_before": "displace",
    "prefix_in": "displace",
    "repeated_before": "displace",
    "repeated_only": "a repeated string operation in the window",
    "counted_loop": "displace",
    "flags_live": "displace",
    "flags_forward": "displace",
    "tight": "displace",
    "relative_store": "displace",
    "relative_compare": "displace",
    "relative_add": "displace",
    "relative_word": "displace",
    "calls_direct": "call-target",
    "calls_returned": "displace",
    "calls_indirect": "displace",
    "calls_tail": "displace",
    "calls_short": "displace",
    "pushes_one": "displace",
    "pushes_two": "displace",
    "pushes_three": "displace",
    "pushes_four": "displace",
    "pushes_five": "displace",
    "pushes_six": "displace",
    "two_padded": "displace",
    "lands_one": "a target in the window: landing pad",
    "lands_pad": "hop",
    "end_of_text": "too few bytes",
}
# Compilers place the sites of windows_goto.c as they like.
COMPILED = ("threaded_", "offsets_", "cases_")
COMPILED_REASONS = ("a target in the window", "control flow not understood", "a call in the window",
                    "too few bytes")
TACTICS = ("in-place", "call-target", "jump-target", "displace", "hop")


def build(folder, name):
    """The program, or what the compiler said."""
    c, cxx, options, link = BUILDS[name][:4]
    out = os.path.join(folder, name.replace(" ", "-"))
    objects = []
    for source in ("windows_goto.c", "windows.S", "windows_end.S"):
        objects.append(f"{out}.{source}.o")
        made = run(c, *options.split(), "-c", os.path.join(PROGRAMS, source), "-o", objects[-1])
        if made.returncode:
            return None, made.stderr
    # The last object is the end of .text.
    made = run(cxx, *options.split(), *link.split(), os.path.join(PROGRAMS, "windows.cc"), *objects,
               "-o", out)
    return (None, made.stderr) if made.returncode else (out, "")


def is_expected(name, found):
    """Is `found`, a tactic or a reason, what the site must get?"""
    if name.startswith(COMPILED):
        return found in TACTICS or found.startswith(COMPILED_REASONS)
    words, _, kinds = EXPECTED[name].partition(": ")
    found_words, _, found_kinds = found.partition(": ")
    return words == found_words and set(kinds.split(", ")) <= set(found_kinds.split(", "))


def check_outcomes(checks, what, plan):
    found = {site["name"]: site["tactic"] for site in plan["sites"]}
    found |= {site["name"]: site["reason"] for site in plan["refused"]}
    wrong = {name: outcome for name, outcome in found.items() if not is_expected(name, outcome)}
    checks.equal(f"{what}: outcomes", wrong, {name: EXPECTED.get(name) for name in wrong})
    missing = EXPECTED.keys() - found.keys()
    checks.equal(f"{what}: sites without an outcome", missing, set())


def check_same(checks, what, reprobe, original, result, said):
    """The result runs as the original does, is proven, and gives the original back."""
    ran = run(result)
    checks.equal(f"{what}: prints", (ran.returncode, ran.stdout), (0, said))
    proven = run(reprobe, "verify", original, result)
    checks.true(f"{what}: verify", proven.returncode == 0, proven.stdout + proven.stderr)
    back = run(reprobe, "sled", "--undo", result, "-o", result + ".back")
    with open(original, "rb") as a, open(result + ".back", "rb") as b:
        checks.true(f"{what}: undo gives the original", a.read() == b.read(), back.stderr)


def check_build(checks, reprobe, folder, name, tracing):
    file, said = build(folder, name)
    if not checks.true(f"{name}: builds", file is not None, said):
        return
    expected = run(file)
    checks.true(f"{name}: runs", expected.returncode == 0 and expected.stdout, expected.stderr)
    hits, errors = traced(file, [file])[1:] if tracing else (None, "")
    if tracing:
        # Every probe but the one before dead code and what a compiler dropped.
        seen = {key.partition("[")[0] for key in hits}
        checks.true(f"{name}: bpftrace traces", len(seen) >= len(EXPECTED), f"{seen} {errors}")
    for kind in KINDS:
        what = f"{name}, {kind}"
        out = f"{file}.{kind}"
        made = run(reprobe, "sled", "--json", f"--kind={kind}", file, "-o", out)
        if not checks.true(f"{what}: sled", made.returncode == 0, made.stderr):
            continue
        # A static program is large enough for words that are addresses by chance, and goes on
        # behind our last function.
        if "-static" not in BUILDS[name][3]:
            check_outcomes(checks, what, json.loads(made.stdout))
        check_same(checks, what, reprobe, file, out, expected.stdout)
        if tracing:
            printed, found, errors = traced(out, [out])
            checks.equal(f"{what}: printed under bpftrace", printed, expected.stdout.splitlines())
            if not checks.equal(f"{what}: hits of bpftrace", found, hits):
                print(errors[-600:])
    check_one_of_two(checks, reprobe, file, name, expected.stdout)


def check_one_of_two(checks, reprobe, file, name, said):
    """One of two neighbours gets a sled: the other, which stays, is in its window."""
    out = file + ".one"
    made = run(reprobe, "sled", "--json", "-p", "window:twins_a", file, "-o", out)
    plan = json.loads(made.stdout)
    checks.equal(f"{name}: twins_a alone", [s["reason"] for s in plan["refused"]],
                 ["another probe in the window"])
    made = run(reprobe, "sled", "--json", "-p", "window:twins_b", file, "-o", out)
    plan = json.loads(made.stdout)
    checks.equal(f"{name}: twins_b alone", [s["tactic"] for s in plan["sites"]], ["displace"])
    moved = [(a[1], b[3]) for a, b in zip(notes(file), notes(out)) if a[3] != b[3]]
    checks.equal(f"{name}: only its note moves", [at[0] for at in moved], ["twins_b"])
    check_same(checks, f"{name}: twins_b", reprobe, file, out, said)


def main():
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    if os.uname().machine != "x86_64":
        environment.skip("sleds are for x86-64")
    environment.need_tools(["gcc", "g++", "clang-14", "clang++-14", "mold", "ld.lld", "bpftrace"])
    tracing = environment.can_trace()
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="reprobe-sled-windows-") as folder:
        for name in BUILDS:
            if len(sys.argv) == 2 or name in sys.argv[2:]:
                check_build(checks, os.path.abspath(sys.argv[1]), folder, name,
                            tracing and BUILDS[name][4])
    return checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
