#!/usr/bin/env python3
"""make_seeds.py FOLDER: writes small valid ELF files with probes, for the fuzzer to start from.

Each class, byte order, file type and machine, and each feature that the readers look at: symbols,
unwind information with and without its search table, kept relocations, semaphores, every note
layout, notes of other owners, files without section headers. The same names and bytes every time.
"""
import pathlib
import struct
import sys

EXEC, DYN, REL = 2, 3, 1
PROGBITS, SYMTAB, STRTAB, RELA, NOTE, NOBITS, RELTYPE, DYNSYM = 1, 2, 3, 4, 7, 8, 9, 11
WRITE, ALLOC, CODE = 1, 2, 4

# name: (class, order, e_machine, nop, return, absolute word relocation, arguments)
MACHINES = {
    "x86_64": (64, "<", 62, "90", "c3", 1, "-4@%edi 8@-8(%rbp) 4@$5"),
    "x32": (32, "<", 62, "90", "c3", 10, "4@%eax 4@8(%esp)"),
    "i386": (32, "<", 3, "90", "c3", 1, "4@%eax -4@4(%esp,%ecx,4)"),
    "aarch64": (64, "<", 183, "1f2003d5", "c0035fd6", 257, "-4@[sp, 8] 8@x0 4@5"),
    "aarch64_be": (64, ">", 183, "1f2003d5", "c0035fd6", 257, "8@[x0, x1]"),
    "arm": (32, "<", 40, "00f020e3", "1eff2fe1", 2, "4@[r1, #4] 4@r0"),
    "thumb": (32, "<", 40, "00bf", "7047", 2, "4@r3"),
    "armeb": (32, ">", 40, "e320f000", "e12fff1e", 2, "4@#7"),
    "ppc64le": (64, "<", 21, "00000060", "2000804e", 38, "8@9 4@i5 8@8(1)"),
    "ppc64": (64, ">", 21, "60000000", "4e800020", 38, "8@r9 8@9,3"),
    "s390x": (64, ">", 22, "47000000", "07fe", 22, "8@%r2 4@160(%r15)"),
    "s390": (32, ">", 22, "47000000", "07fe", 4, "4@%r2"),
    "riscv64": (64, "<", 243, "0100", "8280", 2, "8@a0 4@-20(s0)"),
    "riscv32": (32, "<", 243, "13000000", "67800000", 1, "4@a0 4@3"),
}


class Section:
    def __init__(self, name, kind, data=b"", flags=0, align=1, link="", info="", entsize=0, size=None):
        self.name, self.kind, self.data, self.flags, self.align = name, kind, data, flags, align
        self.link, self.info, self.entsize = link, info, entsize
        self.size = len(data) if size is None else size
        self.offset = self.addr = 0


