#!/usr/bin/env python3
"""corruption_test.py REPROBE: one field of a good file is wrong at a time.

Each row of pokes.py names the field, its new value, and what list, audit and fix say about the file:
every byte of stdout and stderr, and the exit status. The rows are tried on an ELF64 little-endian
and on an ELF32 big-endian file. Then what must hold for every file: no signal, the input untouched
unless fix says it changed it, and then verify agrees and a second fix changes nothing.
"""

import re
import sys

import poke_findings
import pokes
from command import Result, Tests, read, write
from elf_file import EM_S390, EM_X86_64, golden, poked

t = Tests(sys.argv[1])

COLUMNS = ["SITE", "VERDICT", "KIND", "PROBE", "FUNCTION", "SEMAPHORE", "ARGUMENTS"]
PROBES = ["one", "two", "three", "gone"]


class Golden:
    """A good file, what the tool says about it, and the numbers that messages mention."""

    def __init__(self, bits, order, machine, kind):
        self.dead = kind.startswith("dead")
        self.elf = golden(bits, order, machine, dead=self.dead,
                          kept_relocations=kind.endswith("relocations"))
        elf = self.elf
        self.head = (f"ELF{bits} {order}-endian " + {EM_X86_64: "x86_64", EM_S390: "s390"}[machine])
        self.type = "DYN"
        step = elf.sites["one"] - elf.starts["one"]
        self.rows = {}
        for note in elf.notes:
            site = f"{note.location:#x}"
            live = note.name != "gone"
            function = f"{note.name}+{step:#x}" if note.name != "two" else "(.text)"
            self.rows[note.name] = dict(
                SITE=site, VERDICT="live" if live else "dangling", KIND="nop" if live else "-",
                PROBE="demo:" + note.name, FUNCTION=function if live else "-",
                SEMAPHORE=f"{note.semaphore:#x}" if note.semaphore else "-",
                ARGUMENTS=note.arguments or "-")
        self.numbers = dict(
            size=f"{len(elf.data):#x}", base=f"{elf.base:#x}", step=f"{step:#x}",
            huge=f"{(1 << bits) - 16:#x}", arguments=elf.notes[0].arguments,
            three_arguments=elf.notes[2].arguments,
            section=f"{elf.sections[elf.index('.note.stapsdt')].offset:#x}",
            index=elf.index(".note.stapsdt"), word=elf.layout.word)
        text = elf.sections[elf.index(".text")]
        self.numbers.update(text=f"{text.offset:#x}", text_size=f"{text.size:#x}",
                            text_end=f"{text.addr + text.size:#x}",
                            names=f"{elf.sections[elf.index('.shstrtab')].size:#x}")
        ehdr, phdr, shdr, sym = (64, 56, 64, 24) if bits == 64 else (52, 32, 40, 16)
        shoff = len(elf.data) - len(elf.sections) * shdr
        self.numbers.update(
            ehdr=ehdr, phdr=phdr, shdr=shdr, sym=sym, shoff=f"{shoff:#x}",
            table_end_10000=f"{0x10000 + 4 * phdr:#x}", headers_end_10000=f"{0x10000 + 10 * shdr:#x}",
            thousand_segments=f"{ehdr + 1000 * phdr:#x}", wide_segments=f"{ehdr + 4 * 0xffff:#x}",
            max_segments=f"{ehdr + 0xffff * phdr:#x}",
            headers_end_1=f"{len(elf.data) + 1:#x}", eleven_sections=f"{shoff + 11 * shdr:#x}",
            max_sections=f"{shoff + 0xffff * shdr:#x}", wide_sections=f"{shoff + 10 * (shdr + 1):#x}")
        notes = elf.sections[elf.index(".note.stapsdt")]
        size_of = lambda name: f"{elf.sections[elf.index(name)].size:#x}"
        self.numbers.update(
            phdr_1=phdr - 1, shdr_1=shdr - 1, section_size=f"{notes.size:#x}",
            section_end=f"{notes.offset + notes.size:#x}", symtab_size=size_of(".symtab"),
            strtab_size=size_of(".strtab"), base_far=f"{elf.base + 0x100:#x}",
            id_section=f"{elf.sections[1].offset:#x}", arguments_1=elf.notes[0].arguments[1:],
            first_argument_escaped=r"\x1b" + elf.notes[0].arguments.split()[0][1:],
            counter=f"{elf.notes[2].semaphore:#x}",
            two_in_data=f"{elf.sites['two'] + 0x1000:#x}",
            two_wrapped=f"{elf.sites['two'] + elf.base + 16:#x}")
        if kind.endswith("relocations"):
            self.numbers["rela_size"] = size_of(".rela.note.stapsdt")
        for note in elf.notes:
            name = note.name
            self.numbers[name] = f"{note.location:#x}"
            self.numbers[name + "_note"] = f"{elf.at(name + '.namesz'):#x}"
            self.numbers[name + "_start"] = f"{elf.starts.get(name, 0):#x}"
            descsz = int.from_bytes(elf.data[slice(elf.at(name + ".descsz"),
                                                   elf.at(name + ".type"))], order)
            self.numbers.update({
                name + "_descsz": descsz, name + "_hex": f"{descsz:#x}",
                name + "_descsz_1": descsz - 1, name + "_plus_1": descsz + 1,
                name + "_plus_2": descsz + 2, name + "_far": f"{note.location + 0x100:#x}"})
            section = elf.sections[elf.index(".note.stapsdt")]
            self.numbers[name + "_in_section"] = f"{elf.at(name + '.namesz') - section.offset:#x}"
            self.numbers[name + "_left"] = (section.offset + section.size -
                                            elf.at(name + ".namesz"))


