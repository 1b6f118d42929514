"""What pokes.py says of a field that was changed, and the findings that audit has of it."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Finding:
    severity: str
    rule: str
    about: str
    message: str
    evidence: list
    hint: str


@dataclass
class Poke:
    kind: str   # of the golden file: plain, dead (with a dangling note), relocations (kept ones)
    field: str
    value: Any
    # What is different from the good file:
    error: str = ""        # all commands fail with it, exit 3
    hint: str = ""
    refused: str = ""      # fix alone fails with it, exit 4
    head: str = ""         # of list: class, order and machine
    type: str = ""
    rows: dict = field(default_factory=dict)      # of list: columns by probe, or of "all"
    without: tuple = ()                           # probes that are not found
    problems: list = field(default_factory=list)  # of the reader: warnings; audit: elf-malformed
    silent_audit: bool = False                    # ... which the audit does not report
    findings: list = field(default_factory=list)  # of the audit; note-*: warnings of list
    tracers: bool = False                         # a tracer fails, though there is no finding
    gone: Finding = None                          # what the audit says about demo:gone
    unknown: int = 0                              # probes that the audit cannot judge
    fix: str = None                               # what fix says it did
    left: list = field(default_factory=list)      # what fix says it left, exit 4
    only: int = None                              # 64 or 32

    @property
    def shown(self):
        if callable(self.value):
            return "old" + getattr(self.value, "shown", "?")
        return hex(self.value) if isinstance(self.value, int) else repr(self.value)


def plus(n):
    def changed(old):
        return old + n
    changed.shown = f"{n:+d}"
    return changed


HUGE = -16  # 0xff..f0

# --- What the findings say besides their message -----------------------------------------------

FIX = "run `reprobe fix`"
RELINK = "link the file again; these bytes cannot be repaired"
RECOMPILE = "compile the object again with an unmodified sys/sdt.h"
RULES = {
    "note-align": ("readelf, eu-readelf, gdb, perf and bcc pad by sh_addralign: where the notes are "
                   "laid out otherwise they lose those behind the first; BOLT reads a layout of 4 "
                   "only", FIX),
    "note-alloc": ("perf and systemtap skip the whole section; gdb warns", FIX),
    "note-sections": ("libbpf, perf and LTTng read the first only", FIX),
    "note-section-type": ("no tracer reads it", FIX),
    "note-unreadable": ("no tracer reads it", RELINK),
    "note-truncated": ("every tracer loses it and what follows", RELINK),
    "note-foreign": ("libbpf refuses every attach to the file", FIX),
    "note-namesz": ("gdb, perf and bcc skip the note", FIX),
    "note-type": ("perf stops reading there; libbpf refuses every attach to the file; gdb, "
                  "eu-readelf, systemtap and bcc skip the note", FIX),
    "note-short": ("libbpf refuses every attach to the file; perf lists no probe of it; the others "
                   "skip the note", RECOMPILE),
    "note-strings": ("libbpf refuses every attach to the file; the others skip the note",
                     RECOMPILE),
    "note-name": ("an empty name makes libbpf refuse every attach to the file and perf list no "
                  "probe of it", RECOMPILE),
    "note-args-nul": ("gdb, systemtap, eu-readelf and bcc skip the note", FIX),
    "note-descsz": ("gdb, systemtap, eu-readelf and bcc skip the note", FIX),
    "note-padding": ("without the last note's padding in the section, readelf, perf and bcc lose "
                     "that note; other bytes than zero break none", FIX),
    "note-gap": ("every tracer loses the notes behind them; at the section's end readelf warns",
                 FIX),
}


def note_rule(rule, about, message, *evidence, severity="error"):
    breaks, hint = RULES[rule]
    return Finding(severity, rule, about, message, [breaks, *evidence], hint)


def truncated(offset, where, found):
    return note_rule("note-truncated", "note " + where,
                     f"note at offset {offset} of section {{index}}; expected a whole note before "
                     f"the section's end, found {found}", "nothing behind this offset could be read")


def dangling(name, evidence, site=None):
    return Finding("error", "dangling", f"demo:{name} site {site or '{' + name + '}'} note "
                   f"{{{name}_note}}",
                   "the note's code is not in the file; a tracer attaches elsewhere or refuses the "
                   "probe", [evidence], "reprobe fix removes the note")


def ambiguous(name, *evidence, site=None):
    return Finding("warning", "ambiguous", f"demo:{name} site {site or '{' + name + '}'} note "
                   f"{{{name}_note}}",
                   "the note may point at its probe or, by accident, at another instruction",
                   list(evidence),
                   "--objects with the inputs of the link, -Wl,--emit-relocs (lld, bfd) or .symtab decide; "
                   "reprobe fix --remove-ambiguous -p PROVIDER:NAME removes it")


def argument_operand(about, arguments):
    return Finding("note", "argument-operand", about,
                   "an argument has an operand that no tracer is known to read",
                   [f"{arguments}, at 1 of 1 site"],
                   "pass an integer: sys/sdt.h writes an operand of the assembler")


def name_as_argument(about, text):
    """`text`, a part of the probe's name, stands where the arguments do: {64: ..., 32: ...}. On
    x86-64 it is a symbol without a size; on s390 no operand at all."""
    return {64: Finding("warning", "argument-size-missing", about,
                        "an argument has no size: libbpf refuses the probe, bcc skips the argument",
                        [f"{text}, at 1 of 1 site"],
                        "write the size, as in -4@(%rax); sys/sdt.h does"),
            32: argument_operand(about, text)}


def counter(rule, name, message, evidence, hint):
    return Finding("error", rule, f"demo:{name} site {{{name}}} note {{{name}_note}}", message,
                   [evidence], hint)


GONE = dangling("gone", "{gone} lies in no section")
GONE_BY_RELOCATION = dangling("gone", "the kept relocation of the location is R_*_NONE: the linker "
                              "discarded its section")
