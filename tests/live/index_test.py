#!/usr/bin/env python3
"""index_test.py REPROBE FIXTURES SOURCE [ROOT]: an index says what the notes say, for good.

Fixtures of every linker and machine get an index; index_reader.py, written from docs/format.md,
reads it and builds the notes from it: they must be those of the file. The program still prints the
same, before and after a strip deletes its notes; reprobe fix writes them anew, byte for byte. A
program that finds its index with dl_iterate_phdr and the installed header prints what the reader
prints. ROOT holds unpacked Debian packages: libjvm.so, postgres and libpython are tried too.
"""
import json
import os
import re
import shlex
import shutil
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tracers")]
# pylint: disable=wrong-import-position
import elfparts
import index_reader
from common import run

FIXTURES = [f"{compiler}/{linker}/{mode}/{scenario}"
            for compiler, linkers, modes, scenarios in [
                ("gcc", ("bfd", "gold", "lld-19", "mold"), ("pie", "nopie", "static", "shared"),
                 ("plain",)),
                ("gcc", ("lld-14",), ("norosegment",), ("plain", "demo")),
                ("gcc", ("bfd", "lld-19"), ("pie",),
                 ("mass", "demo", "gc", "emitrelocs", "deep", "comdat", "sema-nogc")),
                ("clang", ("bfd", "lld-19"), ("shared",), ("sema", "sdt")),
                ("i386", ("lld-19",), ("pie", "static", "shared"), ("sema",)),
                ("x32", ("lld-19",), ("pie",), ("plain",)),
                *[(machine, ("lld-19",), modes, ("gc",))
                  for machine, modes in [("aarch64", ("pie", "static")), ("armhf", ("nopie",)),
                                         ("thumb", ("pie",)), ("ppc64le", ("pie", "static")),
                                         ("riscv64", ("pie",)), ("s390x", ("nopie", "shared"))]]]
            for linker in linkers for mode in modes for scenario in scenarios]
LIB = "usr/lib/x86_64-linux-gnu/"
REAL = ["usr/lib/jvm/java-17-openjdk-amd64/lib/server/libjvm.so",
        "usr/lib/postgresql/15/bin/postgres", LIB + "libpython3.11.so.1.0"]
# name: (compiler, emulator, options)
SELF = {
    "pie": ("gcc", "", "-pie -fPIE"), "nopie": ("gcc", "", "-no-pie"),
    "static": ("gcc", "", "-static"), "static-pie": ("gcc", "", "-static-pie -fPIE"),
    "gold": ("gcc", "", "-fuse-ld=gold"), "lld": ("gcc", "", "-fuse-ld=lld"),
    "mold": ("gcc", "", "-fuse-ld=mold"), "no-pie mold": ("gcc", "", "-no-pie -fuse-ld=mold"),
    "clang": ("clang-14", "", "-fPIE -pie"), "i386": ("i686-linux-gnu-gcc", "qemu-i386", "-static"),
    **{m: (f"{t}-gcc", f"qemu-{m}", "-static") for m, t in {
        "aarch64": "aarch64-linux-gnu", "arm": "arm-linux-gnueabihf", "s390x": "s390x-linux-gnu",
        "ppc64le": "powerpc64le-linux-gnu", "riscv64": "riscv64-linux-gnu"}.items()},
}
# A strip deletes the notes, and the loaded rest stays. GNU's keeps them: there the first does.
STRIPS = (["llvm-strip-19", "--strip-all"], ["objcopy", "-R", ".note.stapsdt"], ["llvm-objcopy-19", "--strip-sections"])

reprobe = ""
failures = []
counts = {}


def count(what):
    counts[what] = counts.get(what, 0) + 1


def check(good, what):
    count("checks")
    if not good:
        failures.append(what)
        print("FAILED:", str(what)[:2000], flush=True)
    return good


def bytes_of(name):
    with open(name, "rb") as file:
        return file.read()


def notes_of(name):
    """The contents of .note.stapsdt; None where there is none."""
    elf = elfparts.Elf(bytes_of(name))
    if elf.table == 0:
        return None
    found = [s for s in elf.sections if s.name == ".note.stapsdt"]
    return elf.data[found[0].offset:found[0].offset + found[0].size] if found else None


