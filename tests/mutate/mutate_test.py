#!/usr/bin/env python3
"""mutate_test.py REPROBE MUTATE EFFECT [--fixtures DIR] [--count N] [--seed N] [--findings FILE]
[--record FILE] [--only REGEX]: results that were changed are not verified.

Programs are built and rewritten by every command; mutate.cpp changes each result in every way an ELF
structure has and keeps what the library's comparison accepts. judge.py then asks the kernel, the
dynamic linker, libgcc, readelf and gdb for the real effect of those. An accepted file with another
effect is a failure. Without --count a short run with a fixed seed is made; --fixtures and the
installed libraries are for the long one.
"""
import argparse
import collections
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
# pylint: disable=wrong-import-position
from judge import Judge, run

FIXTURES = os.path.join(HERE, "..", "..", "fixtures")
SUBJECT = os.path.join(HERE, "subject.cc")
SECTIONS = "-ffunction-sections -Wl,--gc-sections"
# name: (compiler, options)
BUILDS = {
    "gcc lld": ("g++", f"-O2 {SECTIONS} -fuse-ld=lld"),
    "gcc bfd": ("g++", f"-O2 {SECTIONS} -fuse-ld=bfd"),
    "clang mold no-pie": ("clang++-14", f"-Os {SECTIONS} -no-pie -fno-pie -fuse-ld=mold"),
    "gcc relr": ("g++", "-O2 -Wl,-z,pack-relative-relocs"),
    "gcc gold": ("g++", "-O1 -fuse-ld=gold"),
    "gcc one segment": ("g++", f"-O2 {SECTIONS} -Wl,-z,noseparate-code -Wl,-z,norelro"),
    "clang lld eh": ("clang++-14", f"-O2 -g {SECTIONS} -fuse-ld=lld"),
}
SHORT = ("gcc lld", "clang mold no-pie")
COMMANDS = {
    "fix": ["fix"],
    "fix-symbols": ["fix", "--symbols"],
    "fix-build-id": ["fix", "--build-id=new"],
    "fix-respell": ["fix", "--respell"],
    "sled": ["sled"],
    "sled-always": ["sled", "--guard", "always"],
    "guards-site": ["guards", "--to", "site"],
    "guards-on": ["guards", "--to", "on"],
    "relativize": ["relativize"],
}
UNDO = {"fix-symbols": ["fix", "--undo-symbols"], "sled": ["sled", "--undo"], "sled-always": ["sled", "--undo"],
        "guards-site": ["guards", "--to", "restore"], "guards-on": ["guards", "--to", "restore"]}
# What is asked of mutate.cpp where it is not the result's own name.
ASKED = {"sled-always": "sled", "from-debug": "fix", "from-index": "fix", "upgrade": "fix",
         "record": "gives-back"}
# Slow to compare: fewer changes each.
LIBRARIES = ("/usr/lib/x86_64-linux-gnu/libstdc++.so.6",)
FIXTURE_NAMES = [f"{compiler}/{linker}/{mode}/{name}" for compiler, linker, mode, name in [
    ("gcc", "bfd", "pie", "gc"), ("gcc", "lld-19", "pie", "sema"), ("gcc", "mold", "pie", "weak"),
    ("gcc", "gold", "nopie", "sdt"), ("clang", "lld-14", "shared", "gc"),
    ("clang", "bfd", "shared", "sema"), ("gcc", "lld-19", "norosegment", "demo"),
    ("clang", "lld-19", "pie", "emitrelocs"), ("gcc", "lld-19", "static", "gc"),
    ("aarch64", "lld-19", "pie", "gc"), ("armhf", "lld-19", "nopie", "gc"),
    ("i386", "lld-19", "pie", "sema"), ("s390x", "lld-19", "nopie", "gc"),
    ("ppc64le", "lld-19", "pie", "gc"), ("riscv64", "lld-19", "pie", "gc")]]


class Result:
    """What a command made of a program."""

    def __init__(self, name, command, before, after, runs, source=None, weight=1.0):
        self.name, self.command, self.before, self.after = name, command, before, after
        self.runs = runs  # the command line, with FILE for the result
        self.source = source
        self.weight = weight  # what part of the usual number of changes is made


def command_of(result):
    word = result.command.split()[0]
    return ASKED.get(word, word)


