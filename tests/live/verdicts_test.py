#!/usr/bin/env python3
"""verdicts_test.py REPROBE: a live note is never called dangling, whatever stands around its nop.

Programs with probes beside nops that are no probes' (tests/live/verdict_programs), among hundreds of
dropped probes whose notes point into their code: compilers, linkers, options that emit nops, stripped
and not. The truth is the symbol at each site of the unstripped twin (truth.py) and what bpftrace
counts. Then the cases in which one note decides, and what the objects of the link prove.
"""
import json
import os
import re
import sys
import tempfile
from collections import Counter

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tracers")]
# pylint: disable=wrong-import-position
import environment
import truth
from checks import Checks
from common import run

FIXTURES = os.path.join(HERE, "..", "..", "fixtures")
PROGRAMS = os.path.join(HERE, "verdict_programs")
PROBES = 200  # of mass.py, live and dead
FORMS = {
    "gcc": {
        "plain": "", "patchable 1": "-fpatchable-function-entry=1",
        "patchable 5": "-fpatchable-function-entry=5",
        "patchable 16,3": "-fpatchable-function-entry=16,3",
        "aligned": "-falign-functions=64 -falign-loops=32 -falign-jumps=32",
        "pg": "-pg", "fentry": "-pg -mfentry", "nop mcount": "-pg -mfentry -mnop-mcount -fno-pie",
        "asan": "-fsanitize=address", "cet": "-fcf-protection=full",
    },
    "clang-14": {
        "plain": "", "patchable 5": "-fpatchable-function-entry=5",
        "patchable 16,3": "-fpatchable-function-entry=16,3", "aligned": "-falign-functions=64",
        "pg": "-pg", "cet": "-fcf-protection=full",
    },
}
# linker: (options, are the dead objects linked)
LINKS = {"lld": ("-Wl,--gc-sections", True), "mold": ("-Wl,--gc-sections", True),
         "lld all live": ("-Wl,--gc-sections", False), "gold": ("", False), "bfd": ("", False)}
HITS = {"in_loop": 2}  # of the others 1


class Failed(Exception):
    pass


