#!/usr/bin/env python3
"""sled_sound_test.py REPROBE: odd code with sleds does what it did, or is left alone for a reason.

Each file of sled_programs/sound says how it is built (`// build:`), with which options it gets sleds
(`// sled:`), how it is stripped (`// strip:`) and how many sleds it gets at least (`// sleds:`).
NAME_main.c is linked with NAME. What the program prints before is what it prints after, for both
kinds; the original comes back byte for byte. Sleds that are made again, in two steps or of another
kind, are those that are made at once.
"""
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tracers")]
# pylint: disable=wrong-import-position
import environment
from checks import Checks
from common import run

SOURCES = os.path.join(HERE, "sled_programs", "sound")
KINDS = ["nop10", "nop5"]
# Behind a site's one-byte nop libbpf takes these for the place to attach.
BAD_NOPS = bytes([0x90, 0x0F, 0x1F, 0x44, 0, 0])
CALLER = b"int work(void);int main(void){return work();}"
# A loop that never ends and whose every instruction is in a stub, beside a probe that runs.
ENDLESS = r"""
#include <stdio.h>
#include <sys/sdt.h>
volatile int q;
__attribute__((noinline)) void step(void) { q++; }
__attribute__((noinline)) int work(int x) { DTRACE_PROBE1(t, work, x); return x * 3 + 1; }
__attribute__((noinline)) void loop(void) {
#if V == 1
  for (;;) { DTRACE_PROBE(t, a); DTRACE_PROBE(t, b); DTRACE_PROBE(t, c); }
#elif V == 2
  for (;;) { DTRACE_PROBE(t, a); step(); }
#else
  for (;;) { q = 1; DTRACE_PROBE(t, a); }
#endif
}
int main(int c, char **v) { (void)v; if (c > 50) loop(); printf("%d\n", work(c)); return 0; }
"""


# No instruction of five bytes, each pop has another row, and a branch leads to the site.
POPS = """
#include <sys/sdt.h>
    .globl work
work:
    .cfi_startproc
    push %rbx
    .cfi_adjust_cfa_offset 8
    push %rbp
    .cfi_adjust_cfa_offset 8
    push %r12
    .cfi_adjust_cfa_offset 8
    mov %edi, %eax
    test %al, %al
    jz 1f
    inc %eax
1:  STAP_PROBE(t, pops)
    pop %r12
    .cfi_adjust_cfa_offset -8
    pop %rbp
    .cfi_adjust_cfa_offset -8
    pop %rbx
    .cfi_adjust_cfa_offset -8
    ret
    .cfi_endproc
    .section .note.GNU-stack,"",@progbits
"""


def read(path):
    with open(path, "rb") as file:
        return file.read()


def stated(text, what):
    return re.findall(rf"^// {what}: (.*)$", text, re.M)


def build(command, source, folder):
    """(program, file that gets sleds); nothing where the compiler is not there or cannot."""
    base = os.path.splitext(source)[0]
    parts = [os.path.join(SOURCES, source)]
    if os.path.exists(os.path.join(SOURCES, base + "_main.c")):
        parts.append(os.path.join(SOURCES, base + "_main.c"))
    library = "-DLIB" in command
    program = os.path.join(folder, "program")
    made = os.path.join(folder, "lib.so") if library else program
    argv = shlex.split(command)
    if run(argv[0], "-w", *argv[1:], *parts, "-o", made).returncode != 0:
        return None
    if library:
        subprocess.run(["gcc", "-x", "c", "-", "-x", "none", "-o", program, made,
                        "-Wl,-rpath,$ORIGIN"], input=CALLER, check=True)
    return program, made


def notes_of(path):
    said = run("readelf", "-n", "-W", path).stdout
    return [int(at, 16) for at in re.findall(r"Location: 0x(\w+)", said)]


def bytes_at(path, address):
    said = run("objdump", "-s", f"--start-address={address:#x}", f"--stop-address={address + 6:#x}",
               path).stdout
    found = re.findall(r"^ [0-9a-f]+ ((?:[0-9a-f]+ )+)", said, re.M)
    return bytes.fromhex("".join(found).replace(" ", ""))


