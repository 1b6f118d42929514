"""stap -p2: where SystemTap would put its probes. Without the kernel's headers it wants a folder
that looks like its build tree."""
import os
import platform
import re
from collections import Counter, defaultdict

from common import run

PROGRAM = "stap"
CONSUMER = "systemtap"
_PLACE = re.compile(r'process\("([^"]+)"\)\.statement\((\w+)\)')


def build_tree(folder):
    """What stap looks at: the release, the options without which it has no process probes, and that
    Module.symvers exists."""
    os.makedirs(os.path.join(folder, "include", "config"))
    options = "CONFIG_UPROBES=y\nCONFIG_ARCH_SUPPORTS_UPROBES=y\nCONFIG_TRACEPOINTS=y\n"
    for name, content in {".config": options, "Module.symvers": "",
                          "include/config/kernel.release": platform.release() + "\n"}.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(content)


def lists_all(files, names, tree):
    """All files in one run, which is mostly spent on SystemTap's own scripts: a run a name, as the
    places that it prints carry none."""
    found = defaultdict(Counter)
    for provider, name in names:  # .provider() finds nothing beside a mark without a wildcard
        script = "\n".join(f'probe process("{file}").mark("{name}") ? {{ println("") }}'
                           for file in files)
        said = run("stap", "-r", tree, "-p2", "-w", "-e", script)
        for line in said.stdout.splitlines():
            if m := _PLACE.match(line):
                found[m[1]][(provider, name, int(m[2], 0))] += 1
    return found
