#!/usr/bin/env python3
"""process_odd_test.py REPROBE: `list --pid` of processes that do what few do, or mean ill.

Code that was moved, copied to memory of no file, unmapped or mapped as a whole; a file cut short
under its mapping, names that look like the kernel's own words, special files, tens of thousands of
mappings, mappings that change meanwhile, a first thread that has ended, another device number than
stat() says. What is said is compared with the address that the process itself knows, and nothing
ends the listing of the others. Needs root.
"""
import json
import os
import shutil
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tracers")]
# pylint: disable=wrong-import-position
import environment
from checks import Checks
from common import run
from process_target import Target, build, listed, sites

NOBODY = 65534
PROBE = "plug:plugged"


def plugged(process):
    """[(path, deleted, address, armed, how), ...] of the library's probe."""
    return [(f["path"], f.get("deleted", False), p.get("address"), p["armed"], p.get("how"))
            for f in process.get("files", []) for p in f["probes"] if p["provider"] == "plug"]


def check_code(checks, reprobe, odd, library, folder):
    site = sites(library)[PROBE]
    other = "other memory is in the place of its code"
    expected = {"plain": ("no", None), "moved": ("no", None), "whole": ("no", None),
                "headless": ("no", None), "no-code": None, "anonymous": ("no", None),
                "copied": ("unknown", other), "shifted": ("no", None)}
    for how, state in expected.items():
        checks.name = how
        with Target(odd, how, library) as process:
            code, seen, said = listed(reprobe, process.pid)
            found = plugged(seen)
            # A file that nobody maps as code has no probes to trace.
            at = hex(int(process.ready, 16) + site)
            wanted = [(library, False, at, *state)] if state else []
            checks.equal("probe", (code, found, said), (0, wanted, ""))
    checks.name = "cut short"
    short = shutil.copy(library, os.path.join(folder, "short.so"))
    with Target(odd, "cut", short) as process:
        code, seen, said = listed(reprobe, process.pid)
        checks.equal("is no crash", (code in (0, 3), plugged(seen)), (True, []))
        checks.true("says so", code == 0 or "short.so" in said, said)


def check_segments(checks, reprobe, odd, folder):
    """A page of the file may hold the ends of several segments: it is at one place all the same."""
    shared = ("-shared", "-fPIC")
    script = os.path.join(HERE, "process_programs", "two_codes.ld")
    lld = build(folder, "plug.c", "lld.so", *shared, "-fuse-ld=lld")
    two = build(folder, "plug.c", "two.so", *shared, "-ffunction-sections", f"-Wl,-T,{script}",
                "-Wl,-z,noseparate-code", "-Wl,--no-eh-frame-hdr")
    last = build(folder, "last_byte.S", "last.so", "-shared", "-nostdlib")
    for how, file in (("implied", lld), ("plain", lld), ("plain", two), ("half", last)):
        checks.name = f"{how} {os.path.basename(file)}"
        with Target(odd, how, file) as process:
            code, seen, said = listed(reprobe, process.pid)
            at = hex(int(process.ready, 16) + sites(file)[PROBE])
            checks.equal("probe", (code, plugged(seen), said),
                         (0, [(file, False, at, "no", None)], ""))
            loads = [f["load_address"] for f in seen["files"] if f["path"] == file]
            checks.equal("load address", loads, [process.ready])


def check_replaced(checks, reprobe, odd, folder):
    """Another build of the same build-id is at the path: to a user it is not the file."""
    checks.name = "replaced by a file of the same build-id"
    options = ("-shared", "-fPIC", "-Wl,--build-id=0x12345678")
    file = build(folder, "plug.c", "replaced.so", *options)
    other = build(folder, "plug.c", "other.so", *options, "-O0")
    os.chmod(folder, 0o755)
    tool = shutil.copy(reprobe, os.path.join(folder, "reprobe"))
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    with Target(odd, "plain", file, **user) as process:
        os.rename(other, file)
        said = run(tool, "list", "--json", "--pid", str(process.pid), **user)
        checks.equal("no probes of it", plugged(json.loads(said.stdout)["processes"][0]), [])
        checks.equal("says so", (said.returncode, "replaced on disk" in said.stderr), (3, True))


def check_execution(checks, reprobe, odd, library):
    """What is said of a process that executes itself all the time is of one program."""
    checks.name = "executes itself"
    with Target(odd, "again", library) as process:
        states = []
        for _ in range(20):
            _, seen, said = listed(reprobe, process.pid, "-p", "odd:*")
            states += [(p["armed"], said) for f in seen.get("files", []) for p in f["probes"]]
        checks.equal("states", set(states), {("no", "")})


def check_names(checks, reprobe, odd, library, folder):
    names = ["a\nb.so", "plug.so (deleted)", "back\\012slash.so", "\x1b[31mred.so", "blank in.so"]
    for name in names:
        checks.name = repr(name)
        path = shutil.copy(library, os.path.join(folder, name))
        with Target(odd, "plain", path) as process:
            code, seen, _ = listed(reprobe, process.pid)
            checks.equal("path", (code, [f[:2] for f in plugged(seen)]), (0, [(path, False)]))
            text = run(reprobe, "list", "--pid", str(process.pid)).stdout
            checks.true("nothing but lines", "\x1b" not in text and
                        [l for l in text.splitlines() if l.startswith("b.so")] == [], text)
            os.remove(path)
            _, seen, _ = listed(reprobe, process.pid)
            checks.equal("is gone", [f[:2] for f in plugged(seen)], [(path, True)])
            # Another file is called as the kernel calls the one that is gone.
            shutil.copy(library, path + " (deleted)")
            _, seen, _ = listed(reprobe, process.pid)
            checks.equal("is gone still", [f[:2] for f in plugged(seen)], [(path, True)])
            os.remove(path + " (deleted)")


