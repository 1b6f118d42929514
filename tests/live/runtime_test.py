#!/usr/bin/env python3
"""runtime_test.py REPROBE LIBRARIES INCLUDE: handlers in the process (libreprobe-rt).

runtime_programs/check.c says what handlers see and that the program sees nothing of them; it runs
with the shared and with the static library, and with slots that are writable for a moment only.
hammer.c passes 64 sites in threads while others attach and detach and signals arrive: no hit may be
lost, have other arguments, or reach a handler that was detached; once more with ThreadSanitizer in
the runtime's own sources.
"""
import glob
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tracers")]
# pylint: disable=wrong-import-position
from checks import Checks
from common import run

PROGRAMS = os.path.join(HERE, "runtime_programs")
RUNTIME = os.path.join(HERE, "..", "..", "libprobe", "runtime")


class Builder:
    def __init__(self, checks, reprobe, include, folder):
        self.checks, self.reprobe, self.include, self.folder = checks, reprobe, include, folder

    def make(self, what, out, *arguments, sleds=True):
        """gcc with the arguments, and sleds of the kind slot in what it makes."""
        made = run("gcc", "-O2", "-Wall", f"-I{self.include}", *arguments, "-o", out)
        self.checks.true(f"{what}: builds", made.returncode == 0, made.stderr)
        if sleds and made.returncode == 0:
            made = run(self.reprobe, "sled", "-q", "--kind=slot", out)
            self.checks.equal(f"{what}: sled", (made.returncode, made.stderr), (0, ""))
        return out

    def path(self, name):
        return os.path.join(self.folder, name)


def program(name):
    return os.path.join(PROGRAMS, name)


def says_ok(checks, what, *command, env=None):
    said = run(*command, env=env or {})
    checks.true(what, said.returncode == 0 and said.stdout.startswith("ok "),
                f"exit {said.returncode}\n" + said.stdout[-1000:] + said.stderr[-1000:])
    return said.stdout


def check_handlers(checks, build, libraries):
    handlers = build.make("handlers", build.path("handlers.o"), "-mgeneral-regs-only", "-c",
                          program("handlers.c"), sleds=False)
    library = build.make("library", build.path("late.so"), "-shared", "-fPIC",
                         program("library.c"))
    shared = build.make("shared", build.path("check"), "-rdynamic", program("check.c"), handlers,
                        f"-L{libraries}", "-lreprobe-rt", f"-Wl,-rpath,{libraries}")
    static = build.make("static", build.path("check-static"), "-rdynamic", program("check.c"),
                        handlers, os.path.join(libraries, "libreprobe-rt.a"))
    says_ok(checks, "shared library", shared, library)
    says_ok(checks, "static library", static, library)
    says_ok(checks, "slots that are writable for a moment", shared, library,
            env={"REPROBE_SLOTS": "readonly"})
    says_ok(checks, "on one processor", "taskset", "-c", "0", shared, library)


def check_hammer(checks, build, libraries):
    hammer = build.make("hammer", build.path("hammer"), program("hammer.c"), f"-L{libraries}",
                        "-lreprobe-rt", f"-Wl,-rpath,{libraries}")
    says_ok(checks, "one thread of each", hammer, "1", "1", "500", "0")
    says_ok(checks, "threads and signals", hammer, "3", "2", "150", "1000")
    says_ok(checks, "slots for a moment", hammer, "2", "2", "50", "0",
            env={"REPROBE_SLOTS": "readonly"})
    # general.c and thunk.S run before the program's registers are saved: nothing may be called
    # there. So ThreadSanitizer does not see that detach waits for what happens there, and would
    # take what the program does behind it for a race: it looks at the runtime's data alone.
    plain = [build.make(name, build.path(os.path.basename(name) + ".o"), "-c", *options, name,
                        sleds=False)
             for name, *options in ((os.path.join(RUNTIME, "general.c"), "-mgeneral-regs-only"),
                                    (program("hammer.c"),))]
    others = [f for f in glob.glob(os.path.join(RUNTIME, "*.[cS]")) if "general.c" not in f]
    tsan = build.make("tsan", build.path("hammer-tsan"), "-g", "-fsanitize=thread", "-std=gnu11",
                      "-Wno-tsan", *plain, *others)
    said = run(tsan, "2", "2", "100", "0", env={"TSAN_OPTIONS": "exitcode=66"})
    checks.true("ThreadSanitizer", said.returncode == 0 and said.stdout.startswith("ok "),
                f"exit {said.returncode}\n" + said.stdout[-500:] + said.stderr[-1500:])


def main():
    reprobe, libraries, include = sys.argv[1:4]
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="runtime-") as folder:
        build = Builder(checks, reprobe, include, folder)
        check_handlers(checks, build, libraries)
        check_hammer(checks, build, libraries)
    return checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
