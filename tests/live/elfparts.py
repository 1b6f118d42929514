"""What a repair of an ELF file's notes changed beside the notes, found without any ELF tool.

A repair may change: the contents and headers of .note.stapsdt and of its relocations; the place of
.stapsdt.base, or add that section; the symbols of that section; and for this the section header
table and the section names, which may be written anew behind the end of the old file. A segment of
data that shared a page of the file with another may stand behind the old end, on pages of its own.
Every other byte of the old file stays, at its offset, as do the program headers.

Formats: ELF specification; both classes and byte orders."""
import struct
from dataclasses import dataclass

SHT_SYMTAB, SHT_RELA, SHT_NOBITS, SHT_REL = 2, 4, 8, 9
NOTE, BASE, BASE_SYMBOL = ".note.stapsdt", ".stapsdt.base", "_.stapsdt.base"


@dataclass
class Section:
    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


class Elf:
    """`data`: the bytes of the file, or a mapping of it, of which only the headers are read."""

    def __init__(self, data):
        self.data = data
        self.wide = data[4] == 2
        self.order = "<" if data[5] == 1 else ">"
        # e_shoff; then e_shentsize, e_shnum, e_shstrndx
        self.fields = ((0x28, 0x30), (0x3A, 0x40)) if self.wide else ((0x20, 0x24), (0x2E, 0x34))
        self.table, = self.get("Q" if self.wide else "I", self.fields[0][0])
        self.entry, self.count, self.names = self.get("3H", self.fields[1][0])
        self.sections = [self.section(i) for i in range(self.count)]

    def get(self, layout, offset):
        return struct.unpack_from(self.order + layout, self.data, offset)

    def raw(self, index):
        return self.get("IIQQQQIIQQ" if self.wide else "10I", self.table + index * self.entry)

    def section(self, index):
        name, *rest = self.raw(index)
        return Section(self.string(self.raw(self.names)[4] + name), *rest)

    def string(self, offset):
        return self.data[offset:self.data.find(b"\0", offset)].decode("latin-1")

    def program_headers(self):
        offset, = self.get("Q" if self.wide else "I", 0x20 if self.wide else 0x1C)
        size, count = self.get("2H", 0x36 if self.wide else 0x2A)
        return offset, self.data[offset:offset + size * count]

    def base_symbols(self):
        """The ranges of the symbols that belong to .stapsdt.base."""
        ranges = []
        for table in (s for s in self.sections if s.type == SHT_SYMTAB and s.entry):
            strings = self.sections[table.link].offset
            for at in range(table.offset, table.offset + table.size, table.entry):
                name, = self.get("I", at)
                home, = self.get("H", at + (6 if self.wide else 14))
                # Its own, the section's, and ARM's mapping symbol $d.
                inside = home < self.count and self.sections[home].name == BASE
                if inside or self.string(strings + name) == BASE_SYMBOL:
                    ranges.append((at, at + table.entry))
        return ranges


    def segments(self):
        """(index, place of the header, type, flags, offset, address, size in the file and in memory, align)"""
        start, = self.get("Q" if self.wide else "I", 0x20 if self.wide else 0x1C)
        size, count = self.get("2H", 0x36 if self.wide else 0x2A)
        for i in range(count):
            if self.wide:
                kind, flags, offset, address, _, in_file, memory, align = self.get("IIQQQQQQ", start + i * size)
            else:
                kind, offset, address, _, in_file, memory, flags, align = self.get("8I", start + i * size)
            yield i, start + i * size, kind, flags, offset, address, in_file, memory, align


