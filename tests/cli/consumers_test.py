#!/usr/bin/env python3
"""consumers_test.py REPROBE: what audit says about each tracer, as text and as JSON."""

import json
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from command import Tests, write
from elf_file import golden

t = Tests(sys.argv[1])
NAMES = ["libbpf", "libbpf-1.1", "bcc", "bpftrace-0.17", "bpftrace", "gdb", "systemtap", "perf",
         "lttng", "bolt", "otel", "parca", "tetragon", "gadget"]
GOOD, DEAD = golden(), golden(dead=True)
write("good", GOOD.data)
write("dead", DEAD.data)


def consumers(*arguments):
    files = json.loads(t.run("audit", "--json", *arguments).out)["files"]
    return {file["path"]: file.get("consumers") for file in files}


# --- JSON -----------------------------------------------------------------------------------------

found = consumers("good", "dead")
t.same("both files are there", ["good", "dead"], list(found))
for path, verdicts in found.items():
    t.same(f"{path}: the tracers in order", NAMES, list(verdicts))
    for name, verdict in verdicts.items():
        what = f"{path}: {name}"
        keys = {(f["note_offset"]) for f in verdict["failures"]}
        t.same(f"{what}: fail counts probes", len(keys), verdict["fail"])
        dangling = [f for f in verdict["failures"] if f["what"] == "dangling"]
        t.same(f"{what}: dangling", len(dangling), verdict["dangling"])
        t.same(f"{what}: live probes", 3, verdict["ok"] + verdict["fail"] - verdict["dangling"])
        for failure in verdict["failures"]:
            t.check(f"{what}: shape of a failure",
                    set(failure) <= {"provider", "name", "site", "note_offset", "what", "reason",
                                     "argument", "detail", "message"} and
                    failure["what"] in ("list", "attach", "semaphore", "argument", "dangling") and
                    re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", failure["reason"]) and
                    failure["message"], str(failure))
gone = {name for name, verdict in found["dead"].items() if verdict["dangling"]}
t.same("who takes the dangling note", {"gdb", "systemtap", "perf", "parca", "gadget"}, gone)
t.same("gdb lists four notes", 4, found["dead"]["gdb"]["listed"])

# --- --consumers ----------------------------------------------------------------------------------

t.same("one", ["gdb"], list(consumers("--consumers", "gdb", "dead")["dead"]))
t.same("the order is the table's", ["gdb", "perf"],
       list(consumers("--consumers", "perf,gdb", "dead")["dead"]))
t.same("repeated", ["bcc", "gdb"],
       list(consumers("--consumers", "gdb", "dead", "--consumers=bcc")["dead"]))
found = t.run("audit", "--consumers", "dtrace", "dead")
t.same("an unknown name", (2, ""), (found.code, found.out))
t.check("an unknown name lists the names", all(name in found.err for name in NAMES), found.err)
t.check("no name", t.run("audit", "--consumers", "dead").code == 2)

# --- Text -----------------------------------------------------------------------------------------

found = t.run("audit", "good", tracers=True)
t.same("a good file is quiet", "3 probes in 1 of 1 ELF file: 0 errors, 0 warnings\n", found.out)
found = t.run("audit", "dead", tracers=True)
t.same("exit", 1, found.code)
lines = found.out.splitlines()
header = next(i for i, line in enumerate(lines) if line.startswith("  tracer "))
second = next(i for i, line in enumerate(lines) if i > header and line.startswith("  tracer "))
t.same("the headers", ["tracer", *NAMES[:10], "tracer", *NAMES[10:]], lines[header].split() + lines[second].split())
t.check("100 columns", all(len(line) <= 100 for line in lines[header:-1]), found.out)
row = next(line for line in lines if line.startswith("  demo:gone "))
t.same("the dangling note's row", ["demo:gone"] + ["dead" if n in gone else "-" for n in NAMES[:10]],
       row.split())
t.check("no row for a limit", not any(line.startswith("  demo:three ") for line in lines[:second]))
t.check("the reasons", any(line == "  dangling-listed (gdb, systemtap)"
                           for line in lines), found.out)
# -p narrows the table, too.
t.check("-p", "demo:gone" not in t.run("audit", "-p", "demo:one", "dead", tracers=True).out)
t.same("-p in JSON", 1, consumers("-p", "demo:one", "dead")["dead"]["gdb"]["ok"])

# A limit that somebody asks for is shown; it is no finding.
found = t.run("audit", "--consumers", "lttng", "good", tracers=True)
t.same("a limit: exit", 0, found.code)
t.check("a limit", "  semaphore-unsupported (lttng)\n" in found.out, found.out)

# Names of probes do not drive the terminal.
odd = golden(dead=True)
at = odd.at("gone.provider")
odd.data[at:at + 1] = b"\x1b"
write("odd", odd.data)
found = t.run("audit", "odd", tracers=True)
t.check("escaped names", "\x1b" not in found.out and r"\x1bemo:gone" in found.out, found.out)

t.finish()
