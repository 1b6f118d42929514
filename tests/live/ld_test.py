#!/usr/bin/env python3
"""ld_test.py REPROBE FIXTURES: links through `reprobe ld`.

Every linker and every case of the fixtures, through gcc -B, through clang --ld-path and through
PATH: the link fails where the plain one does, and else its output has exactly the live notes. What is
live is the symbol tables' word (truth.py), of the output here and of the plain link in FIXTURES.
Then what a linker's stand-in must leave alone, and what becomes of an output whose step fails."""
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import truth
from checks import Checks

LINKERS = {"bfd": "ld.bfd", "gold": "ld.gold", "lld-14": "ld.lld-14", "lld-19": "ld.lld-19",
           "mold": "ld.mold"}
GC = ["-Wl,--gc-sections"]
# The fixtures' scenario: its objects and the linker's options.
CASES = {
    "plain": (["gc"], []), "gc": (["gc"], GC), "gc-o": (["gc-o"], GC),
    "nofs": (["plain", "dead"], GC), "deep": (["deep_live", "deep_dead"], GC),
    "collide": (["collide"], GC),
    "comdat": (["comdat_a-none", "comdat_b-none"], []),
    "comdat-gc": (["comdat_a-none", "comdat_b-none"], GC),
    "comdat-group": (["comdat_a-group", "comdat_b-group"], []),
    "comdat-order": (["comdat_a-order", "comdat_b-order"], []),
    "comdat-order-gc": (["comdat_a-order", "comdat_b-order"], GC),
    "comdat-ordergroup": (["comdat_a-ordergroup", "comdat_b-ordergroup"], []),
    "kept": (["kept_a", "kept_b"], []), "weak": (["weak_a", "weak_b"], []),
    "icf": (["icf"], ["-Wl,--icf=all"]), "icf-o": (["icf-o"], ["-Wl,--icf=all"] + GC),
    "sema": (["sema"], GC), "sema-nogc": (["sema"], []), "sdt": (["sdt", "sdt_a", "sdt_b"], GC),
    "mass": (["mass_live", "mass_dead"], GC), "demo": (["demo"], GC),
}
MODES = {"pie": ("pie", ["-pie"]), "shared": ("pic", ["-shared"])}


def run(command, **options):
    environment = dict(os.environ, **options.pop("env", {}))
    environment = {k: v for k, v in environment.items() if v is not None}
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, env=environment, timeout=120,
                          encoding="utf-8", errors="replace", **options)


class Ways:
    """How a compiler comes to the linker: (toolchain of the fixtures, command, environment)."""

    def __init__(self, folder, here):
        self.folder = folder
        self.here = here
        for linker, program in LINKERS.items():
            if not linker.startswith("lld-"):
                continue
            # gcc knows lld by one name alone.
            os.makedirs(f"{here}/{linker}", exist_ok=True)
            os.symlink(shutil.which(program), f"{here}/{linker}/ld.lld")

    def of(self, linker):
        name = linker.split("-")[0]
        behind = f"{self.here}/{linker}:" if name == "lld" else ""
        path = behind + os.environ["PATH"]
        yield "-B", "gcc", ["gcc", f"-B{self.folder}", f"-fuse-ld={name}"], {"PATH": path}
        yield ("--ld-path", "clang", ["clang-14", f"--ld-path={self.folder}/ld.{name}"],
               {"PATH": path})
        yield "PATH", "gcc", ["gcc", f"-fuse-ld={name}"], {"PATH": f"{self.folder}:{path}"}


def sites(file, statuses):
    return Counter((note.provider, note.name, note.address) for note in file.notes
                   if note.status in statuses)


def names(places):
    return Counter((provider, name) for provider, name, _ in places)