def check_kinds(checks, reprobe, odd, library, folder):
    checks.name = "the first thread has ended"
    with Target(odd, "leaderless", library) as process:
        for _ in range(100):
            with open(f"/proc/{process.pid}/stat", encoding="utf-8") as stat:
                if ") Z " in stat.read():
                    break
            time.sleep(0.02)
        code, seen, _ = listed(reprobe, process.pid)
        checks.equal("is a process", (code, seen["kind"], [f[3] for f in plugged(seen)]),
                     (0, "process", ["no"]))
    checks.name = "the first thread has ended, the files are gone"
    gone = shutil.copy(library, os.path.join(folder, "leaderless.so"))
    with Target(odd, "leaderless", gone) as process:
        os.remove(gone)
        for _ in range(100):
            code, seen, said = listed(reprobe, process.pid)
            if seen.get("kind") == "process" and not said:
                break
            time.sleep(0.02)
        checks.equal("is read", (code, [f[:2] for f in plugged(seen)]), (0, [(gone, True)]))
    checks.name = "special file"
    with Target(odd, "device", "/dev/zero") as process:
        code, seen, said = listed(reprobe, process.pid)
        checks.equal("is left alone", (code, plugged(seen), said), (0, [], ""))
        traced = run("strace", "-f", "-e", "trace=openat,open", reprobe, "list", "--pid",
                     str(process.pid)).stderr
        opened = [l for l in traced.splitlines() if "map_files" in l and "O_PATH" not in l]
        checks.equal("is not opened", opened, [])
    checks.name = "mappings change meanwhile"
    with Target(odd, "restless", library) as process:
        at = hex(int(process.ready, 16) + sites(library)[PROBE])
        for _ in range(40):
            code, seen, said = listed(reprobe, process.pid)
            checks.true("the steady one is there", code == 0 and at in [f[2] for f in plugged(seen)],
                        (code, seen, said))
    checks.name = "thirty thousand mappings"
    with Target(odd, "many", library) as process:
        code, seen, said = listed(reprobe, process.pid)
        checks.equal("places", (code, len(plugged(seen))), (3, 1000))
        checks.true("says that there are more", "mapped at very many places" in said, said)


def check_cut_among_all(checks, reprobe, odd, library, folder):
    checks.name = "one cuts its file, all are listed"
    short = shutil.copy(library, os.path.join(folder, "short2.so"))
    with Target(odd, "cut", short), Target(odd, "plain", library) as process:
        said = run(reprobe, "list", "--json", "--pid", "all", "-p", PROBE)
        found = {p["pid"]: p for p in json.loads(said.stdout)["processes"]}
        checks.equal("the other", [f[3] for f in plugged(found.get(process.pid, {}))], ["no"])


def check_overlay(checks, reprobe, target, folder):
    """stat() and maps say different devices or inodes there; a user has nothing but the path."""
    checks.name = "overlayfs"
    for name in ("lower", "upper", "work", "merged"):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    os.chmod(folder, 0o755)
    merged = os.path.join(folder, "merged")
    shutil.copy(target, os.path.join(folder, "lower", "app"))
    tool = shutil.copy(reprobe, os.path.join(folder, "reprobe"))
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    made = run("mount", "-t", "overlay", "overlay", "-o",
               ",".join(f"{d}dir={folder}/{d}" for d in ("lower", "upper", "work")), merged)
    if made.returncode:
        print(f"NOTE: no overlayfs here: {made.stderr.strip()}")
        return
    try:
        with Target(os.path.join(merged, "app"), **user) as process:
            for who in ({}, user):
                said = run(tool, "list", "--json", "--pid", str(process.pid), **who)
                found = json.loads(said.stdout)["processes"][0]
                names = sorted(p["name"] for f in found["files"] for p in f["probes"])
                checks.equal(f"probes {bool(who)}", names, ["counted", "plain"])
                checks.equal(f"path {bool(who)}", [f["path"] for f in found["files"]],
                             [os.path.join(merged, "app")])
    finally:
        run("umount", merged)


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    environment.need_kernel()
    environment.need_tools(["gcc", "readelf", "strace", "ld.lld"])
    reprobe = os.path.abspath(sys.argv[1])
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="reprobe-odd-") as folder:
        odd = build(folder, "odd.c", "odd", "-pthread")
        library = build(folder, "plug.c", "plug.so", "-shared", "-fPIC")
        target = build(folder, "target.c", "target")
        check_code(checks, reprobe, odd, library, folder)
        check_segments(checks, reprobe, odd, folder)
        check_replaced(checks, reprobe, odd, folder)
        check_execution(checks, reprobe, odd, library)
        check_names(checks, reprobe, odd, library, folder)
        check_kinds(checks, reprobe, odd, library, folder)
        check_cut_among_all(checks, reprobe, odd, library, folder)
        check_overlay(checks, reprobe, target, folder)
    return checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
