#!/usr/bin/env python3
"""guards_random_test.py REPROBE [--programs N] [--first SEED]: programs made at random (guard_source.py)
whose checks look at sites print what their source says.

That is what a build without probes prints, at -O0, with the counters' values given to it: all 0 while
nobody traces; those of the traced probes 1 otherwise. Programs run untraced, with plain uprobes at all
sites of some probes, and under bpftrace on the same ones, many programs at once. A counter that was
left as it is stays 0 for a uprobe, and has a hit for each site under bpftrace, which raises it.
"""
import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
from collections import Counter

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tracers")]
# pylint: disable=wrong-import-position
import environment
import guard_source
import uprobes
from checks import Checks
from common import run

PROGRAMS, FIRST, BATCH = 24, 1, 24
BUILDS_A_SOURCE = 4
# Seeds of programs that guards were once wrong about: an immediate of a long store taken for a distance
# from the GOT; an address that a callee and the probe behind it both got.
KNOWN = (100087, 100126)
COMPILERS = {"gcc": ("-O0", "-O1", "-O2", "-O2", "-O3", "-Os"),
             "clang-14": ("-O0", "-O1", "-O2", "-O3", "-Oz"),
             "clang-19": ("-O0", "-O2", "-O3", "-Os")}
# Small programs of lld and mold share the counters' page with what RELRO protects, where the kernel
# raises no counter (docs/rules.md, semaphore-relro-page), but with segments on pages of their own.
# How the file with the checks is linked: a program, or a library beside one.
LINKS = ("-fPIE -pie", "-fPIE -pie", "-fno-pie -no-pie", "-fPIC -pie", "-fPIC -shared",
         "-fPIC -shared", "-fPIC -shared -DEXPORT=", "-fno-pie -no-pie -static")
EXTRA = ("", "", "", "-fno-omit-frame-pointer", "-fcf-protection=full", "-fno-plt", "-flto",
         "-fno-ipa-ra", "-g", "-Wl,-z,norelro", *(f"-fuse-ld={linker} -Wl,-z,separate-loadable-segments"
                                   for linker in ("lld", "mold")))


class Program:
    """One build of one source: the original and the rewritten file, side by side."""

    def __init__(self, folder, seed, number, compilers):
        self.random = random.Random(seed * 1000 + number)
        pick = self.random.choice
        self.compiler = pick(compilers)
        options = [pick(COMPILERS[self.compiler]), pick(LINKS), pick(EXTRA)]
        if self.compiler != "gcc":
            options[2] = {"-flto": "-flto -fuse-ld=lld -Wl,-z,separate-loadable-segments", "-fno-ipa-ra": ""}.get(options[2], options[2])
        if options[2] == "-flto" and "-static" in options[1]:
            options[2] = ""
        self.options = " ".join(options)
        self.what = f"seed {seed} build {number}: {self.compiler} {self.options}"
        self.shared = "-shared" in self.options
        self.folder = os.path.join(folder, f"s{seed}b{number}")
        self.source = os.path.join(folder, f"s{seed}.c")
        self.reference = os.path.join(folder, f"s{seed}.reference")
        os.mkdir(self.folder)
        self.original = os.path.join(self.folder, "original")
        self.file = os.path.join(self.folder, "librnd.so" if self.shared else "program")
        self.command = [os.path.join(self.folder, "main") if self.shared else self.file]
        self.env = {"LD_LIBRARY_PATH": self.folder}
        self.places = {}
        self.kept = {}
        self.plan = {}

    def build(self):
        main = os.path.join(os.path.dirname(self.source), "main.c")
        options = ["-w", "-fwrapv", *self.options.split()]
        made = run(self.compiler, *options, self.source, *([] if self.shared else [main]), "-o",
                   self.original)
        if made.returncode == 0 and self.shared:
            # Against the original, under the name that it has beside the program.
            shutil.copy(self.original, self.file)
            made = run("gcc", "-O1", main, self.file, "-o", self.command[0])
        return made

    def rewrite(self, reprobe):
        made = run(reprobe, "guards", "--to", "site", "--json", "--allow-exported",
                   "--second-opinion=never", self.original, "-o", self.file)
        if made.returncode == 4:
            shutil.copy(self.original, self.file)
        if made.returncode in (0, 4) and made.stdout:
            self.plan = json.loads(made.stdout)
        self.places = uprobes.probe_sites(self.file, "rnd")
        self.kept = {name: any(counter for _, counter in sites)
                     for name, sites in self.places.items()}
        return made

    def values(self, traced, raised):
        """The counters' values while the probes `traced` are; `raised`: by one for each site."""
        values = []
        for k in range(guard_source.COUNTERS):
            name = f"p{k}"  # a compiler may have dropped all code with the probe
            on = name in traced
            if self.kept.get(name):
                values.append(len(self.places[name]) if on and raised else 0)
            else:
                values.append(1 if on else 0)
        return values

    def expected(self, traced, raised=False):
        return run(self.reference, *map(str, self.values(traced, raised))).stdout

    def run(self):
        said = run(*self.command, env=self.env)
        return said.stdout if said.returncode == 0 else f"exit {said.returncode}\n{said.stderr}"


