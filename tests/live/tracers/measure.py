"""Asks every tool about every fixture, and holds the audit's verdicts against the answers."""
import os
import shutil
from collections import Counter
from dataclasses import dataclass

import elfparts
import mutate
import truth
from common import REFUSED, run
from fixtures import HITS
from tools import bolt, bpftrace, eu_readelf, gdb, libbpf, perf, readelf, systemtap, tplist

NOP = 0x90

# In the table's order. A tool lists by address, by offset in the file or by name alone.
BY_ADDRESS, BY_OFFSET, BY_NAME = "address", "offset", "name"
LISTED = {"readelf": BY_ADDRESS, "eu-readelf": BY_ADDRESS, "gdb": BY_ADDRESS, "systemtap": BY_ADDRESS,
          "bcc": BY_ADDRESS, "bpftrace": BY_NAME, "perf": BY_OFFSET}
TOOLS = ["readelf", "eu-readelf", "gdb", "systemtap", "perf", "bcc", "bpftrace", "libbpf", "bolt"]


@dataclass
class Result:
    listed: Counter = None  # (provider, name, place); None: the tool has no list
    hits: dict = None  # (provider, name) -> hits or REFUSED; None: the tool is not asked to count
    error: str = ""  # BOLT: why there is no file, or one whose probes are other ones


def find_sites(fixtures):
    """The sites and the dead names of each, from readelf's view of the twin's symbols and notes."""
    twins = sorted({f.twin for f in fixtures})
    files = dict(zip(twins, truth.load(twins)[0]))
    for f in fixtures:
        twin = files[f.twin]
        f.sites = {key: sorted(places) for key, places in twin.sites.items() if key[1] != f.lost}
        f.passed = {key: HITS if key[1] != "gone" else 0 for key in f.sites}


def expected_list(f, how):
    with open(f.path, "rb") as file:
        loads = segments(elfparts.Elf(file.read()))
    expected = Counter()
    for key, places in f.sites.items():
        if how == BY_NAME:
            expected[(*key, None)] = 1
        for place in places if how != BY_NAME else []:
            expected[(*key, place - shift(loads, place) if how == BY_OFFSET else place)] += 1
    return expected


def segments(elf):
    offset, table = elf.program_headers()
    return [elf.get("IIQQQQQQ", at) for at in range(offset, offset + len(table), 56)]


def shift(loads, address):
    """Address minus file offset, in the segment that holds the address."""
    return next((v - o for t, _, o, v, _, _, size, _ in loads
                 if t == mutate.PT_LOAD and v <= address < v + size), 0)


class Bench:
    def __init__(self, folder):
        self.folder = folder
        self.tree = os.path.join(folder, "tree")
        systemtap.build_tree(self.tree)
        if problem := libbpf.build(folder):
            raise SystemExit(f"FAILED: libbpf_attach: {problem}")

    def hits(self, file, keys, command):
        return {"libbpf": libbpf.counts(file, keys, command, self.folder),
                "bpftrace": bpftrace.counts(file, keys, command)}

    def cannot_trace(self, f):
        """Where a file without any fault cannot be traced, it is the environment."""
        for tool, hits in self.hits(f.path, list(f.sites), f.command).items():
            if hits != f.passed:
                return f"{tool} cannot trace here: {hits}"
        return ""

    def all(self, fixtures, pool, before=None):
        """By fixture and tool. What `fix` left as it was is not measured again."""
        asked = [f for f in fixtures if not before or not same(f.path, f.original)]
        names = sorted({key for f in asked for key in f.names})
        places = systemtap.lists_all([f.path for f in asked], names, self.tree)
        results = dict(zip((f.name for f in asked), pool.map(self.one, asked, chunksize=1)))
        for f in asked:
            results[f.name]["systemtap"] = Result(places[f.path])
        return {f.name: results.get(f.name) or before[f.name] for f in fixtures}

    def one(self, f):
        keys = list(f.sites)
        cache = os.path.join(os.path.dirname(f.path), "perf")
        os.makedirs(cache)
        results = {
            "readelf": Result(readelf.lists(f.path)),
            "eu-readelf": Result(eu_readelf.lists(f.path)),
            "gdb": Result(gdb.lists(f.path), gdb.counts(f.path, keys, f.command)),
            "perf": Result(perf.lists(f.path, cache), perf.counts(f.path, keys, f.command, cache)),
            "bcc": Result(tplist.lists(f.path)),
            "bpftrace": Result(bpftrace.lists(f.path), bpftrace.counts(f.path, keys, f.command)),
            # It has no list: whether it attaches to what is dead shows only where it is asked to.
            "libbpf": Result(None, libbpf.counts(f.path, f.names, f.command, self.folder)),
        }
        # perf's cache is a hard link to the file, and `fix` refuses files with two names.
        shutil.rmtree(cache)
        results["bolt"] = Result(error=self.bolt(f, results["libbpf"].hits))
        return results

    def bolt(self, f, hits):
        """Of the file that BOLT writes: it runs, every note of a live probe is on a nop, and libbpf
        counts what it counts in BOLT's input."""
        source, out = f.path + ".input", f.path + ".bolt"
        with open(f.path, "rb") as file:
            data = bytearray(file.read())
        mutate.hide_sites(data)
        with open(source, "wb") as file:
            file.write(data)
        shutil.copymode(f.path, source)
        if bolt.update(source, out):
            return "fails"
        command = [out if part == f.path else part for part in f.command]
        if run(*command).stdout != run(*f.command).stdout:
            return "breaks it"
        now = libbpf.counts(out, f.names, command, self.folder)
        lost = {key[1] for key in f.names
                if now[key] != hits[key] and hits[key] == f.passed.get(key, REFUSED)}
        astray = {name for _, name in astray_notes(out) - astray_notes(source)}
        return f"loses {', '.join(sorted(lost | astray))}" if lost | astray else ""


