#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the shell scripts with shellcheck; skipped where it is missing."""
import shutil
import subprocess
import sys

import source_tree


def is_shell(path):
    with path.open("rb") as file:
        first = file.readline()
    return path.suffix == ".sh" or (first.startswith(b"#!") and b"bash" in first)


def check(tree):
    files = [str(path) for path in tree.files("scripts", ".ci", "tests") if is_shell(path)]
    if not files:
        return []
    if not shutil.which("shellcheck"):
        raise source_tree.Skip("shellcheck is not installed (Debian, Ubuntu: apt-get install shellcheck)")
    command = ["shellcheck", "--external-sources", "--format=gcc", *files]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tree.root, check=False)
    if result.returncode == 0:
        return []
    return (result.stdout + result.stderr).replace(f"{tree.root}/", "").splitlines()


if __name__ == "__main__":
    sys.exit(source_tree.main(check))
