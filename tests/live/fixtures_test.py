#!/usr/bin/env python3
"""fixtures_test.py REPROBE FOLDER [SCENARIO...]: holds reprobe to the truth of every fixture.

FOLDER is what Makefile.fixtures built; SCENARIO (a glob, as in 'mass*') narrows the run. The truth
is readelf's and the symbol tables' (truth.py). Prints a line a scenario and what failed; exit 1 if
anything did.
"""
import fnmatch
import glob
import json
import multiprocessing
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import elfparts
import truth

SHIFT = 0x10000  # derive_adjust of Makefile.fixtures
BATCH = 40  # fixtures handed to one run of readelf, list and audit


@dataclass
class Fixture:
    path: str
    folder: str  # of all fixtures
    manifest: dict
    scenario: str
    before: truth.File = None
    after: truth.File = None
    fixed: str = ""
    mended: set = field(default_factory=set)  # rules whose repairs fix made
    failures: list = field(default_factory=list)
    counts: Counter = field(default_factory=Counter)

    def fail(self, text):
        # One bad rule would print a line a probe.
        if len(self.failures) < 5:
            self.failures.append(text.replace("\n", " "))

    @property
    def variant(self):
        return self.manifest.get("variant", "")

    @property
    def shifted(self):
        """objcopy --adjust-vma moves the sections and symbols by SHIFT; notes and segments stay."""
        return self.variant == "adjust"

    @property
    def second_opinion(self):
        """LIEF 0.9 compares each note with all others by their SHA-256: seconds for 3,000 notes, so
        it reads only a few of the mass fixtures."""
        few = self.manifest["toolchain"] == "gcc" and self.manifest["linker"] == "lld-19" and \
            self.manifest["mode"] == "pie" and not self.variant
        when = "auto" if few or self.manifest["scenario"] != "mass" else "never"
        return f"--second-opinion={when}"

    @property
    def runnable(self):
        return self.variant not in ("debug", "adjust") and not self.manifest["norun"]


def run(*command, timeout=120):
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace",
                              check=False, timeout=timeout, env={**os.environ, "LC_ALL": "C"})
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"not done after {timeout} s")


def collect(folder, patterns):
    fixtures = []
    for path in sorted(glob.glob(os.path.join(folder, "*", "*", "*", "*.json"))):
        with open(path, encoding="utf-8") as text:
            manifest = json.load(text)
        if manifest["refused"]:
            continue
        scenario = manifest["scenario"] + ("." + manifest["variant"] if manifest["variant"] else "")
        fixtures.append(Fixture(path[:-len(".json")], folder, manifest, scenario))
    for path in sorted(glob.glob(os.path.join(folder, "obj", "*", "*.o"))):
        name = os.path.basename(path)
        if name not in ("start.o", "start_bare.o"):
            fixtures.append(Fixture(path, folder,
                                    {"toolchain": "", "object": True, "norun": "object"}, "object"))
    if patterns:
        fixtures = [f for f in fixtures if any(fnmatch.fnmatch(f.scenario, p) for p in patterns)]
    # Alike next to alike: a batch whose readers complain is asked again file by file.
    return sorted(fixtures, key=lambda f: (f.manifest.get("object", False), f.variant))


def load_truth(batch):
    paths = [f.path for f in batch]
    twins = {f.path: os.path.join(os.path.dirname(f.path), f.manifest["twin"])
             for f in batch if f.manifest.get("twin")}
    extra = sorted(set(twins.values()) - set(paths))
    objects = batch[0].manifest.get("object", False)
    files, _ = truth.load(paths + extra, relocations=objects)
    by_path = dict(zip(paths + extra, files))
    for f in batch:
        f.before = by_path[f.path]
        if objects:
            continue
        twin = by_path[twins[f.path]] if f.path in twins else None
        truth.judge(f.before, twin, f.manifest["scenario"] == "demo", f.shifted)
        check_truth(f, twin or f.before)


