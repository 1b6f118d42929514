#!/usr/bin/env python3
"""surface_test.py REPROBE: the commands as their users meet them.

Help, usage errors, text and JSON of every command, SARIF, filters, colour, and what fix does to the
file besides its bytes. The files are built by elf_file.py, so that every number is known.
"""

import json
import os
import pty
import re
import stat
import subprocess
import sys

from command import TRACERS, Result, Tests, read, write
from elf_file import BUILD_ID, EM_S390, ET_REL, Elf, Note, golden, poked

t = Tests(sys.argv[1])
ROOT = os.geteuid() == 0
GOOD, DEAD = golden(), golden(dead=True)
write("good", GOOD.data, 0o755)
write("dead", DEAD.data, 0o755)
COMMANDS = ["list", "audit", "fix", "diff", "check", "sled", "guards", "relativize", "verify",
            "run"]

# --- Help, usage, version -------------------------------------------------------------------------

OUTPUT = ["--json", "-p,--probe", "-q,--quiet", "-v,--verbose", "--color"]
IN_PLACE = ["-o,--output", "--dry-run", "--preserve-dates", "--break-hardlinks", "--drop-signature",
            "--drop-verity", "--payload", "FILE"]
OPTIONS = {
    "list": [*OUTPUT, "--deps", "--root", "--objects", "--pid", "--as", "FILE"],
    "audit": [*OUTPUT, "--sarif", "--consumers", "--fail-on", "--kernel", "--objects", "--pid", "PATH"],
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
    "verify": [*OUTPUT, "--command", "--remove-ambiguous", "--respell", "--symbols", "--from-debug",
               "--new-build-id", "--payload", "--objects", "--second-opinion", "BEFORE", "AFTER"]}
for command in COMMANDS:
    for flag in ["--help", "-h"]:
        found = t.run(command, flag)
        what = f"{command} {flag}"
        t.same(f"{what}: exit and stderr", (0, ""), (found.code, found.err))
        t.check(f"{what}: usage", f"\nUsage: reprobe {command} [OPTIONS] " in found.out, found.out)
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
t.check("--version", re.fullmatch(r"reprobe \d+\.\d+\.\d+\n", t.run("--version").out))
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
t.same("-p none", Result(0, "dead: ELF64 little-endian x86_64 DYN, 0 probes\n", ""),
       t.run("list", "-p", "other:*", "dead"))
t.same("-p takes one value", ["demo:one"], listed("dead", "-p", "demo:one"))
# Its table of tracers says that one refuses the file for the sake of another probe.
t.same("audit -p", Result(0, "dead: 0 findings, 4 probes\n4 probes in 1 of 1 ELF file: 0 errors, 0 warnings\n", ""),
       t.run("audit", "-p", "demo:one", "dead"))
t.same("fix -p", Result(0, "", "reprobe: dead: nothing to change\n"),
       t.run("fix", "-p", "demo:one", "dead"))
t.same("fix -p of the dangling one", Result(0, PLAN, WOULD),
       t.run("fix", "--dry-run", "-p", "demo:g*", "dead"))

# --- JSON -----------------------------------------------------------------------------------------

HEX = re.compile(r"0x(0|[1-9a-f][0-9a-f]*)\Z")


def document(*arguments):
    """The JSON on stdout, after checks that hold for every document."""
    what = " ".join(arguments)
    found = t.run(*arguments)

    def unique(pairs):
        t.check(f"{what}: no key twice", len(pairs) == len(dict(pairs)), str(pairs))
        return dict(pairs)

    try:
        value = json.loads(found.out, object_pairs_hook=unique)
    except ValueError as error:
        t.fail(f"{what}: {error}", found.text())
        return {}, found
    t.check(f"{what}: ends with a newline", found.out.endswith("}\n"))
    t.check(f"{what}: never null", "null" not in re.sub(r'"[^"]*"', "", found.out))
    if arguments[1] == "--json":
        t.check(f"{what}: schema comes first", re.match(r'\{\s*"schema": "reprobe\.\w+/\d+"',
                                                        found.out), found.out[:80])
    t.same(f"{what}: the same bytes again", found.out, t.run(*arguments).out)
    return value, found


