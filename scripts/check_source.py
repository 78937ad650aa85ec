#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks each source file alone: its head, its name, its length, and a few things that must not be in it."""
import re
import sys

import source_tree

FOLDERS = ("src", "kernels", "tests", "scripts", "cmake", ".ci")
SCRIPT_SUFFIXES = {".py", ".sh"}
TEXT_SUFFIXES = source_tree.CPP_SUFFIXES | SCRIPT_SUFFIXES | {".cmake", ".in", ".toml", ".json", ".md", ".txt"}
MAX_LINES = 500
SNAKE_CASE = re.compile(r"^[a-z0-9][a-z0-9_]*(\.[a-z0-9_]+)*$")
OTHER_NAMES = {"CMakeLists.txt", "LICENSE", "README.md"}
SPDX = "SPDX-License-Identifier: Apache-2.0"
# CMake reads brackets and semicolons in the name of a Catch2 test as list syntax, and loses tests.
BAD_TEST_NAME = re.compile(r'TEST_CASE\(\s*"[^"]*[][;][^"]*"')
FORBIDDEN = [
    (BAD_TEST_NAME, "bracket or semicolon in the name of a test"),
    (re.compile(r"\b(TO[D]O|FIX[M]E|XX[X])\b"), "leftover mark: do it, or file an issue"),
    (re.compile(r"using\s+namespace\s+std\b"), "name what is used of std instead"),
    (re.compile(r"\t"), "tab: use spaces"),
    (re.compile(r"[ \t]+$"), "trailing space"),
    (re.compile(r"\r"), "carriage return: use plain line ends"),
]


def check_name(tree, path):
    parts = tree.name(path).split("/")
    names = parts[1:] if parts[0] == ".ci" else parts
    wrong = [part for part in names if not SNAKE_CASE.match(part) and part not in OTHER_NAMES]
    return [f"{tree.name(path)}: '{part}' is not snake_case" for part in wrong]


def check_head(name, lines):
    comment = "//" if name.endswith(tuple(source_tree.CPP_SUFFIXES)) else "#"
    head = lines[1:] if lines and lines[0].startswith("#!") else lines
    if not head or head[0] != f"{comment} {SPDX}":
        return [f"{name}:1: the first line must be '{comment} {SPDX}'"]
    if name.endswith("_test.cpp"):  # the names of its test cases say the purpose
        return []
    purpose = ("// ",) if comment == "//" else ("# ", '"""')
    if len(head) < 2 or not head[1].startswith(purpose) or len(head[1].strip('#/" ').split()) < 2:
        return [f"{name}:2: the second line must say the purpose of the file in a sentence"]
    return []


def needs_head(name, lines):
    return name.endswith(tuple(source_tree.CPP_SUFFIXES | SCRIPT_SUFFIXES)) or (bool(lines) and lines[0].startswith("#!"))


def check(tree):
    faults = []
    for path in tree.files(*FOLDERS):
        name, text = tree.name(path), source_tree.read_text(path)
        faults += check_name(tree, path)
        if text is None or (path.suffix and path.suffix not in TEXT_SUFFIXES):
            continue
        lines = text.split("\n")
        if needs_head(name, lines):
            faults += check_head(name, lines)
            if len(lines) - 1 > MAX_LINES:
                faults.append(f"{name}: {len(lines) - 1} lines, at most {MAX_LINES}: split it by ideas")
        if "fixtures" in path.parts:
            continue
        if text and not text.endswith("\n"):
            faults.append(f"{name}: no newline at the end")
        for number, line in enumerate(lines, 1):
            faults += [f"{name}:{number}: {what}" for pattern, what in FORBIDDEN if pattern.search(line)]
    return faults


if __name__ == "__main__":
    sys.exit(source_tree.main(check))
