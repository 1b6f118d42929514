#!/usr/bin/env python3
"""process_test.py REPROBE: `list --pid` of processes of every kind and in every place.

Addresses are compared with readelf's and the kernel's maps. Files that are deleted, replaced, in
another mount or pid namespace, in memory alone, inside of a zip; processes of other users, zombies,
kernel threads, 32-bit ones, one with 2,000 mapped files. Needs root.
"""
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tracers")]
# pylint: disable=wrong-import-position
import environment
from checks import Checks
from common import run
from process_target import Target, build, listed, load_address, probes, sites

NOBODY = 65534
YAMA = "/proc/sys/kernel/yama/ptrace_scope"  # not 0: a user reads the memory of children alone
TARGETS = ("target:plain", "target:counted")


def check_addresses(checks, reprobe, pid, file, name=None):
    code, process, said = listed(reprobe, pid)
    checks.equal("exit", (code, said), (0, ""))
    base = load_address(pid, file)
    found = probes(process)
    for probe, site in sites(file).items():
        got = found.get((name or os.path.basename(file), probe), {})
        checks.equal(probe, (got.get("address"), got.get("armed")), (hex(base + site), "no"))
    return process


def check_plain(checks, reprobe, target, library):
    for linked in ("", "-no-pie"):
        checks.name = f"plain {linked}"
        file = target + linked
        with Target(file) as process:
            if linked:  # readelf's addresses are the process's own
                code, seen, _ = listed(reprobe, process.pid)
                got = {name: int(p["address"], 16) for (_, name), p in probes(seen).items()}
                checks.equal("addresses", (code, got), (0, sites(file)))
            else:
                check_addresses(checks, reprobe, process.pid, file)
            checks.name = f"dlopen {linked}"
            checks.equal("loads", process.tell(f"load {library}"), "loaded")
            _, seen, _ = listed(reprobe, process.pid)
            base = load_address(process.pid, library)
            plug = probes(seen).get(("plug.so", "plug:plugged"), {})
            checks.equal("address", plug.get("address"),
                         hex(base + sites(library)["plug:plugged"]))
            loads = [f["load_address"] for f in seen["files"] if f["path"] == library]
            checks.equal("load address", loads, [hex(base)])
            checks.equal("unloads", process.tell("unload"), "0")
            _, seen, _ = listed(reprobe, process.pid)
            checks.equal("is gone", [f for f in seen["files"] if f["path"] == library], [])
            text = run(reprobe, "list", "--pid", str(process.pid), "-p", "target:*")
            checks.equal("text", text.stdout.splitlines()[0],
                         f"pid {process.pid} ({os.path.basename(file)[:15]})")
            everywhere = run(reprobe, "list", "--pid", "all", "-p", "target:plain")
            rows = [r.split() for r in everywhere.stdout.splitlines()]
            checks.equal("among all", [r[2:4] for r in rows if r[0] == str(process.pid)],
                         [["no", "target:plain"]])


def check_facts(checks, reprobe, target):
    """The table has the facts of the JSON."""
    checks.name = "table and JSON"
    with Target(target) as process:
        _, seen, _ = listed(reprobe, process.pid)
        lines = run(reprobe, "list", "--pid", str(process.pid)).stdout.splitlines()
        expected = [f"pid {process.pid} ({seen['name']})"]
        for file in seen["files"]:
            count = len(file["probes"])
            expected.append(f"{file['path']} at {file['load_address']}, {count} "
                            f"probe{'s' * (count != 1)}, 0 armed")
            expected.append(["ADDRESS", "ARMED", "PROBE", "COUNTER", "ARGUMENTS"])
            expected += [[p["address"], p["armed"], f"{p['provider']}:{p['name']}",
                          str(p.get("counter", "-")), " ".join(
                              f"{a['size']}@{a['operand']}" for a in p["arguments"]) or "-"]
                         for p in file["probes"]]
        found = [line.split(maxsplit=4) if line.startswith("  ") else line for line in lines]
        checks.equal("one process", found, expected)
        everyone = run(reprobe, "list", "--pid", "all", "-p", "target:*").stdout.splitlines()
        found = [line.split() for line in everyone if line.split()[0] == str(process.pid)]
        checks.equal("all", found, [
            [str(process.pid), seen["name"], p["armed"], f"{p['provider']}:{p['name']}",
             p["address"], str(p.get("counter", "-")), file["path"]]
            for file in seen["files"] for p in file["probes"] if p["provider"] == "target"])


