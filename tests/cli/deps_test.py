#!/usr/bin/env python3
"""deps_test.py REPROBE: list --deps finds the libraries that the dynamic linker finds.

Programs and libraries are linked by gcc; what each really loads is asked of the dynamic linker
itself (LD_TRACE_LOADED_OBJECTS, ld.so(8)).
"""

import json
import os
import re
import shutil
import subprocess
import sys

from command import Result, Tests, read, write
from elf_file import EM_S390, golden

t = Tests(sys.argv[1])
for name in ["LD_LIBRARY_PATH", "LD_PRELOAD"]:
    t.environment.pop(name, None)
HERE = os.getcwd()


def compile_(output, *flags, code="", probe=None, calls=()):
    """A library (or with main() a program) that calls functions of others."""
    lines = ["#include <sys/sdt.h>"] if probe else []
    lines += [f"void {call}(void);" for call in calls]
    body = "".join(f" {call}();" for call in calls) + (f" STAP_PROBE(deps, {probe});" if probe else "")
    lines.append(code.replace("BODY", body))
    write("source.c", "\n".join(lines).encode() + b"\n")
    os.makedirs(os.path.dirname(output) or ".", exist_ok=True)
    done = subprocess.run(["gcc", "-O1", "-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined",
                           "source.c", "-o", output, *flags], capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stderr)
        sys.exit(1)


def library(output, *flags, soname=None, probe=None, calls=()):
    name = re.sub(r"\W.*", "", os.path.basename(output))
    soname = os.path.basename(output) if soname is None else soname
    flags += ("-shared", "-fPIC") + ((f"-Wl,-soname,{soname}",) if soname else ())
    compile_(output, *flags, code=f"void {name}(void) {{BODY }}", probe=probe, calls=calls)


def program(output, *flags, probe=None, calls=()):
    compile_(output, *flags, code="int main(void) {BODY return 0; }", probe=probe, calls=calls)


def loaded(path):
    """What the dynamic linker says: {name: place or None}, with a program's start by the kernel."""
    run = [os.path.abspath(path)]
    done = subprocess.run(run, capture_output=True, text=True,
                          env={**t.environment, "LD_TRACE_LOADED_OBJECTS": "1"})
    found = {}
    for line in done.stdout.splitlines():
        match = re.match(r"\s*(\S+)(?: => (.*?))?(?: \(0x\w+\))?$", line)
        name, place = match.group(1), match.group(2) or match.group(1)
        if name != "linux-vdso.so.1":
            found[name] = None if place == "not found" else os.path.realpath(place)
    return found, done.stderr


def listed(path, *options):
    """What list --deps -v says it found, and its result."""
    result = t.run("list", "--deps", "-v", *options, path)
    found, by = {}, {}
    for line in result.err.splitlines():
        match = re.match(r"reprobe: (warning: )?.*?: (\S+) is needed by (\S+): (.*)", line)
        if match:
            found[match.group(2)] = None if match.group(1) else os.path.realpath(match.group(4))
            by[match.group(2)] = match.group(3)
    return found, by, result


def same_as_loader(what, path, *options):
    """The names of found and missing libraries and their places are those of the dynamic linker."""
    expected, err = loaded(path)
    found, by, result = listed(path, *options)
    t.check(f"{what}: exit", result.code == 0, result.text())
    t.check(f"{what}: the dynamic linker was asked", len(expected) > 1, err)
    t.same(what, sorted((name, str(place)) for name, place in expected.items()),
           sorted((name, str(place)) for name, place in found.items()))
    return found, by, result


def probes(result):
    """The listed files, each with its probes, and through what it came."""
    files = re.findall(r"^(\S+): ELF.*\n(?:  needed by (\S+)\n)?((?:  .*\n)*)", result.out, re.M)
    return {path: (by, re.findall(r"deps:(\w+)", text)) for path, by, text in files}


# --- Where libraries are found --------------------------------------------------------------------

library("lib/libone.so", probe="one")
library("lib/libtwo.so", "-Llib", "-lone", "-Wl,-rpath,$ORIGIN", probe="two", calls=["libone"])
program("absolute", "-Llib", "-lone", f"-Wl,-rpath,{HERE}/lib", probe="main", calls=["libone"])
_, by, result = same_as_loader("RUNPATH", "absolute")
t.same("probes and who needs them", {"absolute": ("", ["main"]),
                                     f"{HERE}/lib/libone.so": ("absolute", ["one"])}, probes(result))
