# SPDX-License-Identifier: Apache-2.0
# Shared by the scripts: messages, and packages that are installed only where they are missing.
# shellcheck shell=bash disable=SC2034  # the package lists are read by the scripts that source this file

say() { printf '\n==> %s\n' "$*"; }
note() { printf '    %s\n' "$*"; }

# fail <message> [<hint>]...
fail() {
  printf 'error: %s\n' "$1" >&2
  shift
  [[ $# -eq 0 ]] || printf '       %s\n' "$@" >&2
  exit 1
}

# Debian and Ubuntu packages; with ":command", any installation of that command will do.
build_packages=(
  g++:c++ cmake:cmake ninja-build:ninja
  catch2 libcli11-dev libeigen3-dev libfmt-dev libspdlog-dev libtomlplusplus-dev libxxhash-dev nlohmann-json3-dev
)
test_packages=("${build_packages[@]}" python3:python3 clang-format-14:clang-format-14)
ci_packages=("${test_packages[@]}" clang-tidy-14:run-clang-tidy-14 shellcheck:shellcheck)

package_installed() {
  command -v dpkg-query >/dev/null && [[ $(dpkg-query -W -f '${Status}' "$1" 2>/dev/null) == *"ok installed" ]]
}

# require_packages <yes|no: may install> <package[:command]>...
# Installs what is missing. Where it may not or cannot, it says what is missing: a missing command ends the script, a
# missing library is left to CMake, which fetches it into the build folder.
require_packages() {
  local may_install=$1 entry package command
  local -a missing=() missing_commands=()
  shift
  for entry in "$@"; do
    package=${entry%%:*}
    command=${entry:${#package}}
    command=${command#:}
    if [[ -z $command ]]; then
      package_installed "$package" || missing+=("$package")
    elif ! command -v "$command" >/dev/null; then
      missing+=("$package")
      missing_commands+=("$command")
    fi
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0

  say "Missing packages: ${missing[*]}"
  if ! command -v apt-get >/dev/null; then
    note "This system has no apt. These are the names in Debian and Ubuntu: install them with its own package manager."
  elif [[ $may_install == yes ]]; then
    install_packages "${missing[@]}"
    return
  else
    note "To install them: $(install_command "${missing[@]}")"
  fi
  [[ ${#missing_commands[@]} -eq 0 ]] || fail "cannot go on without: ${missing_commands[*]}"
  command -v git >/dev/null || fail "cannot go on: CMake needs git to fetch the missing libraries"
  note "Going on: CMake fetches the missing libraries into the build folder."
}

as_root() { if [[ $EUID -eq 0 ]]; then "$@"; else sudo "$@"; fi; }

install_command() {
  local sudo=sudo
  [[ $EUID -ne 0 ]] || sudo=
  echo "${sudo:+$sudo }apt-get update && ${sudo:+$sudo }apt-get install -y --no-install-recommends $*"
}

install_packages() {
  note "$(install_command "$@")"
  [[ $EUID -eq 0 ]] || command -v sudo >/dev/null ||
    fail "there is no sudo here" "run the command above as root, then start again"
  as_root apt-get update -q || note "apt-get update reports errors; trying with the package lists that are there"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" ||
    fail "the packages could not be installed"
}

# CMake below 3.25 does not understand the workflow presets, and says so badly.
require_cmake() {
  local floor=3.25 version
  version=$(cmake --version | sed -n '1s/[^0-9]*//p')
  [[ $(printf '%s\n' "$floor" "$version" | sort -V | head -n 1) == "$floor" ]] ||
    fail "CMake $version is too old: ferry needs $floor or later" "try: pip install cmake"
}

# nvcc as CMake looks for it: on the path, or where the CUDA Toolkit puts itself.
have_nvcc() { command -v nvcc >/dev/null || [[ -x /usr/local/cuda/bin/nvcc ]]; }

# The preset for this machine: as FERRY_CUDA of the environment says, ON or OFF; else cuda where nvcc is found.
build_preset() {
  case ${FERRY_CUDA:-AUTO} in
    [Oo][Nn]) echo cuda ;;
    [Oo][Ff][Ff]) echo cpu ;;
    *) if have_nvcc; then echo cuda; else echo cpu; fi ;;
  esac
}

# gpu_architectures: what to compile for, as CMake writes it ("80;90"): the GPUs of this machine that ferry can use, or
# 90 where none is seen.
gpu_architectures() {
  local found=''
  if command -v nvidia-smi >/dev/null; then
    found=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d '. ' |
      awk '/^[0-9]+$/ && $1 >= 80' | sort -nu | paste -sd ';') || true
  fi
  echo "${found:-90}"
}