def make_programs(checks, folder, seeds, compilers, reprobe):
    programs = []
    main = os.path.join(folder, "main.c")
    with open(main, "w", encoding="ascii") as out:
        out.write(guard_source.MAIN)
    for seed in seeds:
        path = os.path.join(folder, f"s{seed}")
        with open(path + ".c", "w", encoding="ascii") as out:
            out.write(guard_source.Source(seed).text())
        made = run("gcc", "-O0", "-w", "-fwrapv", "-DREFERENCE", path + ".c", main, "-o",
                   path + ".reference")
        if not checks.true(f"seed {seed}: reference", made.returncode == 0, made.stderr):
            continue
        for number in range(BUILDS_A_SOURCE):
            program = Program(folder, seed, number, compilers)
            made = program.build()
            if not checks.true(f"{program.what}: builds", made.returncode == 0, made.stderr):
                continue
            made = program.rewrite(reprobe)
            if checks.true(f"{program.what}: guards", made.returncode in (0, 4), made.stderr):
                programs.append(program)
    return programs


def check_untraced(checks, programs):
    for program in programs:
        checks.equal(f"{program.what}: untraced", program.run(), program.expected(()))


def pick_traced(programs, seed):
    chance = random.Random(seed)
    return {program: sorted(name for name in program.places if chance.random() < 0.5)
            for program in programs}


def check_uprobes(checks, programs, traced):
    places = []
    for program in programs:
        loaded = uprobes.segments(program.file)
        places += [(program.file, uprobes.offset_in(loaded, site)) for name in traced[program]
                   for site, _ in program.places[name]]
    with uprobes.Uprobes(sorted(set(places))):
        said = {program: program.run() for program in programs}
    for program in programs:
        checks.equal(f"{program.what}: uprobes at {traced[program]}", said[program],
                     program.expected(traced[program]))


def check_bpftrace(checks, folder, programs, traced):
    script = os.path.join(folder, "all.sh")
    with open(script, "w", encoding="ascii") as out:
        for i, program in enumerate(programs):
            out.write(f"echo =={i}; LD_LIBRARY_PATH={program.folder} {program.command[0]}\n")
    attach = ", ".join(f"usdt:{program.file}:rnd:{name}" for program in programs
                       for name in traced[program])
    if not attach:
        return
    said = run("bpftrace", "--unsafe", "-e",
               f'BEGIN {{ system("sh {script}"); exit(); }} {attach} {{ @ = count(); }}',
               env={"BPFTRACE_MAX_PROBES": "4000", "BPFTRACE_MAX_BPF_PROGS": "4000"}, timeout=300)
    found = dict(re.findall(r"^==(\d+)\n(.*)$", said.stdout, re.M))
    for i, program in enumerate(programs):
        checks.equal(f"{program.what}: bpftrace on {traced[program]}",
                     found.get(str(i), said.stderr[-300:]) + "\n",
                     program.expected(traced[program], raised=True))


def check_batch(checks, reprobe, seeds, compilers, tracing):
    """Counts of what became of the checks."""
    with tempfile.TemporaryDirectory(prefix="reprobe-guards-random-") as folder:
        programs = make_programs(checks, folder, seeds, compilers, reprobe)
        check_untraced(checks, programs)
        if tracing:
            traced = pick_traced(programs, seeds[0])
            check_uprobes(checks, programs, traced)
            check_bpftrace(checks, folder, programs, traced)
        done = Counter()
        for program in programs:
            done += Counter(f"{g['what']} {g['tactic']}" for g in program.plan.get("guards", []))
            done += Counter(f"left: {g['reason']}" for g in program.plan.get("refused", []))
        return done, len(programs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("reprobe")
    parser.add_argument("--programs", type=int, default=PROGRAMS)
    parser.add_argument("--first", type=int, default=FIRST)
    options = parser.parse_args()
    if os.uname().machine != "x86_64":
        environment.skip("guards are for x86-64")
    environment.need_tools(["gcc", "clang-14", "ld.lld", "mold", "readelf", "bpftrace"])
    compilers = [c for c in COMPILERS if shutil.which(c)]
    tracing = environment.can_trace()
    checks = Checks()
    done, programs = Counter(), 0
    a_batch = BATCH // BUILDS_A_SOURCE
    sources = (options.programs + BUILDS_A_SOURCE - 1) // BUILDS_A_SOURCE
    for first in range(options.first, options.first + sources, a_batch):
        seeds = range(first, min(first + a_batch, options.first + sources))
        found, count = check_batch(checks, os.path.abspath(options.reprobe), seeds, compilers,
                                   tracing)
        done, programs = done + found, programs + count
        print(f"{programs} programs, {checks.failures} failures", flush=True)
    if options.first == FIRST:
        check_batch(checks, os.path.abspath(options.reprobe), KNOWN, compilers, tracing)
    print(dict(done.most_common()))
    forms = {name.split()[0] for name in done if not name.startswith("left:")}
    checks.true(f"every form: {sorted(forms)}", {"compare", "load"} <= forms)
    return checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
