#!/usr/bin/env python3
"""layout_test.py LAYOUT_TOOL: programs and libraries that were given room still run.

Every kind of file that linkers make gets a small and a large room. It must start, print what it
printed, and come through GNU strip, objcopy, eu-strip and llvm-strip where the original does; its
headers must satisfy readelf, eu-elflint and gdb, and AT_PHDR must be right by the rule of Linux
before 5.18 as well. A jump into the room shows that it is executable.
"""
import collections
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

import elfparts

PROGRAM = r"""
#define _GNU_SOURCE
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <unistd.h>
__asm__(".text\n.globl site\n.type site,@function\nsite: movl $1, %%eax\nret\n.size site, 5\n");
int site(void);
__thread int in_tls = 7;
static volatile char bss[BSS];
static int seen;
/* The first object is the program: its headers are those of AT_PHDR, with the room among them. */
static int look(struct dl_phdr_info *info, size_t size, void *data) {
  const ElfW(Phdr) *headers = (const ElfW(Phdr) *)getauxval(AT_PHDR);
  if (seen++) return 1;
  if (info->dlpi_phdr != headers || info->dlpi_phnum != getauxval(AT_PHNUM)) return 1;
  for (int i = 0; i < info->dlpi_phnum; ++i)
    if (headers[i].p_type == PT_LOAD && headers[i].p_vaddr <= (ElfW(Addr))site - info->dlpi_addr &&
        (ElfW(Addr))site - info->dlpi_addr < headers[i].p_vaddr + headers[i].p_memsz)
      *(int *)data = 1;
  return 0;
}
int main(void) {
  int found = 0;
  long sum = 0;
  for (size_t i = 0; i < BSS; i += 512) sum += bss[i];
  for (size_t i = 0; i < BSS; i += 4096) bss[i] = 1;
  char *heap = sbrk(1 << 20);
  for (int i = 0; i < 1 << 20; i += 4096) heap[i] = 1;
  dl_iterate_phdr(look, &found);
  printf("site %%d tls %%d bss %%ld headers %%d\n", site(), in_tls, sum, found);
  return 0;
}
""".replace("%%", "%")

CPLUSPLUS = r"""
#include <cstdio>
#include <stdexcept>
__attribute__((noinline)) void deep(int i) { if (i == 0) throw std::runtime_error("thrown"); deep(i - 1); }
int main() {
  try { deep(3); } catch (const std::exception& e) { std::puts(e.what()); }
}
"""

LIBRARY_USER = "int site(void); int printf(const char*, ...); int main(void) " \
               "{ printf(\"site %d\\n\", site()); return 0; }"
LIBRARY = """
static volatile char bss[BSS];
__asm__(".text\\n.globl site\\n.type site,@function\\nsite: movl $1, %eax\\nret\\n.size site, 5\\n");
int touch(void) { return bss[1]; }
"""

HELLO = "#include <stdio.h>\nstatic volatile char b[BSS];\n" \
        "int main(void) { printf(\"hello %d\\n\", b[5]); return 0; }"

LINKERS = ("bfd", "gold", "lld", "mold")
KINDS = {"pie": ["-pie", "-fPIE"], "nopie": ["-no-pie"], "static": ["-static"],
         "static-pie": ["-static-pie", "-fPIE"]}
SMALL, LARGE = 64, 20000
STRIPS = (["strip"], ["strip", "-g"], ["objcopy"], ["eu-strip"], ["llvm-strip-14"],
          ["llvm-strip-19"])

tool = ""
failures = []
counts = collections.Counter()


def check(good, what):
    counts["checks"] += 1
    if not good:
        failures.append(what)
        print("FAIL:", what, flush=True)


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120,
                          **options)
    return done.returncode, done.stdout, done.stderr


def build(name, source, *flags, compiler="gcc", language="c"):
    """A program from source; nothing where the toolchain cannot make it."""
    code, _, errors = run(compiler, "-x", language, "-", "-x", "none", "-O1", "-o", name, *flags,
                          input=source)
    if code != 0:
        counts["not built"] += 1
        print(f"not built: {name}: {errors.strip().splitlines()[-1:]}")
        return None
    return name


def headers(name):
    """The program headers as tuples (type, offset, vaddr, filesz, memsz), and e_phoff."""
    with open(name, "rb") as file:
        elf = elfparts.Elf(file.read())
    offset, table = elf.program_headers()
    layout, fields = ("IIQQQQQQ", (0, 2, 3, 5, 6)) if elf.wide else ("8I", (0, 1, 2, 4, 5))
    return offset, [tuple(entry[i] for i in fields)
                    for entry in struct.iter_unpack(elf.order + layout, table)]


