"""Uprobes of tracefs at probe sites, as a tracer sets them that knows no counters."""
import os
import re

import environment
from common import run


def probe_sites(file, provider):
    """{probe: [(site, counter), ...]} as readelf reads the notes."""
    said = run("readelf", "-n", "-W", file).stdout
    found = {}
    for name, at, counter in re.findall(
            rf"Provider: {provider}\s+Name: (\w+)\s+Location: 0x(\w+), Base: \S+ Semaphore: 0x(\w+)",
            said):
        found.setdefault(name, []).append((int(at, 16), int(counter, 16)))
    return found


def segments(file):
    """[(address, size, file offset), ...] of what is loaded."""
    found = []
    for line in run("readelf", "-l", "-W", file).stdout.splitlines():
        field = line.split()
        if field and field[0] == "LOAD":
            found.append((int(field[2], 16), int(field[4], 16), int(field[1], 16)))
    return found


def offset_in(loaded, address):
    for start, size, at in loaded:
        if start <= address < start + size:
            return address - start + at
    raise SystemExit(f"FAILED: {address:#x} is in no segment")


class Uprobes:
    """All of [(file, offset), ...], in a group of this process's own."""

    def __init__(self, places):
        self.group = f"reprobe_guards_{os.getpid()}"
        self.specs = [f"p:{self.group}/p{i} {file}:{offset:#x}"
                      for i, (file, offset) in enumerate(places)]

    @staticmethod
    def write(name, text):
        # Mode "a" would seek, which tracefs refuses.
        fd = os.open(os.path.join(environment.TRACEFS, name), os.O_WRONLY | os.O_APPEND)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)

    def __enter__(self):
        for spec in self.specs:
            self.write("uprobe_events", spec + "\n")
        if self.specs:
            self.write(f"events/{self.group}/enable", "1")
        return self

    def __exit__(self, *_):
        if self.specs:
            self.write(f"events/{self.group}/enable", "0")
        for i in range(len(self.specs)):
            self.write("uprobe_events", f"-:{self.group}/p{i}\n")