def split_notes(contents, order):
    """The notes of a section laid out for 4, one by one."""
    result, at = [], 0
    while at < len(contents):
        namesz = int.from_bytes(contents[at:at + 4], order)
        descsz = int.from_bytes(contents[at + 4:at + 8], order)
        size = 12 + (namesz + 3) // 4 * 4 + (descsz + 3) // 4 * 4
        result.append(contents[at:at + size])
        at += size
    return result


def lint(name):
    text = run("eu-elflint", "--gnu-ld", name).stdout
    # Numbers of sections and segments differ.
    # It takes no note of an owner that it does not know (check_note_data() of elfutils 0.188).
    return {re.sub(r"\d+", "N", line) for line in text.splitlines()
            if "No errors" not in line and "note type 1 with owner name 'reprobe'" not in line}


def relocations(name):
    # Its headings name offsets of sections.
    return [line for line in run("readelf", "-rW", name).stdout.splitlines() if "section" not in line]


def fix(name, out, expected=(0, 4)):
    """4: fix left something as it is, which the index has to refuse or to leave out."""
    done = run(reprobe, "fix", "--second-opinion=never", name, "-o", out)
    check(done.returncode in expected, f"fix {name}: {done.stderr}")


def index_of(name):
    index = index_reader.read(bytes_of(name))
    return check(index, f"{name}: no index is found") and index


def check_place(name, index):
    """In memory that is not writable, found by one program header, with a section of its own."""
    data = bytes_of(name)
    check(len(list(index_reader.index_notes(data))) == 1, f"{name}: several index notes")
    loads = [s for s in index_reader.segments(data)
             if s[0] == index_reader.PT_LOAD and s[2] <= index.offset < s[2] + s[4]]
    check(len(loads) == 1 and not loads[0][1] & 2, f"{name}: the index is in {loads}")
    if loads:
        check(index.offset + index.size <= loads[0][2] + loads[0][4] and
              index.offset - loads[0][2] == index.address - loads[0][3], f"{name}: it is not loaded")
    section = [s for s in elfparts.Elf(data).sections if s.name == ".note.reprobe"]
    check([(s.type, s.flags, s.address, s.offset, s.size, s.align) for s in section] ==
          [(7, 2, index.address, index.offset, index.size, 4)], f"{name}: {section}")


def check_says_notes(name, original, index):
    """Its notes are the file's, those left out are dangling."""
    order = "little" if index.order == "<" else "big"
    mine, notes = split_notes(index.notes(), order), split_notes(notes_of(original), order)
    left = iter(notes)
    check(all(any(note == other for other in left) for note in mine),
          f"{name}: a note of the index is not in the file, or not there")
    listed = json.loads(run(reprobe, "list", "--json", original).stdout)["files"][0]["probes"]
    live = [p for p in listed if p["verdict"] != "dangling"]
    check(len(mine) == len(live), f"{name}: {len(mine)} in the index, {len(live)} are not dangling")
    for entry, probe in zip(index.entries, live):
        size = {"nop": None, "nop5": None, "nop10": None}.get(probe["kind"], 0)
        if probe["kind"] in ("nop", "nop5", "nop10", "sled-nop5", "sled-nop10"):
            check(entry.kind == probe["kind"] and entry.resume == entry.site + entry.size != entry.site,
                  f"{name}: {entry} is {probe['kind']}")
        else:
            check(size == entry.size == entry.resume and entry.kind == "other", f"{name}: {entry}")


class Program:
    """How a fixture starts, and what it printed then."""

    def __init__(self, command, runs):
        self.command, self.runs = command, runs
        self.before = None

    def prints(self, name):
        if not self.runs:
            return None
        os.chmod(name, 0o755)
        done = run(*self.command, os.path.abspath(name), timeout=60)
        return done.returncode, done.stdout, done.stderr.replace(name, "")

    def check(self, name, label):
        if self.runs:
            check(self.prints(name) == self.before, f"{label}: prints {self.prints(name)}, not "
                  f"{self.before}")


def strip(command, name, out):
    """Whether the tool does it: none of binutils knows every machine."""
    if name != out:
        shutil.copy(name, out)
    names = [out] if command[0].startswith("llvm-strip") or command[0] == "objcopy" else [out, out]
    return shutil.which(command[0]) and run(*command, *names).returncode == 0


