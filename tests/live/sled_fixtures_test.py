#!/usr/bin/env python3
"""sled_fixtures_test.py REPROBE FOLDER: sleds and guards in what every linker makes.

Of the x86-64 fixtures in FOLDER, one of each linker, mode and scenario: `sled` writes a file that
verifies or refuses with a reason; the program prints what it printed; and the original comes back
byte for byte. The same of `guards --to site` for programs with counters, files that a strip or objcopy
left with headers that contradict each other among them.
"""
import os
import sys
import tempfile
from collections import Counter

from fixtures_test import collect, read, run

TOOLCHAINS = ("gcc", "clang")
# The scenarios differ in what is dangling; these differ in the code as well.
SCENARIOS = ("mass", "gc", "comdat", "sdt", "demo")
WITH_COUNTERS = ("sema", "sema-unread")


def chosen(folder):
    """(fixture, words of the command, words that undo it)"""
    seen = set()
    for f in collect(folder, []):
        m = f.manifest
        if m.get("toolchain") in TOOLCHAINS and m["scenario"] in WITH_COUNTERS:
            key = (m["linker"], m["mode"], m["scenario"], f.variant)
            if f.variant != "debug" and key not in seen:
                seen.add(key)
                yield f, ("guards", "--to=site"), ("guards", "--to=restore")
        if m.get("toolchain") not in TOOLCHAINS or m["scenario"] not in SCENARIOS:
            continue
        # What a strip leaves is tried with one linker; each linker with whole files.
        if f.variant in ("debug", "adjust") or (f.variant and m["linker"] != "lld-19"):
            continue
        key = (m["linker"], m["mode"], m["scenario"], f.variant)
        if key not in seen:
            seen.add(key)
            kind = "nop5" if m["mode"] == "pie" else "nop10"
            yield f, ("sled", f"--kind={kind}"), ("sled", "--undo")


def check(reprobe, f, command, undo, folder):
    out, back = os.path.join(folder, "sledded"), os.path.join(folder, "back")
    for path in (out, back):
        if os.path.exists(path):
            os.unlink(path)
    made = run(reprobe, *command, f.second_opinion, f.path, "-o", out)
    if made.returncode == 4:
        return "refused" if "\nreprobe: error: " in "\n" + made.stderr or \
            "left as they are" in made.stderr else f"no reason: {made.stderr}"
    if made.returncode != 0:
        return f"{command} ends with {made.returncode}: {made.stderr}"
    verified = run(reprobe, "verify", f.second_opinion, f.path, out)
    if verified.returncode != 0:
        return f"verify: {verified.stdout}{verified.stderr}"
    undone = run(reprobe, *undo, out, "-o", back)
    if undone.returncode != 0 and "nothing to change" not in made.stderr + undone.stderr:
        return f"undo: {undone.stderr}"
    if undone.returncode == 0 and read(back) != read(f.path):
        return "undo does not give the original back"
    if f.runnable and not f.manifest["shared"]:
        before, after = run(f.path), run(out)
        if (before.returncode, before.stdout) != (after.returncode, after.stdout):
            return f"prints {after.returncode} {after.stdout!r}, not {before.stdout!r}"
        return f"{command[0]} ran"
    return "rewritten"


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    if os.uname().machine != "x86_64":
        print("SKIP: sleds are for x86-64")
        return 77
    counts, failures = Counter(), 0
    with tempfile.TemporaryDirectory(prefix="reprobe-sled-fixtures-") as folder:
        for f, command, undo in chosen(sys.argv[2]):
            said = check(os.path.abspath(sys.argv[1]), f, command, undo, folder)
            if said in ("sled ran", "guards ran", "rewritten", "refused"):
                counts[said] += 1
            else:
                failures += 1
                print(f"FAILED: {os.path.relpath(f.path, sys.argv[2])}: {said[:600]}")
    print(f"{dict(counts)}, {failures} failed")
    return 1 if failures or counts["sled ran"] < 50 or counts["guards ran"] < 20 else 0


if __name__ == "__main__":
    sys.exit(main())
