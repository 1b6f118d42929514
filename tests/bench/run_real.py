#!/usr/bin/env python3
"""run_real.py REPROBE ROOT [NAME...]: shipped programs under `reprobe run --count`.

The programs, their workloads and ROOT are those of sled_real.py. Each must print what the original
prints, and each probe that bpftrace counts the same in two runs of the original must be counted the
same. libjvm.so is opened by the java launcher: its sleds are put into a copy of the JDK first. Needs
root, bpftrace, and the installed interpreters. Writes one line a run; exits 1 on a failure.
"""
import json
import os
import sys

import sled_real
from sled_real import run

# Whether a thread finds a monitor taken, and waits, depends on how fast the others are; with bpftrace all
# are slower, and two such runs agree.
TIMED = "hotspot:monitor__"


class Bench(sled_real.Bench):
    def compare(self, name, original, place, command, env, kinds=(), determined=True):
        base = self.baseline(name, original, place, command, env)
        hits = base["hits"]
        made = run([self.reprobe, "sled", "-q", "--kind=slot", original, "-o", place])
        if made.returncode:
            return self.report(False, f"{name}: sled", made.stderr)
        counts = os.path.join(self.folder, "counts")
        command = [self.reprobe, "run", "-q", "--json", "-o", counts, "--", *command]
        if name.startswith("postgres"):
            # Another user's processes could not write into root's table.
            os.chmod(self.folder, 0o777)
            command = ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", *command]
            env = {**env, "AS": ""}
        found = run(command, env)
        self.report((found.returncode, found.stdout + found.stderr) == (base["exit"], base["said"]),
                    f"{name}: prints the same",
                    "" if found.stdout + found.stderr == base["said"] else (found.stdout + found.stderr)[-400:])
        with open(counts, encoding="utf-8") as text:
            counted = {probe: n for probe, n in json.load(text).items() if n}
        differ = {probe: (hits.get(probe), counted.get(probe)) for probe in {*hits, *counted}
                  if hits.get(probe) != counted.get(probe)}
        same = {probe for probe in base["same"] if not probe.startswith(TIMED)}
        wrong = same & differ.keys() if determined else base["always"] - counted.keys()
        return self.report(not wrong, f"{name}: {'hits' if determined else 'probes hit'}",
                           f"{sum(counted.values())} of {len(counted)} probes"
                           + (f"; wrong: {sorted(wrong)}" if wrong else "")
                           + (f"; differ: {differ}" if differ else ""))


if __name__ == "__main__":
    sys.exit(sled_real.main(Bench, __doc__))
