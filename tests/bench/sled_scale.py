#!/usr/bin/env python3
"""sled_scale.py REPROBE [MOST]: does the cost of `reprobe sled` grow linearly in the sites?

Makes programs with a quarter, half and all of MOST sites (100,000) in functions of eight, with
branches, calls, and now and then a jump table, and programs with a fifth of these in one function;
gives them sleds, and runs them. Prints seconds and memory of each; exits 1 where a result does not run, more than 1% of the sites have no sled, or a
site costs more than 1.5 times what it does in the half as large program.
"""
import os
import re
import subprocess
import sys
import tempfile

SITES_OF_FUNCTION = 8
MOST_RATIO = 1.5

HEAD = """
\t.macro PROBE name
990:\tnop
\t.pushsection .note.stapsdt,"",@note
\t.balign 4
\t.4byte 992f-991f, 994f-993f, 3
991:\t.asciz "stapsdt"
992:\t.balign 4
993:\t.8byte 990b, _.stapsdt.base, 0
\t.asciz "scale"
\t.asciz "\\name"
\t.asciz "-8@%rdi 8@8(%rsp)"
994:\t.balign 4
\t.popsection
\t.endm
\t.section .note.GNU-stack,"",@progbits
\t.section .stapsdt.base,"aG",@progbits,.stapsdt.base,comdat
\t.weak _.stapsdt.base
\t.hidden _.stapsdt.base
_.stapsdt.base: .space 1
\t.size _.stapsdt.base, 1
\t.text
"""
FUNCTION = """
\t.balign 16
\t.type f{i}, @function
f{i}:\t.cfi_startproc
\tpushq %rbx
\t.cfi_adjust_cfa_offset 8
\t.cfi_offset %rbx, -16
\tPROBE entry
\tleaq {i}(%rdi), %rbx
\tPROBE added
\tmovl %edi, %eax
\tandl $3, %eax
{jump}
1:\taddq cell(%rip), %rbx
\tPROBE cell
\tjmp 3f
2:\tincq %rbx
\tPROBE two
3:\tleaq (%rbx,%rdi,4), %rbx
\tPROBE three
\ttestq %rbx, %rbx
\tPROBE flags
\tjs 4f
\tPROBE call
\tcall leaf
4:\tmovq %rbx, %rax
\tpopq %rbx
\t.cfi_adjust_cfa_offset -8
\t.cfi_restore %rbx
\tPROBE last
\tret
\t.cfi_endproc
\t.size f{i}, . - f{i}
"""
# All sites in one function, each in a block of its own that branches skip.
LONG = """
\t.type f0, @function
f0:\t.cfi_startproc
{blocks}
\tmovq %rdi, %rax
\tret
\t.cfi_endproc
\t.size f0, . - f0
"""
BLOCK = "\ttestb $1, %dil\n\tjnz 1f\n\tPROBE block\n1:\tleaq 1(%rdi), %rdi\n"
TABLE = """\tleaq 9f(%rip), %rdx
\tmovslq (%rdx,%rax,4), %rax
\taddq %rdx, %rax
\tjmp *%rax
\t.section .rodata
\t.balign 4
9:\t.long 1f - 9b, 2f - 9b, 3f - 9b, 4f - 9b
\t.text"""
MAIN = """
\t.type leaf, @function
leaf:\tret
\t.size leaf, . - leaf
\t.globl main
\t.type main, @function
main:\t.cfi_startproc
\tpushq %r12
\t.cfi_adjust_cfa_offset 8
\t.cfi_offset %r12, -16
\tpushq %r13
\t.cfi_adjust_cfa_offset 8
\t.cfi_offset %r13, -24
\tsubq $8, %rsp
\t.cfi_adjust_cfa_offset 8
\txorl %r13d, %r13d
\tleaq all(%rip), %r12
1:\tmovq (%r12), %rax
\ttestq %rax, %rax
\tjz 2f
\tmovq %r13, %rdi
\tcall *%rax
\timulq $31, %r13, %r13
\taddq %rax, %r13
\taddq $8, %r12
\tjmp 1b
2:\tleaq format(%rip), %rdi
\tmovq %r13, %rsi
\txorl %eax, %eax
\tcall printf@PLT
\txorl %eax, %eax
\taddq $8, %rsp
\t.cfi_adjust_cfa_offset -8
\tpopq %r13
\t.cfi_adjust_cfa_offset -8
\tpopq %r12
\t.cfi_adjust_cfa_offset -8
\tret
\t.cfi_endproc
\t.size main, . - main
\t.section .rodata
format:\t.asciz "%ld\\n"
\t.data
cell:\t.quad 5
\t.section .data.rel.ro,"aw"
all:
"""


