#!/usr/bin/env python3
"""in_place_test.py REPROBE: what fix does to the file besides its bytes: which name it writes, what
of its attributes stays, what is refused.
"""

import json
import os
import stat
import subprocess
import sys

from command import Result, Tests, read, write
from elf_file import BUILD_ID, ET_REL, golden, poked

t = Tests(sys.argv[1])
ROOT = os.geteuid() == 0
GOOD, DEAD = golden(), golden(dead=True)
write("good", GOOD.data, 0o755)
write("dead", DEAD.data, 0o755)
t.run("fix", "dead", "-o", "fixed")
REMOVED = "removed 1 dangling, kept 3 live; build-id kept\n"

# --- fix and the file -----------------------------------------------------------------------------

FIXED = read("fixed")


def status(path):
    s = os.lstat(path)
    return s.st_ino, s.st_mtime_ns, s.st_ctime_ns, s.st_mode, s.st_nlink, s.st_uid, s.st_gid


def fresh(data=DEAD.data, mode=0o755, path="work/app"):
    subprocess.run(["rm", "-rf", "work"], check=True)
    os.mkdir("work")
    write(path, data, mode)


def fixes(what, *arguments, code=0, err=REMOVED, before="work/app"):
    t.same(what, Result(code, "", f"reprobe: {before}: {err}" if err else ""),
           t.run("fix", *arguments))


def only(*names):
    t.same("no litter", sorted(names), sorted(os.listdir("work")))


fresh()
before = status("work/app")
t.run("fix", "--dry-run", "work/app")
t.run("fix", "--json", "--dry-run", "work/app")
t.same("--dry-run leaves the file alone", (before, bytes(DEAD.data)),
       (status("work/app"), read("work/app")))
fixes("in place", "work/app")
t.same("in place: the result", FIXED, read("work/app"))
only("app")
before = status("work/app")
fixes("a second run", "work/app", err="nothing to change\n")
fixes("a second run, --in-place", "--in-place", "work/app", err="nothing to change\n")
t.same("a second run leaves the file alone", before, status("work/app"))

fresh()
before = status("work/app")
fixes("-o", "work/app", "-o", "work/out")
t.same("-o: the result and its mode", (FIXED, 0o755), (read("work/out"),
                                                       stat.S_IMODE(os.stat("work/out").st_mode)))
t.same("-o leaves the input alone", (before, bytes(DEAD.data)),
       (status("work/app"), read("work/app")))
write("work/out", b"something else, and longer than the file was" * 100)
fixes("-o over a file", "work/app", "-o", "work/out")
t.same("-o over a file: the result", FIXED, read("work/out"))
os.symlink("out", "work/link")
fixes("-o through a link", "work/app", "-o", "work/link")
t.check("-o through a link: it stays", os.path.islink("work/link"))
t.same("-o --dry-run", 0, t.run("fix", "--dry-run", "work/app", "-o", "work/none").code)
only("app", "out", "link")
fixes("-o the file itself", "work/app", "-o", "work/app")
t.same("-o the file itself: the result", FIXED, read("work/app"))
fixes("-o of an unchanged file", "work/app", "-o", "work/copy",
      err="nothing to change; copied to work/copy\n")
t.same("-o of an unchanged file: a copy", FIXED, read("work/copy"))
os.chdir("work")
fixes("-o in the current folder", "app", "-o", "here", before="app",
      err="nothing to change; copied to here\n")
os.chdir("..")

fresh(mode=0o640)
has_xattr = True
try:
    os.setxattr("work/app", "user.reprobe-test", b"kept\0bytes")
except OSError as error:
    print(f"SKIPPED: extended attributes: {error}")
    has_xattr = False
if ROOT:
    os.chown("work/app", 1234, 2345)
    os.chmod("work/app", 0o4751)
mode = stat.S_IMODE(os.stat("work/app").st_mode)
os.utime("work/app", ns=(10**18, 10**18))
fixes("attributes", "work/app")
s = os.stat("work/app")
t.same("mode and owner are kept", (mode, *((1234, 2345) if ROOT else (os.getuid(), s.st_gid))),
       (stat.S_IMODE(s.st_mode), s.st_uid, s.st_gid))
