"""What a program with sleds does under a tracer, under a debugger and to an unwinder, beside the
original. The truth is the original: what it prints, its uprobes' hits, its frames in gdb."""
import bisect
import json
import os
import random
import re
import shutil
import struct
import tempfile

import environment
import uprobes
from common import run

HERE = os.path.dirname(os.path.abspath(__file__))
PROVIDER = "gen"
WAY = "the way to a sled"
TRACED_SITES = 12  # of one program: the kernel takes 50 ms to let go of one
AROUND = 256    # bytes between a probe's nop and code that branches into its window, at most
GAP = 4         # bytes of one window that happen to stay the same, at most
ADDRESSES = 16  # that get a breakpoint in turn, of one program
STUB_HITS, SITE_HITS = 3, 2000
QUIET = {"ASAN_OPTIONS": "detect_leaks=0"}


def some_probes(file, seed):
    """Names of probes with TRACED_SITES sites or fewer."""
    sites = uprobes.probe_sites(file, PROVIDER)
    names = random.Random(seed).sample(sorted(sites), len(sites))
    while names and sum(len(sites[name]) for name in names) > TRACED_SITES:
        names.pop()
    return names


def compare_traced(checks, what, found, expected):
    """What traced() gives: what is printed, and each probe's hits. Gives the hits."""
    checks.equal(f"{what}: prints, traced", found[0], expected[0])
    checks.equal(f"{what}: hits", found[1], expected[1])
    return sum(found[1].values())


def traced(program, file, names):
    """(what `program` of the file gives, {probe: hits}) with uprobes at the sites of these probes."""
    loaded, sites = uprobes.segments(file), uprobes.probe_sites(file, PROVIDER)
    places = sorted({(site, name) for name in names for site, _ in sites[name]})
    with uprobes.Uprobes([(file, uprobes.offset_in(loaded, site)) for site, _ in places]):
        said = program(file)
        counted = {}
        # A reader misses lines where other processes' events go meanwhile.
        while len(counted) < len(places):
            with open(os.path.join(environment.TRACEFS, "uprobe_profile"), encoding="utf-8",
                      errors="replace") as profile:
                counted |= {event: int(hits) for path, event, hits, *_ in map(str.split, profile)
                            if path == file}
    hits = {}
    for i, (_, name) in enumerate(places):
        hits[name] = hits.get(name, 0) + counted[f"p{i}"]
    return said, hits


class Code:
    """The instructions of a file, as objdump reads them."""

    def __init__(self, file):
        self.file, self.loaded = file, uprobes.segments(file)
        said = run("objdump", "-d", "-w", "--no-show-raw-insn", file).stdout
        lines = re.findall(r"^\s*([0-9a-f]+):\t(.*)$", said, re.M)
        self.starts = [int(at, 16) for at, _ in lines]
        self.filler = set()  # what pads behind code that does not go on: nobody stops there
        pads = False
        for at, text in lines:
            pads = pads and re.search(r"\bnop|\bint3|xchg +%ax,%ax", text) is not None
            if pads:
                self.filler.add(int(at, 16))
            pads = pads or re.match(r"(bnd |notrack )*(jmp|ret|ud2|hlt)", text) is not None
        with open(file, "rb") as data:
            self.data = data.read()
        self.entry = struct.unpack_from("<Q", self.data, 24)[0]
        found = re.search(r"\.text\.reprobe +PROGBITS +(\w+) +\w+ +(\w+)",
                          run("readelf", "-S", "-W", file).stdout)
        self.stubs = (int(found[1], 16), int(found[1], 16) + int(found[2], 16)) if found else (0, 0)

    def address(self, offset):
        return next(start + offset - at for start, size, at in self.loaded
                    if at <= offset < at + size)

    def between(self, start, end):
        return self.starts[bisect.bisect_left(self.starts, start):
                           bisect.bisect_left(self.starts, end)]

    def at(self, address, size):
        offset = uprobes.offset_in(self.loaded, address)
        return self.data[offset:offset + size]

    def leads_to(self, at):
        """[where the jump or call at `at` leads, through a hop], or []."""
        code = self.at(at, 6)
        if code[0] == 0xeb:
            return self.leads_to(at + 2 + struct.unpack_from("b", code, 1)[0])
        start = 2 if code[0] == 0x0f and code[1] & 0xf0 == 0x80 else 1 if code[0] in (0xe8, 0xe9) else 0
        return [at + start + 4 + struct.unpack_from("<i", code, start)[0]] if start else []


