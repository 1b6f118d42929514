#!/usr/bin/env python3
"""run_test.py REPROBE: `reprobe run` counts and traces what a program, its threads, its children and its libraries
hit, as a normal user without a capability and behind a filter that denies bpf, perf_event_open and
ptrace. What it has to count the programs' own text says. bpftrace is armed at the same probes meanwhile, all
the time and for a moment, and counts right, too.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tracers")]
# pylint: disable=wrong-import-position
import environment
from checks import Checks
from common import run

PROGRAMS = os.path.join(HERE, "runtime_programs")
PASSES = 250


def counts(text):
    return {name: int(hits) for hits, name in re.findall(r"^ *(\d+)  (\S+:\S+)$", text, re.M)}


def build(checks, folder):
    """family and its library; where they are is all that the program knows of it."""
    program, library = os.path.join(folder, "family"), os.path.join(folder, "libcalled.so")
    for command in (
            ["gcc", "-O2", "-shared", "-fPIC", "-Wl,-soname,libcalled.so",
             os.path.join(PROGRAMS, "library.c"), "-o", library],
            ["gcc", "-O2", os.path.join(PROGRAMS, "family.c"), "-o", program, library,
             f"-Wl,-rpath,{folder}"]):
        made = run(*command)
        checks.true("builds", made.returncode == 0, made.stderr)
    return program


def check_counts(checks, reprobe, program, folder):
    env = {"XDG_CACHE_HOME": os.path.join(folder, "cache")}
    # What it executes is the file without sleds, with the library that has them.
    expected = {"family:pass": 5 * PASSES, "lib:call": 2 * 6, "family:never_in_the_glob": 1}
    plain = run(program, str(PASSES))
    for what in ("first", "from the cache"):
        said = run(reprobe, "run", "--count", "--", program, str(PASSES), env=env)
        checks.equal(f"{what}: prints and ends as it does", (said.returncode, said.stdout),
                     (plain.returncode, plain.stdout))
        checks.equal(f"{what}: counts", counts(said.stderr), expected)
    out = os.path.join(folder, "counts")
    said = run(reprobe, "run", "-p", "family:p*", "--json", "-o", out, "--", program, str(PASSES),
               env=env)
    with open(out, encoding="utf-8") as written:
        checks.equal("-p, --json and -o", (json.load(written), said.stderr),
                     ({"family:pass": 5 * PASSES}, ""))
    said = run(reprobe, "run", "--", os.path.join(folder, "none"), env=env)
    checks.equal("no such program", said.returncode, 3)
    said = run(reprobe, "run", "--", "sh", "-c", "kill -9 $$", env=env)
    checks.equal("a signal", said.returncode, 128 + 9)
    return expected


def check_trace(checks, reprobe, folder):
    """app.c passes its probes in one order, with arguments that its text tells."""
    app = os.path.join(folder, "traced")
    run("gcc", "-O2", os.path.join(PROGRAMS, "app.c"), "-o", app)
    env = {"XDG_CACHE_HOME": os.path.join(folder, "cache")}
    passes = 400
    out = os.path.join(folder, "trace")
    run(reprobe, "run", "--trace", "-o", out, "--", app, str(passes), env=env)
    with open(out, encoding="utf-8") as text:
        lines = [line.split() for line in text.read().splitlines()[1:]]
    order = ["work", "leaf", "flags", "flags", "flags", "caller", "tail", "memory", "floats"]
    checks.equal("trace: order of the hits", [line[3] for line in lines],
                 [f"app:{name}" for name in order] * passes)
    times = [float(line[0]) for line in lines]
    checks.true("trace: time goes on", times == sorted(times) and 0 < times[0] < times[-1] < 120,
                str(times[:3]))
    work = [[int(a) for a in line[4:]] for line in lines if line[3] == "app:work"]
    checks.equal("trace: arguments", work, [[-i, i, i * 7] for i in range(passes)])
    checks.equal("trace: one thread", len({(line[1], line[2]) for line in lines}), 1)
    run(reprobe, "run", "--trace", "--json", "-p", "app:tail", "-o", out, "--", app, str(passes),
        env=env)
    with open(out, encoding="utf-8") as text:
        trace = json.load(text)
    events = trace["traceEvents"]
    checks.equal("trace as JSON", [(e["name"], e["ph"], e["args"]) for e in events],
                 [("app:tail", "i", {"arg0": i}) for i in range(passes)])
    checks.equal("trace as JSON: none lost", trace["otherData"], {"lost": 0})
    said = run(reprobe, "run", "--hist", "app:caller..app:tail", "--json", "--", app, str(passes),
               env=env)
    found = json.loads(said.stderr)
    checks.equal("hist: pairs", (found["pairs"], sum(b["count"] for b in found["nanoseconds"])),
                 (passes, passes))
    checks.true("hist: percentiles ascend",
                0 < found["p50"] <= found["p90"] <= found["p99"] <= found["most"], said.stderr)
    # More than there is room for.
    passes = 200000
    run(reprobe, "run", "--trace", "-o", out, "--", app, str(passes), env=env)
    with open(out, encoding="utf-8") as text:
        lines = text.read().splitlines()
    checks.equal("trace: what is lost is counted", (len(lines) - 2, lines[-1]),
                 (1 << 20, f"lost: {9 * passes - (1 << 20)}"))


PLUGIN = r"""
#include <sys/sdt.h>
volatile int last;
void called(int n) {
  last = n * 3;
  DTRACE_PROBE1(plugin, called, n);
  last += 7;
}
"""
OPENS = r"""
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static void* use(void* path) {
  void* library = dlopen(path, RTLD_NOW);
  void (*called)(int) = library ? (void (*)(int))dlsym(library, "called") : 0;
  if (!called) { fprintf(stderr, "%s\n", dlerror()); exit(1); }
  for (int i = 0; i < 1000; ++i) called(i);
  return 0;
}
int main(int argc, char** argv) {
  pthread_t threads[16];
  for (int i = 1; i < argc; ++i) pthread_create(&threads[i], 0, use, argv[i]);
  for (int i = 1; i < argc; ++i) pthread_join(threads[i], 0);
  if (dlopen("/no/such/library", RTLD_NOW) || !dlerror()) return 1;
  /* Looked up by the caller's own RUNPATH. */
  return dlopen("libby_name.so", RTLD_NOW) ? 0 : (fputs(dlerror(), stderr), 1);
}
"""


# What a program with a second thread cannot do (unshare(2)).
ALONE = r"""
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
int main(void) { return unshare(CLONE_THREAD) != 0; }
"""


def check_alone(checks, reprobe, folder):
    """A program with one thread keeps having one."""
    with open(os.path.join(folder, "alone.c"), "w", encoding="ascii") as out:
        out.write(ALONE)
    program = os.path.join(folder, "alone")
    checks.equal("alone: builds", run("gcc", program + ".c", "-o", program).stderr, "")
    checks.equal("alone: as it is", run(program).returncode, 0)
    checks.equal("alone: with the agent", run(reprobe, "run", "--", program).returncode, 0)


def check_opened(checks, reprobe, folder):
    """Libraries that the program opens by their paths, from several threads: counted from their first
    hit, without anybody who looks for them."""
    here = os.path.join(folder, "opens")
    os.mkdir(here)
    for name, text in (("plugin.c", PLUGIN), ("opens.c", OPENS)):
        with open(os.path.join(here, name), "w", encoding="ascii") as out:
            out.write(text)
    plugins = [os.path.join(here, f"plugin{i}.so") for i in range(3)]
    for plugin in (*plugins, os.path.join(here, "libby_name.so")):
        made = run("gcc", "-O2", "-fPIC", "-shared", os.path.join(here, "plugin.c"), "-o", plugin)
        checks.equal(f"{plugin}: builds", made.stderr, "")
        run(reprobe, "sled", "-q", "--kind=slot", plugin)
    program = os.path.join(here, "opens")
    made = run("gcc", "-O2", os.path.join(here, "opens.c"), "-o", program, f"-Wl,-rpath,{here}",
               "-Wl,--enable-new-dtags")
    checks.equal("the program builds", made.stderr, "")
    env = {"XDG_CACHE_HOME": os.path.join(folder, "cache")}
    said = run(reprobe, "run", "--follow", "0", "--json", "--", program, *plugins, env=env)
    checks.equal("opened: exit", said.returncode, 0)
    checks.equal("opened: each hit", json.loads(said.stderr[said.stderr.index("{"):]),
                 {"plugin:called": 3000})


def check_threads(checks, reprobe, program, folder):
    """Which thread and which process passed what."""
    env = {"XDG_CACHE_HOME": os.path.join(folder, "cache")}
    out = os.path.join(folder, "threads")
    run(reprobe, "run", "--trace", "-p", "family:pass", "-o", out, "--", program, str(PASSES),
        env=env)
    of = {}
    with open(out, encoding="utf-8") as text:
        for line in text.read().splitlines()[1:]:
            _, process, thread, _, number, _ = line.split()
            of.setdefault((process, thread), []).append(int(number))
    checks.equal("threads: each its own hits in order", sorted(of.values()),
                 [list(range(PASSES))] * 5)
    checks.equal("threads: two processes", len({process for process, _ in of}), 2)


DENY = r"""
import ctypes, os, struct, sys
# bpf 321, perf_event_open 298, ptrace 101: EPERM. (linux/filter.h, linux/seccomp.h)
deny = (321, 298, 101)
code = [(0x20, 0, 0, 0)]
code += [(0x15, len(deny) - i, 0, n) for i, n in enumerate(deny)]
code += [(0x06, 0, 0, 0x7fff0000), (0x06, 0, 0, 0x00050001)]
text = b"".join(struct.pack("HBBI", *line) for line in code)
libc = ctypes.CDLL(None, use_errno=True)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
for capability in range(41):
    libc.prctl(24, capability, 0, 0, 0)
