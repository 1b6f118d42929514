"""The table of corruption_test.py: which field gets which value, and what the tool says.

{names} in the texts are numbers of the file (corruption_test.py, Golden.numbers): {two} is the site
of demo:two, {two_note} where its note stands in the file, {huge} the largest multiple of 16.
"""

from poke_findings import (
    Finding, GONE_BY_RELOCATION, HUGE, Poke, ambiguous, argument_operand, counter, dangling,
    name_as_argument, note_rule, plus, truncated)

# --- The table -------------------------------------------------------------------------------------

TABLE = []


def row(kind, field, value, **what):
    TABLE.append(Poke(kind, field, value, **what))


SECTIONS_HINT = "the file is damaged or cut short; probes are found through its section headers"


def sections(kind, field, value, error, **what):
    row(kind, field, value, error=error, hint=SECTIONS_HINT, **what)


# The ELF header: what cannot be ELF, or leads nowhere, is an error that names the field.
UNKNOWN_CLASS = "[EI_CLASS] unknown class; expected 1 (32-bit) or 2 (64-bit), found "
UNKNOWN_ORDER = "[EI_DATA] unknown byte order; expected 1 (little) or 2 (big), found "
row("plain", "ei_mag0", 0,
    error="not an ELF file; expected the bytes 7f 45 4c 46, found 00 45 4c 46")
row("plain", "ei_class", 0, error=UNKNOWN_CLASS + "0")
row("plain", "ei_class", 3, error=UNKNOWN_CLASS + "3")
sections("plain", "ei_class", 1, only=64,
         error="[e_shentsize] section headers are too small; expected at least 40 bytes, found 0")
sections("plain", "ei_class", 2, only=32,
         error="[e_shentsize] section headers are too small; expected at least 64 bytes, found 0")
row("plain", "ei_data", 0, error=UNKNOWN_ORDER + "0")
row("plain", "ei_data", 3, error=UNKNOWN_ORDER + "3")
row("plain", "ei_data", 2, only=64,
    error="[e_phoff] program header table lies outside the file; expected at least "
    "0x4000000000e00000 bytes, found {size}")
row("plain", "ei_version", 0, error="[EI_VERSION] unknown ELF version; expected 1, found 0")
row("plain", "e_version", 7)  # nobody looks at it

# Without relocations the addresses of an object's notes are not known.
NO_SITE = dict(VERDICT="unknown", KIND="-", FUNCTION="-")
row("plain", "e_type", 1, type="REL", rows={"all": NO_SITE}, unknown=3,
    refused="a relocatable object; its notes are final after the link\n"
    "hint: run reprobe fix on the linked program or library")
row("plain", "e_type", 2, type="EXEC")
row("plain", "e_type", 99, type="ET_99")

# The code of another machine: nothing stands on its nop, so a missing nop proves nothing.
NOT_JUDGED = dict(VERDICT="unknown", KIND="other")
row("plain", "e_machine", 0, head="ELF64 little-endian EM_0", only=64, rows={"all": NOT_JUDGED},
    unknown=3)
row("plain", "e_machine", 183, head="ELF64 little-endian aarch64", only=64,
    rows={"all": dict(VERDICT="ambiguous", KIND="other")},
    findings=[  # nor are the arguments of that machine
        argument_operand("demo:one site {one} note {one_note}", "-4@%edi, 8@%rsi"),
        ambiguous("one", "no nop at one+{step}"),
        ambiguous("two", "no nop at function at {two_start}+{step}"),
        argument_operand("demo:three site {three} note {three_note}", "8@-16(%rbp)"),
        ambiguous("three", "no nop at three+{step}")])

row("plain", "e_phoff", 0,
    error="[e_phoff] no program header table; expected the offset of 4 entries, found 0")
OUTSIDE = "[e_phoff] program header table lies outside the file; expected "
row("plain", "e_phoff", 0x10000,
    error=OUTSIDE + "at least {table_end_10000} bytes, found {size}")
