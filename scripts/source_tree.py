# SPDX-License-Identifier: Apache-2.0
"""What the check scripts share: the files of the repository, and how faults are reported.

A check is a function from a Tree to a list of faults ("path:line: what is wrong, what to do").

`main(check)` runs it over the repository, or over the folder given by --root, and returns the exit status:
0 = no fault, 1 = faults, 77 = skipped (the check raised Skip); with FERRY_CHECKS_MUST_RUN=1 a skip is a fault.
"""
import argparse
import os
import sys
from pathlib import Path

HIDDEN_BUT_OURS = (".ci", ".github", ".clang-format", ".clang-tidy", ".editorconfig", ".gitignore")
CPP_SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
SKIPPED = 77


class Skip(Exception):
    """The check cannot run here; the message says what is missing."""


def is_ours(name):
    """False for build folders, caches and what tools leave behind."""
    if name.startswith("."):
        return name in HIDDEN_BUT_OURS
    return name not in ("__pycache__", "out", "build") and not name.startswith("build-")


class Tree:
    """The files below a root, without build folders and the like."""

    def __init__(self, root):
        self.root = Path(root).resolve()

    def files(self, *folders, suffixes=None):
        """Sorted paths of all files in the given folders (default: everywhere), by suffix if suffixes are given."""
        found = []
        for folder in folders or (".",):
            for parent, names, files in os.walk(self.root / folder):
                names[:] = filter(is_ours, names)
                found += [Path(parent) / name for name in filter(is_ours, files)]
        return sorted(path for path in found if suffixes is None or path.suffix in suffixes)

    def name(self, path):
        """The path as it is shown: relative to the root, with forward slashes."""
        return Path(path).relative_to(self.root).as_posix()


def read_text(path):
    """The text of a file, or None where it is not UTF-8 text."""
    data = path.read_bytes()
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def main(check):
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--root", default=Path(__file__).resolve().parent.parent, help="the repository to look at")
    tree = Tree(parser.parse_args().root)
    try:
        faults = check(tree)
    except Skip as reason:
        must_run = os.environ.get("FERRY_CHECKS_MUST_RUN") == "1"
        print(f"{'FAILED' if must_run else 'skipped'}: {reason}")
        return 1 if must_run else SKIPPED
    for fault in faults:
        print(fault)
    return 1 if faults else 0
