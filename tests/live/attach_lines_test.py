#!/usr/bin/env python3
"""attach_lines_test.py REPROBE: each line of `list --as` is run, and the tracer counts the hits.

Two probes, of which one has a counter, in programs in which address and file offset are the same or
not; the values of the arguments are compared where the form fetches them. The text and the JSON give
the same lines.
"""
import json
import os
import re
import shlex
import shutil
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tracers")]
# pylint: disable=wrong-import-position
import environment
from checks import Checks
from common import run
from process_target import build

HITS = 20
PROBES = ("values:counted", "values:plain")
VALUES = [(i, -i, 7, 100 + i) for i in range(1, HITS + 1)]
TRACEFS = environment.TRACEFS
BUILDS = {"pie": (), "no-pie": ("-no-pie",), "lld": ("-fuse-ld=lld", "-Wl,--build-id=sha1")}


def shell(line):
    return run("sh", "-c", line)


def lines(checks, reprobe, file, form):
    said = run(reprobe, "list", "--json", "--as", form, file)
    attach = json.loads(said.stdout)["files"][0]["attach"]
    text = run(reprobe, "list", "--as", form, file)
    checks.equal(f"{form}: text and JSON", text.stdout.splitlines(), [a["line"] for a in attach])
    checks.equal(f"{form}: probes", sorted(f'{a["provider"]}:{a["name"]}' for a in attach),
                 sorted(PROBES))
    # perf's reader of SDT notes, which is asked where a counter has to be raised, skips constants.
    checks.equal(f"{form}: leaves out", {a["name"]: a["left_out"] for a in attach},
                 {"plain": [], "counted": ["arg3: $7"] if form == "perf" else []})
    return attach


def numbers(text):
    return tuple(int(n, 0) for n in re.findall(r"-?\b(?:0x[0-9a-f]+|\d+)\b", text))


def signed(value, bits=64):
    return value - (1 << bits) if value >> (bits - 1) else value


def bpftrace_hits(attach, file):
    said = shell(f'{attach["line"]} -c {shlex.quote(f"{file} {HITS}")}').stdout
    name = f'{attach["provider"]}:{attach["name"]}'
    rows = [numbers(line[len(name):]) for line in said.splitlines() if line.startswith(name)]
    # bpftrace 0.17 reads what is narrower than 8 bytes without its sign.
    return [tuple(signed(v, 32) if v >> 31 == 1 else v for v in row) for row in rows]


def gdb_hits(attach, file):
    said = shell(f'{attach["line"]} -q -nx -batch -ex "ignore 1 1000" -ex "run {HITS}" '
                 '-ex "info breakpoints"').stdout
    hits = re.search(r"breakpoint already hit (\d+) times", said)
    return int(hits[1]) if hits else said[-300:]


def remove_event(event):
    fd = os.open(f"{TRACEFS}/uprobe_events", os.O_WRONLY | os.O_APPEND)
    os.write(fd, f"-:{event.replace(':', '/')}\n".encode())
    os.close(fd)


def tracefs_hits(attach, file):
    """Read in an instance of its own: what others do with the trace does not matter."""
    made = shell(attach["line"])
    if made.returncode:
        return made.stderr
    instance = f"{TRACEFS}/instances/reprobe-attach-{os.getpid()}"
    os.mkdir(instance)
    enable = f"{instance}/events/{attach['event'].replace(':', '/')}/enable"
    try:
        for value in ("1", "0"):
            with open(enable, "w", encoding="utf-8") as event:
                event.write(value)
            if value == "1":
                run(file, str(HITS))
        with open(f"{instance}/trace", encoding="utf-8") as trace:
            found = re.findall(rf": {attach['event'].split(':')[1]}: \(\S+\)(.*)", trace.read())
        return [numbers(re.sub(r"arg\d+=", "", row)) for row in found]
    finally:
        os.rmdir(instance)
        remove_event(attach["event"])


def trace_cmd_hits(attach, file):
    data = file + ".dat"
    try:
        made = shell(f'{attach["line"]} -o {data} {file} {HITS}')
        if made.returncode:
            return made.stderr
        said = run("trace-cmd", "report", "-R", "-i", data).stdout
    finally:
        remove_event(attach["event"])
        switch_tracing_on()
    found = re.findall(rf"{attach['event'].split(':')[1]}: .*?(arg1=.*)", said)
    # Raw fields: each is the bits of its own type.
    rows = [numbers(re.sub(r"arg\d+=", "", row)) for row in found]
    bits = (32, 32, 32, 64)
    return [tuple(signed(v & ((1 << b) - 1), b) for v, b in zip(row, bits)) for row in rows]


def switch_tracing_on():
    """trace-cmd switches it off at its end."""
    with open(f"{TRACEFS}/tracing_on", "w", encoding="utf-8") as switch:
        switch.write("1")


def trace_cmd_records():
    """It insists on function tracing, which a sandbox may deny: then it records nothing at all."""
    made = run("trace-cmd", "record", "-q", "-e", "sched:sched_switch", "-o", "/dev/null", "true")
    switch_tracing_on()
    return "Operation not permitted" not in made.stderr


