#!/usr/bin/env python3
"""payload_test.py REPROBE: programs that find data behind the end of their own ELF file still find them
after each rewrite and after it is undone, or the rewrite is refused. Whether they are found is told by
the programs: each looks as programs of its kind do."""
import io
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
from command import Tests, read, write  # noqa: E402

# How a program finds its data: from the end, at an offset that is written into it, or behind what its
# own headers say. "where" is patched into the finished program where it is asked for.
SOURCE = r"""
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>
#define COUNTER(name) unsigned short pack_##name##_semaphore __attribute__((section(".probes")))
COUNTER(open);
COUNTER(plain);
COUNTER(dropped);
volatile unsigned long where[2] = {0x6b636170776f6f66UL, 0};
__attribute__((noinline)) long unused(long n) { DTRACE_PROBE1(pack, dropped, n); return n; }
static int says(FILE *f, long at, int whence) {
  char found[17] = {0};
  return fseek(f, at, whence) == 0 && fread(found, 1, 16, f) == 16 && !strcmp(found, "END-OF-ARCHIVE!!");
}
int main(void) {
  FILE *f = fopen("/proc/self/exe", "rb");
  if (pack_open_semaphore) DTRACE_PROBE1(pack, open, f);
  DTRACE_PROBE(pack, plain);
  Elf64_Ehdr head;
  Elf64_Shdr last;
  if (!f || fread(&head, sizeof head, 1, f) != 1) return 2;
  fseek(f, (long)(head.e_shoff + (head.e_shnum - 1ul) * head.e_shentsize), SEEK_SET);
  if (fread(&last, sizeof last, 1, f) != 1) return 2;
  unsigned long behind = head.e_shoff + (unsigned long)head.e_shnum * head.e_shentsize;
  if (last.sh_type != SHT_NOBITS && last.sh_offset + last.sh_size > behind) behind = last.sh_offset + last.sh_size;
  char start[5] = {0};
  fseek(f, (long)behind, SEEK_SET);
  if (fread(start, 1, 4, f) != 4) start[0] = 0;
  printf("%s %s %s\n", says(f, -16, SEEK_END) ? "end" : "-", says(f, (long)where[1], SEEK_SET) ? "offset" : "-",
         !strcmp(start, "PAY!") ? "headers" : "-");
  return 0;
}
"""

tests = Tests(sys.argv[1])


def build(name, *flags):
    pathlib.Path("p.c").write_text(SOURCE)
    subprocess.run(["gcc", "-w", "-O2", "-ffunction-sections", "-Wl,--build-id=sha1", *flags, "p.c", "-o", name],
                   check=True)
    return read(name)


def with_payload(name, program, payload):
    """The offset is that of the payload's last 16 bytes."""
    at = program.index(struct.pack("<Q", 0x6b636170776f6f66))
    program = program[:at + 8] + struct.pack("<Q", len(program) + len(payload) - 16) + program[at + 16:]
    write(name, program + payload, 0o755)


def found(name):
    return subprocess.run([os.path.abspath(name)], capture_output=True, text=True).stdout.strip()


PAYLOAD = b"PAY!" + bytes(range(256)) * 8 + b"END-OF-ARCHIVE!!"
COMMANDS = {"fix": ["fix"], "sled": ["sled"], "relativize": ["relativize"], "guards": ["guards", "--to", "site"]}

# Each segment has pages of its own, or the counters would share one with RELRO.
bare = build("bare", "-fuse-ld=lld", "-Wl,--gc-sections", "-Wl,-z,separate-loadable-segments")
with_payload("app", bare, PAYLOAD)
tests.same("the program finds its data in all three ways", "end offset headers", found("app"))

# The kind is not known: refused where the file has to grow, with the flags that decide.
for name, command in COMMANDS.items():
    result = tests.run(*command, "app", "-o", "out")
    tests.check(f"{name}: refused", result.code == 4, result.text())
    tests.check(f"{name}: says what was found and which flags decide",
                "payload: 2068 bytes" in result.err and "--payload=keep" in result.err and
                "--payload=ignore" in result.err, result.text())
    tests.check(f"{name}: nothing was written", not os.path.exists("out"))
    result = tests.run(*command, "--payload=keep", "app", "-o", "out")
    tests.check(f"{name} --payload=keep: done", result.code == 0, result.text())
    tests.same(f"{name} --payload=keep", "end - headers", found("out"))
    tests.same(f"{name} --payload=keep: verify", 0, tests.run("verify", "app", "out").code)
    result = tests.run(*command, "--payload=ignore", "app", "-o", "ignored")
    tests.check(f"{name} --payload=ignore: done", result.code == 0, result.text())
    tests.same(f"{name} --payload=ignore", "- offset -", found("ignored"))
    lost = tests.run("verify", "app", "ignored")
    tests.check(f"{name} --payload=ignore: verify says so", lost.code == 1 and "verify-payload" in lost.out,
                lost.text())
    tests.same(f"{name} --payload=ignore: verify --payload=ignore", 0,
               tests.run("verify", "--payload=ignore", "app", "ignored").code)
    os.remove("out")
    os.remove("ignored")

