"""A process to look at, and what reprobe says of it."""
import json
import os
import re
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
# pylint: disable=wrong-import-position
import schema
from common import run

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = os.path.join(HERE, "process_programs")


def build(folder, source, name, *options):
    out = os.path.join(folder, name)
    made = run("gcc", "-O2", os.path.join(PROGRAMS, source), "-o", out, *options)
    if made.returncode:
        raise SystemExit(f"FAILED: {name}: {made.stderr}")
    return out


class Target:
    """The program target.c, started; ends with the block."""

    def __init__(self, *command, **options):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, **options)
        self.ready = self.process.stdout.readline().strip()

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    @property
    def pid(self):
        return self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def listed(reprobe, pid, *options):
    """(exit code, the process's JSON, what was said on stderr)"""
    said = run(reprobe, "list", "--json", "--pid", str(pid), *options)
    try:
        document = json.loads(said.stdout)
        wrong = schema.violations(document)
        if wrong:
            raise SystemExit(f"FAILED: docs/schema.json: {wrong}")
        processes = document["processes"]
    except (ValueError, KeyError):
        processes = []
    return said.returncode, processes[0] if processes else {}, said.stderr


def probes(process):
    """{(file, probe): its JSON}; of sites of one name the last."""
    return {(os.path.basename(file["path"]), f'{p["provider"]}:{p["name"]}'): p
            for file in process.get("files", []) for p in file["probes"]}


def sites(file):
    """{probe: address in the file} as readelf says."""
    said = run("readelf", "-nW", file).stdout
    found = re.findall(r"Provider: (\S+)\s+Name: (\S+)\s+Location: (0x[0-9a-f]+)", said)
    return {f"{provider}:{name}": int(at, 16) for provider, name, at in found}


def load_address(pid, file):
    """Where the kernel mapped the file's first page."""
    inode = os.stat(file).st_ino
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        for line in maps:
            fields = line.split()
            if int(fields[4]) == inode and int(fields[2], 16) == 0:
                return int(fields[0].split("-")[0], 16)
    return None