row("plain", "e_phoff", HUGE, only=64, error=OUTSIDE + "more than 2^64 bytes, found {size}")
row("plain", "e_phoff", HUGE, only=32, error=OUTSIDE + "at least 0x100000070 bytes, found {size}")
row("plain", "e_phentsize", 0,
    error="[e_phentsize] program headers are too small; expected at least {phdr} bytes, found 0")
row("plain", "e_phentsize", plus(-1),
    error="[e_phentsize] program headers are too small; expected at least {phdr} bytes, found "
    "{phdr_1}")
row("plain", "e_phentsize", 0xffff,
    error=OUTSIDE + "at least {wide_segments} bytes, found {size}")
row("plain", "e_phnum", 1000, error=OUTSIDE + "at least {thousand_segments} bytes, found {size}")
row("plain", "e_phnum", 0xffff, error=OUTSIDE + "at least {max_segments} bytes, found {size}")
# A linked file without segments: an address leads to no byte.
NO_BYTES = dict(VERDICT="unknown", KIND="-")
row("plain", "e_phnum", 0, rows={"all": NO_BYTES}, unknown=3)

NO_TABLE = "[e_shoff] section header table lies outside the file; expected "
sections("plain", "e_shoff", 0,
         "[e_shoff] no section header table; expected the offset of 10 entries, found 0")
sections("plain", "e_shoff", 0x10000,
         NO_TABLE + "at least {headers_end_10000} bytes, found {size}")
sections("plain", "e_shoff", HUGE, NO_TABLE + "more than 2^64 bytes, found {size}", only=64)
sections("plain", "e_shoff", plus(1), NO_TABLE + "at least {headers_end_1} bytes, found {size}")
SMALL = "[e_shentsize] section headers are too small; expected at least {shdr} bytes, found "
sections("plain", "e_shentsize", 0, SMALL + "0")
sections("plain", "e_shentsize", plus(-1), SMALL + "{shdr_1}")
sections("plain", "e_shentsize", plus(1), NO_TABLE + "at least {wide_sections} bytes, found {size}")
sections("plain", "e_shnum", 0,
         "[e_shnum] no count of sections; expected it in section header 0, found none there")
sections("plain", "e_shnum", 1,
         "[e_shstrndx] no section names; expected a section from 1 to 0, found 9")
sections("plain", "e_shnum", 11, NO_TABLE + "at least {eleven_sections} bytes, found {size}")
sections("plain", "e_shnum", 0xffff, NO_TABLE + "at least {max_sections} bytes, found {size}")
sections("plain", "e_shstrndx", 10,
         "[e_shstrndx] no section names; expected a section from 1 to 9, found 10")
# SHN_UNDEF: the file says that its sections have no names.
ALL = ("one", "two", "three")
row("plain", "e_shstrndx", 0, without=ALL,
    problems=["[e_shstrndx] no section names; expected a section from 1 to 9, found 0"])
# Names from .text: it has no NUL at all.
row("plain", "e_shstrndx", 4, only=64, without=ALL, problems=[
    f"[section {i}] name is not in the string table; expected a string before {{text_size}}, found "
    f"sh_name {name:#x}" for i, name in enumerate(
        [0, 1, 0x14, 0x1e, 0x2c, 0x32, 0x3a, 0x48, 0x50, 0x58])])
row("plain", "e_ehsize", 0)  # the size follows from the class

# The PT_LOAD of the code. Where it leads to no bytes, nothing can be said about the sites.
row("plain", "text_load.p_type", 0, rows={"all": NO_BYTES}, unknown=3)
# .text is executable still, and whoever asks the segments attaches nothing.
row("plain", "text_load.p_flags", 4, tracers=True)
row("plain", "text_load.p_offset", HUGE, rows={"all": NO_BYTES}, unknown=3, problems=[
    "[program header 1] contents lie outside the file; expected an end up to {size}, found "
    "{huge}+{text_size}"])
row("plain", "text_load.p_vaddr", 0x5000, rows={"all": NO_BYTES}, unknown=3)
row("plain", "text_load.p_vaddr", HUGE, rows={"all": NO_BYTES}, unknown=3)
row("plain", "text_load.p_paddr", 1)
row("plain", "text_load.p_filesz", 0, rows={"all": NO_BYTES}, unknown=3)
row("plain", "text_load.p_filesz", 0x100000, problems=[
    "[program header 1] contents lie outside the file; expected an end up to {size}, found "
    "{text}+0x100000"])
