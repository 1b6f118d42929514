"""Asks every tool about every fixture, and holds the audit's verdicts against the answers."""
import os
import shutil
from collections import Counter
from dataclasses import dataclass

import elfparts
import truth
from fixtures import HITS
from tools import bpftrace, eu_readelf, gdb, libbpf, perf, readelf, systemtap, tplist

# In the table's order. A tool lists by address, by offset in the file or by name alone.
BY_ADDRESS, BY_OFFSET, BY_NAME = "address", "offset", "name"
LISTED = {"readelf": BY_ADDRESS, "eu-readelf": BY_ADDRESS, "gdb": BY_ADDRESS, "systemtap": BY_ADDRESS,
          "bcc": BY_ADDRESS, "bpftrace": BY_NAME, "perf": BY_OFFSET}
TOOLS = ["readelf", "eu-readelf", "gdb", "systemtap", "perf", "bcc", "bpftrace", "libbpf"]


@dataclass
class Result:
    listed: Counter = None  # (provider, name, place); None: the tool has no list
    hits: dict = None  # (provider, name) -> hits or REFUSED; None: the tool is not asked to count


def find_sites(fixtures):
    """The sites and the dead names of each, from readelf's view of the twin's symbols and notes."""
    twins = sorted({f.twin for f in fixtures})
    files = dict(zip(twins, truth.load(twins)[0]))
    for f in fixtures:
        twin = files[f.twin]
        f.sites = {key: sorted(places) for key, places in twin.sites.items() if key[1] not in f.lost}
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
    return next(v - o for t, _, o, v, _, _, size, _ in loads if t == 1 and v <= address < v + size)


class Bench:
    def __init__(self, folder):
        self.folder = folder
        self.tree = os.path.join(folder, "tree")
        systemtap.build_tree(self.tree)
        if problem := libbpf.build(folder):
            raise SystemExit(f"FAILED: libbpf_attach: {problem}")

    def cannot_trace(self, f):
        """Where a file without any fault cannot be traced, it is the environment."""
        keys = list(f.sites)
        for tool, hits in {"libbpf": libbpf.counts(f.path, keys, f.command, self.folder),
                           "bpftrace": bpftrace.counts(f.path, keys, f.command)}.items():
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
        cache = os.path.join(self.folder, "perf", f.name.replace(" ", "-"))
        shutil.rmtree(cache, ignore_errors=True)
        os.makedirs(cache)
        return {
            "readelf": Result(readelf.lists(f.path)),
            "eu-readelf": Result(eu_readelf.lists(f.path)),
            "gdb": Result(gdb.lists(f.path), gdb.counts(f.path, keys, f.command)),
            "perf": Result(perf.lists(f.path, cache), perf.counts(f.path, keys, f.command, cache)),
            "bcc": Result(tplist.lists(f.path)),
            "bpftrace": Result(bpftrace.lists(f.path), bpftrace.counts(f.path, keys, f.command)),
            "libbpf": Result(None, libbpf.counts(f.path, keys, f.command, self.folder)),
        }


def same(first, second):
    with open(first, "rb") as one, open(second, "rb") as other:
        return one.read() == other.read()


def compare_audit(test, f, stage, results, consumers):
    pass
