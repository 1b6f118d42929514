#!/usr/bin/env python3
"""guard_rules_test.py REPROBE: which counters guards rewrites, and what then runs.

Small libraries, one for each thing that compiled code does with a counter's address, built with gcc
and clang: where the address goes anywhere but to checks, the counter stays, with the reason; where it
does not, all checks are rewritten, the program prints untraced what the original prints, and with a
uprobe at a site what the source says.
"""
import json
import os
import shutil
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tracers")]
# pylint: disable=wrong-import-position
import environment
import uprobes
from checks import Checks
from common import run

PROGRAMS = os.path.join(HERE, "guard_programs")
KINDS = ("IPA_RA", "PASSED", "PASSED_LOCAL", "STORED", "RETURNED", "CHOSEN", "COMPUTED", "IN_ARRAY",
         "VALUES", "SITES", "PROBED", "PROBED_FIRST")
UNTRACED = "first 0 second 0 sum 10\n"
EXPORTED = "the counter is exported: other files may check it"
REFERRED = "another file refers to the counter"
# Of every build: all checks are rewritten (None), or the counter stays for one of these reasons.
PASSED_ON = "the counter's address may be passed on"
OTHER_USE = "the counter's address is used for more than checks"
OPTIMIZED_AWAY = ("PASSED", "PASSED_LOCAL", "PROBED", "PROBED_FIRST")
LEFT = {"PASSED": {PASSED_ON}, "PASSED_LOCAL": {PASSED_ON}, "STORED": {OTHER_USE},
        "PROBED": {PASSED_ON}, "PROBED_FIRST": {PASSED_ON},
        "RETURNED": {PASSED_ON, OTHER_USE}, "COMPUTED": {OTHER_USE}}


class Library:
    def __init__(self, folder, kind, compiler="gcc", options=("-O2", "-fPIC", "-shared")):
        self.folder = tempfile.mkdtemp(dir=folder)
        self.original = os.path.join(self.folder, "original.so")
        self.file = os.path.join(self.folder, "librules.so")
        self.program = os.path.join(self.folder, "main")
        numbers = [f"-D{name}={i}" for i, name in enumerate(KINDS, 1)]
        shared = "-shared" in options
        source, main = (os.path.join(PROGRAMS, name) for name in ("rules.c", "rules_main.c"))
        made = run(compiler, "-w", *options, *numbers, f"-DKIND={kind}", source,
                   *([] if shared else [main]), "-o", self.original)
        if made.returncode == 0 and shared:
            shutil.copy(self.original, self.file)
            made = run("gcc", "-O1", main, self.file, "-o", self.program)
        elif not shared:
            self.program = self.file
        self.error = made.stderr if made.returncode else ""

    def guards(self, reprobe, *options):
        """(exit status, plan, what was said)"""
        made = run(reprobe, "guards", "--to", "site", "--json", *options, self.original, "-o",
                   self.file)
        plan = json.loads(made.stdout) if made.stdout else {"guards": [], "refused": []}
        return made.returncode, plan, made.stderr

    def run(self):
        said = run(self.program, env={"LD_LIBRARY_PATH": self.folder})
        return said.stdout if said.returncode == 0 else f"exit {said.returncode}"

    def traced(self, which):
        """With uprobes at the `which` sites of the probe."""
        loaded = uprobes.segments(self.file)
        sites = [site for site, _ in uprobes.probe_sites(self.file, "rules")["one"]]
        places = [(self.file, uprobes.offset_in(loaded, sites[i])) for i in which]
        with uprobes.Uprobes(places):
            return self.run()


# The counter's address is left in %rax where a function without a result returns, and in %rcx or so at
# a call of a function of the same file, which another file might replace.
LEFTOVERS = r"""
#define _SDT_HAS_SEMAPHORES 1
#include <stdio.h>
#include <sys/sdt.h>
unsigned short rules_one_semaphore __attribute__((section(".probes")));
long seen;
__attribute__((noinline)) void taken(long *p) { seen += *p; }
__attribute__((noinline)) void none(long *p) {
  if (!p) return;
  *p += 1;
  if (rules_one_semaphore) DTRACE_PROBE(rules, one);
}
__attribute__((noinline)) void tail(long *p) {
  *p += 2;
  if (rules_one_semaphore) DTRACE_PROBE(rules, one);
  taken(p);
}
#ifdef RESULT
__attribute__((noinline)) void *result(long *p) {
  *p += 4;
  if (rules_one_semaphore) DTRACE_PROBE(rules, one);
  return &rules_one_semaphore;
}
#endif
int run(void) { long x = 1; none(&x); none(0); tail(&x); printf("%ld %ld\n", x, seen); return 0; }
"""