row("plain", "text_load.p_filesz", HUGE, problems=[
    "[program header 1] contents lie outside the file; expected an end up to {size}, found "
    "{text}+{huge}"])
# The first segment that holds the counter's address is this one now, with no bytes there.
row("plain", "text_load.p_memsz", HUGE, findings=[counter(
    "semaphore-nobits", "three",
    "the counter has no bytes in the file (.bss): the kernel cannot raise it",
    "counter of demo:three at {counter}",
    'define PROVIDER_NAME_semaphore with __attribute__((section(".probes")))')],
    left=["semaphore-nobits: the counter has no bytes in the file (.bss): the kernel cannot raise it; "
          'define PROVIDER_NAME_semaphore with __attribute__((section(".probes")))'])
row("plain", "text_load.p_align", 3)

# The header of .text. Addresses lead to bytes through segments; sections only say what is code.
row("plain", ".text.sh_name", 0xffff, rows={"two": dict(FUNCTION="-")}, problems=[
    "[section 4] name is not in the string table; expected a string before {names}, found sh_name "
    "0xffff"])
# SHT_NOBITS is what a debug file has for code.
row("plain", ".text.sh_type", 8, rows={"all": NO_BYTES}, unknown=3, findings=[Finding(
    "note", "debug-file", "",
    "the code is not in this file: whether its probes are live cannot be told here", ["3 probes"],
    "audit the program or library that this debug file belongs to")])
row("plain", ".text.sh_addralign", 0)
row("plain", ".text.sh_offset", HUGE, problems=[
    "[section 4] contents lie outside the file; expected an end up to {size}, found "
    "{huge}+{text_size}"])
row("plain", ".text.sh_size", HUGE, problems=[
    "[section 4] contents lie outside the file; expected an end up to {size}, found {text}+{huge}"])

# The header of .note.stapsdt.
row("plain", ".note.stapsdt.sh_type", 1,
    findings=[note_rule("note-section-type", "note {section}",
                        "type of section {index} (.note.stapsdt); expected SHT_NOTE (7), found 1")],
    fix="removed 0 dangling, kept 3 live, repaired note-section-type; build-id kept")
row("plain", ".note.stapsdt.sh_type", 8, without=ALL,
    findings=[note_rule("note-section-type", "note {section}",
                        "type of section {index} (.note.stapsdt); expected SHT_NOTE (7), found 8")],
    left=["note-section-type: type of section {index} (.note.stapsdt); expected SHT_NOTE (7), found 8"])
row("plain", ".note.stapsdt.sh_flags", 2,
    findings=[note_rule("note-alloc", "note {section}",
                        "sh_flags of section {index}; expected no SHF_ALLOC, found 0x2")],
    fix="removed 0 dangling, kept 3 live, repaired note-alloc; build-id kept")
UNREADABLE = "bytes of section {index}; expected notes of its own in the file, found "
row("plain", ".note.stapsdt.sh_flags", 0x800, without=ALL,
    findings=[note_rule("note-unreadable", "note {section}", UNREADABLE + "SHF_COMPRESSED")],
    left=["note-unreadable: " + UNREADABLE + "SHF_COMPRESSED"])
row("plain", ".note.stapsdt.sh_addr", 0x4000)
row("plain", ".note.stapsdt.sh_link", 7)
row("plain", ".note.stapsdt.sh_entsize", 1)
row("plain", ".note.stapsdt.sh_size", 0, without=ALL)
row("plain", ".note.stapsdt.sh_offset", HUGE, without=ALL, problems=[
    "[section {index}] contents lie outside the file; expected an end up to {size}, found "
    "{huge}+{section_size}"], only=64,
    findings=[note_rule("note-unreadable", "note {huge}", UNREADABLE +
                        "section lies outside the file; expected more than 2^64 bytes, found "
                        "{size}")],
    left=["note-unreadable: " + UNREADABLE +
          "section lies outside the file; expected more than 2^64 bytes, found {size}"])
