#!/usr/bin/env python3
"""json_test.py REPROBE: the documents of --json and --sarif, each against its shape and against what
the files, built by elf_file.py, are known to hold.
"""

import json
import os
import re
import sys

from command import Result, Tests, read, write
from elf_file import BUILD_ID, EM_S390, Note, golden

t = Tests(sys.argv[1])
GOOD, DEAD = golden(), golden(dead=True)
write("good", GOOD.data, 0o755)
write("dead", DEAD.data, 0o755)

VERIFIED = "verified: each difference is one that reprobe makes, and is proven\n"
t.run("fix", "dead", "-o", "fixed")
# A live probe that is lost.
write("lost", golden(notes=lambda elf: [
    Note(n, elf.sites[n], elf.base, arguments=a) for n, a in
    [("one", "-4@%edi 8@%rsi"), ("two", "")]]).data)
AUDIT = t.run("audit", "dead").out  # surface_test.py says what it is

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
# What bench says; the numbers are the machine's.
found = t.run("bench", "--json", "--seconds", "1")
value = json.loads(found.out)
conforms("bench", value, {"schema": {"reprobe.bench/1"}, "kernel": str, "rounds": int, "cycle_ns": float,
                          "measured": [{"what": str, "ns": float, "bare_ns": float,
                                        "traced_ns?": float, "traced_by?": str}],
                          "not_traced?": str})
t.same("bench: exit and what is measured",
       (0, ["no site", "plain nop", "nop10 sled", "nop5 sled", "slot sled", "semaphore check"]),
       (found.code, [m["what"] for m in value["measured"]]))
t.check("bench: more than one round", value["rounds"] >= 3 and value["cycle_ns"] > 0, value)
t.check("bench: traced, or why not", ("not_traced" in value) !=
        all("traced_ns" in m for m in value["measured"] if m["what"].startswith(("plain", "nop"))),
        value)

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

t.finish()
