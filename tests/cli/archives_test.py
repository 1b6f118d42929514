#!/usr/bin/env python3
"""archives_test.py REPROBE: audit walks folders and archives, whatever is in them."""

import gzip
import hashlib
import io
import json
import os
import random
import resource
import subprocess
import sys
import tarfile
import zipfile

from command import Result, Tests, write
from elf_file import golden

t = Tests(sys.argv[1])
GOOD, DEAD = bytes(golden().data), bytes(golden(dead=True).data)
DANGLING = """\
  error dangling demo:gone site 0x10 note 0x274
      the note's code is not in the file; a tracer attaches elsewhere or refuses the probe
      evidence: 0x10 lies in no section
      hint: reprobe fix removes the note
"""


def finding(path):
    return f"{path}: 1 finding, 4 probes\n{DANGLING}"


def ar(members):
    """An ar archive (ar(5)): 60-byte headers, members padded to an even size."""
    out = b"!<arch>\n"
    for name, data in members:
        out += f"{name + '/':16}{0:<12}{0:<6}{0:<6}{0o644:<8o}{len(data):<10}`\n".encode()
        out += data + b"\n" * (len(data) % 2)
    return out


def tar(members, mode="w", format=tarfile.PAX_FORMAT):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, format=format) as archive:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            if data is None:
                entry.type, entry.linkname = tarfile.SYMTYPE, "app"
            else:
                entry.size, entry.mode = len(data), 0o755
            archive.addfile(entry, io.BytesIO(data) if data is not None else None)
    return out.getvalue()