row("plain", ".note.stapsdt.sh_size", 11, without=ALL,
    findings=[truncated("0x0", "{section}", "11 bytes")],
    left=["note-truncated: note at offset 0x0 of section {index}; expected a whole note before the "
          "section's end, found 11 bytes"])
LAST_PADDING = "padding of the last note; expected {three_padding} more bytes in the section, found its end"
row("plain", ".note.stapsdt.sh_size", plus(-1), only=64,
    findings=[note_rule("note-padding", "demo:three site {three} note {three_note}",
                        "padding of the last note; expected 1 more bytes in the section, found its "
                        "end")],
    fix="removed 0 dangling, kept 3 live, rewrote 1; build-id kept")
row("plain", ".note.stapsdt.sh_size", plus(4), only=64,
    findings=[note_rule("note-gap", "note {section_end}",
                        "bytes behind the note; expected the section's end, found 4 zero bytes",
                        severity="warning")],
    fix="removed 0 dangling, kept 3 live, rewrote 1; build-id kept")
for align, severity, reads in [(8, "error", "readers lose notes here"),
                               (16, "error", "readers lose notes here"),
                               (1, "warning", "readelf, gdb, perf and bcc still read it"),
                               (0, "warning", "readelf, gdb, perf and bcc still read it")]:
    row("plain", ".note.stapsdt.sh_addralign", align,
        findings=[note_rule("note-align", "note {section}",
                            f"sh_addralign of section {{index}}; expected 4, found {align}",
                            "the notes in it are laid out for 4", reads, severity=severity)],
        fix="removed 0 dangling, kept 3 live, repaired note-align; build-id kept")
# .note.gnu.build-id takes the name: two sections of the name, the first is loaded and not stapsdt's.
FIRST_IS_OTHER = [
    note_rule("note-alloc", "note {id_section}",
              "sh_flags of section 1; expected no SHF_ALLOC, found 0x2"),
    note_rule("note-foreign", "note {id_section}",
              'owner of the note; expected "stapsdt", found "GNU"', "namesz 4, type 3"),
    note_rule("note-sections", "note {section}",
              "sections named .note.stapsdt; expected section 1 only, found {index} too")]
row("plain", ".note.gnu.build-id.sh_name", 0x3a, findings=FIRST_IS_OTHER,
    fix="removed 0 dangling, kept 3 live, repaired note-alloc, note-foreign, note-sections; "
        "build-id kept")

# .stapsdt.base: absent, or where nobody can believe it to be.
BASE_MISSING = Finding("warning", "base-missing", "",
                       "the file has no .stapsdt.base section: gdb lists none of its probes",
                       ["3 of 3 notes have a base other than 0"],
                       "--gc-sections with lld, mold or gold drops it; reprobe fix puts it back")
BASE_HINT = "reprobe fix rewrites location, base and semaphore to the file's addresses"
NO_BASE = [BASE_MISSING, Finding(
    "error", "base-shift", "demo:one site {one} note {one_note}",
    "note.base is {base}, .stapsdt.base is not in the file: tracers compute different addresses",
    ["3 of 3 notes"], BASE_HINT)]
REBASED = ("removed 0 dangling, kept 3 live, put .stapsdt.base at {text_end}, rewrote 3; build-id "
           "kept")
row("plain", ".stapsdt.base.sh_name", 0, findings=NO_BASE, fix=REBASED)
# Tracers look for it by its name; where it is not loaded it is not what it says.
row("plain", ".stapsdt.base.sh_flags", 0, fix=REBASED.replace("{text_end}", "{text}"))
row("plain", ".stapsdt.base.sh_type", 8, tracers=True, only=64)  # one wants SHT_PROGBITS
row("plain", ".stapsdt.base.sh_type", 8, only=32)
row("plain", ".stapsdt.base.sh_size", 0)


def base_shift(name, note_base, section_base, count, site):
    return Finding("warning", "base-shift", f"demo:{name} site {site} note {{{name}_note}}",
                   f"note.base is {note_base}, .stapsdt.base is at {section_base}: tracers compute "
                   "different addresses", [f"{count} of 3 notes"], BASE_HINT)


