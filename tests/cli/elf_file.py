"""Writes small ELF files with stapsdt notes, byte by byte, and remembers where each field stands.

The numbers are those of the System V ABI (ELF header, program and section headers, symbols,
relocations), of DWARF 4 section 6.4.1 with the LSB core's .eh_frame changes, and of SystemTap's
sys/sdt.h 4.8 (the note). Nothing here is taken from the code under test.
"""

import struct

ET_REL, ET_EXEC, ET_DYN = 1, 2, 3
EM_S390, EM_X86_64 = 22, 62
PT_LOAD, PT_NOTE = 1, 4
PF_X, PF_W, PF_R = 1, 2, 4
SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, SHT_RELA, SHT_NOTE, SHT_NOBITS = 1, 2, 3, 4, 7, 8
SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR, SHF_INFO_LINK = 1, 2, 4, 0x40
STT_NOTYPE, STT_OBJECT, STT_FUNC = 0, 1, 2
STB_LOCAL, STB_GLOBAL = 0, 1

EHDR = [("e_type", "H"), ("e_machine", "H"), ("e_version", "W"), ("e_entry", "A"),
        ("e_phoff", "A"), ("e_shoff", "A"), ("e_flags", "W"), ("e_ehsize", "H"),
        ("e_phentsize", "H"), ("e_phnum", "H"), ("e_shentsize", "H"), ("e_shnum", "H"),
        ("e_shstrndx", "H")]
PHDR = {64: [("p_type", "W"), ("p_flags", "W"), ("p_offset", "A"), ("p_vaddr", "A"),
             ("p_paddr", "A"), ("p_filesz", "A"), ("p_memsz", "A"), ("p_align", "A")],
        32: [("p_type", "W"), ("p_offset", "A"), ("p_vaddr", "A"), ("p_paddr", "A"),
             ("p_filesz", "A"), ("p_memsz", "A"), ("p_flags", "W"), ("p_align", "A")]}
SHDR = [("sh_name", "W"), ("sh_type", "W"), ("sh_flags", "A"), ("sh_addr", "A"),
        ("sh_offset", "A"), ("sh_size", "A"), ("sh_link", "W"), ("sh_info", "W"),
        ("sh_addralign", "A"), ("sh_entsize", "A")]
SYM = {64: [("st_name", "W"), ("st_info", "B"), ("st_other", "B"), ("st_shndx", "H"),
            ("st_value", "A"), ("st_size", "A")],
       32: [("st_name", "W"), ("st_value", "A"), ("st_size", "A"), ("st_info", "B"),
            ("st_other", "B"), ("st_shndx", "H")]}
RELA = [("r_offset", "A"), ("r_info", "A"), ("r_addend", "A")]


class Layout:
    """Fields of one class and byte order."""

    def __init__(self, bits, order):
        self.bits, self.order = bits, order
        self.word = bits // 8
        self.sizes = {"B": 1, "H": 2, "W": 4, "A": self.word}

    def uint(self, value, size):
        return (value & ((1 << 8 * size) - 1)).to_bytes(size, self.order)

    def address(self, value):
        return self.uint(value, self.word)

    def size(self, fields):
        return sum(self.sizes[kind] for _, kind in fields)


def align_up(value, align):
    return (value + align - 1) // align * align


class Note:
    """One stapsdt note: location, base, semaphore, provider, name, arguments."""

    def __init__(self, name, location, base=0, semaphore=0, provider="demo", arguments=""):
        self.name, self.location, self.base, self.semaphore = name, location, base, semaphore
        self.provider, self.arguments = provider, arguments

    def put(self, layout, place, start):
        """The note's bytes; place(field, offset, size) is told where each part stands."""
        as_bytes = lambda s: s if isinstance(s, bytes) else s.encode()
        parts = [("location", layout.address(self.location)), ("base", layout.address(self.base)),
                 ("semaphore", layout.address(self.semaphore)),
                 ("provider", as_bytes(self.provider)), ("provider_nul", b"\0"),
                 ("probe", as_bytes(self.name)), ("probe_nul", b"\0"),
                 ("arguments", as_bytes(self.arguments)), ("arguments_nul", b"\0")]
        descsz = sum(len(data) for _, data in parts)
        head = [("namesz", layout.uint(8, 4)), ("descsz", layout.uint(descsz, 4)),
                ("type", layout.uint(3, 4)), ("owner", b"stapsdt"), ("owner_nul", b"\0")]
        out = b""
        for field, data in head + parts:
            place(field, start + len(out), len(data))
            out += data
        padding = -len(out) % 4
        place("padding", start + len(out), padding)
        return out + b"\0" * padding