def put_back(before, after):
    """`after` with the segments of data that have moved behind the old end where they were, and what is
    wrong with the move."""
    old, new = Elf(before), Elf(after)
    result = bytearray(after)

    def put(at, value):
        struct.pack_into(old.order + ("Q" if old.wide else "I"), result, at, value)

    olds, news = list(old.segments()), list(new.segments())
    for was, now in zip(olds, news):
        i, _, kind, flags, offset, address, in_file, memory, align = was
        if kind != 1 or not flags & 2 or now[4] == offset or now[4] < len(before):
            continue
        if now[5:] != was[5:] or after[now[4]:now[4] + in_file] != after[offset:offset + in_file]:
            return after, "a moved segment is another"
        pages = [set(range(s[4] // align, (s[4] + s[6] - 1) // align + 1)) for s in news
                 if s[2] == 1 and s[0] != i and s[6]]
        if any(taken & set(range(now[4] // align, (now[4] + in_file - 1) // align + 1)) for taken in pages):
            return after, "a moved segment shares a page"
        by = now[4] - offset
        for s in news:
            if s[0] == i or (s[2] != 1 and s[6] and now[4] <= s[4] <= now[4] + in_file):
                put(s[1] + (8 if old.wide else 4), s[4] - by)
        for k, s in enumerate(new.sections):
            if s.flags & 2 and now[4] <= s.offset <= now[4] + memory and address <= s.address <= address + memory:
                put(new.table + k * new.entry + (24 if old.wide else 16), s.offset - by)
    return bytes(result), None


def note_relocations(elf):
    notes = [i for i, s in enumerate(elf.sections) if s.name == NOTE]
    return [i for i, s in enumerate(elf.sections)
            if s.type in (SHT_RELA, SHT_REL) and s.info in notes]


def changeable(elf):
    ranges = [*elf.fields, (elf.table, elf.table + elf.entry * elf.count), *elf.base_symbols()]
    relocations = note_relocations(elf)
    ranges += [(s.offset, s.offset + s.size) for i, s in enumerate(elf.sections)
               if s.type != SHT_NOBITS and (s.name == NOTE or i in relocations)]
    return ranges


def strange_difference(before, after):
    """The first difference that no repair of notes makes, in words; None if there is none."""
    if before == after:
        return None
    if len(after) < len(before):
        return f"the size went from {len(before)} to {len(after)}"
    after, wrong = put_back(before, after)
    if wrong:
        return wrong
    old, new = Elf(before), Elf(after)
    if old.program_headers() != new.program_headers():
        return "the program headers changed"
    masked_old, masked_new = bytearray(before), bytearray(after[:len(before)])
    for start, end in changeable(old):
        masked_old[start:end] = masked_new[start:end] = bytes(end - start)
    if masked_old != masked_new:
        at = next(i for i, (a, b) in enumerate(zip(masked_old, masked_new)) if a != b)
        inside = [s.name for s in old.sections
                  if s.type != SHT_NOBITS and s.offset <= at < s.offset + s.size]
        return f"byte {at:#x} ({', '.join(inside) or 'no section'}) changed"
    return strange_section(old, new)


def strange_section(old, new):
    if extra := [s.name for s in new.sections[old.count:] if s.name != BASE]:
        return f"new sections: {extra}"
    if new.count < old.count:
        return f"{old.count - new.count} sections are gone"
    relocations = note_relocations(old)
    for index, (was, now) in enumerate(zip(old.sections, new.sections)):
        free = set()
        if was.name == NOTE:
            free = {"size", "align"}
        elif index in relocations:
            free = {"size"}
        elif was.name == BASE:
            # It moves beside the code, without a byte of its own there.
            moved = (was.address, was.offset) != (now.address, now.offset)
            free = {"address", "offset"} | ({"size", "flags"} if moved and not now.size else set())
        elif index == old.names:
            free = {"offset", "size"}
        changed = {k for k in vars(was) if getattr(was, k) != getattr(now, k)} - free
        if changed:
            return f"section {index} {was.name}: changed {', '.join(sorted(changed))}"
    return None


def strange_base(data):
    """Is .stapsdt.base, where it has been put, on the bytes that its address says?"""
    elf = Elf(data)
    for base in (s for s in elf.sections if s.name == BASE and s.type != SHT_NOBITS and not s.size):
        code = [s for s in elf.sections if s.flags & 4 and s.type != SHT_NOBITS]
        if code and all(base.offset - s.offset != base.address - s.address for s in code):
            return f".stapsdt.base at {base.address:#x} has another distance than any code"
    for base in (s for s in elf.sections if s.name == BASE and s.type != SHT_NOBITS):
        around = [s for s in elf.sections if s.name != BASE and s.flags & 2 and s.type != SHT_NOBITS
                  and s.address <= base.address < s.address + s.size]
        for s in around:
            if base.offset - s.offset != base.address - s.address:
                return f".stapsdt.base at {base.address:#x} in {s.name} has offset {base.offset:#x}"
    return None
