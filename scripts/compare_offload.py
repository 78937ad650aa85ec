#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures training that offloads layer by layer, as plain PyTorch can do it, beside `ferry bench step`.

The PyTorch side keeps each layer's weights, gradients and AdamW state in host memory. Two device buffers take turns:
a side stream fills one while the other computes. The backward pass recomputes a layer from its input and copies each
gradient to the host, where fused AdamW runs over the layers in the order in which they arrive. The embedding, the head
and the final norm stay on the GPU with their AdamW. Everything is bf16. It runs in two designs: the original one, with
one side stream, AdamW following backward; and overlapped, with a stream for each direction and AdamW on a thread beside
the next forward pass. Needs Python 3.11 with torch and transformers.

What follows a -- goes to `ferry bench step`, each -- being one run; without any, that is the model's file in configs/:

    compare_offload.py --model llama-3.2-1b -- --residuals host -- --model llama-3.2-1b --gpu-memory 6.8GB
"""
import argparse
import gc
import json
import pathlib
import statistics
import sys
import traceback

from bench_report import (ROOT, aligned, check_host_memory, check_packages, check_program, fail, read_step_bench,
                          run_ferry, split_flags, useful_threads)

# Shapes by what they change of configs/llama3.2-1b.json, and ferry's config.
MODELS = {
    "llama-3.2-1b": ({}, "configs/llama3.2-1b.toml"),
    "llama-3.1-8b": ({"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "head_dim": 128,
                      "tie_word_embeddings": False, "max_position_embeddings": 131072,
                      "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                       "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}},
                     "configs/llama3.1-8b.toml"),
}
CHECKED = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 5, "head_dim": 16,
           "num_attention_heads": 4, "num_key_value_heads": 2}
CHECKED_STEPS = 5
CHECKED_LR = 3e-3  # the loss falls by far more than the tolerances
TOLERANCES = {"float32": 3e-4, "bfloat16": 2e-2}  # nats per token; a layer that misses one update is 0.1 off
DESIGNS = ("original", "overlapped")
UNTIMED_STEPS = 3
N_BATCHES = 4


def model_fields(name, **changes):
    fields = json.loads((ROOT / "configs/llama3.2-1b.json").read_text(encoding="utf-8"))
    return {**fields, **MODELS[name][0], **changes}


def run_ferry_step(args, flags):
    named = flags and not flags[0].startswith("-") or any(flag.partition("=")[0] == "--model" for flag in flags)
    command = [args.ferry, "bench", "step", *([] if named else [MODELS[args.model][1]]), *flags]
    command += ["--batch-size", args.batch, "--seq-len", args.seq_len, "--steps", args.steps,
                "--untimed-steps", UNTIMED_STEPS]
    return read_step_bench(run_ferry(command))


def run_pytorch(args, fields, design, device="cuda"):
    import torch
    from compare_with_pytorch import StepClock
    from offloaded_llama import OffloadedLlama

    gc.collect()  # the design before this one
    torch.cuda.empty_cache()
    model = OffloadedLlama(fields, torch.bfloat16, args.seq_len, args.lr, args.compile, args.threads, device, design)
    generator = torch.Generator(device).manual_seed(2024)
    shape = (2, args.batch, args.seq_len)
    batches = [torch.randint(fields["vocab_size"], shape, generator=generator, device=device) for _ in range(N_BATCHES)]
    clock, losses = StepClock(device), []
    for step in range(UNTIMED_STEPS + args.steps + 1):  # one follows, into which the last timed one's AdamW reaches
        if step == UNTIMED_STEPS:
            torch.cuda.reset_peak_memory_stats()
        losses.append(model.train_step(*batches[step % N_BATCHES]))
        clock.mark()
    seconds = clock.seconds()[UNTIMED_STEPS:]
    model.finish()
    peak = torch.cuda.max_memory_allocated()
    if not torch.stack(losses).isfinite().all():
        raise RuntimeError(f"losses of PyTorch that are not finite: {torch.stack(losses).tolist()}")
    return {"step_s": statistics.median(seconds), "device_bytes": peak,
            "note": f"torch {torch.__version__}, layers {'compiled' if args.compile else 'eager'}, "
                    f"{model.updates.kind} AdamW on {args.threads} threads, steps of {min(seconds) * 1e3:.0f} to "
                    f"{max(seconds) * 1e3:.0f} ms, AdamW busy {model.updates.busy_ms():.0f} ms a step"}


def pytorch_name(design):
    return f"PyTorch, layer by layer, {design}"


def n_layer_parameters(fields):
    width, heads = fields["hidden_size"], fields["num_attention_heads"] + fields["num_key_value_heads"]
    attention = 2 * width * heads * fields["head_dim"]
    return fields["num_hidden_layers"] * (attention + 3 * width * fields["intermediate_size"] + 2 * width)


def table(runs, tokens_per_step):
    """The ratios are to overlapped PyTorch: how much faster a run is, and how much less of the device it needs."""
    reference = runs.get(pytorch_name("overlapped"))
    rows = [("run", "step, ms", "tokens/s", "device GB", "x speed", "x less memory")]
    for name, run in runs.items():
        speed = f"{reference['step_s'] / run['step_s']:.2f}" if reference else "-"
        memory = f"{reference['device_bytes'] / run['device_bytes']:.2f}" if reference else "-"
        rows.append((name, f"{run['step_s'] * 1e3:.1f}", f"{tokens_per_step / run['step_s']:,.0f}",
                     f"{run['device_bytes'] / 1e9:.2f}", speed, memory))
    return aligned(rows)


# --check


def checked_losses(model, batches):
    losses = [model.train_step(*batches).item() for _ in range(CHECKED_STEPS)]
    model.finish()
    return losses


def plain_losses(weights, fields, dtype, device, batches):
    """transformers' Llama, all of it on the device."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig.from_dict(fields)).to(device, dtype)
    model.load_state_dict(weights, strict=False)  # a tied head has no weights of its own
    model.model.rotary_emb.inv_freq = type(model.model.rotary_emb)(model.config).to(device).inv_freq  # in f32
    optimizer = torch.optim.AdamW(model.parameters(), lr=CHECKED_LR, weight_decay=0)
    losses = []
    for _ in range(CHECKED_STEPS):
        logits = model(batches[0], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), batches[1].flatten())
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses


