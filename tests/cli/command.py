"""Runs the tool in a folder of its own and compares what it says, byte for byte."""

import atexit
import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import schema


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __eq__(self, other):
        return (self.code, self.out, self.err) == (other.code, other.out, other.err)

    def text(self):
        return f"exit {self.code}\n--- stdout\n{self.out}--- stderr\n{self.err}"


TRACERS = re.compile(r"^(?:\x1b\[1m)?  tracer .*\n(?:  .*\n)*", re.M)


class Tests:
    """Counts checks, prints those that fail, and owns the temporary folder."""

    def __init__(self, tool, folder=None):
        self.tool = os.path.realpath(tool)
        self.folder = tempfile.mkdtemp(prefix="reprobe-cli-", dir=folder)
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        os.chdir(self.folder)
        self.environment = {k: v for k, v in os.environ.items()
                            if k not in ("NO_COLOR", "TERM", "POSIXLY_CORRECT")}
        self.environment.update(LC_ALL="C.UTF-8", TERM="xterm")
        self.checks = self.failures = 0

    def run(self, *arguments, tracers=False, **options):
        """The result with stdout and stderr as text; undecodable bytes as \\udcNN.

        audit's table of tracers is cut out unless `tracers`: consumers_test.py is about it."""
        settings = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                        env=self.environment, timeout=120)
        settings.update(options)
        done = subprocess.run([self.tool, *arguments], **settings)
        decode = lambda data: (data or b"").decode("utf-8", "surrogateescape")
        out = decode(done.stdout)
        if "--json-lines" in arguments:
            for line in out.splitlines():
                self.same(f"{' '.join(map(str, arguments))}: docs/schema.json", [],
                          schema.violations(json.loads(line)))
        if "--json" in arguments and arguments[0] != "run" and out.startswith("{"):
            self.same(f"{' '.join(map(str, arguments))}: docs/schema.json", [],
                      schema.violations(json.loads(out, strict=False)))
        return Result(done.returncode, out if tracers else TRACERS.sub("", out),
                      decode(done.stderr))

    def fail(self, what, details=""):
        self.failures += 1
        print(f"FAILED: {what}")
        if details:
            text = details.rstrip("\n").replace("\n", "\n    ")
            print("    " + text.encode("utf-8", "backslashreplace").decode())

    def check(self, what, condition, details=""):
        self.checks += 1
        if not condition:
            self.fail(what, details)
        return bool(condition)

    def same(self, what, expected, found):
        """Both are values with a readable form; a difference is shown line by line."""
        if isinstance(expected, Result):
            expected, found = expected.text(), found.text()
        self.checks += 1
        if expected == found:
            return True
        if isinstance(expected, str) and isinstance(found, str):
            lines = difflib.unified_diff(expected.splitlines(), found.splitlines(), "expected",
                                         "found", n=30, lineterm="")
            self.fail(what, "\n".join(lines))
        else:
            self.fail(what, f"expected {expected!r}\nfound {found!r}")
        return False

    def finish(self):
        print(f"{self.checks} checks, {self.failures} failed")
        os.chdir("/")
        sys.exit(1 if self.failures else 0)


def write(path, data, mode=None):
    with open(path, "wb") as file:
        file.write(data)
    if mode is not None:
        os.chmod(path, mode)


def read(path):
    with open(path, "rb") as file:
        return file.read()
