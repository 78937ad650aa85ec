#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `ferry eval` and `ferry export` with transformers: the same weights must give the same loss in both.

Needs PyTorch and transformers. Without MODEL it makes small random Llamas (rope scaling of every type, tied or not, a
head width of its own, weights in shards); with MODEL it takes that folder. Each is exported in f32 and bf16, loaded by
transformers without a missing or unexpected tensor, and evaluated by both in f32 on the same random tokens.
"""
import argparse
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is fetched

from bench_report import check_packages

SEQ_LEN = 96
TOLERANCE = 2e-5  # nats per token, of f32 sums in another order


def random_models(folder):
    """Yields folders as transformers saves them."""
    import torch
    import transformers

    common = dict(vocab_size=307, hidden_size=48, intermediate_size=104, num_hidden_layers=3, num_attention_heads=4,
                  num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.2, eos_token_id=[5, 6],
                  bos_token_id=None, pad_token_id=None)
    llama3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=32)
    cases = {
        "tied": dict(tie_word_embeddings=True),
        "untied_linear": dict(tie_word_embeddings=False, rope_scaling=dict(rope_type="linear", factor=2.0)),
        "llama3_wide_heads": dict(tie_word_embeddings=False, rope_scaling=llama3, head_dim=20, rope_theta=500000.0),
    }
    for name, fields in cases.items():
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            torch.manual_seed(0)
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**common, **fields)).to(dtype)
            path = folder / f"{name}_{str(dtype).split('.')[1]}"
            model.save_pretrained(path, max_shard_size="40KB" if dtype != torch.float16 else "5GB")
            yield path


def write_tokens(path, ids, vocab_size):
    path.write_bytes(b"FERRYTOK" + struct.pack("<IIQQ", 1, 4, vocab_size, len(ids)) + struct.pack(f"<{len(ids)}I", *ids))


def run_ferry(ferry, *args):
    done = subprocess.run([ferry, *map(str, args)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"ferry {' '.join(map(str, args))}: {done.stderr.strip()}")
    return done.stdout


def ferry_loss(ferry, model, tokens):
    out = run_ferry(ferry, "eval", model, "--val-data", tokens, "--dtype", "f32", "--seq-len", SEQ_LEN, "--json")
    return json.loads(out)["val_loss"]


def transformers_loss(model, ids):
    import torch
    import transformers

    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32,
                                                                     output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if info[key]:
            sys.exit(f"{model}: {key}: {info[key]}")
    rows = torch.tensor(ids).reshape(-1, SEQ_LEN + 1)
    with torch.no_grad():
        logits = loaded(rows[:, :-1]).logits.double()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item()


def check(ferry, source, work):
    import torch

    config = json.loads((source / "config.json").read_text())
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, config["vocab_size"], (2 * (SEQ_LEN + 1),), generator=generator).tolist()
    tokens = work / "tokens.bin"
    write_tokens(tokens, ids, config["vocab_size"])
    folders = [("source", source)]
    for dtype in ("f32", "bf16"):
        target = work / f"{source.name}_exported_{dtype}"
        run_ferry(ferry, "export", source, target, "--dtype", dtype)
        exported = json.loads((target / "config.json").read_text())
        for key in ("eos_token_id", "rope_scaling", "rope_parameters"):
            if exported.get(key) != config.get(key) and key in config:
                sys.exit(f"{target}: {key} is {exported.get(key)}, {config[key]} in the source")
        folders.append((dtype, target))
    worst = 0
    for name, folder in folders:
        ours, theirs = ferry_loss(ferry, folder, tokens), transformers_loss(folder, ids)
        worst = max(worst, abs(ours - theirs))
        print(f"{source.name:28} {name:7} ferry {ours:.7f}  transformers {theirs:.7f}  difference {ours - theirs:+.1e}")
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ferry", help="the program, such as build/cpu/ferry")
    parser.add_argument("model", nargs="?", type=pathlib.Path, help="a Hugging Face folder")
    args = parser.parse_args()
    check_packages("torch", "transformers")
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        sources = [args.model] if args.model else random_models(work / "models")
        worst = max(check(args.ferry, source, work) for source in sources)
    if worst > TOLERANCE:
        sys.exit(f"the losses differ by up to {worst:.1e}, expected at most {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