def symbol(name, wanted):
    for line in run("nm", name)[1].splitlines():
        if line.endswith(f" {wanted}"):
            return "0x" + line.split()[0]
    return None


def warnings(name):
    return run("readelf", "-lSW", name)[2]


def lint(name):
    text = run("eu-elflint", "--gnu-ld", name)[1]
    # Numbers of sections and segments differ.
    return {re.sub(r"\d+", "N", line) for line in text.splitlines() if "No errors" not in line}


def give_room(name, size, *options, out=None):
    out = out or f"{name}.{size}"
    code, output, errors = run(tool, name, out, str(size), *options)
    if code != 0:
        return None, errors.strip()
    os.chmod(out, 0o755)
    kind, address, offset = output.split()
    counts[kind] += 1
    return (out, kind, int(address, 16), int(offset, 16)), ""


def check_headers(name, out, program, label):
    offset, table = headers(out)
    loads = [entry for entry in table if entry[0] == 1]
    check(loads == sorted(loads, key=lambda entry: entry[2]), f"{label}: PT_LOADs are not ascending")
    ends = [entry[2] + entry[4] for entry in loads]
    check(all(end <= load[2] for end, load in zip(ends, loads[1:])), f"{label}: PT_LOADs overlap")
    holders = [e for e in loads if e[1] <= offset < e[1] + e[3]]
    for entry in table:
        if entry[0] == 6:
            check(entry[1] == offset and holders and
                  entry[2] == offset - holders[-1][1] + holders[-1][2], f"{label}: PT_PHDR is wrong")
    if program:
        # load_elf_binary() before 5.18, and from 5.18 on.
        old = loads[0][2] - loads[0][1] + offset
        check(holders and old == offset - holders[-1][1] + holders[-1][2],
              f"{label}: AT_PHDR differs between kernels")
    check(not warnings(out), f"{label}: readelf warns: {warnings(out)}")
    check(lint(out) <= lint(name), f"{label}: eu-elflint: {lint(out) - lint(name)}")


def check_strips(name, room, start, label):
    """`start(file)` gives what the file prints."""
    out, kind, address, _ = room
    for command in STRIPS:
        # libelf fills with zeros what no section covers, a moved table too (find_room()).
        if not shutil.which(command[0]) or (kind == "moved_headers" and command[0] == "eu-strip"):
            continue
        results = []
        for file in (name, out):
            stripped = f"{file}.stripped"
            names = [file, stripped] if command[0] == "objcopy" else ["-o", stripped, file]
            if os.path.exists(stripped):
                os.remove(stripped)
            results.append(run(*command, *names)[0] == 0 and start(stripped))
        if not results[0]:
            counts["strips that break the original"] += 1
            continue
        check(results[0] == results[1], f"{label}: {' '.join(command)}: {results[1]}")
        sections = run("readelf", "-SW", f"{out}.stripped")[1]
        check(re.search(rf"\.text\.reprobe +PROGBITS +0*{address:x} ", sections),
              f"{label}: {' '.join(command)}: the room's section is gone or moved")


def prints(name, **options):
    code, output, _ = run(os.path.abspath(name), **options)
    return (code, output)


def try_program(name, sizes=(SMALL, LARGE), may_refuse=False, strips=True, patch=True):
    before = prints(name)
    check(before[0] == 0, f"{name}: the original does not run: {before}")
    for size in sizes:
        label = f"{name}, {size} bytes"
        room, why = give_room(name, size)
        if room is None:
            check(may_refuse, f"{label}: refused: {why}")
            continue
        out = room[0]
        label += f", {room[1]}"
        check(prints(out) == before, f"{label}: prints {prints(out)}, not {before}")
        check_headers(name, out, True, label)
        if strips:
            check_strips(name, room, prints, label)
        site = patch and symbol(name, "site")
        if site:
            room, why = give_room(name, size, "--patch", site, out=f"{name}.patched")
            wanted = (0, before[1].replace("site 1", "site 2"))
            check(room and prints(room[0]) == wanted, f"{label}: the jump: {why}")
        code, _, errors = run(tool, out, f"{out}.twice", str(size))
        check(code == 4 and "before" in errors, f"{label}: a second room: {errors}")


