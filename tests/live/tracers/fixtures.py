"""The fixtures: programs and shared objects with one fault each, and how each is run.

A fixture's truth is in its symbols (fixtures/sdt_site.h): a symbol a site. What is stripped or
changed has the truth of the file it was made of."""
import os
import re
import shutil
from dataclasses import dataclass, field

import mutate
from common import PROVIDER, run

HITS = 100
SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs")
HEADERS = os.path.join(SOURCES, "..", "..", "..", "..", "fixtures")
LINKERS = {"lld-14": "ld.lld-14", "lld-19": "ld.lld-19", "mold": "ld.mold", "gold": "ld.gold",
           "bfd": "ld.bfd"}
KINDS = {"pie": (["-fPIE"], ["-pie"]), "nopie": (["-fno-pie"], ["-no-pie"]),
         "shared": (["-fPIC", "-DSHARED"], ["-shared"])}
# lld and mold let two writable segments of a small file share a page of it, and no semaphore there
# rises before fix; the fixtures "in a RELRO page" and "in a shared page" are such.
RISING = {"lld": ["-Wl,-z,norelro"], "mold": ["-Wl,-z,separate-loadable-segments"]}
NORELRO = RISING["lld"]
GC = ["-Wl,--gc-sections"]


@dataclass
class Fixture:
    name: str
    path: str  # a copy that the tracers read and the program runs from
    original: str
    twin: str  # whose symbols say what is live
    program: str = ""  # what loads a shared object
    rule: str = ""  # that `audit` names
    repairable: bool = True  # after `fix` every tool is right
    lost: str = ""  # the name whose note says nothing of its site
    sites: dict = field(default_factory=dict)  # (provider, name) -> addresses
    passed: dict = field(default_factory=dict)  # (provider, name) -> how often the program does

    @property
    def names(self):
        """Of the probes that may be in the file, live or not."""
        return list(dict.fromkeys([*self.sites, (PROVIDER, "work"), (PROVIDER, "gone")]))

    @property
    def command(self):
        return [self.program, self.path, str(HITS)] if self.program else [self.path, str(HITS)]


class Builder:
    def __init__(self, folder):
        self.folder = folder
        self.fixtures = []
        self.objects = {}
        for linker, program in LINKERS.items():
            # gcc finds a linker of a certain version only as a program ld.lld in a folder of -B.
            os.makedirs(os.path.join(folder, "tools", linker))
            os.symlink(shutil.which(program), os.path.join(folder, "tools", linker,
                                                           "ld." + linker.split("-")[0]))

    def file(self, name):
        return os.path.join(self.folder, name)

    def compiled(self, source, flags):
        key = (source, *flags)
        if key not in self.objects:
            out = self.file(f"object{len(self.objects)}.o")
            must("gcc", "-O2", "-Wall", "-Wextra", "-fcf-protection=none", "-ffunction-sections",
                 "-fvisibility=hidden", "-I", HEADERS, *flags, "-c", os.path.join(SOURCES, source),
                 "-o", out)
            self.objects[key] = out
        return self.objects[key]

    def link(self, name, linker, kind, options, work=(), guard=(), semaphore=()):
        """Compiles and links; work, guard, semaphore: their sources' switches, None: without it."""
        compile_flags, link_flags = KINDS[kind]
        parts = [("work.c", work), ("guard.c", guard), ("semaphore.c", semaphore)]
        objects = [self.compiled(source, [*compile_flags, *flags])
                   for source, flags in parts if flags is not None]
        out = self.file(name)
        must("gcc", *link_flags, "-B" + self.file("tools/" + linker),
             "-fuse-ld=" + linker.split("-")[0], "-Wl,--build-id=sha1", *objects, *options,
             "-o", out)
        return out

    def add(self, name, file, twin=None, **attributes):
        folder = self.file("run/" + slug(name))
        os.makedirs(folder)
        copy = os.path.join(folder, os.path.basename(file))
        shutil.copy(file, copy)
        self.fixtures.append(Fixture(name, copy, file, twin or file, **attributes))

    def changed(self, name, file, change, **attributes):
        out = self.file(slug(name))
        with open(file, "rb") as source:
            data = bytearray(source.read())
        change(data)
        with open(out, "wb") as target:
            target.write(data)
        shutil.copymode(file, out)
        self.add(name, out, file, **attributes)


def slug(name):
    """Not all tracers can do with blanks and commas in a path."""
    return re.sub(r"\W+", "-", name)


def must(*command):
    result = run(*command)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)}: {result.stderr}")


def host(builder, name="host", *flags):
    out = builder.file(name)
    must("gcc", "-O1", *flags, os.path.join(SOURCES, "host.c"), "-o", out)
    return out


