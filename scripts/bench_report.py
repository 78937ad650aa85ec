# SPDX-License-Identifier: Apache-2.0
"""What the scripts that measure ferry beside another program share: its output as numbers, tables, limits."""
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
GROUPS = pathlib.Path("/sys/fs/cgroup")
UNITS = {unit: 1024**power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))}
STEP = re.compile(r"^step +median ([\d.]+) ms", re.M)
MEMORY = re.compile(r"^memory +([\d.]+) (\w+) device, ([\d.]+) (\w+) host", re.M)
ADAMW_FORMAT = re.compile(r"(?:^| )(\w+(?: nearest)?) \((\d+) B\)")
ADAMW_ROW = re.compile(r"^([\w ]+): ([\d.]+) GB/s on (\d+) threads, .* ([\d.]+) ms per billion parameters$", re.M)


def fail(message):
    sys.exit(f"error: {message}")


def split_flags(arguments):
    """["a", "--", "b", "--", "c"] -> (["a"], [["b"], ["c"]])"""
    groups = [[]]
    for argument in arguments:
        if argument == "--":
            groups.append([])
        else:
            groups[-1].append(argument)
    return groups[0], groups[1:]


def check_program(path):
    if not os.access(path, os.X_OK) or not path.is_file():
        fail(f"{path} is not a program: build it with cmake --preset cuda && cmake --build --preset cuda, or name "
             "another with --ferry")


def check_packages(*names):
    missing = [name for name in names if not importlib.util.find_spec(name)]
    if missing:
        fail(f"this Python lacks {', '.join(missing)}: install what is missing, or run the script with one that has it")


def run_ferry(command):
    """What it prints. Raises RuntimeError with ferry's own message."""
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr.strip()}")
    return done.stdout


def find(pattern, output, what):
    match = pattern.search(output)
    if not match:
        raise RuntimeError(f"no {what} in ferry's output, expected a line like {pattern.pattern}:\n{output}")
    return match


def read_step_bench(output):
    """Of `ferry bench step`. Bytes are as exact as it prints them: to a tenth of a GiB."""
    memory = find(MEMORY, output, "memory")
    return {
        "step_s": float(find(STEP, output, "time of a step")[1]) / 1e3,
        "device_bytes": float(memory[1]) * UNITS[memory[2]],
        "host_bytes": float(memory[3]) * UNITS[memory[4]],
    }


def read_adamw_bench(output):
    """Of `ferry bench adamw`: {format: its bytes per parameter, its best speed and threads}"""
    header = next((line for line in output.splitlines() if line.split()[:2] == ["threads", "triad"]), "")
    sizes = {name: int(size) for name, size in ADAMW_FORMAT.findall(header)}
    rows = {
        name: {"bytes": sizes.get(name), "gb_s": float(gb_s), "threads": int(threads), "ms_per_billion": float(ms)}
        for name, gb_s, threads, ms in ADAMW_ROW.findall(output)
    }
    if not rows or None in (row["bytes"] for row in rows.values()):
        raise RuntimeError(f"expected a header and a line for each format in ferry's output:\n{output}")
    return rows


def aligned(rows):
    """Rows of texts as lines: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(text.rjust(width) if column else text.ljust(width)
                               for column, (text, width) in enumerate(zip(row, widths))).rstrip() for row in rows)


def numbers_in(path):
    """Of a file of a control group: its first line's words as numbers, None for one that is none ("max")."""
    try:
        words = path.read_text(encoding="utf-8").splitlines()[0].split()
    except (OSError, IndexError):
        return [None]
    return [int(word) if word.lstrip("-").isdigit() else None for word in words]


def cpu_quota(groups=GROUPS):
    """Cores that a control group grants (version 2, else 1), or None."""
    quota, period = [*numbers_in(groups / "cpu.max"), None][:2]
    if period is None:
        quota, period = (numbers_in(groups / f"cpu/cpu.cfs_{name}_us")[0] for name in ("quota", "period"))
    return max(1, quota // period) if quota and period and quota > 0 else None


def useful_threads():
    """As ferry's AdamW has it: of eight cores or more, two are left free."""
    cores = len(os.sched_getaffinity(0))
    cores = min(cores, cpu_quota() or cores)
    return cores - 2 if cores >= 8 else cores


def left_in_group(groups=GROUPS):
    """Bytes until the limit of a control group (version 2, else 1), or None. Cached files give way."""
    for folder, limit, used in ((groups, "memory.max", "memory.current"),
                                (groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes")):
        limit, used = numbers_in(folder / limit)[0], numbers_in(folder / used)[0]
        if limit is not None and used is not None:
            stat = (folder / "memory.stat").read_text(encoding="utf-8")
            cached = re.search(r"^inactive_file (\d+)", stat, re.M)
            return max(0, limit - used + (int(cached[1]) if cached else 0))
    return None


def available_host_bytes():
    """Of the machine and of the control group, whichever is less."""
    meminfo = pathlib.Path("/proc/meminfo").read_text(encoding="utf-8")
    machine = int(re.search(r"^MemAvailable: +(\d+) kB", meminfo, re.M)[1]) * 1024
    left = left_in_group()
    return machine if left is None else min(machine, left)


def check_host_memory(needed, what, remedy):
    available = available_host_bytes()
    if needed > available:
        fail(f"{what} needs {needed / 1e9:.1f} GB of host memory, {available / 1e9:.1f} are available: {remedy}")
