#!/usr/bin/env python3
"""check_script_test.py REPROBE: `reprobe check` against bpftrace itself.

Each script is given to both: what bpftrace says when it is to attach it (and to end at once), and what
`check --consumer bpftrace-0.17` says without a kernel. What bpftrace takes, check takes; what one refuses,
the other does. The faults that bpftrace does not speak of (str() of a number, a wildcard that fits nothing)
are compared with what the source of the program says.
"""

import json
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
from command import Tests, write

t = Tests(sys.argv[1])

SOURCE = r"""
#include <stdint.h>
#include <sys/sdt.h>
struct item { int a; };
__attribute__((noinline)) int work(const char *name, struct item *item, int count, uint64_t total) {
  DTRACE_PROBE(srv, idle);
  DTRACE_PROBE1(srv, opened, name);
  DTRACE_PROBE2(srv, item__read, name, item);
  DTRACE_PROBE3(srv, counted, count, total, name);
  DTRACE_PROBE4(other, counted, count, count, total, name);
  if (count > 3) DTRACE_PROBE1(srv, many, count); else DTRACE_PROBE2(srv, many, count, total);
  return count + (int)total + item->a;
}
int main(int argc, char **argv) { struct item i = {argc}; return work(argv[0], &i, argc, 3) == 99; }
"""

# Script, does check find a fault that bpftrace sees too, rules that check names. PROG is the program.
SCRIPTS = [
    ("usdt:PROG:srv:idle { printf(\"x\"); }", []),
    ("usdt:PROG:idle { printf(\"x\"); }", []),
    ("U:PROG:srv:idle { printf(\"x\"); }", []),
    ("usdt:PROG:srv:opened { printf(\"%s\", str(arg0)); }", []),
    ("usdt:PROG:srv:opened { @[arg0] = count(); }", []),
    ("usdt:PROG:srv:item__read { printf(\"%p\", arg1); }", []),
    ("usdt:PROG:srv:counted /arg0 > 1/ { @ = sum(arg1); }", []),
    ("usdt:PROG:other:counted { printf(\"%s\", str(arg3)); }", []),
    ("usdt:PROG:srv:idle, usdt:PROG:srv:opened { @ = count(); }", []),
    ("usdt:PROG:srv:* { @[probe] = count(); }", []),
    ("usdt:PROG:srv:i* { @[probe] = count(); }", []),
    ("usdt:PROG:*:counted { @ = sum(arg1); }", []),
    ("// usdt:PROG:srv:none { }\nusdt:PROG:srv:idle { @ = 1; }", []),
    ("/* usdt:PROG:srv:none { arg9 } */ usdt:PROG:srv:idle { @ = 1; }", []),
    ("usdt:PROG:srv:idle { /* arg4 */ @ = 1; // arg5\n }", []),
    ("usdt:PROG:srv:idle { printf(\"arg7 } \\\" arg8\"); }", []),
    ("struct s { int arg5; }\nusdt:PROG:srv:opened { @ = ((struct s *)arg0)->arg5; }", []),
    ("usdt:PROG:srv:idle { $arg3 = 1; @arg4 = $arg3; }", []),
    ("usdt:PROG:srv:counted { if (arg0 > 2) { @ = arg1; } else { @b = arg2; } }", []),
    ("usdt:PROG:srv:many { @ = arg0; }", []),
    ("usdt:PROG:srv:counted\n/arg1 &&\n arg0/\n{\n @ = 1;\n}\n", []),
    ("#!/usr/bin/env bpftrace\nusdt:PROG:srv:idle { @ = 1; }", []),
    ("usdt:PROG:srv:counted { @ = arg0 / 2 / 3; }", []),
    ("interval:s:9 { @ = 1; } usdt:PROG:srv:idle { @ = 2; }", []),
    ("usdt:PROG:srv:counted { printf(\"%s\", str(arg2, 16)); }", []),
    ("usdt:PROG:srv:opened { printf(\"%s\", str((uint64)arg0)); }", []),
    # Faults that bpftrace sees.
    ("usdt:PROG:srv:none { @ = 1; }", ["no-such-probe"]),
    ("usdt:PROG:svr:idle { @ = 1; }", ["no-such-probe"]),
    ("usdt:PROG:none { @ = 1; }", ["no-such-probe"]),
    ("usdt:PROG:srv:idle { @ = arg0; }", ["no-such-argument"]),
    ("usdt:PROG:srv:opened { @ = arg1; }", ["no-such-argument"]),
    ("usdt:PROG:srv:item__read { @ = arg2; }", ["no-such-argument"]),
    ("usdt:PROG:srv:counted /arg3 == 1/ { @ = 1; }", ["no-such-argument"]),
    ("usdt:PROG:srv:counted { if (arg4) { @ = 1; } }", ["no-such-argument"]),
    ("usdt:PROG:srv:opened { printf(\"%s\", str(arg7)); }", ["no-such-argument"]),
    ("usdt:PROG:srv:many { @ = arg1; }", ["no-such-argument"]),
    ("usdt:PROG:srv:opened, usdt:PROG:srv:idle { @ = arg0; }", ["no-such-argument"]),
    ("usdt:PROG:*:counted { @ = arg3; }", ["no-such-argument"]),
    ("usdt:PROG:srv:idle { @ = 1; } usdt:PROG:srv:item_read { @ = 1; }", ["no-such-probe"]),
    ("usdt:PROG:SRV:idle { @ = 1; }", ["no-such-probe"]),
    ("usdt:PROG.gone:srv:idle { @ = 1; }", ["no-such-file"]),
]
# What bpftrace says nothing of.
ALONE = [
    ("usdt:PROG:srv:counted { printf(\"%s\", str(arg0)); }", ["string-of-number"]),
    ("usdt:PROG:srv:z* { @ = 1; }", ["no-such-probe"]),
    ("usdt:PROG:srv:counted { @ = 1; }", []),
    ("srv:idle\n# a list\n%srv:opened\nsdt_other:counted\n", []),
    ("srv:idle\nsrv:gone\n", ["no-such-probe"]),
    ("usdt:/usr/bin/prog:srv:idle { @ = 1; }", []),     # by its name
    ("usdt:*:srv:idle { @ = 1; }", []),
    ("BEGIN { printf(\"arg0\"); }", []),
]