# The sites are right without the distance of the two bases, wrong with it: the base is to blame, and
# no note is removed or rewritten.
row("plain", ".stapsdt.base.sh_addr", plus(0x100),
    rows={name: dict(SITE=f"{{{name}_far}}", VERDICT="ambiguous", KIND="-", FUNCTION="-")
          for name in ALL},
    findings=[base_shift("one", "{base}", "{base_far}", 3, "{one_far}")] +
    [ambiguous(name, f"no nop at {{{name}_far}}, but one at {{{name}}}, the location without the "
               "base", site=f"{{{name}_far}}") for name in ALL],
    left=["3 of 3 notes stand on a nop only without the base"])
row("plain", ".stapsdt.base.sh_addr", 0,
    findings=[base_shift("one", "{base}", "0x0", 3, "{one}")],
    left=["base-delta: a symbol does not stand at its start"],
    fix="removed 0 dangling, kept 3 live, rewrote 3; build-id kept")

# Symbols. Without them a function has no name and, where no FDE covers it, no bounds.
NO_NAMES = {name: dict(FUNCTION="(.text)") for name in ALL}
row("plain", ".symtab.sh_type", 0, rows=NO_NAMES)
row("plain", ".symtab.sh_size", 0, rows=NO_NAMES)
row("plain", ".symtab.sh_offset", HUGE, rows=NO_NAMES, problems=[
    "[section 7] contents lie outside the file; expected an end up to {size}, found "
    "{huge}+{symtab_size}"])
row("plain", ".symtab.sh_link", 0, rows=NO_NAMES)
row("plain", ".symtab.sh_link", 99, rows=NO_NAMES)
row("plain", ".symtab.sh_entsize", 0)
row("plain", ".symtab.sh_entsize", 1, rows=NO_NAMES)
row("plain", ".symtab.sh_info", 99)
row("plain", ".strtab.sh_size", 1, rows=NO_NAMES)
row("plain", ".strtab.sh_type", 1)
row("plain", ".strtab.sh_offset", HUGE, rows=NO_NAMES, problems=[
    "[section 8] contents lie outside the file; expected an end up to {size}, found "
    "{huge}+{strtab_size}"])
sections("plain", ".shstrtab.sh_offset", HUGE, only=64,
         error="[e_shstrndx] no section names: section lies outside the file; expected more than "
         "2^64 bytes, found {size}")
row("plain", ".shstrtab.sh_size", 1, without=ALL, problems=[
    f"[section {i}] name is not in the string table; expected a string before 0x1, found sh_name "
    f"{name:#x}" for i, name in enumerate(
        [1, 0x14, 0x1e, 0x2c, 0x32, 0x3a, 0x48, 0x50, 0x58], 1)])
ONE_NAMELESS = {"one": dict(FUNCTION="(.text)")}
row("plain", "sym.one.st_name", 0xffffff, rows=ONE_NAMELESS)
row("plain", "sym.one.st_value", 0, rows=ONE_NAMELESS)
row("plain", "sym.one.st_value", HUGE, rows=ONE_NAMELESS)
row("plain", "sym.one.st_size", 1, rows=ONE_NAMELESS)
row("plain", "sym.one.st_size", 0)  # ends where the next one starts
row("plain", "sym.one.st_info", 0)
row("plain", "sym.one.st_shndx", 0, rows=ONE_NAMELESS)
row("plain", "sym.one.st_shndx", 0xffff, rows=ONE_NAMELESS)

# Relocations that --emit-relocs kept. R_*_NONE for a location is a proof.
row("dead relocations", "rela.gone.r_info", plus(1))
row("dead relocations", "rela.one.r_offset", HUGE, gone=GONE_BY_RELOCATION,
    fix="nothing to change", left=["a relocation of the notes lies outside of them"])
row("dead relocations", "rela.one.r_addend", 5, gone=GONE_BY_RELOCATION)
row("relocations", "rela.one.r_info", 0, rows={"one": dict(VERDICT="dangling")},
    findings=[dangling("one", "the kept relocation of the location is R_*_NONE: the linker "
                       "discarded its section")],
    fix="removed 1 dangling, kept 2 live; build-id kept")
