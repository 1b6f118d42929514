#!/usr/bin/env python3
"""What is true of a fixture, from readelf and the symbol table alone.

Every site of the fixtures defines a local symbol site.PROVIDER.NAME.N in the section of its code
(fixtures/probe.h). It goes where the code goes, so in the unstripped binary a note is
  live   if a site symbol of its own provider and name stands at its location;
  twin   if there are more such notes at a location than site symbols (a weak label): one of them
         has to stay, the others may go;
  dead   otherwise.
Of code that --icf=all folded, lld and mold keep the symbols of all copies and gold those of one; the
copies are named in FOLDED, and a site of one is a site of all: their notes are live. Debian's static
glibc has no probes of its own, so a static fixture's notes are the fixture's.

The demo has the untouched <sys/sdt.h> and no site symbols: there a note is live if its location lies
in a function that has a probe of its name in the source.

  truth.py FILE...           prints the notes of binaries and whether they are live
  truth.py --measure FOLDER  how hard the mass fixtures are: the dead notes that lie in an
                             executable section, on a nop, on a live site
"""
import glob
import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field

DEMO_FUNCTIONS = {"start": {"main"}, "done": {"main"}, "request": {"serve", "serve_v1"},
                  "reply": {"serve"}, "reply_v1": {"serve_v1"}, "parse": {"parse"},
                  "compress": {"compress"}, "evict": {"evict"}}

# fixtures/icf.c
FOLDED = {("app", "twin_read"): ("app", "twin_write"), ("app", "twin_write"): ("app", "twin_read")}


@dataclass
class Note:
    index: int  # in readelf's order
    provider: str
    name: str = ""
    location: int = 0  # as it stands in the note; ET_REL: the offset in `section`
    base: int = 0
    semaphore: int = 0
    arguments: str = ""
    note_section: int = 0  # which of the .note.stapsdt sections, 0 for the first
    offset: int = 0  # of the note in that section
    section: str = ""  # ET_REL: of the site
    address: int = 0  # location with the base's shift applied
    status: str = ""

    @property
    def key(self):
        return (self.provider, self.name)

    def __str__(self):
        return f"note {self.index} {self.provider}:{self.name} at {self.location:#x}"


@dataclass
class Section:
    index: int
    name: str
    type: str
    address: int
    offset: int
    size: int
    flags: str
    link: int
    info: int

    @property
    def executable(self):
        return "X" in self.flags and "A" in self.flags


@dataclass
class File:
    path: str
    relocatable: bool = False
    sections: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    sites: dict = field(default_factory=lambda: defaultdict(Counter))  # key -> address -> symbols
    functions: list = field(default_factory=list)  # (name, start, end)
    relocations: list = field(default_factory=list)  # per table: (table's name, [Relocation])

    def executable_at(self, address):
        return any(s.executable and s.address <= address < s.address + s.size for s in self.sections)


@dataclass
class Relocation:
    offset: int
    type: str
    symbol: str
    value: int  # symbol + addend


_SECTION = re.compile(r"\s*\[\s*(\d+)\] (\S*)\s+(\S+)\s+([0-9a-f]+) ([0-9a-f]+) ([0-9a-f]+) \S\S"
                      r"\s+([A-Za-z]*)\s+(\d+)\s+(\d+)\s+\d+\s*$")
_SYMBOL = re.compile(r"\s*\d+: ([0-9a-f]+)\s+(\S+) (NOTYPE|FUNC)\s+\S+\s+\S+\s+(?:\[[^]]*\]\s+)?(\S+) (\S+)")
_PLACE = re.compile(r"\s+Location: 0x([0-9a-f]+), Base: 0x([0-9a-f]+), Semaphore: 0x([0-9a-f]+)")
_RELOCATION = re.compile(r"([0-9a-f]{8,16})  [0-9a-f]+ (R_\w+)(?:\s+([0-9a-f]{8,16})\s+(\S+)(?: ([+-]) ([0-9a-f]+))?)?")


def load(paths, relocations=False):
    """One readelf run over the files; a File for each, in order. Also readelf's complaints."""
    command = ["readelf", "-hSsnW"] + (["-r"] if relocations else []) + list(paths)
    run = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False,
                         env={**os.environ, "LC_ALL": "C"})
    text = run.stdout
    if len(paths) == 1:
        text = f"\nFile: {paths[0]}\n" + text
    chunks = re.split(r"^File: (.*)$", text, flags=re.M)[1:]
    by_path = {chunks[i]: chunks[i + 1] for i in range(0, len(chunks), 2)}
    return [parse(path, by_path.get(path, "")) for path in paths], run.stderr


