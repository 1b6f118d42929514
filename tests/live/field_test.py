#!/usr/bin/env python3
"""field_test.py REPROBE: files as they are shipped, and what the tools that read them do: each case has its
own small program, and what is right is told by readelf, perf, bpftrace, gdb, nm or the running program."""
import gzip
import io
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
from command import Tests, read, write  # noqa: E402

tests = Tests(sys.argv[1])
TRACES = os.geteuid() == 0 and os.path.exists("/sys/bus/event_source/devices/uprobe")

NOTE = r"""
#define STR_(x) #x
#define NOTE(site, provider, name, args) site "\n.pushsection .note.stapsdt,\"\",\"note\"\n.balign 4\n" \
  ".4byte 8,994f-993f,3\n.asciz \"stapsdt\"\n993: .8byte 990b,_.stapsdt.base,0\n" \
  ".asciz \"" provider "\"\n.asciz \"" name "\"\n.asciz \"" args "\"\n994: .balign 4\n.popsection\n" \
  ".ifndef _.stapsdt.base\n.pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
  ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n_.stapsdt.base: .space 1\n.size _.stapsdt.base,1\n" \
  ".popsection\n.endif\n"
"""


def build(name, source, *options, compiler="gcc"):
    pathlib.Path(name + ".c").write_text(source)
    done = subprocess.run([compiler, "-w", "-Wl,--build-id=sha1", *options, name + ".c", "-o", name],
                          capture_output=True, text=True)
    tests.check(f"{name}: built", done.returncode == 0, done.stderr)


def one_note(name, args="", provider="pool", before="", hits=3):
    return NOTE + f"""
int main(void) {{ for (int i = 0; i < {hits}; i++) __asm__ volatile({before or '""'}
  NOTE("990: nop", "{provider}", "{name}", "{args}")); return 0; }}
"""


