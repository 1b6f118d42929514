#!/usr/bin/env python3
"""Control flow against outside truths: the labels that compilers wrote and objdump.

  flow_test.py FLOW_TOOL [FILE...]

Compiles flow_switches.c and flow_throws.cc with each compiler that is there, keeps the compilers'
labels as symbols, and asks about the stripped file: every case label and landing pad has to be a
target, or the function must not be called complete. FILEs have their probes' functions compared with
objdump: the same instructions, the same branch and rip-relative targets, and nothing incomplete.
"""
import itertools
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
NOT_UNDERSTOOD = {"stored"}
MAY_BE_NOT_UNDERSTOOD = {"differences"}  # where a label is an immediate, or is kept on the stack


def run(*command):
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout


class Flow:
    def __init__(self, head):
        start, end, padding, state = head.split(" ")[1:5]
        self.start, self.end = int(start, 16), int(end, 16)
        self.padded = self.end + int(padding)
        self.complete = state == "complete"
        self.why = head.split(" ", 5)[5]
        self.code, self.targets = {}, {}


def flows(tool, file, addresses):
    found = []
    for line in run(tool, file, *[format(a, "x") for a in addresses]).splitlines():
        kind, rest = line[0], line[2:]
        if kind == "F":
            found.append(Flow(line))
        elif kind == "I":
            address, _, target, rip = rest.split(" ")
            found[-1].code[int(address, 16)] = (target, rip)
        else:
            address, kinds = rest.split(" ", 1)
            found[-1].targets[int(address, 16)] = kinds
    return found


def keep_labels(assembly):
    return re.sub(r"\.L(?=\w)", "kept.L", assembly)


def case_labels(assembly):
    words = re.findall(r"^\s*\.(?:long|quad)\s+(kept\.L\w+)(?:-kept\.L\w+|-\.)?\s*$", assembly, re.M)
    return words + re.findall(r"leaq\s+(kept\.L\w+)\(%rip\)", assembly)


def landing_pads(assembly):
    """The third of each four numbers of a call-site table."""
    pads = []
    tables = re.findall(r"^kept\.(?:LLSDACSB|Lcst_begin)\w+:\n(.*?)^kept\.(?:LLSDACSE|Lcst_end)\w+:",
                        assembly, re.M | re.S)
    for table in tables:
        numbers = re.findall(r"^\s*\.uleb128\s+(\S+)|^\s*\.byte\s+(\S+)", table, re.M)
        pads += [m[1] for n in numbers[2::4] if (m := re.match(r"(kept\.L\w+)-", n[0] or n[1]))]
    return pads


DOUBTFUL, UNDOUBTED = [], []  # functions, given up for a word of data that leads into them or not


def places_by_distance(binary):
    """What the words of data would lead to as distances from themselves: the reader cannot tell
    whether one is meant so, and takes all for places where control may arrive."""
    data, places = binary.read_bytes(), set()
    sections = re.findall(r"\] (\S+)\s+PROGBITS\s+(\w+) (\w+) (\w+) \w+\s+([WAX]+)",
                          run("readelf", "-SW", binary))
    for name, address, offset, size, flags in sections:
        if "A" not in flags or "X" in flags or name.startswith(".eh_frame"):
            continue
        address, offset, size = int(address, 16), int(offset, 16), int(size, 16)
        for width in (4, 8):
            for at in range(-address % width, size - width + 1, width):
                word = int.from_bytes(data[offset + at:offset + at + width], "little", signed=True)
                places.add(address + at + word)
    return places