class Maker:
    """Builds programs and rewrites them."""

    def __init__(self, reprobe, folder, host):
        self.reprobe, self.folder, self.host = reprobe, folder, host
        self.number = 0

    def path(self, name):
        self.number += 1
        return os.path.join(self.folder, f"{self.number}-{name}")

    def rewrite(self, command, before, *more):
        out = self.path("result")
        code, said = run(self.reprobe, *command, before, "-o", out, "--second-opinion=never", *more)
        if code not in (0, 4) or not os.path.exists(out):
            return None, said.decode("latin-1")
        return out, ""

    def results_of(self, name, program, runs, weight=1.0):
        """The results of every command that does something to it."""
        with open(program, "rb") as file:
            seen = {file.read()}  # an option that changes nothing makes no result of its own
        made = {}
        for command, words in COMMANDS.items():
            out, _ = self.rewrite(words, program)
            if out is None:
                continue
            with open(out, "rb") as file:
                contents = file.read()
            if contents in seen:
                continue
            seen.add(contents)
            made[command] = out
            yield Result(name, command, program, out, runs, weight=weight)
            if command in UNDO:
                # The record of symbols gives back what the repairs had made.
                given = made.get("fix", program) if command == "fix-symbols" else program
                yield Result(name, f"record of {command}", given, out, runs, weight=weight / 2)
                yield from self.undone(name, command, out, runs, weight / 2)
        yield from self.restored(name, program, made.get("relativize"), runs, weight)

    def undone(self, name, command, rewritten, runs, weight):
        out, _ = self.rewrite(UNDO[command], rewritten)
        if out:
            yield Result(name, f"undo of {command}", rewritten, out, runs, weight=weight)

    def restored(self, name, program, indexed, runs, weight):
        debug, stripped = self.path("debug"), self.path("stripped")
        subprocess.run(["objcopy", "--only-keep-debug", program, debug], check=False)
        subprocess.run(["objcopy", "-R", ".note.stapsdt", "-g", program, stripped], check=False)
        if os.path.exists(debug) and os.path.exists(stripped):
            out, _ = self.rewrite(["fix", "--from-debug", debug], stripped)
            if out:
                yield Result(name, "from-debug", stripped, out, runs, debug, weight)
        if not indexed:
            return
        stripped = self.path("no-notes")
        subprocess.run(["objcopy", "-R", ".note.stapsdt", indexed, stripped], check=False)
        if os.path.exists(stripped):
            out, _ = self.rewrite(["fix"], stripped)
            if out:
                yield Result(name, "from-index", stripped, out, runs, weight=weight)

    def build(self, name):
        compiler, options = BUILDS[name]
        out = self.path("subject")
        done = subprocess.run([compiler, *options.split(), SUBJECT, "-o", out], check=False,
                              capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{name} cannot be built: {done.stderr}")
        return out

    def legacy(self, name, options):
        out = self.path("legacy")
        sources = [os.path.join(FIXTURES, f) for f in ("legacy.c", "legacy_main.c", "legacy_end.c")]
        done = subprocess.run(["gcc", "-O2", "-DLEGACY_FORM=2", "-DLEGACY_COUNTERS=1", *options,
                               *sources, "-o", out], check=False, capture_output=True, text=True)
        if done.returncode:
            return
        made, _ = self.rewrite(["fix"], out)
        if made:
            yield Result(name, "upgrade", out, made, ["FILE"])


def all_results(maker, fixtures, long_run):
    for name in BUILDS if long_run else SHORT:
        yield from maker.results_of(name, maker.build(name), ["FILE"])
    yield from maker.legacy("legacy bfd", ["-fuse-ld=bfd"])
    if not long_run:
        return
    yield from maker.legacy("legacy lld", ["-fuse-ld=lld"])
    yield from maker.legacy("legacy no-pie", ["-no-pie", "-fno-pie"])
    for name in FIXTURE_NAMES if fixtures else []:
        path = os.path.join(fixtures, name)
        if os.path.exists(path):
            native = name.startswith(("gcc/", "clang/"))
            runs = [maker.host, "FILE"] if "/shared/" in name else ["FILE"]
            yield from maker.results_of(name, path, runs if native else [], 0.5)
    for path in LIBRARIES:
        if os.path.exists(path):
            yield from maker.results_of(os.path.basename(path), os.path.realpath(path),
                                        [maker.host, "FILE"], 0.05)


class Round:
    """Changes results and judges what is accepted."""

    def __init__(self, tools, folder, options):
        self.tools, self.folder, self.options = tools, folder, options
        self.counts = collections.defaultdict(lambda: [0, 0, 0])  # (command, kind)
        self.false = collections.defaultdict(list)
        self.harmless = collections.Counter()
        self.refused = []

    def of_result(self, result, number):
        out = os.path.join(self.folder, "accepted")
        shutil.rmtree(out, ignore_errors=True)
        os.mkdir(out)
        count = max(1, int(self.options.count * result.weight))
        command = command_of(result)
        done = subprocess.run(
            [self.tools["mutate"], command, str(self.options.seed + number), str(count), out,
             result.before, result.after, *([result.source] if result.source else [])],
            capture_output=True, text=True, check=False)
        if done.returncode:
            self.refused.append(f"{result.name}, {result.command}: {done.stderr.strip()}")
            return
        for line in done.stdout.splitlines():
            kind, made, accepted = line.split("\t")
            entry = self.counts[result.command, kind]
            entry[0] += int(made)
            entry[1] += int(accepted)
        self.judge(result, out)

    def judge(self, result, out):
        with open(os.path.join(out, "accepted"), encoding="latin-1") as file:
            lines = [line.rstrip("\n").split("\t", 2) for line in file]
        if not lines:
            return
        undo = UNDO.get(result.command)
        static = b"interpreter" not in run("readelf", "-lW", result.after)[1]
        judge = None
        if command_of(result) != "gives-back":
            preload = bool(result.runs) and (not static or len(result.runs) > 1)
            judge = Judge(self.tools, self.folder, result, preload, undo)
        looked = collections.Counter()
        for name, kind, told in lines:
            path = os.path.join(out, name)
            what, more = ("record", "other bytes than the original") if judge is None else \
                judge.judge(path, looked[kind] == 0)
            if what == "harmless":
                looked[kind] += 1
                self.harmless[result.command, kind, more] += 1
            else:
                self.counts[result.command, kind][2] += 1
                self.false[result.command, kind, what].append((result.name, told, more))
                self.keep(result, path, kind, what)
            os.unlink(path)

    def keep(self, result, path, kind, what):
        if not self.options.keep:
            return
        name = re.sub(r"\W+", "-", f"{result.command} {kind} {what}")
        folder = os.path.join(self.options.keep, name)
        if os.path.exists(folder):
            return
        os.makedirs(folder)
        shutil.copy(result.before, os.path.join(folder, "before"))
        shutil.copy(result.after, os.path.join(folder, "true"))
        shutil.copy(path, os.path.join(folder, "forged"))

    def write(self, seconds):
        """After each result, so that a run that is cut short leaves what it found."""
        if self.options.findings:
            self.write_findings(self.options.findings)
        if self.options.record:
            self.write_record(self.options.record, seconds)

    def write_findings(self, path):
        with open(path, "w", encoding="utf-8") as file:
            for (command, kind, what), cases in sorted(self.false.items()):
                file.write(f"{command}: {kind}: {what} ({len(cases)})\n")
                for name, told, more in cases[:4]:
                    file.write(f"    {name}: {told}\n        {more}\n")

    def write_record(self, path, seconds):
        made, accepted, false = (sum(entry[i] for entry in self.counts.values()) for i in range(3))
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"{made} changes of results with seed {self.options.seed}, {accepted} accepted, "
                       f"{false} of them with another effect; {seconds / 60:.0f} minutes.\n\n")
            for title, key in (("command", 0), ("kind", 1)):
                sums = collections.defaultdict(lambda: [0, 0, 0])
                for names, entry in self.counts.items():
                    for i in range(3):
                        sums[names[key]][i] += entry[i]
                file.write(f"| {title} | changes | accepted | other effect |\n|---|---|---|---|\n")
                for name, entry in sorted(sums.items()):
                    file.write(f"| {name} | {entry[0]} | {entry[1]} | {entry[2]} |\n")
                file.write("\n")
            file.write("| command | kind | harmless by | accepted |\n|---|---|---|---|\n")
            for (command, kind, rule), count in sorted(self.harmless.items()):
                file.write(f"| {command} | {kind} | {rule} | {count} |\n")