def check_truth(f, symbols):
    """The truth held against the sources: a mistake here is one of the fixtures or of truth.py."""
    scenario, linker = f.manifest["scenario"], f.manifest["linker"]
    for note in f.before.notes:
        if "dead" in note.name and note.status != "dead" and linker != "bfd" and f.manifest["gc"]:
            f.fail(f"truth: {note} is dead in the source")
    # SHF_LINK_ORDER notes go with one of two folded functions.
    if scenario not in ("icf-o", "demo") and not f.shifted:
        for key, address in truth.orphan_sites(symbols):
            f.fail(f"truth: no note for the live site {key[0]}:{key[1]} at {address:#x}")
    if scenario in ("plain", "demo", "mass") and not any(n.status == "live" for n in f.before.notes):
        f.fail("truth: no live note")


def documents(reprobe, command, paths):
    """The files' objects of one --json run over the paths; exit status and stderr besides."""
    result = run(reprobe, command, "--json", *paths)
    try:
        files = {entry["path"]: entry for entry in json.loads(result.stdout)["files"]}
    except (ValueError, KeyError) as error:
        files = {}
        result.stderr += f" ({command} --json: {error!r})"
    return files, result


def number(probe, name):
    return int(probe.get(name, "0x0"), 16)


def check_list(f, entry, file):
    if entry is None:
        if file.notes:
            f.fail("list: the file is not in the document")
        return
    probes = entry["probes"]
    if len(probes) != len(file.notes):
        f.fail(f"list: {len(probes)} probes, readelf has {len(file.notes)}")
        return
    for note, probe in zip(file.notes, probes):
        said = (probe["provider"], probe["name"], probe["arguments_text"])
        if said != (note.provider, note.name, note.arguments):
            f.fail(f"list: {note} is {said}")
        site = number(probe, "site")
        if site not in ((note.location, note.location + SHIFT) if f.shifted else (note.address,)):
            f.fail(f"list: site {site:#x} of {note}, expected {note.address:#x}")
        if file.relocatable:
            if note.section and probe.get("section") != note.section and \
                    not symbol_in(file, note.section, probe.get("section")):
                f.fail(f"list: section {probe.get('section')} of {note}, expected {note.section}")
            continue
        if number(probe, "base") != note.base:
            f.fail(f"list: base {number(probe, 'base'):#x} of {note}, expected {note.base:#x}")
        moved = SHIFT if f.shifted and note.semaphore else 0
        if number(probe, "semaphore") not in (note.semaphore, note.semaphore + moved):
            f.fail(f"list: semaphore {number(probe, 'semaphore'):#x} of {note}, "
                   f"expected {note.semaphore:#x}")
        f.counts[f"{note.status}-{probe['verdict']}"] += 1


def symbol_in(file, symbol, section):
    """ET_REL: the relocation may name a label (riscv, weak labels) instead of the section."""
    return section is not None and all(s.name != symbol for s in file.sections)


def check_verdicts(f, entry):
    """What list says of the notes, against the truth."""
    for note, probe in zip(f.before.notes, entry["probes"] if entry else []):
        if note.status == "live" and probe["verdict"] == "dangling":
            f.fail(f"list: the live {note} is called dangling: {probe.get('evidence')}")
        if note.status == "dead" and probe["verdict"] == "live" and f.manifest["scenario"] == "mass":
            f.fail(f"list: the dead {note} is called live: {probe.get('evidence')}")


def plan(reprobe, path, output, *options):
    """Runs fix; whether it says it changed the file, the rules that it mended, and what went wrong."""
    result = run(reprobe, "fix", path, "-o", output, "--json", *options)
    if result.returncode not in (0, 4):
        return False, set(), f"exit {result.returncode}: {result.stderr.strip()}"
    try:
        document = json.loads(result.stdout)
        left = [r["reason"] for r in document["refused"]]
        if left or (result.returncode == 4) != bool(document["refused"]):
            return False, set(), f"exit {result.returncode}, refused: {left}"
        return document["changed"], {repair["rule"] for repair in document["repairs"]}, ""
    except (ValueError, KeyError) as error:
        return False, set(), f"--json: {error!r}"


