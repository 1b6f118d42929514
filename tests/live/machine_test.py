#!/usr/bin/env python3
"""machine_test.py REPROBE [ROOT...]: every ELF file with stapsdt notes that this machine has.

`reprobe list` must print the notes that `readelf -n` prints, and `reprobe audit` must find no
dangling note in a file that a package shipped. Files are looked for below ROOT (default /) on its
own file system; checkouts and folders of temporary files only if a ROOT names them.
"""
import json
import mmap
import os
import re
import stat
import struct
import subprocess
import sys

import elfparts

SKIPPED = ("/proc", "/sys", "/dev", "/tmp", "/var/tmp", "/run")
NOTE = re.compile(
    r"Provider: (.*)\n\s+Name: (.*)\n\s+Location: (0x\w+), Base: (0x\w+), Semaphore: (0x\w+)\n"
    r"\s+Arguments: ?(.*)"
)


def files(root):
    """Regular files below root on its file system, links not followed."""
    device = os.stat(root).st_dev
    todo = [root]
    while todo:
        folder = todo.pop()
        # Checkouts hold what is being worked on, files that are broken on purpose among it.
        checkout = os.path.exists(os.path.join(folder, ".git"))
        if root == "/" and (folder in SKIPPED or checkout):
            continue
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(status.st_mode) and status.st_dev == device:
                todo.append(entry.path)
            elif stat.S_ISREG(status.st_mode) and status.st_size > 64:
                yield entry.path


def has_notes(path):
    """Does a section of that name stand in the file? Read without reprobe and without readelf."""
    try:
        with open(path, "rb") as file:
            if file.read(4) != b"\x7fELF":
                return False
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return any(s.name == elfparts.NOTE for s in elfparts.Elf(data).sections)
    except (OSError, ValueError, IndexError, struct.error):
        return False


def by_readelf(path):
    """The notes as readelf prints them: every field but the site, in order."""
    text = subprocess.run(
        ["readelf", "-nW", path], capture_output=True, text=True, errors="replace", check=False,
        env={**os.environ, "LC_ALL": "C"},
    ).stdout
    return [
        (provider, name, int(location, 16), int(base, 16), int(semaphore, 16), arguments.strip())
        for provider, name, location, base, semaphore, arguments in NOTE.findall(text)
    ]


def by_reprobe(entry):
    def number(probe, field):
        return int(probe.get(field, "0x0"), 16)

    return [
        (
            probe["provider"], probe["name"], number(probe, "location"), number(probe, "base"),
            number(probe, "semaphore"), probe["arguments_text"].strip(),
        )
        for probe in entry["probes"]
    ]


def shipped(path):
    """Did a Debian package bring the file?"""
    known = subprocess.run(
        ["dpkg-query", "-S", path, os.path.realpath(path)], capture_output=True, check=False
    )
    return bool(known.stdout)


def main():
    reprobe, roots = sys.argv[1], sys.argv[2:] or ["/"]
    paths = [path for root in roots for path in files(root) if has_notes(path)]
    if not paths:
        print("SKIP: no file with stapsdt notes on this machine")
        return 77
    failures = []
    notes = packaged = 0
    for path in paths:
        listed = subprocess.run(
            [reprobe, "list", "--json", "-q", path], capture_output=True, text=True, check=False
        )
        if listed.returncode != 0:
            failures.append(f"{path}: list exits {listed.returncode}: {listed.stderr.strip()}")
            continue
        entry = json.loads(listed.stdout)["files"][0]
        expected, found = by_readelf(path), by_reprobe(entry)
        notes += len(expected)
        # readelf prints the unrelocated fields of an object; fixtures_test.py checks objects.
        if entry["type"] != "REL" and expected != found:
            pair = next(((a, b) for a, b in zip(expected, found) if a != b), (None, None))
            failures.append(
                f"{path}: readelf has {len(expected)} notes, list {len(found)}; first difference "
                f"{pair[0]} against {pair[1]}"
            )
        if shipped(path):
            packaged += 1
            dangling = [p["name"] for p in entry["probes"] if p["verdict"] == "dangling"]
            if dangling:
                failures.append(f"{path}: dangling in a shipped file: {', '.join(dangling[:5])}")
    for failure in failures:
        print(failure)
    print(f"{len(paths)} files with {notes} notes, {packaged} of them shipped by packages, "
          f"{len(failures)} failures")
    return 1 if failures else 0


sys.exit(main())
