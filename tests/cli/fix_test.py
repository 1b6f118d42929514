"""Repairs of real programs: each still runs and prints the same, eu-elflint reports nothing new,
verify proves it, a second run changes nothing, and whatever strips or copies the result leaves a
program that runs with the probes where they were."""

import json
import re
import shutil
import subprocess
import sys

from command import Tests, read, write
from elf_file import Note, golden

t = Tests(sys.argv[1])

SOURCE = r"""
#define _SDT_HAS_SEMAPHORES 1
#include <stdio.h>
#include <sys/sdt.h>
#define COUNTER __extension__ volatile unsigned short __attribute__((section(SECTION)))
long before[5] = {1, 2, 3};
COUNTER app_one_semaphore, app_two_semaphore;
long after[5] = {4, 5, 6};
int zeros[7];
__attribute__((noinline)) int one(int a) { STAP_PROBE1(app, one, a); return a + 1; }
__attribute__((noinline)) int two(int a) { STAP_PROBE1(app, two, a); return a * 3; }
int main(int argc, char **argv) {
  printf("%d %d %ld %d %d\n", one(argc), two(argc), before[argc] + after[argc], zeros[argc],
         app_two_semaphore);
  return 0;
}
"""
# A linker, and what each of these does to a file.
LINKERS = {"bfd": "ld.bfd", "gold": "ld.gold", "mold": "mold", "lld": "ld.lld"}
COPIES = [["strip", "-o", "copy"], ["strip", "-g", "-o", "copy"], ["objcopy", "{}", "copy"],
          ["eu-strip", "-o", "copy"], ["llvm-strip", "-g", "-o", "copy"],
          ["llvm-strip", "--strip-all-gnu", "-o", "copy"], ["llvm-objcopy", "{}", "copy"]]
VERSIONED = {"ld.lld": ["ld.lld-19", "ld.lld-14"], "llvm-strip": ["llvm-strip-19", "llvm-strip-14"],
             "llvm-objcopy": ["llvm-objcopy-19", "llvm-objcopy-14"]}


def program(name):
    return next(filter(None, map(shutil.which, [name] + VERSIONED.get(name, []))), None)