def rules(script, name):
    write(name, script.encode())
    done = t.run("check", "--json", "--consumer", "bpftrace-0.17", name, "--", PROG)
    found = json.loads(done.out)["findings"] if done.out.startswith("{") else []
    t.same(f"{name}: exit for {script}", 1 if found else 0, done.code)
    return sorted({f["rule"] for f in found})


def bpftrace_takes(script):
    """A probe that is not there is left out without a word: the number that it attaches tells."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", "", script, flags=re.S)
    wanted = 1 + len(re.findall(r"\b(?:usdt|U|interval):", code))
    done = subprocess.run(["bpftrace", "-e", script + "\ninterval:ms:1 { exit(); }"], text=True,
                          timeout=60, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL)
    attached = re.search(r"Attaching (\d+) probe", done.stdout)
    return done.returncode == 0 and bool(attached) and int(attached[1]) >= wanted, done.stdout


write("prog.c", SOURCE.encode())
PROG = os.path.join(t.folder, "prog")
subprocess.run(["gcc", "-O2", "-o", PROG, "prog.c"], check=True)

live = shutil.which("bpftrace") and os.geteuid() == 0
if live:
    live = bpftrace_takes(f"usdt:{PROG}:srv:idle {{ @ = 1; }}")[0]
for i, (script, expected) in enumerate(SCRIPTS):
    script = script.replace("PROG", PROG)
    t.same(f"script {i}: {script}", expected, rules(script, f"{i}.bt"))
    if live:
        takes, said = bpftrace_takes(script)
        t.check(f"bpftrace and script {i}: {script}", takes == (not expected), said)
for i, (script, expected) in enumerate(ALONE):
    script = script.replace("PROG", PROG)
    t.same(f"alone {i}: {script}", expected, rules(script, f"alone{i}.bt"))

# Text, and lines: of the argument, not of the probe.
write("text.bt", b"usdt:./prog:srv:opened,\nusdt:./prog:srv:idel\n{\n  @ = arg1;\n}\n")
t.same("text", f"""\
text.bt:4: error no-such-argument usdt:./prog:srv:opened
      arg1 is asked for; the probe has 1 argument: srv:opened (prog)
text.bt:2: error no-such-probe usdt:./prog:srv:idel
      prog has no such probe; there is srv:idle
2 attach points, 1 site in 1 file: 2 errors, 0 warnings
""", t.run("check", "text.bt", "--", "prog").out)
# --root: absolute paths of the script are those of an image.
os.makedirs("image/usr/bin")
shutil.copy("prog", "image/usr/bin/server")
write("image.bt", b"usdt:/usr/bin/server:srv:idle { @ = 1; }")
t.same("--root", 0, t.run("check", "--root", "image", "image.bt", "--", "image/usr/bin/server", "prog").code)
for text, where in [("usdt:./prog:srv:idle { @ = 1;", "an action does not end"),
                    ("usdt:./prog:srv:idle /arg0 {\n", "a predicate does not end"),
                    ("usdt:./prog { @ = 1; }", "expected usdt:PATH:PROVIDER:NAME"),
                    ("usdt:./prog:a:b { \"x }", "a string does not end"),
                    ("/* { ", "a comment does not end")]:
    write("bad.bt", text.encode())
    done = t.run("check", "bad.bt", "--", "prog")
    t.check(f"malformed: {text}", done.code == 3 and where in done.err, done.text())

if not live:
    print("SKIP: bpftrace cannot attach here; its part was not compared")
    if not t.failures:
        sys.exit(77)
t.finish()