def need(*command, **options):
    done = run(*command, **options)
    if done.returncode:
        raise Failed(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout


def write(name, text):
    with open(name, "w", encoding="ascii") as file:
        file.write(text)


class Probes:
    """What `list --json` says of a file."""

    def __init__(self, reprobe, file, *options):
        said = need(reprobe, "list", "--json", "-q", file, *options)
        self.probes = json.loads(said)["files"][0]["probes"]

    def verdicts(self, pattern="."):
        return [p["verdict"] for p in self.probes if re.search(pattern, p["name"])]

    def evidence(self, name):
        return " ".join(e for p in self.probes if p["name"] == name for e in p["evidence"])


# --- The family of collisions ---------------------------------------------------------------------


def compile_objects(compiler, form, flags):
    """The program's objects, and the dead one, which is the same for every form."""
    name = re.sub(r"\W+", "-", f"{compiler}-{form}")
    objects = []
    for source, options in ((f"{PROGRAMS}/shapes.c", "-O2"), ("live.c", "-O1 -w"),
                            (f"{PROGRAMS}/nameless.c", "-O2")):
        objects.append(f"{name}-{os.path.basename(source)[:-2]}.o")
        own = flags if "nameless" not in source else ""
        need(compiler, *options.split(), *own.split(), f"-I{FIXTURES}", "-c", source, "-o", objects[-1])
    dead = f"{compiler}-dead.o"
    if not os.path.exists(dead):
        need(compiler, "-O1", "-w", f"-I{FIXTURES}", "-c", "dead.c", "-o", dead)
    return name, objects, dead


def build(compiler, form, flags):
    """(program, its objects, were probes dropped) for each linker."""
    name, objects, dead = compile_objects(compiler, form, flags)
    kept = [f for f in flags.split() if f in ("-pg", "-fsanitize=address")]
    kept += ["-no-pie"] if "-fno-pie" in flags else []
    if compiler == "gcc":
        objects.append("rounds.o")
    for linker, (options, dropped) in LINKS.items():
        program = f"{name}.{linker.replace(' ', '-')}"
        inputs = objects + [dead] * dropped
        need(compiler, f"-fuse-ld={linker.split()[0]}", *kept, *options.split(), *inputs, "-o", program)
        need("strip", "-s", program, "-o", program + ".s")
        yield program, inputs, dropped


def check_program(checks, reprobe, program, inputs, dropped, price):
    twin = truth.load([program])[0][0]
    truth.judge(twin)
    status = [note.status for note in twin.notes]
    checks.equal("every probe of the program is in it",
                 sum(s == "live" for s in status) >= PROBES + 20, True)
    checks.equal("probes that were dropped", sum(s == "dead" for s in status),
                 PROBES if dropped else 0)
    for file in (program, program + ".s"):
        for options in ((), ("--objects", *inputs)):
            probes = Probes(reprobe, file, *options).probes
            if not checks.equal("probes", len(probes), len(status)):
                return
            pairs = Counter((s, p["verdict"]) for s, p in zip(status, probes))
            checks.equal("live and called dangling",
                         [p["name"] for s, p in zip(status, probes)
                          if s == "live" and p["verdict"] == "dangling"], [])
            if options:
                undecided = [p["name"] for s, p in zip(status, probes)
                             if p["verdict"] != {"live": "live", "dead": "dangling"}[s]]
                checks.equal("not decided by the objects", undecided, [])
            else:
                price["dead, ambiguous"] += pairs["dead", "ambiguous"]
                price["dead, live"] += pairs["dead", "live"]
                price["live, ambiguous"] += pairs["live", "ambiguous"]
                price["dead"] += sum(s == "dead" for s in status)
            if not dropped and not options:
                # `bare` stands on no nop.
                checks.equal("in doubt where nothing was dropped",
                             [p["name"] for p in probes if p["verdict"] != "live"], ["bare"])


def check_hits(checks, reprobe, program, inputs):
    """The repaired program, traced: every live probe of app is hit as often as it is passed."""
    need(reprobe, "fix", program, "-o", "fixed", "--second-opinion=never", "--objects", *inputs)
    need(reprobe, "verify", program, "fixed", "--second-opinion=never", "--objects", *inputs)
    names = {p["name"] for p in Probes(reprobe, program, "-p", "app:*").probes}
    said = need("bpftrace", "-e", "usdt:./fixed:app:* { @[probe] = count(); }", "-c", "./fixed")
    hits = {name.split(":")[-1]: int(count)
            for name, count in re.findall(r"@\[(\S+)\]: (\d+)", said)}
    checks.equal("hits", hits, {name: HITS.get(name, 1) for name in names})


def check_family(checks, reprobe, traced):
    price = Counter()
    need(sys.executable, f"{FIXTURES}/mass.py", str(PROBES), "live.c", "dead.c")
    need("gfortran", "-O2", "-falign-loops=32", "-c", f"{PROGRAMS}/rounds.f90", "-o", "rounds.o")
    for compiler, forms in FORMS.items():
        for form, flags in forms.items():
            for program, inputs, dropped in build(compiler, form, flags):
                checks.name = program
                check_program(checks, reprobe, program, inputs, dropped, price)
                if traced and form in ("plain", "patchable 5", "fentry") and ".lld" in program and dropped:
                    check_hits(checks, reprobe, program, inputs)
    print(f"of {price['dead']} dropped probes {price['dead, ambiguous']} stay ambiguous without the "
          f"objects, {price['dead, live']} look live; {price['live, ambiguous']} live ones are ambiguous")


# --- One note -------------------------------------------------------------------------------------

# A note of the assembler's own at a label.
NOTE = """.macro note label
.pushsection .note.stapsdt,"","note"
.balign 4
.4byte 992f-991f,994f-993f,3
991: .asciz "stapsdt"
992: .balign 4
993: .8byte \\label, 0, 0
.asciz "hn"
.asciz "\\label"
.asciz "-4@%edi"
994: .balign 4
.popsection
.endm
"""


def link(linker, output, sources, *options):
    objects = []
    for source in sources:
        objects.append(source.rsplit(".", 1)[0] + ".o")
        need("gcc", "-O2", "-fno-ipa-icf", "-c", source, "-o", objects[-1])
    need("gcc", f"-fuse-ld={linker}", "-Wl,--gc-sections", *options, *objects, "-o", output)
    return objects


def crowd(at, live):
    """700 probes of one object that are dropped, `live` among them."""
    lines = ["#include <sys/sdt.h>"]
    for i in range(700):
        if i == at:
            lines.append(live)
        lines.append(f"__attribute__((noinline)) long gone{i}(long n)"
                     f"{{ DTRACE_PROBE1(app, gone{i}, n); return n + {i + 1000}; }}")
    write("crowd.c", "\n".join(lines))


def check_in_a_crowd(checks, reprobe, linker, name, live):
    """The locations of the dropped probes rise through the live one's."""
    checks.name = f"{name}, {linker}"
    write("crowd_main.c", "long live(long); int main(void) { long s = 0;"
          "for (long i = 0; i < 50; i++) s += live(i); return s == 0; }")
    crowd(300, live)
    link(linker, "app", ["crowd_main.c", "crowd.c"])
    notes = truth.load(["app"])[0][0].notes
    site = next(n.location for n in notes if n.name == "live")
    crowd(next(i for i, n in enumerate(n for n in notes if n.name != "live") if n.location > site), live)
    objects = link(linker, "app", ["crowd_main.c", "crowd.c"])
    checks.equal("not called dangling", "dangling" in Probes(reprobe, "app").verdicts("live"), False)
    need(reprobe, "fix", "app", "-o", "fixed")
    need(reprobe, "verify", "app", "fixed")
    checks.equal("fix keeps it", len(Probes(reprobe, "fixed").verdicts("live")), 1)
    need("ar", "rcT", "thin.a", *objects)
    need("ar", "rc", "whole.a", *objects)
    for given in (objects, ["thin.a"], ["whole.a"]):
        probes = Probes(reprobe, "app", "--objects", *given)
        checks.equal(f"{given}: the live one", probes.verdicts("live"), ["live"])
        checks.equal(f"{given}: the others", Counter(probes.verdicts("gone")), {"dangling": 700})
    os.unlink("thin.a")
    os.unlink("whole.a")
    need(reprobe, "fix", "app", "-o", "fixed", "--objects", *objects)
    need(reprobe, "verify", "app", "fixed", "--objects", *objects)
    checks.equal("verify without the objects", run(reprobe, "verify", "app", "fixed").returncode, 1)
    checks.equal("fixed", [p["name"] for p in Probes(reprobe, "fixed").probes], ["live"])


CUSTOM = ('long live(long n) { __asm__ volatile("990: .byte 0x66,0x90\\n'
          '.pushsection .note.stapsdt,\\"\\",\\"note\\"\\n.balign 4\\n.4byte 992f-991f,994f-993f,3\\n'
          '991: .asciz \\"stapsdt\\"\\n992: .balign 4\\n993: .8byte 990b,0,0\\n.asciz \\"app\\"\\n'
          '.asciz \\"live\\"\\n.asciz \\"-8@%%rdi\\"\\n994: .balign 4\\n.popsection" :: "D"(n));'
          ' return n * 3 + 7; }')
PLAIN = "long live(long n) { DTRACE_PROBE1(app, live, n); return n * 3 + 7; }"
LIVE = '__attribute__((noinline, section(".text.live")%s))'


def check_no_nop(checks, reprobe):
    """A hand-written note on an ordinary instruction: in doubt, and only out of order dangling."""
    checks.name = "no nop"
    write("odd.S", NOTE + """.text
.globl odd
.type odd, @function
odd: push %rbx
nonop: mov %edi,%ebx
 lea 1(%rbx),%eax
 pop %rbx
 ret
.size odd, .-odd
 note nonop
.globl plain
.type plain, @function
plain: nop
 mov %edi,%eax
 ret
.size plain, .-plain
 note plain
.section .note.GNU-stack,"",@progbits
""")
    write("odd_main.c", "int odd(int), plain(int); int main(int c, char **v)"
          "{ (void)v; return odd(c) + plain(c) - 3; }")
    write("gone.c", "#include <sys/sdt.h>\n"
          '__attribute__((section(".text.gone"))) void gone(int n) { DTRACE_PROBE1(app, gone, n); }')
    for sources in (["odd_main.c", "odd.S"], ["odd_main.c", "odd.S", "gone.c"]):
        link("lld", "app", sources)
        probes = Probes(reprobe, "app")
        checks.equal(f"{sources}: on no nop", probes.verdicts("nonop"), ["ambiguous"])
        checks.equal(f"{sources}: on a nop", probes.verdicts("plain"), ["live"])
        checks.equal(f"{sources}: dropped", probes.verdicts("gone"), ["dangling"] * (len(sources) - 2))


def check_out_of_order(checks, reprobe, linker):
    """A dropped probe whose offset is the address of a nop of the program's own."""
    checks.name = f"out of order, {linker}"
    function = "__attribute__((noinline)) long {0}(long n) {{ {1}; return n * {2}; }}\n"
    names = ["f0", "f1", "f2", "f3", "aim", "behind"]
    write("order_main.c", "#include <sys/sdt.h>\n" + "".join(
        function.format(name, f"DTRACE_PROBE1(app, {name}, n)" if name != "aim"
                        else '__asm__ volatile("aimed_at: nop")', i + 3)
        for i, name in enumerate(names)) +
        f"int main(int c, char **v) {{ (void)v; return ({' + '.join(n + '(c)' for n in names)}) & 1; }}")

    def dropped(at):
        write("aimed.S", NOTE + f"""
.section .text.small,"ax",@progbits
small: nop
 ret
 note small
.section .text.aimed,"ax",@progbits
.skip {at}, 0x90
aimed: nop
 ret
 note aimed
.section .note.GNU-stack,"",@progbits
""")
        return link(linker, "app", ["order_main.c", "aimed.S"])

    dropped(16)
    at = int(re.search(r"(\w+) . aimed_at", need("nm", "app"))[1], 16)
    objects = dropped(at)
    probes = Probes(reprobe, "app")
    checks.equal("it points at the nop", [int(p["site"], 16) for p in probes.probes if p["name"] == "aimed"],
                 [int(re.search(r"(\w+) . aimed_at", need("nm", "app"))[1], 16)])
    checks.equal("aimed", probes.verdicts("aimed"), ["ambiguous"])
    checks.equal("small", probes.verdicts("small"), ["dangling"])
    checks.equal("the live ones", set(probes.verdicts("^f|behind")), {"live"})
    probes = Probes(reprobe, "app", "--objects", *objects)
    checks.equal("aimed, with the objects", probes.verdicts("aimed"), ["dangling"])
    checks.equal("the live ones, with the objects", set(probes.verdicts("^f|behind")), {"live"})


def check_folded(checks, reprobe, linker):
    """Identical code folding: two live probes at one nop, with or without both names."""
    checks.name = f"folded, {linker}"
    write("folded.c", "#include <sys/sdt.h>\n" + "".join(
        f"__attribute__((noinline)) long {name}(long n) {{ DTRACE_PROBE1(col, {name}, n); return n * {k}; }}\n"
        for name, k in (("red", 3), ("blue", 3), ("gone", 7))) +
        "int main(void) { long s = 0; for (long i = 0; i < 100; i++) s += red(i) + blue(i); return (int)s; }")
    need("gcc", "-O2", "-fno-ipa-icf", "-ffunction-sections", "-c", "folded.c")
    need("gcc", f"-fuse-ld={linker}", "-Wl,--icf=all,--gc-sections", "folded.o", "-o", "app")
    checks.equal("at one nop", len({n.location for n in truth.load(["app"])[0][0].notes
                                    if n.name in ("red", "blue")}), 1)
    for file in ("app", "app.s"):
        if file == "app.s":
            need("strip", "-s", "app", "-o", "app.s")
        for options in ((), ("--objects", "folded.o")):
            probes = Probes(reprobe, file, *options)
            checks.equal(f"{file} {options}", [(p["name"], p["verdict"]) for p in probes.probes],
                         [("red", "live"), ("blue", "live"), ("gone", "dangling")])
    said = run(reprobe, "audit", "app").stdout
    checks.equal("audit calls them aliases", said.count("note alias col:"), 2)
    said = run(reprobe, "fix", "--remove-ambiguous", "app", "-o", "fixed").stderr
    checks.true("fix says what it removed", "removed 1 dangling, kept 2 live" in said, said)


def check_removed_words(checks, reprobe):
    """--remove-ambiguous does not count what is in doubt as dangling."""
    checks.name = "words"
    link("lld", "app", ["odd_main.c", "odd.S", "gone.c"])
    said = run(reprobe, "fix", "--remove-ambiguous", "app", "-o", "fixed").stderr
    checks.true("fix", "removed 1 dangling and 1 ambiguous, kept 1 live" in said, said)
    checks.equal("verify", run(reprobe, "verify", "--remove-ambiguous", "app", "fixed").returncode, 0)


def check_objects_refused(checks, reprobe):
    checks.name = "--objects"
    write("none.o", "no object")
    done = run(reprobe, "list", "app", "--objects", "none.o")
    checks.equal("what is no object", done.returncode, 3)
    checks.true("says which", "none.o" in done.stderr, done.stderr)
    done = run(reprobe, "list", "app", "--objects", "missing.o")
    checks.equal("a missing file", (done.returncode, "missing.o" in done.stderr), (3, True))
    # Objects of another program prove nothing.
    checks.equal("of another program", Probes(reprobe, "app", "--objects", "crowd.o").probes,
                 Probes(reprobe, "app").probes)


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    if os.uname().machine != "x86_64":
        environment.skip("the nops are those of x86-64")
    reprobe = os.path.abspath(sys.argv[1])
    traced = environment.can_trace()
    environment.need_tools(["gcc", "clang-14", "gfortran", "mold", "ld.lld", "ld.gold", "ar", "strip"])
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="reprobe-verdicts-") as folder:
        os.chdir(folder)
        check_no_nop(checks, reprobe)
        check_removed_words(checks, reprobe)
        for linker in ("lld", "mold"):
            check_in_a_crowd(checks, reprobe, linker, "patchable entry",
                             LIVE % ", patchable_function_entry(5)" + PLAIN)
            check_in_a_crowd(checks, reprobe, linker, "another nop", LIVE % "" + CUSTOM)
            check_out_of_order(checks, reprobe, linker)
            check_folded(checks, reprobe, linker)
        check_objects_refused(checks, reprobe)
        check_family(checks, reprobe, traced)
        os.chdir("/")
    return checks.exit_code()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failure:
        print(f"FAILED: {failure}")
        sys.exit(1)
