"""The table of docs/consumers.md: fixture by tool, before and after the repair."""
import measure
from common import REFUSED
from measure import TOOLS

RIGHT = "ok"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def cell(f, tool, result):
    """RIGHT, or what is wrong with what the tool listed and counted."""
    faults = [result.error] if result.error else []
    if result.listed is not None:
        expected = measure.expected_list(f, measure.LISTED[tool])
        good = sum((expected & result.listed).values())
        strange = sum((result.listed - expected).values())
        if good < sum(expected.values()):
            faults.append(f"lists {good} of {sum(expected.values())}")
        if strange:
            faults.append(f"{strange} wrong")
    for key, hits in sorted((result.hits or {}).items()):
        if hits == f.passed.get(key, REFUSED):
            continue
        what = {REFUSED: "refused", 0: "counts 0"}.get(hits, "counts wrong")
        faults.append(f"{key[1]} {what}")
    return ", ".join(faults) or RIGHT


def cells(fixtures, results):
    return {f.name: {tool: cell(f, tool, results[f.name][tool]) for tool in TOOLS}
            for f in fixtures}


def render(fixtures, before, after):
    lines = ["| fixture | " + " | ".join(TOOLS) + " |", "|---" * (len(TOOLS) + 1) + "|"]
    for f in fixtures:
        pairs = [(before[f.name][tool], after[f.name][tool]) for tool in TOOLS]
        lines.append(f"| {f.name} | " + " | ".join(
            was if was == now else f"{was} → {now}" for was, now in pairs) + " |")
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
