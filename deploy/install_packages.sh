#!/usr/bin/env bash
# The packages that Baton needs on Debian 12 to build and to test, in one place, and the Rust check.
# As root it installs what is missing; otherwise it prints the command that does, and fails if
# anything is missing.
set -euo pipefail

packages=(
  build-essential ca-certificates ccache cmake curl ninja-build python3 python3-venv
  libabsl-dev libboost1.81-dev libc-ares-dev libcli11-dev libgmock-dev libgrpc++-dev libgtest-dev
  libprotobuf-dev libre2-dev libspdlog-dev libssl-dev libxxhash-dev nlohmann-json3-dev
  prometheus-cpp-dev protobuf-compiler protobuf-compiler-grpc zlib1g-dev
)
min_rust=1.85
rustup_url=https://static.rust-lang.org/rustup/rustup-init.sh

if ! command -v dpkg-query >/dev/null; then
  echo "This is not a Debian system: the counterparts of these packages are taken to be installed:"
  echo "  ${packages[*]}"
  packages=()
fi
missing=()
for package in ${packages[@]+"${packages[@]}"}; do
  if ! dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed'; then
    missing+=("$package")
  fi
done
if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" != 0 ]; then
    echo "${#missing[@]} packages are missing. Install them, then run this again:" >&2
    echo "  sudo apt-get install --no-install-recommends -y ${missing[*]}" >&2
    exit 1
  fi
  echo "Installing ${#missing[@]} packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q
  apt-get install --no-install-recommends -y -q "${missing[@]}"
else
  echo "No package is missing (${#packages[@]} checked)."
fi

# The newest cargo of those that may be here, as "VERSION PATH"; empty if none is new enough.
usable_cargo() {
  local cargo version
  for cargo in "$(command -v cargo || true)" "${CARGO_HOME:-$HOME/.cargo}/bin/cargo"; do
    [ -x "$cargo" ] || continue
    version=$("$cargo" --version 2>/dev/null | awk '{print $2}') || continue
    if [ "$(printf '%s\n' "$min_rust" "$version" | sort -V | head -n 1)" = "$min_rust" ]; then
      echo "$version $cargo"
      return
    fi
  done
}

found=$(usable_cargo)
if [ -z "$found" ]; then
  install="curl -sSf $rustup_url | sh -s -- -y --profile minimal --no-modify-path"
  echo "Rust $min_rust or later is needed for the tokenizer (Debian 12's own cargo 0.66 is too old)."
  if [ "$(id -u)" != 0 ]; then
    echo "Install it for this user, then run this again:" >&2
    echo "  $install" >&2
    exit 1
  fi
  echo "Installing it by rustup: $install"
  bash -c "set -o pipefail; $install"
  found=$(usable_cargo)
  [ -n "$found" ] || { echo "rustup did not give a cargo $min_rust or later" >&2; exit 1; }
fi
echo "Rust: cargo $found"
