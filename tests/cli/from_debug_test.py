#!/usr/bin/env python3
"""from_debug_test.py REPROBE: fix --from-debug brings back the notes that a strip deleted.

Programs are linked by gcc with each linker there is, stripped by each tool that deletes the notes,
and repaired from each kind of debug file. What must come out is what readelf, gdb, bpftrace and perf
said of the program before the strip; and it must still run and print the same.
"""

import json
import os
import re
import shutil
import subprocess
import sys

from command import Result, Tests, read, write

t = Tests(sys.argv[1])
SOURCE = r"""
#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>
#include <stdio.h>
#define COUNTER __attribute__((section(".probes"))) unsigned short
COUNTER demo_one_semaphore, demo_two_semaphore, demo_dead_semaphore;
__attribute__((noinline)) int work(int a) { STAP_PROBE1(demo, one, a); return a * 2; }
void never(void) { STAP_PROBE(demo, dead); }
int main(int argc, char** argv) {
  for (int i = 0; i < 3; ++i) printf("%d %d\n", work(argc + i), (int)demo_one_semaphore);
  STAP_PROBE2(demo, two, argc, argv);
  return 0;
}
"""
write("demo.c", SOURCE.encode())


def left_of(file):
    """What fix leaves of it; counters that share a page with RELRO are beyond repair."""
    said = t.run("fix", file)
    left = [line for line in said.err.splitlines()
            if "left as it is" in line and "semaphore-relro-page" not in line]
    return left if said.code in (0, 4) else [said.text()]