def result_of(program):
    try:
        done = subprocess.run([program], capture_output=True, timeout=20, check=False)
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired:
        return "does not end", b""


def check_case(checks, reprobe, source, command, folder):
    with open(os.path.join(SOURCES, source), encoding="utf-8") as file:
        text = file.read()
    built = build(command, source, folder)
    if built is None:
        print(f"not built here: {command} {source}")
        return
    program, made = built
    for strip in stated(text, "strip"):
        run(*shlex.split(strip), made)
    original, expected = read(made), result_of(program)
    for kind in KINDS:
        checks.name = f"{source}, {command}, {kind}"
        before = os.path.join(folder, "before")
        with open(before, "wb") as file:
            file.write(original)
        os.chmod(before, 0o755)
        options = [word for line in stated(text, "sled") for word in shlex.split(line)]
        said = run(reprobe, "sled", f"--kind={kind}", *options, "--json", before, "-o", made)
        if not checks.equal("exit", said.returncode, 0):
            print(said.stderr)
            continue
        sites = json.loads(said.stdout)["sites"]
        for least in stated(text, "sleds"):
            checks.true(f"at least {least} sleds", len(sites) >= int(least), said.stdout)
        checks.equal("does what it did", result_of(program), expected)
        for note in notes_of(made):
            checks.true(f"no five-byte nop behind the nop at {note:#x}",
                        bytes_at(made, note) != BAD_NOPS)
        if sites:
            back = os.path.join(folder, "back")
            run(reprobe, "sled", "--undo", made, "-o", back)
            checks.true("undo gives the original", read(back) == original)


def check_endless(checks, reprobe, folder):
    source = os.path.join(folder, "endless.c")
    with open(source, "w", encoding="utf-8") as file:
        file.write(ENDLESS)
    for way in (1, 2, 3):
        made, out = os.path.join(folder, "endless"), os.path.join(folder, "endless.out")
        run("gcc", "-w", "-O2", f"-DV={way}", source, "-o", made)
        for kind in KINDS:
            checks.name = f"endless loop {way}, {kind}"
            checks.equal("exit", run(reprobe, "sled", f"--kind={kind}", made, "-o", out).returncode, 0)
            checks.equal("prints", result_of(out), result_of(made))


def check_again(checks, reprobe, folder):
    """Steps and one go give the same; what is undone is the original; nothing to do is a copy."""
    checks.name = "sled again"
    made = os.path.join(folder, "made")
    run("gcc", "-w", "-O2", os.path.join(HERE, "sled_programs", "work.c"), "-o", made)
    names = sorted({line.split()[1] for line in re.findall(r"Name: .*", run("readelf", "-n", made)
                                                          .stdout)})
    path = {k: os.path.join(folder, k) for k in ("all", "all5", "one", "none", "index", "back", "s")}

    def sled(*arguments):
        return run(reprobe, "sled", *arguments).returncode

    checks.equal("none selected", (sled("-p", "no:such", made, "-o", path["none"]),
                                   read(path["none"]) == read(made)), (0, True))
    sled(made, "-o", path["all"])
    sled("--kind=nop5", made, "-o", path["all5"])
    checks.equal("one", sled("-p", f"*:{names[0]}", made, "-o", path["one"]), 0)
    checks.true("one is not all", read(path["one"]) != read(path["all"]))
    checks.equal("the others", sled(path["one"]), 0)
    checks.true("as if at once", read(path["one"]) == read(path["all"]))
    checks.equal("another kind", sled("--kind=nop5", path["one"]), 0)
    checks.true("that kind", read(path["one"]) == read(path["all5"]))
    checks.equal("nothing to do", sled(path["one"], "-o", path["s"]), 0)
    checks.true("is a copy", read(path["s"]) == read(path["one"]))
    run(reprobe, "relativize", path["all"], "-o", path["index"])
    checks.equal("undo with an index", sled("--undo", path["index"], "-o", path["back"]), 0)
    checks.true("gives the original", read(path["back"]) == read(made))
    run("strip", path["all"])
    said = run(reprobe, "sled", "--undo", path["all"], "-o", path["back"])
    checks.equal("undo after strip", said.returncode, 4)
    checks.true("says why", "was changed after reprobe wrote it" in said.stderr, said.stderr)