def fix(reprobe, f, folder):
    """f.fixed is the output, or the input where nothing was to change. What was changed is repaired a
    second time, without effect; a file that was not would be the same input again."""
    output = os.path.join(folder, f.path.strip("/").replace("/", "_"))
    changed, f.mended, error = plan(reprobe, f.path, output, f.second_opinion)
    if error:
        f.fail(f"fix: {error}")
        return
    f.fixed = output if os.path.exists(output) else f.path
    if changed and f.fixed == f.path:
        f.fail("fix: says changed and writes nothing")
    before, after = read(f.path), read(f.fixed)
    if changed == (before == after):
        f.fail(f"fix: changed is {changed}, the bytes say otherwise")
    if difference := elfparts.strange_difference(before, after) or elfparts.strange_base(after):
        f.fail(f"fix: {difference}")
    if os.stat(f.path).st_mode != os.stat(f.fixed).st_mode:
        f.fail("fix: the mode changed")
    if before == after:
        return
    again = output + ".again"
    changed_again, _, error = plan(reprobe, f.fixed, again, "--second-opinion=never")
    if error or changed_again:
        f.fail(f"second fix: {error or 'changed the file again'}")
    elif os.path.exists(again) and read(again) != after:
        f.fail("second fix: says unchanged and writes other bytes")
    if os.path.exists(again):
        os.unlink(again)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def counter(f, note):
    """A field that names no data of the file, as gold leaves it where nothing reads the counter,
    becomes 0: libbpf refuses it."""
    data = any(s.address <= note.semaphore < s.address + s.size
               for s in f.before.sections if "A" in s.flags and "X" not in s.flags)
    return note.semaphore if data or f.before.relocatable or f.variant == "debug" else 0


def identity(f, note):
    if f.shifted:
        # A repair may apply the shift to the note.
        return (note.key, note.arguments, note.location % SHIFT, note.semaphore % SHIFT)
    return (note.key, note.arguments, note.address, counter(f, note))


def check_removed(f):
    """Which notes went: the rest are the input's, in its order."""
    remaining = iter(f.after.notes)
    candidate = next(remaining, None)
    kept_twins, removed = Counter(), []
    for note in f.before.notes:
        if candidate is not None and identity(f, candidate) == identity(f, note):
            candidate = next(remaining, None)
            kept_twins[(note.key, note.address)] += note.status == "twin"
        else:
            removed.append(note)
    if candidate is not None:
        f.fail(f"fix: {candidate} is not a note of the input, or not in its place")
        return
    gone = {note.index for note in removed}
    outside = []
    for note in f.before.notes:
        f.counts[note.status] += 1
        f.counts["removed"] += note.index in gone
        if note.status == "live" and note.index in gone:
            f.fail(f"fix: removed the live {note}")
        if note.status == "twin" and not kept_twins[(note.key, note.address)]:
            f.fail(f"fix: removed every note of the live site of {note}")
        if note.status == "dead" and note.index not in gone and \
                not f.before.executable_at(note.address) and f.variant != "debug" and not f.shifted:
            outside.append(note)
    # Constants that share a segment with code may look like a nop: one byte in about 200 does.
    allowed = f.counts["dead"] // 200 if "norosegment" in f.manifest["mode"] else 0
    if len(outside) > allowed:
        f.fail(f"fix: left {len(outside)} dead notes outside executable sections, as {outside[0]}")
    check_mass(f)


