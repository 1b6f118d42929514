#!/usr/bin/env python3
"""forgery_test.py REPROBE: verify refuses results that were changed to do something else.

A program is rewritten by each command; verify proves the result. Then the result is forged: it loads
other bytes, starts elsewhere, unwinds elsewhere or says something else of itself. Where the forged
program starts, it has to print something else than the true one, so that each forgery is shown to
be one. verify has to refuse each, and to name the address where there is one.
"""

import os
import re
import struct
import subprocess
import sys

from command import Tests, read, write

t = Tests(sys.argv[1])
SOURCE = r"""
#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>
#include <stdio.h>
#define COUNTER __attribute__((section(".probes"))) unsigned short
COUNTER demo_one_semaphore, demo_two_semaphore, demo_dead_semaphore;
const char kText[8192] = "the text";
__attribute__((noinline)) int work(int a, volatile int* b) {
  if (__builtin_expect(demo_one_semaphore, 0)) STAP_PROBE1(demo, one, a);
  *b += a;
  return a * 2;
}
void never(void) { STAP_PROBE(demo, dead); }
int other(void) { puts("elsewhere"); return 0; }
int main(int argc, char** argv) {
  int b = 0;
  for (int i = 0; i < 3; ++i) printf("%d %s\n", work(argc + i, &b), kText);
  STAP_PROBE2(demo, two, argc, argv);
  return 0;
}
"""
write("demo.c", SOURCE.encode())
PAGE = 4096
PT_LOAD, PT_NOTE, PT_EH_FRAME = 1, 4, 0x6474e550
EHDR = "<16sHHIQQQIHHHHHH"
FIELDS = ("ident type machine version entry phoff shoff flags ehsize phentsize phnum shentsize "
          "shnum shstrndx").split()


class Elf:
    """A little-endian ELF64 file to change."""

    def __init__(self, path):
        self.data = bytearray(read(path))
        self.head = dict(zip(FIELDS, struct.unpack_from(EHDR, self.data)))

    def header(self, i):
        at = self.head["phoff"] + 56 * i
        return dict(zip("type flags offset vaddr paddr filesz memsz align".split(),
                        struct.unpack_from("<IIQQQQQQ", self.data, at)))

    def headers(self):
        return [self.header(i) for i in range(self.head["phnum"])]

    def sections(self):
        names = ("name", "type", "flags", "addr", "offset", "size", "link", "info", "align",
                 "entsize")
        found = []
        for i in range(self.head["shnum"]):
            at = self.head["shoff"] + 64 * i
            found.append(dict(zip(names, struct.unpack_from("<IIQQQQIIQQ", self.data, at)), at=at))
        strings = found[self.head["shstrndx"]]["offset"]
        for section in found:
            begin = strings + section["name"]
            section["name"] = self.data[begin:self.data.index(b"\0", begin)].decode()
        return found

    def name_of(self, entry):
        begin = self.section(".strtab")["offset"] + struct.unpack_from("<I", self.data, entry)[0]
        return self.data[begin:self.data.index(b"\0", begin)].decode()

    def section(self, name):
        return next(s for s in self.sections() if s["name"] == name)

    def offset(self, address):
        """Where the bytes of the last PT_LOAD over the address stand."""
        for h in reversed(self.headers()):
            if h["type"] == PT_LOAD and h["vaddr"] <= address < h["vaddr"] + h["filesz"]:
                return address - h["vaddr"] + h["offset"]
        raise LookupError(hex(address))

    def append_page(self, page=b""):
        self.data += bytes(-len(self.data) % PAGE)
        at = len(self.data)
        self.data += page + bytes(PAGE - len(page))
        return at

    def set_head(self, **fields):
        self.head.update(fields)
        struct.pack_into(EHDR, self.data, 0, *(self.head[f] for f in FIELDS))

    def add_loads(self, *loads):
        """The header table moves into a page of its own, with more entries."""
        top = max(h["vaddr"] + h["memsz"] for h in self.headers() if h["type"] == PT_LOAD)
        address = (top + PAGE - 1) // PAGE * PAGE + PAGE
        table = b""
        at = self.append_page()
        loads = loads + (dict(type=PT_LOAD, flags=4, offset=at, vaddr=address, filesz=PAGE),)
        for h in self.headers() + list(loads):
            if h["type"] == 6:
                h.update(offset=at, vaddr=address, paddr=address)
            h.setdefault("paddr", h["vaddr"])
            h.setdefault("memsz", h["filesz"])
            h.setdefault("align", PAGE)
            table += struct.pack("<IIQQQQQQ", *(h[f] for f in (
                "type", "flags", "offset", "vaddr", "paddr", "filesz", "memsz", "align")))
        self.data[at:at + len(table)] = table
        self.set_head(phoff=at, phnum=self.head["phnum"] + len(loads))