def check_unsafe(checks, reprobe, folder):
    """What breakpoints would break is named, and left alone where that is asked for."""
    checks.name = "breakpoints"
    source, made = os.path.join(folder, "pops.S"), os.path.join(folder, "pops.so")
    with open(source, "w", encoding="utf-8") as file:
        file.write(POPS)
    run("gcc", "-shared", source, "-o", made)
    said = run(reprobe, "sled", "--json", made, "-o", made + ".out")
    checks.equal("named", [site.get("breakpoints") for site in json.loads(said.stdout)["sites"]],
                 ["unsafe"])
    checks.true("counted", "1 of them change code that breakpoints" in said.stderr, said.stderr)
    said = run(reprobe, "sled", "--json", "--debuggable", made, "-o", made + ".out")
    checks.equal("refused", len(json.loads(said.stdout)["refused"]), 1)


def check_epilogue(checks, reprobe, folder):
    """A five-byte sled behind a pop that the unwind table does not know leaves the popped slot alone."""
    checks.name = "epilogue"
    source, made = os.path.join(folder, "epilogue.S"), os.path.join(folder, "epilogue.so")
    lower = bytes.fromhex("488d642480")  # lea -128(%rsp),%rsp
    for known in (True, False):
        text = POPS.replace(
            "1:  STAP_PROBE(t, pops)\n", "1:\n").replace(
            "    ret\n", (".cfi_restore %rbx\n.cfi_restore %rbp\n.cfi_restore %r12\n" if known else "")
            + "STAP_PROBE(t, pops)\n    mov $7, %edx\n    ret\n")
        text = text.replace("push %rbx\n    .cfi_adjust_cfa_offset 8",
                            "push %rbx\n    .cfi_adjust_cfa_offset 8\n    .cfi_rel_offset %rbx, 0")
        with open(source, "w", encoding="utf-8") as file:
            file.write(text)
        run("gcc", "-shared", source, "-o", made)
        said = run(reprobe, "sled", "--kind=nop5", "--json", made, "-o", made + ".out")
        sled = int(json.loads(said.stdout)["sites"][0]["to"], 16)
        checks.equal(f"guarded, {known}", bytes_at(made + ".out", sled - 5)[:5] == lower, not known)


def check_kept_relocations(checks, reprobe, folder):
    checks.name = "kept relocations"
    made = os.path.join(folder, "kept")
    run("gcc", "-w", "-O2", "-Wl,--emit-relocs", os.path.join(HERE, "sled_programs", "work.c"),
        "-o", made)
    said = run(reprobe, "sled", made)
    checks.equal("exit", said.returncode, 4)
    checks.true("names the first", "the first in .rela" in said.stderr, said.stderr)


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    if os.uname().machine != "x86_64":
        environment.skip("sleds are for x86-64")
    environment.need_tools(["gcc", "g++", "clang-14", "readelf", "objdump", "strip"])
    checks, reprobe = Checks(), os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="reprobe-sled-sound-") as folder:
        for source in sorted(os.listdir(SOURCES)):
            if "_main." in source or source == "gdb_breaks.c":
                continue
            with open(os.path.join(SOURCES, source), encoding="utf-8") as file:
                commands = stated(file.read(), "build")
            for number, command in enumerate(commands):
                place = os.path.join(folder, f"{source}.{number}")
                os.mkdir(place)
                check_case(checks, reprobe, source, command, place)
        check_endless(checks, reprobe, folder)
        check_again(checks, reprobe, folder)
        check_unsafe(checks, reprobe, folder)
        check_epilogue(checks, reprobe, folder)
        check_kept_relocations(checks, reprobe, folder)
    return checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