def check_mass(f):
    if f.manifest["scenario"] != "mass" or f.variant in ("debug", "adjust"):
        return
    dead = f.counts["dead"]
    # 1,460 of 1,500, 485 of 500: what stays stands on a nop, which nothing in the file proves to be
    # none of a probe's (clang pads functions with long ones, ppc64le and s390x between calls), or at
    # the two ends of the run of dead notes.
    left = 15 if f.manifest["toolchain"] not in ("gcc", "clang") else 40
    if f.manifest["mode"] in ("pie", "shared") and f.counts["removed"] < dead - left:
        f.fail(f"fix: removed {f.counts['removed']} of {dead} dead notes")


def note_relocations(path):
    """The relocations of the notes that are not R_*_NONE, by offset; None without a table."""
    tables = truth.load([path], relocations=True)[0][0].relocations
    for name, entries in tables:
        if name.endswith(".note.stapsdt"):
            return {r.offset: r for r in entries if not r.type.endswith("_NONE")}
    return None


def check_relocations(f):
    """--emit-relocs: the relocations still describe the notes that are there. (lld 19 writes all of
    riscv's as R_RISCV_NONE at 0: there is nothing to hold on to then.)"""
    before, after = note_relocations(f.path), note_relocations(f.fixed)
    if not before:
        return
    if after is None:
        f.fail("emitted relocations: the table of the notes is gone")
        return
    rela = f.manifest["toolchain"] not in ("armhf", "thumb", "i386")
    for note in f.after.notes:
        relocation = after.get(note.offset + 20)
        if relocation is None and note.status != "dead":
            f.fail(f"emitted relocations: none for the location of {note}")
        elif relocation and rela and relocation.value != note.location:
            f.fail(f"emitted relocations: {note} is {relocation.value:#x}")
    size = next(s.size for s in f.after.sections if s.name == ".note.stapsdt")
    for offset in after:
        if offset >= size:
            f.fail(f"emitted relocations: one at {offset:#x}, behind the notes")


def complaints(command, path):
    result = run(*command, path)
    return [line.replace(path, "FILE") for line in result.stderr.splitlines()
            if "warning" in line.lower() or "error" in line.lower()] + \
        ([f"exit {result.returncode}"] if result.returncode else [])


def check_readers(batch):
    """readelf and eu-readelf say nothing of the fixed files that they did not say of the input."""
    for command in (["readelf", "-nW"], ["eu-readelf", "-n"]):
        result = run(*command, *[f.fixed for f in batch])
        if not result.stderr and not result.returncode:
            continue
        for f in batch:
            new = Counter(complaints(command, f.fixed)) - Counter(complaints(command, f.path))
            if new:
                f.fail(f"{command[0]}: {sorted(new)[:3]}")


def check_run(f):
    command = shlex.split(f.manifest["run"])
    if f.manifest["host"]:
        command.append(os.path.join(f.folder, f.manifest["host"]))
    outputs = []
    for path in (f.path, f.fixed):
        result = run(*command, path)
        outputs.append((result.returncode, result.stdout))
        if result.returncode:
            f.fail(f"run: {path} exits {result.returncode}: {result.stderr.strip()[:200]}")
            return
    if outputs[0] != outputs[1]:
        f.fail(f"run: prints {outputs[1][1]!r}, the input {outputs[0][1]!r}")


def no_dangling(f, entry):
    for finding in entry["findings"] if entry else []:
        if finding["rule"] == "dangling":
            f.fail(f"audit: dangling {finding.get('provider')}:{finding.get('name')} "
                   f"at {finding.get('site')} is still there")


def nothing_mended_is_left(f, entry):
    """A repair is followed by an audit that does not find any more what it mended, nor what fix would without
    being told to guess (--remove-ambiguous)."""
    for finding in entry["findings"] if entry else []:
        if finding["severity"] == "note":
            continue
        if finding["rule"] in f.mended or re.search("reprobe fix(?! --)", finding.get("hint", "")):
            f.fail(f"audit: {finding['rule']} is left after fix: {finding['message'][:80]}")