def zipped(members, method=zipfile.ZIP_DEFLATED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return out.getvalue()


def deb(members):
    return ar([("debian-binary", b"2.0\n"),
               ("control.tar.gz", tar([("./control", b"Package: x\n")], "w:gz")),
               ("data.tar.xz", tar(members, "w:xz"))])


# --- Each kind of archive, for list and audit -----------------------------------------------------

MEMBERS = [("usr/bin/app", DEAD), ("usr/share/README", b"text\n"), ("usr/lib/libx.so", GOOD)]
KINDS = {"x.tar": tar(MEMBERS), "x.tar.gz": tar(MEMBERS, "w:gz"), "x.tar.xz": tar(MEMBERS, "w:xz"),
         "x.tar.bz2": tar(MEMBERS, "w:bz2"), "x.tgz": tar(MEMBERS, "w:gz"),
         "gnu.tar": tar(MEMBERS, format=tarfile.GNU_FORMAT), "x.zip": zipped(MEMBERS),
         "stored.zip": zipped(MEMBERS, zipfile.ZIP_STORED)}
SUMMARY = "7 probes in 2 of 2 ELF files: 1 error, 0 warnings\n"
for name, data in KINDS.items():
    write(name, data)
    t.same(f"audit {name}", Result(1, finding(f"{name}(usr/bin/app)") + SUMMARY, ""),
           t.run("audit", name))
    paths = [f["path"] for f in json.loads(t.run("list", "--json", name).out)["files"]]
    t.same(f"list {name}", [f"{name}(usr/bin/app)", f"{name}(usr/lib/libx.so)"], paths)
write("libx.a", ar([("one.o", DEAD), ("notes.txt", b"odd"), ("two.o", GOOD)]))
t.same("audit libx.a", Result(1, finding("libx.a(one.o)") + SUMMARY, ""), t.run("audit", "libx.a"))
write("x.deb", deb([("./usr/bin/app", DEAD), ("./usr/lib/libx.so", GOOD)]))
t.same("audit x.deb", Result(1, finding("x.deb(data.tar.xz)(./usr/bin/app)") + SUMMARY, ""),
       t.run("audit", "x.deb"))
value = json.loads(t.run("audit", "--json", "x.deb").out)
t.same("audit --json x.deb", "x.deb(data.tar.xz)(./usr/bin/app)", value["files"][0]["path"])
t.same("fix of an archive", Result(3, "", "reprobe: error: libx.a: not an ELF file; expected the "
                                   "bytes 7f 45 4c 46, found 21 3c 61 72\n"),
       t.run("fix", "libx.a"))

# Names of members: UTF-8, other bytes, what drives a terminal, ways out of the folder.
names = ["caf\u00e9/app", "new\nline", "\x1b[2Jclear", "../../../../etc/app", "/etc/app"]
for kind, data in [("tar", tar([(n, DEAD) for n in names])),
                   ("gnu", tar([(n, DEAD) for n in names], format=tarfile.GNU_FORMAT)),
                   ("zip", zipped([(n, DEAD) for n in names]))]:
    write("names." + kind, data)
    shown = ["caf\u00e9/app", r"new\x0aline", r"\x1b[2Jclear", *names[3:]]
    t.same(f"names in {kind}", [f"names.{kind}({n}): 1 finding, 4 probes" for n in shown],
           [line for line in t.run("audit", "names." + kind).out.splitlines()
            if "finding" in line])

# Links in an archive are not files; the same member twice is read twice.
write("links.tar", tar([("app", DEAD), ("link", None), ("app", GOOD)]))
t.same("links and doubles", Result(1, finding("links.tar(app)") + SUMMARY, ""),
       t.run("audit", "links.tar"))
write("empty.zip", zipped([]))
write("empty.a", b"!<arch>\n")
NOTHING = "0 probes in 0 of 0 ELF files: 0 errors, 0 warnings\n"
for name in ["empty.zip", "empty.a"]:
    t.same(f"audit {name}", Result(0, NOTHING, f"reprobe: warning: {name}: holds no ELF file\n"),
           t.run("audit", name))

# --- A folder --------------------------------------------------------------------------------------

os.makedirs("tree/b/deep")
os.mkdir("tree/a")
write("tree/z-last", DEAD)
write("tree/b/deep/app", DEAD)
write("tree/b/script", b"#!/bin/sh\n")
write("tree/b/empty", b"")
write("tree/b/notes.txt.gz", b"\x1f\x8b no archive by its name")
write("tree/a/lib.a", KINDS["x.zip"])  # by its contents, not its name
write("tree/a/cut", DEAD[:300])
write(os.fsencode("tree/a/sp ace\n") + b"\xff", DEAD)
os.symlink("../z-last", "tree/a/link")
os.symlink("..", "tree/b/up")
os.mkfifo("tree/a/fifo")
CUT = ("reprobe: error: tree/a/cut: [e_shoff] section header table lies outside the file; expected "
       f"at least {len(DEAD):#x} bytes, found 0x12c\n"
       "hint: the file is damaged or cut short; probes are found through its section headers\n")
ORDER = [r"tree/a/sp ace\x0a\xff", "tree/b/deep/app", "tree/z-last"]
found = t.run("audit", "tree")
t.same("a folder", Result(3, finding("tree/z-last") + finding("tree/a/lib.a(usr/bin/app)") +
                          finding(ORDER[0]) + finding("tree/b/deep/app") +
                          "19 probes in 5 of 5 ELF files: 4 errors, 0 warnings, 1 unreadable\n",
                          CUT), found)
t.same("a folder again", found.text(), t.run("audit", "tree").text())
value = json.loads(t.run("audit", "--json", "tree").out)["summary"]
t.same("a folder's summary", [5, 5, 19, 1],
       [value[k] for k in ["elf", "with_probes", "probes", "unreadable"]])
lines = [json.loads(line) for line in t.run("audit", "--json-lines", "tree").out.splitlines()]
t.same("a folder, a line for each file", (["tree/a/cut"], 5),
       ([line["path"] for line in lines if "error" in line], sum("probes" in line for line in lines)))
for jobs in ("2", "7"):
    for how in ([], ["--json"], ["--sarif"], ["--json-lines"]):
        t.same(f"a folder, -j{jobs} {how}", t.run("audit", *how, "tree"),
               t.run("audit", "-j", jobs, *how, "tree"))
shares = [t.run("audit", "--json-lines", f"tree/{part}").out for part in ("z-last", "a", "b")]
t.same("shares of a folder", "".join(shares), t.run("audit", "--json-lines", "tree").out)
t.same("--exclude", t.run("audit", "tree/z-last", "tree/b").out,
       t.run("audit", "--exclude", "a", "tree").out)
os.link("tree/z-last", "tree/b/again")
t.same("a file of two names is looked at once", 5,
       json.loads(t.run("audit", "--json", "tree").out)["summary"]["elf"])
os.unlink("tree/b/again")
t.same("a folder and a file", 3, t.run("audit", "tree", "x.tar").code)
os.mkdir("none")
t.same("an empty folder", Result(0, NOTHING, "reprobe: warning: none: holds no ELF file\n"),
       t.run("audit", "none"))
t.same("a folder by a link", ["tree/b/up/z-last"],
       [line.split(":")[0] for line in t.run("audit", "tree/b/up").out.splitlines()
        if line.startswith("tree/b/up/z")])

# --- Archives that are damaged or hostile ----------------------------------------------------------


def damaged(name, data, *errors, out="0 probes in 0 of 0 ELF files: 0 errors, 0 warnings, "
            "1 unreadable\n"):
    """Exit 3 and these lines; each is what follows "reprobe: error: NAME"."""
    write(name, data)
    found = t.run("audit", name)
    t.same(f"{name}: exit and stdout", (3, out), (found.code, found.out))
    lines = [line for line in found.err.splitlines() if not line.startswith("hint: ")]
    t.same(f"{name}: number of lines", len(errors), len(lines))
    for error, line in zip(errors, lines):
        t.check(f"{name}: {error}", line.startswith(f"reprobe: error: {name}{error}"), line)


CANNOT = ": the archive cannot be read: "
big = DEAD + random.Random(1).randbytes(200000)
for name, data in [("cut.tar.gz", tar([("app", big)], "w:gz")),
                   ("cut.tar.xz", tar([("app", big)], "w:xz"))]:
    damaged(name, data[:len(data) // 2], "(app)" + CANNOT, out="0 probes in 0 of 0 ELF files: 0 "
            "errors, 0 warnings, 1 unreadable\n")
damaged("head.tar.gz", KINDS["x.tar.gz"][:20], CANNOT)
damaged("rubbish.tgz", b"\x1f\x8b\x08" + b"rubbish" * 20, CANNOT)
damaged("cut.zip", zipped([("app", big)])[:9000], "(app)" + CANNOT)
damaged("cut.a", ar([("app.o", DEAD)])[:700], "(app.o" )
damaged("huge.a", b"!<arch>\n" + b"app.o/          0           0     0     100644  9999999999`\n" +
        DEAD, "(app.o")
write("bomb.zip", zipped([("zeros", bytes(300 << 20)), ("app", DEAD)]))
limits = dict(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (256 << 20, 256 << 20)))
if t.run("--version", **limits).code != 0:
    print("SKIPPED: a bomb of zeros: this build needs more than 256 MiB of addresses")
else:
    t.same("a bomb of zeros is not kept in memory", Result(
        1, finding("bomb.zip(app)") + "4 probes in 1 of 1 ELF file: 1 error, 0 warnings\n", ""),
        t.run("audit", "bomb.zip", **limits))
nested = tar([("app", DEAD)])
for level in range(6):
    nested = tar([(f"{level}.tar", nested)])
damaged("nested.tar", nested, "(5.tar)(4.tar)(3.tar)(2.tar): archives in archives; expected at most "
        "4 in each other, found more")

# Any byte of an archive may be wrong: no signal, no endless work.
rng = random.Random(2)
for name in ["x.tar.gz", "x.tar.xz", "x.zip", "libx.a", "x.deb"]:
    good = open(name, "rb").read()
    for _ in range(25):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)):]
        write("fuzzed-" + name, data)
        found = t.run("audit", "fuzzed-" + name)
        t.check(f"damaged {name}", found.code in (0, 1, 3), found.text())

