#!/usr/bin/env python3
"""sled_random_test.py REPROBE [--functions N] [SEED...]: programs made at random do what they did with sleds.

Each program has functions of random blocks with branches of both lengths and directions, jump tables,
calls, flags that live across sites, data in the red zone and relative to the instruction, and probe
sites anywhere. With sleds it must print the same, and every tactic must have been used. With root
and uprobes, bpftrace counts the hits of all sites in both. Given seeds are only run untraced.
"""
import argparse
import json
import os
import random
import re
import sys
import tempfile
from collections import Counter

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tracers")]
# pylint: disable=wrong-import-position
import environment
from checks import Checks
from common import run

SEEDS = (1, 2, 8, 19)
FUNCTIONS = 150
# Kernels take a tenth of a second and more to give a site back.
FUNCTIONS_TRACED = 10
KINDS = (("nop10", "auto"), ("nop5", "auto"), ("nop5", "always"))
REGISTERS = ("rax", "rdx", "r8", "r9", "r10")
CONDITIONS = ("e", "ne", "l", "ge", "b", "ae", "s", "ns", "o", "p")
MAIN = r"""
#include <stdio.h>
extern long (*const functions[])(long, long);
long cell = 77;
int main(void) {
  for (int i = 0; functions[i]; ++i) {
    unsigned long sum = 0;
    for (long n = 0; n < 7; ++n) sum = sum * 31 + (unsigned long)functions[i](n * 0x9e3779b97f4a7c15, 9);
    printf("%d %lx %lx\n", i, sum, cell);
  }
}
"""
HEAD = """
#include <sys/sdt.h>
\t.section .note.GNU-stack,"",@progbits
\t.text
\t.type helper, @function
helper:\tleaq 3(%rax,%rdi), %rax
\tret
\t.size helper, . - helper
\t.type helper2, @function
helper2:\tDTRACE_PROBE(random, tail)
\txorq %rdi, %rax
\tret
\t.size helper2, . - helper2
"""


class Maker:
    """Functions as assembly. %rdi holds the argument, %rsi the backward jumps that are left."""

    def __init__(self, seed, functions):
        self.random = random.Random(seed)
        self.functions = functions
        self.sites = 0

    def site(self):
        self.sites += 1
        arguments = self.random.choice(("", "1:-8@%rdi", "2:-8@%rax 8@-16(%rsp)", "1:4@$9"))
        if not arguments:
            return f"DTRACE_PROBE(random, p{self.sites % 20})"
        count, _, text = arguments.partition(":")
        return f"DTRACE_PROBE{count}(random, a{count}, {text.replace(' ', ', ')})"

    def instruction(self):
        pick = self.random.choice
        a, b = pick(REGISTERS), pick(REGISTERS)
        return pick((
            "stc", "clc", "cmc", "cltq", "xchgl %eax, %edx", f"incq %{a}", f"movq %{a}, %{b}",
            f"leaq {pick((1, 1000))}(%{a},%{b},2), %{b}", f"adcq %{a}, %{b}", f"sbbq $1, %{a}",
            f"xorl %{pick(('eax', 'edx'))}, %edx", f"addq %rdi, %{a}", f"cmpq %{a}, %{b}",
            f"testb $1, %{pick(('al', 'dl'))}", f"movq %{a}, -{pick((16, 24, 40))}(%rsp)",
            f"addq -{pick((16, 24, 40))}(%rsp), %{a}", f"movq cell(%rip), %{a}",
            f"addq %{a}, cell(%rip)", "cmpl $77, cell(%rip)", "addw $0x1234, cell+2(%rip)",
            f"set{pick(CONDITIONS)} %al", f"cmov{pick(CONDITIONS)}q %{a}, %{b}",
            f"movabsq $0x123456789abcdef, %{a}", f"rorq $7, %{a}", f"bswapq %{a}",
            f"pushq %{a}; popq %{b}", "call helper", "nopw 0x0(%rax,%rax,1)",
            "nopl 0x0(%rax,%rax,1); nopw %cs:0x0(%rax,%rax,1)", "lock; addq %rax, cell(%rip)",
        ))

    def ending(self, block, blocks, name, last):
        """How a block ends; `last`: nothing follows it."""
        later = [f".L{name}_{i}" for i in range(block + 1, blocks)]
        pick, condition = self.random.choice, self.random.choice(CONDITIONS)
        choice = self.random.random()
        if last:
            return pick(("ret", "jmp helper2", "ret; .balign 16"))
        if choice < 0.25:
            return ""
        if choice < 0.5:
            return f"j{condition} {pick(later)}"
        if choice < 0.58:
            # With 32 bits, however near.
            return f"{{disp32}} j{condition} {pick(later)}"
        if choice < 0.68:
            return f"{pick(('', '{disp32} '))}jmp {pick(later)}"
        if choice < 0.82:
            return f"decl %esi; {pick(('', '{disp32} '))}jns .L{name}_{self.random.randint(0, block)}"
        if choice < 0.9:
            return pick(("ret", "ret; .balign 16", "jmp helper2"))
        table = [pick(later) for _ in range(4)]
        entries = ", ".join(f"{label} - 9b" for label in table)
        # In registers that nothing else reads: addresses differ from run to run.
        return ("leaq 9f(%rip), %rcx; movl %edi, %r11d; andl $3, %r11d; "
                "movslq (%rcx,%r11,4), %r11; addq %rcx, %r11; jmp *%r11; .pushsection .rodata; .balign 4; "
                f"9: .long {entries}; .popsection")

    def function(self, name):
        blocks = self.random.randint(2, 12)
        lines = [f"\t.balign {self.random.choice((1, 16))}", f"\t.type {name}, @function",
                 f"{name}:\t.cfi_startproc", "\tmovl $5, %eax; movl $7, %edx; movl $1, %r8d",
                 "\txorl %r9d, %r9d; movl $3, %r10d",
                 "\tmovq %rdi, -16(%rsp); movq %rax, -24(%rsp); movq %rdx, -40(%rsp)"]
        for block in range(blocks):
            lines.append(f".L{name}_{block}:")
            for _ in range(self.random.randint(0, 5)):
                if self.random.random() < 0.35:
                    lines.append("\t" + self.site())
                lines.append("\t" + self.instruction())
            if self.random.random() < 0.4:
                lines.append("\t" + self.site())
            lines.append("\t" + self.ending(block, blocks, name, block == blocks - 1))
        return "\n".join([*lines, "\t.cfi_endproc", f"\t.size {name}, . - {name}", ""])

    def source(self):
        text = HEAD + "".join(self.function(f"f{i}") for i in range(self.functions))
        names = ", ".join(f"f{i}" for i in range(self.functions))
        return (text + "\t.section .data.rel.ro,\"aw\"\n\t.balign 8\n\t.globl functions\n"
                f"functions:\t.quad {names}, 0\n")


