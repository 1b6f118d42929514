#!/usr/bin/env python3
"""surface_test.py REPROBE: the commands as their users meet them.

Help, usage errors, text, filters and colour. The files are built by elf_file.py, so that every
number is known. JSON and SARIF are in json_test.py, what fix does to the file besides its bytes is in
in_place_test.py.
"""

import os
import pty
import re
import subprocess
import sys

from command import TRACERS, Result, Tests, write
from elf_file import Note, golden, poked

t = Tests(sys.argv[1])
GOOD, DEAD = golden(), golden(dead=True)
write("good", GOOD.data, 0o755)
write("dead", DEAD.data, 0o755)
COMMANDS = ["list", "audit", "fix", "diff", "check", "sled", "guards", "relativize", "verify",
            "run", "bench"]

# --- Help, usage, version -------------------------------------------------------------------------

OUTPUT = ["--json", "-p,--probe", "-q,--quiet", "-v,--verbose", "--color"]
IN_PLACE = ["-o,--output", "--dry-run", "--preserve-dates", "--break-hardlinks", "--drop-signature",
            "--drop-verity", "--payload", "FILE"]
OPTIONS = {
    "list": [*OUTPUT, "--deps", "--root", "--objects", "--pid", "--as", "FILE"],
    "audit": [*OUTPUT, "--sarif", "--json-lines", "-x,--one-file-system", "--exclude", "--layers",
              "-j,--jobs", "--consumers", "--fail-on", "--kernel", "--objects", "--pid", "PATH"],
    "fix": [*OUTPUT, *IN_PLACE, "--in-place", "--build-id", "--remove-ambiguous", "--respell",
            "--symbols", "--undo-symbols", "--only",
            "--skip", "--upgrade", "--no-upgrade", "--from-debug", "--objects", "--second-opinion"],
    "diff": [*OUTPUT, "OLD", "NEW"],
    "check": [*[o for o in OUTPUT if o != "-p,--probe"], "--root", "--consumer", "SCRIPT", "FILE"],
    "sled": [*OUTPUT, *IN_PLACE, "--kind", "--guard", "--allow-fork", "--debuggable",
             "--undo", "--second-opinion"],
    "guards": [*OUTPUT, *IN_PLACE, "--to", "--with", "--allow-exported", "--second-opinion"],
    "relativize": [*OUTPUT, *IN_PLACE, "--second-opinion"],
    "run": [*OUTPUT, "--count", "--trace", "--hist", "-o,--output", "--library", "--follow", "PROGRAM"],
    "bench": [*[o for o in OUTPUT if o != "-p,--probe"], "--seconds"],
    "verify": [*OUTPUT, "--command", "--remove-ambiguous", "--respell", "--symbols", "--from-debug",
               "--new-build-id", "--payload", "--objects", "--second-opinion", "BEFORE", "AFTER"]}
for command in COMMANDS:
    for flag in ["--help", "-h"]:
        found = t.run(command, flag)
        what = f"{command} {flag}"
        t.same(f"{what}: exit and stderr", (0, ""), (found.code, found.err))
        t.check(f"{what}: usage", f"\nUsage: reprobe {command} [OPTIONS]" in found.out, found.out)
        t.check(f"{what}: examples", f"\nExamples:\n  reprobe {command} " in found.out, found.out)
        t.check(f"{what}: groups and defaults", "\nOutput:\n" in found.out and
                "\nOptions:\n" in found.out and "=auto" in found.out, found.out)
        for option in OPTIONS[command]:
            t.check(f"{what}: {option}", re.search(rf"^  {re.escape(option)}\b", found.out, re.M),
                    found.out)
        shown = re.findall(r"^  ((?:-\w,)?--[a-z-]+|[A-Z]+(?= ))", found.out, re.M)
        t.same(f"{what}: nothing else", sorted(OPTIONS[command]),
               sorted(set(shown) - {"-h,--help", "TEXT"}))
