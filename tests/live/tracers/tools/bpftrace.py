"""bpftrace 0.17, which reads the notes through bcc: `-l` lists names, not places."""
import re
import shlex
from collections import Counter

from common import REFUSED, run

PROGRAM = "bpftrace"
CONSUMER = "bpftrace-0.17"
_HITS = re.compile(r"^@\[(\w+), (\w+)\]: (\d+)$", re.M)


def lists(file):
    said = run("bpftrace", "-l", f"usdt:{file}:*").stdout
    prefix = f"usdt:{file}:"
    return Counter((*line[len(prefix):].split(":"), None)
                   for line in said.splitlines() if line.startswith(prefix))


def attach(file, keys, command):
    """The hits of all these probes in one run; None where bpftrace does not come to run it."""
    script = " ".join(f'usdt:{file}:{provider}:{name} {{ @["{provider}", "{name}"] = count(); }}'
                      for provider, name in keys)
    said = run("bpftrace", "-e", script, "-c", shlex.join(command))
    if "Attaching " not in said.stdout or "ERROR: Error attaching" in said.stderr:
        return None
    hits = {(m[1], m[2]): int(m[3]) for m in _HITS.finditer(said.stdout)}
    return {key: hits.get(key, 0) for key in keys}


def counts(file, keys, command):
    together = attach(file, keys, command)
    if together:
        return together
    return {key: (attach(file, [key], command) or {key: REFUSED})[key] for key in keys}
