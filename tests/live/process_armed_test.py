#!/usr/bin/env python3
"""process_armed_test.py REPROBE [STEPS [SEED]]: does `list --pid` know which sites are armed?

Two processes of one program, and a fork of the first. At each step a tracer comes or goes, or a
process forks or executes itself: bpftrace and an event of tracefs (every process of the file), perf
(one process), gdb (one process, a probe of its own). What the tracers themselves say to have armed
is what `list --pid` must say, and each must count hits. The program as it was linked, and with
every kind of sleds.
"""
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tracers")]
# pylint: disable=wrong-import-position
import environment
from checks import Checks
from common import run
from process_target import Target, build, listed, probes, sites

EVENTS = environment.TRACEFS + "/uprobe_events"
GROUP = f"reprobe_test_{os.getpid()}"
PATIENCE = 60  # seconds until a tracer has come or gone


def patiently(what, good):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if good():
            return
        time.sleep(0.05)
    raise SystemExit(f"FAILED: {what}: not within {PATIENCE} s")


def write_event(text):
    fd = os.open(EVENTS, os.O_WRONLY | os.O_APPEND)
    os.write(fd, (text + "\n").encode())
    os.close(fd)


def counter_offset(file):
    """Of target:counted: two uprobes at one place must name the same."""
    note = run("readelf", "-nW", file).stdout.partition("Name: counted")[2]
    address = int(re.search(r"Semaphore: (0x[0-9a-f]+)", note)[1], 16)
    section = re.search(r"\.probes\s+PROGBITS\s+([0-9a-f]+) ([0-9a-f]+)",
                        run("readelf", "-SW", file).stdout)
    return address - int(section[1], 16) + int(section[2], 16)


class Program:
    """A tracer that is a program: it has come once its output shows hits."""

    def __init__(self, name, command, hits):
        self.name = name
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=subprocess.STDOUT)
        patiently(f"{name} counts hits", lambda: re.search(hits, self.said()))

    def said(self):
        with open(self.log.name, encoding="utf-8", errors="replace") as log:
            return log.read()

    def leave(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(PATIENCE)
        self.log.close()


class Tracers:
    """Who traces now, and with that what must be armed."""

    def __init__(self, file):
        self.file, self.here = file, {}
        where = f"{file}:{hex(sites(file)['target:counted'])}({counter_offset(file):#x})"
        for event in ("every", "one"):
            write_event(f"p:{GROUP}/{event} {where}")

    def enable(self, on):
        path = f"{environment.TRACEFS}/events/{GROUP}/every/enable"
        with open(path, "w", encoding="utf-8") as event:
            event.write(str(int(on)))

    def toggle(self, name, pid):
        if name in self.here:
            tracer = self.here.pop(name)[1]
            return self.enable(False) if tracer is None else tracer.leave()
        if name == "tracefs":
            self.enable(True)
            self.here[name] = (None, None)
        elif name == "bpftrace":
            script = (f"usdt:{self.file}:target:counted {{ @hits = count(); }} "
                      "interval:ms:100 { print(@hits); }")
            self.here[name] = (None, Program(name, ["bpftrace", "-e", script], r"@hits: [1-9]"))
        elif name == "perf":
            command = ["perf", "stat", "-I", "100", "-e", f"{GROUP}:one", "-p", str(pid)]
            self.here[name] = (pid, Program(name, command, rf"\s[1-9]\d*\s+{GROUP}:one"))
        else:
            with open(self.file + ".gdb", "w", encoding="utf-8") as script:
                script.write("break -probe-stap target:plain\ncommands\nsilent\n"
                             "echo hit\\n\ncontinue\nend\ncontinue\n")
            command = ["gdb", "-q", "-nx", "-batch", "-p", str(pid), "-x", self.file + ".gdb"]
            self.here[name] = (pid, Program(name, command, r"(?m)^hit"))
        return None

    def armed(self, pid):
        every = "tracefs" in self.here or "bpftrace" in self.here
        return {"target:counted": every or self.here.get("perf", (None,))[0] == pid,
                "target:plain": self.here.get("gdb", (None,))[0] == pid}

    def everybody_leaves(self):
        for name in list(self.here):
            self.toggle(name, None)
        for event in ("every", "one"):
            write_event(f"-:{GROUP}/{event}")


class Walk:
    def __init__(self, checks, reprobe, file, forks):
        self.checks, self.reprobe, self.file, self.forks = checks, reprobe, file, forks
        self.tracers = Tracers(file)

    def run(self, choose, steps):
        with Target(self.file, "reap") as first, Target(self.file) as second:
            child = None
            try:
                for step in range(steps):
                    what = choose.choice(["tracefs", "bpftrace", "perf", "gdb"] +
                                         ["fork", "exec"] * self.forks)
                    alone = self.tracers.here.keys() <= {"tracefs", "bpftrace"}
                    pid = choose.choice([first.pid, second.pid])
                    if what == "fork" and alone and child is None:
                        child = int(first.tell("fork"))
                    elif what == "exec" and alone:
                        self.checks.equal("executes itself", second.tell("exec"), "ready")
                    elif what in ("tracefs", "bpftrace", "perf", "gdb"):
                        self.tracers.toggle(what, pid)
                    self.look(f"step {step}, {what}", [first.pid, second.pid] +
                              [child] * (child is not None))
            finally:
                self.tracers.everybody_leaves()
            self.look("all left", [first.pid, second.pid] + [child] * (child is not None))
            for process in (first, second):
                self.checks.equal("lives", process.process.poll(), None)

    def look(self, what, pids):
        # A step agrees if every process does; a site is armed for good at its next hit.
        expected = {pid: self.tracers.armed(pid) for pid in pids}
        found = {}
        for _ in range(20):
            found = {pid: self.seen(pid) for pid in pids}
            if found == expected:
                break
            time.sleep(0.1)
        self.checks.equal(what, found, expected)
        counters = {pid: self.counter(pid) > 0 for pid in pids}
        self.checks.equal(f"{what}: counters", counters,
                          {pid: state["target:counted"] for pid, state in expected.items()})

    def seen(self, pid):
        _, process, _ = listed(self.reprobe, pid, "-p", "target:*")
        return {name: {"armed": True, "no": False}.get(p["armed"], p)
                for (_, name), p in probes(process).items()}

    def counter(self, pid):
        _, process, _ = listed(self.reprobe, pid, "-p", "target:counted")
        return next(iter(probes(process).values()))["counter"]


def main():
    if len(sys.argv) not in (2, 3, 4):
        print(__doc__, file=sys.stderr)
        return 2
    environment.need_kernel()
    environment.need_tools(["gcc", "bpftrace", "perf", "gdb"])
    reprobe = os.path.abspath(sys.argv[1])
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 36
    choose = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="reprobe-armed-") as folder:
        plain = build(folder, "target.c", "target")
        files = {"as linked": plain}
        for kind in ("nop10", "nop5", "slot"):
            files[kind] = f"{plain}-{kind}"
            # It forks, which the walk over this kind leaves out.
            allow = ["--allow-fork"] if kind == "nop5" else []
            made = run(reprobe, "sled", "--kind", kind, *allow, plain, "-o", files[kind])
            checks.equal(f"sled {kind}", made.returncode, 0)
        for name, file in files.items():
            checks.name = name
            # Linux 6.17 to 7.1 kills forked children at a traced five-byte nop.
            Walk(checks, reprobe, file, name != "nop5").run(choose, steps // len(files))
    return checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