def check_examples(checks, reprobe, target, folder):
    """What --help shows of processes and tracers' lines is run as it stands."""
    inner = os.path.join(folder, "examples")
    os.makedirs(inner)
    shutil.copy(target, os.path.join(inner, "app"))
    with Target(target) as process:
        ran = 0
        for command in ("list", "audit", "fix"):
            for line in run(reprobe, command, "--help").stdout.splitlines():
                if not line.startswith("  reprobe "):
                    continue
                words = shlex.split(line, comments=True)
                if not {"--pid", "--as", "--symbols"} & set(words):
                    continue
                checks.name = line.strip()
                words = [reprobe] + [w.replace("4242", str(process.pid)) for w in words[1:]]
                said = run(*words, cwd=inner)
                # Of all some may not be looked at; an audit may find something.
                good = {0, 3} if "all" in words else {0, 1} if command == "audit" else {0}
                checks.true("runs", said.returncode in good, said.stderr)
                ran += 1
    checks.name = "examples"
    checks.true("there are some", ran >= 4, ran)


def check_storm(checks, reprobe):
    """Processes that end while all are looked at are no error."""
    checks.name = "processes come and go"
    storm = subprocess.Popen(["sh", "-c", "while :; do /bin/true & /bin/true; done"])
    try:
        for _ in range(5):
            said = run(reprobe, "list", "--pid", "all")
            wrong = [line for line in said.stderr.splitlines() if "has ended" in line]
            checks.equal("says nothing of those", (said.returncode in (0, 3), wrong), (True, []))
    finally:
        storm.kill()
        storm.wait()


def check_places(checks, reprobe, target, folder):
    checks.name = "deleted"
    file = shutil.copy(target, os.path.join(folder, "deleted"))
    with Target(file) as process:
        expected = {p: hex(load_address(process.pid, file) + at) for p, at in sites(file).items()}
        os.remove(file)
        code, seen, _ = listed(reprobe, process.pid)
        found = {name: p["address"] for (_, name), p in probes(seen).items()}
        checks.equal("addresses", (code, found, seen["files"][0].get("deleted")),
                     (0, expected, True))
        checks.name = "replaced by another build"
        shutil.copy("/bin/true", file)
        _, seen, _ = listed(reprobe, process.pid)
        found = {name: p["address"] for (_, name), p in probes(seen).items()}
        checks.equal("addresses", found, expected)

    checks.name = "another mount and pid namespace"
    inner = os.path.join(folder, "inner")
    os.makedirs(inner)
    script = f"mount -t tmpfs none {inner} && cp {target} {inner}/app && exec {inner}/app"
    with Target("unshare", "--mount", "--pid", "--fork", "sh", "-c", script) as process:
        children = run("pgrep", "-P", str(process.pid)).stdout.split()
        _, seen, said = listed(reprobe, children[0])
        checks.equal("probes", sorted(name for _, name in probes(seen)), sorted(TARGETS))
        checks.equal("path", seen["files"][0]["path"], f"{inner}/app")
        checks.equal("says nothing", said, "")
        os.kill(int(children[0]), signal.SIGKILL)

    checks.name = "a user namespace"
    with Target("unshare", "--user", "--map-root-user", target) as process:
        check_addresses(checks, reprobe, process.pid, target)

    checks.name = "in memory alone"
    run_from_memory = ("import os, sys; fd = os.memfd_create('app'); "
                       "os.write(fd, open(sys.argv[1], 'rb').read()); os.execve(fd, ['app'], os.environ)")
    with Target(sys.executable, "-c", run_from_memory, target) as process:
        code, seen, _ = listed(reprobe, process.pid)
        checks.equal("probes", (code, sorted(name for _, name in probes(seen))),
                     (0, sorted(TARGETS)))
        checks.equal("path", seen["files"][0]["path"], "/memfd:app")