def conforms(what, value, shape):
    """shape: a type, HEX, a set of words, [shape] or {key: shape}; "key?" may be absent."""
    if isinstance(shape, dict):
        if not t.check(f"{what} is an object", isinstance(value, dict), repr(value)):
            return
        required = {k for k in shape if not k.endswith("?")}
        allowed = {k.rstrip("?") for k in shape}
        t.check(f"{what}: keys", required <= set(value) <= allowed,
                f"missing {required - set(value)}, unexpected {set(value) - allowed}")
        for key, item in value.items():
            conforms(f"{what}.{key}", item, shape.get(key, shape.get(key + "?", object)))
    elif isinstance(shape, list):
        if t.check(f"{what} is an array", isinstance(value, list), repr(value)):
            for i, item in enumerate(value):
                conforms(f"{what}[{i}]", item, shape[0])
    elif isinstance(shape, set):
        t.check(f"{what} is one of {shape}", value in shape, repr(value))
    elif isinstance(shape, re.Pattern):
        t.check(f"{what} matches {shape.pattern}", isinstance(value, str) and shape.match(value),
                repr(value))
    else:
        t.check(f"{what} is {shape.__name__}", type(value) is shape, repr(value))


ARGUMENT = {"size?": int, "type?": re.compile(r"[suf]\d+\Z"), "operand": str}
PROBE = {"provider": str, "name": str, "site": HEX, "site_offset?": HEX, "section?": str,
         "function?": str, "function_demangled?": str, "function_offset?": HEX, "location": HEX, "base?": HEX,
         "semaphore?": HEX, "semaphore_undefined?": bool, "sled_of?": HEX,
         "arguments": [ARGUMENT], "arguments_text": str, "note_offset": HEX,
         "kind?": {"nop", "nop5", "nop10", "other", "sled-nop5", "sled-nop10"},
         "verdict": {"live", "dangling", "ambiguous", "unknown"}, "evidence": [str], "header?": str}
LIST_SHAPE = {"schema": {"reprobe.list/1"}, "files": [{
    "path": str, "class": {32, 64}, "order": {"little", "big"}, "machine": str, "type": str,
    "build_id?": re.compile(r"[0-9a-f]{40}\Z"), "probes": [PROBE]}]}
FINDING = {"rule": re.compile(r"[a-z]+(-[a-z]+)*\Z"), "severity": {"error", "warning", "note"},
           "provider?": str, "name?": str, "site?": HEX, "note_offset?": HEX, "message": str,
           "evidence": [str], "hint?": str}
COUNTS = ["files", "elf", "with_probes", "probes", "unknown", "errors", "warnings", "unreadable"]
AUDIT_SHAPE = {"schema": {"reprobe.audit/1"}, "files": [{"path": str, "findings": [FINDING],
                                                         "consumers?": dict}],
               "summary": {key: int for key in COUNTS}}
BYTES = re.compile(r"([0-9a-f]{2})+\Z")
PLAN_SHAPE = {"schema": {"reprobe.plan/1"}, "file": str, "output": str, "changed": bool,
              "edits": [{"offset": HEX, "size": int, "before": BYTES, "after": BYTES, "why": str}],
              "appended": int, "removed": [PROBE], "sites": [dict],
              "repairs": [{"rule": str, "what": str, "provider?": str, "name?": str, "site?": HEX}],
              "refused": [{"provider?": str, "name?": str, "site?": HEX, "where?": str,
                           "reason": str}],
              "build_id?": {"before": BYTES, "after": BYTES}}
SLED_SHAPE = {**PLAN_SHAPE, "removed": [dict],
              "sites": [{"provider": str, "name": str, "from": HEX, "to": HEX,
                         "tactic": {"in-place", "call-target", "jump-target", "displace", "hop"},
                         "breakpoints?": {"unsafe"}}],
              "refused": [{"provider": str, "name": str, "site": HEX, "reason": str,
                           "detail?": str}]}
