#!/usr/bin/env python3
"""legacy_test.py REPROBE [NAME..]: programs with the .probes records of SystemTap up to 1.3, upgraded.

Each is linked by every linker in every form. The upgraded program prints what it printed, with and
without address randomisation, and where the pages of .probes are read-only before the first
relocation; readelf shows no relocation of .probes; readelf, gdb and bpftrace list its probes; bpftrace
counts every hit with its arguments; strace counts no system call of the old probes. Without root or
uprobes, only the untraced part runs.
"""
import itertools
import os
import re
import sys
import tempfile
from collections import Counter

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tracers")]
# pylint: disable=wrong-import-position
import environment
from checks import Checks
from common import run
from tools import libbpf, perf

FIXTURES = os.path.join(HERE, "..", "..", "fixtures")
RECORDS, END, MAIN = (os.path.join(FIXTURES, name)
                      for name in ("legacy.c", "legacy_end.c", "legacy_main.c"))
COUNT = 6  # hits of each probe of the loop

FORMS = {"uprobe1": (1, 0), "uprobe2": (2, 0), "uprobe2-counters": (2, 1), "kprobe1": (3, 0),
         "utrace1": (4, 0), "kprobe2": (5, 0), "kprobe2-counters": (5, 1)}
LINKERS = {"bfd": "-fuse-ld=bfd", "gold": "-fuse-ld=gold", "lld14": "-fuse-ld=lld",
           "lld19": "-fuse-ld=lld", "mold": "-fuse-ld=mold"}
KINDS = {"pie": "-O2 -fPIE -pie", "no-pie": "-O2 -fno-pie -no-pie", "shared": "-O2 -fPIC"}
# glibc takes DT_RELR with a symbol version that lld 14 and mold 1 do not write.
RELR = ("bfd", "lld19")
FOREIGN = {"aarch64-linux-gnu": "qemu-aarch64", "powerpc64le-linux-gnu": "qemu-ppc64le",
           "s390x-linux-gnu": "qemu-s390x"}
READ_ONLY = ["-DLEGACY_FLAGS=\"a\"", "-Wl,-z,notext"]


class Build:
    """One way to build the program. `calls`: its probes are system calls."""

    def __init__(self, name, compiler, form, options, shared=False, loaded=True):
        number, counters = FORMS[form]
        self.name, self.compiler, self.shared, self.loaded = name, compiler, shared, loaded
        self.calls = number > 2
        self.provider = "old" if number in (2, 5) else "legacy"
        self.counters = bool(counters)
        self.arguments = number != 1
        self.options = [f"-DLEGACY_FORM={number}", f"-DLEGACY_COUNTERS={counters}", *options]
        if counters and re.search("lld|mold", name):
            # Where RELRO and data share a page of the file Linux raises no counter (docs/rules.md,
            # semaphore-relro-page).
            self.options.append("-Wl,-z,separate-loadable-segments")
        self.wide = not compiler.startswith("i686")

    def make(self, folder):
        """The file with the records and the program that runs it."""
        place = os.path.join(folder, self.name.replace(" ", "_"))
        os.makedirs(place, exist_ok=True)
        # gcc knows no versions of lld, and a cross gcc no linker but its own: the one in the folder is
        # taken.
        for linker, known in (("lld-14", "lld"), ("lld-19", "lld"), ("mold", "mold")):
            if linker.replace("-", "") in self.name.split():
                os.symlink(f"/usr/bin/ld.{linker}", os.path.join(place, f"ld.{known}"))
                self.options.append(f"-B{place}")
        program = os.path.join(place, "program")
        if not self.shared:
            said = run(self.compiler, *self.options, RECORDS, MAIN, END, "-o", program)
            return program, program, said.stderr if said.returncode else ""
        library = os.path.join(place, "liblegacy.so")
        said = run(self.compiler, *self.options, "-shared", RECORDS, END, "-o", library)
        if not said.returncode:
            said = run(self.compiler, "-O2", MAIN, library, "-Wl,-rpath,$ORIGIN", "-o",
                       program)
        return library, program, said.stderr if said.returncode else ""