def list_text(file, poke):
    rows = {name: dict(row) for name, row in file.rows.items()}
    for name, changes in poke.rows.items():
        for row in rows.values() if name == "all" else [rows[name]]:
            row.update({k: v.format(**file.numbers) for k, v in changes.items()})
    rows = [rows[name] for name in PROBES if name in rows and name not in poke.without]
    head = " ".join([poke.head or file.head, poke.type or file.type])
    text = f"app: {head}, {len(rows)} probe{'s' if len(rows) != 1 else ''}\n"
    if not rows:
        return text
    widths = {c: max([len(c)] + [len(row[c]) for row in rows]) for c in COLUMNS}
    for row in [dict(zip(COLUMNS, COLUMNS))] + rows:
        text += ("  " + "  ".join(row[c].ljust(widths[c]) for c in COLUMNS[:-1]) + "  " +
                 row["ARGUMENTS"] + "\n")
    return text


def count(number, noun):
    return f"{number} {noun}{'' if number == 1 else 's'}"


def finding_text(finding, numbers):
    about = finding.about.format(**numbers)
    text = f"  {finding.severity} {finding.rule}{' ' + about if about else ''}\n"
    text += f"      {finding.message.format(**numbers)}\n"
    for line in finding.evidence:
        text += f"      evidence: {line.format(**numbers)}\n"
    return text + (f"      hint: {finding.hint.format(**numbers)}\n" if finding.hint else "")


def audit_text(file, poke):
    findings = list(poke.findings)
    if not poke.silent_audit:
        findings = [poke_findings.Finding("warning", "elf-malformed", "", problem, [], "")
                    for problem in poke.problems] + findings
    if file.dead and "gone" not in poke.without:
        findings.append(poke.gone or poke_findings.GONE)
    severities = [finding.severity for finding in findings]
    probes = len([name for name in file.rows if name not in poke.without])
    text = ""
    if findings or poke.tracers:
        text += f"app: {count(len(findings), 'finding')}, {count(probes, 'probe')}\n"
        text += "".join(finding_text(finding, file.numbers) for finding in findings)
    errors, warnings = severities.count("error"), severities.count("warning")
    text += (f"{count(probes, 'probe')} in {1 if probes else 0} of 1 ELF file: "
             f"{count(errors, 'error')}, {count(warnings, 'warning')}"
             f"{', ' + count(poke.unknown, 'probe') + ' unknown' if poke.unknown else ''}\n")
    return text, 1 if errors or warnings else 0