def check_leftovers(checks, reprobe, folder):
    source = os.path.join(folder, "leftovers.c")
    with open(source, "w", encoding="ascii") as out:
        out.write(LEFTOVERS)
    main = os.path.join(folder, "leftovers_main.c")
    with open(main, "w", encoding="ascii") as out:
        out.write("int run(void); int main(void) { return run(); }")
    for compiler in ("gcc", "clang-14"):
        for define, status, reasons in (("", 0, set()), ("-DRESULT", 4, {PASSED_ON, OTHER_USE})):
            checks.name = f"leftovers {compiler} {define}"
            made, out = os.path.join(folder, "leftovers.so"), os.path.join(folder, "libleft.so")
            program = os.path.join(folder, "leftovers")
            run(compiler, "-O2", "-fPIC", "-shared", *([define] if define else []),
                source, "-o", made)
            run("gcc", main, made, "-o", program)
            said = run(reprobe, "guards", "--to", "site", "--json", "--allow-exported", made, "-o", out)
            checks.equal("exit", said.returncode, status)
            found = {r["reason"] for r in json.loads(said.stdout)["refused"]}
            checks.true(f"reasons {found}", bool(found & reasons) == bool(reasons), said.stderr)
            if status == 0:
                expected = run(program).stdout
                shutil.copy(out, made)
                checks.equal("prints", run(program).stdout, expected)


def check_left(checks, reprobe, folder):
    """Counters whose address goes elsewhere."""
    for kind, reasons in LEFT.items():
        for compiler in ("gcc", "clang-14"):
            # At -O2 compilers see through some: the address is not taken at all then.
            for level in ("-O0",) if kind in OPTIMIZED_AWAY else ("-O0", "-O2"):
                what = f"{kind} {compiler} {level}"
                library = Library(folder, kind, compiler, (level, "-fPIC", "-shared"))
                checks.equal(f"{what}: builds", library.error, "")
                original = run(library.program, env={"LD_LIBRARY_PATH": library.folder}).stdout
                status, plan, said = library.guards(reprobe)
                found = {r["reason"] for r in plan["refused"]}
                checks.true(f"{what}: left, {found}", status == 4 and not plan["guards"] and
                            found & reasons, said)
                if status == 0:
                    checks.equal(f"{what}: prints", library.run(), original)


def check_same(checks, reprobe, folder):
    """Whatever becomes of them, the program does what it did."""
    for kind in ("CHOSEN", "IN_ARRAY", *LEFT):
        for compiler in ("gcc", "clang-14"):
            library = Library(folder, kind, compiler)
            original = library.run()
            status, _, said = library.guards(reprobe)
            checks.true(f"{kind} {compiler}: exit {status}", status in (0, 4), said)
            checks.equal(f"{kind} {compiler}: prints", library.run(), original)


def check_ipa_ra(checks, reprobe, folder, tracing):
    """Kept over the call, in a register that the ABI gives to the callee."""
    for compiler in ("gcc", "clang-14"):
        library = Library(folder, "IPA_RA", compiler)
        status, plan, said = library.guards(reprobe)
        checks.equal(f"ipa-ra {compiler}: all rewritten", (status, plan["refused"]), (0, []))
        checks.equal(f"ipa-ra {compiler}: prints", library.run(), UNTRACED)
        verified = run(reprobe, "verify", library.original, library.file)
        checks.equal(f"ipa-ra {compiler}: verify", (verified.returncode, said and ""), (0, ""))
        if tracing:
            checks.equal(f"ipa-ra {compiler}: traced", library.traced((0, 1)),
                         "first 5 second 5 sum 10\n")


def check_values(checks, reprobe, folder, tracing):
    """A counter is 0 or 1, however it is read."""
    for compiler in ("gcc", "clang-14"):
        for level in ("-O0", "-O1", "-O2", "-Os"):
            what = f"values {compiler} {level}"
            library = Library(folder, "VALUES", compiler, (level, "-fPIC", "-shared"))
            checks.equal(f"{what}: builds", library.error, "")
            original = library.run()
            status, plan, said = library.guards(reprobe)
            checks.equal(f"{what}: all rewritten", (status, plan["refused"], said and ""),
                         (0, [], ""))
            checks.equal(f"{what}: prints", library.run(), original)
            if tracing:
                checks.equal(f"{what}: traced", library.traced((0,)),
                             "first 63 second 0 sum 15\n")


def check_sites(checks, reprobe, folder, tracing):
    """Either site of a probe shows that it is traced, where its checks have the room."""
    cases = {("gcc", ("-O2", "-fPIE", "-pie")): True, ("clang-14", ("-O2", "-fPIE", "-pie")): True}
    for (compiler, options), every in cases.items():
        what = f"sites {compiler}"
        library = Library(folder, "SITES", compiler, options)
        status, plan, said = library.guards(reprobe)
        checks.equal(f"{what}: all rewritten", (status, plan["refused"]), (0, []))
        checks.equal(f"{what}: the command says which", "looks at" in said or "look at all 2" in said,
                     True)
        checks.equal(f"{what}: all sites", all("other_sites" in g for g in plan["guards"]), every)
        checks.equal(f"{what}: prints", library.run(), "first 0 second 0 sum 14\n")
        if tracing:
            for which in ((0,), (1,), (0, 1)):
                checks.equal(f"{what}: traced at {which}", library.traced(which),
                             "first 5 second 5 sum 14\n")