def check_matrix(checks, fixtures, ways, here):
    linked = []  # what, output, manifest's binary
    for linker, program in LINKERS.items():
        if not shutil.which(program):
            print(f"no {program}: not tried")
            continue
        for mode, (kind, options) in MODES.items():
            for case, (units, more) in CASES.items():
                if case == "demo" and mode != "pie":
                    continue
                for way, toolchain, command, environment in ways.of(linker):
                    # A shared library differs by nothing but -shared: one way does.
                    if mode == "shared" and way != "-B":
                        continue
                    unit_kind = "pic" if case == "mass" else kind
                    objects = [f"{fixtures}/obj/{toolchain}-{unit_kind}/{u}.o" for u in units]
                    if mode == "pie" and case != "demo":
                        objects.insert(0, f"{fixtures}/obj/{toolchain}-{kind}/start.o")
                    plain = f"{fixtures}/{toolchain}/{linker}/{mode}/{case}"
                    with open(plain + ".json", encoding="utf-8") as text:
                        refused = json.load(text)["refused"]
                    output = f"{here}/{linker}.{mode}.{case}.{way}"
                    checks.name = f"{linker} {mode} {case} through {way}"
                    done = run([*command, *options, *more, *objects, "-o", output],
                               env=environment)
                    checks.equal("fails as the plain link does", done.returncode != 0, refused)
                    checks.equal("leaves a file", os.path.exists(output), not refused)
                    if done.returncode == 0:
                        checks.true("says nothing of reprobe's", "reprobe" not in done.stderr,
                                    done.stderr)
                        linked.append((checks.name, output, plain, case))
    paths = [output for _, output, _, _ in linked] + [plain for _, _, plain, _ in linked]
    files, _ = truth.load(paths)
    by_path = dict(zip(paths, files))
    for what, output, plain, case in linked:
        checks.name = what
        after, before = by_path[output], by_path[plain]
        for file in (after, before):
            truth.judge(file, None, case == "demo")
        # A note of "kept" names FUNCTION + offset; its COMDAT copy was dropped, and it leads into the
        # copy that was kept. The objects do not prove that, and it stays as ambiguous.
        dead = Counter({("app", "kept"): 1}) if case == "kept" else Counter()
        checks.equal("has no dead note", names(sites(after, {"dead"})), dead)
        checks.equal("has a note for each live site", [] if case == "icf-o" else
                     truth.orphan_sites(after), [])
        # Of two notes with one site one may go, and what is added to the link moves the code: the
        # sites of each name are as many.
        checks.equal("has each live note", names(set(sites(after, {"live", "twin"}))),
                     names(set(sites(before, {"live", "twin"}))))
    return len(linked)


SOURCE = """
#include <sys/sdt.h>
#include <stdio.h>
#ifndef NO_MAIN
int main(int argc, char** argv) { STAP_PROBE1(here, live, argc); puts("ran"); return 0; }
#endif
void dropped(int x) { STAP_PROBE1(here, dropped, x); }
"""


def names_of(path):
    notes = run(["readelf", "-nW", path]).stdout
    return sorted(line.split()[1] for line in notes.splitlines() if line.strip().startswith("Name:"))


def read(path):
    with open(path, "rb") as file:
        return file.read()


def check_pass_through(checks, reprobe, folder):
    """What belongs to the linker, and what is no program."""
    lld = shutil.which("ld.lld")
    for option in ("--version", "-v", "--help", "--print-nothing-known"):
        checks.name = option
        plain, through = run([lld, option]), run([f"{folder}/ld.lld", option])
        checks.equal("exit code", through.returncode, plain.returncode)
        checks.equal("stdout", through.stdout, plain.stdout)
        checks.equal("stderr", through.stderr.replace(f"{folder}/", ""),
                     plain.stderr.replace(os.path.dirname(lld) + "/", ""))
    gcc = ["gcc", f"-B{folder}", "-fuse-ld=lld", "-Wl,--gc-sections"]
    plain = ["gcc", "-fuse-ld=lld", "-Wl,--gc-sections"]
    checks.name = "-r"
    run(["gcc", "-fuse-ld=lld", "-r", "a.o", "-o", "plain.o"])
    checks.equal("exit", run(["gcc", f"-B{folder}", "-fuse-ld=lld", "-r", "a.o", "-o",
                              "through.o"]).returncode, 0)
    checks.true("same bytes", read("plain.o") == read("through.o"))
    checks.name = "REPROBE_STEPS empty"
    run([*plain, "a.o", "-o", "plain"])
    run([*gcc, "a.o", "-o", "through"], env={"REPROBE_STEPS": ""})
    checks.true("same bytes", read("plain") == read("through"))
    checks.name = "gold --incremental"
    gold = ["-Wl,--incremental-full", "a.o", "-o"]
    if run(["gcc", "-fuse-ld=gold", *gold, "plain"]).returncode == 0:
        run(["gcc", f"-B{folder}", "-fuse-ld=gold", *gold, "through"],
            env={"REPROBE_STEPS": "fix,relativize"})
        checks.equal("no index", names_of("through"), names_of("plain"))
        checks.true("the size is the plain one's",
                    os.path.getsize("plain") == os.path.getsize("through"))
    checks.name = "a script's message"
    done, bare = run([*gcc, "missing.o", "-o", "none"]), run([*plain, "missing.o", "-o", "none"])
    checks.equal("exit", done.returncode, bare.returncode)
    checks.equal("stderr", done.stderr.replace(f"{folder}/", ""), bare.stderr)