def builds():
    for form, linker, kind in itertools.product(FORMS, LINKERS, KINDS):
        yield Build(f"{form} {linker} {kind}", "gcc", form,
                    [*KINDS[kind].split(), LINKERS[linker]], kind == "shared")
    for form, linker in itertools.product(("uprobe1", "uprobe2", "uprobe2-counters"), LINKERS):
        for kind in ("pie", "shared"):
            yield Build(f"{form} {linker} i386-{kind}", "i686-linux-gnu-gcc", form,
                        [*KINDS[kind].split(), LINKERS[linker]], kind == "shared")
    for form, linker in itertools.product(("uprobe1", "uprobe2-counters", "kprobe2"), RELR):
        yield Build(f"{form} {linker} relr", "gcc", form,
                    [*KINDS["pie"].split(), LINKERS[linker], "-Wl,-z,pack-relative-relocs"])
    # A read-only .probes of a PIE needs DT_TEXTREL.
    for form, linker in itertools.product(("uprobe1", "uprobe2", "utrace1"), LINKERS):
        yield Build(f"{form} {linker} textrel", "gcc", form,
                    [*KINDS["pie"].split(), LINKERS[linker], *READ_ONLY])
    yield Build("uprobe1 bfd not-loaded", "gcc", "uprobe1",
                [*KINDS["no-pie"].split(), LINKERS["bfd"], "-DLEGACY_FLAGS=\"\""], loaded=False)
    for form in ("uprobe2", "kprobe1"):
        yield Build(f"{form} clang", "clang-14", form, ["-O2", "-fPIE", "-pie"])
        yield Build(f"{form} -O0", "gcc", form, ["-O0", "-fPIE", "-pie"])
        yield Build(f"{form} ibt -Os", "gcc", form, ["-Os", "-fPIE", "-pie", "-fcf-protection=full"])
        yield Build(f"{form} static", "gcc", form, ["-O2", "-static"])
        yield Build(f"{form} static-pie", "gcc", form, ["-O2", "-static-pie", "-fPIE"])
        yield Build(f"{form} now gc", "gcc", form,
                    ["-O2", "-fPIE", "-pie", "-Wl,-z,now", "-ffunction-sections"])
    for linker in LINKERS:
        yield Build(f"uprobe2 {linker} alone", "gcc", "uprobe2",
                    [*KINDS["pie"].split(), LINKERS[linker], "-DLEGACY_ALONE=1"])
        yield Build(f"utrace1 {linker} alone shared", "gcc", "utrace1",
                    [*KINDS["shared"].split(), LINKERS[linker], "-DLEGACY_ALONE=1"], True)


def expected_hits(build):
    """Counter of (probe, arguments): what the program passes."""
    hits = Counter({("begin",): 1})
    total = 7
    for i in range(COUNT):
        hits[("step", i) if build.arguments else ("step",)] += 1
        hits[("sum", i, total) if build.arguments else ("sum",)] += 1
        total = i * 3 + total
    return hits


def notes(file):
    said = run("readelf", "-n", "-W", file)
    found = re.findall(r"Provider: (\S+)\s+Name: (\S+)\s+Location: 0x(\w+), Base: \S+ Semaphore: "
                       r"0x(\w+)\s+Arguments: ?(.*)", said.stdout)
    return [(f"{p}:{n}", int(at, 16), int(counter, 16), a) for p, n, at, counter, a in found]


def sections(file):
    """name: (type, address, offset, size, flags)"""
    said = run("readelf", "-S", "-W", file).stdout
    found = re.findall(r"^\s*\[ *\d+\] (\S+) +(\S+) +([0-9a-f]+) ([0-9a-f]+) ([0-9a-f]+) \w\w +"
                       r"([A-Z]*) +\d+ +\d+ +\d+$", said, re.M)
    return {name: (kind, int(at, 16), int(offset, 16), int(size, 16), flags)
            for name, kind, at, offset, size, flags in found}


def relocations_of(file, section):
    """Addresses in the section that a relocation writes."""
    _, start, _, size, flags = sections(file)[section]
    if "A" not in flags:
        return []
    said = run("readelf", "-r", "-W", file).stdout
    places = [int(m[1], 16) for m in re.finditer(r"^ *([0-9a-f]{8,16}) ", said, re.M)]
    # RELR: readelf prints the places, one a line.
    places += [int(m[1], 16) for m in re.finditer(r"^([0-9a-f]{8,16})$", said, re.M)]
    return [place for place in places if start <= place < start + size]


def gdb_lists(file):
    said = run("gdb", "-nx", "-batch", "-ex", "info probes stap", file).stdout
    return sorted((f"{m[1]}:{m[2]}", int(m[3], 16)) for m in
                  re.finditer(r"^stap +(\S+) +(\S+) +0x([0-9a-f]+)", said, re.M))