def parse(path, text):
    file = File(path)
    note, descsz, note_section, offset, table = None, 0, -1, 0, None
    for line in text.splitlines():
        if line.startswith("  Type:"):
            file.relocatable = " REL " in line
        elif line.startswith("  [") and (m := _SECTION.match(line)):
            file.sections.append(Section(int(m[1]), m[2], m[3], int(m[4], 16), int(m[5], 16),
                                         int(m[6], 16), m[7], int(m[8]), int(m[9])))
        elif line.startswith("Displaying notes found in:"):
            inside = line.split(":", 1)[1].strip() == ".note.stapsdt"
            note_section += inside
            note, offset = None, 0
        elif line.startswith("  stapsdt ") and "NT_STAPSDT" in line:
            descsz = int(line.split()[1], 16)
            note = Note(len(file.notes), "", note_section=note_section, offset=offset)
            offset += 12 + 8 + (descsz + 3 & ~3)
            file.notes.append(note)
            if "Provider: " in line:
                note.provider = line.split("Provider: ", 1)[1]
        elif note and line.startswith("    Provider: "):
            note.provider = line[14:]
        elif note and line.startswith("    Name: "):
            note.name = line[10:]
        elif note and (m := _PLACE.match(line)):
            note.location, note.base, note.semaphore = (int(g, 16) for g in m.groups())
        elif note and line.startswith("    Arguments: "):
            note.arguments = line[15:]
        elif line.startswith("Relocation section '"):
            table = (line.split("'")[1], [])
            file.relocations.append(table)
        elif table and (m := _RELOCATION.match(line)):
            addend = int(m[6], 16) * (-1 if m[5] == "-" else 1) if m[6] else 0
            value = int(m[3], 16) + addend if m[3] else 0
            table[1].append(Relocation(int(m[1], 16), m[2], m[4] or "", value))
        elif m := _SYMBOL.match(line):
            add_symbol(file, int(m[1], 16), int(m[2], 0), m[3], m[4], m[5])
    if file.relocatable:
        locate_in_objects(file)
    else:
        shift_by_base(file)
    return file


def add_symbol(file, value, size, kind, section, name):
    if section in ("UND", "ABS"):
        return
    if kind == "NOTYPE" and name.startswith("site."):
        provider, probe = name.split(".")[1:3]
        file.sites[(provider, probe)][value] += 1
    elif kind == "FUNC" and size:
        file.functions.append((name.split(".")[0].split("@")[0], value, value + size))


def shift_by_base(file):
    """The consumers' rule: what .stapsdt.base moved by since the link, every location did."""
    base = next((s.address for s in file.sections if s.name == ".stapsdt.base"), 0)
    for note in file.notes:
        shift = base - note.base if base and note.base else 0
        note.address = note.location + shift


def locate_in_objects(file):
    """ET_REL: the site's section and offset are the relocation's symbol and addend."""
    notes = [s for s in file.sections if s.name == ".note.stapsdt" and s.type == "NOTE"]
    tables = [s for s in file.sections if s.type in ("RELA", "REL")]
    by_section = {}
    for section, (name, entries) in zip(tables, file.relocations):
        assert section.name == name, (file.path, section.name, name)
        by_section[section.info] = {r.offset: r for r in entries}
    for note in file.notes:
        entries = by_section.get(notes[note.note_section].index, {})
        if relocation := entries.get(note.offset + 20):
            note.section = relocation.symbol
            # REL keeps the addend in the note, where readelf -n finds it.
            rela = any(t.type == "RELA" for t in tables)
            note.location = relocation.value if rela else note.location
        note.address = note.location
        note.status = "live"


def judge(file, twin=None, demo=False, same_notes=False):
    """Sets the status of the file's notes, from the symbols of the twin where it is stripped; where
    the file's addresses are not the twin's, from the twin's notes, which are the same."""
    if same_notes:
        judge(twin, None, demo)
        for note, other in zip(file.notes, twin.notes):
            note.status = other.status
        return
    symbols = twin or file
    if demo:
        for note in file.notes:
            names = DEMO_FUNCTIONS[note.name]
            inside = any(start <= note.address < end and name in names
                         for name, start, end in symbols.functions)
            note.status = "live" if inside else "dead"
        return
    places = Counter((note.key, note.address) for note in file.notes)
    for note in file.notes:
        at_site = sum(symbols.sites.get(key, {}).get(note.address, 0)
                      for key in (note.key, FOLDED.get(note.key)))
        if not at_site:
            note.status = "dead"
        else:
            note.status = "twin" if places[(note.key, note.address)] > at_site else "live"


def orphan_sites(file):
    """The live sites that no note names."""
    named = {(note.key, note.address) for note in file.notes}
    return [(key, address) for key, addresses in file.sites.items() for address in addresses
            if (key, address) not in named]


def measure(folder):
    manifests = sorted(glob.glob(os.path.join(folder, "*", "*", "*", "mass.json")))
    print(f"{'fixture':42} notes dead in-exec on-nop on-live-site")
    for path in manifests:
        with open(path, encoding="utf-8") as text:
            manifest = json.load(text)
        if manifest["refused"]:
            continue
        binary = path[:-len(".json")]
        file = load([binary])[0][0]
        judge(file)
        with open(binary, "rb") as content:
            data = content.read()
        live = {address for addresses in file.sites.values() for address in addresses}
        dead = [note for note in file.notes if note.status == "dead"]
        code = [s for s in file.sections if s.executable]
        byte = [data[s.offset + n.location - s.address] for n in dead for s in code
                if s.address <= n.location < s.address + s.size]
        nops = byte.count(0x90) if manifest["toolchain"] in ("gcc", "clang", "i386", "x32") else "-"
        print(f"{os.path.relpath(binary, folder):42} {len(file.notes):5} {len(dead):4} "
              f"{len(byte):7} {nops:>6} {sum(n.location in live for n in dead):12}")


def main():
    if sys.argv[1] == "--measure":
        measure(sys.argv[2])
        return
    for file in load(sys.argv[1:], relocations=True)[0]:
        if not file.relocatable:
            judge(file)
        for note in file.notes:
            print(f"{file.path}: {note} {note.section} {note.status}")


if __name__ == "__main__":
    main()
