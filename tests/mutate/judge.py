"""The real effect of a changed file, told apart from reprobe.

A Judge knows the true result of a command and says in what a changed one differs from it:
  memory    what the kernel and the dynamic linker map, what the program prints, how it ends, what
            libgcc finds to unwind each of its addresses (effect.cpp, preloaded.c)
  readelf   what readelf says of headers, segments, sections, symbols, relocations, notes and frames
  section   the contents of a section
  segment   bytes that a PT_LOAD maps, whole pages of the file, where the file does not run here
  gdb       how gdb unwinds from a sample of addresses
What differs in none of them is harmless by one of these rules:
  unread    the bytes that differ lie in no section, no header and no page that is mapped
  record    only the undo record differs, and it gives the original back byte for byte
  less      every byte that differs is what it was before the command: a part of the work is not
            done, as with --skip or --pattern; only for commands that do separate things to separate
            notes and counters. Notes that were to come back from a debug file may be fewer, and of
            sleds a note may name its old site, where the program does what it did
"""
import os
import re
import shutil
import struct
import subprocess

PAGE = 4096
RECORDS = (".reprobe.undo", ".reprobe.undo.site", ".reprobe.undo.on", ".reprobe.undo.symbols")
# Each note and each counter is a thing of its own here. A sled, a check or an index that is there by
# half is broken.
SEPARATE = ("fix", "from-debug", "from-index", "guards-on")
SHT_NOBITS = 8
READELF = ["-hlSsrdnVW"], ["-W", "--debug-dump=frames"]


def read(path):
    with open(path, "rb") as file:
        return file.read()


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                          timeout=60)
    return done.returncode, done.stdout