del SLED_SHAPE["repairs"]
INDEX_SHAPE = {**PLAN_SHAPE, "removed": [dict],
               "sites": [{"provider": str, "name": str, "site": HEX}],
               "index": {"address": HEX, "dangling": int}}
del INDEX_SHAPE["repairs"]
UNDO_SHAPE = {"schema": {"reprobe.plan/1"}, "file": str, "output": str, "changed": bool, "size": int,
              "edits": PLAN_SHAPE["edits"]}
GUARDS_SHAPE = {**SLED_SHAPE, "guards": [{
    "provider": str, "name": str, "semaphore": HEX, "at": HEX, "tactic": {"in-place", "stub"},
    "what": {"compare", "below", "load", "merge", "counter"}, "site?": HEX}],
    "refused": [{"provider": str, "name": str, "semaphore": HEX, "at": HEX, "reason": str,
                 "what": {"compare", "below", "load", "merge", "counter", "unknown"}}]}
del GUARDS_SHAPE["sites"]
VERIFY_SHAPE = {"schema": {"reprobe.verify/1"}, "before": str, "after": str, "findings": [FINDING]}

BIG_ENDIAN = golden(32, "big", EM_S390, dead=True)
write("s390", BIG_ENDIAN.data)
for path, elf in [("dead", DEAD), ("good", GOOD), ("s390", BIG_ENDIAN)]:
    value, _ = document("list", "--json", path)
    conforms("list", value, LIST_SHAPE)
    file = value["files"][0]
    t.same(f"list --json {path}: the file", (path, elf.layout.bits, elf.layout.order, "DYN",
                                             BUILD_ID.hex()),
           tuple(file[k] for k in ["path", "class", "order", "type", "build_id"]))
    for note, probe in zip(elf.notes, file["probes"]):
        what = f"list --json {path}: {note.name}"
        t.same(what, ("demo", note.name, hex(note.location), hex(note.base), note.arguments,
                      hex(elf.at(note.name + ".namesz")), hex(note.semaphore)),
               tuple(probe.get(k, "0x0") for k in ["provider", "name", "location", "base",
                                                   "arguments_text", "note_offset", "semaphore"]))
    # The text renders the same values.
    table = [line.split() for line in t.run("list", path).out.splitlines()[2:]]
    as_text = [[p["site"], p["verdict"], p.get("kind", "-"), f"{p['provider']}:{p['name']}",
                f"{p['function']}+{p['function_offset']}" if "function" in p else
                f"({p['section']})" if "section" in p else "-", p.get("semaphore", "-"),
                *(p["arguments_text"].split() or ["-"])] for p in file["probes"]]
    t.same(f"list: text and JSON of {path}", as_text, table)
    t.same(f"list: arguments of {path}", [f"{a['size']}@{a['operand']}" for p in file["probes"]
                                          for a in p["arguments"]],
           " ".join(note.arguments for note in elf.notes).split())

value, found = document("audit", "--json", "dead", "good")
conforms("audit", value, AUDIT_SHAPE)
t.same("audit --json: exit", 1, found.code)
t.same("audit --json: summary", dict(zip(COUNTS, [2, 2, 2, 7, 0, 1, 0, 0])), value["summary"])
t.same("audit --json: files with probes", [("dead", 1), ("good", 0)],
       [(f["path"], len(f["findings"])) for f in value["files"]])
finding = value["files"][0]["findings"][0]
t.same("audit: text and JSON", AUDIT.splitlines()[1:5], [
    f"  {finding['severity']} {finding['rule']} {finding['provider']}:{finding['name']} site "
    f"{finding['site']} note {finding['note_offset']}", f"      {finding['message']}",
    f"      evidence: {finding['evidence'][0]}", f"      hint: {finding['hint']}"])
value, found = document("audit", "--json", "missing", "good")
t.same("audit --json of a missing file", (3, 1, []),
       (found.code, value["summary"]["unreadable"],
        [f["path"] for f in value["files"] if f["findings"]]))