def run(*command, check=True, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if check and done.returncode != 0:
        print(" ".join(command), done.stderr, sep="\n")
        sys.exit(1)
    return done


def there(*names):
    return next((name for name in names if shutil.which(name)), None)


STRIP = there("llvm-strip-19", "llvm-strip-14", "llvm-strip")
OBJCOPY = there("llvm-objcopy-19", "llvm-objcopy-14", "llvm-objcopy")


# --- What other readers say -----------------------------------------------------------------------

def notes(path):
    """readelf's view: provider, name, location, base, semaphore, arguments."""
    text = run("readelf", "-nW", path).stdout
    return re.findall(r"Provider: (.*)\n\s*Name: (.*)\n\s*Location: (\w+), Base: (\w+), "
                      r"Semaphore: (\w+)\n\s*Arguments: ?(.*)", text)


def tracers(path):
    """What each tracer lists; None for a tracer that is not here."""
    shutil.copy(path, "traced")
    os.chmod("traced", 0o755)
    found = {}
    if shutil.which("gdb"):
        text = run("gdb", "-nx", "-batch", "-ex", "info probes stap", "traced").stdout
        found["gdb"] = sorted(re.findall(r"stap\s+(\S+)\s+(\S+)\s+(0x\w+)\s+(0x\w+)?", text))
    if shutil.which("bpftrace"):
        text = run("bpftrace", "-l", "usdt:./traced:*", check=False).stdout
        found["bpftrace"] = sorted(line.split(":")[-1] for line in text.split())
    if shutil.which("perf"):
        shutil.rmtree("perf", ignore_errors=True)
        base = ["perf", "--buildid-dir", os.path.abspath("perf")]
        if run(*base, "buildid-cache", "--add", os.path.abspath("traced"),
               check=False).returncode == 0:
            text = run(*base, "list", "sdt", check=False).stdout
            found["perf"] = sorted(re.findall(r"sdt_demo:\w+", text))
    return found


def output(path):
    return run(os.path.abspath(path)).stdout


# --- Every linker, strip and debug file -----------------------------------------------------------

LINKERS = {name: flags for name, flags in {
    "bfd": ["-fuse-ld=bfd"], "gold": ["-fuse-ld=gold"], "lld": ["-fuse-ld=lld"],
    "mold": ["-fuse-ld=mold"]}.items()
    if subprocess.run(["gcc", *flags, "-x", "c", "-", "-o", "try"], capture_output=True,
                      input=b"int main(void) { return 0; }").returncode == 0}


def strips(program):
    yield "remove", ["objcopy", "-R", ".note.stapsdt", program, "stripped"]
    yield "remove-both", ["objcopy", "-R", ".note.stapsdt", "-S", program, "stripped"]
    if STRIP:
        yield "llvm-strip", [STRIP, "--strip-all", program, "-o", "stripped"]
    if OBJCOPY:
        yield "non-alloc", [OBJCOPY, "--strip-non-alloc", program, "stripped"]
        yield "base-too", [OBJCOPY, "--strip-all", "-R", ".stapsdt.base", program, "stripped"]


def debug_files(program):
    yield "twin", ["cp", program, "debug"]
    yield "objcopy", ["objcopy", "--only-keep-debug", program, "debug"]
    if OBJCOPY:
        yield "llvm-objcopy", [OBJCOPY, "--only-keep-debug", program, "debug"]
    if shutil.which("eu-strip"):
        yield "eu-strip", ["eu-strip", "-f", "debug", "-o", "unused", program]


for linker, flags in LINKERS.items():
    for kind, more in {"pie": ["-pie"], "fixed": ["-no-pie"]}.items():
        program = f"demo-{linker}-{kind}"
        run("gcc", "-O2", "-g", "-fPIE" if kind == "pie" else "-fno-pie", "-ffunction-sections",
            "-Wl,--build-id=sha1", *flags, *more, "demo.c", "-o", program)
        expected, prints, seen = notes(program), output(program), tracers(program)
        # fix may move the base (of lld, which puts it into another segment than the code).
        t.check(f"{program}: fix", t.run("fix", program, "-o", "whole").code in (0, 4))
        fixed = notes("whole")
        t.check(f"{program}: readelf sees the probes", len(expected) == 3, str(expected))
        for strip, strip_command in strips(program):
            run(*strip_command)
            t.same(f"{program} {strip}: the notes are gone", [], notes("stripped"))
            for debug, debug_command in debug_files(program):
                what = f"{program} {strip} {debug}"
                run(*debug_command)
                found = t.run("fix", "--from-debug", "debug", "stripped", "-o", "out")
                t.check(f"{what}: exit", found.code == 0 and found.out == "" and
                        "brought back 3" in found.err, found.text())
                without_base = lambda all: [note[:3] + note[4:] for note in all]
                t.same(f"{what}: readelf", without_base(expected), without_base(notes("out")))
                if strip != "base-too":  # which is put back elsewhere
                    t.same(f"{what}: readelf, with the base", fixed, notes("out"))
                t.same(f"{what}: nothing is left to fix", [], left_of("out"))
                again = t.run("fix", "--from-debug", "debug", "out")
                t.check(f"{what}: a second time", again.code == 0 and
                        "nothing to change" in again.err, again.text())
                verified = t.run("verify", "--from-debug", "debug", "stripped", "out")
                t.same(f"{what}: verify", 0, verified.code)
            t.same(f"{program} {strip}: it prints the same", prints, output("out"))
            t.same(f"{program} {strip}: tracers list the same", seen, tracers("out"))

# A probe whose code the linker dropped is not brought back, and .stapsdt.base, which it dropped too,
# is put back. Without unwind tables only the debug file tells where functions start.
for linker in LINKERS:
    program = f"gc-{linker}"
    linked = run("gcc", "-O2", "-g", "-ffunction-sections", "-fno-asynchronous-unwind-tables",
                 "-Wl,--gc-sections,--build-id=sha1", *LINKERS[linker], "demo.c", "-o", program,
                 check=False)
    if linked.returncode != 0:  # gold refuses to link it
        continue
    run("objcopy", "-R", ".note.stapsdt", "-S", program, "stripped")
    run("objcopy", "--only-keep-debug", program, "debug")
    kept = re.search(r" T never$", run("nm", program).stdout, re.M)
    names = ["dead", "one", "two"] if kept else ["one", "two"]
    found = t.run("fix", "--from-debug", "debug", "stripped", "-o", "out")
    t.check(f"{program}: exit", found.code == 0 and
            f"brought back {len(names)} from debug, left out {3 - len(names)} dangling" in found.err,
            found.text())
    t.same(f"{program}: readelf", names, sorted(name for _, name, *_ in notes("out")))
    if shutil.which("gdb"):
        t.same(f"{program}: gdb", names, sorted(name for _, name, *_ in tracers("out")["gdb"]))
    t.same(f"{program}: nothing is left to fix", [], left_of("out"))
    t.same(f"{program}: verify", 0,
           t.run("verify", "--from-debug", "debug", "stripped", "out").code)
    t.same(f"{program}: it prints the same", output(program), output("out"))

# --- One program, closer --------------------------------------------------------------------------

program = sorted(p for p in os.listdir(".") if p.startswith("demo-"))[0]
run("objcopy", "-R", ".note.stapsdt", program, "stripped")
run("objcopy", "--only-keep-debug", program, "debug")
before = read("stripped")
shutil.copy("stripped", "place")
t.same("--dry-run: exit", 0, t.run("fix", "--dry-run", "--from-debug", "debug", "place").code)
t.same("--dry-run writes nothing", before, read("place"))
found = t.run("fix", "--json", "--from-debug", "debug", "place")
document = json.loads(found.out)
t.same("--json: exit", 0, found.code)
expected = [(p, n, f"{int(location, 16):#x}") for p, n, location, *_ in notes(program)]
t.same("--json: what came back", sorted(expected),
       sorted((r["provider"], r["name"], r["site"]) for r in document["repairs"]
              if r["rule"] == "notes-stripped"))
t.same("in place", notes(program), notes("place"))
t.check("only the header changes before the old end",
        all(a == b for a, b in zip(before[64:], read("place")[64:])))
found = t.run("verify", "stripped", "place")
t.check("verify asks where the notes come from", found.code == 1 and
        "verify-probe-added" in found.out, found.text())

# What does not belong together.
other = next(p for p in sorted(os.listdir("."), reverse=True) if p.startswith("demo-"))
ids = [re.search(r"Build ID: (\w+)", run("readelf", "-n", p).stdout).group(1)
       for p in [program, other]]
shutil.copy("stripped", "place")
found = t.run("fix", "--from-debug", other, "place")
t.check("another program's debug file", found.code == 4 and all(i in found.err for i in ids),
        found.text())
run("objcopy", "-R", ".note.gnu.build-id", "stripped", "anonymous")
found = t.run("fix", "--from-debug", "debug", "anonymous")
t.check("no build-id", found.code == 4 and "[build-id]" in found.err, found.text())
if STRIP:
    run(STRIP, "--strip-sections", program, "-o", "sectionless")
    found = t.run("fix", "--from-debug", "debug", "sectionless")
    t.check("no section headers", found.code == 4 and "no section headers" in found.err,
            found.text())
site = next(int(location, 16) for provider, name, location, *_ in notes(program) if name == "two")
offset = next(site - int(address, 16) + int(at, 16) for at, address, size in re.findall(
    r"LOAD\s+(0x\w+) (0x\w+) 0x\w+ (0x\w+)", run("readelf", "-lW", program).stdout)
    if int(address, 16) <= site < int(address, 16) + int(size, 16))
patched = bytearray(before)
t.same("the site holds a nop", 0x90, patched[offset])
patched[offset] = 0xcc
write("patched", bytes(patched), 0o755)
found = t.run("fix", "--from-debug", "debug", "patched", "-o", "out")
t.check("a site without its nop", found.code == 4 and "demo:two" in found.err, found.text())
t.same("... is left out, the others come back", ["dead", "one"],
       sorted(name for _, name, *_ in notes("out")))
found = t.run("verify", "--from-debug", "debug", "stripped", "patched")
t.same("verify of other code", 1, found.code)
t.same("the debug file is not there", 3,
       t.run("fix", "--from-debug", "missing", "place").code)
t.same("nothing was written", before, read("place"))
t.same("--from-debug and --remove-ambiguous", 2,
       t.run("fix", "--from-debug", "debug", "--remove-ambiguous", "place").code)

t.finish()