class Parts:
    """Headers, sections and the pages that segments map, of little-endian and big-endian files."""

    def __init__(self, data):
        self.data = data
        order = "<" if data[5] == 1 else ">"
        wide = data[4] == 2
        head = struct.unpack_from(order + ("16sHHIQQQIHHHHHH" if wide else "16sHHIIIIIHHHHHH"), data)
        _, _, _, _, _, phoff, shoff, _, ehsize, phentsize, phnum, shentsize, shnum, shstrndx = head
        self.headers = [(0, max(ehsize, 64)), (phoff, phoff + phnum * phentsize),
                        (shoff, shoff + shnum * shentsize)]
        self.loads, self.sections = [], {}
        for i in range(phnum):
            at = phoff + i * phentsize
            if wide:
                kind, _, offset, _, _, filesz = struct.unpack_from(order + "IIQQQQ", data, at)
            else:
                kind, offset, _, _, filesz = struct.unpack_from(order + "IIIII", data, at)
            if kind == 1 and filesz:
                self.loads.append((offset // PAGE * PAGE, -(-(offset + filesz) // PAGE) * PAGE))
        self.order, self.header_size = order, shentsize
        raw = []
        for i in range(shnum):
            at = shoff + i * shentsize
            if wide:
                name, kind, _, _, offset, size = struct.unpack_from(order + "IIQQQQ", data, at)
            else:
                name, kind, _, _, offset, size = struct.unpack_from(order + "IIIIII", data, at)
            raw.append((name, offset, 0 if kind == SHT_NOBITS else size))
        for i, (name, offset, size) in enumerate(raw):
            begin = raw[shstrndx][1] + name
            text = data[begin:data.index(b"\0", begin)].decode("latin-1")
            self.sections[i, text] = (offset, offset + size)


def split_notes(data, order):
    notes, at = [], 0
    while at + 12 <= len(data):
        name, desc, _ = struct.unpack_from(order + "III", data, at)
        end = at + 12 + -(-name // 4) * 4 + -(-desc // 4) * 4
        notes.append(data[at:end])
        at = end
    return notes


def differing_offsets(a, b):
    """Ascending; the bytes behind the shorter of the two too."""
    if len(a) != len(b):
        size = max(len(a), len(b))
        common = min(len(a), len(b))
        return differing_offsets(a[:common], b[:common]) + list(range(common, size))
    if a == b:
        return []
    found = []
    for at in range(0, len(a), PAGE):
        if a[at:at + PAGE] != b[at:at + PAGE]:
            found += [i for i in range(at, min(at + PAGE, len(a))) if a[i] != b[i]]
    return found


def inside(offsets, ranges):
    """Those of the offsets that lie in one of the ranges."""
    return [at for at in offsets if any(begin <= at < end for begin, end in ranges)]


def first_difference(a, b):
    """The first lines that differ."""
    for left, right in zip(a.splitlines(), b.splitlines()):
        if left != right:
            return f"{left.strip()} | {right.strip()}"
    return "one is longer"


class Judge:
    """`command`: how the file runs, with FILE for its path; none: it does not run here."""

    def __init__(self, tools, folder, result, preload, undo):
        self.tools, self.folder, self.command, self.preload = tools, folder, result.runs, preload
        self.undo = undo  # the command that takes the record; none: there is no record
        self.made_by = result.command
        self.path = os.path.join(folder, "program")
        self.before, self.truth = read(result.before), read(result.after)
        true_result = result.after
        self.parts = Parts(self.truth)
        self.place(true_result)
        self.said = self.effect()
        again = self.effect()
        assert self.said == again, first_difference(self.said, again)
        self.read = [self.readelf(options) for options in READELF]
        self.unwound = None

    def place(self, path):
        if os.path.exists(self.path):
            os.unlink(self.path)
        shutil.copyfile(path, self.path)
        os.chmod(self.path, 0o755)

    def effect(self):
        if not self.command:
            return ""
        command = [self.path if word == "FILE" else word for word in self.command]
        _, said = run(self.tools["effect"], self.tools["lines"],
                      self.tools["preloaded"] if self.preload else "-", *command)
        return said.decode("latin-1")

    def readelf(self, options):
        return run("readelf", *options, self.path)[1].decode("latin-1")

    def gdb(self, addresses):
        """How gdb unwinds from addresses, at the entry point of the running program."""
        commands = ["-ex", "set startup-with-shell off", "-ex", "starti"]
        for address in addresses:
            commands += ["-ex", f"set $pc = {address:#x}", "-ex", "info frame", "-ex", "info symbol $pc"]
        said = run("timeout", "20", "gdb", "-nx", "-batch", *commands, self.path)[1].decode("latin-1")
        return re.sub(r"process \d+", "process", said)

    def executable_addresses(self, count):
        found = re.findall(r"(0x\w+) FDE", self.said)
        step = max(1, len(found) // count)
        return [int(at, 16) for at in found[::step]][:count]

    def judge(self, path, with_gdb=False):
        """(what differs, more of it), or ("harmless", rule)."""
        data = read(path)
        offsets = differing_offsets(self.truth, data)
        if self.made_by in SEPARATE and len(data) == len(self.truth) and all(
                at < len(self.before) and data[at] == self.before[at] for at in offsets):
            return "harmless", "less"
        if self.made_by == "from-debug" and self.has_fewer_notes(data):
            return "harmless", "less"
        # What lies in no structure of the true result, and of the changed one, is read by nobody.
        try:
            now = Parts(data)
        except (struct.error, IndexError, ValueError) as error:
            return "readelf", f"headers cannot be read: {error}"
        self.place(path)
        said = self.effect()
        if said != self.said:
            return "memory", first_difference(self.said, said)
        if self.made_by.startswith("sled") and self.is_unmoved(offsets, data):
            return "harmless", "less"
        for options, expected in zip(READELF, self.read):
            found = self.readelf(options)
            if found != expected:
                return "readelf", first_difference(expected, found)
        mapped = inside(offsets, self.parts.loads) + inside(offsets, now.loads)
        if mapped and not self.command:
            return "segment", f"offset {min(mapped):#x}"
        in_record = True
        for key, (begin, end) in self.parts.sections.items():
            other = now.sections.get(key)
            if other and self.truth[begin:end] == data[other[0]:other[1]]:
                continue
            if key[1] not in RECORDS or not self.gives_back(path):
                return "section", f"{key[1]}"
            in_record = False
        if inside(offsets, self.parts.headers) or inside(offsets, now.headers):
            return "header", f"offset {offsets[0]:#x}"
        if with_gdb and self.command and self.command == ["FILE"] and self.preload:
            addresses = self.executable_addresses(40)
            if self.unwound is None:
                changed = self.path + ".changed"
                shutil.copyfile(path, changed)
                os.unlink(self.path)
                with open(self.path, "wb") as file:
                    file.write(self.truth)
                os.chmod(self.path, 0o755)
                self.unwound = self.gdb(addresses)
                self.place(changed)
                os.unlink(changed)
            unwound = self.gdb(addresses)
            if unwound != self.unwound:
                return "gdb", first_difference(self.unwound, unwound)
        return "harmless", "unread" if in_record else "record"

    def is_unmoved(self, offsets, data):
        """Notes that name the site that they named before: verify asks that its nop is still there."""
        notes = next((self.parts.sections[key] for key in self.parts.sections
                      if key[1] == ".note.stapsdt"), None)
        return notes is not None and len(data) == len(self.truth) and all(
            notes[0] <= at < notes[1] and at < len(self.before) and data[at] == self.before[at]
            for at in offsets)

    def has_fewer_notes(self, data):
        """Some notes of the section are left out, and nothing else differs but its size."""
        key = next((key for key in self.parts.sections if key[1] == ".note.stapsdt"), None)
        try:
            other = Parts(data).sections.get(key)
        except (struct.error, IndexError, ValueError):
            return False
        if key is None or other is None or len(data) != len(self.truth):
            return False
        begin, end = self.parts.sections[key]
        wanted = iter(split_notes(self.truth[begin:end], self.parts.order))
        if not all(note in wanted for note in split_notes(data[other[0]:other[1]], self.parts.order)):
            return False
        patched = data[:begin] + self.truth[begin:end] + data[end:]
        header = self.parts.headers[2][0] + key[0] * self.parts.header_size
        return all(header <= at < header + self.parts.header_size
                   for at in differing_offsets(self.truth, patched))

    def gives_back(self, path):
        """Does the record give the original back?"""
        if self.undo is None:
            return False
        out = os.path.join(self.folder, "given-back")
        if os.path.exists(out):
            os.unlink(out)
        code, _ = run(self.tools["reprobe"], *self.undo, path, "-o", out)
        return code == 0 and read(out) == self.before