def check_zip(checks, reprobe, library, folder):
    checks.name = "inside of a zip"
    with open(library, "rb") as file:
        data = file.read()
    package = os.path.join(folder, "app.apk")
    with open(package, "wb") as out:
        out.write(b"PK\x03\x04".ljust(8192, b"\0") + data + b"PK\x05\x06".ljust(22, b"\0"))
    mapper = build(folder, "maps_zip.c", "maps_zip")
    with Target(mapper, package, "8192") as process:
        code, seen, _ = listed(reprobe, process.pid)
        expected = hex(int(process.ready, 16) + sites(library)["plug:plugged"])
        found = [(f["path"], f.get("elf_offset"), p["address"]) for f in seen["files"]
                 for p in f["probes"] if p["provider"] == "plug"]
        checks.equal("address", (code, found), (0, [(package, "0x2000", expected)]))


def check_kinds(checks, reprobe, target):
    checks.name = "zombie"
    child = subprocess.Popen(["true"])
    for _ in range(100):
        with open(f"/proc/{child.pid}/stat", encoding="utf-8") as stat:
            if ") Z " in stat.read():
                break
        time.sleep(0.02)
    code, seen, _ = listed(reprobe, child.pid)
    checks.equal("is one", (code, seen.get("kind"), seen.get("files")), (0, "zombie", []))
    child.wait()
    checks.name = "kernel thread"
    code, seen, _ = listed(reprobe, 2)
    checks.equal("is one", (code, seen.get("kind")), (0, "kernel-thread"))
    checks.name = "ended"
    code, seen, said = listed(reprobe, child.pid)
    checks.equal("is an error", (code, seen), (3, {}))
    checks.true("says so", "there is no such process" in said, said)
    checks.name = "32-bit"
    with Target(target + "32") as process:
        check_addresses(checks, reprobe, process.pid, target + "32")


def check_users(checks, reprobe, target, folder):
    tool = shutil.copy(reprobe, os.path.join(folder, "reprobe"))
    os.chmod(folder, 0o755)
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}

    def as_user(pid):
        said = run(tool, "list", "--json", "--pid", str(pid), **user)
        found = json.loads(said.stdout)["processes"] if said.stdout else []
        return said.returncode, found[0] if found else {}, said.stderr

    checks.name = "a user's own process"
    with Target(target, **user) as process:
        code, seen, said = as_user(process.pid)
        found = {name: p["address"] for (_, name), p in probes(seen).items()}
        base = load_address(process.pid, target)
        checks.equal("addresses", found, {p: hex(base + at) for p, at in sites(target).items()})
        open_memory = True
        if os.path.exists(YAMA):
            with open(YAMA, encoding="utf-8") as scope:
                open_memory = scope.read().strip() == "0"
        armed = {p["armed"] for p in probes(seen).values()}
        checks.equal("armed", (code, armed), (0, {"no"}) if open_memory else (3, {"unknown"}))
        checks.equal("says so", "cannot be read" in said, not open_memory)
    checks.name = "a user, and another's process"
    with Target(target) as process:
        code, seen, said = as_user(process.pid)
        checks.equal("is refused", (code, seen), (3, {}))
        checks.true("says why", "Permission denied" in said and "hint: " in said, said)
    checks.name = "a user, and all processes"
    with Target(target) as process, Target(target, **user) as own:
        said = run(tool, "list", "--json", "--pid", "all", "-p", "target:*", **user)
        all_of_them = json.loads(said.stdout)
        pids = [p["pid"] for p in all_of_them["processes"]]
        checks.equal("the own one", (said.returncode, own.pid in pids, process.pid in pids),
                     (3, True, False))
        about_others = [line for line in said.stderr.splitlines() if "processes [maps]" in line or
                        "Permission denied" in line]
        checks.equal("one line of others", len(about_others), 1)
        checks.true("how many", f"of {all_of_them['denied']} processes" in said.stderr, said.stderr)
    checks.name = "a user's own process of a deleted file"
    file = shutil.copy(target, os.path.join(folder, "gone"))
    with Target(file, **user) as process:
        os.remove(file)
        code, seen, said = as_user(process.pid)
        checks.equal("its own program can be read", sorted(n for _, n in probes(seen)),
                     sorted(TARGETS))