# --- Container images: the files that the layers leave ----------------------------------------------

LOWER = gzip.compress(tar([("usr/bin/app", DEAD), ("usr/bin/gone", DEAD), ("usr/bin/keep", DEAD)]))
UPPER = subprocess.run(["zstd", "-c"], input=tar([("usr/bin/app", GOOD), ("usr/bin/.wh.gone", b"")]),
                       stdout=subprocess.PIPE, check=True).stdout
os.makedirs("oci/blobs/sha256")


def blob(data):
    digest = hashlib.sha256(data).hexdigest()
    write("oci/blobs/sha256/" + digest, data)
    return "sha256:" + digest


LAYER = "application/vnd.oci.image.layer.v1.tar+"
manifest = blob(json.dumps({"layers": [{"mediaType": LAYER + "gzip", "digest": blob(LOWER)},
                                       {"mediaType": LAYER + "zstd", "digest": blob(UPPER)}]}).encode())
write("oci/index.json", json.dumps({"manifests": [{"digest": manifest}]}).encode())
write("oci/oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
with tarfile.open("oci.tar", "w") as archive:
    for name in sorted(os.listdir("oci")):
        archive.add("oci/" + name, name)
write("save.tar", tar([("manifest.json", json.dumps([{"Layers": ["x/layer.tar", "y"]}]).encode()),
                       ("x/layer.tar", LOWER), ("y", UPPER)]))
write("no-suffix", LOWER)
for name in ["oci", "oci.tar", "save.tar"]:
    t.same(f"audit {name}", Result(1, finding(f"{name}(usr/bin/keep)") + SUMMARY, ""),
           t.run("audit", name))
t.same("audit of a gzip layer by its contents", 3, t.run("audit", "no-suffix").out.count("1 finding"))

t.finish()
