#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every GPU test and benchmark of a build folder, each for a limited time, and prints a short table.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

usage() {
  cat <<'TEXT'
usage: scripts/gpu_check.sh [--build FOLDER] [--log FOLDER] [--limit SECONDS] [--tests] [--sanitize]
  --build FOLDER   what was built with the preset cuda (default: build/cuda); nothing is built here
  --log FOLDER     where full outputs go (default: FOLDER of the build/gpu_check)
  --limit SECONDS  time limit of each test program and benchmark (default: 300)
  --tests          no benchmarks
  --sanitize       tests alone, under compute-sanitizer's memcheck, racecheck and initcheck
Test programs and the binary are run directly, so a build folder may be carried to another machine. Ends non-zero when
anything failed; a missing GPU is a failure.
TEXT
}

build=build/cuda log='' limit=300 benchmarks=yes sanitizers=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --build | --log | --limit)
      [[ $# -ge 2 ]] || fail "$1 needs a value"
      case $1 in
        --build) build=$2 ;;
        --log) log=$2 ;;
        --limit) limit=$2 ;;
      esac
      shift
      ;;
    --tests) benchmarks=no ;;
    --sanitize) benchmarks=no sanitizers=(memcheck racecheck initcheck) ;;
    -h | --help) usage && exit ;;
    *) usage >&2 && fail "unknown argument '$1'" ;;
  esac
  shift
done
[[ -d $build ]] || fail "there is no folder $build" "try: cmake --preset cuda && cmake --build --preset cuda"
log=${log:-$build/gpu_check}
mkdir -p "$log"
export FERRY_TESTS_NEED_GPU=1

table=() status=0

# part <name> <command>...: runs it, remembers how it ended.
part() {
  local name=$1 start=$SECONDS result=passed code=0
  shift
  timeout --kill-after=10 "$limit" "$@" >"$log/$name.log" 2>&1 </dev/null || code=$?
  case $code in
    0) ;;
    124 | 137) result="FAILED: over $limit s" ;;
    *) result="FAILED: exit $code" ;;
  esac
  if [[ $code -ne 0 ]]; then
    status=1
    tail -n 15 "$log/$name.log"
  fi
  table+=("$(printf '%-40s %6d s  %s' "$name" $((SECONDS - start)) "$result")")
}

# The names of a program's GPU tests, one a line. Catch2 2 and 3 list them in different ways; 2 exits with their number.
gpu_tests() {
  local -a list=(--list-tests --verbosity quiet)
  ! "$1" --libidentify | grep -q 'version: *2\.' || list=(--list-test-names-only)
  { "$1" "${list[@]}" "[gpu]" || true; } | sed '/^$/d'
}

# Commas separate patterns and brackets mark tags in a Catch2 test spec.
escape() {
  local text=${1//\\/\\\\}
  text=${text//,/\\,}
  text=${text//\[/\\[}
  printf '%s' "${text//\]/\\]}"
}

# initcheck does not see what cuBLASLt writes in bulk (TMA): each later read of it counts as uninitialised. So it runs
# tests of single ops alone, whose results only the host reads; those of a whole engine chain ops.
is_skipped() { [[ $1 == initcheck.*_offload_cuda || $1 == initcheck.*_check_cuda ]]; }

# run_tests <prefix> [<wrapper>...]: all GPU tests; the failure tests one process each, since each breaks the GPU for its
# own.
run_tests() {
  local prefix=$1 program name test number
  shift
  while IFS= read -r program; do
    [[ -n $(gpu_tests "$program") ]] || continue
    name=$prefix$(basename "$program")
    ! is_skipped "$name" || continue
    if [[ $program != *_failures ]]; then
      part "$name" "$@" "$program" "[gpu]"
    elif [[ $# -eq 0 ]]; then
      number=0
      while IFS= read -r test; do
        number=$((number + 1))
        part "$name.$number" "$program" "$(escape "$test")"
      done < <(gpu_tests "$program")
    fi
  done < <(find "$build" -name 'ferry_test_*' -type f -executable | sort)
}

say "GPU"
if command -v nvidia-smi >/dev/null; then
  nvidia-smi --query-gpu=index,name,memory.total,driver_version --format=csv,noheader || status=1
fi

if [[ ${#sanitizers[@]} -gt 0 ]]; then
  command -v compute-sanitizer >/dev/null || fail "compute-sanitizer is not on the path" "it is part of the CUDA Toolkit"
  for tool in "${sanitizers[@]}"; do
    say "Tests under $tool"
    # Leaks and API errors that the libraries handle themselves are not our findings. Nor are the hazards that racecheck
    # sees in NVIDIA's own kernels (nvjet_* of cuBLASLt, cudnn_generated_*): it looks at ours alone, all of which lie in
    # namespace ferry and so have it in their mangled names.
    only=()
    [[ $tool != racecheck ]] || only=(--kernel-name kernel_substring=ferry)
    run_tests "$tool." compute-sanitizer --tool "$tool" "${only[@]}" --error-exitcode 99 --report-api-errors no
  done
else
  say "Tests"
  run_tests ""
fi

# benchmark <name> <target> <argument>...
benchmark() {
  local name=$1
  shift
  part "$name" "$build/ferry" bench "$@" --backend cuda
  cat "$log/$name.log"
}

if [[ $benchmarks == yes && -x $build/ferry ]]; then
  say "Benchmarks"
  benchmark bench_ops ops
  benchmark bench_machine machine --rates "$log/rates.json"
  benchmark bench_adamw adamw
  for model in llama3.2-1b llama3.2-1b-resident; do
    benchmark "bench_floor.$model" floor "configs/$model.toml"
    benchmark "bench_step.$model" step "configs/$model.toml" --steps 10
  done
fi

say "Summary"
[[ ${#table[@]} -gt 0 ]] || fail "no GPU test was found under $build" "was it built with CUDA? cmake --preset cuda"
printf '    %s\n' "${table[@]}"
note "full outputs: $log"
exit "$status"
