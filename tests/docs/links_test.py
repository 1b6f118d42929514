#!/usr/bin/env python3
"""links_test.py ROOT: each link of the documents leads somewhere in the repository, its anchor is a
heading there, and each document of docs/ can be reached from docs/index.md."""
import glob
import os
import re
import sys


def prose(path):
    """The text without its blocks and spans of code, which may look like links."""
    with open(path, encoding="utf-8") as file:
        text = re.sub(r"^```.*?^```", "", file.read(), flags=re.S | re.M)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(path):
    """GitHub's: lower case, blanks as dashes, only letters, digits, dashes and underscores."""
    with open(path, encoding="utf-8") as file:
        headings = re.findall(r"^#+ +(.*)$", file.read(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def main():
    root = os.path.abspath(sys.argv[1])
    documents = [f"{root}/{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")]
    documents += sorted(glob.glob(f"{root}/docs/**/*.md", recursive=True))
    failures, count, reached = [], 0, set()
    for document in documents:
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(document)):
            if re.match(r"[a-z]+:", target):
                continue
            count += 1
            path, _, anchor = target.partition("#")
            file = os.path.normpath(os.path.join(os.path.dirname(document), path)) if path else document
            about = f"{os.path.relpath(document, root)}: {target}"
            if not os.path.exists(file):
                failures.append(f"{about}: no such file")
            elif anchor and anchor not in anchors(file):
                failures.append(f"{about}: no such heading")
            if document == f"{root}/docs/index.md":
                reached.add(file)
    for document in documents:
        if document not in reached and not document.endswith("/docs/index.md"):
            failures.append(f"docs/index.md does not lead to {os.path.relpath(document, root)}")
    for failure in failures:
        print("FAILED:", failure)
    print(f"{count} links in {len(documents)} documents, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
