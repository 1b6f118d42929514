#!/usr/bin/env python3
"""rules_test.py SOURCE: every rule that the sources name has a row in docs/rules.md, and every row
names a rule that exists."""
import pathlib
import re
import sys

source = pathlib.Path(sys.argv[1])
code = "\n".join(
    path.read_text()
    for folder in ("libprobe", "tool")
    for path in sorted((source / folder).rglob("*.[ch]pp"))
    if path.parent.name != "consumers"  # their reasons are no rules
)
PREFIX = (r"(?:note|base|verify|elf|semaphore|argument|site|probe)-[a-z-]+|redzone-nop5|section-order|"
          r"build-id-short|notes-stripped|debug-file|spec-count|dangling|ambiguous|alias")
named = set(re.findall(
    rf'(?:rule = |Rule\{{|string_view note_\w+ = |finding\(|probe, |old, |\[at\], )\s*"({PREFIX})"', code))
named |= set(re.findall(
    rf'\b(?:about|about_file|finding|probe_finding)\([^;]*?"({PREFIX})"', code, re.S))
rows = set(re.findall(rf"^\| `({PREFIX})` \|", (source / "docs/rules.md").read_text(), re.M))
for rule in sorted(named - rows):
    print(f"docs/rules.md has no row for {rule}")
for rule in sorted(rows - named):
    print(f"docs/rules.md describes {rule}, which no source names")
if not named:
    print("no rule found in the sources")
sys.exit(1 if named != rows or not named else 0)
