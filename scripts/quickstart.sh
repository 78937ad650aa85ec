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

output=out/tiny
shown=$output/quickstart.txt # what the run printed last; there only when training has ended well

require_packages "$may_install" "${build_packages[@]}"
require_cmake

say "Building (build/cpu)"
cmake --workflow --preset quickstart

if [[ $fresh == yes || ! -f $shown ]]; then
  say "Training the default config (about 90 seconds on 2 cores)"
  rm -rf "$output"
  build/cpu/ferry train --output "$output" | tee out/quickstart.partial
  mv out/quickstart.partial "$shown"
else
  say "Already trained; this is what it learnt (--fresh trains again)"
  cat "$shown"
fi

say "Where things are"
note "$PWD/$output"