def total_hits(file):
    """(what it printed, {probe: hits}) under bpftrace."""
    said = run("bpftrace", "--unsafe", "-e", 'BEGIN { system("$COMMAND"); exit(); } '
               f"usdt:{file}:* {{ @[probe] = count(); }}",
               env={"COMMAND": file, "BPFTRACE_MAX_PROBES": "4000",
                    "BPFTRACE_MAX_BPF_PROGS": "4000"}, timeout=400)
    hits = {m[1]: int(m[2]) for m in re.finditer(r"^@\[usdt:.*:(\w+:\w+)\]: (\d+)$", said.stdout,
                                                 re.M)}
    return [line for line in said.stdout.splitlines() if re.match(r"\d", line)], hits, said.stderr


def check_seed(checks, reprobe, folder, seed, functions, tracing):
    file = os.path.join(folder, f"random{seed}")
    for name, text in ((file + ".S", Maker(seed, functions).source()), (file + ".c", MAIN)):
        with open(name, "w", encoding="ascii") as out:
            out.write(text)
    made = run("gcc", "-O1", *(["-no-pie"] if seed % 2 == 0 else []), file + ".c", file + ".S", "-o", file)
    what = f"seed {seed}{' traced' if tracing else ''}"
    if not checks.true(f"{what}: builds", made.returncode == 0, made.stderr):
        return Counter()
    expected = run(file)
    checks.true(f"{what}: runs", expected.returncode == 0 and expected.stdout, expected.stderr)
    hits = total_hits(file)[1] if tracing else {}
    used = Counter()
    for kind, guard in KINDS:
        out = f"{file}.{kind}-{guard}"
        made = run(reprobe, "sled", "--json", f"--kind={kind}", f"--guard={guard}", file, "-o", out)
        if not checks.true(f"{what} {kind} {guard}: sled", made.returncode == 0, made.stderr):
            continue
        plan = json.loads(made.stdout)
        used += Counter(site["tactic"] for site in plan["sites"])
        used += Counter("left: " + site["reason"].partition(":")[0] for site in plan["refused"])
        said = run(out)
        checks.equal(f"{what} {kind} {guard}: prints", (said.returncode, said.stdout),
                     (0, expected.stdout))
        if tracing and guard == "auto":
            printed, found, errors = total_hits(out)
            checks.equal(f"{what} {kind}: prints under bpftrace", printed,
                         expected.stdout.splitlines())
            if not checks.equal(f"{what} {kind}: hits", found, hits):
                print(errors[-300:])
    return used


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("reprobe")
    parser.add_argument("--functions", type=int, default=FUNCTIONS)
    parser.add_argument("seeds", type=int, nargs="*")
    options = parser.parse_intermixed_args()
    if os.uname().machine != "x86_64":
        environment.skip("sleds are for x86-64")
    environment.need_tools(["gcc", "bpftrace"])
    tracing = environment.can_trace()
    checks = Checks()
    used = Counter()
    reprobe = os.path.abspath(options.reprobe)
    with tempfile.TemporaryDirectory(prefix="reprobe-sled-random-") as folder:
        for seed in options.seeds or SEEDS:
            used += check_seed(checks, reprobe, folder, seed, options.functions, False)
        if tracing and not options.seeds:
            check_seed(checks, reprobe, folder, SEEDS[0], FUNCTIONS_TRACED, True)
    checks.true(f"every tactic: {dict(used)}", {"in-place", "call-target", "jump-target",
                                                "displace", "hop"} <= used.keys())
    print(dict(used))
    return checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