def collected(builder):
    """--gc-sections of every linker, kind by kind: base dropped, dead() gone, its notes left."""
    program = host(builder)
    for linker in LINKERS:
        for kind in KINDS:
            options = GC + RISING.get(linker.split("-")[0], [])
            # gold cannot link notes whose code it drops: nothing is dead there.
            work = ["-DNO_DEAD"] if linker == "gold" else []
            file = builder.link(f"{linker}-{kind}", linker, kind, options, work)
            builder.add(f"{linker} {kind}", file, program=program if kind == "shared" else "",
                        rule="base-missing" if linker != "bfd" else "")
    file = builder.link("emit-relocs", "lld-19", "pie", [*GC, *NORELRO, "-Wl,--emit-relocs"])
    builder.add("lld-19 pie, --emit-relocs", file, rule="dangling")


def notes(builder, healthy):
    """The table of consumers.md, and what else is wrong with headers and bases."""
    builder.changed("location 0 first", healthy, mutate.first_location(0), rule="dangling",
                    lost="work")
    for name, change, rule in (
            ("sh_addralign 8", mutate.header("align", 8), "note-align"),
            ("sh_addralign 16", mutate.header("align", 16), "note-align"),
            ("sh_addralign 1", mutate.header("align", 1), "note-align"),
            ("SHF_ALLOC", mutate.alloc, "note-alloc"),
            ("padding outside sh_size", mutate.padding_outside, "note-padding"),
            ("descsz counts the padding", mutate.padding_inside, "note-descsz"),
            ("type 4 first", mutate.first_type(4), "note-type"),
            ("base 0, section kept", mutate.no_base, "base-shift"),
            ("prelinked", mutate.prelinked, "base-shift"),
            ("notes before .probes", mutate.section_order, "section-order")):
        builder.changed(name, healthy, change, rule=rule)
    builder.add("two note sections", two_sections(builder), rule="note-sections")
    file = builder.link("foreign", "bfd", "pie", [], ["-DNO_DEAD", "-DFOREIGN_NOTE"])
    builder.add("foreign note", file, rule="note-foreign")
    file = builder.link("short-id", "lld-14", "pie", [*NORELRO, "-Wl,--build-id=fast"],
                        ["-DNO_DEAD"])
    builder.add("build-id of 8 bytes", file, rule="build-id-short", repairable=False)
    file = builder.link("delta", "lld-19", "pie", NORELRO, ["-DNO_DEAD"])
    builder.add("base in another segment", file, rule="base-delta")


def two_sections(builder):
    """The notes of guard.c in a section of their own, named alike after the link."""
    flags = ["-fPIE", "-DNO_DEAD"]
    objects = [builder.compiled(source, flags) for source in ("work.c", "guard.c", "semaphore.c")]
    apart, out = builder.file("apart.o"), builder.file("two-sections")
    must("objcopy", "--rename-section", ".note.stapsdt=.note.other", objects[1], apart)
    must("gcc", "-pie", "-fuse-ld=bfd", objects[0], apart, objects[2], "-o", out)
    must("objcopy", "--rename-section", ".note.other=.note.stapsdt", out)
    return out


def semaphores(builder, healthy):
    def bfd(name, kind="pie", options=(), **parts):
        return builder.link(name, "bfd", kind, [*options], ["-DNO_DEAD"], **parts)

    def beyond_repair(name, file, rule, **attributes):
        builder.add(f"semaphore {name}", file, rule="semaphore-" + rule, repairable=False,
                    **attributes)

    builder.add("semaphore in .data", bfd("data", semaphore=["-DIN_DATA"]),
                rule="semaphore-section")
    builder.add("semaphore field 0, symbol there", bfd("field", guard=["-DFIELD_ZERO"]),
                rule="semaphore-undefined")
    builder.changed("semaphore field 2, symbol there", healthy, mutate.semaphore_nowhere,
                    rule="semaphore-dangling")
    for name, flag, rule in (("in .bss", "IN_BSS", "nobits"),
                             ("read-only", "READ_ONLY", "readonly"), ("odd address", "ODD", "odd")):
        beyond_repair(name, bfd(flag, semaphore=["-D" + flag]), rule)
    builder.changed("semaphore in an executable segment", healthy,
                    mutate.segment_flags(mutate.PF_X), rule="semaphore-executable",
                    repairable=False)
    for name, linker, options in (("in a RELRO page", "lld-19", []), ("in a shared page", "mold", NORELRO)):
        builder.add(f"semaphore {name}", builder.link("page-" + linker, linker, "pie", options, ["-DNO_DEAD"]),
                    rule="semaphore-relro-page")
    beyond_repair("of each of two probes at one site",
                  bfd("second", guard=["-DSECOND"], semaphore=["-DSECOND"]), "conflict")
    # In another module.
    definer = host(builder, "definer", "-DDEFINES_SEMAPHORE", "-rdynamic")
    beyond_repair("undefined", bfd("undefined.so", "shared", semaphore=None), "undefined",
                  program=definer)
    library = builder.file("semaphore.so")
    must("gcc", "-shared", builder.compiled("semaphore.c", ["-fPIC", "-DEXPORTED"]), "-o", library)
    beyond_repair("copied", bfd("copied", "nopie", [library], semaphore=None), "copied")