def check_strip(command, original, name, fixed, program, label):
    stripped, back = f"{name}.stripped", f"{name}.back"
    plain = f"{original}.stripped"
    if not strip(command, original, plain) or (program.runs and program.prints(plain) != program.before):
        return count("strips that the original does not survive")
    label += f", {' '.join(command)}"
    if not check(strip(command, name, stripped), f"{label}: the strip fails"):
        return None
    check(notes_of(stripped) is None, f"{label}: it keeps the notes")
    program.check(stripped, label)
    index = index_reader.read(bytes_of(stripped))
    before = index_reader.read(bytes_of(name))
    if not check(index and index.entries == before.entries, f"{label}: the index is lost"):
        return None
    listed = json.loads(run(reprobe, "list", "--json", stripped).stdout)["files"][0]
    check(listed.get("source") == "index" and
          [(int(p["site"], 16), p["name"]) for p in listed["probes"]] ==
          [(e.site, e.name.decode("latin-1")) for e in index.entries], f"{label}: list: {listed}")
    audited = run(reprobe, "audit", stripped)
    check(audited.returncode == 1 and "error notes-stripped" in audited.stdout,
          f"{label}: audit: {audited.stdout}")
    if "--strip-sections" in command:
        done = run(reprobe, "fix", stripped, "-o", back)
        return check(done.returncode == 4 and "section headers" in done.stderr, f"{label}: {done}")
    fix(stripped, back, (0,))
    check(notes_of(back) == notes_of(fixed), f"{label}: the notes are not those of the original")
    program.check(back, f"{label}, fix")
    # LIEF 0.9 compares each note with all others by their SHA-256: seconds for 3,000 notes.
    opinion = "never" if "mass" in label else "auto"
    done = run(reprobe, "verify", f"--second-opinion={opinion}", stripped, back)
    check(done.returncode == 0, f"{label}: verify: {done.stdout}")
    for again in (["fix", "--second-opinion=never"], ["relativize"]):
        run(reprobe, *again, back, "-o", f"{back}.2")
        check(bytes_of(back) == bytes_of(f"{back}.2"), f"{label}: {again[0]} again changes something")
    return count("files whose notes came back")


def try_file(original, program, label):
    """Of a file that fix has nothing to say about the notes come back as they were in it; of others
    as fix writes them."""
    program.before = program.prints(original)
    fixed, name = "fixed", "indexed"
    fix(original, fixed)
    if notes_of(original) == notes_of(fixed):
        count("files as they were linked")
    done = run(reprobe, "relativize", original, "-o", name)
    if done.returncode == 4 and "run reprobe fix first" in done.stderr:
        count("files that are fixed first")
        original = fixed
        done = run(reprobe, "relativize", original, "-o", name)
    if not check(done.returncode == 0, f"{label}: {done.stderr}"):
        return
    index = index_of(name)
    if not index:
        return
    check_place(name, index)
    check_says_notes(name, original, index)
    program.check(name, label)
    check(relocations(original) == relocations(name), f"{label}: readelf -r differs")
    check(lint(name) <= lint(original), f"{label}: eu-elflint: {lint(name) - lint(original)}")
    check(not run("readelf", "-lSnW", name).stderr.count("reprobe"), f"{label}: readelf warns")
    done = run(reprobe, "verify", original, name)
    check(done.returncode == 0, f"{label}: verify: {done.stdout}")
    run(reprobe, "relativize", name, "-o", f"{name}.2")
    check(bytes_of(name) == bytes_of(f"{name}.2"), f"{label}: relativize again changes something")
    for command in STRIPS:
        check_strip(command, original, name, fixed, program, label)


def fixtures(folder):
    for name in FIXTURES:
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            count("fixtures that no linker made")
            continue
        with open(path + ".json", encoding="utf-8") as file:
            manifest = json.load(file)
        host = [os.path.join(folder, manifest["host"])] if manifest["host"] else []
        try_file(path, Program(shlex.split(manifest["run"]) + host, not manifest["norun"]), name)


def real_files(root):
    for name in REAL:
        path = os.path.join(root, name)
        if not os.path.exists(path):
            print(f"left out: no {name} in {root}")
            continue
        try_file(path, Program([], False), os.path.basename(name))