found = t.run("--help")
t.same("--help: exit and stderr", (0, ""), (found.code, found.err))
t.check("--help: all commands", all(re.search(rf"^  {c} ", found.out, re.M) for c in COMMANDS) and
        "\nExamples:\n" in found.out and "\nExit: 0 " in found.out, found.out)
version = t.run("--version").out
t.check("--version", re.fullmatch(r"reprobe \d+\.\d+\.\d+\nwith (\S+ \d+(\.\d+)+, )+\S+ \d+(\.\d+)+\n", version), version)
t.check("--version: the libraries", all(name in version for name in
                                        ["Capstone", "Zydis", "OpenSSL", "libarchive", "CLI11"]), version)
t.same("no arguments", Result(2, "", found.out), t.run())


def usage(arguments, message, about):
    t.same(" ".join(["usage:"] + arguments), Result(
        2, "", f"reprobe: error: {message}\nhint: reprobe{about} --help shows what there is\n"),
        t.run(*arguments))


usage(["nope"], "no such command or option: nope", "")
usage(["--nope"], "no such command or option: --nope", "")
usage(["list"], "FILE or --pid is required", " list")
usage(["list", "--nope", "good"], "The following argument was not expected: --nope", " list")
usage(["list", "-p"], "--probe: 1 required GLOB missing", " list")
usage(["list", "--color=pink", "good"], "--color: pink not in {auto,always,never}", " list")
usage(["audit", "--json", "--sarif", "good"], "--json excludes --sarif", " audit")
usage(["fix"], "FILE is required", " fix")
usage(["fix", "good", "dead"], "The following argument was not expected: dead", " fix")
usage(["fix", "good", "-o", "x", "--in-place"], "--output excludes --in-place", " fix")
usage(["fix", "good", "--build-id=old"], "--build-id: old not in {keep,new}", " fix")
usage(["verify", "good"], "AFTER is required", " verify")
usage(["verify", "--from-debug"], "--from-debug: 1 required DEBUG missing", " verify")
usage(["list", "--root", ".", "good"], "--root requires --deps", " list")
usage(["list", "--deps", "--root", "nowhere", "good"],
      "--root: Directory does not exist: nowhere", " list")
for names in ["nope", "gdb,nope"]:
    usage(["audit", "--consumers", names, "good"], "--consumers: nope not in {libbpf,libbpf-1.1,bcc,"
          "bpftrace-0.17,bpftrace,gdb,systemtap,perf,lttng,bolt,otel,parca,"
          "tetragon,gadget}", " audit")
for option in [["--respell"], ["--remove-ambiguous"], ["--only", "dangling"], ["--skip", "dangling"],
               ["--build-id=new"], ["--upgrade"]]:
    found = t.run("fix", "--from-debug", "dead", *option, "good")
    t.check(f"usage: fix --from-debug {option[0]}", found.code == 2 and " excludes " in found.err,
            found.text())
usage(["diff", "good"], "NEW is required", " diff")
usage(["diff"], "OLD is required", " diff")
usage(["sled"], "FILE is required", " sled")
usage(["sled", "--kind=nop", "good"], "--kind: nop not in {nop10,nop5,slot}", " sled")
usage(["sled", "--guard=no", "good"], "--guard: no not in {auto,always,never}", " sled")
usage(["guards", "good"], "--to is required", " guards")
usage(["guards", "--to=off", "good"], "--to: off not in {site,on,restore}", " guards")
t.same("usage errors write nothing", ["dead", "good"], sorted(os.listdir(".")))

# --- Golden text ----------------------------------------------------------------------------------

