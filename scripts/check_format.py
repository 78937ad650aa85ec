#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that C++ and CUDA sources are as clang-format 14 writes them (other versions differ); skipped without it."""
import re
import shutil
import subprocess
import sys

import source_tree

VERSION = "14"


def find_clang_format():
    for name in (f"clang-format-{VERSION}", "clang-format"):
        if shutil.which(name):
            said = subprocess.run([name, "--version"], capture_output=True, text=True, check=True).stdout
            if re.search(rf"version {VERSION}\.", said):
                return name
    raise source_tree.Skip(f"clang-format {VERSION} is not installed (Debian, Ubuntu: apt-get install clang-format-{VERSION})")


def check(tree):
    files = tree.files("src", "kernels", "tests", suffixes=source_tree.CPP_SUFFIXES)
    if not files:
        return []
    command = [find_clang_format(), "--style=file", "--dry-run", "-Werror", *map(str, files)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return []
    faults = sorted({tree.name(m) + ": not formatted: run clang-format -i on it"
                     for m in re.findall(r"^(/\S.*?):\d+:\d+: error:", result.stderr, re.M)})
    return faults or [result.stderr.strip() or f"clang-format failed with status {result.returncode}"]


if __name__ == "__main__":
    sys.exit(source_tree.main(check))