row("dead relocations", ".rela.note.stapsdt.sh_link", 0)
row("dead relocations", ".rela.note.stapsdt.sh_info", 0)
row("dead relocations", ".rela.note.stapsdt.sh_entsize", 0, gone=GONE_BY_RELOCATION)
row("dead relocations", ".rela.note.stapsdt.sh_entsize", 1,
    fix="nothing to change", left=["the relocations of the notes cannot be read"])
row("dead relocations", ".rela.note.stapsdt.sh_size", 1,
    fix="nothing to change", left=["the relocations of the notes are cut short"])
row("dead relocations", ".rela.note.stapsdt.sh_offset", HUGE,
    problems=["[section 7] contents lie outside the file; expected an end up to {size}, found "
              "{huge}+{rela_size}"], fix="nothing to change",
    left=["its relocations cannot follow: the section lies outside the file"])

# One note's header.
REWROTE = "removed 0 dangling, kept 3 live, rewrote 1; build-id kept"
TWO = "demo:two site {two} note {two_note}"
row("plain", "two.namesz", 7,
    findings=[note_rule("note-namesz", TWO, "namesz of the note; expected 8, found 7")],
    fix=REWROTE)
for name, others, value, found in [
        ("two", ("two", "three"), 0xffffffff, "namesz 0xffffffff, descsz {two_hex} and {two_left} bytes"),
        ("one", ALL, 0x80000000, "namesz 0x80000000, descsz {one_hex} and {one_left} bytes")]:
    row("plain", name + ".namesz", value, without=others,
        findings=[truncated(f"{{{name}_in_section}}", f"{{{name}_note}}", found)],
        left=[f"note-truncated: note at offset {{{name}_in_section}} of section {{index}}; expected "
              f"a whole note before the section's end, found {found}"])
row("plain", "two.descsz", 0xffffffff, without=("two", "three"),
    findings=[truncated("{two_in_section}", "{two_note}",
                        "namesz 0x8, descsz 0xffffffff and {two_left} bytes")],
    left=["note-truncated: note at offset {two_in_section} of section {index}; expected a whole "
          "note before the section's end, found namesz 0x8, descsz 0xffffffff and {two_left} bytes"])
row("plain", "two.descsz", plus(-1),
    findings=[note_rule("note-args-nul", TWO,
                        "end of the arguments; expected a NUL in descsz {two_descsz_1}, found none")],
    fix=REWROTE)
for more in (1, 2):
    row("plain", "two.descsz", plus(more),
        findings=[note_rule("note-descsz", TWO,
                            f"descsz of the note; expected {{two_descsz}}, found {{two_plus_{more}}}",
                            "it counts zero bytes behind the arguments' NUL, as padding is")],
        fix=REWROTE)
for value in (0, 4):
    row("plain", "two.type", value,
        findings=[note_rule("note-type", TWO,
                            f"type of the note; expected 3, found {value}")], fix=REWROTE)
for value, shown in [(b"Stapsdt", "Stapsdt"), (b"GNU\0\0\0\0", "GNU"),
                     (b"stapsd\0t", r"stapsd\x00t"), (b"\x1b[2J\n\"\\", r"\x1b[2J\x0a\x22\x5c")]:
    foreign = f'owner of the note; expected "stapsdt", found "{shown}"'
    row("plain", "two.owner", value, without=("two",),
        findings=[note_rule("note-foreign", "note {two_note}", foreign, "namesz 8, type 3")],
        fix="removed 0 dangling, kept 2 live, repaired note-foreign; build-id kept")
row("plain", "two.owner_nul", ord("x"), without=("two",),
    findings=[note_rule("note-foreign", "note {two_note}",
                        'owner of the note; expected "stapsdt", found "stapsdtx"',
                        "namesz 8, type 3")],
    fix="removed 0 dangling, kept 2 live, repaired note-foreign; build-id kept")

