#!/usr/bin/env python3
"""make_pages.py REPROBE RT_H FOLDER: writes reprobe.1, a page for each command, and reprobe-rt.3, which
says what the comments of reprobe/rt.h say, into FOLDER.

The texts are those of --help, so that there is one source for both. Lines of --help that begin with two
blanks are options, arguments or commands; what stands behind the options is prose, but for "Exit:" and
"Examples:".
"""
import os
import re
import subprocess
import sys


def help_of(reprobe, *command):
    return subprocess.run([reprobe, *command, "--help"], capture_output=True, text=True,
                          check=True).stdout


def escaped(text):
    """Of roff: a backslash, a hyphen that is one, a control character at the start of a line."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("~", "\\(ti")
    text = text.replace("^", "\\(ha").replace("`", "\\(ga")
    return "\\&" + text if text.startswith((".", "\\(aq")) else text


def parts(text):
    """The blocks of a help text: (what it is, the usage line, [(heading, [(item, text)])], prose)."""
    lines = text.splitlines()
    summary, usage = lines[0], lines[1].removeprefix("Usage: ")
    groups, prose = [], []
    for line in lines[2:]:
        heading = re.fullmatch(r"([A-Z][\w ]+):", line)
        if heading and not prose and heading[1] != "Examples":
            groups.append((heading[1], []))
        elif groups and not prose and re.match(r"  \S", line):
            item = re.match(r"  (.*?)(?:  +(.*))?$", line)
            groups[-1][1].append([item[1], item[2] or ""])
        elif groups and not prose and re.match(r" {20}", line):
            groups[-1][1][-1][1] += " " + line.strip()
        elif line or prose:
            prose.append(line)
    return summary, usage, groups, prose


def synopsis(usage):
    return re.sub(r"(reprobe(?: [a-z]+)?)(.*)", lambda m: f".B {escaped(m[1])}\n{escaped(m[2].strip())}",
                  usage).rstrip()


def page(name, text, version, others):
    summary, usage, groups, prose = parts(text)
    summary = summary[0].lower() + summary[1:].rstrip(".") if name == "reprobe" else summary
    out = [f'.TH {name.upper().replace("-", chr(92) + "-")} 1 "" "reprobe {version}" "User Commands"',
           ".SH NAME", f"{escaped(name)} \\- {escaped(summary)}", ".SH SYNOPSIS", synopsis(usage)]
    example = prose.index("Examples:") if "Examples:" in prose else len(prose)
    told = prose[:example]
    exits = next((i for i, line in enumerate(told) if line.startswith("Exit: ")), len(told))
    paragraphs = "\n".join(told[:exits]).strip()
    if paragraphs:
        out.append(".SH DESCRIPTION")
        out += [".PP" if not line else escaped(line) for line in paragraphs.splitlines()]
    for heading, items in groups:
        if not items:
            continue
        out.append(f".SH {heading.upper()}")
        for item, about in items:
            out += [".TP", f".B {escaped(item)}", escaped(about.strip()) or "\\&"]
    if exits < len(told):
        status = " ".join(line for line in told[exits:] if line).removeprefix("Exit: ")
        out += [".SH EXIT STATUS", escaped(status)]
    if example < len(prose):
        out += [".SH EXAMPLES", ".nf", *(escaped(line[2:]) for line in prose[example + 1:]), ".fi"]
    seen = [f".BR {escaped(other)} ({section})" for other, section in others if other != name]
    out += [".SH SEE ALSO", " ,\n".join(seen)]
    return "\n".join(out) + "\n"


def prose_of(comment):
    """Of roff: paragraphs, and lines that are further in as they are."""
    lines = [re.sub(r"^ ?\*? ?", "", line) for line in comment.splitlines()]
    out, code = [], False
    for line in lines:
        inner = line.startswith("  ")
        if inner != code:
            out.append(".nf" if inner else ".fi")
            code = inner
        out.append(escaped(line) if line.strip() else ".PP" if not code else "")
    if code:
        out.append(".fi")
    return [line for line in out if line]


def library_page(header, version, others):
    with open(header, encoding="utf-8") as file:
        text = file.read()
    text = text[:text.rindex("#ifdef __cplusplus")]
    first = re.match(r"/\*(.*?)\*/", text, re.S)
    out = [f'.TH REPROBE\\-RT 3 "" "reprobe {version}" "Library Functions"', ".SH NAME",
           "reprobe\\-rt \\- handlers in the process for probes with sleds", ".SH SYNOPSIS", ".nf",
           "#include <reprobe/rt.h>", "cc ... \\-lreprobe\\-rt", ".fi", ".SH DESCRIPTION",
           *prose_of(first[1])]
    # A declaration, or several, with the comment in front of them.
    for block in re.split(r"\n\n", text[first.end():]):
        said = re.match(r"\s*/\*(.*?)\*/\n", block, re.S)
        declared = block[said.end():] if said else block
        if not re.search(r"[;{]", declared) or declared.lstrip().startswith(("#", "extern")):
            continue
        out += [".PP", ".nf", *(escaped(line) for line in declared.strip("\n").splitlines()), ".fi"]
        if said:
            out += [".PP", *prose_of(said[1])]
    seen = [f".BR {escaped(other)} ({section})" for other, section in others if section == 1]
    return "\n".join([*out, ".SH SEE ALSO", " ,\n".join(seen)]) + "\n"


def main():
    if len(sys.argv) != 4:
        print(__doc__, file=sys.stderr)
        return 2
    reprobe, header, folder = sys.argv[1:]
    top = help_of(reprobe)
    version = subprocess.run([reprobe, "--version"], capture_output=True, text=True,
                             check=True).stdout.split()[1]
    commands = next(items for heading, items in parts(top)[2] if heading == "Subcommands")
    names = ["reprobe", *(f"reprobe-{command}" for command, _ in commands)]
    others = [(name, 1) for name in names] + [("reprobe-rt", 3)]
    os.makedirs(folder, exist_ok=True)
    for name in names:
        text = help_of(reprobe, *name.split("-")[1:])
        with open(os.path.join(folder, f"{name}.1"), "w", encoding="utf-8") as out:
            out.write(page(name, text, version, others))
    with open(os.path.join(folder, "reprobe-rt.3"), "w", encoding="utf-8") as out:
        out.write(library_page(header, version, others))
    return 0


if __name__ == "__main__":
    sys.exit(main())
