"""bcc's tplist: what bcc's USDT class makes of a file."""
import re
from collections import Counter

from common import run

PROGRAM = "tplist-bpfcc"
CONSUMER = "bcc"
_LINE = re.compile(r"^(\w+):(\w+) \[sema|^  location #\d+ \S+ 0x([0-9a-f]+)$", re.M)


def lists(file):
    found, key = Counter(), None
    for m in _LINE.finditer(run("tplist-bpfcc", "-l", file, "-vv").stdout):
        if m[1]:
            key = (m[1], m[2])
        else:
            found[(*key, int(m[3], 16))] += 1
    return found
