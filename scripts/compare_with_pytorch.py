#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains one random init with PyTorch and with ferry on the same batches, and compares losses, speed and memory.

Needs Python 3.11 with torch, transformers, safetensors and numpy; with matplotlib the plot is a PNG, without it an SVG.
Writes result.json, the plot and ferry's logs into the output folder. A later call with the same experiment keeps the
results of runs that it does not repeat.
"""
import argparse
import hashlib
import itertools
import json
import os
import pathlib
import shutil
import statistics
import struct
import subprocess
import sys
import time
import tomllib
import traceback

from bench_report import ROOT, aligned, check_packages, fail

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is fetched

# The keys of a ferry config that both sides read, with ferry's defaults.
SHARED_KEYS = {
    "model": None, "train_data": None, "steps": None, "seed": 2024, "dtype": "bf16", "seq_len": 2048, "batch_size": 4,
    "lr": 3e-4, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8,
}
# Keys that the PyTorch side does not have: it behaves like these values.
FIXED_KEYS = {"order": "sequential", "schedule": "constant", "warmup_steps": 0, "weight_decay": 0}
DATA_FORMATS = ("auto", "shard")
FIRST_COMPARED = 20  # earlier steps fall steeply, which magnifies small differences
# Losses of one experiment by PyTorch's own variants differ by less than this, and by twice as much from eager layers.
MAX_MEAN_DIFFERENCE = 0.03
MAX_FINAL_EXCESS = 0.02
GIB = 2**30


def parse_value(text):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def parse_pairs(pairs):
    """["key=value", ...] -> {key: value}"""
    for pair in pairs:
        if "=" not in pair:
            fail(f"'{pair}' is not key=value")
    return {key.replace("-", "_"): parse_value(value) for key, _, value in (pair.partition("=") for pair in pairs)}


def parse_variants(texts):
    """["name:key=value,...", ...] -> {name: {key: value}}"""
    variants = {}
    for text in texts or ["ferry:"]:
        name, _, flags = text.partition(":")
        variants[name] = parse_pairs([flag for flag in flags.split(",") if flag])
        for key in variants[name].keys() & (SHARED_KEYS.keys() | FIXED_KEYS.keys()):
            fail(f"variant '{name}' sets {key}, which PyTorch shares: give it with --set")
        if name == "pytorch" or not name.replace("-", "").replace("_", "").isalnum():
            fail(f"'{name}' cannot name a variant: letters, digits and dashes do, and pytorch is taken")
    return variants


def read_experiment(config_path, changes, steps):
    """What both sides train: the config's shared keys with the changes of the command line."""
    with open(config_path, "rb") as file:
        config = {key: value for section in tomllib.load(file).values() for key, value in section.items()}
    config.update(changes)
    if steps:
        config["steps"] = steps
    for key, value in FIXED_KEYS.items():
        if config.get(key, value) != value:
            fail(f"{key} is {config[key]}, but the PyTorch side knows {value} only")
    if config.get("data_format", "auto") not in DATA_FORMATS:
        fail(f"data_format is {config['data_format']}, but the PyTorch side reads token shards only")
    experiment = {key: config.get(key, default) for key, default in SHARED_KEYS.items()}
    missing = [key for key, value in experiment.items() if value is None]
    if missing:
        fail(f"{config_path} does not set {', '.join(missing)}")
    if not (ROOT / experiment["model"]).is_file():
        fail(f"model is {experiment['model']}, but must name a config.json from the root of the source tree")
    if isinstance(experiment["train_data"], str):
        experiment["train_data"] = [experiment["train_data"]]
    return experiment


# Weights and data