def symbol(path, name):
    text = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
    return int(re.search(rf"^(\w+) . {name}$", text, re.M).group(1), 16)


COMMANDS = {
    "fix": ["fix"],
    "sled": ["sled"],
    "guards-site": ["guards", "--to", "site"],
    "guards-on": ["guards", "--to", "on"],
    "relativize": ["relativize"],
}


# --- Forgeries: each changes an Elf and gives the address that verify has to name, or None --------

def load_over_a_page(elf):
    text = symbol("app", "kText")
    page = text // PAGE * PAGE
    begin = elf.offset(page)
    copy = bytes(elf.data[begin:begin + PAGE]).replace(b"the text", b"a forgery"[:8])
    at = elf.append_page(copy)
    elf.add_loads(dict(type=PT_LOAD, flags=4, offset=at, vaddr=page, filesz=PAGE))
    return text


def section_elsewhere(elf):
    section = elf.section(".rodata")
    begin = section["offset"]
    at = len(elf.data)
    elf.data += elf.data[begin:begin + section["size"]]
    struct.pack_into("<Q", elf.data, section["at"] + 24, at)
    text = symbol("app", "kText")
    place = elf.offset(text)
    elf.data[place:place + 8] = b"a forger"
    return text


def starts_elsewhere(elf):
    elf.set_head(entry=elf.head["entry"] + 1)


def header_field(field):
    def forge(elf):
        if isinstance(field, int):
            elf.data[field] ^= 1
        else:
            elf.set_head(**{field: elf.head[field] ^ 1})
    return forge


def unwinds_elsewhere(where):
    """One entry more, in the middle of a function or in front of it; a stub's gives way."""
    def forge(elf):
        hdr = next(h for h in elf.headers() if h["type"] == PT_EH_FRAME)
        base, place = hdr["vaddr"], hdr["offset"]
        count, = struct.unpack_from("<I", elf.data, place + 8)
        rows = [struct.unpack_from("<ii", elf.data, place + 12 + 8 * i) for i in range(count)]
        main = symbol("app", "main")
        fde = next(f for start, f in rows if start + base != main)
        stub = max(rows) if max(rows)[0] + base > main else min(rows)
        rows.remove(stub)
        rows.append((main + where - base, fde))
        for i, row in enumerate(sorted(rows)):
            struct.pack_into("<ii", elf.data, place + 12 + 8 * i, *row)
        return main + where
    return forge


def load_over_unloaded(elf):
    section = elf.section(".comment")
    begin = section["offset"] // PAGE * PAGE
    elf.data[section["offset"]] ^= 1
    elf.add_loads(dict(type=PT_LOAD, flags=4, offset=begin, vaddr=0x40000000,
                       filesz=section["offset"] + section["size"] - begin))