# The addresses.
REMOVED = "removed 1 dangling, kept 2 live; build-id kept"
NOWHERE = dict(VERDICT="dangling", KIND="-", FUNCTION="-")
row("plain", "two.location", 0, rows={"two": dict(NOWHERE, SITE="0x0")}, fix=REMOVED,
    findings=[dangling("two", "0x0 lies in no section", site="0x0")])
row("plain", "two.location", HUGE, rows={"two": dict(NOWHERE, SITE="{huge}")}, fix=REMOVED,
    findings=[dangling("two", "{huge} lies in no segment", site="{huge}")])
row("plain", "two.location", plus(-1), rows={"two": dict(SITE="{two_start}", VERDICT="ambiguous",
                                                        KIND="other")}, only=64,
    findings=[ambiguous("two", "no nop at function at {two_start}+0x0", site="{two_start}")])
row("plain", "two.location", lambda old: 0x1000 + old, only=64,
    rows={"two": dict(NOWHERE, SITE="{two_in_data}")}, fix=REMOVED,
    findings=[dangling("two", "{two_in_data} lies in no segment", site="{two_in_data}")])
row("plain", "two.base", 0, fix=REWROTE,
    findings=[base_shift("two", "0x0", "{base}", 1, "{two}")])
row("plain", "two.base", HUGE, only=64,
    rows={"two": dict(SITE="{two_wrapped}", VERDICT="ambiguous", KIND="-", FUNCTION="-")},
    findings=[base_shift("two", "{huge}", "{base}", 1, "{two_wrapped}"),
              ambiguous("two", "no nop at {two_wrapped}, but one at {two}, the location without the "
                        "base", site="{two_wrapped}")],
    left=["1 of 3 notes stand on a nop only without the base"])
row("plain", "three.semaphore", 0, rows={"three": dict(SEMAPHORE="-")}, fix=REWROTE,
    findings=[counter("semaphore-undefined", "three",
                      "the note names no counter, but the file defines one: no tracer raises it",
                      "demo_three_semaphore is at {counter}",
                      "reprobe fix takes the address from the symbol")])


def counter_dangling(name, address, why):
    return counter("semaphore-dangling", name,
                   "the note's counter is not in the file: its section was dropped by the linker",
                   f"counter of demo:{name} at {address}: {why}",
                   "reprobe fix clears the field, or takes the symbol PROVIDER_NAME_semaphore")


row("plain", "three.semaphore", HUGE, rows={"three": dict(SEMAPHORE="{huge}")}, fix=REWROTE,
    findings=[counter_dangling("three", "{huge}",
                               "libbpf refuses the probe: the address is in no segment")])
row("plain", "two.semaphore", 2, rows={"two": dict(SEMAPHORE="0x2")}, fix=REWROTE,
    findings=[counter_dangling("two", "0x2", "it stands in no section, and nobody may write there")])

# The strings.
def refused_by_perf(shown):
    return Finding("warning", "probe-name-perf", f"{shown} site {{two}} note {{two_note}}",
                   "the name is no identifier of C: perf list and perf probe refuse every probe of the file",
                   [], "name provider and probe with letters, digits and _")


for changed, value, shown in (("provider", b"\x1b[2J", r"\x1b[2J:two"), ("probe", b"\xff\xfe\n", r"demo:\xff\xfe\x0a"),
                              ("probe", b"\xc2\x9bm", r"demo:\xc2\x9bm"),
                              ("probe", "\u00fcx".encode(), "demo:\u00fcx")):
    row("plain", "two." + changed, value, rows={"two": dict(PROBE=shown)}, findings=[refused_by_perf(shown)])
row("plain", "one.arguments", b"\x1b", rows={"one": dict(ARGUMENTS=r"\x1b{arguments_1}")},
    findings=[argument_operand("demo:one site {one} note {one_note}", "{first_argument_escaped}")])