def applied(data, plan):
    """The plan's edits, by hand. Each edit's old bytes must be there."""
    data = bytearray(data)
    for edit in plan["edits"]:
        at, before, after = int(edit["offset"], 16), *(bytes.fromhex(edit[k])
                                                       for k in ["before", "after"])
        t.check("an edit states its size", len(before) == len(after) == edit["size"])
        t.same("an edit states what is there", before, bytes(data[at:at + len(before)]))
        data[at:at + len(after)] = after
    return bytes(data)


for path, elf in [("dead", DEAD), ("s390", BIG_ENDIAN), ("good", GOOD)]:
    plan, found = document("fix", "--json", "--dry-run", path)
    conforms("plan", plan, PLAN_SHAPE)
    t.same(f"fix --json --dry-run {path}: nothing is written", bytes(elf.data), read(path))
    result = applied(elf.data, plan)
    t.run("fix", path, "-o", "out")
    t.same(f"fix {path} does what --dry-run says", result, read("out"))
    t.same(f"fix --json --dry-run {path}", (path != "good", path, path, ["gone"] * (path != "good")),
           (plan["changed"], plan["file"], plan["output"], [p["name"] for p in plan["removed"]]))
    t.same(f"fix --json {path} prints the same", {**plan, "output": "out"},
           json.loads(t.run("fix", "--json", path, "-o", "out").out))
    os.unlink("out")
# What relativize says and does; tests/live/index_test.py reads the index.
plan, found = document("relativize", "--json", "--dry-run", "dead")
conforms("relativize", plan, INDEX_SHAPE)
t.same("relativize --json --dry-run", (0, 1, ["one", "two", "three"], bytes(DEAD.data)),
       (found.code, plan["index"]["dangling"], [s["name"] for s in plan["sites"]], read("dead")))
found = t.run("relativize", "good", "-o", "indexed")
t.check("relativize -o", found.code == 0 and re.fullmatch(
    r"reprobe: good: added the index of 3 probes at 0x[0-9a-f]+; build-id kept\n", found.err),
        found.err)
t.same("relativize: verify", Result(0, VERIFIED, ""), t.run("verify", "good", "indexed"))
t.check("relativize again", t.run("relativize", "indexed").err.endswith(", nothing to change\n"))
os.unlink("indexed")
# What sled says and does; tests/live runs the code.
NOT_SLEDDED = "reprobe: dead: left as they are: 1: a note that is dangling\n"
plan, found = document("sled", "--json", "--dry-run", "dead")
conforms("sled", plan, SLED_SHAPE)
t.same("sled --json --dry-run", (0, "reprobe: dead: sleds: 3/4 (75.0%)\n" +
                                 NOT_SLEDDED,
                                 bytes(DEAD.data)), (found.code, found.err, read("dead")))
t.same("sled: which sites", ([(n, hex(DEAD.sites[n])) for n in ["one", "two", "three"]],
                             [("gone", "0x10", "a note that is dangling")]),
       ([(s["name"], s["from"]) for s in plan["sites"]],
        [(r["name"], r["site"], r["reason"]) for r in plan["refused"]]))
plan, _ = document("sled", "--json", "--dry-run", "good")
conforms("sled", plan, SLED_SHAPE)
t.same("sled -o", Result(0, "", "reprobe: good: sleds: 3/3 (100.0%)\n"),
       t.run("sled", "good", "-o", "sledded"))
t.same("sled -o: the edits", applied(GOOD.data, plan), read("sledded")[:len(GOOD.data)])
t.same("sled: the notes name the sleds", [(s["name"], s["to"], "sled-nop10") for s in plan["sites"]],
       [(p["name"], p["site"], p["kind"])
        for p in document("list", "--json", "sledded")[0]["files"][0]["probes"]])
t.same("sled: verify", Result(0, VERIFIED, ""),
       t.run("verify", "--second-opinion=never", "good", "sledded"))
t.same("a second sled", Result(0, "", "reprobe: sledded: has its sleds already, nothing to change\n"),
       t.run("sled", "sledded"))