def make_init(experiment, folder, device):
    """A Hugging Face folder of random weights as LlamaForCausalLM draws them: normal matrices, norms of one."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig.from_json_file(ROOT / experiment["model"])
    config.architectures, config.dtype = ["LlamaForCausalLM"], torch_dtype(experiment)
    with torch.device("meta"):
        shapes = {name: weight.shape for name, weight in LlamaForCausalLM(config).named_parameters()}
    if config.tie_word_embeddings:
        shapes.pop("lm_head.weight", None)
    generator = torch.Generator(device).manual_seed(experiment["seed"])
    weights = {}
    for name, shape in shapes.items():
        weight = torch.ones(shape, device=device)
        if len(shape) == 2:
            weight.normal_(0, config.initializer_range, generator=generator)
        weights[name] = weight.to("cpu", torch_dtype(experiment))
        del weight
    if device == "cuda":
        torch.cuda.empty_cache()
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)


def init_digest(folder):
    with open(folder / "model.safetensors", "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def torch_dtype(experiment):
    import torch

    return {"bf16": torch.bfloat16, "f32": torch.float32}[experiment["dtype"]]


def read_shard(path):
    """Ids of a ferry token shard; src/data/token_shard.h describes the format."""
    import numpy

    with open(path, "rb") as file:
        magic, version, id_bytes, _, n_ids = struct.unpack("<8sIIQQ", file.read(32))
        if magic != b"FERRYTOK" or version != 1 or id_bytes not in (2, 4):
            fail(f"{path} is not a token shard of version 1")
        return numpy.fromfile(file, f"<u{id_bytes}", count=n_ids).astype("int64")


def batches(experiment):
    """Endless (inputs, targets) of (batch_size, seq_len), in ferry's sequential order: blocks of seq_len + 1 ids."""
    import torch

    block = experiment["seq_len"] + 1
    sequences = []
    for path in experiment["train_data"]:
        ids = torch.from_numpy(read_shard(ROOT / path))
        sequences += list(ids[: len(ids) // block * block].view(-1, block))
    endless = itertools.cycle(sequences)
    while True:
        batch = torch.stack(list(itertools.islice(endless, experiment["batch_size"])))
        yield batch[:, :-1].contiguous(), batch[:, 1:].contiguous()


# PyTorch


class StepClock:
    """Durations of steps, from events on the GPU, which do not stall it, or from the host's clock."""

    def __init__(self, device):
        self.on_gpu = device == "cuda"
        self.marks = []

    def mark(self):
        if self.on_gpu:
            import torch

            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record()
        else:
            self.marks.append(time.perf_counter())

    def seconds(self):
        if self.on_gpu:
            self.marks[-1].synchronize()
        pairs = itertools.pairwise(self.marks)
        return [first.elapsed_time(last) / 1e3 if self.on_gpu else last - first for first, last in pairs]


def build_pytorch(experiment, folder, device, compiled):
    """(model, loss function): each layer compiled and checkpointed, the loss compiled."""
    import torch
    from torch.utils.checkpoint import checkpoint
    from transformers import LlamaForCausalLM

    class CheckpointedLayer(torch.nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer
            if compiled:
                layer.compile(dynamic=False)

        def forward(self, hidden, **kwargs):
            return checkpoint(self.layer, hidden, use_reentrant=False, preserve_rng_state=False, **kwargs)

    def cross_entropy(logits, targets):
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    dtype = torch_dtype(experiment)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").to(device).train()
    if model.model.rotary_emb.inv_freq.dtype != torch.float32:
        fail("this version of transformers rounds the rotary frequencies: they must be f32")
    model.model.layers = torch.nn.ModuleList(CheckpointedLayer(layer) for layer in model.model.layers)
    loss_of = torch.compile(cross_entropy, dynamic=False) if compiled else cross_entropy

    def loss(ids, targets):
        return loss_of(model.lm_head(model.model(ids, use_cache=False).last_hidden_state), targets)

    return model, loss


def train_pytorch(experiment, folder, device, compiled):
    import torch
    import transformers

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    model, loss_of = build_pytorch(experiment, folder, device, compiled)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=experiment["lr"], betas=(experiment["beta1"], experiment["beta2"]),
        eps=experiment["eps"], weight_decay=0, fused=True)
    clock, losses = StepClock(device), []
    clock.mark()
    for step, (ids, targets) in enumerate(itertools.islice(batches(experiment), experiment["steps"]), 1):
        loss = loss_of(ids.to(device), targets.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        clock.mark()
        if step == 1 or step % 20 == 0:
            print(f"    step {step:5}  loss {loss.item():.4f}", flush=True)
    tokens = experiment["batch_size"] * experiment["seq_len"]
    return {
        "losses": torch.stack(losses).tolist(),
        "tokens_per_s": median_of_steady([tokens / seconds for seconds in clock.seconds()]),
        "device_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
        "host_bytes": None,
        "description": f"torch {torch.__version__}, transformers {transformers.__version__}, "
                       f"layers {'compiled' if compiled else 'eager'}",
    }


# ferry


def train_ferry(experiment, args, name, flags, init_folder):
    run_folder, log = args.work / f"run-{name}", args.out / f"{name}.log"
    if run_folder.exists():
        shutil.rmtree(run_folder)
    own = {"steps": experiment["steps"], "init_from": init_folder, "output": run_folder, "log_every": 1}
    settings = {**args.changes, **flags, **own}
    command = [str(args.ferry), "train", str(args.config)]
    command += [f"--{key.replace('_', '-')}={value}" for key, value in settings.items()]
    with open(log, "w", encoding="utf-8") as output:
        result = subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                check=False)
    if result.returncode != 0:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:])
        raise RuntimeError(f"{' '.join(command)} ended with {result.returncode}:\n{tail}")
    metrics = args.out / f"{name}.jsonl"
    shutil.copyfile(run_folder / "metrics.jsonl", metrics)
    shutil.rmtree(run_folder)  # its weights are of no use here
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    steps = [line for line in lines if line["kind"] == "train"]
    if [line["step"] for line in steps] != list(range(1, experiment["steps"] + 1)):
        raise RuntimeError(f"{metrics} does not hold each step once")
    return {
        "losses": [line["loss"] for line in steps],
        "tokens_per_s": median_of_steady([line["tokens_per_s"] for line in steps]),
        "device_bytes": steps[-1]["device_bytes"],
        "host_bytes": steps[-1]["host_bytes"],
        "description": f"{lines[0]['backend']}; {' '.join(command)}",
    }