def linkers_and_kinds():
    for linker in LINKERS:
        for kind, flags in KINDS.items():
            for bss in (1000, 110_000_000):
                name = build(f"{linker}-{kind}-{bss}", PROGRAM, f"-fuse-ld={linker}", *flags,
                             f"-DBSS={bss}")
                if name:
                    # The linkers' static files are alike; strips of each are slow.
                    try_program(name, sizes=(LARGE,) if bss > 1000 else (SMALL, LARGE),
                                strips=bss > 1000 or linker == "bfd")


def options_of_linkers():
    variants = {
        "noseparate": ["-Wl,-z,noseparate-code"], "separate": ["-Wl,-z,separate-code"],
        "pages-64k": ["-Wl,-z,max-page-size=0x10000"], "pages-2m": ["-Wl,-z,max-page-size=0x200000"],
        "now": ["-Wl,-z,relro,-z,now"], "norelro": ["-Wl,-z,norelro"],
        "cet": ["-fcf-protection=full"], "no-id": ["-Wl,--build-id=none"],
        "emit-relocs": ["-Wl,--emit-relocs"], "stripped": ["-s"],
    }
    for linker in LINKERS:
        for variant, flags in variants.items():
            name = build(f"{linker}-{variant}", PROGRAM, f"-fuse-ld={linker}", "-DBSS=100000", *flags)
            if not name:
                continue
            try_program(name, strips=False, sizes=(LARGE,))
            if variant == "cet":
                notes = [run("readelf", "-nW", file)[1] for file in (name, f"{name}.{LARGE}")]
                check("IBT" not in notes[0] or notes[0] == notes[1], f"{name}: properties changed")


def many_headers():
    """Sections far from each other have a PT_LOAD each."""
    parts = "".join(f'__asm__(".section .far{i},\\"a\\"\\n.quad 0\\n.text\\n");\n' for i in range(52))
    places = [f"-Wl,--section-start=.far{i}={0x10000000 + 0x100000 * i:#x}" for i in range(52)]
    name = build("many", PROGRAM + parts, "-DBSS=1000", "-no-pie", *places)
    if name:
        count = len(headers(name)[1])
        check(count >= 60, f"many: only {count} program headers")
        try_program(name, strips=False)


def patchelfed():
    if not shutil.which("patchelf"):
        print("no patchelf")
        return
    for kind in ("pie", "nopie"):
        name = build(f"patchelf-{kind}", PROGRAM, "-DBSS=200000", *KINDS[kind])
        run("patchelf", "--set-rpath", "/" + "long/" * 60, name)
        try_program(name, sizes=(SMALL, LARGE, 100000))


def foreign_note():
    """A note of an unknown owner behind the headers: it stays, and the table moves."""
    note = (r'__asm__(".pushsection .note.own,\"a\",%note\n.balign 4\n.long 4,4,1\n"'
            r'".asciz \"own\"\n.long 7\n.popsection");')
    for linker in ("gold", "lld", "mold"):
        for kind in ("pie", "nopie"):
            name = build(f"own-{linker}-{kind}", PROGRAM + note, f"-fuse-ld={linker}",
                         "-DBSS=1000", *KINDS[kind])
            if name:
                try_program(name, sizes=(LARGE,))
    check(counts["moved_headers"] != 0, "no table has moved")


def libraries():
    for linker in LINKERS:
        for bss in (100, 300_000):
            folder = f"{linker}-{bss}"
            os.makedirs(folder)
            name = build(f"{folder}/libsite.so", LIBRARY, f"-fuse-ld={linker}", "-shared", "-fPIC",
                         f"-DBSS={bss}")
            # By its name alone: a path would lead to the original.
            user = build(f"user-{folder}", LIBRARY_USER, f"-L{folder}", "-lsite")
            if not name or not user:
                continue

            def start(file):
                os.makedirs("use", exist_ok=True)
                shutil.copy(file, "use/libsite.so")
                return prints(user, env={**os.environ, "LD_LIBRARY_PATH": "use"})

            check(start(name) == (0, "site 1\n"), f"{name}: {start(name)}")
            for size in (SMALL, LARGE):
                room, why = give_room(name, size)
                label = f"{name}, {size} bytes"
                check(room, f"{label}: refused: {why}")
                if not room:
                    continue
                label += f", {room[1]}"
                check(start(room[0]) == (0, "site 1\n"), f"{label}: {start(room[0])}")
                check_headers(name, room[0], False, label)
                check_strips(name, room, start, label)
                room, why = give_room(name, size, "--patch", symbol(name, "site"),
                                      out=f"{name}.patched")
                check(room and start(room[0]) == (0, "site 2\n"), f"{label}: the jump: {why}")