LIST = """\
dead: ELF64 little-endian x86_64 DYN, 4 probes
  SITE   VERDICT   KIND  PROBE       FUNCTION   SEMAPHORE  ARGUMENTS
  0x181  live      nop   demo:one    one+0x1    -          -4@%edi 8@%rsi
  0x191  live      nop   demo:two    (.text)    -          -
  0x1a1  live      nop   demo:three  three+0x1  0x11b0     8@-16(%rbp)
  0x10   dangling  -     demo:gone   -          -          -4@%edi 8@%rsi
"""
AUDIT = """\
dead: 1 finding, 4 probes
  error dangling demo:gone site 0x10 note 0x274
      the note's code is not in the file; a tracer attaches elsewhere or refuses the probe
      evidence: 0x10 lies in no section
      hint: reprobe fix removes the note
4 probes in 1 of 1 ELF file: 1 error, 0 warnings
"""
PLAN = """\
remove demo:gone at 0x10
    0x10 lies in no section
edit 0x274 +68: dangling notes removed, kept notes moved up
edit 0x588 +2: the size of the kept notes
"""
WHY = """\
reprobe: dead: demo:one: live: nop at one+0x1
reprobe: dead: demo:two: live: nop at function at 0x190+0x1
reprobe: dead: demo:three: live: nop at three+0x1
reprobe: dead: demo:gone: dangling: 0x10 lies in no section
"""
WOULD = "reprobe: dead: would remove 1 dangling, kept 3 live; build-id kept\n"
REMOVED = "removed 1 dangling, kept 3 live; build-id kept\n"
t.same("list", Result(0, LIST, ""), t.run("list", "dead"))
t.same("list -v", Result(0, LIST, WHY), t.run("list", "-v", "dead"))
t.same("list of two", Result(0, LIST + "\n" + LIST, ""), t.run("list", "dead", "dead"))
t.same("list of two, one missing",
       Result(3, LIST, "reprobe: error: missing: cannot be opened: No such file or directory\n"),
       t.run("list", "missing", "dead"))
t.same("audit", Result(1, AUDIT, ""), t.run("audit", "dead"))
t.same("audit of a good file", Result(0, "3 probes in 1 of 1 ELF file: 0 errors, 0 warnings\n", ""),
       t.run("audit", "good"))
t.same("audit -q", Result(1, AUDIT, ""), t.run("audit", "-q", "dead"))
t.same("fix --dry-run", Result(0, PLAN, WOULD), t.run("fix", "--dry-run", "dead"))
t.same("fix --dry-run -q", Result(0, PLAN, ""), t.run("fix", "--dry-run", "-q", "dead"))
t.same("fix -o", Result(0, "", "reprobe: dead: " + REMOVED), t.run("fix", "dead", "-o", "fixed"))
t.same("fix -q -o", Result(0, "", ""), t.run("fix", "-q", "dead", "-o", "fixed"))
found = t.run("fix", "-v", "dead", "-o", "fixed")
t.check("fix -v says why", found.code == 0 and found.out == "" and
        "reprobe: dead: remove demo:gone at 0x10: 0x10 lies in no section\n" in found.err and
        "second opinion" in found.err, found.text())
VERIFIED = "verified: each difference is one that reprobe makes, and is proven\n"
t.same("verify", Result(0, VERIFIED, ""), t.run("verify", "dead", "fixed"))
t.same("verify of the same", Result(0, VERIFIED, ""), t.run("verify", "dead", "dead"))

write("other-code", poked(GOOD, "code.two.site", 0x91))
t.same("verify of other code", Result(1, """\
verify-image: the loaded byte at 0x191 is another; expected 0x90, found 0x91
verify-bytes: the byte at 0x191 is outside the notes; expected 0x90, found 0x91
""", ""), t.run("verify", "--second-opinion=never", "good", "other-code"))
found = t.run("verify", "good", "dead")
t.check("verify of an added probe", found.code == 1 and "demo:gone" in found.out, found.text())
found = t.run("verify", "dead", "good")
t.check("verify of a file that is another", found.code == 1, found.text())
# A live probe that is lost; -p narrows to others.
write("lost", golden(notes=lambda elf: [
    Note(n, elf.sites[n], elf.base, arguments=a) for n, a in
    [("one", "-4@%edi 8@%rsi"), ("two", "")]]).data)

# --- Filters --------------------------------------------------------------------------------------


