#!/usr/bin/env python3
"""make_costly.py FOLDER: writes files of about half a MiB that state the same bytes many times over,
or the same long name. Reading one of them may not cost more than a sane file of that size: a
reader that is quadratic in what they state does not end in time."""
import pathlib
import sys

sys.dont_write_bytecode = True
from make_seeds import ALLOC, CODE, DYN, NOTE, PROGBITS, RELA, STRTAB, SYMTAB, Elf

SHNDX = 18
NAME = 60000  # characters of a long name


class Costly(Elf):
    """A file whose text is one nop after the other and a return; probes stand on the first of them."""

    def __init__(self, notes, text=60000, name="hit"):
        super().__init__("x86_64", DYN)
        self.text = self.add(".text", PROGBITS, self.nop * text + b"\xc3", ALLOC | CODE, 16)
        self.segments = [(1, 5, ".text", ".text")]
        self.place()
        self.sites = [self.text.addr + 8 * i for i in range(notes)]
        self.notes = self.add(".note.stapsdt", NOTE, b"".join(
            self.note(site, name=name, arguments="") for site in self.sites), 0, 4)

    def symbols(self, entries, strings=b"\0f\0"):
        self.add(".symtab", SYMTAB, b"".join(entries), 0, 8, ".strtab", 1, 24)
        self.add(".strtab", STRTAB, strings)

    def repeat(self, count, **fields):
        """Headers over the bytes of the last section that was added."""
        first = self.sections[-1]
        for _ in range(count):
            again = self.add(first.name, first.kind, first.data, first.flags, first.align,
                             first.link, first.info, first.entsize)
            again.same_as = first
            for key, value in fields.items():
                setattr(again, key, value)

    def place(self):
        shared = [s for s in self.sections if hasattr(s, "same_as")]
        for section in shared:
            section.size, section.data = 0, b""
        end = super().place()
        for section in shared:
            section.offset, section.size = section.same_as.offset, section.same_as.size
        return end


def overlapping_functions():
    elf = Costly(1500)
    end = elf.text.addr + elf.text.size
    elf.symbols([elf.symbol(0, 0, 0, 0, 0)] +
                [elf.symbol(1, site, end - site, 0x12, 1) for site in elf.sites])
    return elf.build()


def many_symbol_tables():
    elf = Costly(100)
    elf.add(".strtab", STRTAB, b"\0f\0")
    table = b"".join(elf.symbol(1, elf.text.addr + i, 1, 0x12, 1) for i in range(12000))
    elf.add(".symtab", SYMTAB, table, 0, 8, ".strtab", 1, 24)
    elf.repeat(3000)
    return elf.build()


def many_relocation_tables():
    elf = Costly(1500)
    elf.symbols([elf.symbol(0, 0, 0, 0, 0), elf.symbol(1, elf.text.addr, 1, 0x12, 1)])
    entries = b"".join(elf.relocation(20 + 68 * i, 1, 1, 8 * i) for i in range(6000))
    elf.add(".rela.note.stapsdt", RELA, entries, 0x40, 8, ".symtab", ".note.stapsdt", 24)
    elf.repeat(3000)
    return elf.build()


def tables_of_indices():
    elf = Costly(10)
    elf.add(".strtab", STRTAB, b"\0f\0")
    elf.add(".symtab", SYMTAB, elf.symbol(1, elf.text.addr, 1, 0x12, 1), 0, 8, ".strtab", 1, 24)
    elf.repeat(6000)
    elf.add(".symtab_shndx", SHNDX, b"\0" * 4, 0, 4, ".symtab", 0, 4)
    elf.repeat(6000, link="none")
    return elf.build()


def many_note_sections():
    elf = Costly(0)
    for i in range(9000):
        elf.add(".note.stapsdt", NOTE, elf.note(4 * i, arguments=""), 0, 8)
    return elf.build()


def many_shared_note_sections():
    elf = Costly(1500)
    elf.repeat(3000)
    return elf.build()


def long_function_name():
    elf = Costly(3000)
    elf.symbols([elf.symbol(0, 0, 0, 0, 0), elf.symbol(1, elf.text.addr, elf.text.size, 0x12, 1)],
                b"\0" + b"f" * NAME + b"\0")
    return elf.build()


def long_section_name():
    elf = Costly(6000)
    elf.text.name = "." + "s" * NAME
    elf.text.flags = ALLOC
    elf.segments = [(1, 5, elf.text.name, elf.text.name)]
    return elf.build()


def many_arguments():
    elf = Costly(1)
    elf.notes.data += elf.note(elf.text.addr, arguments="1 " * 120000)
    elf.notes.data += elf.note(elf.text.addr, arguments="4@(" * 60000)
    elf.notes.size = len(elf.notes.data)
    return elf.build()


CASES = (overlapping_functions, many_symbol_tables, many_relocation_tables, tables_of_indices,
         many_note_sections, many_shared_note_sections, long_function_name, long_section_name,
         many_arguments)


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        (folder / case.__name__).write_bytes(case())


if __name__ == "__main__":
    main()