def output(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    return done.returncode, done.stdout.decode(errors="replace")


def link(linker, path, *options):
    tool = program(LINKERS[linker])
    if not tool or not program("gcc"):
        return False
    use = ["-B", "tools", f"-fuse-ld={linker}"]
    if linker == "lld":
        subprocess.run(["mkdir", "-p", "tools"], check=True)
        subprocess.run(["ln", "-sf", tool, "tools/ld.lld"], check=True)
    code, text = output("gcc", "-O2", "-w", *use, "-Wl,--build-id=sha1", "app.c", "-o", path, *options)
    return t.check(f"{path} links", code == 0, text)


def sections(path):
    rows = {}
    for line in output("readelf", "-SW", path)[1].splitlines():
        found = re.match(r" *\[ *(\d+)\] (\S+) +(\S+) +([0-9a-f]+) ([0-9a-f]+) ([0-9a-f]+)", line)
        if found:
            rows[found[2]] = dict(index=int(found[1]), type=found[3], addr=int(found[4], 16),
                                  offset=int(found[5], 16), size=int(found[6], 16))
    return rows


def distance(section):
    return section["addr"] - section["offset"]


def probes(path):
    listed = json.loads(t.run("list", "--json", path).out)["files"][0]["probes"]
    return [(p["name"], p["site"], p.get("semaphore"), p["verdict"]) for p in listed]


def lint(path):
    """eu-elflint's complaints without the sections' numbers."""
    return sorted(re.sub(r"\[ *\d+\]", "[]", line)
                  for line in output("eu-elflint", "--gnu", path)[1].splitlines())


def reads_right(what, path):
    """perf and bcc compute by the distances of these headers."""
    found = sections(path)
    t.same(f"{what}: the base has the code's distance", distance(found[".text"]),
           distance(found[".stapsdt.base"]))
    t.same(f"{what}: .probes has the data's distance", distance(found[".data"]),
           distance(found[".probes"]))


def check_repair(name, rules):
    fixed = name + ".fixed"
    plan = json.loads(t.run("fix", "--json", name, "-o", fixed).out)
    t.same(f"{name}: repairs", sorted(rules), sorted({r["rule"] for r in plan["repairs"]}))
    t.same(f"{name}: refused", [], plan["refused"])
    t.same(f"{name}: verify", 0, t.run("verify", name, fixed).code)
    t.same(f"{name}: the second run", read(fixed), (t.run("fix", fixed), read(fixed))[1])
    t.same(f"{name}: prints the same", output(f"./{name}"), output(f"./{fixed}"))
    t.same(f"{name}: probes", probes(name), probes(fixed))
    reads_right(name, fixed)
    if program("eu-elflint"):
        t.same(f"{name}: eu-elflint", [], sorted(set(lint(fixed)) - set(lint(name))))
    for tool, *arguments in COPIES:
        if not program(tool):
            continue
        given = [fixed if a == "{}" else a for a in arguments]
        command = [program(tool), *given] + ([] if "{}" in arguments else [fixed])
        what = f"{name}: {tool} {' '.join(arguments)}"
        code, text = output(*command)
        if not t.check(what, code == 0, text):
            continue
        t.same(f"{what} prints the same", output(f"./{name}"), output("./copy"))
        t.same(f"{what}: probes", probes(fixed), probes("copy"))
        reads_right(what, "copy")


if not program("gcc") or output("gcc", "-E", "-include", "sys/sdt.h", "-xc", "/dev/null")[0] != 0:
    print("SKIP: no gcc with sys/sdt.h")
    sys.exit(77)

write("app.c", SOURCE.encode())
for linker in LINKERS:
    # Where address and offset of read-only data and code differ, perf needs the base moved.
    packed = linker in ("lld", "mold")
    moved = ["base-delta"] if packed else []
    # They also let RELRO and the data share a page of the file.
    page = ["semaphore-relro-page"] if packed else []
    if link(linker, f"{linker}-probes", '-DSECTION=".probes"'):
        check_repair(f"{linker}-probes", moved + page)
    if link(linker, f"{linker}-data", '-DSECTION=".data"'):
        check_repair(f"{linker}-data", moved + page + ["semaphore-section"])
    if linker != "bfd" and link(linker, f"{linker}-gc", '-DSECTION=".probes"',
                                "-ffunction-sections", "-Wl,--gc-sections"):
        check_repair(f"{linker}-gc", ["base-missing"] + page)

# --- Which repairs are made --------------------------------------------------------------------

def notes(elf):
    return [Note("one", elf.sites["one"], elf.base, arguments="8@0x10(%rbp)"),
            Note("three", elf.sites["three"], elf.base, 2)]


write("faults", bytes(golden(notes=notes).data), 0o755)


def rules_of(*options):
    plan = json.loads(t.run("fix", "--json", "--dry-run", *options, "faults").out)
    return [(r["rule"], r["name"]) for r in plan["repairs"]]


SEMAPHORE, SPELLING = ("semaphore-dangling", "three"), ("arguments", "one")
t.same("default", [SEMAPHORE], rules_of())
t.same("--respell", [SPELLING, SEMAPHORE], rules_of("--respell"))
t.same("--skip", [SPELLING], rules_of("--respell", "--skip", "semaphore-dangling"))
t.same("--only", [SPELLING], rules_of("--respell", "--only", "arguments,note-align"))
t.same("--only twice", [SPELLING, SEMAPHORE],
       rules_of("--respell", "--only", "arguments", "--only", "semaphore-dangling"))
t.same("--only of another", [], rules_of("--only", "base-delta"))
dry = t.run("fix", "--dry-run", "--respell", "faults")
t.check("the plan as text", 'repair arguments: demo:one at ' in dry.out and
        '"8@0x10(%rbp)" becomes "8@16(%rbp)"' in dry.out, dry.out)
unknown = t.run("fix", "--only", "no-such", "faults")
t.same("an unknown repair", 2, unknown.code)
t.check("an unknown repair: the names", "no-such" in unknown.err and "base-delta" in unknown.err and
        "section-order" in unknown.err, unknown.err)
t.run("fix", "--respell", "faults", "-o", "respelled")
t.same("verify --respell", 0, t.run("verify", "--respell", "faults", "respelled").code)
t.same("verify without it", 1, t.run("verify", "faults", "respelled").code)
t.finish()
