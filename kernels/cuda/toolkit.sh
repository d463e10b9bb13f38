#!/usr/bin/env bash
# Prints the folder of a CUDA toolkit (bin/nvcc in it): $CUDA_HOME or that of the nvcc on PATH if it
# is CUDA 13, whose programs run on every driver that deploy/check_gpu.py takes; else the wheels of
# toolkit.txt, checked by hash, in a cache that is filled once.
#   kernels/cuda/toolkit.sh            prints the folder; 290 MB of disk, 105 MB of download
#   kernels/cuda/toolkit.sh --cached   fails if that would download
set -euo pipefail
pins=$(cd "$(dirname "$0")" && pwd)/toolkit.txt

for home in "${CUDA_HOME:-}" "$(dirname "$(dirname "$(command -v nvcc || true)")")"; do
  [ -x "$home/bin/nvcc" ] || continue
  major=$("$home/bin/nvcc" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
  if [ "${major:-0}" = 13 ] && [ -x "$home/bin/cuobjdump" ]; then
    echo "$home"
    exit 0
  fi
done

key=$(sha256sum "$pins" | cut -c 1-12)
folder=${BATON_CUDA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/baton}/cuda-$key
if [ ! -x "$folder/bin/nvcc" ]; then
  if [ "${1:-}" = --cached ]; then
    echo "toolkit.sh: no CUDA toolkit: $folder is missing; kernels/cuda/toolkit.sh fills it" >&2
    exit 1
  fi
  mkdir -p "$(dirname "$folder")"
  # Unpacked beside its place and then renamed: two builds may do this at once.
  scratch=$(mktemp -d "$folder.XXXXXX")
  trap 'rm -rf "$scratch"' EXIT
  # One call: a second one into the same folder would wipe the first.
  python3 -m pip install --quiet --no-deps --require-hashes --no-input --disable-pip-version-check \
    --target "$scratch" --requirement "$pins" >&2
  tree=$scratch/nvidia/cu13
  [ -e "$tree/lib64" ] || ln -s lib "$tree/lib64"
  for library in "$tree"/lib/lib*.so.*; do
    [ -e "${library%%.so.*}.so" ] || ln -s "$(basename "$library")" "${library%%.so.*}.so"
  done
  mv -T "$tree" "$folder" 2>/dev/null || [ -x "$folder/bin/nvcc" ]
fi
echo "$folder"
