"""Probes that no tracer finds though they are in the file: notes in a section of another name, and
counters that code checks and no note names. What is right comes from readelf, nm and the running
program."""

import json
import re
import shutil
import subprocess
import sys

from command import Tests, write

t = Tests(sys.argv[1])


def output(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    return done.returncode, done.stdout.decode(errors="replace")


def build(*command):
    code, text = output(*command)
    return t.check(" ".join(command), code == 0, text)


def rules(path):
    files = json.loads(t.run("audit", "--json", path).out)["files"]
    return sorted(f["rule"] for f in files[0]["findings"]) if files else []


def notes(path):
    """Section, provider, name, location, base, semaphore, arguments of each note."""
    text = output("readelf", "-nW", path)[1]
    found = []
    for part in re.split(r"Displaying notes found in: ", text)[1:]:
        found += [(part.split("\n")[0], *match) for match in re.findall(
            r"Provider: (.*)\n\s+Name: (.*)\n\s+Location: (\S+), Base: (\S+), Semaphore: (\S+)\n"
            r"\s+Arguments: ?(.*)", part)]
    return found


# --- Notes in a section of another name -----------------------------------------------------------

write("pay.c", br"""
#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>
#include <stdio.h>
unsigned short shop_pay_semaphore __attribute__((section(".probes")));
unsigned short shop_end_semaphore __attribute__((section(".probes")));
int main(int c, char **v) {
  (void)v;
  for (int i = 0; i < 10; i++) DTRACE_PROBE1(shop, pay, i);
  DTRACE_PROBE2(shop, end, c, 5);
  return puts("done") < 0;
}
""")
write("gather.ld", b"SECTIONS { .notes : { *(.note.stapsdt) *(.note.*) } } INSERT AFTER .comment;")
write("apart.ld", b"SECTIONS { .notes.probes 0 : { *(.note.stapsdt) } } INSERT AFTER .comment;")
for script, linker, option in (("gather.ld", "bfd", "-pie"), ("gather.ld", "bfd", "-no-pie"),
                               ("apart.ld", "bfd", "-pie"), ("gather.ld", "gold", "-no-pie")):
    what = f"{script}, {linker}, {option}"
    options = ["-O2", "-fpie" if option == "-pie" else "-fno-pie", option, "-Wl,--build-id=sha1"]
    build("gcc", *options, "pay.c", "-o", "plain")
    if linker == "gold":
        # gold has no INSERT: objcopy gives the section the name.
        shutil.copy("plain", "app")
        build("objcopy", "--rename-section", ".note.stapsdt=.notes", "app")
    else:
        build("gcc", *options, f"-fuse-ld={linker}", f"-Wl,-T,{script}", "pay.c", "-o", "app")
    expected = [n[1:3] + n[6:] for n in notes("plain")]
    t.same(f"{what}: notes of the plain program", 2, len(expected))
    t.check(f"{what}: audit", "other-section" in rules("app"), t.run("audit", "app").text())
    listed = t.run("list", "--json", "app")
    t.check(f"{what}: list warns", "no tracer finds them" in listed.err, listed.err)
    probes = json.loads(listed.out)["files"][0]["probes"]
    t.same(f"{what}: list", expected, [(p["provider"], p["name"], p["arguments_text"]) for p in probes])
    t.same(f"{what}: verdicts", ["live"] * 2, [p["verdict"] for p in probes])
    done = t.run("fix", "app", "-o", "fixed")
    t.same(f"{what}: fix", 0, done.code)
    t.check(f"{what}: fix says what it did", "repaired other-section" in done.err, done.err)
    if done.code:
        print(done.text())
        continue
    t.same(f"{what}: verify", 0, t.run("verify", "app", "fixed").code)
    # The build-id went into the linker script's section, too.
    t.same(f"{what}: clean", [], [r for r in rules("fixed") if r != "build-id-short"])
    moved = [n for n in notes("fixed") if n[0] == ".note.stapsdt"]
    t.same(f"{what}: notes", expected, [n[1:3] + n[6:] for n in moved])
    symbols = output("nm", "fixed")[1]
    counter = int(re.search(r"(\w+) \w shop_pay_semaphore", symbols)[1], 16)
    t.same(f"{what}: counter", {"pay": counter},
           {n[2]: int(n[5], 16) for n in moved if n[2] == "pay"})
    sites = sorted(int(p["site"], 16) for p in probes)
    t.same(f"{what}: sites", sites, sorted(int(n[3], 16) for n in moved))
    code = output("objdump", "-d", "--no-show-raw-insn", "fixed")[1]
    for site in sites:
        t.check(f"{what}: a nop at {site:#x}", re.search(rf"^ *{site:x}:\s+nop$", code, re.M), code)
    t.same(f"{what}: runs", output("./app"), output("./fixed"))
    again = t.run("fix", "fixed", "-o", "again")
    t.check(f"{what}: once", "nothing to change" in again.err, again.err)
    # A note of no probe that the result would have is found out.
    t.same(f"{what}: verify the other way round", 1, t.run("verify", "plain", "fixed").code)

# --- Counters without a note ----------------------------------------------------------------------

write("lonely.c", br"""
#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>
#include <stdio.h>
#define COUNTER unsigned short __attribute__((section(".probes")))
COUNTER shop_begin_semaphore, shop_order_semaphore, shop_unused_semaphore;
__attribute__((noinline)) void begin(void) {
  if (*(volatile unsigned short *)&shop_begin_semaphore) puts("traced");
}
int main(int c, char **v) {
  (void)v;
  begin();
  if (*(volatile unsigned short *)&shop_order_semaphore) DTRACE_PROBE1(shop, order, c);
  return 0;
}
""")
for linker in ("bfd", "gold", "mold", "lld"):
    for option in ("-pie", "-no-pie", "-static"):
        kind = "-fpie" if option == "-pie" else "-fno-pie"
        what = f"lonely, {linker} {option}"
        if not build("gcc", "-O2", kind, option, f"-fuse-ld={linker}", "-Wl,--build-id=sha1",
                     "lonely.c", "-o", "lonely"):
            continue
        address = int(re.search(r"(\w+) \w shop_begin_semaphore", output("nm", "lonely")[1])[1], 16)
        said = json.loads(t.run("audit", "--json", "lonely").out)["files"]
        found = [f for f in said[0]["findings"] if f["rule"] == "semaphore-without-note"] if said else []
        t.same(f"{what}: one finding", ["warning"], [f["severity"] for f in found])
        evidence = " ".join(e for f in found for e in f["evidence"])
        t.check(f"{what}: names the counter", f"shop_begin_semaphore at {address:#x}," in evidence and
                "order" not in evidence and "unused" not in evidence, evidence)
build("gcc", "-O2", "pay.c", "-o", "plain", "-Wl,--build-id=sha1")
t.same("every counter has its note", [], rules("plain"))

t.finish()
