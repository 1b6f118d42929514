"""BOLT: rewrites the file and moves the notes with the code."""
from common import run

PROGRAM = "llvm-bolt-19"
CONSUMER = "bolt"


def update(file, output, *options):
    """Empty if the file was written, or what BOLT says."""
    result = run(PROGRAM, file, "-o", output, *options)
    return "" if result.returncode == 0 else f"exit {result.returncode}: {result.stderr[-300:]}"