if has_xattr:
    t.same("extended attributes are kept", b"kept\0bytes",
           os.getxattr("work/app", "user.reprobe-test"))
t.check("the time is now", s.st_mtime_ns > 10**18)
fresh()
os.utime("work/app", ns=(10**18, 10**18))
fixes("--preserve-dates", "--preserve-dates", "work/app")
t.same("--preserve-dates", 10**18, os.stat("work/app").st_mtime_ns)

fresh()
os.symlink("app", "work/link")
fixes("through a symbolic link", "work/link", before="work/link")
t.same("a symbolic link stays", ("app", FIXED), (os.readlink("work/link"), read("work/app")))
only("app", "link")

fresh()
os.link("work/app", "work/second")
before = status("work/app")
t.same("hard links are refused", Result(4, "", """\
reprobe: error: work/app: the file has 2 names (hard links) and only one of them would be rewritten
hint: --break-hardlinks rewrites this name and leaves the others as they are
"""), t.run("fix", "work/app"))
t.same("hard links are refused in advance", 4, t.run("fix", "--dry-run", "work/app").code)
t.same("hard links: the file is as it was", (before, bytes(DEAD.data)),
       (status("work/app"), read("work/app")))
fixes("hard links do not matter to -o", "work/app", "-o", "work/out")
fixes("--break-hardlinks", "--break-hardlinks", "work/app")
t.same("--break-hardlinks", (FIXED, bytes(DEAD.data)), (read("work/app"), read("work/second")))
fresh(GOOD.data)
os.link("work/app", "work/second")
fixes("hard links of a good file", "work/app", err="nothing to change\n")

for name in ["with space", "-dash", "new\nline", b"\xff\xfe"]:
    path = os.path.join(b"work", name) if isinstance(name, bytes) else "work/" + name
    fresh(path=path)
    before = os.listdir("work")
    t.same(f"fix of {name!r}", 0, t.run("fix", path).code)
    t.same(f"fix of {name!r}: the result", FIXED, read(path))
    t.same(f"fix of {name!r}: no litter", before, os.listdir("work"))
fresh(path="work/-dash")
os.chdir("work")
t.same("a name like an option", 0, t.run("fix", "--", "-dash").code)
os.chdir("..")

fresh()
id_at, id_size = DEAD.fields["build_id"]
new_id = lambda path: read(path)[id_at:id_at + id_size]
fixes("--build-id=new", "--build-id=new", "work/app", "-o", "work/a",
      err="removed 1 dangling, kept 3 live; new build-id\n")
fixes("--build-id=new again", "--build-id=new", "work/app", "-o", "work/b",
      err="removed 1 dangling, kept 3 live; new build-id\n")
t.check("--build-id=new: another id", new_id("work/a") not in (BUILD_ID, bytes(id_size)))
t.same("--build-id=new: the same each time", read("work/a"), read("work/b"))
t.same("--build-id=new: nothing else differs",
       FIXED[:id_at] + new_id("work/a") + FIXED[id_at + id_size:], read("work/a"))
t.same("--build-id=keep", FIXED, (t.run("fix", "--build-id=keep", "work/app", "-o", "work/c"),
                                  read("work/c"))[1])
plan = json.loads(t.run("fix", "--json", "--dry-run", "--build-id=new", "work/app").out)
t.same("--build-id=new in JSON", {"before": BUILD_ID.hex(), "after": new_id("work/a").hex()},
       plan["build_id"])
t.same("verify --new-build-id", 0, t.run("verify", "--new-build-id", "work/app", "work/a").code)
t.same("verify without it", 1, t.run("verify", "work/app", "work/a").code)
fixes("--build-id=new of a good file", "--build-id=new", "work/a", before="work/a",
      err="nothing to change\n")

fresh(poked(GOOD, "e_type", ET_REL))
t.same("fix of an object", Result(4, "", """\
reprobe: error: work/app: a relocatable object; its notes are final after the link
hint: run reprobe fix on the linked program or library
"""), t.run("fix", "work/app"))
only("app")

t.finish()