SHIFTED = "descsz of the note; expected {two_descsz_1}, found {two_descsz}"
ZEROS = "it counts zero bytes behind the arguments' NUL, as padding is"
for bits in (64, 32):
    row("plain", "two.provider", b"\0emo", only=bits,
        rows={"two": dict(PROBE=":emo", ARGUMENTS="two")},
        findings=[name_as_argument(":emo site {two} note {two_note}", "two")[bits],
                  note_rule("note-name", ":emo site {two} note {two_note}",
                            "provider of the probe; expected some text, found none",
                            severity="warning"),
                  note_rule("note-descsz", ":emo site {two} note {two_note}", SHIFTED, ZEROS)],
        fix=REWROTE)
    row("plain", "two.provider", b"de\0o", only=bits,
        rows={"two": dict(PROBE="de:o", ARGUMENTS="two")},
        findings=[name_as_argument("de:o site {two} note {two_note}", "two")[bits],
                  note_rule("note-descsz", "de:o site {two} note {two_note}", SHIFTED, ZEROS)],
        fix=REWROTE)
    row("plain", "two.probe", b"\0wo", only=bits, rows={"two": dict(PROBE="demo:", ARGUMENTS="wo")},
        findings=[name_as_argument("demo: site {two} note {two_note}", "wo")[bits],
                  note_rule("note-name", "demo: site {two} note {two_note}",
                            "name of the probe; expected some text, found none"),
                  note_rule("note-descsz", "demo: site {two} note {two_note}", SHIFTED, ZEROS)],
        fix=REWROTE, left=["note-name: name of the probe; expected some text, found none"])
NO_NUL = "end of the arguments; expected a NUL in descsz {two_descsz}, found none"
row("plain", "two.provider_nul", ord("x"), rows={"two": dict(PROBE="demoxtwo:")},
    findings=[note_rule("note-name", "demoxtwo: site {two} note {two_note}",
                        "name of the probe; expected some text, found none"),
              note_rule("note-args-nul", "demoxtwo: site {two} note {two_note}", NO_NUL)],
    fix=REWROTE, left=["note-name: name of the probe; expected some text, found none"])
row("plain", "two.probe_nul", ord("x"), rows={"two": dict(PROBE="demo:twox")},
    findings=[note_rule("note-args-nul", "demo:twox site {two} note {two_note}", NO_NUL)],
    fix=REWROTE)
for bits in (64, 32):
    row("plain", "two.arguments_nul", ord("x"), only=bits, rows={"two": dict(ARGUMENTS="x")},
        findings=[name_as_argument(TWO, "x")[bits], note_rule("note-args-nul", TWO, NO_NUL)],
        fix=REWROTE)
row("plain", "two.padding", b"\1",
    findings=[note_rule("note-padding", TWO,
                        "padding of the note; expected zeros, found other bytes",
                        severity="note")], fix=REWROTE)

# The site. Nothing was dropped from the file: the note may be hand-written, the code patched. A jump
# or a trap is what other tools put there.
row("plain", "code.two.site", 0x55, only=64,
    rows={"two": dict(VERDICT="ambiguous", KIND="other")},
    findings=[ambiguous("two", "no nop at function at {two_start}+{step}")])
for value in (0xcc, 0xe9):
    row("plain", "code.two.site", value, only=64,
        rows={"two": dict(VERDICT="ambiguous", KIND="other")},
        findings=[ambiguous("two", "a jump, call or trap at function at {two_start}+{step}: patched "
                            "by another tool, or no site at all")])

# Unwind information: in a file with a dangling note, a site that nothing covers is in doubt.
UNCOVERED = dict(
    rows={"two": dict(VERDICT="ambiguous")},
    findings=[ambiguous("two", "nop at {two}", "no symbol and no unwind information covers the site")],
    fix="removed 1 dangling, kept 2 live, left 1 ambiguous; build-id kept")
for field_name, value in [("cie.length", 0), ("cie.length", 0xfffffff0), ("cie.length", 0xffffffff),
                          ("cie.id", 1), ("cie.version", 9), ("cie.augmentation", b"xx\0"),
                          ("cie.encoding", 0xff), ("cie.encoding", 0x0c), ("fde.length", 0),
                          ("fde.length", 0xfffffff0), ("fde.cie_pointer", 0),
                          ("fde.cie_pointer", 25), ("fde.pc_begin", 0), ("fde.pc_range", 0),
                          ("fde.pc_range", 1), (".eh_frame.sh_size", 3)]:
    row("dead", field_name, value, **UNCOVERED)