class Section:
    def __init__(self, name, data, type_=SHT_PROGBITS, flags=0, align=1, addr=0, link=0, info=0,
                 entsize=0, size=None):
        self.name, self.data, self.type, self.flags = name, data, type_, flags
        self.align, self.addr, self.link, self.info, self.entsize = align, addr, link, info, entsize
        self.size = len(data) if size is None else size
        self.offset = 0


class Elf:
    """A file in the making. `fields` maps a field's name to (offset, size)."""

    def __init__(self, bits=64, order="little", machine=EM_X86_64, type_=ET_DYN):
        self.layout = Layout(bits, order)
        self.machine, self.type = machine, type_
        self.data = bytearray()
        self.fields = {}
        self.sections = [Section("", b"", type_=0, align=0)]
        self.segments = []

    def index(self, name):
        return next(i for i, s in enumerate(self.sections) if s.name == name)

    def at(self, name):
        return self.fields[name][0]

    def place(self, name, offset, size):
        self.fields[name] = (offset, size)

    def put_struct(self, prefix, fields, values, offset):
        out = b""
        for field, kind in fields:
            size = self.layout.sizes[kind]
            self.place(prefix + field, offset + len(out), size)
            out += self.layout.uint(values[field], size)
        return out

    def pad(self, align):
        self.data += b"\0" * (-len(self.data) % align)

    def header_sizes(self, segments):
        ehdr = 16 + self.layout.size(EHDR)
        return ehdr, ehdr + segments * self.layout.size(PHDR[self.layout.bits])

    def add(self, section, segment_base=0):
        """Appends a section; its address is segment_base + offset where it is allocated."""
        self.pad(max(section.align, 1))
        section.offset = len(self.data)
        if section.flags & SHF_ALLOC:
            section.addr = segment_base + section.offset
        self.data += section.data
        self.sections.append(section)
        return section

    def set_data(self, section, data):
        assert len(data) == len(section.data)
        section.data = data
        self.data[section.offset:section.offset + len(data)] = data

    def notes_bytes(self, notes, start):
        out = b""
        for note in notes:
            place = lambda field, at, size: self.place(f"{note.name}.{field}", at, size)
            out += note.put(self.layout, place, start + len(out))
        return out

    def finish(self, ehdr_values=None):
        """Names, section headers, then the header and the program headers at the start."""
        names, offsets = b"\0", []
        table = Section(".shstrtab", b"", SHT_STRTAB)
        for section in self.sections + [table]:
            offsets.append(names.index(b"\0" + section.name.encode() + b"\0") + 1
                           if section.name and b"\0" + section.name.encode() + b"\0" in names
                           else (len(names) if section.name else 0))
            if offsets[-1] == len(names):
                names += section.name.encode() + b"\0"
        table.data, table.size = names, len(names)
        self.add(table)
        self.pad(8)
        shoff = len(self.data)
        for section, name in zip(self.sections, offsets):
            values = dict(sh_name=name, sh_type=section.type, sh_flags=section.flags,
                          sh_addr=section.addr, sh_offset=section.offset, sh_size=section.size,
                          sh_link=section.link, sh_info=section.info, sh_addralign=section.align,
                          sh_entsize=section.entsize)
            self.data += self.put_struct(section.name + ".", SHDR, values, len(self.data))
        ehsize, _ = self.header_sizes(0)
        phdr = PHDR[self.layout.bits]
        values = dict(e_type=self.type, e_machine=self.machine, e_version=1, e_entry=0,
                      e_phoff=ehsize if self.segments else 0, e_shoff=shoff, e_flags=0,
                      e_ehsize=ehsize, e_phentsize=self.layout.size(phdr),
                      e_phnum=len(self.segments), e_shentsize=self.layout.size(SHDR),
                      e_shnum=len(self.sections), e_shstrndx=len(self.sections) - 1)
        values.update(ehdr_values or {})
        ident = b"\x7fELF" + bytes([self.layout.bits // 32, 1 if self.layout.order == "little"
                                    else 2, 1, 0]) + b"\0" * 8
        for i, field in enumerate(["mag0", "mag1", "mag2", "mag3", "class", "data", "version"]):
            self.place("ei_" + field, i, 1)
        head = ident + self.put_struct("", EHDR, values, 16)
        for name, fields in self.segments:
            head += self.put_struct(name + ".", phdr, fields, len(head))
        self.data[:len(head)] = head
        return bytes(self.data)