undo, _ = document("sled", "--json", "--dry-run", "--undo", "sledded")
conforms("sled --undo", undo, UNDO_SHAPE)
t.same("sled --undo: the size", len(GOOD.data), undo["size"])
t.same("sled --undo", Result(0, "", "reprobe: sledded: gave back the original\n"),
       t.run("sled", "--undo", "sledded"))
t.same("sled --undo: the bytes", bytes(GOOD.data), read("sledded"))
t.same("sled --undo of another file", Result(4, "", """\
reprobe: error: dead: the file has no sleds that can be taken out
hint: only reprobe sled writes .reprobe.undo
"""), t.run("sled", "--undo", "dead"))
t.same("sled of another machine",
       Result(4, "", "reprobe: error: s390: [e_machine] only x86-64 is understood\n"),
       t.run("sled", "s390"))
t.same("sled where no site can get one",
       Result(4, "", "reprobe: dead: sleds: 0/1 (0.0%)\n" + NOT_SLEDDED),
       t.run("sled", "-p", "demo:gone", "dead"))
os.unlink("sledded")
# Every command that rewrites hears whether LIEF is asked.
for command, path in [(["fix"], "dead"), (["sled"], "good"), (["guards", "--to", "on"], "good"),
                      (["relativize"], "good")]:
    for when in ("never", "always"):
        result = t.run(*command, "-v", f"--second-opinion={when}", path, "-o", "asked")
        t.same(f"{command[0]} --second-opinion={when}", (0, when == "never", when == "always"),
               (result.code, "second opinion not asked: --second-opinion=never" in result.err,
                "second opinion: LIEF reads" in result.err or
                "second opinion unavailable" in result.err))
        os.unlink("asked")
# What guards says and does; tests/live runs the code, tests/unit reads it.
plan, found = document("guards", "--to", "on", "--json", "--dry-run", "good")
conforms("guards", plan, GUARDS_SHAPE)
COUNTER = hex(GOOD.semaphore)
t.same("guards --to on --json --dry-run", (
    0, "reprobe: good: counters set: 1/1 (100.0%)\n", bytes(GOOD.data), [("three", COUNTER, COUNTER)]),
       (found.code, found.err, read("good"),
        [(g["name"], g["semaphore"], g["at"]) for g in plan["guards"]]))
for path, elf in [("good", GOOD), ("s390", BIG_ENDIAN)]:
    plan, _ = document("guards", "--to", "on", "--json", "--dry-run", path)
    t.same(f"guards --to on {path}", Result(0, "", f"reprobe: {path}: counters set: 1/1 (100.0%)\n"),
           t.run("guards", "--to", "on", path, "-o", "raised"))
    t.same(f"guards --to on {path}: the edits", applied(elf.data, plan),
           read("raised")[:len(elf.data)])
    start = elf.sections[elf.index(".probes")].offset
    t.same(f"guards --to on {path}: the counter", 1,
           int.from_bytes(read("raised")[start:start + 2], elf.layout.order))
    t.same(f"guards --to on {path}: verify", Result(0, VERIFIED, ""),
           t.run("verify", "--second-opinion=never", path, "raised"))
    t.same(f"a second guards of {path}", Result(
        0, "", "reprobe: raised: its guards were rewritten already, nothing to change\n"),
           t.run("guards", "--to", "on", "raised"))
    t.same(f"guards --to site over it, {path}", Result(4, "", """\
reprobe: error: raised: its guards were rewritten in another way
hint: --to restore comes first
"""), t.run("guards", "--to", "site", "raised"))
    undo, _ = document("guards", "--to", "restore", "--json", "--dry-run", "raised")
    conforms("guards --to restore", undo, UNDO_SHAPE)
    t.same(f"guards --to restore, {path}", Result(0, "", "reprobe: raised: gave back the original\n"),
           t.run("guards", "--to", "restore", "raised"))
    t.same(f"guards --to restore: the bytes, {path}", bytes(elf.data), read("raised"))