if os.getuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
assert libc.prctl(38, 1, 0, 0, 0) == 0
program = Program(len(code), text)
assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
assert libc.syscall(321, 0, 0, 0) == -1 and ctypes.get_errno() == 1
with open("/proc/self/status") as status:
    assert any(l.split() == ["CapEff:", "0000000000000000"] for l in status)
os.execv(sys.argv[1], sys.argv[1:])
"""


def check_sandbox(checks, reprobe, program, folder, expected):
    """Nobody's user, no capability, no new privileges, and the filter."""
    home = os.path.join(folder, "home")
    os.makedirs(home, exist_ok=True)
    os.chmod(folder, 0o755)
    os.chmod(home, 0o777)
    # What it runs must be readable for that user.
    tools = os.path.join(folder, "tools")
    os.makedirs(tools, exist_ok=True)
    for name in os.listdir(os.path.dirname(reprobe)):
        if name == "reprobe" or name.startswith("libreprobe-"):
            shutil.copy(os.path.join(os.path.dirname(reprobe), name), tools)
    env = {"XDG_CACHE_HOME": "", "HOME": home, "TMPDIR": home, "LD_LIBRARY_PATH": tools}
    said = run(sys.executable, "-c", DENY, os.path.join(tools, "reprobe"), "run", "--", program,
               str(PASSES), env=env)
    checks.equal("sandbox: counts", counts(said.stderr), expected)
    checks.equal("sandbox: prints", (said.returncode, said.stdout), (3, "done\ndone\n"))