def check_objects(reprobe, batch):
    listed, result = documents(reprobe, "list", [f.path for f in batch])
    audited, _ = documents(reprobe, "audit", [f.path for f in batch])
    for f in batch:
        check_list(f, listed.get(f.path), f.before)
        no_dangling(f, audited.get(f.path))
        f.counts["live"] = len(f.before.notes)
        if result.returncode:
            f.fail(f"list: exit {result.returncode}: {result.stderr.strip()[:200]}")
    return batch


def check_batch(job):
    reprobe, batch, folder = job
    load_truth(batch)
    if batch[0].manifest.get("object"):
        return report(check_objects(reprobe, batch))
    listed, result = documents(reprobe, "list", [f.path for f in batch])
    for f in batch:
        if result.returncode:
            f.fail(f"list: exit {result.returncode}: {result.stderr.strip()[:200]}")
        check_list(f, listed.get(f.path), f.before)
        check_verdicts(f, listed.get(f.path))
        fix(reprobe, f, folder)
    done = [f for f in batch if f.fixed]
    if not done:
        return report(batch)
    for f, after in zip(done, truth.load([f.fixed for f in done])[0]):
        f.after = after
    relisted, _ = documents(reprobe, "list", [f.fixed for f in done])
    audited, _ = documents(reprobe, "audit", [f.fixed for f in done])
    check_readers(done)
    for f in done:
        before_counts = Counter(f.counts)
        check_list(f, relisted.get(f.fixed), f.after)
        f.counts = before_counts
        check_removed(f)
        for note, probe in zip(f.after.notes, relisted.get(f.fixed, {}).get("probes", [])):
            f.counts["left-" + probe["verdict"]] += 1
        no_dangling(f, audited.get(f.fixed))
        nothing_mended_is_left(f, audited.get(f.fixed))
        verified = run(reprobe, "verify", f.path, f.fixed, f.second_opinion)
        if verified.returncode:
            f.fail(f"verify: exit {verified.returncode}: "
                   f"{(verified.stdout + verified.stderr).strip()[:300]}")
        if f.manifest["scenario"].startswith("emitrelocs"):
            check_relocations(f)
        if f.runnable:
            check_run(f)
        if f.fixed != f.path:
            os.unlink(f.fixed)
    return report(batch)


def report(batch):
    return [(f.scenario, f.path, f.counts, f.failures) for f in batch]


def main():
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    reprobe, folder = os.path.abspath(sys.argv[1]), sys.argv[2]
    fixtures = collect(folder, sys.argv[3:])
    groups = defaultdict(list)
    for f in fixtures:
        groups[f.manifest.get("object", False)].append(f)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="reprobe-fixtures-") as work:
        jobs = [(reprobe, group[i:i + BATCH], work) for group in groups.values()
                for i in range(0, len(group), BATCH)]
        with multiprocessing.Pool(2) as pool:
            results = [r for batch in pool.imap_unordered(check_batch, jobs) for r in batch]
    print_table(results)
    failed = sorted((path, failures) for _, path, _, failures in results if failures)
    for path, failures in failed:
        for text in failures:
            print(f"FAIL {os.path.relpath(path, folder)}: {text}")
    print(f"{len(results)} fixtures, {len(failed)} failed ({time.monotonic() - start:.0f} s)")
    return 1 if failed or not results else 0


def print_table(results):
    columns = ("live", "twin", "dead", "removed", "dead-ambiguous", "dead-live", "live-ambiguous")
    table = defaultdict(Counter)
    for scenario, _, counts, failures in results:
        table[scenario] += counts
        table[scenario]["fixtures"] += 1
        table[scenario]["failed"] += bool(failures)
    print(f"{'scenario':26} {'fixtures':>8} " + " ".join(f"{c:>14}" for c in columns) + "  failed")
    for scenario, counts in sorted(table.items()):
        print(f"{scenario:26} {counts['fixtures']:8} "
              + " ".join(f"{counts[c]:14}" for c in columns) + f"  {counts['failed']}")


if __name__ == "__main__":
    sys.exit(main())