t.same("guards --to restore of another file", Result(4, "", """\
reprobe: error: dead: its guards were not rewritten
hint: only reprobe guards writes the record that gives the original back
"""), t.run("guards", "--to", "restore", "dead"))
t.same("guards --to site without a check", Result(
    0, "", "reprobe: good: nothing checks a counter, nothing to change\n"),
       t.run("guards", "--to", "site", "good"))
t.same("guards without a counter", Result(
    0, "", "reprobe: good: no probe with a counter, nothing to change\n"),
       t.run("guards", "--to", "site", "-p", "demo:one", "good"))
t.same("guards of another machine",
       Result(4, "", "reprobe: error: s390: only x86-64 is understood\n"),
       t.run("guards", "--to", "site", "s390"))
os.unlink("raised")

value, _ = document("verify", "--json", "dead", "fixed")
conforms("verify", value, VERIFY_SHAPE)
t.same("verify --json", ("dead", "fixed", []), tuple(value[k] for k in
                                                     ["before", "after", "findings"]))
value, found = document("verify", "--json", "good", "lost")
conforms("verify", value, VERIFY_SHAPE)
t.check("verify --json of a lost probe", found.code == 1 and any(
    f["rule"] == "verify-probe-lost" and f.get("name") == "three" for f in value["findings"]),
    str(value))
t.check("verify -p of others", not any(
    f.get("name") == "three" for f in
    json.loads(t.run("verify", "--json", "-p", "demo:one", "good", "lost").out)["findings"]))

# Names that are no text: JSON stays valid, and says so in the standard's own way.
write("names", golden(notes=lambda elf: [
    Note(b"\x1b[2J\"\\\n", elf.sites["one"], elf.base),
    Note(b"\xff\xfe", elf.sites["two"], elf.base),
    Note("caf\u00e9", elf.sites["three"], elf.base)]).data)
value, _ = document("list", "--json", "names")
t.same("names in JSON", ["\x1b[2J\"\\\n", "\ufffd\ufffd", "caf\u00e9"],
       [p["name"] for p in value["files"][0]["probes"]])
for pattern, name in [("demo:caf?", "caf\u00e9"), (b"demo:\xff*", "\ufffd\ufffd")]:
    value = json.loads(t.run("list", "--json", "-p", pattern, "names").out)
    t.same(f"-p {pattern!r}", [name], [p["name"] for p in value["files"][0]["probes"]])
found = t.run("list", "names")
t.check("names in text", not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\udc80-\udcff]", found.out) and
        r"demo:\x1b[2J" in found.out and r"demo:\xff\xfe" in found.out and
        "demo:caf\u00e9 " in found.out, found.text())
lines = found.out.splitlines()
t.same("columns stand below each other", {len(lines[1]) - 9},
       {line.rindex(" -") + 1 for line in lines[2:]})

# --- SARIF 2.1.0 ----------------------------------------------------------------------------------

URI = re.compile(r"([A-Za-z0-9._~/-]|%[0-9A-F]{2})+\Z")  # a relative reference, RFC 3986
SARIF = {"$schema": str, "version": {"2.1.0"}, "runs": [{
    "tool": {"driver": {"name": str, "version": str, "rules": [{"id": str}]}},
    "results": [{
        "ruleId": str, "level": {"none", "note", "warning", "error"}, "message": {"text": str},
        "locations": [{"physicalLocation": {
            "artifactLocation": {"uri": URI},
            "region?": {"byteOffset": int, "byteLength": int}}}]}]}]}
write("a file\u00e9 %.so", DEAD.data)
value, found = document("audit", "--sarif", "dead", "good", "a file\u00e9 %.so")
conforms("SARIF", value, SARIF)
run = value["runs"][0]
t.same("SARIF: exit", 1, found.code)
t.same("SARIF: results", [("dangling", "error", "dead", DEAD.at("gone.namesz")),
                          ("dangling", "error", "a%20file%C3%A9%20%25.so", DEAD.at("gone.namesz"))],
       [(r["ruleId"], r["level"], r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"],
         r["locations"][0]["physicalLocation"]["region"]["byteOffset"]) for r in run["results"]])
