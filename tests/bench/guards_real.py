#!/usr/bin/env python3
"""guards_real.py REPROBE ROOT [NAME...]: do shipped programs whose checks look at sites work?

The programs and workloads of sled_real.py. Each runs on the original and on the rewritten copy,
untraced and with bpftrace counting all probes of the file, and must print the same; probes that the
workload hits must be the same ones, as often where it determines that. In the rewritten file
bpftrace raises no counter. Needs what sled_real.py needs. Exits 1 on a failure.
"""
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
# pylint: disable=wrong-import-position
import sled_real

SELDOM = 10


class GuardBench(sled_real.Bench):
    def compare(self, name, original, place, command, env, same_hits, clean=lambda text: text):
        said = {}
        for kind in ("original", "guards"):
            if kind == "original":
                shutil.copy2(original, place)
            else:
                made = sled_real.run([self.reprobe, "guards", "--to", "site", original, "-o", place])
                self.report(made.returncode == 0, f"{name}: guards", made.stderr.splitlines()[0])
            plain = sled_real.run(command, env)
            out, hits, attached = sled_real.traced(place, command, env, self.folder)
            said[kind] = (clean(plain.stdout + plain.stderr), clean(out), hits)
            self.report(plain.returncode == 0, f"{name} {kind}: runs",
                        f"{sum(hits.values())} hits of {len(hits)} probes, {attached} attached")
        before, after = said["original"], said["guards"]
        self.report(after[0] == before[0], f"{name}: untraced prints the same",
                    "" if after[0] == before[0] else after[0][-300:])
        self.report(after[1] == before[0], f"{name}: traced prints the same",
                    "" if after[1] == before[0] else after[1][-300:])
        differ = {probe: (before[2].get(probe, 0), after[2].get(probe, 0))
                  for probe in {*before[2], *after[2]}}
        # Where processes contend, some probes are hit now and then.
        differ = {probe: hits for probe, hits in differ.items()
                  if (hits[0] != hits[1] if same_hits else min(hits) == 0 and max(hits) > SELDOM)}
        self.report(not differ, f"{name}: {'hits' if same_hits else 'probes hit'}", str(differ or ""))


def main():
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="reprobe-guards-real-") as folder:
        bench = GuardBench(os.path.abspath(sys.argv[1]), sys.argv[2], folder)
        for name in sys.argv[3:] or ("python", "php", "ruby", "postgres"):
            getattr(bench, name)()
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