# One byte of the payload differs: verify sees it.
tests.run("fix", "--payload=keep", "app", "-o", "out")
changed = bytearray(read("out"))
changed[-100] ^= 1
write("changed", changed, 0o755)
result = tests.run("verify", "app", "changed")
tests.check("verify sees a payload of which a byte changed", result.code == 1 and "verify-payload" in result.out,
            result.text())

# Undone, the input is back with its payload.
for undone, command, undo in [("sled", ["sled"], ["sled", "--undo"]),
                              ("guards", ["guards", "--to", "site"], ["guards", "--to", "restore"])]:
    for how in ("keep", "ignore"):
        tests.run(*command, f"--payload={how}", "app", "-o", "out")
        result = tests.run(*undo, *([f"--payload={how}"] if how == "keep" else []), "out", "-o", "back")
        tests.check(f"{undone} --payload={how} is undone", result.code == 0 and read("back") == read("app"),
                    result.text())

# Where nothing has to be added the payload stays where it is, whatever it is.
tests.run("fix", "bare", "-o", "whole")
program = read("whole")
dead = build("dead", "-fuse-ld=bfd")
with_payload("quiet", program, PAYLOAD)
result = tests.run("fix", "quiet", "-o", "out")
tests.check("nothing to change: copied whole", result.code == 0 and read("out") == read("quiet"), result.text())
with_payload("counters", dead, PAYLOAD)
result = tests.run("guards", "--to", "on", "counters", "-o", "out")
if result.code == 0:
    tests.same("guards --to on", "end", found("out").split()[0])
else:
    tests.same("guards --to on has to add its record", 4, result.code)

# audit names it, as a note.
result = tests.run("audit", "--json", "quiet")
tests.check("audit: a note", result.code == 0 and '"payload"' in result.out, result.text())
result = tests.run("audit", "--json", "whole")
tests.check("audit: no note without a payload", '"payload"' not in result.out, result.text())
write("padded", program + bytes(512), 0o755)
tests.check("audit: zeros are padding", '"payload"' not in tests.run("audit", "--json", "padded").out)


# Kinds that are found from the end: kept without a question.
def zip_of(name):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("hello.txt", "from the archive")
        archive.comment = b"END-OF-ARCHIVE!!"
    return out.getvalue()


archive = zip_of("a.zip")
pyinstaller = b"x" * 500 + struct.pack("!8sIIII64s", b"MEI\014\013\012\013\016", 588, 0, 0, 311, b"libpython3.11.so")
bun = b"modules" * 9 + b"\n---- Bun! ----\n" + struct.pack("<Q", 5000)
KINDS = {"a zip archive": archive, "a PyInstaller archive": pyinstaller, "the modules of a Bun program": bun,
         "the image of an AppImage": b"hsqs" + b"i" * 4096}
for kind, payload in KINDS.items():
    program = bare
    if "AppImage" in kind:
        program = bare[:8] + b"AI\2" + bare[11:]
    with_payload("kind", program, payload)
    shown = tests.run("audit", "kind")
    tests.check(f"{kind}: named", kind in shown.out, shown.text())
    for name, command in COMMANDS.items():
        result = tests.run(*command, "kind", "-o", "out")
        tests.check(f"{kind}: {name}", result.code == 0, result.text())
        tests.check(f"{kind}: {name}: the last bytes", result.code == 0 and read("out").endswith(payload))
        tests.same(f"{kind}: {name}: verify", 0, tests.run("verify", "kind", "out").code)
    if payload is archive:
        with zipfile.ZipFile("out") as opened:
            tests.same("zip: read", b"from the archive", opened.read("hello.txt"))
    if "AppImage" in kind:
        sections = subprocess.run(["readelf", "-hW", "out"], capture_output=True, text=True).stdout
        start, = [int(line.split()[4]) for line in sections.splitlines() if "Start of section headers" in line]
        count, = [int(line.split()[-1]) for line in sections.splitlines() if "Number of section headers" in line]
        tests.same("AppImage: directly behind the section headers", b"hsqs", read("out")[start + 64 * count:][:4])

# A zip whose offsets count from the file's start is made for this very file.
write("absolute", bare, 0o755)
with zipfile.ZipFile("absolute", "a") as adjusted:
    adjusted.writestr("hello.txt", "from the archive")
result = tests.run("fix", "absolute", "-o", "out2")
tests.same("a zip with offsets from the file's start is refused", 4, result.code)

# A signature is wrong for any change, where the file need not grow too.
with_payload("signed", dead, b"s" * 100 + b"~Module signature appended~\n")
result = tests.run("sled", "signed", "-o", "out2")
tests.check("a signature is refused", result.code == 4 and "a signature" in result.err, result.text())
shutil.rmtree("out2", ignore_errors=True)
tests.finish()