def make_tools(options, folder):
    tools = {"reprobe": options.reprobe, "mutate": options.mutate, "effect": options.effect,
             "lines": os.path.join(folder, "lines"), "preloaded": os.path.join(folder, "preloaded.so")}
    with open(tools["lines"], "w", encoding="ascii") as file:
        file.write("once\n")
    host = os.path.join(folder, "host")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", os.path.join(HERE, "preloaded.c"), "-o",
                    tools["preloaded"], "-lgcc_s"], check=True)
    subprocess.run(["gcc", "-O2", os.path.join(HERE, "host.c"), "-o", host], check=True)
    return tools, host


def main():
    parser = argparse.ArgumentParser()
    for name in ("reprobe", "mutate", "effect"):
        parser.add_argument(name, type=os.path.abspath)
    parser.add_argument("--fixtures")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--findings")
    parser.add_argument("--record")
    parser.add_argument("--keep")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    long_run = options.count > 0
    options.count = options.count or 150
    begun = time.time()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        tools, host = make_tools(options, folder)
        turns = Round(tools, folder, options)
        for number, result in enumerate(all_results(Maker(options.reprobe, folder, host),
                                                    options.fixtures, long_run)):
            if re.search(options.only, f"{result.name} {result.command}"):
                turns.of_result(result, 1000 * number)
                turns.write(time.time() - begun)
                if long_run:
                    print(f"{time.time() - begun:6.0f} s {result.name}: {result.command}", flush=True)
    made, accepted, false = (sum(entry[i] for entry in turns.counts.values()) for i in range(3))
    for (command, kind, what), cases in sorted(turns.false.items()):
        name, told, more = cases[0]
        print(f"FAILED: {command}: {kind}: accepted {len(cases)} times with another effect ({what}); "
              f"{name}: {told}: {more}")
    for line in turns.refused:
        print(f"FAILED: {line}")
    print(f"{made} changes, {accepted} accepted, {false} of them with another effect")
    return 1 if false or turns.refused or not made else 0


if __name__ == "__main__":
    sys.exit(main())