def check(args):
    """True where offloading changes no loss. Layers are compiled in f32 alone: in bf16 that rounds less often."""
    import torch
    from offloaded_llama import OffloadedLlama

    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(1)
    batches = torch.randint(CHECKED["vocab_size"], (2, 2, 96), generator=generator).to(device)
    good = True
    cases = [(torch.float32, True, design) for design in DESIGNS] + [(torch.float32, False, "overlapped")]
    cases += [(torch.bfloat16, tied, "overlapped") for tied in (True, False)]
    for dtype, tied, design in cases:
        fields = model_fields(args.model, **CHECKED, tie_word_embeddings=tied, torch_dtype=str(dtype).split(".")[1])
        torch.manual_seed(2024)
        compiled = args.compile and dtype == torch.float32
        model = OffloadedLlama(fields, dtype, batches.shape[2], CHECKED_LR, compiled, args.threads, device, design)
        plain = plain_losses(model.state_dict(), fields, dtype, device, batches)
        ours = checked_losses(model, batches)
        worst = max(abs(a - b) for a, b in zip(ours, plain))
        allowed = TOLERANCES[str(dtype).split(".")[1]]
        good = good and worst <= allowed
        print(f"{str(dtype):15} {'tied' if tied else 'untied':7} {design:10} loss {ours[0]:.4f} to {ours[-1]:.4f}, "
              f"plain PyTorch to {plain[-1]:.4f}, largest difference {worst:.1e} of {allowed:.0e} allowed", flush=True)
    return good


def parse_arguments():
    own, flags = split_flags(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage="%(prog)s [options] [-- [CONFIG] FLAGS...]...")
    parser.add_argument("--ferry", type=pathlib.Path, default=ROOT / "build/cuda/ferry", help="the program")
    parser.add_argument("--model", choices=MODELS, default="llama-3.2-1b", help="(default: %(default)s)")
    parser.add_argument("--batch", type=int, default=4, help="sequences of a step (default: %(default)s)")
    parser.add_argument("--seq-len", type=int, default=2048, help="tokens of a sequence (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=12, help=f"timed, after {UNTIMED_STEPS} (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=3e-4, help="of PyTorch (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=useful_threads(),
                        help="of PyTorch's AdamW (default: %(default)s)")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction,
                        help="torch.compile layers and head (default: on a GPU)")
    parser.add_argument("--check", action="store_true",
                        help="only check, on a tiny model, that offloading leaves PyTorch's losses as they are")
    args = parser.parse_args(own)
    for name in ("batch", "seq_len", "steps", "threads"):
        if getattr(args, name) < 1:
            fail(f"--{name.replace('_', '-')} is {getattr(args, name)}, expected 1 or more")
    args.flags, args.ferry = flags or [[]], args.ferry.resolve()
    if not args.check:
        check_program(args.ferry)
    return args


def main():
    args = parse_arguments()
    check_packages("torch", "transformers")
    import torch
    import transformers

    transformers.logging.set_verbosity_error()  # of special tokens and lengths, which do not matter here
    if args.compile is None:
        args.compile = torch.cuda.is_available()
    if args.check:
        if not check(args):
            fail("the losses differ by more than allowed")
        return
    if not torch.cuda.is_available():
        fail("PyTorch finds no GPU, and a speed means nothing without one: only --check works here")
    fields = model_fields(args.model)
    # Weights, gradients and two moments; pinned memory comes in powers of two.
    check_host_memory(10 * n_layer_parameters(fields), f"{args.model} in PyTorch", "take --model llama-3.2-1b")
    wanted = {" ".join(["ferry", *flags]): lambda flags=flags: run_ferry_step(args, flags) for flags in args.flags}
    for design in DESIGNS:  # last: they hold on to memory
        wanted[pytorch_name(design)] = lambda design=design: run_pytorch(args, fields, design)
    runs = {}
    for name, measure in wanted.items():
        try:
            runs[name] = measure()
        except Exception:  # pylint: disable=broad-exception-caught  # the other runs are still worth having
            traceback.print_exc()
            continue
        note = runs[name].get("note")
        print(f"{name}: {runs[name]['step_s'] * 1e3:.1f} ms a step{f'; {note}' if note else ''}", flush=True)
    print(f"\n{args.model}, {args.batch} x {args.seq_len} tokens, {args.steps} steps after {UNTIMED_STEPS}; the device "
          f"holds tensors and arenas, without the CUDA context\n{table(runs, args.batch * args.seq_len)}")
    sys.exit(0 if len(runs) == len(wanted) else 1)


if __name__ == "__main__":
    main()