def check_output(checks, reprobe, folder):
    """-o in each of its forms, and response files."""
    crt = run(["gcc", "-fuse-ld=lld", "-Wl,--gc-sections", "-###", "a.o", "-o", "OUTPUT"])
    line = next(l for l in crt.stderr.splitlines() if "/collect2 " in l)
    words = shlex.split(line)[1:]
    words = [w for w in words if not w.startswith("-plugin") and "liblto" not in w
             and "lto-wrapper" not in w and not w.startswith("-fuse-ld")]
    at = words.index("-o")
    words = words[:at] + words[at + 2:]

    def linked(what, output, *more, arguments=None, cwd="."):
        checks.name = what
        if os.path.exists(output):
            os.remove(output)
        done = run([f"{folder}/ld.lld", *(words if arguments is None else arguments), *more])
        checks.equal("exit", (done.returncode, done.stderr), (0, ""))
        checks.equal("notes", names_of(output), ["live"])

    linked("no -o", "a.out")
    linked("-o X", "one", "-o", "one")
    linked("-oX", "two", "-otwo")
    linked("--output=X", "three", "--output=three")
    linked("--output X", "four", "--output", "four")
    linked("the last -o counts", "five", "-o", "not-this", "-o", "five")
    linked("-mllvm's value is no -o", "six", "-o", "six", "-mllvm", "-opt-bisect-limit=-1")
    linked("-omagic is a name", "magic", "-omagic")
    linked("a folder and blanks", "sub dir/x y", "-o", "sub dir/x y")
    with open("inner.rsp", "w", encoding="utf-8") as file:
        file.write("-o 'in \"a\" file'\n")
    with open("outer.rsp", "w", encoding="utf-8") as file:
        file.write(" ".join(words) + "\n\t@inner.rsp")
    linked("response files", 'in "a" file', arguments=["@outer.rsp"])
    checks.name = "REPROBE_LD and no linker named"
    done = run([reprobe, "ld", "fix", "--", *words, "-o", "seven"], env={"REPROBE_LD": "ld.lld"})
    checks.equal("exit", (done.returncode, done.stderr), (0, ""))
    checks.equal("notes", names_of("seven"), ["live"])
    checks.equal("it runs", run(["./seven"]).stdout, "ran\n")


def check_steps(checks, reprobe, folder):
    gcc = ["gcc", f"-B{folder}", "-fuse-ld=lld", "-Wl,--gc-sections", "a.o", "-o"]
    checks.name = "a step that fails"
    done = run([*gcc, "failed"], env={"REPROBE_STEPS": "fix,audit --fail-on=warning"})
    checks.true("fails the link", done.returncode != 0)
    checks.true("is named", "the step 'audit --fail-on=warning' failed with exit code 1; the linked "
                            "file was removed" in done.stderr, done.stderr)
    checks.true("and what it found", "build-id" in done.stderr, done.stderr)
    checks.true("no file is left", not os.path.exists("failed"))
    checks.name = "steps with options"
    done = run([*gcc, "steps"],
               env={"REPROBE_STEPS": "fix --only dangling,base-missing, relativize, sled --kind=nop10"
                                     " -v ,audit"})
    checks.equal("exit", done.returncode, 0)
    said = run([reprobe, "list", "steps"]).stdout
    checks.true("a sled", "sled-nop10" in said, said)
    checks.true("an index", ".note.reprobe" in run(["readelf", "-SW", "steps"]).stdout)
    checks.equal("it runs", run(["./steps"]).stdout, "ran\n")
    checks.name = "no such step"
    done = run([*gcc, "none"], env={"REPROBE_STEPS": "strip,fix"})
    checks.true("fails the link", done.returncode != 0 and not os.path.exists("none"))
    checks.true("is named", "no such step: strip" in done.stderr, done.stderr)
    checks.name = "a program without probes"
    done = run(["gcc", f"-B{folder}", "empty.c", "-o", "empty"], env={"REPROBE_STEPS": "fix,sled,audit"})
    checks.equal("links", (done.returncode, done.stderr), (0, ""))
    checks.name = "the base with --gc-sections"
    for linker in ("lld", "mold"):
        run(["gcc", f"-B{folder}", f"-fuse-ld={linker}", "-Wl,--gc-sections", "a.o", "-o", "base"],
            env={"REPROBE_STEPS": "relativize"})
        checks.true(f"{linker} keeps it from the start",
                    ".stapsdt.base" in run(["readelf", "-SW", "base"]).stdout)
    checks.name = "link-time optimisation"
    for compiler, options in (("gcc", ["-flto", "-fuse-ld=bfd"]), ("gcc", ["-flto", "-fuse-ld=mold"]),
                              ("clang-14", ["-flto", "-fuse-ld=lld"])):
        done = run([compiler, f"-B{folder}", "-O2", *options, "-ffunction-sections",
                    "-Wl,--gc-sections", "a.c", "-o", "lto"])
        checks.equal(f"{compiler} {options} exit", (done.returncode, done.stderr), (0, ""))
        checks.equal(f"{compiler} {options} runs", run(["./lto"]).stdout, "ran\n")
        checks.true(f"{compiler} {options} live", "live" in names_of("lto"))


