"""gdb: `info probes stap`, and the hits of `break -probe-stap`."""
import re
from collections import Counter

from common import REFUSED, run

PROGRAM = "gdb"
CONSUMER = "gdb"
_PROBE = re.compile(r"stap +(\S+) +(\S+) +0x([0-9a-f]+) ", re.M)


def gdb(*commands, arguments=()):
    options = [part for command in commands for part in ("-ex", command)]
    return run("gdb", "-nx", "-batch", *options, *arguments)


def lists(file):
    return Counter((m[1], m[2], int(m[3], 16))
                   for m in _PROBE.finditer(gdb("info probes stap", arguments=[file]).stdout))


def counts(file, keys, command):
    """A breakpoint a probe, passed as often as it is hit."""
    breakpoints = []
    for number, (provider, name) in enumerate(keys, 1):
        breakpoints += [f"break -probe-stap {provider}:{name}", f"ignore {number} 1000000"]
    said = gdb("set confirm off", "set breakpoint pending on", *breakpoints, "run",
               "info breakpoints", arguments=["--args", *command])
    hits, number = {}, 0
    for line in said.stdout.partition("\nNum ")[2].splitlines():
        if m := re.match(r"(\d+) ", line):
            number = int(m[1])
            hits[number] = REFUSED if "<PENDING>" in line else 0
        elif m := re.match(r"\s+breakpoint already hit (\d+) time", line):
            hits[number] = int(m[1])
    return {key: hits.get(number, REFUSED) for number, key in enumerate(keys, 1)}