class Elf:
    def __init__(self, machine, kind):
        self.kind, self.machine = kind, MACHINES[machine]
        self.base = 0x10000 if kind == EXEC else 0  # address of offset 0
        self.wide, self.order = self.machine[0] == 64, self.machine[1]
        self.word = 8 if self.wide else 4
        self.nop, self.ret = bytes.fromhex(self.machine[3]), bytes.fromhex(self.machine[4])
        self.sections = [Section("", 0)]
        self.segments = []

    def pack(self, layout, *values):  # 'N': an address or offset field of the class
        return struct.pack(self.order + layout.replace("N", "Q" if self.wide else "I"), *values)

    def add(self, *args, **named):
        self.sections.append(Section(*args, **named))
        return self.sections[-1]

    def note(self, location, base=0, semaphore=0, name="hit", provider="app", arguments=None,
             align=4, owner=b"stapsdt\0", number=3, tail=b""):
        text = self.machine[6] if arguments is None else arguments
        desc = self.pack("NNN", location, base, semaphore)
        desc += b"".join(s.encode() + b"\0" for s in (provider, name, text)) + tail
        pad = lambda b: b + b"\0" * (-len(b) % align)
        return pad(pad(self.pack("III", len(owner), len(desc), number) + owner) + desc)

    def symbol(self, name, value, size, info, shndx):
        if self.wide:
            return self.pack("IBBHQQ", name, info, 0, shndx, value, size)
        return self.pack("IIIBBH", name, value, size, info, 0, shndx)

    def relocation(self, offset, symbol, number, addend):
        info = symbol << 32 | number if self.wide else symbol << 8 | number
        return self.pack("NN", offset, info) + self.pack("N", addend % (1 << 8 * self.word))

    def place(self):
        """Gives each section its offset, and its address in a linked file."""
        at = (64 if self.wide else 52) + len(self.segments) * (56 if self.wide else 32)
        for section in self.sections[1:]:
            at += -at % section.align
            section.offset = at
            if section.flags & ALLOC and self.kind != REL:
                section.addr = self.base + at
            if section.kind != NOBITS:
                at += section.size
        return at + -at % 8

    def build(self, headers=True):
        names = b"\0"
        offsets = []
        self.add(".shstrtab", STRTAB)
        for section in self.sections:
            offsets.append(len(names) if section.name else 0)
            names += section.name.encode() + b"\0" if section.name else b""
        self.sections[-1].data, self.sections[-1].size = names, len(names)
        shoff = self.place()
        index = {s.name: i for i, s in enumerate(self.sections)}
        out = self.header(shoff if headers else 0)
        for kind, flags, first, last in self.segments:
            out += self.program_header(kind, flags, self.sections[index[first]],
                                       self.sections[index[last]], first == "")
        for section in self.sections[1:]:
            out += b"\0" * (section.offset - len(out)) + section.data
        if not headers:
            return out
        out += b"\0" * (shoff - len(out))
        for section, name in zip(self.sections, offsets):
            info = index.get(section.info, section.info or 0)
            out += self.pack("IINNNNIINN", name, section.kind, section.flags, section.addr,
                             section.offset, section.size, index.get(section.link, 0), info,
                             section.align if section.name else 0, section.entsize)
        return out

    def header(self, shoff):
        ident = bytes([0x7F, 0x45, 0x4C, 0x46, 2 if self.wide else 1, 1 if self.order == "<" else 2, 1])
        phnum = len(self.segments)
        sizes = (64, 56, 64) if self.wide else (52, 32, 40)
        sections = (len(self.sections), len(self.sections) - 1) if shoff else (0, 0)
        return ident.ljust(16, b"\0") + self.pack(
            "HHINNNIHHHHHH", self.kind, self.machine[2], 1, 0, sizes[0] if phnum else 0, shoff, 0,
            sizes[0], sizes[1], phnum, sizes[2], *sections)

    def program_header(self, kind, flags, first, last, headers):
        """From section `first` to the end of `last`; or of the headers, up to `last`."""
        if headers:
            place = (0, self.base, self.base, last.offset, last.offset)
        else:
            memory = last.offset + last.size - first.offset
            size = memory - (last.size if last.kind == NOBITS else 0)
            place = (first.offset, first.addr, first.addr, size, memory)
        if self.wide:
            return self.pack("IIQQQQQQ", kind, flags, *place, 0x1000)
        return self.pack("IIIIIIII", kind, *place, flags, 0x1000)


FUNCTION = 64  # bytes from one function to the next
COUNT = 4


