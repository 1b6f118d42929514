"""readelf -n: it prints the notes as they are, without the base's shift."""
from collections import Counter

import truth

PROGRAM = "readelf"


def lists(file):
    notes = truth.load([file])[0][0].notes
    return Counter((n.provider, n.name, n.location) for n in notes)