def check_many(checks, reprobe, folder):
    checks.name = "2,000 mapped files"
    many = os.path.join(folder, "many")
    os.makedirs(many)
    build(many, "plug.c", "first.so", "-shared", "-fPIC")
    with open(os.path.join(many, "first.so"), "rb") as file:
        data = file.read()
    script = ("import mmap, os, sys, time\n"
              "held = [mmap.mmap(os.open(e.path, os.O_RDONLY), 4096, mmap.MAP_PRIVATE,"
              " mmap.PROT_READ | mmap.PROT_EXEC, offset=4096) for e in os.scandir(sys.argv[1])]\n"
              "print('ready', flush=True)\ntime.sleep(600)\n")
    for i in range(1999):
        with open(os.path.join(many, f"{i}.so"), "wb") as out:
            out.write(data)
    with Target("sh", "-c", 'ulimit -n 4096; exec "$@"', "sh", sys.executable, "-c", script,
                many) as process:
        code, seen, _ = listed(reprobe, process.pid, "-p", "plug:*")
        checks.equal("files", (code, len(seen["files"])), (0, 2000))


def check_traced_file(checks, reprobe, target, folder):
    """The file that is traced reads as it is on disk."""
    checks.name = "a file while it is traced"
    before = run(reprobe, "list", "--json", target).stdout
    event = f"p:reprobe_test/traced {target}:{hex(sites(target)['target:plain'])}"
    with Target(target) as process:
        tracefs = environment.TRACEFS
        # Appended: a file that is opened for writing alone loses the events of others.
        fd = os.open(f"{tracefs}/uprobe_events", os.O_WRONLY | os.O_APPEND)
        os.write(fd, event.encode())
        os.close(fd)
        try:
            with open(f"{tracefs}/events/reprobe_test/traced/enable", "w", encoding="utf-8") as f:
                f.write("1")
            armed = probes(listed(reprobe, process.pid)[1])[("target", "target:plain")]["armed"]
            checks.equal("is armed", armed, "armed")
            checks.equal("list", run(reprobe, "list", "--json", target).stdout, before)
            out = os.path.join(folder, "sled-while-traced")
            made = run(reprobe, "sled", target, "-o", out)
            checks.equal("sled", made.returncode, 0)
        finally:
            with open(f"{tracefs}/events/reprobe_test/traced/enable", "w", encoding="utf-8") as f:
                f.write("0")
            fd = os.open(f"{tracefs}/uprobe_events", os.O_WRONLY | os.O_APPEND)
            os.write(fd, b"-:reprobe_test/traced\n")
            os.close(fd)
    run(reprobe, "sled", target, "-o", out + ".quiet")
    with open(out, "rb") as a, open(out + ".quiet", "rb") as b:
        checks.true("sled gives the same file", a.read() == b.read())


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    environment.need_kernel()
    environment.need_tools(["gcc", "unshare", "readelf", "pgrep"])
    reprobe = os.path.abspath(sys.argv[1])
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="reprobe-process-") as folder:
        target = build(folder, "target.c", "target")
        build(folder, "target.c", "target-no-pie", "-no-pie")
        made = run("i686-linux-gnu-gcc", "-O2", os.path.join(HERE, "process_programs", "target.c"),
                   "-idirafter", "/usr/include", "-idirafter",
                   "/usr/include/x86_64-linux-gnu", "-o", target + "32")
        if made.returncode:
            raise SystemExit(f"FAILED: the 32-bit program: {made.stderr}")
        library = build(folder, "plug.c", "plug.so", "-shared", "-fPIC")
        check_plain(checks, reprobe, target, library)
        check_facts(checks, reprobe, target)
        check_examples(checks, reprobe, target, folder)
        check_storm(checks, reprobe)
        check_places(checks, reprobe, target, folder)
        check_zip(checks, reprobe, library, folder)
        check_kinds(checks, reprobe, target)
        check_users(checks, reprobe, target, folder)
        check_many(checks, reprobe, folder)
        check_traced_file(checks, reprobe, target, folder)
    return checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