def function(elf, extra=0):
    """A function with a probe behind its first instruction; padded with nops."""
    code = elf.nop * (1 + extra) + elf.ret
    return code.ljust(FUNCTION, b"\0") if FUNCTION % len(elf.nop) else (
        code + elf.nop * ((FUNCTION - len(code)) // len(elf.nop))).ljust(FUNCTION, b"\0")


def frames(elf, text, frame):
    """.eh_frame for all functions, absolute pointers of four bytes relative to their place."""
    body = elf.pack("I", 0) + b"\1zR\0" + bytes([1, 0x78, 16, 1, 0x1B]) + b"\0" * 3
    out = elf.pack("I", len(body)) + body
    places = []
    for i in range(COUNT):
        at = len(out)
        places.append(at)
        start = text.addr + FUNCTION * i - (frame.addr + at + 8)
        body = elf.pack("I", at + 4) + struct.pack(elf.order + "iI", start, FUNCTION) + b"\0" * 4
        out += elf.pack("I", len(body)) + body
    return out + elf.pack("I", 0), places


def search_table(elf, text, frame, header, places):
    out = bytes([1, 0x1B, 3, 0x3B])
    out += struct.pack(elf.order + "iI", frame.addr - (header.addr + 4), COUNT)
    for i, place in enumerate(places):
        out += struct.pack(elf.order + "ii", text.addr + FUNCTION * i - header.addr,
                           frame.addr + place - header.addr)
    return out


def notes_for(elf, text, base, probes, layout, dead):
    """Live notes, among them `dead` dangling ones; `layout` says how they stand in the section."""
    align = 8 if layout == "eight" else 4
    where = base.addr if base else 0
    lengths, out = [], b""

    def put(note):
        nonlocal out
        lengths.append(len(out))
        out += note
        if layout == "gaps":
            out += b"\0" * (4 if len(out) % 8 else 0)

    for i in range(COUNT):
        counter = probes.addr + 2 * i if probes else 0
        tail = b"\0\0" if layout == "counted" else b""
        put(elf.note(text.addr + FUNCTION * i, where, counter, "hit%d" % i, align=align, tail=tail))
        for k in range(dead):
            put(elf.note(4 * (i * dead + k), where, 0, "gone%d" % (k % 10), align=align))
    if layout == "foreign":
        put(elf.note(0, owner=b"GNU\0", number=1, align=align))
        put(elf.note(text.addr, where, 0, "odd", number=4))
        put(elf.pack("III", 8, 3, 3) + b"stapsdt\0" + b"\1\2\3\0")
    return out, lengths


def kept_relocations(elf, starts, dead):
    """What --emit-relocs leaves: R_*_NONE for the dangling notes."""
    entries = b""
    for i, start in enumerate(starts):
        live = i % (dead + 1) == 0
        entries += elf.relocation(start + 20, 1 if live else 0, elf.machine[5] if live else 0,
                                  FUNCTION * (i // (dead + 1)))
    elf.add(".rela.note.stapsdt", RELA, entries, 0x40, elf.word, ".symtab", ".note.stapsdt",
            3 * elf.word)


RELATIVE = {62: 8, 3: 8, 22: 12}  # R_*_RELATIVE by e_machine


def load_relocations(elf, text, note, starts):
    """Of loaded notes: a relative one, one with a symbol, one that does nothing, in turn."""
    entries = b""
    for i, start in enumerate(starts):
        kind, symbol = ((RELATIVE[elf.machine[2]], 0), (elf.machine[5], 1), (0, 0))[i % 3]
        place = note.addr + start + 20
        entries += elf.relocation(place, symbol, kind, FUNCTION * i + (0 if symbol else text.addr))
    return entries


def linked(machine, kind, symbols=True, unwind="table", base=True, semaphores=True, layout="four",
           dead=0, kept=False, headers=True, bits=True, loaded=False, build_id=False):
    elf = Elf(machine, kind)
    text = elf.add(".text", PROGBITS, b"".join(function(elf, i % 3) for i in range(COUNT)),
                   ALLOC | CODE, 16)
    if not bits:
        text.kind, text.size, text.data = NOBITS, len(text.data), b""
    base = elf.add(".stapsdt.base", PROGBITS, b"\0", ALLOC) if base else None
    header = elf.add(".eh_frame_hdr", PROGBITS, b"\0" * (12 + 8 * COUNT), ALLOC, 4) \
        if unwind == "table" else None
    frame = elf.add(".eh_frame", PROGBITS, b"", ALLOC, 8) if unwind else None
    if frame:
        frame.size = len(frames(elf, text, frame)[0])
    probes = elf.add(".probes", PROGBITS, b"\0\0" * COUNT, ALLOC | WRITE, 2) if semaphores else None
    if build_id:
        elf.add(".note.gnu.build-id", NOTE,
                elf.pack("III", 4, 20, 3) + b"GNU\0" + bytes(range(20)), ALLOC, 4)
    note = elf.add(".note.stapsdt", NOTE, b"", ALLOC if loaded else 0, 8 if layout == "eight" else 4)
    elf.segments = [(1, 4, "", ".text"), (1, 5, ".text", (frame or header or base or text).name)]
    if probes:
        elf.segments.append((1, 6, ".probes", ".probes"))
    if header:
        elf.segments.append((0x6474E550, 4, ".eh_frame_hdr", ".eh_frame_hdr"))
    if build_id:
        elf.segments.append((4, 4, ".note.gnu.build-id", ".note.gnu.build-id"))
    # Sizes first: addresses follow from them.
    data, starts = notes_for(elf, text, base, probes, layout, dead)
    note.size = len(data)
    if loaded:
        elf.segments.append((1, 6, ".note.stapsdt", ".note.stapsdt"))
        names = lambda: elf.symbol(0, 0, 0, 0, 0) + elf.symbol(1, text.addr, 0, 0x12, 1)
        dynsym = elf.add(".dynsym", DYNSYM, names(), ALLOC, elf.word, ".dynstr", 1,
                         24 if elf.wide else 16)
        elf.add(".dynstr", STRTAB, b"\0first\0", ALLOC)
        load = elf.add(".rela.dyn", RELA, load_relocations(elf, text, note, starts), ALLOC,
                       elf.word, ".dynsym", 0, 3 * elf.word)
    elf.place()
    if frame:
        frame.data, places = frames(elf, text, frame)
        if header:
            header.data = search_table(elf, text, frame, header, places)
    note.data, starts = notes_for(elf, text, base, probes, layout, dead)
    if symbols or kept:
        add_symbols(elf, text)
    if loaded:
        load.data, dynsym.data = load_relocations(elf, text, note, starts), names()
    if kept:
        kept_relocations(elf, starts, dead)
    return elf.build(headers)


def add_symbols(elf, text, extended=False):
    strings = b"\0$t\0"
    entries = elf.symbol(0, 0, 0, 0, 0) + elf.symbol(0, text.addr, 0, 3, 1)
    entries += elf.symbol(1, text.addr, 0, 0, 1)  # Thumb code, to a reader that knows such symbols
    for i in range(COUNT):
        thumb = 1 if elf.nop == bytes.fromhex("00bf") else 0
        size = 0 if i == 3 else FUNCTION
        entries += elf.symbol(len(strings), text.addr + FUNCTION * i + thumb, size, 0x12,
                              0xFFFF if extended else 1)
        strings += b"live%d\0" % i
    elf.add(".symtab", SYMTAB, entries, 0, elf.word, ".strtab", 3, 24 if elf.wide else 16)
    elf.add(".strtab", STRTAB, strings)
    if extended:  # more sections than a symbol can name: their numbers stand in another section
        elf.add(".symtab_shndx", 18, elf.pack("I", 1) * (3 + COUNT), 0, 4, ".symtab", 0, 4)


def relocatable(machine, kind="rela", extended=False):
    elf = Elf(machine, REL)
    text = elf.add(".text", PROGBITS, b"".join(function(elf) for _ in range(COUNT)), ALLOC | CODE, 16)
    elf.add(".probes", PROGBITS, b"\0\0", ALLOC | WRITE, 2)
    elf.add(".stapsdt.base", PROGBITS, b"\0", ALLOC)
    data, entries = b"", b""
    for i in range(COUNT):
        for k, (symbol, addend) in enumerate(((1, FUNCTION * i), (2, 0))):
            entries += elf.relocation(len(data) + 20 + k * elf.word, symbol if i else 0,
                                      elf.machine[5], addend)
            if kind == "rel":
                entries = entries[:-elf.word]
        data += elf.note(FUNCTION * i if kind == "rel" else 0)
    elf.add(".note.stapsdt", NOTE, data, 0, 4)
    add_symbols(elf, text, extended)
    elf.add(".rel" + kind[3:] + ".note.stapsdt", RELTYPE if kind == "rel" else RELA, entries, 0x40,
            elf.word, ".symtab", ".note.stapsdt", (2 if kind == "rel" else 3) * elf.word)
    return elf.build()


def seeds():
    for machine in MACHINES:
        yield machine + "-dyn", linked(machine, DYN)
        yield machine + "-exec-dead", linked(machine, EXEC, dead=1, base=False, kept=True)
        yield machine + "-rela", relocatable(machine)
    for machine in ("x86_64", "i386", "s390x"):
        yield machine + "-rel", relocatable(machine, "rel")
        yield machine + "-kept", linked(machine, DYN, dead=2, kept=True, unwind="")
        yield machine + "-run", linked(machine, DYN, dead=6, symbols=False)
        yield machine + "-walk", linked(machine, EXEC, dead=1, unwind="walk", symbols=False)
        for layout in ("eight", "gaps", "counted", "foreign"):
            yield machine + "-" + layout, linked(machine, DYN, layout=layout, dead=1)
        yield machine + "-plain", linked(machine, DYN, unwind="", semaphores=False, dead=1)
        yield machine + "-no-headers", linked(machine, EXEC, headers=False)
        yield machine + "-debug", linked(machine, DYN, bits=False, dead=1)
        yield machine + "-loaded", linked(machine, DYN, loaded=True, dead=1)
        yield machine + "-build-id", linked(machine, DYN, dead=1, build_id=True, unwind="")
        yield machine + "-extended", relocatable(machine, extended=True)


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in seeds():
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
