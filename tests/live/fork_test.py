#!/usr/bin/env python3
"""fork_test.py REPROBE: a program that forks, has threads, executes itself and loads a library late is
traced by bpftrace, before and after it is repaired: no process dies, and every hit is counted. What the
probes are in: calls of SystemTap up to 1.3 that are upgraded, sites of sys/sdt.h that are fixed, and sleds.
A five-byte nop, of which Linux 6.17 to 7.1 makes a call, shows that the test can fail."""
import os
import re
import shutil
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tracers")]
# pylint: disable=wrong-import-position
import environment
from checks import Checks
from common import run

FIXTURES = os.path.join(HERE, "..", "..", "fixtures")
CALLS = 8  # of legacy_work(10): 4 of main, thread and its child, child, executed
FINE = ["child of a thread: exit 0", "child: exit 0", "executed: exit 0", "sum "]

SDT = r"""
#include <sys/sdt.h>
__attribute__((noinline)) long unused(long n) { DTRACE_PROBE1(old, step, n); return n; }
long legacy_work(long n) {
  long sum = 7;
  DTRACE_PROBE(old, begin);
  for (long i = 0; i < n; ++i) { DTRACE_PROBE1(old, step, i); sum += i; }
  DTRACE_PROBE1(old, sum, sum);
  return sum;
}
"""
# The note of a probe whose site is a five-byte nop.
NOP5 = SDT.replace("#include <sys/sdt.h>", r"""
#define PROBE(name) __asm__ volatile("990: .byte 0x0f,0x1f,0x44,0,0\n.pushsection .note.stapsdt,\"\",\"note\"\n" \
  ".balign 4\n.4byte 8,994f-993f,3\n.asciz \"stapsdt\"\n993: .8byte 990b,0,0\n.asciz \"old\"\n" \
  ".asciz \"" #name "\"\n.asciz \"\"\n994: .balign 4\n.popsection")
#define DTRACE_PROBE1(provider, name, value) PROBE(name)
#define DTRACE_PROBE(provider, name) PROBE(name)
""")


def traced(file, command, provider):
    """What the command printed, and the hits."""
    said = run("bpftrace", "--unsafe", "-e", 'BEGIN { system("$COMMAND"); exit(); }\n'
               f"usdt:{file}:{provider}:* {{ @hits = count(); }}", env={"COMMAND": " ".join(command)})
    hits = re.search(r"^@hits: (\d+)$", said.stdout, re.M)
    lines = [line for line in said.stdout.splitlines() if re.match(r"child|executed|sum", line)]
    return lines, int(hits[1]) if hits else said.stderr[-300:]


class Program:
    """The file with the probes, and the command that runs it."""

    def __init__(self, folder, name, source, options, late):
        self.name = name + (" late" if late else "")
        place = os.path.join(folder, self.name.replace(" ", "_"))
        os.makedirs(place)
        main = os.path.join(HERE, "fork_main.c")
        program, library = os.path.join(place, "program"), os.path.join(place, "libwork.so")
        common = ["gcc", "-w", "-O2", "-Wl,--build-id=sha1", *options]
        if late:
            made = run(*common, "-fPIC", "-shared", *source, "-o", library)
            made = made if made.returncode else run(*common, "-DLATE", main, "-o", program)
        else:
            made = run(*common, main, *source, "-o", program)
        self.errors = made.stderr if made.returncode else ""
        self.file = library if late else program
        self.command = [program, library if late else "-"]

    def ends(self, traced_as=None):
        if traced_as:
            return traced(self.file, self.command, traced_as)
        return run(*self.command).stdout.splitlines(), 0


def fine(lines):
    return len(lines) == len(FINE) and all(a.startswith(b) for a, b in zip(lines, FINE))