def with_sleds(folder):
    """The index follows the notes to the sleds, and back."""
    for name in ("gcc/bfd/pie/mass", "gcc/lld-19/pie/plain", "gcc/mold/static/plain"):
        original, label = os.path.join(folder, name), f"{name}, sleds"
        if not check(os.path.exists(original), f"{label}: no such fixture"):
            continue
        for first, second in (("relativize", "sled"), ("sled", "relativize")):
            run(reprobe, first, original, "-o", "first")
            done = run(reprobe, second, "first", "-o", "second")
            if not check(done.returncode == 0, f"{label}: {first}, {second}: {done.stderr}"):
                continue
            index = index_of("second")
            moved = [e for e in index.entries if e.kind == "sled-nop10"]
            check(moved and all(e.size == 11 for e in moved), f"{label}: {index.entries[:5]}")
            check_says_notes(label, "second", index)
            done = run(reprobe, "verify", "first", "second")
            check(done.returncode == 0, f"{label}: verify: {done.stdout}")
            program = Program([], True)
            program.before = program.prints(original)
            program.check("second", f"{label}: {first}, {second}")
            if second == "sled":
                run(reprobe, "sled", "--undo", "second")
                check(bytes_of("first") == bytes_of("second"), f"{label}: --undo")


def with_fault(folder):
    """What fix would have mended is mended when the notes come back, and the index follows."""
    original = os.path.join(folder, "gcc/bfd/pie/sema-nogc")
    data = bytearray(bytes_of(original))
    notes = [s for s in elfparts.Elf(data).sections if s.name == ".note.stapsdt"][0]
    counter = slice(notes.offset + 20 + 16, notes.offset + 20 + 24)  # of the first note
    address = int.from_bytes(data[counter], "little")
    data[counter] = bytes(8)
    with open("faulty", "wb") as file:
        file.write(data)
    run(reprobe, "relativize", "faulty")
    check(index_of("faulty").entries[0].semaphore == 0 != address, "faulty: the counter is there")
    run("objcopy", "-R", ".note.stapsdt", "faulty")
    fix("faulty", "mended", (0,))
    check(notes_of("mended") == notes_of(original), "faulty: the notes are not those of the original")
    check(index_of("mended").entries[0].semaphore == address, "faulty: the index has not followed")


def in_process(source):
    """The program's own words against the reader's."""
    for label, (compiler, emulator, options) in SELF.items():
        if not shutil.which(compiler) or (emulator and not shutil.which(emulator)):
            count("compilers that are not here")
            continue
        name = "self"
        built = run(compiler, "-std=gnu99", "-O1", "-Wall", "-Wextra", "-Werror", "-DPROBE_SEMAPHORES=1",
                    f"-I{source}/include", f"-I{source}/fixtures", *options.split(),
                    os.path.join(HERE, "index_self.c"), "-o", name)
        if not check(built.returncode == 0, f"{label}: {built.stderr}"):
            continue
        command = [emulator] if emulator else []
        plain = run(*command, os.path.abspath(name)).stdout
        done = run(reprobe, "relativize", name)
        index = check(done.returncode == 0, f"{label}: {done.stderr}") and index_of(name)
        if not index:
            continue
        check(len(index.entries) >= 3 and all(e.semaphore for e in index.entries),
              f"{label}: {index.entries}")
        for strip_it in (False, True):
            if strip_it and not strip(STRIPS[-1], name, name):
                continue
            lines = run(*command, os.path.abspath(name)).stdout.splitlines()
            check(lines[:1] in (["mapped r--p"], ["mapped r-xp"]), f"{label}: {lines[:1]}")
            check(lines[1:-1] == [e.line() for e in index.entries], f"{label}: {lines}")
            check(lines[-1:] == plain.splitlines(), f"{label}: {lines[-1:]}")
        count("programs that found their probes")


def main():
    global reprobe
    if len(sys.argv) < 4:
        print(__doc__, file=sys.stderr)
        return 2
    reprobe = os.path.abspath(sys.argv[1])
    folder, source = map(os.path.abspath, sys.argv[2:4])
    root = os.path.abspath(sys.argv[4]) if len(sys.argv) > 4 else "/"
    if os.uname().machine != "x86_64" or not shutil.which("gcc") or not shutil.which("readelf"):
        print("SKIP: it builds and runs x86-64 programs")
        return 77
    with tempfile.TemporaryDirectory(prefix="reprobe-index-") as work:
        os.chdir(work)
        in_process(source)
        with_sleds(folder)
        with_fault(folder)
        fixtures(folder)
        real_files(root)
        os.chdir("/")
    print(", ".join(f"{number} {what}" for what, number in sorted(counts.items())))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
