"""The fixtures: programs and shared objects with one fault each, and how each is run.

A fixture's truth is in its symbols (fixtures/sdt_site.h): a symbol a site. What is stripped or
changed has the truth of the file it was made of."""
import os
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
# lld and mold lay small files out so that no semaphore can rise; the fixture relro is that.
NORELRO = ["-Wl,-z,norelro"]
GC = ["-Wl,--gc-sections"]


@dataclass
class Fixture:
    name: str
    path: str  # a copy that the tracers read and the program runs from
    original: str
    twin: str  # whose symbols say what is live
    program: str = ""  # what loads a shared object
    relocations: bool = False  # BOLT may move its functions
    lost: tuple = ()  # names whose note is lost for good
    repairable: bool = True  # after `fix` every tool is right
    sites: dict = field(default_factory=dict)  # (provider, name) -> addresses
    passed: dict = field(default_factory=dict)  # (provider, name) -> how often the program does

    @property
    def names(self):
        return [*self.sites, (PROVIDER, "gone")]

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
             "-fuse-ld=" + linker.split("-")[0], *options, *objects, "-o", out)
        return out

    def add(self, name, file, twin=None, **attributes):
        os.makedirs(self.file("run/" + name))
        copy = self.file(f"run/{name}/{os.path.basename(file)}")
        shutil.copy(file, copy)
        self.fixtures.append(Fixture(name, copy, file, twin or file, **attributes))

    def changed(self, name, file, change, **attributes):
        out = self.file(name.replace(" ", "-"))
        with open(file, "rb") as source:
            data = bytearray(source.read())
        change(data)
        with open(out, "wb") as target:
            target.write(data)
        shutil.copymode(file, out)
        self.add(name, out, file, **attributes)


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
            options = GC + ([] if linker in ("gold", "bfd") else NORELRO)
            # gold cannot link notes whose code it drops: nothing is dead there.
            work = ["-DNO_DEAD"] if linker == "gold" else []
            file = builder.link(f"{linker}-{kind}", linker, kind, options, work)
            builder.add(f"{linker} {kind}", file, program=program if kind == "shared" else "")
    file = builder.link("emit-relocs", "lld-19", "pie", [*GC, *NORELRO, "-Wl,--emit-relocs"])
    builder.add("lld-19 pie, --emit-relocs", file, relocations=True)


def notes(builder, healthy):
    """The table of consumers.md, and what else is wrong with headers and bases."""
    for name, change in {
            "sh_addralign 8": mutate.header("align", 8),
            "sh_addralign 16": mutate.header("align", 16),
            "sh_addralign 1": mutate.header("align", 1),
            "SHF_ALLOC": mutate.alloc,
            "padding outside sh_size": mutate.padding_outside,
            "descsz counts the padding": mutate.padding_inside,
            "type 4 first": mutate.first_type(4),
            "location 0 first": mutate.first_location(0),
            "base 0, section kept": mutate.no_base,
            "prelinked": mutate.prelinked,
            "notes before .probes": mutate.section_order}.items():
        builder.changed(name, healthy, change)
    file = builder.link("foreign", "bfd", "pie", [], ["-DNO_DEAD", "-DFOREIGN_NOTE"])
    builder.add("foreign note", file)
    builder.add("base in another segment", builder.link("delta", "lld-19", "pie", NORELRO,
                                                        ["-DNO_DEAD"]))


def semaphores(builder, healthy):
    def bfd(name, **parts):
        return builder.link(name, "bfd", "pie", [], ["-DNO_DEAD"], **parts)

    for name, flag in {"in .data": "IN_DATA", "in .bss": "IN_BSS", "read-only": "READ_ONLY",
                       "odd address": "ODD"}.items():
        builder.add(f"semaphore {name}", bfd(flag, semaphore=["-D" + flag]))
    builder.changed("semaphore in an executable segment", healthy, mutate.segment_flags(mutate.PF_X))
    builder.add("semaphore in a RELRO page",
                builder.link("relro", "lld-19", "pie", [], ["-DNO_DEAD"]))
    builder.add("semaphore field 0, symbol there", bfd("field", guard=["-DFIELD_ZERO"]))
    builder.changed("semaphore field 2, symbol there", healthy, mutate.semaphore_nowhere)
    builder.add("semaphores of two probes at one site",
                bfd("second", guard=["-DSECOND"], semaphore=["-DSECOND"]))
    # The library asks another module's counter.
    file = builder.link("undefined.so", "bfd", "shared", [], ["-DNO_DEAD"], semaphore=None)
    builder.add("semaphore undefined", file, program=host(
        builder, "definer", "-DDEFINES_SEMAPHORE", "-rdynamic"))
    library = builder.link("libcopied.so", "bfd", "shared", [], ["-DNO_DEAD"],
                           semaphore=["-DEXPORTED"])
    program = builder.file("copier")
    builder.add("semaphore copied", library, program=program)
    # Without a DT_SONAME the program asks for the path that it was linked with.
    must("gcc", "-O1", "-fno-pie", "-no-pie", os.path.join(SOURCES, "copier.c"),
         builder.fixtures[-1].path, "-o", program)
