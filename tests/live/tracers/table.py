"""The table of docs/consumers.md: fixture by tool, before and after the repair."""
import measure
from common import REFUSED
from measure import TOOLS

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def cell(f, tool, result):
    """`ok`, or what is wrong with what the tool listed and counted."""
    faults = []
    if result.listed is not None:
        expected = measure.expected_list(f, measure.LISTED[tool])
        good = sum((expected & result.listed).values())
        strange = sum((result.listed - expected).values())
        if good < sum(expected.values()):
            faults.append(f"lists {good} of {sum(expected.values())}")
        if strange:
            faults.append(f"{strange} wrong")
    for (_, name), hits in sorted((result.hits or {}).items()):
        right = f.passed[(_, name)]
        if hits == REFUSED:
            faults.append(f"{name} refused")
        elif hits != right:
            faults.append(f"{name} counts " + ("0" if hits == 0 else "wrong"))
    return ", ".join(faults) or "ok"


def render(fixtures, before, after):
    lines = ["| fixture | " + " | ".join(TOOLS) + " |", "|---" * (len(TOOLS) + 1) + "|"]
    for f in fixtures:
        cells = []
        for tool in TOOLS:
            was, now = (cell(f, tool, results[f.name][tool]) for results in (before, after))
            cells.append(was if was == now else f"{was} → {now}")
        lines.append(f"| {f.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def compare(test, page, measured, write):
    with open(page, encoding="utf-8") as file:
        text = file.read()
    head, _, rest = text.partition(BEGIN + "\n")
    old, _, tail = rest.partition(END)
    if write:
        with open(page, "w", encoding="utf-8") as file:
            file.write(head + BEGIN + "\n" + measured + END + tail)
    elif old != measured:
        was, now = set(old.splitlines()), set(measured.splitlines())
        test.fail(f"{page}: the table is not what was measured (--write writes it):\n" +
                  "\n".join([f"- {line}" for line in sorted(was - now)] +
                            [f"+ {line}" for line in sorted(now - was)]))
