#!/usr/bin/python3
"""large_file.py REPROBE [MEGABYTES]: `reprobe fix` of a large program against `cp` and fsync.

Links a program with dead probes and 400 MB of data, repairs it to another file, and prints the wall
time of both, several times in turn, and the most anonymous memory (RssAnon) that fix has held. The
times are those of the machine at that moment: the ratio of the best of each is what counts.
"""
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

ROUNDS = 5
tool = os.path.abspath(sys.argv[1])
megabytes = int(sys.argv[2]) if len(sys.argv) > 2 else 400
source = pathlib.Path(__file__).resolve().parents[2] / "fixtures" / "demo" / "demo.c"


def anonymous_memory(pid):
    """In KiB; 0 where the process is gone."""
    try:
        with open(f"/proc/{pid}/status") as status:
            return next((int(line.split()[1]) for line in status if line.startswith("RssAnon")), 0)
    except OSError:
        return 0


def copy():
    subprocess.run(["cp", "--reflink=never", "app", "copy"], check=True)
    file = os.open("copy", os.O_RDONLY)
    os.fsync(file)
    os.close(file)
    return 0


def fix():
    child = subprocess.Popen([tool, "fix", "-q", "app", "-o", "copy"])
    most = 0
    while child.poll() is None:
        most = max(most, anonymous_memory(child.pid))
        time.sleep(0.002)
    assert child.returncode == 0
    return most


def timed(work):
    if os.path.exists("copy"):
        os.unlink("copy")
    os.sync()
    start = time.monotonic()
    memory = work()
    return time.monotonic() - start, memory


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    piece = random.Random(1).randbytes(1 << 20)
    with open("data", "wb") as data:
        for _ in range(megabytes):
            data.write(piece)
    pathlib.Path("data.S").write_text('.section .data\n.globl much\nmuch: .incbin "data"\n')
    subprocess.run(["gcc", "-O2", "-ffunction-sections", "-fuse-ld=lld",
                    "-Wl,--gc-sections,--build-id=sha1,--undefined=much", source, "data.S",
                    "-o", "app"], check=True)
    os.unlink("data")
    copies, fixes = [], []
    for _ in range(ROUNDS):
        copies.append(timed(copy)[0])
        fixes.append(timed(fix))
        print(f"cp and fsync {copies[-1]:.2f} s, fix {fixes[-1][0]:.2f} s", flush=True)
    best = min(seconds for seconds, _ in fixes)
    memory = max(kib for _, kib in fixes)
    print(f"best: {best:.2f} s / {min(copies):.2f} s = {best / min(copies):.2f}; "
          f"{memory / 1024:.1f} MiB of anonymous memory")