def segment(type_, flags, offset, vaddr, filesz, align=0x1000):
    return dict(p_type=type_, p_flags=flags, p_offset=offset, p_vaddr=vaddr, p_paddr=vaddr,
                p_filesz=filesz, p_memsz=filesz, p_align=align)


# Functions of the golden file, each `save; site; restore; return`, and where the site is in them.
CODE = {EM_X86_64: {"one": bytes.fromhex("55 90 5d c3"), "two": bytes.fromhex("53 90 5b c3"),
                    "three": bytes.fromhex("53 90 5b c3"), "site": 1, "filler": b"\xcc"},
        # lr %r2,%r2; nop 0; br %r14
        EM_S390: {"one": bytes.fromhex("1822 47000000 07fe"),
                  "two": bytes.fromhex("1833 47000000 07fe"),
                  "three": bytes.fromhex("1844 47000000 07fe"), "site": 2, "filler": b"\x07"}}
ARGUMENTS = {EM_X86_64: {"one": "-4@%edi 8@%rsi", "two": "", "three": "8@-16(%rbp)"},
             EM_S390: {"one": "-4@%r2 4@8(%r15)", "two": "", "three": "4@%r3"}}
BUILD_ID = bytes(range(0xa0, 0xb4))


def eh_frame(elf, section_addr, section_offset, function_addr, function_size):
    """One CIE and one FDE; pc begin is relative and four bytes long (DW_EH_PE_pcrel|sdata4)."""
    u4 = lambda value: elf.layout.uint(value, 4)
    entries = [("cie.length", u4(16)), ("cie.id", u4(0)), ("cie.version", b"\x01"),
               ("cie.augmentation", b"zR\0"), ("cie.code_align", b"\x01"),
               ("cie.data_align", b"\x78"), ("cie.return", b"\x10"), ("cie.augmentation_size",
                                                                      b"\x01"),
               ("cie.encoding", b"\x1b"), ("cie.program", b"\0\0\0"),
               ("fde.length", u4(16)), ("fde.cie_pointer", u4(24)),
               ("fde.pc_begin", u4(function_addr - (section_addr + 28))),
               ("fde.pc_range", u4(function_size)), ("fde.augmentation_size", b"\0"),
               ("fde.program", b"\0\0\0"), ("eh_frame.terminator", u4(0))]
    out = b""
    for name, data in entries:
        elf.place(name, section_offset + len(out), len(data))
        out += data
    return out


