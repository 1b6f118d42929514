#!/usr/bin/env python3
"""diff_test.py REPROBE: the probes of two files compared.

Text and JSON on files built by elf_file.py, where every note is known; then a program in two
versions, compiled by gcc at several levels, as object, program, debug file and for other machines,
where the answer follows from the source and is the same for all of them.
"""

import json
import os
import shutil
import subprocess
import sys

from command import Result, Tests, write
from elf_file import Note, golden

t = Tests(sys.argv[1])


def library(path, probes):
    """probes: (name, arguments, semaphore), on the golden file's three sites in turn."""
    def notes(elf):
        sites = list(elf.sites.values())
        return [Note(name, sites[i % 3] if site is None else site, elf.base,
                     elf.semaphore if semaphore else 0, arguments=arguments)
                for i, (name, arguments, semaphore, site) in enumerate(
                    (p + (None,))[:4] for p in probes)]
    write(path, golden(notes=notes).data)


# --- Text, JSON, exit -----------------------------------------------------------------------------

OLD = [("request", "8@%rdi", False), ("reply", "-4@%edi 8@%rsi", True), ("evict", "8@%rdi", False),
       ("state", "-4@%eax", False), ("mixed", "4@%eax", False), ("mixed", "8@%rax", False)]
NEW = [("state", "-4@(%rbx)", False), ("trim", "", True), ("trim", "", True),
       ("reply", "-8@%rdi", False), ("request", "8@%rax", False), ("request", "8@$0", False),
       ("mixed", "2@%ax", False), ("mixed", "8f@%xmm0", False)]
library("old", OLD)
library("new", NEW)
TEXT = """\
removed demo:evict
    - 1 site: u64
added demo:trim
    + 2 sites: no arguments, semaphore
changed demo:mixed: other arguments or semaphores at some sites
    - 1 site: u32
    - 1 site: u64
    + 1 site: u16
    + 1 site: f64
changed demo:reply: argument count 2 -> 1, semaphore removed
    - 1 site: s32 u64, semaphore
    + 1 site: s64
note demo:request: 1 site -> 2 sites, each with the same arguments as before
1 removed, 1 added, 2 changed, 2 the same
"""
SAME = "0 removed, 0 added, 0 changed, 5 the same\n"
t.same("differences", Result(1, TEXT, ""), t.run("diff", "old", "new"))
t.same("-q", Result(1, TEXT, ""), t.run("diff", "-q", "old", "new"))
t.same("the same file", Result(0, SAME, ""), t.run("diff", "old", "old"))
t.same("-p", Result(1, "removed demo:evict\n    - 1 site: u64\n"
                    "1 removed, 0 added, 0 changed, 1 the same\n", ""),
       t.run("diff", "-p", "demo:evict", "-p", "demo:state", "old", "new"))
t.same("a changed number of sites is no difference", Result(
    0, "note demo:request: 1 site -> 2 sites, each with the same arguments as before\n"
    "0 removed, 0 added, 0 changed, 2 the same\n", ""),
    t.run("diff", "-p", "demo:request", "-p", "demo:state", "old", "new"))
u64 = {"size": 8, "type": "u64"}
site = lambda count, semaphore, *arguments: {"sites": count, "arguments": list(arguments),
                                             "semaphore": semaphore}
probe = lambda name, **more: {"provider": "demo", "name": name, **more}
t.same("--json", {
    "schema": "reprobe.diff/1", "old": "old", "new": "new",
    "removed": [probe("evict", old=[site(1, False, u64)])],
    "added": [probe("trim", new=[site(2, True)])],
    "changed": [
        probe("mixed", old=[site(1, False, {"size": 4, "type": "u32"}), site(1, False, u64)],
              new=[site(1, False, {"size": 2, "type": "u16"}),
                   site(1, False, {"size": 8, "type": "f64"})],
              changes=[{"what": "signatures",
                        "text": "other arguments or semaphores at some sites"}]),
        probe("reply", old=[site(1, True, {"size": -4, "type": "s32"}, u64)],
              new=[site(1, False, {"size": -8, "type": "s64"})],
              changes=[{"what": "argument_count", "text": "argument count 2 -> 1"},
                       {"what": "semaphore", "text": "semaphore removed"}])],
    "site_count": [probe("request", old=[site(1, False, u64)], new=[site(2, False, u64)])],
    "same": 2}, json.loads(t.run("diff", "--json", "old", "new").out))