t.same("without -v nothing else is said", "", t.run("list", "--deps", "absolute").err)
for name, path in [("origin", "$ORIGIN/lib"), ("curly", "${ORIGIN}/lib"), ("several", "/nowhere::$ORIGIN/lib"),
                   ("not_a_word", "$ORIGINAL/lib:$ORIGIN_/lib:${ORIGIN/lib:$NOTHING/lib:lib"),
                   ("relative", "lib"), ("trailing", "/nowhere:$ORIGIN/lib/")]:
    program(name, "-Llib", "-ltwo", f"-Wl,-rpath,{path}", "-Wl,-rpath-link,lib", calls=["libtwo"])
    found, by, result = same_as_loader(name, name)
    t.same(f"{name}: who needs what", (name, f"{HERE}/lib/libtwo.so"),
           (by["libtwo.so"], os.path.realpath(by["libone.so"])))
    t.check(f"{name}: found", found["libone.so"] == f"{HERE}/lib/libone.so", str(found))
os.makedirs("elsewhere/bin")
os.symlink("../../origin", "elsewhere/bin/link")
same_as_loader("a program by a symbolic link", "elsewhere/bin/link")
# libtwo.so looks for libone.so in the folder of its link, not of the file.
os.makedirs("links")
os.symlink("../lib/libtwo.so", "links/libtwo.so")
program("by_link", "-Llib", "-ltwo", "-Wl,-rpath,$ORIGIN/links", "-Wl,-rpath-link,lib",
        calls=["libtwo"])
found, _, _ = same_as_loader("a library by a symbolic link", "by_link")
t.same("... its $ORIGIN is the link's folder", None, found["libone.so"])

# RPATH is inherited, RUNPATH is not.
library("plain/libdeep.so", "-Llib", "-lone", probe="deep", calls=["libone"])
for name, tags, there in [("rpath", "--disable-new-dtags", True),
                          ("runpath", "--enable-new-dtags", False)]:
    program(name, "-Lplain", "-ldeep", f"-Wl,{tags},-rpath,$ORIGIN/plain:$ORIGIN/lib",
            "-Wl,-rpath-link,lib", calls=["libdeep"])
    found, _, result = same_as_loader(name, name)
    t.same(f"{name}: inherited", there, found["libone.so"] is not None)
t.check("what is not found is a warning",
        re.search(r"^reprobe: warning: runpath: libone\.so is needed by \S*/plain/libdeep\.so: "
                  r"not found$", result.err, re.M), result.text())
t.same("--json names it too", [{"name": "libone.so", "needed_by": f"{HERE}/plain/libdeep.so",
                                "reason": "not found"}],
       json.loads(t.run("list", "--deps", "--json", "runpath").out)["missing"])
# A library with a RUNPATH of its own does not get the program's RPATH.
library("plain/libown.so", "-Llib", "-lone", "-Wl,--enable-new-dtags,-rpath,/nowhere",
        calls=["libone"])
program("own", "-Lplain", "-lown", "-Wl,--disable-new-dtags,-rpath,$ORIGIN/plain:$ORIGIN/lib",
        "-Wl,-rpath-link,lib", calls=["libown"])
found, _, _ = same_as_loader("RUNPATH hides the program's RPATH", "own")
t.same("... so that it is not found", None, found["libone.so"])

# A cycle, and a library that needs the same again.
library("cycle/libpong.so", probe="pong")
library("cycle/libping.so", "-Lcycle", "-lpong", "-Wl,-rpath,$ORIGIN", probe="ping",
        calls=["libpong"])
library("cycle/libpong.so", "-Lcycle", "-lping", "-Wl,-rpath,$ORIGIN", probe="pong",
        calls=["libping"])
program("cycle/start", "-Lcycle", "-lping", "-Wl,-rpath,$ORIGIN", calls=["libping"])
_, _, result = same_as_loader("a cycle", "cycle/start")
t.same("a cycle: each file once", {"cycle/start": ("", []),
                                   f"{HERE}/cycle/libping.so": ("cycle/start", ["ping"]),
                                   f"{HERE}/cycle/libpong.so": (f"{HERE}/cycle/libping.so",
                                                                ["pong"])}, probes(result))