t.check("SARIF: every result's rule is listed",
        {r["ruleId"] for r in run["results"]} <= {r["id"] for r in run["tool"]["driver"]["rules"]})
t.check("SARIF: the message names the probe", all(
    "demo:gone" in r["message"]["text"] for r in run["results"]))
value, found = document("audit", "--sarif", "good")
conforms("SARIF of nothing", value, SARIF)
t.same("SARIF of nothing", (0, []), (found.code, value["runs"][0]["results"]))

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

# --- fix and the file -----------------------------------------------------------------------------

FIXED = read("fixed")


def status(path):
    s = os.lstat(path)
    return s.st_ino, s.st_mtime_ns, s.st_ctime_ns, s.st_mode, s.st_nlink, s.st_uid, s.st_gid


def fresh(data=DEAD.data, mode=0o755, path="work/app"):
    subprocess.run(["rm", "-rf", "work"], check=True)
    os.mkdir("work")
    write(path, data, mode)


def fixes(what, *arguments, code=0, err=REMOVED, before="work/app"):
    t.same(what, Result(code, "", f"reprobe: {before}: {err}" if err else ""),
           t.run("fix", *arguments))


def only(*names):
    t.same("no litter", sorted(names), sorted(os.listdir("work")))


fresh()
before = status("work/app")
t.run("fix", "--dry-run", "work/app")
t.run("fix", "--json", "--dry-run", "work/app")
t.same("--dry-run leaves the file alone", (before, bytes(DEAD.data)),
       (status("work/app"), read("work/app")))
fixes("in place", "work/app")
t.same("in place: the result", FIXED, read("work/app"))
only("app")
before = status("work/app")
fixes("a second run", "work/app", err="nothing to change\n")
fixes("a second run, --in-place", "--in-place", "work/app", err="nothing to change\n")
t.same("a second run leaves the file alone", before, status("work/app"))

fresh()
before = status("work/app")
fixes("-o", "work/app", "-o", "work/out")
t.same("-o: the result and its mode", (FIXED, 0o755), (read("work/out"),
                                                       stat.S_IMODE(os.stat("work/out").st_mode)))
t.same("-o leaves the input alone", (before, bytes(DEAD.data)),
       (status("work/app"), read("work/app")))
write("work/out", b"something else, and longer than the file was" * 100)
fixes("-o over a file", "work/app", "-o", "work/out")
t.same("-o over a file: the result", FIXED, read("work/out"))
os.symlink("out", "work/link")
fixes("-o through a link", "work/app", "-o", "work/link")
t.check("-o through a link: it stays", os.path.islink("work/link"))
t.same("-o --dry-run", 0, t.run("fix", "--dry-run", "work/app", "-o", "work/none").code)
only("app", "out", "link")
fixes("-o the file itself", "work/app", "-o", "work/app")
t.same("-o the file itself: the result", FIXED, read("work/app"))
fixes("-o of an unchanged file", "work/app", "-o", "work/copy",
      err="nothing to change; copied to work/copy\n")
t.same("-o of an unchanged file: a copy", FIXED, read("work/copy"))
os.chdir("work")
fixes("-o in the current folder", "app", "-o", "here", before="app",
      err="nothing to change; copied to here\n")
os.chdir("..")

fresh(mode=0o640)
has_xattr = True
try:
    os.setxattr("work/app", "user.reprobe-test", b"kept\0bytes")
except OSError as error:
    print(f"SKIPPED: extended attributes: {error}")
    has_xattr = False
if ROOT:
    os.chown("work/app", 1234, 2345)
    os.chmod("work/app", 0o4751)
mode = stat.S_IMODE(os.stat("work/app").st_mode)
os.utime("work/app", ns=(10**18, 10**18))
fixes("attributes", "work/app")
s = os.stat("work/app")
t.same("mode and owner are kept", (mode, *((1234, 2345) if ROOT else (os.getuid(), s.st_gid))),
       (stat.S_IMODE(s.st_mode), s.st_uid, s.st_gid))
