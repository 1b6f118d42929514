#!/usr/bin/env python3
"""slot_test.py REPROBE: sleds of the kind slot.

Programs with such sleds do what they did and give their original back; the index, read by
docs/format.md alone, names for each site the slot that the code of the sled tests, as objdump reads
that; and verify refuses each way in which the test, the call, the slot or the index may be wrong.
(What they do while slots are set is runtime_test.py's.)
"""
import os
import re
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tracers")]
# pylint: disable=wrong-import-position
import index_reader
from checks import Checks
from common import run

PROGRAM = os.path.join(HERE, "runtime_programs", "app.c")
BUILDS = {
    "gcc": ("gcc", "-O2"),
    "gcc no-pie": ("gcc", "-O2 -no-pie"),
    "gcc static cet": ("gcc", "-O2 -static -fcf-protection=full"),
    "gcc mold O0": ("gcc", "-O0 -fuse-ld=mold"),
    "clang lld": ("clang-14", "-O2 -fuse-ld=lld"),
}
SLOT = 24  # bytes


def slots_in_code(file):
    """{address of the sled: slot that the code behind its nops tests}, as objdump reads it."""
    text = run("objdump", "-d", "-j", ".text.reprobe", "--no-show-raw-insn", file).stdout
    lines = re.findall(r"^ +([0-9a-f]+):\t(.*)$", text, re.M)
    found = {}
    for at, (address, code) in enumerate(lines[:-6]):
        if code.strip() != "nop" or "nopw" not in lines[at + 1][1]:
            continue
        tests = [re.match(r"(?:cmpl +\$0x0,|mov +)-0x[0-9a-f]+\(%rip\).*# ([0-9a-f]+)", c)
                 for _, c in lines[at + 2:at + 5]]
        tests = [int(m[1], 16) for m in tests if m]
        if tests:
            found[int(address, 16)] = tests[0]
    return found


def read_index(file):
    with open(file, "rb") as whole:
        return index_reader.read(whole.read())


def section(file, name):
    """(address, offset, size)"""
    found = re.search(r"\] " + re.escape(name) + r" +\w+ +(\w+) (\w+) (\w+)",
                      run("readelf", "-SW", file).stdout)
    return tuple(int(x, 16) for x in found.groups()) if found else None


def check_build(checks, reprobe, folder, name):
    compiler, options = BUILDS[name]
    file = os.path.join(folder, re.sub(r"\W+", "-", name))
    out = file + ".slot"
    made = run(compiler, *options.split(), PROGRAM, "-o", file)
    if not checks.true(f"{name}: builds", made.returncode == 0, made.stderr):
        return None
    made = run(reprobe, "sled", "--kind=slot", file, "-o", out)
    if not checks.true(f"{name}: sled", made.returncode == 0, made.stderr):
        return None
    said, expected = run(out, "1000"), run(file, "1000")
    checks.equal(f"{name}: prints", (said.returncode, said.stdout), (0, expected.stdout))
    proof = run(reprobe, "verify", file, out)
    checks.equal(f"{name}: verify", proof.returncode, 0)
    address, offset, size = section(out, ".reprobe.slots")
    checks.equal(f"{name}: pages of slots", (address % 4096, size % 4096), (0, 0))
    with open(out, "rb") as whole:
        checks.true(f"{name}: slots are zeros", not any(whole.read()[offset:offset + size]))
    code = slots_in_code(out)
    entries = read_index(out).entries
    of_index = {e.site: e.slot for e in entries if e.kind == "sled-slot"}
    checks.true(f"{name}: slots", len(of_index) >= 6, str(of_index))
    checks.equal(f"{name}: slots of the index", of_index, code)
    checks.true(f"{name}: each its own, in the section",
                len(set(code.values())) == len(code) and
                all(address <= s <= address + size - SLOT for s in code.values()), str(code))
    back = run(reprobe, "sled", "--undo", out, "-o", out + ".back")
    with open(out + ".back", "rb") as a, open(file, "rb") as b:
        checks.true(f"{name}: undo gives the original", a.read() == b.read(), back.stderr)
    proof = run(reprobe, "verify", out, out + ".back")
    checks.equal(f"{name}: verify of undo", (proof.returncode, proof.stderr), (0, ""))
    again = run(reprobe, "sled", "--kind=nop10", out, "-o", out + ".nop10")
    alone = run(reprobe, "sled", "--kind=nop10", file, "-o", file + ".nop10")
    with open(out + ".nop10", "rb") as a, open(file + ".nop10", "rb") as b:
        checks.true(f"{name}: another kind is made of the original", a.read() == b.read(),
                    again.stderr + alone.stderr)
    return file, out


def check_forged(checks, reprobe, file, out):
    """One byte of each part of a sled is another."""
    text = run("objdump", "-d", "-j", ".text.reprobe", "--no-show-raw-insn", out).stdout
    address, offset, _ = section(out, ".text.reprobe")
    lines = [(int(a, 16), c) for a, c in re.findall(r"^ +([0-9a-f]+):\t(.*)$", text, re.M)]
    places = {}
    for at, code in lines:
        for what, pattern, byte in (
                ("the counter", r"cmpl +\$0x0", 2), ("what is compared", r"cmpl +\$0x0", 6),
                ("the condition", r"jne", 1), ("the call's way", r"jne", 2),
                ("the argument", r"push +-", 2), ("the entry", r"call +\*", 2),
                ("the red zone", r"lea +-0x80\(%rsp\)", 4), ("the stack", r"lea +0x88\(%rsp\)", 4),
                ("the load", r"mov +-.*\(%rip\).*,%ecx", 2), ("the test", r"jrcxz", 1),
                ("the register", r"push +%rcx", 0), ("another register", r"pop +%rcx", 0)):
            if what not in places and re.match(pattern, code):
                places[what] = offset + at - address + byte
    checks.equal("places to forge", len(places), 12)
    slots = section(out, ".reprobe.slots")
    index = read_index(out)
    slot_word = index.offset + 20 + 28 + 8
    places.update({"a slot": slots[1] + 4, "the last byte of the slots": slots[1] + slots[2] - 1,
                   "the index's slot": slot_word, "the index's kind": slot_word + 8})
    with open(out, "rb") as whole:
        good = whole.read()
    for what, place in places.items():
        with open(out + ".forged", "wb") as forged:
            forged.write(good[:place] + bytes([good[place] ^ 1]) + good[place + 1:])
        said = run(reprobe, "verify", "--second-opinion=never", file, out + ".forged")
        checks.equal(f"forged: {what}", said.returncode, 1)


def check_flags(checks, reprobe, folder):
    """Where the flags are used behind the site, and only there, the sled keeps them."""
    text = run("objdump", "-d", "-j", ".text.reprobe", os.path.join(folder, "gcc.slot")).stdout
    checks.equal("sleds that keep the flags", len(re.findall("jrcxz", text)), 1)
    listed = run(reprobe, "list", os.path.join(folder, "gcc.slot")).stdout
    checks.equal("kinds of list", set(re.findall(r"live +(\S+)", listed)), {"sled-slot"})


def main():
    reprobe = sys.argv[1]
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="slot-") as folder:
        for name in BUILDS:
            made = check_build(checks, reprobe, folder, name)
            if made and name == "gcc":
                check_forged(checks, reprobe, *made)
                check_flags(checks, reprobe, folder)
    return checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
