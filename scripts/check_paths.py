#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the repository stands alone: no path of somebody's machine, no path that leaves the repository."""
import posixpath
import re
import sys

import source_tree

SYSTEM_FOLDERS = {"bin", "dev", "etc", "lib", "lib64", "opt", "path", "proc", "run", "sys", "tmp", "usr", "var"}
# Paths of nobody: examples, and endings that are appended to a folder.
EXAMPLES = ("/cache/", "/home/me", "/nvidia/")
# At the start of a word; a word character, a dot or a bracket before the slash makes it part of something else.
# Folders of one letter are examples and JSON pointers.
ABSOLUTE = re.compile(r"(?:^|(?<=[\s\"'`(=:,<]))/([a-zA-Z][\w.-]+)/[\w.-]")
RELATIVE = re.compile(r"(?:^|(?<=[\s\"'`(=:,<]))((?:\.\./)+[\w.-][\w./-]*)")
DATA_SUFFIXES = {".txt", ".svg", ".tsv", ".jsonl"}


def check_relative(tree, name, target):
    """Tests may name files that do not exist (bad input); everything else must point to a file of the repository."""
    place = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    if place.startswith(".."):
        return "leaves the repository"
    if not name.startswith("tests/") and not (tree.root / place).exists():
        return "points to nothing in the repository"
    return None


def check(tree):
    faults = []
    for path in tree.files():
        name, text = tree.name(path), source_tree.read_text(path)
        if text is None or path.suffix in DATA_SUFFIXES and path.name != "CMakeLists.txt":
            continue
        for number, line in enumerate(text.splitlines(), 1):
            for match in ABSOLUTE.finditer(line):
                known = match[1] in SYSTEM_FOLDERS or line.startswith(EXAMPLES, match.start())
                if not known and not (tree.root / match[1]).exists():
                    faults.append(f"{name}:{number}: '{match[0].strip()}...' is a path of one machine")
            for match in RELATIVE.finditer(line):
                fault = check_relative(tree, name, match[1])
                if fault:
                    faults.append(f"{name}:{number}: '{match[1]}' {fault}")
    return faults


if __name__ == "__main__":
    sys.exit(source_tree.main(check))
