"""eu-readelf -n, as readelf."""
import re
from collections import Counter

from common import run

PROGRAM = "eu-readelf"
_NOTE = re.compile(r"PC: (\w+), Base: \w+, Semaphore: \w+\n\s+Provider: (\w+), Name: (\w+),")


def lists(file):
    said = run("eu-readelf", "-n", file).stdout
    return Counter((m[2], m[3], int(m[1], 0)) for m in _NOTE.finditer(said))
