"""libbpf: bpf_program__attach_usdt() in libbpf_attach.c. It has no list."""
import os

from common import REFUSED, run

CONSUMER = "libbpf-1.1"
SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PROGRAM = "clang-14"


def build(folder):
    """libbpf_attach and the BPF object that it loads, in this folder; what failed, if anything."""
    source = os.path.join(SOURCES, "libbpf_attach")
    bpf = run("clang-14", "-O2", "-g", "-target", "bpf", "-D__TARGET_ARCH_x86",
              "-I/usr/include/x86_64-linux-gnu", "-c", source + ".bpf.c",
              "-o", os.path.join(folder, "count.bpf.o"))
    loader = run("gcc", "-O1", source + ".c", "-o", os.path.join(folder, "libbpf_attach"), "-lbpf")
    return bpf.stderr + loader.stderr


def counts(file, keys, command, folder):
    probes = [f"{provider}:{name}" for provider, name in keys]
    said = run(os.path.join(folder, "libbpf_attach"), os.path.join(folder, "count.bpf.o"), file,
               *probes, "--", *command)
    lines = dict(line.split(" ", 1) for line in said.stdout.splitlines())
    hits = {}
    for key, probe in zip(keys, probes):
        word = lines.get(probe, REFUSED)
        hits[key] = int(word.split()[1]) if word.startswith("hits ") else REFUSED
    return hits