if has_xattr:
    t.same("extended attributes are kept", b"kept\0bytes",
           os.getxattr("work/app", "user.reprobe-test"))
t.check("the time is now", s.st_mtime_ns > 10**18)
fresh()
os.utime("work/app", ns=(10**18, 10**18))
fixes("--preserve-dates", "--preserve-dates", "work/app")
t.same("--preserve-dates", 10**18, os.stat("work/app").st_mtime_ns)

fresh()
os.symlink("app", "work/link")
fixes("through a symbolic link", "work/link", before="work/link")
t.same("a symbolic link stays", ("app", FIXED), (os.readlink("work/link"), read("work/app")))
only("app", "link")

fresh()
os.link("work/app", "work/second")
before = status("work/app")
t.same("hard links are refused", Result(4, "", """\
reprobe: error: work/app: the file has 2 names (hard links) and only one of them would be rewritten
hint: --break-hardlinks rewrites this name and leaves the others as they are
"""), t.run("fix", "work/app"))
t.same("hard links are refused in advance", 4, t.run("fix", "--dry-run", "work/app").code)
t.same("hard links: the file is as it was", (before, bytes(DEAD.data)),
       (status("work/app"), read("work/app")))
fixes("hard links do not matter to -o", "work/app", "-o", "work/out")
fixes("--break-hardlinks", "--break-hardlinks", "work/app")
t.same("--break-hardlinks", (FIXED, bytes(DEAD.data)), (read("work/app"), read("work/second")))
fresh(GOOD.data)
os.link("work/app", "work/second")
fixes("hard links of a good file", "work/app", err="nothing to change\n")

for name in ["with space", "-dash", "new\nline", b"\xff\xfe"]:
    path = os.path.join(b"work", name) if isinstance(name, bytes) else "work/" + name
    fresh(path=path)
    before = os.listdir("work")
    t.same(f"fix of {name!r}", 0, t.run("fix", path).code)
    t.same(f"fix of {name!r}: the result", FIXED, read(path))
    t.same(f"fix of {name!r}: no litter", before, os.listdir("work"))
fresh(path="work/-dash")
os.chdir("work")
t.same("a name like an option", 0, t.run("fix", "--", "-dash").code)
os.chdir("..")

fresh()
id_at, id_size = DEAD.fields["build_id"]
new_id = lambda path: read(path)[id_at:id_at + id_size]
fixes("--build-id=new", "--build-id=new", "work/app", "-o", "work/a",
      err="removed 1 dangling, kept 3 live; new build-id\n")
fixes("--build-id=new again", "--build-id=new", "work/app", "-o", "work/b",
      err="removed 1 dangling, kept 3 live; new build-id\n")
t.check("--build-id=new: another id", new_id("work/a") not in (BUILD_ID, bytes(id_size)))
t.same("--build-id=new: the same each time", read("work/a"), read("work/b"))
t.same("--build-id=new: nothing else differs",
       FIXED[:id_at] + new_id("work/a") + FIXED[id_at + id_size:], read("work/a"))
t.same("--build-id=keep", FIXED, (t.run("fix", "--build-id=keep", "work/app", "-o", "work/c"),
                                  read("work/c"))[1])
plan = json.loads(t.run("fix", "--json", "--dry-run", "--build-id=new", "work/app").out)
t.same("--build-id=new in JSON", {"before": BUILD_ID.hex(), "after": new_id("work/a").hex()},
       plan["build_id"])
t.same("verify --new-build-id", 0, t.run("verify", "--new-build-id", "work/app", "work/a").code)
t.same("verify without it", 1, t.run("verify", "work/app", "work/a").code)
fixes("--build-id=new of a good file", "--build-id=new", "work/a", before="work/a",
      err="nothing to change\n")

fresh(poked(GOOD, "e_type", ET_REL))
t.same("fix of an object", Result(4, "", """\
reprobe: error: work/app: a relocatable object; its notes are final after the link
hint: run reprobe fix on the linked program or library
"""), t.run("fix", "work/app"))
only("app")

t.finish()