def listed(*arguments):
    return re.findall(r"^  0x\w+ .*?(\S+:\S+)", t.run("list", *arguments).out, re.M)


t.same("-p one", ["demo:one"], listed("-p", "demo:one", "dead"))
t.same("-p glob", ["demo:two", "demo:three"], listed("-p", "demo:t*", "dead"))
t.same("-p twice", ["demo:one", "demo:gone"], listed("-p", "*:one", "-p", "*:gone", "dead"))
t.same("-p class", ["demo:one", "demo:gone"], listed("-p", "demo:[!t]*", "dead"))
t.same("-p none", Result(0, "dead: ELF64 little-endian x86_64 DYN, 0 probes\n",
                         "reprobe: warning: no probe fits -p other:*\n"),
       t.run("list", "-p", "other:*", "dead"))
found = t.run("audit", "-p", "other:*", "dead")
t.same("audit -p none", (1, "reprobe: warning: no probe fits -p other:*\n"), (found.code, found.err))
t.same("-p takes one value", ["demo:one"], listed("dead", "-p", "demo:one"))
# Its table of tracers says that one refuses the file for the sake of another probe.
t.same("audit -p", Result(0, "dead: 0 findings, 4 probes\n4 probes in 1 of 1 ELF file: 0 errors, 0 warnings\n", ""),
       t.run("audit", "-p", "demo:one", "dead"))
t.same("fix -p", Result(0, "", "reprobe: dead: nothing to change\n"),
       t.run("fix", "-p", "demo:one", "dead"))
t.same("fix -p of the dangling one", Result(0, PLAN, WOULD),
       t.run("fix", "--dry-run", "-p", "demo:g*", "dead"))

# --- Colour ---------------------------------------------------------------------------------------

ESCAPE = re.compile(r"\x1b\[[0-9;]*[mK]")
for arguments in [["list", "dead"], ["audit", "dead"], ["verify", "good", "lost"],
                  ["list", "missing"]]:
    what = " ".join(arguments)
    plain = t.run(*arguments)
    t.check(f"{what}: no escapes when piped", "\x1b" not in plain.out + plain.err)
    always = t.run(arguments[0], "--color=always", *arguments[1:])
    t.check(f"{what}: --color=always", ESCAPE.search(always.out + always.err), always.text())
    t.same(f"{what}: colour only adds escapes", plain.text(), ESCAPE.sub("", always.text()))


def on_terminal(*arguments, **environment):
    """stdout and stderr as a terminal gets them."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen([t.tool, *arguments], stdin=subprocess.DEVNULL, stdout=theirs,
                             stderr=theirs, env={**t.environment, **environment})
    os.close(theirs)
    text = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # EIO: the child is gone
            break
        if not data:
            break
        text += data
    os.close(ours)
    child.wait()
    return TRACERS.sub("", text.decode().replace("\r\n", "\n"))


COLOUR = re.compile(r"\x1b\[[0-9;]*m")
t.check("colour on a terminal", COLOUR.search(on_terminal("audit", "dead")))
t.same("NO_COLOR", False, bool(COLOUR.search(on_terminal("audit", "dead", NO_COLOR="1"))))
t.check("NO_COLOR empty", COLOUR.search(on_terminal("audit", "dead", NO_COLOR="")))
t.check("--color=always before NO_COLOR",
        COLOUR.search(on_terminal("audit", "--color=always", "dead", NO_COLOR="1")))
t.check("--color=never on a terminal",
        not COLOUR.search(on_terminal("audit", "--color=never", "dead")))
t.same("a dumb terminal gets plain text", AUDIT, on_terminal("audit", "dead", TERM="dumb"))
t.same("list shows no progress on a terminal", LIST,
       on_terminal("list", "--color=never", "dead"))
t.check("audit shows progress on a terminal", "files" in on_terminal("audit", "dead"))
t.same("audit -q shows none", AUDIT, on_terminal("audit", "-q", "--color=never", "dead"))

t.finish()