def check(checks, reprobe, program, provider, per_call, steps, tracing):
    checks.name = program.name
    if not checks.equal("it is built", program.errors, ""):
        return
    for step in steps:
        said = run(reprobe, *step, program.file)
        checks.equal(" ".join(step), (said.returncode, "refused" in said.stderr), (0, False))
        lines, _ = program.ends()
        checks.true(f"{' '.join(step)}, untraced", fine(lines), str(lines))
        audit = run(reprobe, "audit", program.file)
        checks.true(f"{' '.join(step)}: audit is content", audit.returncode == 0, audit.stdout)
        if tracing:
            lines, hits = program.ends(provider)
            checks.true(f"{' '.join(step)}, traced", fine(lines), str(lines))
            checks.equal(f"{' '.join(step)}, hits", hits, CALLS * per_call)


def linux():
    return tuple(int(part) for part in re.match(r"(\d+)\.(\d+)", os.uname().release).groups())


def check_nop5(checks, reprobe, folder, tracing):
    source = os.path.join(folder, "nop5.c")
    with open(source, "w", encoding="ascii") as out:
        out.write(NOP5)
    program = Program(folder, "nop5", [source], ["-mno-red-zone"], False)
    checks.name = program.name
    if not checks.equal("it is built", program.errors, ""):
        return
    checks.true("untraced", fine(program.ends()[0]))
    audit = run(reprobe, "audit", program.file).stdout
    checks.true("audit: an error", "error nop5-fork" in audit and "it takes fork" in audit, audit)
    for kernel, there in (("6.16", False), ("6.17.3", True), ("7.1.0-13-amd64", True), ("7.2-rc1", False)):
        audit = run(reprobe, "audit", "--kernel", kernel, program.file).stdout
        checks.equal(f"audit --kernel {kernel}", "nop5-fork" in audit, there)
    checks.equal("no kernel", run(reprobe, "audit", "--kernel", "new", program.file).returncode, 2)
    library = Program(folder, "nop5", [source], ["-mno-red-zone"], True)
    audit = run(reprobe, "audit", library.file).stdout
    checks.true("audit of a library: a warning", "warning nop5-fork" in audit, audit)
    if tracing and (6, 17) <= linux() <= (7, 1):
        lines, _ = program.ends("old")
        checks.true("traced, the child dies", "child: signal 11" in lines, str(lines))
    elif tracing:
        print("NOTE: this kernel makes no call of a five-byte nop")


def check_sled_nop5(checks, reprobe, folder, source):
    program = Program(folder, "asks", [source], [], False)
    checks.name = program.name
    said = run(reprobe, "sled", "--kind=nop5", program.file)
    checks.true("sled --kind=nop5 asks", said.returncode == 4 and "nop5-fork" in said.stderr and
                "--allow-fork" in said.stderr, said.stderr)
    said = run(reprobe, "sled", "--kind=nop5", "--allow-fork", program.file)
    checks.true("sled --kind=nop5 --allow-fork", said.returncode == 0, said.stderr)


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    if os.uname().machine != "x86_64":
        environment.skip("the programs are written for x86-64")
    environment.need_tools(["gcc", "ld.lld", "bpftrace"])
    tracing = environment.can_trace()
    checks = Checks()
    reprobe = os.path.abspath(sys.argv[1])
    folder = tempfile.mkdtemp(prefix="reprobe-fork-")
    try:
        records = [os.path.join(FIXTURES, name) for name in ("legacy.c", "legacy_end.c")]
        sdt = os.path.join(folder, "sdt.c")
        with open(sdt, "w", encoding="ascii") as out:
            out.write(SDT)
        for late in (False, True):
            for form, number, provider in (("kprobe1", 3, "legacy"), ("utrace1", 4, "legacy"), ("kprobe2", 5, "old")):
                program = Program(folder, form, records, [f"-DLEGACY_FORM={number}", "-DLEGACY_COUNTERS=0"], late)
                check(checks, reprobe, program, provider, 21, [["fix"]], tracing)
            program = Program(folder, "sdt", [sdt], ["-fuse-ld=lld", "-ffunction-sections", "-Wl,--gc-sections"], late)
            check(checks, reprobe, program, "old", 12, [["fix"], ["sled"]], tracing)
        check_nop5(checks, reprobe, folder, tracing)
        check_sled_nop5(checks, reprobe, folder, sdt)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