def say(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
    return done.stdout + done.stderr


def notes(file):
    return re.findall(r"Arguments: ?(.*)", say("readelf", "-nW", file))


def cells(file, *consumers):
    """(probe, consumer): the reasons of its failures"""
    document = json.loads(tests.run("audit", "--json", *(["--consumers", ",".join(consumers)] if consumers else []),
                                    file).out)
    found = {}
    for entry in document["files"]:
        for consumer, verdict in entry.get("consumers", {}).items():
            for failure in verdict["failures"]:
                found.setdefault((failure["name"], consumer), []).append(failure["reason"])
    return found


def names_that_perf_refuses():
    for name, provider, bad in (("worker-stop", "pool", True), ("9lives", "pool", True), ("stop", "po-ol", True),
                                ("plain", "pool", False)):
        build("named", one_note(name, provider=provider), "-O2")
        refused = "Semantic error" in say("perf", "--buildid-dir", os.path.join(tests.folder, "cache"), "buildid-cache",
                                          "--add", "named") + \
            say("perf", "--buildid-dir", os.path.join(tests.folder, "cache"), "list", "sdt")
        shutil.rmtree("cache", ignore_errors=True)
        tests.same(f"perf and {provider}:{name}", bad, refused)
        tests.same(f"the verdict on {provider}:{name}", ["name-not-c"] if bad else None,
                   cells("named", "perf").get((name, "perf")))
        warned = tests.run("audit", "named")
        tests.same(f"audit warns of {provider}:{name}", bad, "warning probe-name-perf" in warned.out)


def arguments():
    # A structure by value: bpftrace 0.17 and bcc abort.
    build("struct", one_note("go", "24@(%rsp) 8@%rax"), "-O2")
    found = cells("struct", "bcc", "bpftrace-0.17")
    for consumer in ("bcc", "bpftrace-0.17"):
        tests.same(f"{consumer} aborts", ["argument-aborts"], found.get(("go", consumer)))
    # bpftrace 0.17 has arg0 to arg5 on x86-64; gdb has twelve.
    for count in (6, 7, 12, 13):
        build("wide", one_note("many", " ".join(f"8@${100 + i}" for i in range(count))), "-O1")
        found = cells("wide", "bpftrace-0.17", "gdb", "gadget")
        tests.same(f"bpftrace 0.17 and {count} arguments", ["argument-count"] if count > 6 else None,
                   found.get(("many", "bpftrace-0.17")))
        tests.same(f"gdb and {count} arguments", ["too-many-arguments"] if count > 12 else None,
                   found.get(("many", "gdb")))
        if count != 13:
            continue
        said = say("gdb", "-nx", "-batch", "-ex", "set debuginfod enabled off", "-ex", "break -probe-stap pool:many",
                   "-ex", "run", "-ex", "p $_probe_arg11", "-ex", "p $_probe_arg12", "./wide")
        tests.check("gdb has no thirteenth argument", "= 111" in said and "void" in said, said)
        if TRACES:
            said = say("bpftrace", "-e", "usdt:./wide:pool:many { @ = max(arg6); }", "-c", "./wide")
            tests.check("bpftrace has no arg6", "support arg6" in said or "@: 106" in said, said)
    # A symbol's low bits: blanks in the operand, and nobody reads it.
    if shutil.which("aarch64-linux-gnu-gcc"):
        build("lo12", one_note("step", "-8@x0 -8@[x1, #:lo12:total] 4@[x2, 8]"), "-O2", compiler="aarch64-linux-gnu-gcc")
        result = tests.run("audit", "lo12")
        tests.check("the operand with a symbol is named whole",
                    "argument-symbol" in result.out and "[x1, #:lo12:total]" in result.out, result.text())
        shown = tests.run("audit", "--consumers", "libbpf", "lo12", tracers=True)
        tests.check("and in the table", "[x1, #:lo12:total]" in shown.out.split("tracer", 1)[-1], shown.text())


def intel_operands():
    before = "8@rdi -4@esi 8@[rdi+8] 8@qword ptr [rsp + 16] -8@[rax + 4*rcx - 16] 4@dword ptr [rbx] 8@[rcx+rsp] 4@DWORD PTR 16[rbp]"
    after = "8@%rdi -4@%esi 8@8(%rdi) 8@16(%rsp) -8@-16(%rax,%rcx,4) 4@0(%rbx) 8@0(%rsp,%rcx,1) 4@16(%rbp)"
    build("intel", one_note("go", before), "-O2")
    result = tests.run("audit", "intel")
    tests.check("the hint names options(att_syntax) and --respell",
                "options(att_syntax)" in result.out and "--respell" in result.out, result.text())
    result = tests.run("fix", "--respell", "intel", "-o", "att")
    tests.same("--respell", 0, result.code)
    tests.same("Intel operands in AT&T syntax", [re.sub(" +", " ", after)], [re.sub(" +", " ", a) for a in notes("att")])
    tests.same("verify --respell", 0, tests.run("verify", "--respell", "intel", "att").code)
    # What can be read in two ways stays: a value or an address, another size, a symbol, no base.
    for kept in ("8@5", "8@dword ptr [rax]", "8@[rip + total]", "8@[4*rcx]", "8@fs:[rax]", "8@total[rip]"):
        build("kept", one_note("go", kept), "-O2")
        tests.run("fix", "--respell", "kept", "-o", "same")
        tests.same(f"{kept} stays", [kept], notes("same"))


def build_id(file):
    return re.search(r"Build ID: (\w*)", say("readelf", "-nW", file) + "Build ID: ")[1]


def build_ids():
    for linker in ("bfd", "gold", "lld", "mold"):
        build("without", one_note("tick"), "-O2", f"-fuse-ld={linker}", "-Wl,--build-id=none")
        result = tests.run("fix", "--json", "--build-id=new", "without", "-o", "out")
        tests.same(f"{linker}: a build-id where there was none", 0, result.code)
        new = build_id("out")
        tests.check(f"{linker}: of 20 bytes", len(new) == 40, new)
        tests.check(f"{linker}: --json names it", json.loads(result.out)["build_id"] == {"before": None, "after": new},
                    result.out)
        tests.same(f"{linker}: runs", 0, subprocess.run(["./out"], timeout=60).returncode)
        tests.check(f"{linker}: eu-unstrip sees it", new in say("eu-unstrip", "-n", "-e", "out"))
        cache = os.path.join(tests.folder, "ids")
        said = say("perf", "--buildid-dir", cache, "buildid-cache", "--add", "out") + \
            say("perf", "--buildid-dir", cache, "list", "sdt")
        tests.check(f"{linker}: perf lists the probe of its file", "sdt_pool:tick" in said, said)
        shutil.rmtree(cache, ignore_errors=True)
        tests.same(f"{linker}: verify --new-build-id", 0, tests.run("verify", "--new-build-id", "without", "out").code)
        tests.same(f"{linker}: verify without it", 1, tests.run("verify", "without", "out").code)
        forged = bytearray(read("out"))
        forged[forged.rindex(bytes.fromhex(new)) - 8] ^= 1  # the note's type
        write("forged", forged, 0o755)
        tests.same(f"{linker}: another note", 1, tests.run("verify", "--new-build-id", "without", "forged").code)
        # One that has one is left alone where nothing changes, and the same file gets the same id.
        tests.run("fix", "--build-id=new", "without", "-o", "again")
        tests.same(f"{linker}: the same again", read("out"), read("again"))
    result = tests.run("fix", "without", "-o", "out")
    tests.check("without the option", result.code == 0 and not build_id("out"), result.text())
    build("headless", one_note("tick"), "-O2", "-Wl,--build-id=none")
    program = bytearray(read("headless"))
    program[40:48], program[60:64] = bytes(8), bytes(4)  # e_shoff, e_shnum, e_shstrndx
    write("headless", program, 0o755)
    result = tests.run("fix", "--build-id=new", "headless", "-o", "none")
    tests.check("without section headers: no, and why", result.code == 4 and "section headers" in result.err and
                not os.path.exists("none"), result.text())


def unknown_machine():
    build("plain", one_note("tick"), "-O2")
    program = bytearray(read("plain"))
    program[18:20] = (8).to_bytes(2, "little")  # EM_MIPS
    write("mips", program, 0o755)
    result = tests.run("relativize", "mips", "-o", "out")
    tests.check("relativize says what it does not know", result.code == 4 and "not in this file" not in result.err and
                "mips" in result.err.lower(), result.text())


def alpine_package():
    build("app", one_note("live"), "-O2")

    def segment(files, cut):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for name, data in files:
                info = tarfile.TarInfo(name)
                info.size, info.mode = len(data), 0o755
                tar.addfile(info, io.BytesIO(data))
            end = tar.offset
        return gzip.compress(out.getvalue()[:end] if cut else out.getvalue())

    write("a.apk", segment([(".SIGN.RSA.key.rsa.pub", b"x" * 256)], True) + segment([(".PKGINFO", b"pkgname = a\n")], True)
          + segment([("usr/bin/app", read("app"))], False))
    result = tests.run("list", "a.apk")
    tests.check("the program in an Alpine package", result.code == 0 and "a.apk(usr/bin/app)" in result.out and
                "pool:live" in result.out, result.text())


COUNTED = """#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>
#include <stdio.h>
unsigned short cache_hits_semaphore __attribute__((section(".probes")));
static __thread int each = 5;
static int (*volatile print)(const char *, ...) = printf;
int main(void) {
  for (long i = 0; i < 100; i++) if (cache_hits_semaphore) DTRACE_PROBE1(cache, hits, i);
  print("%d %d\\n", each, *(volatile unsigned short *)&cache_hits_semaphore);
  return 0;
}
"""


def hits(file):
    """What bpftrace counts, and what the program prints meanwhile: its counter is the last number."""
    said = say("bpftrace", "-e", f"usdt:./{file}:cache:hits {{ @ = count(); }}", "-c", f"./{file}")
    found, printed = re.search(r"@: (\d+)", said), re.search(r"^5 (\d+)$", said, re.M)
    return (int(found[1]), int(printed[1])) if found and printed else said


def loads(file):
    """(offset, address, bytes in the file, flags) of each PT_LOAD"""
    return [(int(m[1], 16), int(m[2], 16), int(m[3], 16), m[4].replace(" ", "")) for m in re.finditer(
        r"^  LOAD +0x(\w+) 0x(\w+) 0x\w+ 0x(\w+) 0x\w+ ([RWE ]{3})", say("readelf", "-lW", file), re.M)]


def pages(load):
    return set(range(load[0] // 4096, (load[0] + load[2] - 1) // 4096 + 1))


def counter_in_relro_page():
    """lld and mold let RELRO and the data share a page of the file, and the kernel raises the counter
    in the wrong mapping. (Rust links so by itself.)"""
    builds = [("gcc", linker, options) for linker in ("lld-14", "lld-19", "mold")
              for options in (["-O1"], ["-O1", "-no-pie", "-fno-pie"])]
    builds += [("gcc", "lld-19", ["-O1", "-static"]), ("gcc", "lld-19", ["-O1", "-Wl,-z,norelro"]),
               ("gcc", "mold", ["-O1", "-Wl,-z,norelro"])]
    builds += [(compiler, "lld-19", ["-O1", "-idirafter", "/usr/include/x86_64-linux-gnu"]) for compiler in
               ("i686-linux-gnu-gcc", "aarch64-linux-gnu-gcc") if shutil.which(compiler)]
    shared = 0
    for compiler, linker, options in builds:
        here = compiler == "gcc"
        os.makedirs("links", exist_ok=True)
        if os.path.lexists("links/ld.lld"):
            os.remove("links/ld.lld")
        path = shutil.which("ld." + linker)
        if not path:
            continue
        os.symlink(path, "links/ld.lld")
        what = f"{compiler} {linker} {' '.join(options)}"
        build("relro", COUNTED, *options, *(["-fuse-ld=mold"] if linker == "mold" else ["-Blinks", "-fuse-ld=lld"]),
              compiler=compiler)
        result = tests.run("audit", "relro")
        if "semaphore-relro-page" not in result.out:
            continue
        shared += 1
        tests.check(f"{what}: the hint names fix", "hint: reprobe fix" in result.out, result.text())
        result = tests.run("fix", "relro", "-o", "fixed")
        tests.check(f"{what}: fix mends it", result.code == 0 and "semaphore-relro-page" in result.err, result.text())
        tests.same(f"{what}: nothing is left to say", "", "".join(
            line for line in tests.run("audit", "fixed").out.splitlines() if "relro-page" in line))
        tests.same(f"{what}: verify", 0, tests.run("verify", "relro", "fixed").code)
        if here:
            tests.same(f"{what}: prints the same", say("./relro"), say("./fixed"))
        old, now = loads("relro"), loads("fixed")
        tests.same(f"{what}: addresses and sizes", [load[1:] for load in old], [load[1:] for load in now])
        moved = [load for load, was in zip(now, old) if load[0] != was[0]]
        tests.same(f"{what}: one segment has moved", 1, len(moved))
        tests.same(f"{what}: to pages of its own", set(), pages(moved[0]).intersection(
            *[set().union(*[pages(load) for load in now if load not in moved])]))
        if TRACES and here:
            tests.same(f"{what}: before, nobody raises what the program reads", (0, 0), hits("relro"))
            count, counter = hits("fixed")  # which bpftrace 0.17 may raise a second time by itself
            tests.check(f"{what}: hits and counter", count == 100 and counter in (1, 2), f"{count} {counter}")
        forged_moves(what, old, now)
    tests.check("lld or mold share the page", shared >= 4, str(shared))
    build("relro", COUNTED, "-O1", "-fuse-ld=lld")
    tests.same("guards", 0, tests.run("guards", "--to", "site", "relro", "-o", "guarded").code)
    if TRACES:
        tests.same("guarded: hits", 100, hits("guarded")[0])
    result = tests.run("fix", "--skip", "semaphore-relro-page", "relro", "-o", "left")
    tests.check("left where it was not chosen", result.code == 4 and "guards" in result.err, result.text())


def forged_moves(what, old, now):
    """verify knows the move from everything that looks like it."""
    fixed = read("fixed")
    if fixed[4] != 2:
        return
    moved = next(load for load, was in zip(now, old) if load[0] != was[0])
    was = next(was for load, was in zip(now, old) if load[0] != was[0])
    field = fixed.index(moved[0].to_bytes(8, "little") + moved[1].to_bytes(8, "little"))
    header = next(m for m in re.finditer(r"(\.\w+) +PROGBITS +(\w+) (\w+) (\w+) \S+ +WA", say("readelf", "-SW", "fixed"))
                  if 0 <= int(m[3], 16) - moved[0] == int(m[2], 16) - moved[1] and int(m[4], 16))
    section = fixed.rindex(int(header[2], 16).to_bytes(8, "little") + int(header[3], 16).to_bytes(8, "little")) + 8
    forgeries = {
        "bytes of the copy": (moved[0] + moved[2] - 1, bytes([fixed[moved[0] + moved[2] - 1] ^ 1])),
        "the old bytes": (was[0], bytes([fixed[was[0]] ^ 1])),
        "another place": (field, (moved[0] - 4096).to_bytes(8, "little")),
        "its address": (field + 8, (moved[1] + 4096).to_bytes(8, "little")),
        "its size": (field + 24, (moved[2] - 1).to_bytes(8, "little")),
        "a section at the old place": (section, (int(header[3], 16) - moved[0] + was[0]).to_bytes(8, "little")),
    }
    for name, (at, data) in forgeries.items():
        write("forged", fixed[:at] + data + fixed[at + len(data):], 0o755)
        result = tests.run("verify", "--second-opinion=never", "relro", "forged")
        tests.check(f"{what}: verify sees {name}", result.code == 1, result.text())


MINI = r"""
#define NOTE ".balign 4\n .4byte 992f-991f,994f-993f,3\n991: .asciz \"stapsdt\"\n992: .balign 4\n993: .8byte 990b\n .8byte 0\n .8byte 0\n .asciz \"hn\"\n .asciz \"a\"\n .asciz \"-4@x0\"\n994: .balign 4\n"
#ifdef FIRST
__attribute__((noinline)) int f(int x) { __asm__ volatile("990: nop\n .pushsection .note.stapsdt,\"\",\"note\"\n .rept 13\n" NOTE ".endr\n .popsection\n"); return x + 1; }
#else
int f(int);
int main(int c, char **v) { __asm__ volatile("990: nop\n .pushsection .note.stapsdt,\"\",\"note\"\n" NOTE ".popsection\n"); return f(c) - 2; }
#endif
"""


def symbols_of_unloaded_sections():
    """$d of the second object's notes has a value that is an address of what relativize moves."""
    if not shutil.which("aarch64-linux-gnu-gcc"):
        return
    pathlib.Path("mini.c").write_text(MINI)
    for linker in ("lld-14", "lld-19"):
        path = shutil.which("ld." + linker)
        if not path:
            continue
        os.makedirs("links", exist_ok=True)
        if os.path.lexists("links/ld.lld"):
            os.remove("links/ld.lld")
        os.symlink(path, "links/ld.lld")
        for mode in (["-pie", "-fPIE"], ["-shared", "-fPIC"]):
            for part in ("-DFIRST", "-DSECOND"):
                say("aarch64-linux-gnu-gcc", "-O2", *mode, part, "-c", "mini.c", "-o", part + ".o")
            said = say("aarch64-linux-gnu-gcc", "-O2", *mode, "-Blinks", "-fuse-ld=lld", "./-DFIRST.o", "./-DSECOND.o", "-o", "mini")
            tests.check(f"{linker}: built", os.path.exists("mini"), said)
            tests.run("fix", "mini", "-o", "mini.fixed")
            result = tests.run("relativize", "mini.fixed", "-o", "mini.index")
            tests.same(f"{linker} {mode[0]}: relativize", 0, result.code)
            headers = say("readelf", "-SW", "mini.fixed")
            section = re.search(r"\[ *(\d+)\] \.note\.stapsdt", headers)[1]
            table = lambda name: [line.split()[1:] for line in say("readelf", "-sW", name).splitlines()
                                  if "$d" in line and line.split()[6] == section]
            tests.same(f"{linker} {mode[0]}: the mapping symbols of notes",
                       table("mini.fixed"), table("mini.index"))


def patchelf_after():
    if not shutil.which("patchelf"):
        print("NOTE: no patchelf: what it makes of an index is not tried")
    for linker in ("gold", "bfd", "lld", "mold"):
        build("index", "#include <stdio.h>\n" + one_note("go").replace("return 0", 'puts("runs"); return 0'), "-O2",
              f"-fuse-ld={linker}")
        result = tests.run("relativize", "index")
        warned = "patchelf" in result.err
        if not shutil.which("patchelf"):
            continue
        shutil.copy("index", "patched")
        say("patchelf", "--set-rpath", "/opt/x", "patched")
        done = subprocess.run([os.path.abspath("patched")], capture_output=True, text=True)
        # Of lld's file it overwrites the null symbol, which nobody reads: warned of, and it runs.
        tests.check(f"{linker}: relativize warns where patchelf breaks the program", warned or done.stdout == "runs\n",
                    done.stdout + done.stderr)
        if linker == "bfd":
            tests.check("bfd leaves room: no warning", not warned, result.text())


def debug_file_by_itself():
    build("twin", one_note("tick"), "-O2", "-g")
    say("objcopy", "--only-keep-debug", "twin", "twin.debug")
    shutil.copy("twin", "bare")
    say("objcopy", "-R", ".note.stapsdt", "--strip-debug", "bare")
    result = tests.run("fix", "--from-debug=auto", "bare", "-o", "back")
    tests.check("no debug file", result.code == 3 and "was found" in result.err, result.text())
    shutil.copy("bare", "linked")
    say("objcopy", "--add-gnu-debuglink=twin.debug", "linked")
    os.makedirs(".debug")
    os.rename("twin.debug", ".debug/twin.debug")
    result = tests.run("fix", "--from-debug=auto", "linked", "-o", "back")
    tests.check(".gnu_debuglink", result.code == 0 and ".debug/twin.debug" in result.err, result.text())
    tests.same("the note is back", notes("twin"), notes("back"))
    # A program named debuginfod-find stands for the server.
    os.makedirs("bin")
    write("bin/debuginfod-find", f"#!/bin/sh\n[ \"$1\" = debuginfo ] && echo {tests.folder}/.debug/twin.debug\n".encode(), 0o755)
    tests.environment["PATH"] = tests.folder + "/bin:" + os.environ["PATH"]
    result = tests.run("fix", "--from-debug=auto", "bare", "-o", "back")
    tests.check("debuginfod-find", result.code == 0, result.text())
    # One of another build does not count.
    build("other", one_note("tock"), "-O1")
    write("bin/debuginfod-find", f"#!/bin/sh\necho {tests.folder}/other\n".encode(), 0o755)
    result = tests.run("fix", "--from-debug=auto", "bare", "-o", "back2")
    tests.same("another build's debug file", 3, result.code)


def debuginfod_server():
    """A server of elfutils that has the debug file, asked by the debuginfod-find that is installed."""
    if not shutil.which("debuginfod") or not shutil.which("debuginfod-find"):
        tests.check("debuginfod is there (scripts/packages names it)", False)
        return
    build("served", one_note("tick"), "-O2", "-g")
    os.makedirs("symbols")
    say("objcopy", "--only-keep-debug", "served", "symbols/served.debug")
    say("objcopy", "-R", ".note.stapsdt", "--strip-debug", "served", "unserved")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tests.environment.update(PATH=os.environ["PATH"], DEBUGINFOD_URLS=f"http://127.0.0.1:{port}",
                             DEBUGINFOD_CACHE_PATH=os.path.join(tests.folder, "debuginfod"))
    server = subprocess.Popen(["debuginfod", "-F", "-d", ":memory:", "-p", str(port), "symbols"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(60):  # until it has read the folder
            asked = subprocess.run(["debuginfod-find", "debuginfo", build_id("served")], capture_output=True,
                                   env={**os.environ, **tests.environment})
            if not asked.returncode:
                break
            shutil.rmtree("debuginfod", ignore_errors=True)  # it remembers what was not found
            time.sleep(0.5)
        shutil.rmtree("debuginfod", ignore_errors=True)
        result = tests.run("fix", "--from-debug=auto", "unserved", "-o", "back")
        tests.check("from a server", result.code == 0 and "debuginfod" in result.err, result.text())
        tests.same("the note is back from a server", notes("served"), notes("back"))
    finally:
        server.kill()
        server.wait()
    shutil.rmtree("debuginfod", ignore_errors=True)
    result = tests.run("fix", "--from-debug=auto", "unserved", "-o", "back2")
    tests.check("a server that does not answer", result.code == 3 and not os.path.exists("back2"), result.text())


def rust_names():
    name = "_RINvMNtCsgEmfK2I1SDS_4core3stre18trim_start_matchesReECsgY6Mt91CT9J_14rustc_demangle"
    build("rust", NOTE + f"""
__attribute__((noinline)) int go(int i) __asm__("{name}");
int go(int i) {{ __asm__ volatile(NOTE("990: nop", "pool", "go", "")); return i; }}
int main(int c, char **v) {{ return go(c) - 1; }}
""", "-O2")
    result = tests.run("list", "rust")
    tests.check("the name as the source has it", "<str>::trim_start_matches::<&str>+0x" in result.out and name not in result.out,
                result.text())
    result = tests.run("list", "-v", "rust")
    tests.check("-v: both", f"<str>::trim_start_matches::<&str> [{name}]+0x" in result.out, result.text())
    result = tests.run("list", "--json", "rust")
    tests.check("JSON: both", f'"function": "{name}"' in result.out and
                '"function_demangled": "<str>::trim_start_matches::<&str>"' in result.out, result.text())


def consumers_in_go():
    build("based", one_note("tick", "8@%rax"), "-O2")
    tests.same("a sound file", {}, cells("based", "otel", "parca", "tetragon", "gadget"))
    build("baseless", one_note("tick").replace("_.stapsdt.base,0", "0,0").replace(
        NOTE[NOTE.index('  ".ifndef'):], '  ""\n'), "-O2")
    found = cells("baseless", "otel", "parca", "tetragon", "gadget")
    tests.same("without .stapsdt.base", {("tick", "otel"): ["base-missing"], ("tick", "gadget"): ["base-missing"]}, found)
    for consumers, severity in ((["--consumers", "otel"], "error"), (["--consumers", "gadget"], "error"), ([], "warning")):
        result = tests.run("audit", *consumers, "baseless")
        tests.check(f"base-missing is of severity {severity}: {consumers}", f"{severity} base-missing" in result.out,
                    result.text())
    # One dangling note of any name makes Tetragon refuse the file.
    build("dead", "#include <sys/sdt.h>\n__attribute__((noinline)) void unused(int n) { DTRACE_PROBE1(pool, gone, n); }\n"
          "int main(void) { DTRACE_PROBE(pool, tick); return 0; }\n", "-O2", "-ffunction-sections", "-fuse-ld=lld", "-Wl,--gc-sections")
    tests.same("Tetragon and a dangling note", ["file-segment"], cells("dead", "tetragon").get(("tick", "tetragon")))
    tests.run("fix", "dead", "-o", "alive")
    tests.same("after fix", {}, cells("alive", "otel", "parca", "tetragon", "gadget"))
    # What Inspektor Gadget and parca read of arguments.
    for operands, wanted in (("8@16(%rbp)", set()), ("8@$5", {"gadget"}), ("8@(%rbp,%rax,8)", {"gadget", "parca"}),
                             ("8f@8(%rbp)", {"gadget", "tetragon"}), ("8@(%rax)", {"gadget"})):
        build("operand", one_note("tick", operands), "-O2")
        tests.same(f"who does not read {operands}", wanted,
                   {consumer for _, consumer in cells("operand", "parca", "tetragon", "gadget")})


def programs_of_32_bits():
    """libbpf refuses them on a machine of 64 bits, bpftrace 0.17 counts."""
    if not shutil.which("i686-linux-gnu-gcc") or not TRACES:
        print("NOTE: programs of 32 bits are not traced")
        return
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "tracers"))
    from tools import bpftrace, libbpf  # pylint: disable=import-outside-toplevel
    tests.same("libbpf_attach is built", "", libbpf.build(tests.folder))
    key = ("pool", "tick")
    for name, compiler, wanted in (("wide", "gcc", 3), ("narrow", "i686-linux-gnu-gcc", "refused")):
        source = one_note("tick") if name == "wide" else one_note("tick").replace("8byte", "4byte")
        build(name, source, "-O2", compiler=compiler)
        file = os.path.join(tests.folder, name)
        tests.same(f"{name}: libbpf", wanted, libbpf.counts(file, [key], [file], tests.folder)[key])
        tests.same(f"{name}: bpftrace", 3, bpftrace.counts(file, [key], [file])[key])
        tests.same(f"{name}: the verdicts", {} if name == "wide" else {("tick", "libbpf-1.1"): ["class"]},
                   cells(name, "libbpf-1.1", "bpftrace-0.17"))


def inside_an_instruction():
    """A nop's byte in an instruction's constant: a breakpoint there changes what the program does. That an indirect
    jump might go there makes it no site."""
    build("inside", NOTE + r"""
int main(int c, char **v) {
  static void *const where[] = {&&a, &&b};
  volatile int i = c > 5;
  goto *where[i];
a: __asm__ volatile(".byte 0x48,0xb8\n" NOTE("990: .byte 0x90,0x90,0x90,0x90,0x90,0x90,0x90,0x90", "pool", "odd", "") ::: "rax");
b: __asm__ volatile(NOTE("990: nop", "pool", "even", ""));
  return 0;
}
""", "-O2")
    result = tests.run("list", "--json", "inside")
    probes = {probe["name"]: probe for probe in json.loads(result.out)["files"][0]["probes"]}
    tests.same("the verdicts", {"odd": "ambiguous", "even": "live"}, {name: p["verdict"] for name, p in probes.items()})
    tests.check("why", any("inside mov" in line and "indirect jump" in line for line in probes["odd"]["evidence"]), result.out)


OLD = r"""
#include "%s"
#include <stdio.h>
__attribute__((noinline)) void f(int x) { LEGACY_PROBE1(old, one, x); printf("%%d\n", x); }
__attribute__((noinline)) void g(int x, double d) { LEGACY_PROBE0(old, two); printf("%%d %%f\n", x, d); }
int main(int c, char **v) { for (int i = 0; i < 3; i++) { f(i); g(i, c); } return 0; }
"""


def old_calls():
    """Calls of SystemTap up to 1.3 before a call with variable arguments, and through the global offset table."""
    header = pathlib.Path(__file__).resolve().parents[2] / "fixtures" / "legacy.h"
    for compiler in ("gcc", "clang-14"):
        for options in (["-O0"], ["-O2"], ["-O2", "-fno-plt"], ["-O2", "-static"]):
            if not shutil.which(compiler):
                continue
            build("calls", OLD % header, "-DLEGACY_FORM=5", "-DLEGACY_COUNTERS=0", *options, compiler=compiler)
            before = say(os.path.abspath("calls"))
            what = f"{compiler} {' '.join(options)}"
            tests.same(f"{what}: its probes are system calls", 6, say("strace", os.path.abspath("calls")).count("getegid("))
            result = tests.run("fix", "calls", "-o", "nops")
            tests.check(f"{what}: both calls are upgraded", result.code == 0, result.text())
            if result.code:
                continue
            tests.same(f"{what}: prints the same", before, say(os.path.abspath("nops")))
            tests.same(f"{what}: no system call", 0, say("strace", os.path.abspath("nops")).count("getegid("))
            tests.same(f"{what}: verify", 0, tests.run("verify", "calls", "nops").code)
            sites = [int(m, 16) for m in re.findall(r"Location: 0x(\w+)", say("readelf", "-nW", "nops"))]
            code = say("objdump", "-d", "nops")
            tests.same(f"{what}: a nop of one byte at each site", [True] * len(sites),
                       [bool(re.search(rf"^ *{site:x}:\s+90 +\s*nop", code, re.M)) for site in sites])


def record_of_32_bits():
    """SystemTap 0.9.5 wrote .long words: the last record of a program of 64 bits ends within a slot."""
    probe = r"""__asm__ volatile(".section .probes\n.align 8\n1: .asciz \"%s\"\n.align 4\n.int 0x31425250\n.align 8\n"
      ".long 1b\n.align 8\n.long 2f\n.previous\n2: nop");"""
    build("short", "int main(void) { " + probe % "first" + probe % "last" + " return 0; }", "-O1", "-no-pie", "-fno-pie")
    result = tests.run("fix", "short", "-o", "upgraded")
    tests.same("upgraded", 0, result.code)
    names = re.findall(r"Name: (\S+)", say("readelf", "-nW", "upgraded"))
    tests.same("both records have notes", ["first", "last"], names)


CASES = [names_that_perf_refuses, arguments, intel_operands, build_ids, unknown_machine, alpine_package,
         counter_in_relro_page, symbols_of_unloaded_sections, patchelf_after, debug_file_by_itself, debuginfod_server, rust_names,
         consumers_in_go, programs_of_32_bits, inside_an_instruction, old_calls, record_of_32_bits]
if os.uname().machine != "x86_64":
    print("SKIP: the programs are written for x86-64")
    sys.exit(77)
for case in CASES:
    if len(sys.argv) == 2 or case.__name__ in sys.argv[2:]:
        case()
tests.finish()