def many_headers(elf):
    """The table is said to reach over the code."""
    text = symbol("app", "other")
    place = elf.offset(text)
    elf.set_head(phnum=(place + 64 - elf.head["phoff"]) // 56)
    elf.data[place] ^= 1


def writable_code(elf):
    i = next(i for i, h in enumerate(elf.headers()) if h["type"] == PT_LOAD and h["flags"] == 5)
    elf.data[elf.head["phoff"] + 56 * i + 4] |= 2
    return elf.header(i)["vaddr"]


def larger_bss(elf):
    i = next(i for i, h in enumerate(elf.headers()) if h["type"] == PT_LOAD and h["flags"] == 6)
    at = elf.head["phoff"] + 56 * i + 40
    struct.pack_into("<Q", elf.data, at, struct.unpack_from("<Q", elf.data, at)[0] + 0x10000)
    return None


def other_section_name(elf):
    section = elf.section(".text")
    struct.pack_into("<Q", elf.data, section["at"] + 16, section["addr"] + 16)


FORGERIES = {
    "a segment over a loaded page": load_over_a_page,
    "a section header that leads elsewhere": section_elsewhere,
    "e_entry": starts_elsewhere,
    "e_flags": header_field("flags"),
    "e_type": header_field("type"),
    "e_version": header_field("version"),
    "e_ehsize": header_field("ehsize"),
    "EI_OSABI": header_field(7),
    "EI_ABIVERSION": header_field(8),
    "EI_PAD": header_field(9),
    "an unloaded section that is loaded": load_over_unloaded,
    "e_phnum": many_headers,
    "code that can be written": writable_code,
    "a larger .bss": larger_bss,
    "sh_addr": other_section_name,
}
UNWINDING = {
    "an FDE in the middle of a function": unwinds_elsewhere(4),
    "an FDE in front of a function": unwinds_elsewhere(-1),
}

# --- Forgeries that no program notices, and that the command would not have made -----------------

SLED = b"\x90\x66\x2e\x0f\x1f\x84" + bytes(5)
UNNOTICED = {}  # name: (program, commands, forgery)


def unnoticed(name, program, *commands):
    def keep(forge):
        UNNOTICED[name] = (program, commands, forge)
        return forge
    return keep


@unnoticed("another form of the sled's nop", "app", "sled")
def other_nop(elf):
    elf.data[elf.data.index(SLED, elf.section(".text.reprobe")["offset"]) + 5] = 0x94


@unnoticed("a note that names the second nop of a sled", "app", "sled")
def second_nop(elf):
    notes = elf.section(".note.stapsdt")
    sled = elf.data.index(SLED, elf.section(".text.reprobe")["offset"])
    section = elf.section(".text.reprobe")
    address = struct.pack("<Q", sled - section["offset"] + section["addr"])
    elf.data[elf.data.index(address, notes["offset"])] += 1


@unnoticed("zeros behind the stubs", "app", "sled")
def zeros_behind(elf):
    section = elf.section(".text.reprobe")
    end = section["offset"] + section["size"]
    filler = end if elf.data[end] == 0xcc else elf.data.rindex(0xcc, section["offset"], end)
    elf.data[filler] = 0


@unnoticed("sh_addralign", "app", "sled", "guards-site")
def other_alignment(elf):
    name = ".text.reprobe" if b".text.reprobe" in elf.data else ".reprobe.undo.site"
    struct.pack_into("<Q", elf.data, elf.section(name)["at"] + 48, 8)


@unnoticed("new section headers swapped", "app", "sled")
def swapped_headers(elf):
    first, second = elf.section(".text.reprobe")["at"], elf.section(".eh_frame.reprobe")["at"]
    one, other = elf.data[first:first + 64], elf.data[second:second + 64]
    elf.data[first:first + 64], elf.data[second:second + 64] = other, one


def leads_to_a_copy(name):
    def forge(elf):
        section = elf.section(name)
        copy = elf.data[section["offset"]:section["offset"] + section["size"]]
        struct.pack_into("<Q", elf.data, section["at"] + 24, len(elf.data))
        elf.data += copy
    return forge


for copied in (".note.stapsdt", ".strtab", ".symtab"):
    unnoticed(f"{copied} leads to a copy", "app", "guards-site", "guards-on")(
        leads_to_a_copy(copied))


@unnoticed("sh_info of .symtab", "app", "guards-site", "guards-on")
def other_info(elf):
    struct.pack_into("<I", elf.data, elf.section(".symtab")["at"] + 44, 1)


@unnoticed("zeros behind the file", "app", *COMMANDS)
def longer(elf):
    elf.data += bytes(16)


@unnoticed("the index lacks probes", "app", "relativize")
def lacks_probes(elf):
    elf.data[elf.section(".note.reprobe")["offset"] + 40] ^= 1


@unnoticed("a symbol of what moved", "one segment", "relativize")
def unmoved_symbol(elf):
    at = symbol("one segment", "__abi_tag")
    symbols = elf.section(".symtab")
    for entry in range(symbols["offset"], symbols["offset"] + symbols["size"], 24):
        if elf.section(".strtab") and elf.name_of(entry) == "__abi_tag":
            assert struct.unpack_from("<Q", elf.data, entry + 8)[0] != at
            struct.pack_into("<Q", elf.data, entry + 8, at)


@unnoticed("an FDE of .debug_frame that is longer", "static", "sled")
def longer_record(elf):
    section = elf.section(".debug_frame")
    at, end = section["offset"], section["offset"] + section["size"]
    while at < end:
        size, kind = struct.unpack_from("<II", elf.data, at)
        if kind != 0xffffffff:
            elf.data[at + 16] += 1
            return
        at += 4 + size


PRINTS = {"a segment over a loaded page", "a section header that leads elsewhere"}


def run(path):
    os.chmod(path, 0o755)
    try:
        done = subprocess.run([os.path.abspath(path)], capture_output=True, timeout=20, check=False)
    except OSError as error:  # the kernel refuses it
        return str(error)
    return done.returncode, done.stdout


subprocess.run(["gcc", "-O2", "-o", "app", "demo.c"], check=True)
subprocess.run(["gcc", "-O2", "-Wl,-z,noseparate-code", "-Wl,-z,norelro", "-o", "one segment", "demo.c"],
               check=True)
subprocess.run(["gcc", "-O2", "-static", "-fuse-ld=lld", "-o", "static", "demo.c"], check=True)
for what, command in COMMANDS.items():
    made = t.run(*command, "app", "-o", "true")
    t.check(f"{what}: made", made.code in (0, 4), made.text())
    name = ["--command", what]
    for stated in ([], name):
        verified = t.run("verify", "app", "true", *stated, "--second-opinion=never")
        t.check(f"{what}: {stated} is proven", verified.code == 0, verified.text())
    t.same(f"{what}: prints", run("app"), run("true"))
    unwinding = UNWINDING if what == "sled" or (what == "guards-site" and
                                                b".eh_frame.reprobe" in read("true")) else {}
    for forgery, forge in (FORGERIES | unwinding).items():
        elf = Elf("true")
        address = forge(elf)
        write("forged", elf.data)
        if forgery in PRINTS:
            t.check(f"{what}: {forgery}: is one", run("forged") != run("app"))
        for stated in ([], name):
            verified = t.run("verify", "app", "forged", *stated, "--second-opinion=never")
            good = verified.code == 1 and (address is None or f"{address:#x}" in verified.out)
            t.check(f"{what}: {stated} {forgery}: refused, {address and hex(address)} is named",
                    good, verified.text())

for forgery, (program, commands, forge) in UNNOTICED.items():
    for what in commands:
        made = t.run(*COMMANDS[what], program, "-o", "true")
        t.check(f"{what} of {program}: made", made.code in (0, 4), made.text())
        elf = Elf("true")
        true = bytes(elf.data)
        forge(elf)
        t.check(f"{what} of {program}: {forgery}: is one", true != bytes(elf.data))
        write("forged", elf.data)
        verified = t.run("verify", program, "forged", "--command", what, "--second-opinion=never")
        t.check(f"{what} of {program}: {forgery}: refused", verified.code == 1, verified.text())

# --- Relocations as bionic's dynamic linker has them ---------------------------------------------

def sleb128(value):
    out = bytearray()
    while True:
        byte, value = value & 0x7f, value >> 7
        last = value == (-1 if byte & 0x40 else 0)
        out.append(byte | (0 if last else 0x80))
        if last:
            return bytes(out)


def pack_relocations(elf, place):
    """One group of one relocation instead of DT_RELA's table."""
    dynamic = elf.section(".dynamic")
    tags = {7: 0x60000011, 8: 0x60000012}
    for at in range(dynamic["offset"], dynamic["offset"] + dynamic["size"], 16):
        tag, = struct.unpack_from("<Q", elf.data, at)
        struct.pack_into("<Q", elf.data, at, tags.get(tag, tag))
    table = elf.section(".rela.dyn")
    packed = b"APS2" + b"".join(map(sleb128, (1, 0, 1, 8, place, 8, 0)))
    elf.data[table["offset"]:table["offset"] + len(packed)] = packed


t.run("sled", "app", "-o", "true")
site = next(at for at in range(symbol("app", "work"), symbol("app", "work") + 64)
            if read("app")[Elf("app").offset(at)] != read("true")[Elf("app").offset(at)])
for where, written in ((site, True), (Elf("app").section(".data")["addr"], False)):
    for name in ("app", "true"):
        elf = Elf(name)
        pack_relocations(elf, where)
        write(name + ".packed", elf.data)
    verified = t.run("verify", "app.packed", "true.packed", "--second-opinion=never")
    t.check(f"a packed relocation of {where:#x}",
            (f"writes at {where:#x}" in verified.out) == written and
            "packed relocations" not in verified.out, verified.text())

# What was asked decides, not what the result looks like.
for what, command in COMMANDS.items():
    t.run(*command, "app", "-o", "true")
    for other in COMMANDS:
        if other == what or what == "fix":  # there, nothing but notes changes
            continue
        verified = t.run("verify", "app", "true", "--command", other, "--second-opinion=never")
        t.check(f"{what} is no {other}", verified.code == 1, verified.text())
t.finish()
