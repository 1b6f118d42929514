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


def trace(file, keys, command):
    """What the program printed, and the hits of all these probes in one run: None where bpftrace
    attaches nothing."""
    probes = " ".join(f'usdt:{file}:{provider}:{name} {{ @["{provider}", "{name}"] = count(); }}'
                      for provider, name in keys)
    # Not with -c: it attaches before the program has loaded its shared objects. BEGIN runs when all
    # is attached; its string may not be longer than 63 bytes.
    said = run("bpftrace", "--unsafe", "-e", f'BEGIN {{ system("$COMMAND"); exit(); }} {probes}',
               env={"COMMAND": shlex.join(command)})
    if "Attaching " not in said.stdout or "ERROR: Error attaching" in said.stderr:
        return said.stdout + said.stderr, None
    hits = {(m[1], m[2]): int(m[3]) for m in _HITS.finditer(said.stdout)}
    return said.stdout, {key: hits.get(key, 0) for key in keys}


def counts(file, keys, command):
    _, together = trace(file, keys, command)
    if together:
        return together
    alone = {key: trace(file, [key], command)[1] for key in keys}
    return {key: hits[key] if hits else REFUSED for key, hits in alone.items()}
