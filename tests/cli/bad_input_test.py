#!/usr/bin/env python3
"""bad_input_test.py REPROBE: files that cannot be read, output that cannot be written.

Every file that cannot be read gives exit 3 and one line that says why; every output that cannot be
written gives exit 5 or 3, leaves the input as it was and nothing else in the folder.
"""

import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile

from command import Result, Tests, read, write
from elf_file import EM_S390, Note, golden

NOBODY = 65534

t = Tests(sys.argv[1])
ROOT = os.geteuid() == 0
GOOD, DEAD = golden(), golden(dead=True)


def skip_part(what, reason):
    print(f"SKIPPED: {what}: {reason}")


def as_nobody():
    """For preexec_fn: modes mean nothing to root."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def unreadable(commands, path, message, hint="", **options):
    """Each of the commands fails with exit 3 and this message, and prints nothing else."""
    error = f"reprobe: error: {path + ': ' if path else ''}{message}\n"
    error += f"hint: {hint}\n" if hint else ""
    for command in commands:
        arguments = [command, path] if command != "verify" else [command, path, path]
        out = ("0 probes in 0 of 0 ELF files: 0 errors, 0 warnings, 1 unreadable\n"
               if command == "audit" else "")
        t.same(f"{command} {path!r}", Result(3, out, error), t.run(*arguments, **options))


READERS = ["list", "audit", "fix", "verify"]

# --- Not files, or not to be opened ---------------------------------------------------------------

os.mkdir("folder")
os.mkfifo("fifo")
with socket.socket(socket.AF_UNIX) as s:
    s.bind("socket")
os.symlink("loop", "loop")
os.symlink("nowhere", "broken")
write("file", b"text\n")
special = "not a file to read; expected a regular file, found a special file"
unreadable(READERS, "missing", "cannot be opened: No such file or directory")
unreadable(READERS, "broken", "cannot be opened: No such file or directory")
unreadable(READERS, "loop", "cannot be opened: Too many levels of symbolic links")
unreadable(READERS, "file/below", "cannot be opened: Not a directory")
unreadable(READERS, "x" * 300, "cannot be opened: File name too long")
unreadable(READERS, "", "cannot be opened: No such file or directory")
unreadable(READERS, "fifo", special)
unreadable(READERS, "socket", "cannot be opened: No such device or address")
unreadable(READERS, "/dev/zero", special)
unreadable(["list", "fix", "verify"], "folder",
           "not a file to read; expected a regular file, found a directory",
           "reprobe audit walks folders")

# Modes mean nothing to root, who becomes somebody else for this; the tool may lie where only root
# gets to.
nobody = dict(preexec_fn=as_nobody) if ROOT else {}
shared = tempfile.mkdtemp(prefix="reprobe-cli-")
os.chmod(shared, 0o755)
own, t.tool = t.tool, shutil.copy(t.tool, f"{shared}/reprobe")
write(f"{shared}/secret", GOOD.data, 0)
os.mkdir(f"{shared}/closed")
write(f"{shared}/closed/app", GOOD.data)
os.chmod(f"{shared}/closed", 0o700 if ROOT else 0)
denied = "cannot be opened: Permission denied"
unreadable(READERS, f"{shared}/secret", denied, **nobody)
unreadable(["list", "fix", "verify"], f"{shared}/closed/app", denied, **nobody)
unreadable(["audit"], f"{shared}/closed", "the folder cannot be read: Permission denied", **nobody)
os.chmod(f"{shared}/closed", 0o700)

# --- Not ELF --------------------------------------------------------------------------------------

write("empty", b"")
write("script", b"#!/bin/sh\nexit 0\n")
write("short", b"\x7fEL")
unreadable(READERS, "empty", "the file is empty; expected an ELF header, found 0 bytes")
unreadable(READERS, "/proc/self/mem", "the file is empty; expected an ELF header, found 0 bytes")
unreadable(READERS, "script",
           "not an ELF file; expected the bytes 7f 45 4c 46, found 23 21 2f 62")
unreadable(READERS, "short", "not an ELF file; expected the bytes 7f 45 4c 46, found 7f 45 4c")

# --- Cut short ------------------------------------------------------------------------------------


def cut_message(elf, size):
    """What the reader misses first. Sizes: System V ABI, Elf64_Ehdr is 64 bytes, Elf32_Ehdr 52."""
    ehsize = 64 if elf.layout.bits == 64 else 52
    if size == 0:
        return "the file is empty; expected an ELF header, found 0 bytes", ""
    if size < 4:
        found = " ".join(f"{b:02x}" for b in elf.data[:size])
        return f"not an ELF file; expected the bytes 7f 45 4c 46, found {found}", ""
    if size < 16:
        return f"ELF header is cut short; expected 16 bytes, found {size}", ""
    if size < ehsize:
        return f"ELF header is cut short; expected {ehsize} bytes, found {size}", ""
    segments_end = elf.header_sizes(len(elf.segments))[1]
    if size < segments_end:
        return (f"[e_phoff] program header table lies outside the file; expected at least "
                f"{segments_end:#x} bytes, found {size:#x}"), ""
    return (f"[e_shoff] section header table lies outside the file; expected at least "
            f"{len(elf.data):#x} bytes, found {size:#x}",
            "the file is damaged or cut short; probes are found through its section headers")


for elf in [DEAD, golden(32, "big", EM_S390, dead=True)]:
    headers = elf.header_sizes(len(elf.segments))[1]
    section_headers = int.from_bytes(elf.data[slice(*[elf.at("e_shoff"), elf.at("e_flags")])],
                                     elf.layout.order)
    sizes = set(range(headers + 1)) | set(range(0, len(elf.data), 64))
    sizes |= {section_headers, section_headers + 1, len(elf.data) - 1}
    for size in sorted(sizes):
        write("cut", bytes(elf.data[:size]))
        message, hint = cut_message(elf, size)
        unreadable(["list", "audit", "fix"], "cut", message, hint)
        t.same(f"cut at {size}: the file is as it was", bytes(elf.data[:size]), read("cut"))

# --- Output that cannot be written ----------------------------------------------------------------


def state(folder):
    """Names, contents, inodes and times of a folder's files."""
    result = {}
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        status = os.lstat(path)
        data = read(path) if stat.S_ISREG(status.st_mode) else None
        result[name] = (status.st_ino, status.st_mode, status.st_mtime_ns, data)
    return result