def traced(file, build, command):
    """What the command printed, and Counter of (probe, arguments)."""
    program = ""
    for name, count in (("begin", 0), ("step", 1), ("sum", 2)):
        cast = "int64" if build.wide else "int32"
        fields = ", ".join(["0", *(f"({cast})arg{i}" for i in range(count * build.arguments))])
        program += f"usdt:{file}:{build.provider}:{name} {{ @{name}[{fields}] = count(); }}\n"
    said = run("bpftrace", "--unsafe", "-e", 'BEGIN { system("$COMMAND"); exit(); }\n' + program,
               env={"COMMAND": " ".join(command)})
    hits = Counter()
    for m in re.finditer(r"^@(\w+)\[0(.*)\]: (\d+)$", said.stdout, re.M):
        hits[(m[1], *(int(v) for v in m[2].split(",")[1:]))] = int(m[3])
    printed = [line for line in said.stdout.splitlines() if line.startswith("legacy ")]
    return printed, hits, said.stderr


def system_calls(command):
    said = run("strace", "-f", *command).stderr
    return len(re.findall(r"^(?:\[pid +\d+\] )?(?:getegid|syscall_0x\w+)\(", said, re.M))


def check_denied(checks, build, file, program, original, folder):
    """The pages of .probes are read-only before the first relocation."""
    auditor = os.path.join(folder, "deny.so")
    if not os.path.exists(auditor):
        said = run("gcc", "-O1", "-shared", "-fPIC", os.path.join(HERE, "legacy_deny.c"), "-o", auditor)
        checks.equal("the auditor is built", said.stderr, "")
    _, start, _, size, _ = sections(file)[".probes"]
    checks.equal("its pages are its own", (start % 4096, size % 4096), (0, 0))
    name = os.path.basename(file) if build.shared else ""
    denied = {"LD_AUDIT": auditor, "DENY": f"{name},{start:#x},{size:#x}"}
    said = run(program, str(COUNT), env=denied)
    checks.equal("runs where .probes cannot be written", (said.returncode, said.stdout),
                 (0, original))
    return denied


def check(checks, reprobe, build, folder, tracing):
    checks.name = build.name
    file, program, errors = build.make(folder)
    if not checks.equal("it is built", errors, ""):
        return
    original = run(program, str(COUNT))
    checks.true("the original runs", original.returncode == 0, original.stderr)
    if build.calls:
        checks.equal("the original makes system calls", system_calls([program, str(COUNT)]),
                     1 + 2 * COUNT if not build.counters else 0)
    denied = None
    if "alone" in build.name:
        _, start, _, size, _ = sections(file)[".probes"]
        denied = {"LD_AUDIT": os.path.join(folder, "deny.so"),
                  "DENY": f"{os.path.basename(file) if build.shared else ''},{start:#x},{size:#x}"}
    with open(file, "rb") as kept:
        before = kept.read()
    said = run(reprobe, "fix", file)
    if not checks.equal("the upgrade", (said.returncode, "refused" in said.stderr), (0, False)):
        print(said.stderr)
        return
    upgraded = run(program, str(COUNT))
    checks.equal("what it prints", (upgraded.returncode, upgraded.stdout), (0, original.stdout))
    fixed = run("setarch", "-R", program, str(COUNT))
    checks.equal("without randomisation", (fixed.returncode, fixed.stdout), (0, original.stdout))
    checks.equal("no relocation of .probes", relocations_of(file, ".probes"), [])
    dynamic = run("readelf", "-d", "-W", file).stdout
    checks.equal("no DT_TEXTREL", "TEXTREL" in dynamic, False)
    if build.loaded:
        checks.equal("who writes .probes", "W" in sections(file)[".probes"][4], build.counters)
    listed = notes(file)
    names = sorted(f"{build.provider}:{name}" for name in ("begin", "step", "sum"))
    checks.equal("readelf", sorted({name for name, *_ in listed}), names)
    checks.equal("counters", [bool(counter) for _, _, counter, _ in listed],
                 [build.counters] * len(listed))
    checks.equal("gdb", gdb_lists(file), sorted((name, at) for name, at, *_ in listed))
    if run("which", "eu-elflint").returncode == 0:
        with open(file + ".before", "wb") as out:
            out.write(before)
        lint = [run("eu-elflint", "--gnu-ld", name).stdout for name in (file + ".before", file)]
        new = set(re.sub(r"\[ *\d+\]", "", lint[1]).splitlines()) - set(
            re.sub(r"\[ *\d+\]", "", lint[0]).splitlines())
        checks.equal("eu-elflint", {line for line in new if "stapsdt" not in line}, set())
    again = run(reprobe, "fix", file)
    checks.true("a second time", "nothing to change" in again.stderr, again.stderr)
    if build.calls:
        checks.equal("system calls", system_calls([program, str(COUNT)]), 0)
    if denied:
        check_denied(checks, build, file, program, original.stdout, folder)
        with open(file, "rb") as kept:
            after = kept.read()
        with open(file, "wb") as out:
            out.write(before)
        checks.equal("the original does not run there",
                     run(program, str(COUNT), env=denied).returncode == 0, False)
        with open(file, "wb") as out:
            out.write(after)
    if tracing:
        seen = {m[1] for m in re.finditer(r"^usdt:\S+:(\w+:\w+)$",
                                          run("bpftrace", "-l", f"usdt:{file}:*").stdout, re.M)}
        checks.equal("bpftrace lists", sorted(seen), names)
        printed, hits, stderr = traced(file, build, [program, str(COUNT)])
        checks.equal("traced, it prints", printed, original.stdout.splitlines())
        if not checks.equal("hits", hits, expected_hits(build)):
            print(stderr[-800:])


