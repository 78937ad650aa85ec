#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when objects compiled for one instruction set define a symbol that other objects may define too.

The linker keeps one copy of a weak symbol: it could keep the AVX-512 one for every CPU. So each defined symbol must
carry the namespace of its instruction set, and nothing may run at program start.

Usage: check_isa_symbols.py <nm> <isa> <object>...
"""
import subprocess
import sys


# A pointer to the C++ runtime, the same in every object that unwinds.
HARMLESS = ("DW.ref.__gxx_personality_v0",)


def offending(nm, isa, path):
    listing = subprocess.run([nm, "-C", "--defined-only", path], check=True, capture_output=True, text=True).stdout
    own = (f"ferry::cpu::{isa}::", f"Eigen_{isa}::", f"ferry::detail::adamw_{isa}(")
    for line in listing.splitlines():
        kind, name = line[17:].split(" ", 1)
        if name in HARMLESS:
            continue
        if name.startswith("_GLOBAL__sub_I"):
            yield f"runs at program start: {name}"
        # Upper case (and u, v, w): seen by other objects.
        elif (kind.isupper() or kind in "uvw") and not any(part in name for part in own):
            yield f"may be shared with other objects: {kind} {name}"


def main():
    nm, isa, *objects = sys.argv[1:]
    if not objects:
        sys.exit("no objects given")
    faults = [f"{path}: {fault}" for path in objects for fault in offending(nm, isa, path)]
    for fault in faults:
        print(fault)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