def expected(file, poke):
    """The results of list, audit and fix."""
    numbers = file.numbers
    warn = lambda text: f"reprobe: warning: app: {text.format(**numbers)}\n"
    if poke.error:
        error = f"reprobe: error: app: {poke.error.format(**numbers)}\n"
        error += f"hint: {poke.hint}\n" if poke.hint else ""
        nothing = "0 probes in 0 of 0 ELF files: 0 errors, 0 warnings, 1 unreadable\n"
        return [Result(3, "", error), Result(3, nothing, error), Result(3, "", error)]
    problems = "".join(map(warn, poke.problems))
    notes = "".join(warn(f"[{' '.join(finding.about.split()[-2:])}] {finding.rule}: "
                         f"{finding.message}") for finding in poke.findings
                    if finding.rule.startswith("note-"))
    audit, audit_code = audit_text(file, poke)
    if poke.refused:
        fix = poke.refused.format(**numbers)
        return [Result(0, list_text(file, poke), problems + notes), Result(audit_code, audit, ""),
                Result(4, "", f"reprobe: error: app: {fix}\n")]
    offset = numbers.get(poke.field.split(".")[0] + "_in_section", "0x0")
    section = ".note.stapsdt" + (f"+{offset}" if offset != "0x0" else "")
    place = lambda reason: (".probes" if reason.startswith("semaphore-") else
                            ".stapsdt.base" if "the base" in reason or "base-" in reason else section)
    left = "".join(warn(f"[{place(reason)}] left as it is: "
                        f"{reason}") for reason in poke.left)
    done = poke.fix
    if done is None:
        done = "removed 1 dangling, kept 3 live; build-id kept" if file.dead else "nothing to change"
    doubts = re.match(r"removed [1-9]\d* dangling.* left (\d+) ambiguous", done)
    doubt = warn(f"{doubts[1]} ambiguous left; without the removed notes less may speak against "
                 "them: decide on the input with reprobe audit, --remove-ambiguous -p removes them"
                 ) if doubts else ""
    return [Result(0, list_text(file, poke), problems + notes), Result(audit_code, audit, ""),
            Result(4 if poke.left else 0, "",
                   f"{problems}{left}{doubt}reprobe: app: {done.format(**numbers)}\n")]


def check_invariants(what, data, result):
    """After `fix app` gave `result`."""
    after = read("app")
    changed = after != data
    said = result.code in (0, 4) and "nothing to change" not in result.err and \
        "error:" not in result.err
    if not t.check(f"{what}: fix changes the file if it says so", changed == said, result.text()):
        return
    if not changed:
        return
    write("before", data)
    verified = t.run("verify", "before", "app")
    t.check(f"{what}: verify", verified.code == 0, verified.text())
    t.run("fix", "app")
    t.check(f"{what}: a second fix changes nothing", read("app") == after)


def try_poke(bits, file, poke):
    what = f"ELF{bits} {poke.kind}: {poke.field} = {poke.shown}"
    value = poke.value
    if isinstance(value, int) and value < 0:  # from the end of the field's range
        value += 1 << 8 * file.elf.fields[poke.field][1]
    data = poked(file.elf, poke.field, value)
    for command, want in zip(["list", "audit", "fix"], expected(file, poke)):
        write("app", data, 0o755)
        found = t.run(command, "app")
        t.check(f"{what}: {command} ends without a signal", found.code >= 0, found.text())
        t.same(f"{what}: {command}", want, found)
        if command == "fix":
            check_invariants(what, data, found)


total = 0
for layout in [(64, "little", EM_X86_64), (32, "big", EM_S390)]:
    files = {kind: Golden(*layout, kind)
             for kind in ["plain", "dead", "relocations", "dead relocations"]}
    for kind, file in files.items():  # nothing is wrong yet
        sound = pokes.Poke(kind, "", 0)
        if kind.startswith("dead relocations"):
            sound.gone = pokes.GONE_BY_RELOCATION
        for command, want in zip(["list", "audit", "fix"], expected(file, sound)):
            write("app", bytes(file.elf.data), 0o755)
            t.same(f"ELF{layout[0]} {kind}: {command}", want, t.run(command, "app"))
    for poke in pokes.TABLE:
        if poke.only in (None, layout[0]):
            total += 1
            try_poke(layout[0], files[poke.kind], poke)
print(f"{len(pokes.TABLE)} rows, {total} files")
t.check("there are many pokes", len(pokes.TABLE) >= 60)
t.finish()
