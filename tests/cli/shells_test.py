#!/usr/bin/env python3
"""shells_test.py REPROBE: what fish and zsh complete on a line, asked of the shells themselves.

fish says what it would complete (complete -C); zsh is typed at on a terminal, and lists what fits.
"""
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
COMPLETIONS = os.path.join(ROOT, "completions")
# What is typed, and what must be offered: all of these, and nothing else that begins so.
LINES = {
    "reprobe sl": {"sled"},
    "reprobe re": {"relativize"},
    "reprobe fix --remove": {"--remove-ambiguous"},
    "reprobe list --ob": {"--objects"},
    "reprobe list ap": {"app"},
    "reprobe list app -p demo:re": {"demo:reply", "demo:reply_v1", "demo:request"},
}
failures = 0


def check(what, found, expected):
    global failures
    if found == expected:
        print(f"ok: {what}")
    else:
        failures += 1
        print(f"FAILED: {what}: expected {sorted(expected)}, found {sorted(found)}")


def fish(line, environment):
    script = f"source {COMPLETIONS}/reprobe.fish; complete -C '{line}'"
    said = subprocess.run(["fish", "--no-config", "-c", script], capture_output=True, text=True,
                          env=environment, check=False)
    return {offer.split("\t")[0] for offer in said.stdout.splitlines()}


class Zsh:
    """An interactive zsh on a terminal of its own."""

    def __init__(self, environment):
        pid, self.terminal = pty.fork()
        if pid == 0:
            os.execvpe("zsh", ["zsh", "-f", "-i"], environment)
        self.type("PS1='> '; PROMPT_EOL_MARK=; unsetopt zle_bracketed_paste prompt_cr prompt_sp\n")
        self.type(f"fpath=({COMPLETIONS} $fpath); autoload -U compinit; compinit -u -d ./dump\n")
        # Offers go to a file: what the terminal shows depends on its width.
        self.type("compadd() { local -a all; builtin compadd -O all \"$@\"; print -rl -- $all >> offers;"
                  " builtin compadd \"$@\"; }\n")
        self.read(2)

    def type(self, text):
        os.write(self.terminal, text.encode())

    def read(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if select.select([self.terminal], [], [], 0.1)[0]:
                os.read(self.terminal, 65536)

    def offers(self, line):
        if os.path.exists("offers"):
            os.remove("offers")
        self.type(f"{line}\t")
        end = time.monotonic() + 30
        while time.monotonic() < end and not (os.path.exists("offers") and
                                              os.path.getsize("offers") > 0):
            self.read(0.2)
        self.read(0.5)
        self.type("\x15")  # ^U: away with the line
        if not os.path.exists("offers"):
            return set()
        with open("offers", encoding="utf-8") as file:
            return {re.split(r"(?<!demo):", offer.strip())[0] for offer in file if offer.strip()}


def main():
    reprobe = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="reprobe-shells-") as folder:
        os.chdir(folder)
        subprocess.run(["gcc", "-O2", os.path.join(ROOT, "fixtures/demo/demo.c"), "-o", "app"],
                       check=True)
        environment = {**os.environ, "HOME": folder, "TERM": "xterm",
                       "PATH": os.path.dirname(reprobe) + ":" + os.environ["PATH"]}
        for line, expected in LINES.items():
            check(f"fish: {line}", fish(line, environment), expected)
        zsh = Zsh(environment)
        for line, expected in LINES.items():
            check(f"zsh: {line}", zsh.offers(line), expected)
        zsh.type("\x15exit\n")
        os.chdir("/")
    print(f"{failures} checks failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