def check_labels(tool, folder, source, labels_of, kinds, build, skipped=()):
    """Errors, and how many labels were checked."""
    compiler, *flags = build
    kept, binary, stripped = folder / "kept.s", folder / "binary", folder / "stripped"
    assembly = keep_labels(run(compiler, *flags, "-S", "-o", "-", HERE / source))
    kept.write_text(assembly)
    link = [f for f in flags if f in ("-shared", "-pie", "-no-pie")]
    run(compiler, "-nostdlib", *link, "-Wl,--unresolved-symbols=ignore-all", "-Wl,-e,0",
        "-Wl,-z,notext", "-o", binary, kept)
    run("strip", "-o", stripped, binary)
    symbols, functions = {}, {}
    for line in run("readelf", "-sW", binary).splitlines():
        field = line.split()
        if len(field) != 8 or field[6] in ("UND", "Ndx"):
            continue
        symbols[field[7]] = int(field[1], 16)
        # __clang_call_terminate has no FDE.
        if field[3] == "FUNC" and ".cold" not in field[7] and not field[7].startswith("__clang"):
            functions[int(field[1], 16)] = field[7]
    truth = {symbols[label] for label in labels_of(assembly) if label in symbols}
    by_distance = places_by_distance(binary)
    errors, checked = [], 0
    for flow in flows(tool, stripped, sorted(functions)):
        name = functions[flow.start]
        own = {t for t in truth if flow.start < t < flow.end}
        missing = {t for t in own if not re.search(kinds, flow.targets.get(t, ""))}
        checked += len(own)
        if flow.complete and missing:
            errors.append(f"{build}: {name}: not found: {[format(t, 'x') for t in missing]}")
        doubtful = any(flow.start < place < flow.end and place not in own for place in by_distance)
        tables = {t for t, k in flow.targets.items() if "jump table" in k}
        if doubtful and name not in NOT_UNDERSTOOD and (not flow.complete or tables - own):
            DOUBTFUL.append(f"{build}: {name}")
            continue
        UNDOUBTED.append(name)
        if flow.complete == (name in NOT_UNDERSTOOD) and name not in MAY_BE_NOT_UNDERSTOOD | set(skipped):
            errors.append(f"{build}: {name}: complete is {flow.complete} {flow.why}")
        if tables - own and flow.complete:
            errors.append(f"{build}: {name}: no labels: {[format(t, 'x') for t in tables - own]}")
    return errors, checked


def check_compilers(tool):
    errors, checked = [], 0
    # argument() and method() are called from nowhere: their arguments may be anything.
    uncalled = ("argument", "method")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for compiler, level, link, cet in itertools.product(
                ("gcc", "clang", "clang-14", "clang-19"), ("-O0", "-O2", "-Os"),
                (("-fPIC", "-shared"), ("-fPIE", "-pie"), ("-fno-pic", "-no-pie")),
                ("none", "full")):
            if not shutil.which(compiler):
                continue
            flags = (level, *link, f"-fcf-protection={cet}")
            new, count = check_labels(tool, folder, "flow_switches.c", case_labels,
                                      "jump table|relocation|word|lea", (compiler, *flags), uncalled)
            errors += new
            checked += count
            if cet == "full":
                continue
            new, count = check_labels(tool, folder, "flow_throws.cc", landing_pads, "landing pad",
                                      (compiler, *flags))
            errors += new
            checked += count
    if checked < 500:
        errors.append(f"only {checked} labels were found in what the compilers wrote")
    print(f"compilers: {checked} labels")
    return errors


BRANCH = re.compile(r"(?:[a-zA-Z0-9.]+ )*?(?:j\w+|call\w*|loop\w*|xbegin)\s+(?:0x)?([0-9a-f]+)(?: <|$)")
RIP = re.compile(r"\(%rip\).*# (?:0x)?([0-9a-f]+)")


def objdump(file, start, end):
    code = {}
    text = run("objdump", "-dw", "--no-show-raw-insn", f"--start-address={start}",
               f"--stop-address={end}", file)
    for line in text.splitlines():
        if m := re.match(r"\s*([0-9a-f]+):\t(.*)", line):
            branch, rip = BRANCH.match(m[2]), RIP.search(m[2])
            code[int(m[1], 16)] = (branch[1] if branch else "-", rip[1] if rip else "-")
    return code


def check_file(tool, file):
    notes = subprocess.run(["readelf", "-nW", file], capture_output=True, text=True).stdout
    sites = [int(a, 16) for a in re.findall(r"^\s+Location: (0x[0-9a-f]+)", notes, re.M)]
    if not sites:
        return [f"{file}: no probes"]
    errors, instructions = [], 0
    for flow in flows(tool, file, sites):
        truth = objdump(file, flow.start, flow.padded)
        instructions += len(truth)
        if not flow.complete:
            errors.append(f"{file}: {flow.start:x}: {flow.why}")
        for address in sorted(truth.keys() | flow.code.keys()):
            if truth.get(address) != flow.code.get(address):
                errors.append(f"{file}: {address:x}: objdump {truth.get(address)}, "
                              f"we {flow.code.get(address)}")
                break
    print(f"{file}: {len(sites)} sites, {instructions} instructions")
    return errors


def main(tool, *files):
    if not shutil.which("gcc") or not shutil.which("objdump"):
        print("SKIP: no gcc or objdump")
        return 77
    errors = check_compilers(tool)
    for file in files:
        errors += check_file(tool, file)
    print(f"{len(UNDOUBTED)} functions, {len(DOUBTFUL)} more that a word of data leads into and that "
          "are therefore not understood")
    if len(DOUBTFUL) * 40 > len(UNDOUBTED):
        errors.append("too many are not understood")
    print("\n".join(errors[:50]))
    return 1 if errors else 0


sys.exit(main(*sys.argv[1:]))
