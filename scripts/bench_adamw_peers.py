#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures AdamW in host memory: PyTorch's and DeepSpeed's, each in a process of its own, beside `ferry bench adamw`.

Of each the fastest update of some seconds counts. GB/s are the bytes of the format, what one pass has to read and
write, however often an implementation goes over them. Needs Python 3.11 with torch; DeepSpeed has rows where it is
installed.
"""
import argparse
import importlib.util
import json
import pathlib
import subprocess
import sys
import time

from bench_report import (ROOT, aligned, check_host_memory, check_packages, check_program, fail, read_adamw_bench,
                          run_ferry, split_flags, useful_threads)

# name: (package, type of weights and gradients, type of moments)
PEERS = {
    "torch fused bf16": ("torch", "bfloat16", "bfloat16"),
    "torch foreach bf16": ("torch", "bfloat16", "bfloat16"),
    "torch fused f32": ("torch", "float32", "float32"),
    "deepspeed bf16": ("deepspeed", "bfloat16", "bfloat16"),
    "deepspeed bf16, f32 moments": ("deepspeed", "bfloat16", "float32"),
    "deepspeed f32": ("deepspeed", "float32", "float32"),
}
SIZES = {"bfloat16": 2, "float32": 4}
TENSOR_ELEMS = 2**23  # as ferry's pieces
UNTIMED_UPDATES = 2
SECONDS = 3
LIMIT_S = {"torch": 60, "deepspeed": 150}  # DeepSpeed compiles its AdamW first
HOST_BYTES = 20  # of a parameter: 16 of f32, or 8 of bf16 and what foreach makes on the way


def bytes_per_parameter(peer):
    """Weights and moments are read and written, gradients read."""
    _, dtype, moments = PEERS[peer]
    return 3 * SIZES[dtype] + 4 * SIZES[moments]


def make_optimizer(peer, weights):
    import torch

    if peer.startswith("torch"):
        return torch.optim.AdamW(weights, lr=3e-4, weight_decay=0, **{peer.split()[1]: True})
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    return DeepSpeedCPUAdam(weights, lr=3e-4, weight_decay=0, adamw_mode=True,
                            fp32_optimizer_states=PEERS[peer][2] == "float32")


def measure(peer, n_parameters, threads):
    """Seconds of the fastest update, in this process."""
    import torch

    torch.set_num_threads(threads)
    dtype = getattr(torch, PEERS[peer][1])
    weights = [torch.full((TENSOR_ELEMS,), 0.01, dtype=dtype) for _ in range(n_parameters // TENSOR_ELEMS)]
    for weight in weights:
        weight.grad = torch.full_like(weight, 1e-3)
    optimizer, times = make_optimizer(peer, weights), []
    while len(times) < UNTIMED_UPDATES + 3 or sum(times[UNTIMED_UPDATES:]) < SECONDS:
        begin = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - begin)
    return min(times[UNTIMED_UPDATES:])


def run_peer(peer, n_parameters, threads):
    """{bytes, gb_s, threads, ms_per_billion} of a process that measures it."""
    command = [sys.executable, __file__, "--only", peer, "--params", str(n_parameters), "--threads", str(threads)]
    limit = LIMIT_S[PEERS[peer][0]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired as expired:
        raise RuntimeError(f"{peer} took more than {limit} s: try fewer --params") from expired
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr.strip()[-2000:]}")
    seconds = json.loads(done.stdout.splitlines()[-1])["seconds"]  # DeepSpeed prints before it
    return peer_row(peer, n_parameters, threads, seconds)


def peer_row(peer, n_parameters, threads, seconds):
    n_bytes = bytes_per_parameter(peer)
    return {"bytes": n_bytes, "gb_s": n_parameters * n_bytes / seconds / 1e9, "threads": threads,
            "ms_per_billion": seconds * 1e3 / n_parameters * 1e9}


def run_ferry_bench(args):
    command = [args.ferry, "bench", "adamw", "--threads", args.threads, "--adamw-params", args.params, *args.flags]
    return {f"ferry {name}": row for name, row in read_adamw_bench(run_ferry(command)).items()}


def table(rows):
    lines = [("AdamW", "bytes per parameter", "ms per billion", "GB/s")]
    for name, row in rows.items():
        lines.append((name, str(row["bytes"]), f"{row['ms_per_billion']:.1f}", f"{row['gb_s']:.1f}"))
    return aligned(lines)


def parse_arguments():
    own, flags = split_flags(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage="%(prog)s [options] [-- FLAGS of ferry bench adamw...]")
    parser.add_argument("--ferry", type=pathlib.Path, default=ROOT / "build/cuda/ferry", help="the program")
    parser.add_argument("--params", type=int, default=2**28,
                        help=f"to update, {HOST_BYTES} bytes of host memory each (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=useful_threads(), help="(default: %(default)s)")
    parser.add_argument("--only", choices=PEERS, metavar="PEER",
                        help=f"measure one in this process and print JSON: {'; '.join(PEERS)}")
    args = parser.parse_args(own)
    if len(flags) > 1:
        fail("more than one --: all that follows the first goes to one run of ferry bench adamw")
    if args.params < TENSOR_ELEMS or args.threads < 1:
        fail(f"--params is {args.params} and --threads {args.threads}, expected {TENSOR_ELEMS} and 1 or more")
    args.params = args.params // TENSOR_ELEMS * TENSOR_ELEMS
    args.flags, args.ferry = sum(flags, []), args.ferry.resolve()
    return args


def main():
    args = parse_arguments()
    check_host_memory(HOST_BYTES * args.params, f"AdamW over {args.params:,} parameters", "lower --params")
    if args.only:
        print(json.dumps({"seconds": measure(args.only, args.params, args.threads)}))
        return
    check_program(args.ferry)
    check_packages("torch")
    rows, failures = {}, []
    wanted = {"ferry bench adamw": lambda: run_ferry_bench(args)}
    for peer, (package, _, _) in PEERS.items():
        if importlib.util.find_spec(package):
            wanted[peer] = lambda peer=peer: {peer: run_peer(peer, args.params, args.threads)}
        else:
            print(f"{peer}: {package} is not installed", flush=True)
    for name, run in wanted.items():
        print(f"{name} ...", flush=True)
        try:
            rows.update(run())
        except RuntimeError as error:  # the other rows are still worth having
            failures.append(f"error: {error}")
    print(f"\n{args.params:,} parameters on {args.threads} threads\n{table(rows)}", flush=True)
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