def not_written(what, folder, arguments, code, error, **options):
    """The command fails with this message, and the folder is as it was."""
    before = state(folder)
    t.same(what, Result(code, "", error), t.run(*arguments, **options))
    t.same(f"{what}: the folder is as it was", before, state(folder))


t.tool, copy = own, t.tool
os.mkdir("work")
write("work/app", DEAD.data, 0o755)
os.mkdir("work/taken")
os.symlink("missing", "work/broken")
cannot = "reprobe: error: work/app: cannot write "
not_written("-o into a missing folder", "work", ["fix", "work/app", "-o", "work/none/out"], 5,
            "reprobe: error: work/app: cannot open the folder work/none: No such file or "
            "directory\n")
not_written("-o over a folder", "work", ["fix", "work/app", "-o", "work/taken"], 5,
            cannot + "work/taken: it exists and is not a regular file\n")
not_written("-o a name that ends in /", "work", ["fix", "work/app", "-o", "work/new/"], 5,
            cannot + "work/new/: Is a directory\n")
not_written("-o below a file", "work", ["fix", "work/app", "-o", "work/app/out"], 5,
            cannot + "work/app/out: Not a directory\n")
not_written("-o through a broken link", "work", ["fix", "work/app", "-o", "work/broken"], 5,
            cannot + "work/broken: it is a symbolic link to a missing file\n")
not_written("-o a name too long", "work", ["fix", "work/app", "-o", "work/" + "x" * 300], 5,
            cannot + "work/" + "x" * 300 + ": File name too long\n")

# A limit on the size of files, as a build system may set: no death by SIGXFSZ.
limit = len(DEAD.data) // 2
not_written("in place, file size limit", "work", ["fix", "work/app"], 5,
            f"reprobe: error: work/app: cannot write {os.path.realpath('work/app')}: File too "
            "large\n",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))

folder = f"{shared}/readonly"
os.mkdir(folder)
write(f"{folder}/app", DEAD.data, 0o755)
if ROOT:
    os.chown(f"{folder}/app", NOBODY, NOBODY)
os.chmod(folder, 0o555)
t.tool = copy
denied = (f"reprobe: error: {folder}/app: cannot write in the folder {folder}: Permission "
          "denied\n")
not_written("in place in a folder of somebody else", folder, ["fix", f"{folder}/app"], 5, denied,
            **nobody)
not_written("-o into a folder of somebody else", folder,
            ["fix", f"{folder}/app", "-o", f"{folder}/out"], 5, denied, **nobody)
os.chmod(folder, 0o755)
t.tool = own
shutil.rmtree(shared)