def check_exported(checks, reprobe, folder):
    refers = os.path.join(folder, "refers.so")
    other = os.path.join(folder, "other.so")
    with open(refers + ".c", "w", encoding="ascii") as out:
        out.write("extern unsigned short rules_one_semaphore;\n"
                  "int h(void) { return rules_one_semaphore; }\n")
    run("gcc", "-shared", "-fPIC", refers + ".c", "-o", refers)
    run("gcc", "-shared", "-fPIC", "-x", "c", "/dev/null", "-o", other)
    for export, reachable in (("", True), ('__attribute__((visibility("protected")))', True),
                              ('__attribute__((visibility("hidden")))', False)):
        library = Library(folder, "SITES", "gcc", ("-O0", "-fPIC", "-shared", f"-DEXPORT={export}"))
        for options, reason in (((), EXPORTED), (("--with", other), ""),
                                (("--with", other, "--with", refers), REFERRED),
                                (("--allow-exported",), "")):
            what = f"exported {export or 'by default'} {options}"
            status, plan, _ = library.guards(reprobe, *options)
            found = {r["reason"] for r in plan["refused"]}
            expected = (4, {reason}) if reachable and reason else (0, set())
            checks.equal(what, (status, found), expected)


def check_models(checks, reprobe, folder):
    """-O0 with position-independent code, and the large code model."""
    for compiler in ("gcc", "clang-14"):
        for options in (("-O0", "-fPIC", "-shared"), ("-O0", "-fPIC", "-shared", "-Wl,--no-relax"),
                        ("-O0", "-mcmodel=large", "-fno-pic", "-no-pie"),
                        ("-O2", "-mcmodel=large", "-fno-pic", "-no-pie"),
                        ("-O0", "-mcmodel=large", "-fPIC", "-shared"),
                        ("-O2", "-mcmodel=large", "-fPIC", "-shared")):
            what = f"{compiler} {' '.join(options)}"
            library = Library(folder, "SITES", compiler, options)
            checks.equal(f"{what}: builds", library.error, "")
            status, plan, _ = library.guards(reprobe)
            # At -O2 the address may be left in a register in which a function returns something, and
            # a word of data may lead to a place where such a register is read.
            at_o2 = {PASSED_ON, "the register may hold another address"} if "-O2" in options else set()
            left = {r["reason"] for r in plan["refused"]} - at_o2
            checks.equal(f"{what}: all rewritten", (status in (0, 4), left), (True, set()))
            if "-O0" in options:
                checks.equal(f"{what}: exit", status, 0)
            checks.equal(f"{what}: prints", library.run(), "first 0 second 0 sum 14\n")


def check_stale_index(checks, reprobe, folder):
    """One letter of a note's name is changed behind relativize: guards renews the index."""
    source, file = os.path.join(folder, "index.c"), os.path.join(folder, "index")
    with open(source, "w", encoding="ascii") as out:
        out.write("#include <sys/sdt.h>\nint main(int c, char **v) { STAP_PROBE1(hn, abc, c); }\n")
    run("gcc", "-O2", source, "-o", file + ".plain")
    run(reprobe, "relativize", "-q", file + ".plain", "-o", file)
    listed = json.loads(run(reprobe, "list", "--json", file).stdout)
    with open(file, "rb") as data:
        text = bytearray(data.read())
    at = text.index(b"abc", int(listed["files"][0]["probes"][0]["note_offset"], 0))
    text[at] = ord("Z")
    with open(file, "wb") as data:
        data.write(text)
    for way in ("site", "on"):
        made = run(reprobe, "guards", "--to", way, file, "-o", file + ".out")
        checks.equal(f"stale index, --to {way}", (made.returncode, "renewed the index" in made.stderr),
                     (0, True))
        verified = run(reprobe, "verify", file, file + ".out")
        checks.equal(f"stale index, --to {way}: verify", verified.returncode, 0)


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    if os.uname().machine != "x86_64":
        environment.skip("guards are for x86-64")
    environment.need_tools(["gcc", "clang-14", "readelf"])
    tracing = environment.can_trace()
    checks = Checks()
    reprobe = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="reprobe-guard-rules-") as folder:
        check_leftovers(checks, reprobe, folder)
        check_left(checks, reprobe, folder)
        check_same(checks, reprobe, folder)
        check_ipa_ra(checks, reprobe, folder, tracing)
        check_values(checks, reprobe, folder, tracing)
        check_sites(checks, reprobe, folder, tracing)
        check_exported(checks, reprobe, folder)
        check_models(checks, reprobe, folder)
        check_stale_index(checks, reprobe, folder)
    return checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