def check_foreign(checks, reprobe, folder, triple, emulator):
    """Another machine's program, under its emulator: the arguments are only read."""
    checks.name = triple
    program = os.path.join(folder, triple)
    said = run(f"{triple}-gcc", "-O2", "-fPIE", "-pie", RECORDS, MAIN, "-o", program)
    if not checks.equal("it is built", said.stderr, ""):
        return
    command = [emulator, "-L", f"/usr/{triple}", program, str(COUNT)]
    original = run(*command)
    checks.true("the original runs", original.returncode == 0, original.stderr)
    checks.true("the original has relocations", relocations_of(program, ".probes"))
    said = run(reprobe, "fix", program)
    checks.equal("the upgrade", said.returncode, 0)
    upgraded = run(*command)
    checks.equal("what it prints", (upgraded.returncode, upgraded.stdout), (0, original.stdout))
    checks.equal("no relocation of .probes", relocations_of(program, ".probes"), [])
    listed = notes(program)
    checks.equal("readelf", {name for name, *_ in listed}, {"old:begin", "old:step", "old:sum"})
    # gdb for x86 alone takes addresses of the other byte order for something else.
    if triple != "s390x-linux-gnu":
        checks.equal("gdb", gdb_lists(program), sorted((name, at) for name, at, *_ in listed))


def check_counts(checks, build, folder, tracer):
    """libbpf or perf count every hit."""
    checks.name = f"{build.name}, {tracer.CONSUMER}"
    file = os.path.join(folder, build.name.replace(" ", "_"), "program")
    keys = [(build.provider, name) for name in ("begin", "step", "sum")]
    counts = tracer.counts(file, keys, [file, str(COUNT)], folder)
    checks.equal("hits", counts, dict(zip(keys, (1, COUNT, COUNT))))


def main():
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    if os.uname().machine != "x86_64":
        environment.skip("the programs are written for x86")
    environment.need_tools(["gcc", "clang-14", "gdb", "mold", "ld.lld-14", "ld.lld-19", "ld.gold",
                            "bpftrace", "strace", "perf", "i686-linux-gnu-gcc"])
    tracing = environment.can_trace()
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="reprobe-legacy-") as folder:
        for build in builds():
            if len(sys.argv) == 2 or build.name in sys.argv[2:]:
                check(checks, os.path.abspath(sys.argv[1]), build, folder, tracing)
                if tracing and build.name in ("uprobe2 lld19 pie", "kprobe1 bfd pie"):
                    checks.equal("libbpf_attach is built", libbpf.build(folder), "")
                    check_counts(checks, build, folder, libbpf)
                    check_counts(checks, build, folder, perf)
        if len(sys.argv) == 2 or "foreign" in sys.argv[2:]:
            for triple, emulator in FOREIGN.items():
                check_foreign(checks, os.path.abspath(sys.argv[1]), folder, triple, emulator)
    print(f"{checks.passed} checks passed, {checks.failures} failed", flush=True)
    return 1 if checks.failures else 0


if __name__ == "__main__":
    sys.exit(main())
