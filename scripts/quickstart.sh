#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh clone to a trained model: installs what is missing, builds, trains the default config, shows the result.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

usage() {
  cat <<'TEXT'
usage: scripts/quickstart.sh [--no-install] [--fresh]
  --no-install  never install packages: list what is missing, with the command
  --fresh       train again although a trained model is there
Where nvcc is found, the CUDA backend is built too, for the GPUs of this machine, and a GPU trains where there is one;
FERRY_CUDA=OFF in the environment builds for the CPU alone.
TEXT
}

may_install=yes fresh=no
for argument in "$@"; do
  case $argument in
    --no-install) may_install=no ;;
    --fresh) fresh=yes ;;
    -h | --help) usage && exit ;;
    *) usage >&2 && fail "unknown argument '$argument'" ;;
  esac
done

output=out/quickstart # the script's own folder: a run started by hand goes elsewhere
preset=$(build_preset)
ferry=build/$preset/ferry

require_packages "$may_install" "${build_packages[@]}"
require_cmake

say "Building (build/$preset); the first time this takes some minutes"
if [[ $preset == cuda ]]; then
  architectures=$(gpu_architectures)
  note "CUDA backend for compute capability $architectures (FERRY_CUDA=OFF builds without it)"
  cmake --preset cuda -DCMAKE_CUDA_ARCHITECTURES="$architectures" ||
    fail "the CUDA backend cannot be configured here" "to build for the CPU alone: FERRY_CUDA=OFF scripts/quickstart.sh"
  cmake --build --preset cuda --target ferry
else
  cmake --workflow --preset quickstart
fi

if [[ $fresh == no ]] && grep -Eqs '"status": ?"finished"' "$output/metrics.jsonl"; then
  val_loss=$(sed -nE 's/.*"val_loss": ?([0-9]+[.][0-9]{1,3}).*/\1/p' "$output/metrics.jsonl" | tail -n 1)
  say "Already trained to a validation loss of $val_loss nats per byte (--fresh trains again). The model writes:"
  "$ferry" generate "$output" --prompt "The " --max-tokens 300 --temperature 0.6
else
  say "Training the default config, configs/tiny.toml (on 2 CPU cores: about 90 seconds)"
  rm -rf "$output"
  "$ferry" train --output "$output"
fi

say "Where things are, below $PWD"
row() { note "$(printf '%-32s %s' "$1" "$2")"; }
row "$output/loss.svg" "the loss curve"
row "$output/metrics.jsonl" "every number of the run, one JSON object a line"
row "$output/model" "the weights, as a Hugging Face folder"
row "$ferry" "the program; next: $ferry generate $output --prompt 'Once '"