def windows(before, plan):
    """[(start, end), ...] of the code that changed, each from the start of an instruction: a way to a
    stub, with the nops in front of it, or several beside each other."""
    found = []
    for edit in plan["edits"]:
        offset = int(edit["offset"], 0)
        if edit["why"] == WAY:
            start = before.address(offset)
            first = before.starts[bisect.bisect_right(before.starts, start) - 1]
            if found and first <= found[-1][1] + GAP:
                found[-1] = (found[-1][0], start + edit["size"])
            else:
                found.append((first, start + edit["size"]))
    return found


def unsafe_windows(before, after, plan):
    """Those of which the plan says that a breakpoint may break the program: they lead to the stub of
    such a site, or, where the stub has no sled (its code made room, or branched into a window), they
    are near one."""
    leads = {window: [stub for at in after.between(*window) for stub in after.leads_to(at)]
             for window in windows(before, plan)}
    stubs = sorted({stub for of_window in leads.values() for stub in of_window})
    owners = {}
    for site in plan["sites"]:
        number = bisect.bisect_right(stubs, int(site["to"], 0)) - 1
        owners.setdefault(stubs[number] if number >= 0 else 0, []).append(site)
    named = [site for site in plan["sites"] if "breakpoints" in site]
    return [window for window, of_window in leads.items()
            for stub in of_window
            if (any(site in named for site in owners[stub]) if stub in owners else
                any(abs(int(site["from"], 0) - window[0]) < AROUND for site in named))]


def compare_breakpoints(checks, what, breaker, before, file, plan, expected, seed):
    """A breakpoint on an instruction of the original that a window took, one after the other. Gives
    how many were tried, and how many changed something at sites that are said to be unsafe."""
    addresses = sorted({at for start, end in windows(before, plan)
                        for at in before.between(start, end)} - before.filler)
    addresses = random.Random(seed).sample(addresses, min(ADDRESSES, len(addresses)))
    after = Code(file)
    unsafe = unsafe_windows(before, after, plan)
    said = run(breaker, file, *map(hex, addresses), env=QUIET, cwd=os.path.dirname(file), timeout=600)
    runs = re.split(r"^hits \d+ exit ", said.stdout, flags=re.M)
    if not checks.equal(f"{what}: runs with a breakpoint", len(runs) - 1, len(addresses)):
        return 0, 0
    found, status, known = runs[0], 0, 0
    for i, address in enumerate(addresses):
        status, _, rest = runs[i + 1].partition("\n")
        good = (int(status), found) == expected
        if not good and any(start <= address < end for start, end in unsafe):
            known += 1
        else:
            checks.equal(f"{what}: a breakpoint at {address:#x}", (int(status), found), expected)
        found = rest
    return len(addresses), known


def frames(code, places, most):
    # Under one name, and so with the same stack.
    with tempfile.TemporaryDirectory(prefix="reprobe-frames-") as folder:
        shutil.copy(code.file, os.path.join(folder, "program"))
        with open(os.path.join(folder, "asked"), "w", encoding="ascii") as out:
            json.dump({"entry": code.entry, "places": sorted(places), "most": most}, out)
        said = run("gdb", "-q", "-nx", "-batch", "-x", os.path.join(HERE, "sled_frames.py"), "program",
                   cwd=folder, timeout=600)
    found = re.search(r"^frames (.*)$", said.stdout, re.M)
    if not found:
        raise SystemExit(f"FAILED: gdb and {code.file}:\n{said.stdout[-800:]}\n{said.stderr[-800:]}")
    return {int(at): list(map(tuple, seen)) for at, seen in json.loads(found[1]).items()}


def compare_unwinding(checks, what, before, file, plan):
    """At each instruction of each stub gdb finds the caller that it finds at the window in the original,
    with the same stack pointer: a stub is part of the function that the site is in, also one to which a
    call leads. Gives the number of instructions that were passed."""
    after = Code(file)
    ways = {}
    for start, end in windows(before, plan):
        for stub in (stub for at in after.between(start, end) for stub in after.leads_to(at)):
            if after.stubs[0] <= stub < after.stubs[1]:
                ways.setdefault(stub, set()).update(before.between(start, end))
    original = frames(before, {at for of_stub in ways.values() for at in of_stub}, SITE_HITS)
    inside = after.between(*after.stubs)
    moved = frames(after, inside, STUB_HITS)
    stubs = sorted(ways)
    passed = 0
    for at in inside:
        if not moved[at]:
            continue
        number = bisect.bisect_right(stubs, at) - 1
        # What leads into the middle of a stub is a way of its own: the one before is the stub's.
        allowed = {frame for stub in stubs[max(number - 1, 0):number + 1] for window in ways[stub]
                   for frame in original[window]}
        wrong = [frame for frame in moved[at] if frame not in allowed]
        checks.equal(f"{what}: callers at {at:#x} in a stub", wrong, [])
        passed += 1
    return passed
