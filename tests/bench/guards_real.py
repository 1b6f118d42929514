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


class GuardBench(sled_real.Bench):
    def compare(self, name, original, place, command, env, kinds=(), determined=True):
        # pylint: disable=too-many-locals
        shutil.copy2(original, place)
        plain = sled_real.run(command, env)
        expected = plain.stdout + plain.stderr
        runs = [sled_real.traced(place, command, env, self.folder) for _ in range(2)]
        hits, again = runs[0][1], runs[1][1]
        same = {probe for probe in hits if hits[probe] == again.get(probe)}
        self.report(plain.returncode == 0 and runs[0][0] == expected, f"{name} original",
                    f"{sum(hits.values())} hits of {len(hits)} probes, {len(same)} of them as often "
                    f"in another run")
        made = sled_real.run([self.reprobe, "guards", "--to", "site", original, "-o", place])
        self.report(made.returncode == 0, f"{name}: guards", made.stderr.splitlines()[0])
        plain = sled_real.run(command, env)
        said = plain.stdout + plain.stderr
        out, found, attached = sled_real.traced(place, command, env, self.folder)
        self.report(said == expected, f"{name}: untraced prints the same",
                    "" if said == expected else said[-300:])
        self.report(out == expected, f"{name}: traced prints the same",
                    "" if out == expected else out[-300:])
        wrong = ({p for p in same if hits[p] != found.get(p)} if determined
                 else (hits.keys() & again.keys()) - found.keys())
        self.report(not wrong and attached == runs[0][2],
                    f"{name}: {'hits' if determined else 'probes hit'}",
                    f"{sum(found.values())} of {len(found)} probes, {attached} attached"
                    + (f"; wrong: {sorted(wrong)}" if wrong else ""))


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
