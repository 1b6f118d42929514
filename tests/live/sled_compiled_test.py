#!/usr/bin/env python3
"""sled_compiled_test.py REPROBE [--programs N] [--first SEED] [--unwind EVERY]: programs made at random
(sled_source.py), compiled in many ways, print with sleds of both kinds what they print without: untraced,
with a uprobe at every site, whose hits are the original's, and with a breakpoint on an instruction that a
way to a sled took. In one of EVERY programs gdb finds, at each instruction of the stubs that is
passed, the caller that it finds in the original.

A program whose sleds are refused as a whole is counted; exit 5 (the tool's own check found its result
wrong) is a failure. tests/live/programs_RECORD.md has the result of a long run.
"""
import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tracers")]
# pylint: disable=wrong-import-position
import environment
import sled_deep
import sled_source
from checks import Checks
from common import run

PROGRAMS, FIRST, UNWIND = 16, 1, 8
KINDS = ("nop10", "nop5")
LEVELS = ("-O0", "-O1", "-O2", "-O2", "-O3", "-Os")
LINKS = ("", "", "-no-pie", "-static", "-static-pie")
BOTH = ("", "", "-flto", "-fcf-protection=full", "-fnon-call-exceptions -fexceptions", "-pg",
        "-fsanitize=address", "-fpatchable-function-entry=8,3", "-fpatchable-function-entry=16",
        "-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables", "-fstack-protector-strong",
        "-ffunction-sections -Wl,--gc-sections", "-fno-jump-tables", "-fno-plt", "-mno-red-zone",
        "-march=x86-64-v3", "-fuse-ld=lld", "-fuse-ld=mold", "-fuse-ld=gold", "-finstrument-functions",
        "-g")
EXTRA = {"gcc": BOTH + ("-mindirect-branch=thunk", "-mindirect-branch=thunk-inline", "-fsplit-stack",
                        "-mindirect-branch=thunk -fcf-protection=none -no-pie", "-fipa-pta"),
         "clang-14": BOTH + ("-mretpoline", "-mspeculative-load-hardening"),
         "clang-19": BOTH + ("-mretpoline", "-fbasic-block-sections=all -fuse-ld=lld")}
# What an option cannot be together with.
ALONE = ("-pg", "-fsanitize=address", "-fsplit-stack", "-fuse-ld=mold")


class Program:
    """A source and how it is built."""

    def __init__(self, folder, seed, compilers):
        chance = random.Random(seed)
        self.compiler = chance.choice(compilers)
        self.cxx = chance.random() < 0.5
        extra = chance.choice(EXTRA[self.compiler])
        link = chance.choice(LINKS)
        if extra.startswith(ALONE) and link.startswith("-static"):
            link = ""
        if extra == "-flto" and self.compiler != "gcc":
            extra += " -fuse-ld=lld"
        self.options = f"{chance.choice(LEVELS)} {link} {extra}".split()
        self.what = f"seed {seed}: {self.compiler} {'C++' if self.cxx else 'C'} {' '.join(self.options)}"
        self.path = os.path.join(folder, f"p{seed}")
        os.mkdir(self.path)
        self.source = os.path.join(self.path, "p.cc" if self.cxx else "p.c")
        self.file = os.path.join(self.path, "program")
        with open(self.source, "w", encoding="ascii") as out:
            out.write(sled_source.Source(seed).text())

    def build(self):
        driver = {"gcc": "g++"}.get(self.compiler, self.compiler.replace("clang", "clang++"))
        return run(driver if self.cxx else self.compiler, "-w", "-fwrapv", "-fno-strict-aliasing",
                   *self.options, self.source, "-o", self.file)


def result(program, file):
    said = run(file, env=sled_deep.QUIET, cwd=program.path, timeout=60)
    return said.returncode, said.stdout


def check(checks, reprobe, program, seed, tools):
    """Counts of what became of the sites."""
    made = program.build()
    if made.returncode != 0:
        return Counter({"not built": 1})
    expected = result(program, program.file)
    if expected[0] != 0:
        # clang 14's -mspeculative-load-hardening does not survive longjmp() at -O0.
        return Counter({"not built": 1})
    counts = Counter(programs=1)
    before = sled_deep.Code(program.file)
    names = sled_deep.some_probes(program.file, seed)
    if tools["tracing"]:
        traced = sled_deep.traced(lambda f: result(program, f), program.file, names)
    for kind in KINDS:
        out = f"{program.file}.{kind}"
        made = run(reprobe, "sled", "--json", f"--kind={kind}", "--second-opinion=never", program.file,
                   "-o", out)
        if not checks.true(f"{program.what}: sled {kind}", made.returncode in (0, 4), made.stderr):
            continue
        if made.returncode == 4:
            counts["file refused"] += 1
            continue
        plan = json.loads(made.stdout)
        counts += Counter(site["tactic"] for site in plan["sites"])
        counts += Counter("left: " + site["reason"].partition(":")[0] for site in plan["refused"])
        counts["unsafe"] += sum("breakpoints" in site for site in plan["sites"])
        what = f"{program.what}: {kind}"
        if not checks.equal(f"{what} prints", result(program, out), expected):
            continue
        if tools["tracing"]:
            found = sled_deep.traced(lambda f: result(program, f), out, names)
            counts["hits"] += sled_deep.compare_traced(checks, what, found, traced)
        tried, unsafe = sled_deep.compare_breakpoints(checks, what, tools["breaker"], before, out, plan,
                                                      expected, seed)
        counts["breakpoints"] += tried
        counts["breakpoints that are said to be unsafe, and are"] += unsafe
        # gdb makes frames of its own where debug information tells of tail calls, and guesses where
        # there are no unwind tables.
        if seed % tools["unwind"] == 0 and not {"-g", "-fno-asynchronous-unwind-tables"} & set(program.options):
            counts["stubs' instructions unwound"] += sled_deep.compare_unwinding(checks, what, before,
                                                                                out, plan)
    return counts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("reprobe")
    parser.add_argument("--programs", type=int, default=PROGRAMS)
    parser.add_argument("--first", type=int, default=FIRST)
    parser.add_argument("--unwind", type=int, default=UNWIND)
    options = parser.parse_args()
    if os.uname().machine != "x86_64":
        environment.skip("sleds are for x86-64")
    tools = {"tracing": environment.can_trace(), "unwind": options.unwind}
    environment.need_tools(["gcc", "g++", "clang-14", "ld.lld", "mold", "gdb", "objdump", "readelf"])
    compilers = [c for c in EXTRA if shutil.which(c)]
    checks, done = Checks(), Counter()
    for seed in range(options.first, options.first + options.programs):
        with tempfile.TemporaryDirectory(prefix="reprobe-sled-compiled-") as folder:
            tools["breaker"] = os.path.join(folder, "breaker")
            made = run("gcc", "-O1", os.path.join(HERE, "sled_programs", "breaker.c"), "-o",
                       tools["breaker"])
            if not checks.true("the breaker is built", made.returncode == 0, made.stderr):
                break
            done += check(checks, os.path.abspath(options.reprobe), Program(folder, seed, compilers),
                          seed, tools)
        if seed % 20 == 0:
            print(f"{done['programs']} programs, {checks.failures} failures", flush=True)
    print(dict(done.most_common()))
    checks.true("nearly all are built", done["not built"] * 5 < options.programs, str(done))
    checks.true("with sleds", done["displace"] > options.programs, str(done))
    return checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