t.same("--json: exit", 1, t.run("diff", "--json", "old", "new").code)
t.same("--json of the same: exit", 0, t.run("diff", "--json", "old", "old").code)

library("dead", OLD[:2] + [("evict", "8@%rdi", False, 0x10), ("gone", "", False, 0x20)])
library("alive", OLD[:2])
t.same("dangling probes are left out", Result(0, "0 removed, 0 added, 0 changed, 2 the same\n",
                                              "reprobe: dead: 2 dangling left out\n"),
       t.run("diff", "dead", "alive"))
found = t.run("diff", "old", "dead", "-p", "demo:evict", "-v")
t.check("a probe that lost its code is removed", found.code == 1 and
        found.out.startswith("removed demo:evict\n") and
        "dead: demo:evict is dangling: 0x10 lies in no section\n" in found.err, found.text())

write("text", b"hello")
for arguments in [("old", "missing"), ("missing", "old"), ("old", "text"), ("text", "old")]:
    found = t.run("diff", *arguments)
    t.check(f"unreadable: {arguments}", found.code == 3 and found.out == "" and
            found.err.startswith("reprobe: error: "), found.text())
write("none", golden(notes=[]).data)
t.same("a file without probes", Result(0, "0 removed, 0 added, 0 changed, 0 the same\n", ""),
       t.run("diff", "none", "none"))
t.same("usage", 2, t.run("diff", "old").code)
write("evil", golden(notes=lambda elf: [Note(b"\x1b[31m\n", elf.sites["one"])]).data)
found = t.run("diff", "none", "evil")
t.check("names do not drive the terminal", "\x1b" not in found.out and
        "added demo:\\x1b[31m\\x0a\n" in found.out, found.text())

# --- Two versions of a program --------------------------------------------------------------------

SOURCE = r"""
#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>
#define COUNTER __attribute__((section(".probes"), visibility("hidden"), used)) unsigned short
COUNTER demo_steady_semaphore, demo_grown_semaphore, demo_retyped_semaphore, demo_old_semaphore,
    demo_new_semaphore, demo_inlined_semaphore;
static inline __attribute__((always_inline)) void inlined(int a) { STAP_PROBE1(demo, inlined, a); }
int work(int a, long long b, short c) {
  STAP_PROBE2(demo, steady, a, b);
  inlined(a);
#ifdef V2
  inlined(c);
  STAP_PROBE3(demo, grown, a, b, c);
  STAP_PROBE1(demo, retyped, b);
  STAP_PROBE(demo, new);
#else
  STAP_PROBE2(demo, grown, a, b);
  STAP_PROBE1(demo, retyped, a);
  STAP_PROBE1(demo, old, c);
#endif
  return a + (int)b + c;
}
int main(int argc, char** argv) { return work(argc, (long long)(long)argv, 3) == 77; }
"""
EXPECTED = """\
removed demo:old
    - 1 site: s16, semaphore
added demo:new
    + 1 site: no arguments, semaphore
changed demo:grown: argument count 2 -> 3
    - 1 site: s32 s64, semaphore
    + 1 site: s32 s64 s16, semaphore
changed demo:retyped: argument 1 s32 -> s64
    - 1 site: s32, semaphore
    + 1 site: s64, semaphore
note demo:inlined: 1 site -> 2 sites, each with the same arguments as before
1 removed, 1 added, 2 changed, 2 the same
"""
write("demo.c", SOURCE.encode())
# <sys/sdt.h> of this machine, which cross compilers do not see.
headers = subprocess.run(["gcc", "-M", "-include", "sys/sdt.h", "-E", "-xc", "/dev/null"],
                         capture_output=True, text=True, check=True).stdout.split()