# A name with a slash is a path; a library that is loaded already satisfies its SONAME.
library("slash/libslash.so", soname="", probe="slash")
program("slashed", "slash/libslash.so", calls=["libslash"])
same_as_loader("a name with a slash", "slashed")
library("alias/libreal.so", soname="libalias.so", probe="real")
os.symlink("libreal.so", "alias/libalias.so")
shutil.copy("alias/libreal.so", "alias/copy.so")
subprocess.run(["gcc", "-shared", "-o", "alias/liboverlay.so", "-Wl,--no-as-needed",
                "alias/copy.so", "-Wl,-soname,liboverlay.so"], check=True)
program("aliased", "-Lalias", "-lalias", "-loverlay", "-Wl,-rpath,$ORIGIN/alias",
        calls=["libreal"])
_, _, result = same_as_loader("a symbolic link", "aliased")
t.same("its file once", ["real"], sum((p for _, p in probes(result).values()), []))

# Another class or machine, a folder and a damaged file in the way.
os.makedirs("wrong")
write("wrong/libone.so", golden(32).data)
program("class32", "-Llib", "-lone", "-Wl,-rpath,$ORIGIN/wrong:$ORIGIN/lib", calls=["libone"])
found, _, _ = same_as_loader("another class comes first", "class32")
t.same("... and is passed over", f"{HERE}/lib/libone.so", found["libone.so"])
write("wrong/libone.so", golden(64, "big", EM_S390).data)
same_as_loader("another machine comes first", "class32")
os.remove("lib/libone.so")
found, _, result = listed("class32")
t.check("only another machine's is there", found["libone.so"] is None and
        f"not found, only {HERE}/wrong/libone.so: for another machine\n" in result.err, result.text())
write("wrong/libone.so", b"/* GNU ld script */ INPUT(libone.so.1)" + b"\n" * 64)
library("lib/libone.so", probe="one")
found, _, result = listed("class32")
expected, err = loaded("class32")
t.check("the dynamic linker gives up at a file that is not ELF", "invalid ELF header" in err, err)
t.check("... and so do we", found["libone.so"] is None and result.code == 0, result.text())

# -z nodefaultlib: not even libc.so.6.
program("nodefault", "-Wl,-z,nodefaultlib", "-Llib", "-lone", "-Wl,-rpath,$ORIGIN/lib",
        calls=["libone"])
found, by, result = same_as_loader("-z nodefaultlib", "nodefault")
t.check("... the program finds no libc.so.6, its library does", by["libc.so.6"].endswith("libone.so")
        and "warning: nodefault: libc.so.6 is needed by nodefault: not found" in result.err,
        result.text())
t.check("... and what RUNPATH names is found", found["libone.so"] is not None)

# $LIB and $PLATFORM: whatever the dynamic linker puts in their place.
words = subprocess.run(["/lib64/ld-linux-x86-64.so.2", "--list-diagnostics"], capture_output=True,
                       text=True).stdout
for word, key in [("LIB", "dl_dst_lib"), ("PLATFORM", "dl_platform")]:
    value = re.search(rf'^{key}="(.*)"$', words, re.M)
    if not value:
        continue
    library(f"words/{value.group(1)}/lib{word}.so", probe=word)
    program(f"word_{word}", f"-Lwords/{value.group(1)}", f"-l{word}",
            f"-Wl,-rpath,$ORIGIN/words/${word}", calls=[f"lib{word}"])
    found, _, _ = same_as_loader(f"${word}", f"word_{word}")
    t.check(f"${word}: found", found[f"lib{word}.so"] is not None)

# --- What is listed -------------------------------------------------------------------------------

found = t.run("list", "--deps", "origin", "absolute", "lib/libone.so")
names = re.findall(r"^(\S+): ELF", found.out, re.M)
t.same("several files: each once", ["origin", f"{HERE}/lib/libtwo.so", "absolute", "lib/libone.so"],
       names)
found = t.run("list", "--deps", "-p", "deps:two", "origin")
t.same("-p", {"origin": ("", []), f"{HERE}/lib/libtwo.so": ("origin", ["two"])}, probes(found))
document = json.loads(t.run("list", "--deps", "--json", "origin").out)
t.same("--json", [("origin", None, []), (f"{HERE}/lib/libtwo.so", "origin", ["two"]),
                  (f"{HERE}/lib/libone.so", f"{HERE}/lib/libtwo.so", ["one"])],
       [(f["path"], f.get("needed_by"), [p["name"] for p in f["probes"]])
        for f in document["files"]])