def eh_frame_hdr():
    for linker in LINKERS:
        name = build(f"throw-{linker}", CPLUSPLUS, f"-fuse-ld={linker}", compiler="g++",
                     language="c++")
        if not name:
            continue
        for size in (SMALL, LARGE):
            room, why = give_room(name, size, "--eh-frame-hdr")
            check(room and prints(room[0]) == (0, "thrown\n"), f"{name}: {why}")
            if room:
                header = [e for e in headers(room[0])[1] if e[0] == 0x6474e550][0]
                check(header[1:] == (room[3] + 32, room[2] + 32, 8, 8), f"{name}: {header}")


def interpreter():
    """No kernel before 6.7 starts a program whose ld.so has another segment."""
    found = "/lib64/ld-linux-x86-64.so.2"
    if not os.path.exists(found):
        return
    shutil.copy(found, "ld.so")
    room, why = give_room("ld.so", 100000)
    check(room is None and "dynamic linker" in why, f"ld.so: {why}")
    room, why = give_room("ld.so", SMALL)
    check(room and room[1] == "gap", f"ld.so: {why}")
    if room:
        check(prints(room[0], )[0] != -11 and run(os.path.abspath(room[0]), "/bin/true")[0] == 0,
              "ld.so with room does not start a program")


def other_ends():
    name = build("plain", PROGRAM, "-DBSS=1000")
    with open(name, "rb") as file:
        data = file.read()
    with open("overlay", "wb") as file:
        file.write(data + b"appended data" * 500)
    os.chmod("overlay", 0o755)
    try_program("overlay", strips=False)
    with open("overlay", "rb") as file:
        before = file.read()
    with open(f"overlay.{LARGE}", "rb") as file:
        after = file.read()
    check(after[len(data):len(before)] == before[len(data):], "the appended data has changed")
    with open("no-sections", "wb") as file:
        file.write(data[:0x28] + bytes(8) + data[0x30:0x3C] + bytes(4) + data[0x40:])
    room, why = give_room("no-sections", SMALL)
    check(room is None and "section headers" in why, f"no-sections: {why}")
    if shutil.which("gdb"):
        _, text, errors = run("gdb", "-nx", "-batch", "-ex", "info files", f"overlay.{LARGE}")
        check(".text.reprobe" in text and "warning" not in errors.lower(), f"gdb: {errors}")


def other_machines():
    """qemu's loader computes AT_PHDR by the old rule; these machines have pages of up to 64 KiB."""
    for triple, emulator in (("aarch64-linux-gnu", "qemu-aarch64"), ("i686-linux-gnu", "qemu-i386"),
                             ("powerpc64le-linux-gnu", "qemu-ppc64le"),
                             ("s390x-linux-gnu", "qemu-s390x"), ("riscv64-linux-gnu", "qemu-riscv64"),
                             ("arm-linux-gnueabihf", "qemu-arm")):
        emulator = shutil.which(emulator) or shutil.which(emulator + "-static")
        if not emulator or not shutil.which(f"{triple}-gcc"):
            counts["machines without tools"] += 1
            continue
        for bss in (10, 5_000_000):
            name = build(f"{triple}-{bss}", HELLO, "-static", f"-DBSS={bss}",
                         compiler=f"{triple}-gcc")
            for size in (SMALL, LARGE) if name else ():
                room, why = give_room(name, size)
                check(room, f"{name}: refused: {why}")
                if not room:
                    continue
                check(run(emulator, room[0])[:2] == (0, "hello 0\n"), f"{name}: {room[1]}: "
                      f"{run(emulator, room[0])}")
                check_headers(name, room[0], True, f"{name}, {room[1]}")


def main():
    global tool
    tool = os.path.abspath(sys.argv[1])
    if os.uname().machine != "x86_64" or not shutil.which("gcc"):
        print("SKIP: it builds and runs x86-64 programs")
        sys.exit(77)
    parts = sys.argv[2:] or ["linkers_and_kinds", "options_of_linkers", "many_headers", "patchelfed",
                             "foreign_note", "libraries", "eh_frame_hdr", "interpreter", "other_ends",
                             "other_machines"]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for part in parts:
            globals()[part]()
        os.chdir("/")
    print(dict(counts))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