HITS = re.compile(r"^@\[usdt:[^\]]*?:(app:\w+)\]: (\d+)$", re.M)
# app.c's probes by pass.
OF_A_PASS = {"work": 1, "leaf": 1, "flags": 3, "caller": 1, "tail": 1, "memory": 1}


def check_both(checks, reprobe, folder):
    """bpftrace and the runtime at the same probes: both at once, and bpftrace for a moment only."""
    app = os.path.join(folder, "app")
    run("gcc", "-O2", "-DNO_FLOATS", os.path.join(PROGRAMS, "app.c"), "-o", app)
    made = run(reprobe, "sled", "-q", "--kind=slot", app)
    checks.equal("app: sled", (made.returncode, made.stderr), (0, ""))
    passes = 3000
    expected = {f"app:{name}": n * passes for name, n in OF_A_PASS.items()}
    out = os.path.join(folder, "both")
    program = f"usdt:{app}:app:* {{ @[probe] = count(); }}"
    # (With -c it would look for the probes in the command's own process.)
    said = run("bpftrace", "--unsafe", "-e",
               'BEGIN { system("$COMMAND"); exit(); }' + program,
               env={"COMMAND": f"{reprobe} run -o {out} -- {app} {passes}"})
    with open(out, encoding="utf-8") as text:
        checks.equal("both at once: the runtime", counts(text.read()), expected)
    checks.equal("both at once: bpftrace", {n: int(c) for n, c in HITS.findall(said.stdout)},
                 expected)
    # Armed and let go by the kernel while the runtime counts.
    passes = 3000000
    expected = {f"app:{name}": n * passes for name, n in OF_A_PASS.items()}
    with subprocess.Popen([reprobe, "run", "-o", out, "--", app, str(passes)],
                          stdout=subprocess.PIPE, text=True) as process:
        seen = 0
        while process.poll() is None and seen < 2:
            said = run("bpftrace", "-e",
                       f"usdt:{app}:app:* {{ @[probe] = count(); }} interval:ms:30 {{ exit(); }}")
            seen += bool(HITS.search(said.stdout))
        printed = process.communicate()[0]
    with open(out, encoding="utf-8") as text:
        checks.equal("for a moment: the runtime", counts(text.read()), expected)
    checks.true("for a moment: bpftrace saw hits", seen > 0, said.stdout + said.stderr)
    checks.equal("for a moment: prints", printed, run(app, str(passes)).stdout)


def main():
    reprobe = os.path.abspath(sys.argv[1])
    environment.need_tools(["gcc", "bpftrace"])
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="run-") as folder:
        program = build(checks, folder)
        expected = check_counts(checks, reprobe, program, folder)
        check_trace(checks, reprobe, folder)
        check_alone(checks, reprobe, folder)
        check_opened(checks, reprobe, folder)
        check_threads(checks, reprobe, program, folder)
        check_sandbox(checks, reprobe, program, folder, expected)
        if environment.can_trace():
            check_both(checks, reprobe, folder)
    return checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