t.same("--json: nothing is missing", [], document["missing"])
t.same("without --deps nothing changes", ["schema", "files"],
       list(json.loads(t.run("list", "--json", "origin").out)))
subprocess.run(["ar", "rc", "some.a", "origin"], check=True)
found = t.run("list", "--deps", "some.a")
t.check("a member of an archive has no libraries", found.code == 0 and
        "some.a(origin): in an archive: its dependencies are not looked for" in found.err,
        found.text())
subprocess.run(["gcc", "-static", "-O1", "-x", "c", "-", "-o", "static"], check=True,
               input=b"int main(void) { return 0; }")
found = t.run("list", "--deps", "static")
t.check("a static program needs nothing", found.code == 0 and found.err == "" and
        len(re.findall("ELF", found.out)) == 1, found.text())
t.same("--root needs --deps", 2, t.run("list", "--root", ".", "origin").code)
t.same("--root: no such folder", 2, t.run("list", "--deps", "--root", "missing", "origin").code)

# --- Another system under a folder ----------------------------------------------------------------

# Its configuration includes a glob; its links are absolute; nothing of this system may be used.
library("sysroot/opt/far/libfar.so.1.0", soname="libfar.so.1", probe="far")
library("sysroot/opt/near/libnear.so", "sysroot/opt/far/libfar.so.1.0", probe="near",
        calls=["libfar"])
os.makedirs("sysroot/usr/lib")
os.symlink("/opt/far/libfar.so.1.0", "sysroot/usr/lib/libfar.so.1")
os.makedirs("sysroot/etc/conf.d")
write("sysroot/etc/ld.so.conf", b"# folders\n\tinclude conf.d/*.conf # and no more\nhwcap 0 nothing\n")
write("sysroot/etc/conf.d/b.conf", b"/opt/near/ \ninclude /etc/ld.so.conf\n")
write("sysroot/etc/conf.d/.hidden.conf", b"/nowhere\n")
os.makedirs("sysroot/bin")
program("sysroot/bin/app", "-Lsysroot/opt/near", "-lnear", "-Wl,-rpath-link,sysroot/usr/lib",
        calls=["libnear"])
found, by, result = listed("sysroot/bin/app", "--root", "sysroot")
t.same("--root", {"libnear.so": f"{HERE}/sysroot/opt/near/libnear.so",
                  "libfar.so.1": f"{HERE}/sysroot/opt/far/libfar.so.1.0", "libc.so.6": None,
                  "/lib64/ld-linux-x86-64.so.2": None}, found)
t.same("--root: probes", {"sysroot/bin/app": ("", []),
                          f"{HERE}/sysroot/opt/near/libnear.so": ("sysroot/bin/app", ["near"]),
                          f"{HERE}/sysroot/opt/far/libfar.so.1.0":
                          (f"{HERE}/sysroot/opt/near/libnear.so", ["far"])}, probes(result))
# A cross compiler's folder is such a system.
cross = "aarch64-linux-gnu"
if shutil.which(f"{cross}-gcc") and os.path.isdir(f"/usr/{cross}/lib"):
    subprocess.run([f"{cross}-gcc", "-x", "c", "-", "-o", "cross"], check=True,
                   input=b"int main(void) { return 0; }")
    found, _, _ = listed("cross", "--root", f"/usr/{cross}")
    t.same("--root of a cross compiler",
           {name: os.path.realpath(f"/usr/{cross}/lib/{os.path.basename(name)}")
            for name in ["libc.so.6", "/lib/ld-linux-aarch64.so.1"]}, found)

# --- Files without section headers ----------------------------------------------------------------

# What it needs is in the program headers.
strip = next((s for s in ["llvm-strip-19", "llvm-strip-14", "llvm-strip"] if shutil.which(s)), None)
if strip:
    shutil.copy("lib/libtwo.so", "libtwo.whole")
    subprocess.run([strip, "--strip-sections", "lib/libtwo.so"], check=True)
    found, by, result = same_as_loader("a library without section headers", "origin")
    t.same("... is followed", f"{HERE}/lib/libtwo.so", os.path.realpath(by["libone.so"]))
    t.check("... and has no probes", f"{HERE}/lib/libone.so" in probes(result) and
            f"{HERE}/lib/libtwo.so" not in probes(result), result.text())

t.finish()
