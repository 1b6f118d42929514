"""Faults put into linked files byte by byte: what linkers, objcopy, prelink and hand-made tools do to
notes and headers. Each takes the bytes of a 64-bit little-endian file and returns others."""
import struct

import elfparts

# Elf64_Shdr, Elf64_Phdr, Elf64_Sym and the note's descriptor: where the fields are.
SHDR = {"flags": (8, "Q"), "size": (32, "Q"), "link": (40, "I"), "info": (44, "I"), "align": (48, "Q")}
PT_LOAD, PF_X, PF_W, SHF_ALLOC, SHN_ABS = 1, 1, 2, 2, 0xFFF1


def section(elf, name):
    return next(i for i, s in enumerate(elf.sections) if s.name == name)


def put_header(data, elf, name, field, value):
    offset, layout = SHDR[field]
    struct.pack_into("<" + layout, data, elf.table + section(elf, name) * elf.entry + offset, value)


def notes(elf):
    """Of each note: offset of the header, descsz, offset of the descriptor."""
    found = []
    for s in (s for s in elf.sections if s.name == elfparts.NOTE):
        at = s.offset
        while at < s.offset + s.size:
            namesz, descsz, _ = elf.get("3I", at)
            desc = at + 12 + (namesz + 3 & ~3)
            found.append((at, descsz, desc))
            at = desc + (descsz + 3 & ~3)
    return found


def hide_sites(data):
    """The symbols of the sites become absolute 0: BOLT does not touch a function that has a symbol
    inside."""
    elf = elfparts.Elf(data)
    for table in (s for s in elf.sections if s.type == elfparts.SHT_SYMTAB):
        for at in range(table.offset, table.offset + table.size, table.entry):
            name, = elf.get("I", at)
            if elf.string(elf.sections[table.link].offset + name).startswith("site."):
                struct.pack_into("<HQ", data, at + 6, SHN_ABS, 0)


def header(field, value):
    """Sets a field of the note section's header."""
    def change(data):
        put_header(data, elfparts.Elf(data), elfparts.NOTE, field, value)
    return change


def alloc(data):
    elf = elfparts.Elf(data)
    flags = elf.sections[section(elf, elfparts.NOTE)].flags
    put_header(data, elf, elfparts.NOTE, "flags", flags | SHF_ALLOC)


def padding_outside(data):
    """sh_size ends with the last note's descriptor."""
    elf = elfparts.Elf(data)
    _, descsz, desc = notes(elf)[-1]
    assert descsz % 4, "the last note has no padding"
    put_header(data, elf, elfparts.NOTE, "size",
               desc + descsz - elf.sections[section(elf, elfparts.NOTE)].offset)


def padding_inside(data):
    """descsz counts the padding."""
    for at, descsz, _ in notes(elfparts.Elf(data)):
        struct.pack_into("<I", data, at + 4, descsz + 3 & ~3)


def first_type(value):
    def change(data):
        struct.pack_into("<I", data, notes(elfparts.Elf(data))[0][0] + 8, value)
    return change


def first_location(value):
    def change(data):
        struct.pack_into("<Q", data, notes(elfparts.Elf(data))[0][2], value)
    return change


def no_base(data):
    """The notes' base is 0 and .stapsdt.base is there."""
    for _, _, desc in notes(elfparts.Elf(data)):
        struct.pack_into("<Q", data, desc + 8, 0)


def prelinked(data):
    """The file has moved by 0x10000 since the notes were written: base, location, semaphore."""
    for _, _, desc in notes(elfparts.Elf(data)):
        fields = [f - 0x10000 & (1 << 64) - 1 if f else 0 for f in struct.unpack_from("<3Q", data, desc)]
        struct.pack_into("<3Q", data, desc, *fields)


def semaphore_nowhere(data):
    """A semaphore that a linker has dropped: its field is a small offset (lld 14, gold)."""
    for _, _, desc in notes(elfparts.Elf(data)):
        if struct.unpack_from("<Q", data, desc + 16)[0]:
            struct.pack_into("<Q", data, desc + 16, 2)


def section_order(data):
    """.note.stapsdt before .probes in the table of section headers."""
    elf = elfparts.Elf(data)
    note, probes = section(elf, elfparts.NOTE), section(elf, ".probes")
    assert note > probes
    places = [elf.table + i * elf.entry for i in (note, probes)]
    first, second = (bytes(data[p:p + elf.entry]) for p in places)
    data[places[0]:places[0] + elf.entry], data[places[1]:places[1] + elf.entry] = second, first
    other = {note: probes, probes: note}
    for s in elf.sections:
        if s.type in (2, 11):  # SHT_SYMTAB, SHT_DYNSYM: st_shndx
            for at in range(s.offset + 6, s.offset + s.size, s.entry):
                home, = elf.get("H", at)
                struct.pack_into("<H", data, at, other.get(home, home))


def segment_flags(add):
    """Adds flags to the writable segments."""
    def change(data):
        elf = elfparts.Elf(data)
        offset, table = elf.program_headers()
        for at in range(0, len(table), 56):
            kind, flags = struct.unpack_from("<2I", table, at)
            if kind == PT_LOAD and flags & PF_W:
                struct.pack_into("<I", data, offset + at + 4, flags | add)
    return change
