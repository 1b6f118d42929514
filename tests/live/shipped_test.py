#!/usr/bin/env python3
"""shipped_test.py REPROBE [--all]: what `fix` makes of files as they are shipped has nothing left that `fix`
would mend. A sample of the files with probes that are on the machine; --all: every one under /usr and /opt.
Which files have probes is readelf's word."""
import glob
import json
import mmap
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
from command import Tests  # noqa: E402

SAMPLE = ["/usr/lib/*/libstdc++.so.6", "/usr/lib/*/libpython3.*.so.1.0", "/usr/lib/*/libbpf.so.1",
          "/usr/lib/*/libbcc.so.0", "/usr/lib/postgresql/*/bin/postgres", "/usr/bin/ld.gold", "/usr/bin/*-gcov-1*",
          "/usr/lib/*/libc.so.6", "/usr/lib/*/ld-linux*.so.*", "/usr/lib/systemtap/*", "/usr/bin/*-dwp"]
MOST = 16 << 20  # of a file of the sample


def everything():
    for top in ("/usr", "/opt"):
        for folder, _, names in os.walk(top):
            yield from (os.path.join(folder, name) for name in names)


def candidates(paths):
    """Files that have ".note.stapsdt" or ".probes" among their names, each once."""
    known = set()
    for path in paths:
        try:
            file = os.stat(path)
            if (file.st_dev, file.st_ino) in known or not os.path.isfile(path) or file.st_size < 64:
                continue
            known.add((file.st_dev, file.st_ino))
            with open(path, "rb") as opened:
                if opened.read(4) != b"\x7fELF":
                    continue
                with mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as bytes_of:
                    if bytes_of.find(b".note.stapsdt") >= 0 or bytes_of.find(b".probes\0") >= 0:
                        yield os.path.realpath(path)
        except OSError:
            continue


def notes(path):
    said = subprocess.run(["readelf", "-nW", path], capture_output=True, text=True, errors="replace")
    return said.stdout.count("NT_STAPSDT")


def mendable(findings, refused):
    """What the audit says that fix would mend, and fix has not said that it cannot."""
    return [f"{finding['severity']} {finding['rule']}: {finding['message']}" for finding in findings
            if finding["severity"] != "note" and "reprobe fix" in finding.get("hint", "")
            and not any(reason.startswith(finding["rule"]) for reason in refused)]


def check(tests, path):
    result = tests.run("fix", "--json", "--second-opinion=never", path, "-o", "fixed", timeout=600)
    if not tests.check(f"{path}: fix", result.code in (0, 4), result.text()):
        return
    document = json.loads(result.out)
    error = document.get("error", {})
    tests.check(f"{path}: a refusal has its reason", result.code == 0 or document.get("refused") or error.get("message"),
                result.out)
    fixed = "fixed" if os.path.exists("fixed") else path
    audit = json.loads(tests.run("audit", "--json", fixed, timeout=600).out)
    refused = [refusal["reason"] for refusal in document.get("refused", [])]
    for entry in audit["files"]:
        tests.same(f"{path}: nothing is left that fix would mend", [], mendable(entry["findings"], refused))
    tests.same(f"{path}: every note that was not removed", notes(path) - len(document.get("removed", [])), notes(fixed))
    if os.path.exists("fixed"):
        os.unlink("fixed")


def main():
    tests = Tests(sys.argv[1])
    if "--all" in sys.argv:
        paths = everything()
    else:
        paths = (path for pattern in SAMPLE for path in sorted(glob.glob(pattern))
                 if os.path.exists(path) and os.path.getsize(path) <= MOST)
    with_probes = 0
    for path in candidates(paths):
        if notes(path):
            with_probes += 1
            check(tests, path)
    tests.check("some file has probes", with_probes > 0)
    print(f"{with_probes} files with probes")
    tests.finish()


main()