def golden(bits=64, order="little", machine=EM_X86_64, dead=False, kept_relocations=False,
           notes=None, symbols=True):
    """A small shared object with the probes demo:one (function from .symtab), demo:two (from
    .eh_frame only) and demo:three (with a semaphore); with `dead` also demo:gone, whose location
    lies in the ELF header as after --gc-sections. Addresses: headers, read-only data and text at
    their offset, as ld.bfd places them; data at 0x1000 + offset."""
    elf = Elf(bits, order, machine)
    code, arguments = CODE[machine], ARGUMENTS[machine]
    _, headers = elf.header_sizes(4)
    elf.data += b"\0" * headers

    id_note = (elf.layout.uint(4, 4) + elf.layout.uint(20, 4) + elf.layout.uint(3, 4) + b"GNU\0" +
               BUILD_ID)
    build_id = elf.add(Section(".note.gnu.build-id", id_note, SHT_NOTE, SHF_ALLOC, 4))
    elf.place("build_id", build_id.offset + 16, 20)
    frames = elf.add(Section(".eh_frame", b"\0" * 44, flags=SHF_ALLOC, align=8))
    base = elf.add(Section(".stapsdt.base", b"\0", flags=SHF_ALLOC))
    read_only_end = len(elf.data)

    text, starts = b"", {}
    for name in ["one", "two", "three"]:
        starts[name] = len(text)
        text += code[name]
        text += code["filler"] * (-len(text) % 16)
    text = elf.add(Section(".text", text, flags=SHF_ALLOC | SHF_EXECINSTR, align=16))
    elf.starts = {name: text.addr + at for name, at in starts.items()}
    elf.sites = {name: at + code["site"] for name, at in elf.starts.items()}
    for name, at in starts.items():
        elf.place(f"code.{name}", text.offset + at, len(code[name]))
        elf.place(f"code.{name}.site", text.offset + at + code["site"],
                  1 if machine == EM_X86_64 else 4)
    probes = elf.add(Section(".probes", b"\0\0", flags=SHF_ALLOC | SHF_WRITE, align=2), 0x1000)
    elf.set_data(frames, eh_frame(elf, frames.addr, frames.offset, elf.starts["two"],
                                  len(code["two"])))
    elf.base, elf.semaphore = base.addr, probes.addr

    elf.pad(4)
    if notes is None:
        notes = [Note(name, elf.sites[name], base.addr, probes.addr if name == "three" else 0,
                      arguments=arguments[name]) for name in ["one", "two", "three"]]
        if dead:
            notes.append(Note("gone", 0x10, base.addr, arguments=arguments["one"]))
    elif callable(notes):
        notes = notes(elf)
    elf.notes = notes
    note_section = elf.add(Section(".note.stapsdt", elf.notes_bytes(notes, len(elf.data)),
                                   SHT_NOTE, 0, 4))

    if kept_relocations:
        note_index, number = elf.index(".note.stapsdt"), {EM_X86_64: 1, EM_S390: 4}[machine]
        info = (2 << 32 if bits == 64 else 2 << 8) | number  # symbol 2 is .text's
        start, out = align_up(len(elf.data), 8), b""
        for note in notes:
            gone = note.name == "gone"
            values = dict(r_offset=elf.at(note.name + ".location") - note_section.offset,
                          r_info=0 if gone else info,
                          r_addend=0 if gone else note.location - text.addr)
            out += elf.put_struct(f"rela.{note.name}.", RELA, values, start + len(out))
        elf.add(Section(".rela.note.stapsdt", out, SHT_RELA, SHF_INFO_LINK, 8, info=note_index,
                        entsize=elf.layout.size(RELA)))

    if symbols:
        add_symbols(elf, text, base, probes)
        if kept_relocations:
            elf.sections[elf.index(".rela.note.stapsdt")].link = elf.index(".symtab")
    elf.segments = [
        ("rodata_load", segment(PT_LOAD, PF_R, 0, 0, read_only_end)),
        ("text_load", segment(PT_LOAD, PF_R | PF_X, text.offset, text.addr, text.size)),
        ("data_load", segment(PT_LOAD, PF_R | PF_W, probes.offset, probes.addr, probes.size)),
        ("note_segment", segment(PT_NOTE, PF_R, build_id.offset, build_id.addr, build_id.size, 4))]
    elf.finish()
    return elf


def add_symbols(elf, text, base, probes):
    index = elf.index
    table = [("", 0, 0, 0, 0, 0),
             ("_.stapsdt.base", base.addr, 1, STB_LOCAL << 4 | STT_NOTYPE, 0, index(base.name)),
             (".text", text.addr, 0, 3, 0, index(text.name)),
             ("one", elf.starts["one"], len(CODE[elf.machine]["one"]), STB_GLOBAL << 4 | STT_FUNC,
              0, index(text.name)),
             ("three", elf.starts["three"], len(CODE[elf.machine]["three"]),
              STB_GLOBAL << 4 | STT_FUNC, 0, index(text.name)),
             ("demo_three_semaphore", probes.addr, 2, STB_GLOBAL << 4 | STT_OBJECT, 0,
              index(probes.name))]
    elf.pad(8)
    strings, out = b"\0", b""
    for name, value, size, info, other, shndx in table:
        values = dict(st_name=len(strings) if name else 0, st_value=value, st_size=size,
                      st_info=info, st_other=other, st_shndx=shndx)
        out += elf.put_struct(f"sym.{name}.", SYM[elf.layout.bits], values,
                              len(elf.data) + len(out))
        if name:
            strings += name.encode() + b"\0"
    symtab = elf.add(Section(".symtab", out, SHT_SYMTAB, 0, 8, info=3,
                             entsize=elf.layout.size(SYM[elf.layout.bits])))
    elf.add(Section(".strtab", strings, SHT_STRTAB))
    symtab.link = index(".strtab")


def poked(elf, field, value):
    """The file with one field changed. value: a number, bytes, or a function of the old number."""
    data = bytearray(elf.data)
    offset, size = elf.fields[field]
    if callable(value):
        value = value(int.from_bytes(data[offset:offset + size], elf.layout.order))
    new = value if isinstance(value, bytes) else elf.layout.uint(value, size)
    assert len(new) == size or isinstance(value, bytes), field
    assert bytes(data[offset:offset + len(new)]) != new, f"{field} is {value!r} already"
    data[offset:offset + len(new)] = new
    return bytes(data)