def check_finding(checks, reprobe, folder, here):
    """The linker behind: never reprobe itself, under whatever name and copy."""
    checks.name = "never itself"
    done = run([f"{folder}/ld.lld", "--version"], env={"PATH": folder})
    checks.equal("nothing behind", done.returncode, 2)
    checks.true("says so", "no ld.lld behind reprobe in PATH" in done.stderr, done.stderr)
    done = run([f"{folder}/ld", "--version"], env={"REPROBE_LD": f"{folder}/ld.bfd"})
    checks.equal("REPROBE_LD is itself", done.returncode, 2)
    os.makedirs("copy", exist_ok=True)
    shutil.copy(reprobe, "copy/ld.lld")
    done = run([f"{folder}/ld.lld", "--version"], env={"PATH": f"{folder}:{here}/copy:/usr/bin"})
    checks.true("two copies do not ask each other", "LLD" in done.stdout, done.stderr)
    done = run([f"{folder}/ld.lld", "--version"], env={"PATH": f"{folder}:{here}/copy"})
    checks.equal("nothing behind two copies", done.returncode, 2)
    checks.name = "--make-dir"
    checks.equal("exit", run([reprobe, "ld", "--make-dir", "made"]).returncode, 0)
    checks.equal("names", sorted(os.listdir("made")),
                 ["ld", "ld.bfd", "ld.gold", "ld.lld", "ld.mold", "ld.wild"])
    checks.name = "reprobe-cc"
    compiler = os.path.join(os.path.dirname(folder), "reprobe-cc")
    done = run([compiler, "-fuse-ld=lld", "-Wl,--gc-sections", "a.o", "-o", "by-cc"])
    checks.equal("links", (done.returncode, done.stderr), (0, ""))
    checks.equal("notes", names_of("by-cc"), ["live"])


def check_end(checks, folder, here):
    """A linker that is killed, one that kills, and links side by side."""
    os.makedirs("bad", exist_ok=True)
    for name, text in (("ld.lld", "kill -SEGV $$"), ("ld.gold", "exit 77"),
                       ("ld.bfd", "echo started >started; exec sleep 60")):
        with open(f"bad/{name}", "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\n{text}\n")
        os.chmod(f"bad/{name}", 0o755)
    path = {"PATH": f"{here}/bad:{os.environ['PATH']}"}
    checks.name = "the linker's end"
    checks.equal("its signal", run([f"{folder}/ld.lld", "x.o"], env=path).returncode,
                 -signal.SIGSEGV)
    checks.equal("its exit code", run([f"{folder}/ld.gold", "x.o"], env=path).returncode, 77)
    waiting = subprocess.Popen([f"{folder}/ld.bfd", "x.o"], env=dict(os.environ, **path))
    while not os.path.exists("started"):
        time.sleep(0.01)
    waiting.terminate()
    checks.equal("a signal to reprobe ends the linker", waiting.wait(60), -signal.SIGTERM)
    checks.name = "links side by side"
    before = set(os.listdir(here))
    with open("Makefile", "w", encoding="utf-8") as file:
        outputs = [f"p{i}" for i in range(12)]
        file.write(f"all: {' '.join(outputs)}\np%: a.o\n\tgcc -B{folder} -fuse-ld=lld "
                   "-Wl,--gc-sections a.o -o $@\n")
    done = run(["make", "-j8"])
    checks.equal("exit", (done.returncode, done.stderr), (0, ""))
    checks.equal("the same file each time", len({read(o) for o in outputs}), 1)
    checks.equal("nothing else is left", set(os.listdir(here)) - before - {"Makefile"}, set(outputs))


def main():
    reprobe, fixtures = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    for tool in ("gcc", "clang-14", "ld.lld", "ld.mold", "make", "readelf"):
        if not shutil.which(tool):
            print(f"SKIP: no {tool}")
            return 77
    folder = run([reprobe, "ld", "--dir"]).stdout.strip()
    for variable in ("REPROBE_STEPS", "REPROBE_LD", "COMPILER_PATH"):
        os.environ.pop(variable, None)
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="reprobe-ld-") as here:
        os.chdir(here)
        os.mkdir("sub dir")
        with open("a.c", "w", encoding="utf-8") as file:
            file.write(SOURCE)
        with open("empty.c", "w", encoding="utf-8") as file:
            file.write("int main(void) { return 0; }\n")
        run(["gcc", "-O2", "-ffunction-sections", "-c", "a.c", "-o", "a.o"])
        check_pass_through(checks, reprobe, folder)
        check_output(checks, reprobe, folder)
        check_steps(checks, reprobe, folder)
        check_finding(checks, reprobe, folder, here)
        check_end(checks, folder, here)
        links = check_matrix(checks, fixtures, Ways(folder, here), here)
        print(f"{links} links of the matrix")
        os.chdir("/")
    return checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