os.makedirs("include/sys")
for header in headers:
    if os.path.basename(header).startswith("sdt"):
        shutil.copy(header, "include/sys")
compilers = [c for c in ["gcc", "clang-14", "aarch64-linux-gnu-gcc", "powerpc64le-linux-gnu-gcc",
                         "s390x-linux-gnu-gcc", "riscv64-linux-gnu-gcc"] if shutil.which(c)]
builds = {1: [], 2: []}
for version in builds:
    for compiler in compilers:
        for level in ["-O0", "-O2"]:
            # At -O2 work() is not inlined into main(), so that each probe is there once.
            output = f"{compiler}{level}-v{version}.o"
            done = subprocess.run(
                [compiler, level, "-g", "-c", "-fPIC", "-fno-inline-functions-called-once",
                 "-fno-inline-small-functions", "-fno-ipa-cp", f"-DV{version}", "-Iinclude",
                 "demo.c", "-o", output] if "clang" not in compiler else
                [compiler, level, "-g", "-c", "-fPIC", "-fno-inline-functions", f"-DV{version}", "-Iinclude",
                 "demo.c", "-o", output], capture_output=True, text=True)
            if t.check(f"compile {output}", done.returncode == 0, done.stderr):
                builds[version].append(output)
    for name, command in [
            ("program", ["gcc", f"gcc-O2-v{version}.o", "-o", f"program-v{version}"]),
            ("library", ["gcc", "-shared", f"gcc-O0-v{version}.o", "-o", f"library-v{version}"]),
            ("debug", ["objcopy", "--only-keep-debug", f"program-v{version}",
                       f"debug-v{version}"]),
            ("archive", ["ar", "rc", f"archive-v{version}.a", f"gcc-O0-v{version}.o"])]:
        subprocess.run(command, check=True)
        builds[version].append(command[2] if name == "archive" else command[-1])

# Counters that another object defines, and common symbols.
for flags in [[], ["-fcommon"]]:
    write("extern.c", b"""#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>
extern unsigned short demo_far_semaphore;
unsigned short demo_near_semaphore;
void f(void) { STAP_PROBE(demo, far); STAP_PROBE(demo, near); }
""")
    write("counters.c", b"unsigned short demo_far_semaphore = 0;\n")
    subprocess.run(["gcc", "-O1", "-fPIC", *flags, "-c", "extern.c", "counters.c"], check=True)
    subprocess.run(["gcc", "-shared", "extern.o", "counters.o", "-o", "extern.so"], check=True)
    t.same(f"counters of other objects {flags}",
           Result(0, "0 removed, 0 added, 0 changed, 2 the same\n", ""),
           t.run("diff", "extern.o", "extern.so"))
    listed = json.loads(t.run("list", "--json", "extern.o").out)["files"][0]["probes"]
    t.same(f"... are no address yet {flags}", [True, True if flags else None],
           [p.get("semaphore_undefined") for p in listed])

for old in builds[1]:
    t.same(f"{old} and itself", 0, t.run("diff", "-q", old, old).code)
for index in range(len(builds[1])):
    # Each pair of neighbours: another compiler, level, machine or kind of file.
    old, new = builds[1][index], builds[2][(index + 1) % len(builds[2])]
    t.same(f"{old} {new}", Result(1, EXPECTED, ""), t.run("diff", old, new))
    same = builds[1][(index + 1) % len(builds[1])]
    t.same(f"{old} {same}", Result(0, "0 removed, 0 added, 0 changed, 5 the same\n", ""),
           t.run("diff", old, same))

t.finish()
