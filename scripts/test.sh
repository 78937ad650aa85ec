#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds everything and runs all tests; installs what is missing.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

usage() {
  cat <<'TEXT'
usage: scripts/test.sh [--no-install] [--preset NAME] [--werror] [ctest arguments]
  --no-install   never install packages: list what is missing, with the command
  --preset NAME  cpu (default), asan or tsan
  --werror       warnings of the compiler are errors
Other arguments go to ctest: -L cpu (a label), -LE slow (all but a label), -R gemm (names that match).
TEXT
}

may_install=yes preset=cpu
configure_arguments=() ctest_arguments=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --no-install) may_install=no ;;
    --preset)
      [[ $# -ge 2 ]] || fail "--preset needs a name: cpu, asan or tsan"
      preset=$2
      shift
      ;;
    --werror) configure_arguments+=(-DFERRY_WERROR=ON) ;;
    -h | --help) usage && exit ;;
    *) ctest_arguments+=("$1") ;;
  esac
  shift
done

require_packages "$may_install" "${test_packages[@]}"
require_cmake

say "Building (build/$preset)"
cmake --preset "$preset" "${configure_arguments[@]}"
cmake --build --preset "$preset"

say "Testing"
log=build/$preset/test.log
status=0
ctest --preset "$preset" --parallel "$(nproc)" "${ctest_arguments[@]}" 2>&1 | tee "$log" || status=$?

say "Summary"
sed -n '/^Errors while/d; /% tests passed/p; /did not run:$/,/^$/p; /tests FAILED:$/,/^$/p' "$log"
note "full output: $log"
[[ $status -eq 0 ]] || fail "tests failed"
note "no test failed"