class Tmpfs:
    """A small file system of its own; entering gives nothing where it cannot be mounted."""

    def __init__(self, options):
        self.options, self.path = options, tempfile.mkdtemp(dir=t.folder)

    def mount(self, options):
        return subprocess.run(["mount", "-t", "tmpfs", "-o", options, "reprobe-test", self.path],
                              stderr=subprocess.PIPE, text=True)

    def __enter__(self):
        try:
            done = self.mount(self.options)
        except FileNotFoundError as error:
            skip_part("full and read-only disks", str(error))
            return None
        if done.returncode != 0:
            skip_part("full and read-only disks", done.stderr.strip() or "mount failed")
            return None
        return self.path

    def __exit__(self, *_):
        subprocess.run(["umount", self.path], stderr=subprocess.DEVNULL)


if not ROOT:
    skip_part("full and read-only disks", "needs root to mount one")
else:
    with Tmpfs("size=16k,mode=755") as folder:
        if folder:
            big = bytes(DEAD.data) + b"\1" * (9000 - len(DEAD.data))
            write(f"{folder}/app", big)
            full = "No space left on device\n"
            not_written("in place on a full disk", folder, ["fix", f"{folder}/app"], 5,
                        f"reprobe: error: {folder}/app: cannot write {folder}/app: {full}")
            not_written("-o on a full disk", folder, ["fix", f"{folder}/app", "-o",
                                                      f"{folder}/out"], 5,
                        f"reprobe: error: {folder}/app: cannot write {folder}/out: {full}")
            subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
            not_written("in place on a read-only disk", folder, ["fix", f"{folder}/app"], 5,
                        f"reprobe: error: {folder}/app: cannot write in the folder {folder}: "
                        "Read-only file system\n")

# --- stdout and stderr ----------------------------------------------------------------------------

write("many", golden(notes=lambda elf: [
    Note(f"probe{i}", elf.sites["one"], elf.base, arguments="-4@%edi " * 12)
    for i in range(4000)]).data)


def redirected(how, *arguments):
    """Runs the tool with a redirection in the shell's syntax."""
    done = subprocess.run(["sh", "-c", f'exec "$@" {how}', "sh", t.tool, *arguments],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, env=t.environment)
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


write("app", DEAD.data, 0o755)
lost = "reprobe: error: standard output cannot be written: "
for arguments in [["list", "app"], ["audit", "app"], ["list", "--json", "app"],
                  ["audit", "--sarif", "app"], ["fix", "--dry-run", "-q", "app"],
                  ["verify", "app", "app"], ["list", "many"], ["audit", "--json", "many"],
                  ["--help"], ["fix", "--help"], ["--version"]]:
    for how, reason in [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")]:
        t.same(f"{' '.join(arguments)} {how}", Result(5, "", f"{lost}{reason}\n"),
               redirected(how, *arguments))

# The rewrite was made before its JSON could not be printed: it must not pass for one that failed.
for arguments, name in [(["fix", "--json", "-q", "app"], "app"),
                        (["fix", "--json", "-q", "app", "-o", "out"], "out")]:
    write("app", DEAD.data, 0o755)
    t.same(f"{' '.join(arguments)} >/dev/full",
           Result(5, "", f"{lost}No space left on device; {name}: the new file is in place\n"),
           redirected(">/dev/full", *arguments))
    t.check(f"{name} is the new file", read(name) != DEAD.data)

# Nothing to print, nothing lost.
write("app", DEAD.data, 0o755)
t.same("list -q of nothing wrong, stdout closed: fix",
       Result(0, "", "reprobe: app: removed 1 dangling, kept 3 live; build-id kept\n"),
       redirected(">&-", "fix", "app"))
fixed = read("app")

# What belongs to stderr must not end up in a file that got its number.
for how in ["2>&-", "2>/dev/full", "2>&- >&-", "<&- >&- 2>&-"]:
    write("app", DEAD.data, 0o755)
    t.same(f"fix -v {how}", Result(0, "", ""), redirected(how, "fix", "-v", "app"))
    t.same(f"fix -v {how}: the result", fixed, read("app"))
    t.same(f"list of a missing file {how}", Result(3, "", ""), redirected(how, "list", "missing"))


def first_line_only(*arguments, **options):
    """As `reprobe ... | head -1`: the reader goes away."""
    child = subprocess.Popen([t.tool, *arguments], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=t.environment,
                             **options)
    line = child.stdout.readline()
    child.stdout.close()
    error = child.stderr.read().decode()
    child.stderr.close()
    return line.decode(), child.wait(), error


many = "many: ELF64 little-endian x86_64 DYN, 4000 probes\n"
t.same("list | head -1", (many, -signal.SIGPIPE, ""), first_line_only("list", "-q", "many"))
t.same("list | head -1, SIGPIPE ignored", (many, 5, lost + "Broken pipe\n"),
       first_line_only("list", "-q", "many",
                       preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN),
                       restore_signals=False))

t.finish()
