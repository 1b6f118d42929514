#!/usr/bin/env python3
"""guards_coverage.py REPROBE ROOT DOCUMENT: writes the measured table of docs/guards.md.

ROOT holds the unpacked Debian 12 packages of FILES. The part of DOCUMENT between the two lines
with "measured" comments is replaced. Exits 1 where less than 90 % of the checks are rewritten, or
where restore does not give the original.
"""
import collections
import filecmp
import json
import os
import re
import subprocess
import sys
import tempfile
import time

LIB = "usr/lib/x86_64-linux-gnu/"
FILES = ["usr/lib/postgresql/15/bin/postgres", LIB + "libruby-3.1.so.3.1.2", "usr/bin/php8.2",
         LIB + "libvirt.so.0.9000.0", "usr/bin/python3.11", LIB + "libpython3.11.so.1.0",
         LIB + "libpython3.11d.so.1.0", LIB + "sssd/libsss_ldap_common.so",
         LIB + "sssd/libsss_util.so", "usr/libexec/sssd/sssd_be"]
FORMS = ["compare", "load", "merge", "below", "bit"]
LEAST = 90.0  # percent
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def rewrite(reprobe, file, folder):
    """The plan of one file, the bytes that it grows by, and the seconds that it took."""
    out = os.path.join(folder, "out")
    start = time.monotonic()
    said = subprocess.run([reprobe, "guards", "--to", "site", "--json", file, "-o", out],
                          capture_output=True, text=True, check=True)
    seconds = time.monotonic() - start
    grown = os.path.getsize(out) - os.path.getsize(file)
    subprocess.run([reprobe, "guards", "-q", "--to", "restore", out], check=True)
    if not filecmp.cmp(file, out, shallow=False):
        raise SystemExit(f"FAILED: restore does not give {file}")
    return json.loads(said.stdout), grown, seconds


def table(reprobe, root, folder):
    rows, reasons = [], []
    total = done = 0
    for name in FILES:
        plan, grown, seconds = rewrite(reprobe, os.path.join(root, name), folder)
        checks = len(plan["guards"]) + len(plan["refused"])
        total, done = total + checks, done + len(plan["guards"])
        forms = collections.Counter(guard["what"] for guard in plan["guards"])
        stubs = sum(guard["tactic"] == "stub" for guard in plan["guards"])
        rows.append([os.path.basename(name), f"{len(plan['guards'])}/{checks}",
                     *(str(forms[form]) for form in FORMS), str(len(plan["guards"]) - stubs),
                     str(stubs), str(grown), f"{seconds:.2f}"])
        reasons += [f"- {os.path.basename(name)} {r['provider']}:{r['name']}, {r['what']} at "
                    f"{r['at']}: {r['reason']}" for r in plan["refused"]]
    percent = 100 * done / total
    rows.append(["all", f"{done}/{total} ({percent:.1f}%)", *[""] * (len(FORMS) + 4)])
    head = ["file", "checks rewritten", *FORMS, "in place", "in stubs", "bytes grown", "s"]
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    return "\n".join(lines) + "\n\nLeft as they are:\n\n" + "\n".join(reasons), percent


def main():
    if len(sys.argv) != 4:
        print(__doc__, file=sys.stderr)
        return 2
    _, reprobe, root, document = sys.argv
    with tempfile.TemporaryDirectory(prefix="reprobe-guards-") as folder:
        text, percent = table(os.path.abspath(reprobe), root, folder)
    print(text)
    text += "\n\nSeconds are of one run on a busy machine."
    with open(document, encoding="utf-8") as old:
        before = old.read()
    with open(document, "w", encoding="utf-8") as out:
        out.write(re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{text}\n{END}", before,
                         flags=re.S))
    if percent < LEAST:
        print(f"FAILED: {percent:.1f}% rewritten, less than {LEAST}%", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