def make(folder, sites, one_function):
    """A program with that many sites."""
    functions = 1 if one_function else sites // SITES_OF_FUNCTION
    source = os.path.join(folder, f"{sites}.s")
    with open(source, "w", encoding="ascii") as out:
        out.write(HEAD)
        for i in range(functions):
            if one_function:
                out.write(LONG.format(blocks=BLOCK * sites))
                continue
            jump = TABLE if i % 16 == 0 else "\tcmpl $1, %eax\n\tje 1f\n\tja 2f"
            out.write(FUNCTION.format(i=i, jump=jump))
        out.write(MAIN)
        out.writelines(f"\t.quad f{i}\n" for i in range(functions))
        out.write("\t.quad 0\n")
    program = os.path.join(folder, str(sites))
    subprocess.run(["gcc", "-pie", source, "-o", program], check=True)
    return program


def measure(reprobe, program):
    """(seconds of CPU, MiB, fraction of the sites with sleds, bytes grown); the fastest of three
    runs. Elapsed time is that of the machine's other work too."""
    best = None
    for _ in range(3):
        said = program + ".said"
        with open(said, "w", encoding="utf-8") as out:
            process = subprocess.Popen([reprobe, "sled", program, "-o", program + ".sled"],
                                       stderr=out)
            _, status, usage = os.wait4(process.pid, 0)
        seconds = usage.ru_utime + usage.ru_stime
        with open(said, encoding="utf-8") as text:
            errors = text.read()
        if status:
            raise SystemExit(f"FAILED: {program}: {errors[-500:]}")
        best = min(best or seconds, seconds)
    done, all_sites = map(int, re.search(r"sleds: (\d+)/(\d+)", errors).groups())
    grown = os.path.getsize(program + ".sled") - os.path.getsize(program)
    return best, usage.ru_maxrss / 1024, done / all_sites, grown


def measured_line(reprobe, folder, sites, one_function, last):
    """Prints a line; gives its seconds, and whether all is well. `last`: with half the sites."""
    program = make(folder, sites, one_function)
    seconds, memory, part, grown = measure(reprobe, program)
    outputs = [subprocess.run([file], capture_output=True, check=False)
               for file in (program, program + ".sled")]
    same = outputs[0].stdout == outputs[1].stdout and outputs[1].returncode == 0
    ratio = seconds / last / 2 if last else 1.0
    print(f"{sites} sites{' of one function' if one_function else ''}: {seconds:.2f} s, "
          f"{memory:.0f} MiB, {100 * part:.1f}% with sleds, {grown / sites:.0f} bytes a site, "
          f"{'same output' if same else 'OTHER OUTPUT'}, {ratio:.2f} of the cost a site before",
          flush=True)
    return seconds, same and part >= 0.99 and ratio <= MOST_RATIO


def main():
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    most = int(sys.argv[2]) if len(sys.argv) == 3 else 100000
    failed = False
    with tempfile.TemporaryDirectory(prefix="reprobe-sled-scale-") as folder:
        for one_function in (False, True):
            last = None
            for part in (4, 2, 1):
                sites = most // part // (5 if one_function else 1)
                last, good = measured_line(sys.argv[1], folder, sites, one_function, last)
                failed |= not good
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