def astray_notes(path):
    """The probes whose notes' places, the base's shift applied, have no nop."""
    with open(path, "rb") as file:
        elf = elfparts.Elf(file.read())
    loads = segments(elf)
    base = next((s.address for s in elf.sections if s.name == elfparts.BASE), 0)
    astray = Counter()
    for _, descsz, desc in mutate.notes(elf):
        if descsz < 24:  # a note of another owner
            continue
        location, linked, _ = elf.get("3Q", desc)
        place = location + (base - linked if base and linked else 0)
        if elf.data[place - shift(loads, place)] != NOP:
            provider = elf.string(desc + 24)
            astray[(provider, elf.string(desc + 24 + len(provider) + 1))] += 1
    return astray


def same(first, second):
    with open(first, "rb") as one, open(second, "rb") as other:
        return one.read() == other.read()


# Tool: the audit's name for it, and the steps of its failures that the tool shows here. tplist and
# stap -p2 do not attach.
ATTACHES = {"list", "attach", "semaphore", "argument", "dangling"}
FINDS = {"list", "attach", "dangling"}
JUDGED = {"gdb": ("gdb", ATTACHES), "systemtap": ("systemtap", FINDS), "perf": ("perf", ATTACHES),
          "bcc": ("bcc", FINDS), "bpftrace": ("bpftrace-0.17", ATTACHES),
          "libbpf": ("libbpf-1.1", ATTACHES)}


def did_wrong(f, tool, result):
    """The names that the tool did not list and count as it should, with what it did."""
    wrong = {}
    if result.listed is not None:
        expected = expected_list(f, LISTED[tool])
        for listed, what in ((expected - result.listed, "missing"),
                             (result.listed - expected, "listed wrongly")):
            # perf reads names out of misplaced notes.
            for provider, name in {(p, n) for p, n, _ in listed} & set(f.names):
                wrong.setdefault((provider, name), []).append(what)
    for key, hits in (result.hits or {}).items():
        if hits != f.passed.get(key, REFUSED):
            wrong.setdefault(key, []).append(f"counts {hits}" if hits != REFUSED else "refused")
    return wrong


def disagreements(f, results, consumers):
    """Where the audit does not name the probes that a tool fails, or names others."""
    for tool, (consumer, steps) in JUDGED.items():
        if consumer not in consumers:
            yield f"no verdict for {consumer}"
            continue
        did = did_wrong(f, tool, results[tool])
        said = {}
        for failure in consumers[consumer]["failures"]:
            if failure["what"] in steps and (
                    steps == ATTACHES or not failure["reason"].startswith("semaphore")):
                said.setdefault((failure["provider"], failure["name"]), []).append(
                    f"{failure['what']}: {failure['reason']}")
        for key in sorted(set(did) ^ set(said)):
            yield (f"{consumer} {':'.join(key)}: it did: {', '.join(did.get(key, ['right']))}; "
                   f"audit says: {', '.join(said.get(key, ['ok']))}")
    # BOLT refuses the file, not a probe.
    did, said = results["bolt"].error, consumers.get("bolt", {}).get("failures", [])
    if bool(did) != bool(said):
        yield (f"bolt: it did: {did or 'right'}; audit says: "
               f"{', '.join(failure['reason'] for failure in said) or 'ok'}")
