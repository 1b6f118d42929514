#!/usr/bin/env python3
"""rules_test.py SOURCE: every rule that the sources name has a row in docs/rules.md, and every row
names a rule that exists; the rows about notes say what libprobe/notes/rules.cpp says; every repair of
`fix` is in the documents."""
import pathlib
import re
import sys

source = pathlib.Path(sys.argv[1])
code = "\n".join(
    path.read_text()
    for folder in ("libprobe", "tool")
    for path in sorted((source / folder).rglob("*.[ch]pp"))
    if path.parent.name != "tracers"  # their reasons are no rules
)
PREFIX = (r"(?:note|base|verify|elf|index|semaphore|argument|site|probe|legacy)-[a-z-]+|redzone-nop5|nop5-fork|section-order|"
          r"build-id-short|payload|notes-stripped|other-section|debug-file|spec-count|dangling|ambiguous|alias")
named = set(re.findall(
    rf'(?:rule = |Rule\{{|string_view note_\w+ = |finding\(|differs\(|probe, |old, |\[at\], )\s*"({PREFIX})"', code))
named |= set(re.findall(
    rf'\b(?:about|about_file|finding|probe_finding)\([^;]*?"({PREFIX})"', code, re.S))
rows = set(re.findall(rf"^\| `({PREFIX})` \|", (source / "docs/rules.md").read_text(), re.M))
for rule in sorted(named - rows):
    print(f"docs/rules.md has no row for {rule}")
for rule in sorted(rows - named):
    print(f"docs/rules.md describes {rule}, which no source names")
if not named:
    print("no rule found in the sources")
failed = named != rows or not named


def tokens(name):
    """The names and the strings of a source file, adjacent strings joined."""
    text = (source / name).read_text()
    for found in re.finditer(r'((?:"(?:[^"\\]|\\.)*"\s*)+)|\b(\w+(?:::\w+)*)', text):
        if found[1]:
            yield "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', found[1])).replace('\\"', '"')
        else:
            yield found[2]


# NoteRule{rule::note_align, Severity::error, what, who breaks, hint}
words = list(tokens("libprobe/notes/rules.cpp"))
hints = {}  # by constant: what stands behind it first, in its definition
for at, word in enumerate(words):
    if re.fullmatch(r"k[A-Z]\w+", word):
        hints.setdefault(word, words[at + 1])
lines = (source / "docs/rules.md").read_text().splitlines()
starts = [at for at, word in enumerate(words) if word == "NoteRule" and
          words[at + 1].startswith("rule::note_")]
for at in starts:
    name, severity, what, breaks, hint = words[at + 1:at + 6]
    row = (f"| `{name.removeprefix('rule::').replace('_', '-')}` | {severity.split('::')[1]} | {what} | "
           f"{breaks} | {hints[hint]} |")
    if row not in lines:
        print(f"docs/rules.md has not the row of libprobe/notes/rules.cpp:\n{row}")
        failed = True

words = list(tokens("libprobe/rewrite/repair_rules.cpp"))
repairs = [re.sub("^(rule|repair)::", "", words[at + 1]).replace("_", "-")
           for at, word in enumerate(words) if word == "RepairRule" and "::" in words[at + 1]]
for page, part in [("README.md", r"\| repair \|.*?\n\n"), ("docs/json.md", r"\| `rule` \|.*?\n")]:
    table = re.search(part, (source / page).read_text(), re.S)
    listed = re.findall("`([a-z-]+)`", table[0]) if table else []
    for repair in repairs:
        if repair not in listed:
            print(f"{page} does not list the repair {repair}")
            failed = True
if not starts or not repairs:
    print("no note rule or no repair found in the sources")
    failed = True
sys.exit(1 if failed else 0)
