#!/usr/bin/env python3
"""index_reader.py FILE: prints the index of a file, read by docs/format.md and nothing else.

One line a probe, addresses as the file states them; then what .note.stapsdt has to be (notes()).
"""
import struct
import sys
from dataclasses import dataclass

PT_LOAD, PT_NOTE = 1, 4
KINDS = ["other", "nop", "nop5", "nop10", "sled-nop5", "sled-nop10", "sled-call", "sled-slot"]


@dataclass
class Entry:
    site: int
    semaphore: int
    slot: int
    resume: int
    kind: str
    size: int
    provider: bytes
    name: bytes
    arguments: bytes

    def line(self):
        text = b" ".join((self.provider, self.name, self.arguments)).decode("latin-1")
        return (f"site {self.site:#x} semaphore {self.semaphore:#x} slot {self.slot:#x} "
                f"resume {self.resume:#x} kind {KINDS.index(self.kind)} size {self.size} {text}")


@dataclass
class Index:
    offset: int   # of the note in the file
    address: int  # of the note
    size: int     # of the note
    flags: int
    base: int
    entries: list
    wide: bool
    order: str

    def notes(self):
        """The contents of .note.stapsdt."""
        word = "Q" if self.wide else "I"
        result = b""
        for entry in self.entries:
            desc = struct.pack(f"{self.order}3{word}", entry.site, self.base, entry.semaphore)
            desc += b"\0".join((entry.provider, entry.name, entry.arguments, b""))
            note = struct.pack(self.order + "3I", 8, len(desc), 3) + b"stapsdt\0" + desc
            result += note + bytes(-len(note) % 4)
        return result


def segments(data):
    """(type, flags, offset, vaddr, filesz, align) of each program header."""
    wide, order = data[4] == 2, "<" if data[5] == 1 else ">"
    table, = struct.unpack_from(order + ("Q" if wide else "I"), data, 0x20 if wide else 0x1C)
    size, count = struct.unpack_from(order + "2H", data, 0x36 if wide else 0x2A)
    for i in range(count):
        if wide:
            kind, flags, offset, vaddr, _, filesz, _, align = struct.unpack_from(
                order + "2I6Q", data, table + i * size)
        else:
            kind, offset, vaddr, _, filesz, _, flags, align = struct.unpack_from(
                order + "8I", data, table + i * size)
        yield kind, flags, offset, vaddr, filesz, align


def index_notes(data):
    """(offset in the file, address, n_descsz) of each index note."""
    order = "<" if data[5] == 1 else ">"
    for kind, _, offset, vaddr, filesz, align in segments(data):
        if kind != PT_NOTE or align == 8:
            continue
        at = offset
        while at + 12 <= offset + filesz:
            namesz, descsz, note_type = struct.unpack_from(order + "3I", data, at)
            if namesz == 8 and note_type == 1 and data[at + 12:at + 20] == b"reprobe\0":
                yield at, at - offset + vaddr, descsz
            at += 12 + (namesz + 3) // 4 * 4 + (descsz + 3) // 4 * 4


def read(data):
    """The Index of an ELF file's bytes; None where there is none."""
    wide, order = data[4] == 2, "<" if data[5] == 1 else ">"
    found = next(index_notes(data), None)
    if found is None:
        return None
    note, address, descsz = found
    desc = data[note + 20:note + 20 + descsz]

    def word(at):
        distance, = struct.unpack_from(order + "i", desc, at)
        if distance == 0:
            return 0
        return (address + 20 + at + distance) % (1 << (64 if wide else 32))

    version, header_size, count, entry_size, strings_size, flags = struct.unpack_from(
        order + "6I", desc)
    if version != 1:
        raise ValueError(f"version {version}")
    start = header_size + count * entry_size
    strings = desc[start:start + strings_size]
    if len(strings) != strings_size or strings[:1] + strings[-1:] != b"\0\0":
        raise ValueError("strings")
    if any(desc[start + strings_size:]):
        raise ValueError("bytes behind the strings")

    def string(at):
        offset, = struct.unpack_from(order + "I", desc, at)
        return strings[offset:strings.index(b"\0", offset)]

    entries = []
    for i in range(count):
        at = header_size + i * entry_size
        kind, size = struct.unpack_from(order + "2H", desc, at + 16)
        entries.append(Entry(word(at), word(at + 4), word(at + 8), word(at + 12),
                             KINDS[kind] if kind < len(KINDS) else "other", size,
                             string(at + 20), string(at + 24), string(at + 28)))
    return Index(note, address, 20 + descsz, flags, word(24), entries, wide, order)


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:
        index = read(file.read())
    if index is None:
        sys.exit(f"{sys.argv[1]}: no index")
    for each in index.entries:
        print(each.line())
