#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks who includes whom: folders in dependency order, CUDA and third-party headers only where they belong."""
import re
import sys

import source_tree

# A folder may include itself and those before it.
LAYERS = ["core", "config", "io", "data", "kernels", "optim", "backend", "model", "offload", "train", "cli", "main"]
# Lower folders that must stay unknown: kernels see plain pointers, the backend and the optimizer know no Llama.
HIDDEN = {
    "kernels": {"config", "io", "data"},
    "optim": {"config", "io", "data", "kernels"},
    "backend": {"config", "io", "data"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CUDA_HEADER = re.compile(r"^(cuda|cublas|cudnn|cub/|nvtx|nvToolsExt|cooperative_groups|mma\.h)")
CUDA_FOLDERS = ("src/backend/cuda/", "kernels/")
# Headers seen by the sources beside them alone, compiled once per instruction set.
PRIVATE_HEADERS = ("src/backend/cpu/kernels/",)
LIBRARY_HEADER = re.compile(r"^(Eigen|unsupported/Eigen|spdlog|CLI|toml\+\+|nlohmann)/|^xxhash\.h$")


def layer_of(name):
    """The layer of a path relative to the root, or None outside src and kernels."""
    parts = name.split("/")
    if parts[0] == "kernels":
        return "kernels"
    if parts[0] != "src":
        return None
    return parts[1] if len(parts) > 2 else parts[1].split(".")[0]


def check_include(name, header, is_local, in_tree):
    """The fault of one include, or None."""
    if CUDA_HEADER.match(header) and not in_tree and not name.startswith(CUDA_FOLDERS):
        return f"CUDA header '{header}' outside {' and '.join(CUDA_FOLDERS)}"
    is_public = name.endswith((".h", ".cuh")) and not name.startswith(PRIVATE_HEADERS)
    if is_public and LIBRARY_HEADER.match(header):
        return f"third-party header '{header}' in a header: include it in the .cpp and hide the type"
    if not is_local:
        return None
    if not in_tree:
        return f"'{header}' is not found: write it relative to src/ (or kernels/)"
    own, other = layer_of(name), layer_of(in_tree)
    if other not in LAYERS:
        return f"'{header}' is in '{other}', which is no layer: add it to LAYERS"
    if LAYERS.index(other) > LAYERS.index(own):
        return f"upward include of '{header}': {own} may include only {', '.join(LAYERS[: LAYERS.index(own) + 1])}"
    if other in HIDDEN.get(own, ()):
        return f"'{header}': {own} must not know {other}"
    if in_tree.count("/") > 2 and other == "backend" and own != "backend":
        return f"'{header}' is inside one backend: use backend/backend.h"
    return None


def find(tree, name, header):
    """Where a local include points to, relative to the root; None when there is no such file."""
    for folder in ("src", "kernels", name.rpartition("/")[0], "."):
        if (tree.root / folder / header).is_file():
            return f"{folder}/{header}" if folder != "." else header
    return None


def check(tree):
    faults = []
    for path in tree.files("src", "kernels", suffixes=source_tree.CPP_SUFFIXES):
        name = tree.name(path)
        if layer_of(name) not in LAYERS:
            faults.append(f"{name}: '{layer_of(name)}' is no layer: add it to LAYERS in scripts/check_layers.py")
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            is_local = match[1] == '"'
            fault = check_include(name, match[2], is_local, find(tree, name, match[2]) if is_local else None)
            if fault:
                faults.append(f"{name}:{number}: {fault}")
    return faults


if __name__ == "__main__":
    sys.exit(source_tree.main(check))