def perf_hits(attach, file):
    home = {"HOME": file + ".home"}  # perf keeps its cache there, by name and not by file
    os.makedirs(home["HOME"], exist_ok=True)
    made = run("sh", "-c", attach["line"], env=home)
    if made.returncode:
        return made.stderr
    data = file + ".perf"
    try:
        run("perf", "record", "-q", "-e", attach["event"], "-o", data, file, str(HITS), env=home)
        said = run("perf", "script", "-i", data, "-F", "trace", env=home).stdout
        return [numbers(re.sub(r"arg\d+=", "", line.partition(")")[2]))
                for line in said.splitlines() if line.strip()]
    finally:
        run("perf", "probe", "-d", attach["event"], env=home)


ODD_NAMES = """
  .text
  .globl main
main:
first: nop
second: nop
third: nop
fourth: nop
  xor %eax, %eax
  ret
  .section .stapsdt.base, "aG", "progbits", .stapsdt.base, comdat
  .weak _.stapsdt.base
  .hidden _.stapsdt.base
_.stapsdt.base: .space 1
  .section .note.GNU-stack, "", @progbits
  .section .note.stapsdt, "", "note"
"""


def check_odd_names(checks, reprobe, folder):
    """Of names and paths that a form does not take there is no line; two events are never one."""
    checks.name = "odd names"
    notes = [("first", "x", "8@$18446744073709551615"), ("second", "x", "1@%ah"),
             ("third", "x_2", ""), ("fourth", "a b:c%", "")]
    text = ODD_NAMES
    for i, (site, name, arguments) in enumerate(notes):
        text += (f"  .balign 4\n  .long 8, 2{i}2f - 1{i}1f, 3\n  .asciz \"stapsdt\"\n"
                 f"1{i}1: .quad {site}, _.stapsdt.base, 0\n  .asciz \"odd\"\n"
                 f"  .asciz \"{name}\"\n  .asciz \"{arguments}\"\n2{i}2: .balign 4\n")
    source, file = os.path.join(folder, "odd.s"), os.path.join(folder, "odd names")
    with open(source, "w", encoding="utf-8") as out:
        out.write(text)
    checks.equal("builds", run("gcc", source, "-o", file).returncode, 0)
    plain = shutil.copy(file, os.path.join(folder, "odd-names"))

    def attach(form, path):
        said = run(reprobe, "list", "--json", "--as", form, path)
        return json.loads(said.stdout)["files"][0]["attach"]

    events = [a["event"] for a in attach("tracefs", plain)]
    checks.equal("events", events, ["odd:x", "odd:x_2", "odd:x_2_2", "odd:a_b_c_"])
    checks.equal("left out", attach("tracefs", plain)[0]["left_out"],
                 ["arg1: $18446744073709551615"])
    for form in ("tracefs", "perf", "ftrace-trace-cmd"):
        checks.equal(f"{form}: a blank in the path", [a.get("refused") for a in attach(form, file)],
                     ["the kernel does not take the file's path"] * 4)
    checks.equal("gdb", [a.get("refused") for a in attach("gdb", file)],
                 [None, None, "gdb does not take the probe's name"])
    lines = [a["line"] for a in attach("bpftrace", file)]
    checks.true("quoted", f'"{file}":odd:"a b:c%"' in lines[-1], lines)


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    environment.need_kernel()
    environment.need_tools(["gcc", "bpftrace", "gdb", "perf", "trace-cmd", "ld.lld"])
    reprobe = os.path.abspath(sys.argv[1])
    checks = Checks()
    forms = {"bpftrace": (bpftrace_hits, VALUES), "gdb": (gdb_hits, HITS),
             "tracefs": (tracefs_hits, VALUES), "ftrace-trace-cmd": (trace_cmd_hits, VALUES),
             "perf": (perf_hits, VALUES)}
    if not trace_cmd_records():
        # The event that its line makes is the one of "tracefs", which is recorded below.
        print("NOTE: trace-cmd may not record here: its lines are compared with those of tracefs")
        del forms["ftrace-trace-cmd"]
    with tempfile.TemporaryDirectory(prefix="reprobe-attach-") as folder:
        check_odd_names(checks, reprobe, folder)
        for name, options in BUILDS.items():
            file = build(folder, "values.c", f"values-{name}", *options)
            run(reprobe, "fix", file)  # gdb needs the base that lld drops
            for form, (hits, expected) in forms.items():
                for attach in lines(checks, reprobe, file, form):
                    what = f'{name}: {form}: {attach["name"]}'
                    values = [v[:2] + v[3:] for v in VALUES] if attach["left_out"] else expected
                    checks.equal(what, hits(attach, file), values)
            if "ftrace-trace-cmd" not in forms:
                expected = [f'{a["line"]} && trace-cmd record -e {a["event"]}'
                            for a in lines(checks, reprobe, file, "tracefs")]
                found = [a["line"] for a in lines(checks, reprobe, file, "ftrace-trace-cmd")]
                checks.equal(f"{name}: ftrace-trace-cmd", found, expected)
    return checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