# Results


def median_of_steady(speeds):
    """Without the first steps, which warm up, and without steps of unknown speed."""
    steady = [speed for speed in speeds[min(20, len(speeds) // 4):] if speed]
    return statistics.median(steady) if steady else None


def compare(run, reference):
    """Adds the distance from PyTorch's losses."""
    first = min(FIRST_COMPARED, len(run["losses"]) // 2)
    pairs = list(zip(run["losses"], reference["losses"]))[first:]
    run["mean_difference"] = statistics.fmean(abs(a - b) for a, b in pairs)
    run["final_excess"] = final_loss(run) - final_loss(reference)
    run["parity"] = run["mean_difference"] <= MAX_MEAN_DIFFERENCE and run["final_excess"] <= MAX_FINAL_EXCESS


def final_loss(run):
    return statistics.fmean(run["losses"][-10:])


def table(runs):
    def cell(value, form, unit=1):
        return "-" if value is None else format(value / unit, form)

    rows = [("run", "first", "last ten", "excess", "mean |diff|", "parity", "tokens/s", "device GiB", "host GiB")]
    for name, run in runs.items():
        rows.append((
            name, f"{run['losses'][0]:.4f}", f"{final_loss(run):.4f}", cell(run.get("final_excess"), "+.4f"),
            cell(run.get("mean_difference"), ".4f"), {True: "yes", False: "NO"}.get(run.get("parity"), "-"),
            cell(run["tokens_per_s"], ",.0f"), cell(run["device_bytes"], ".2f", GIB),
            cell(run["host_bytes"], ".2f", GIB)))
    return aligned(rows)


def plot(runs, path, title):
    """Returns the file that was written."""
    try:
        import matplotlib
    except ImportError:
        path = path.with_suffix(".svg")
        path.write_text(svg(runs, title), encoding="utf-8")
        return path
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    for name, run in runs.items():
        axes.plot(range(1, len(run["losses"]) + 1), run["losses"], label=name, linewidth=1)
    axes.set(title=title, xlabel="step", ylabel="loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend()
    path = path.with_suffix(".png")
    figure.savefig(path, dpi=130)
    return path


def svg(runs, title):
    width, height, margin = 900, 550, 60
    low = min(min(run["losses"]) for run in runs.values())
    high = max(max(run["losses"]) for run in runs.values())
    n_steps = max(len(run["losses"]) for run in runs.values())

    def x(index):
        return margin + (width - 2 * margin) * index / max(1, n_steps - 1)

    def y(loss):
        return height - margin - (height - 2 * margin) * (loss - low) / max(1e-9, high - low)

    def text(at_x, at_y, words, anchor="middle", colour="black"):
        words = words.replace("&", "&amp;").replace("<", "&lt;")
        return f'<text x="{at_x:.0f}" y="{at_y:.0f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'

    parts = [text(width / 2, 30, title), text(width / 2, height - 15, f"step (1 to {n_steps})")]
    for part in range(6):
        loss = low + (high - low) * part / 5
        parts.append(f'<path d="M{margin} {y(loss):.1f}H{width - margin}" stroke="#ddd"/>')
        parts.append(text(margin - 8, y(loss) + 4, f"{loss:.2f}", "end"))
    colours = itertools.cycle(["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd"])
    for row, ((name, run), colour) in enumerate(zip(runs.items(), colours)):
        points = " ".join(f"{x(index):.1f},{y(loss):.1f}" for index, loss in enumerate(run["losses"]))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
        parts.append(text(width - margin - 8, margin + 20 * (row + 1), name, "end", colour))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
            f'font-size="13"><rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n')


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ferry", type=pathlib.Path, default=ROOT / "build/cuda/ferry", help="the program")
    parser.add_argument("--config", type=pathlib.Path, default=ROOT / "configs/llama3.2-1b.toml", help="what to train")
    parser.add_argument("--steps", type=int, help="instead of the config's")
    parser.add_argument("--only", choices=["both", "pytorch", "ferry"], default="both")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out/compare", help="folder of the results")
    parser.add_argument("--work", type=pathlib.Path, help="folder of the init and of running ferry (default: OUT/work)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a key of the config")
    parser.add_argument("--variant", action="append", metavar="NAME:KEY=VALUE,...",
                        help="one run of ferry with its own keys; repeat it for more (default: one run, named ferry)")
    parser.add_argument("--no-compile", action="store_true", help="eager PyTorch")
    parser.add_argument("--device", choices=["cuda", "cpu"], help="of PyTorch (default: cuda where there is one)")
    args = parser.parse_args()
    args.out, args.ferry, args.config = args.out.resolve(), args.ferry.resolve(), args.config.resolve()
    args.work = args.work.resolve() if args.work else args.out / "work"
    args.changes, args.variants = parse_pairs(args.set), parse_variants(args.variant)
    if args.only != "pytorch" and not os.access(args.ferry, os.X_OK):
        fail(f"{args.ferry} is not a program: build it with cmake --preset cuda && cmake --build --preset cuda")
    return args


def prepare_init(experiment, work, device):
    """The folder of the first weights; made once for each experiment."""
    key = {name: experiment[name] for name in ("model", "seed", "dtype")} | {"device": device}
    folder = work / f"init-{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]}"
    if not (folder / "config.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        make_init(experiment, folder, device)
    return folder


def earlier_runs(path, experiment):
    if not path.exists():
        return {}
    earlier = json.loads(path.read_text(encoding="utf-8"))
    return earlier["runs"] if earlier["experiment"] == experiment else {}


def report(args, experiment, runs):
    """Comparison, table, plot and result.json, of what has run so far."""
    runs = dict(sorted(runs.items(), key=lambda item: item[0] != "pytorch"))
    reference = runs.get("pytorch")
    for name, run in runs.items():
        if reference and name != "pytorch":
            compare(run, reference)
    result = {"experiment": experiment, "runs": runs}
    (args.out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    model = pathlib.Path(experiment["model"]).stem
    title = f"{model}: {experiment['batch_size']} x {experiment['seq_len']} tokens, lr {experiment['lr']:g}"
    picture = plot(runs, args.out / "loss", title)
    print(f"\n{table(runs)}\n\nplot: {picture}\nresults: {args.out / 'result.json'}", flush=True)


def main():
    args = parse_arguments()
    check_packages("torch", "transformers", "safetensors", "numpy")
    import torch

    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    experiment = read_experiment(args.config, args.changes, args.steps)
    args.out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    folder = prepare_init(experiment, args.work, device)
    experiment["init_sha256"] = init_digest(folder)
    print(f"first weights: {folder} ({time.monotonic() - started:.0f} s)", flush=True)
    runs = earlier_runs(args.out / "result.json", experiment)

    wanted = {}  # ferry goes first: PyTorch holds on to memory of the GPU
    if args.only != "pytorch":
        for name, flags in args.variants.items():
            wanted[name] = lambda name=name, flags=flags: train_ferry(experiment, args, name, flags, folder)
    if args.only != "ferry":
        wanted["pytorch"] = lambda: train_pytorch(experiment, folder, device, not args.no_compile)
    failed = False
    for name, train in wanted.items():
        print(f"\n{name}", flush=True)
        started = time.monotonic()
        try:
            runs[name] = train()
        except Exception:  # pylint: disable=broad-exception-caught  # the other runs are still worth having
            traceback.print_exc()
            failed = True
            continue
        print(f"    {time.monotonic() - started:.0f} s", flush=True)
        report(args, experiment, runs)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
