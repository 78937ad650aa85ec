#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what the documentation says against the tree: links, file names, flags of ferry and of the scripts."""
import re
import sys

import source_tree

LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE_SPAN = re.compile(r"`([^`]+)`")
FENCE = re.compile(r"^\s*```")
PATH = re.compile(r"^(?:\./)?((?:\.ci|[\w-][\w.-]*)/[\w./-]*|[\w-]+\.md)$")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
SCRIPT = re.compile(r"(?:\./)?(scripts/[\w.]+|\.ci/run)")
KEY_ROW = re.compile(r"^\| `([a-z][a-z0-9_]*)` \|", re.M)  # a key of docs/cli.md; its flag has dashes
FERRY = re.compile(r"(?:^|[\s/])ferry\s+[a-z]+\b")
# Made by a build or a run, so absent from a clone.
MADE = ("build/", "out/")


def code_pieces(text):
    """(line number, code, is it a span) of each code span and each line of a fenced block."""
    fenced, pieces = False, []
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            fenced = not fenced
        elif fenced:
            pieces.append((number, line, False))
        else:
            pieces += [(number, span, True) for span in CODE_SPAN.findall(line)]
    return pieces


def check_links(tree, path, text):
    faults = []
    for number, line in enumerate(text.splitlines(), 1):
        for target in LINK.findall(line):
            if re.match(r"^[a-z]+:|^#", target):
                continue
            if not (path.parent / target.partition("#")[0]).exists():
                faults.append(f"{tree.name(path)}:{number}: link to '{target}', which does not exist")
    return faults


def exists(tree, path, target):
    """From the root, from the document's folder, from src/ (as includes are written)."""
    return any((place / target).exists() for place in (tree.root, path.parent, tree.root / "src"))


def check_paths(tree, path, text):
    faults = []
    for number, code, is_span in code_pieces(text):
        match = PATH.match(code) if is_span else None
        if not match or match[1].startswith(MADE):
            continue
        first = match[1].split("/")[0]
        ours = "/" not in match[1] or (tree.root / first).exists() or (tree.root / "src" / first).exists()
        if ours and not exists(tree, path, match[1]):
            faults.append(f"{tree.name(path)}:{number}: names '{code}', which does not exist")
    return faults


def flags_in(path):
    return set(FLAG.findall(path.read_text(encoding="utf-8"))) if path.exists() else set()


def ferry_flags(page):
    keys = KEY_ROW.findall(page.read_text(encoding="utf-8")) if page.exists() else []
    return flags_in(page) | {f"--{key.replace('_', '-')}" for key in keys}


def check_flags(tree, path, text):
    faults = []
    cli_flags = ferry_flags(tree.root / "docs" / "cli.md")
    all_flags = cli_flags.union(*map(flags_in, tree.files("scripts", suffixes={".sh", ".py"})))
    for number, code, _ in code_pieces(text):
        flags = FLAG.findall(code)
        script = SCRIPT.search(code)
        if script and (tree.root / script[1]).is_file():
            have, where = flags_in(tree.root / script[1]), script[1]
        elif FERRY.search(code):
            have, where = cli_flags, "docs/cli.md"
        elif code.startswith("--"):
            have, where = all_flags, "docs/cli.md or a script"
        else:
            continue
        faults += [f"{tree.name(path)}:{number}: flag {f} is not in {where}" for f in flags if f not in have]
    return faults


def check(tree):
    faults = []
    pages = [path for path in tree.root.glob("*.md")] + tree.files("docs", "data", suffixes={".md"})
    for path in sorted(pages):
        text = path.read_text(encoding="utf-8")
        faults += check_links(tree, path, text) + check_paths(tree, path, text)
        if path.name != "cli.md":
            faults += check_flags(tree, path, text)
    return faults


if __name__ == "__main__":
    sys.exit(source_tree.main(check))
