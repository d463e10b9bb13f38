#!/usr/bin/env bash
# Makes a folder with all that a machine with a GPU and nothing else needs to run tests/gpu/run.sh:
# programs, the libraries they need but for the C library's, the small model, goldens; and of it an
# archive beside it, which travels.
#   tests/gpu/pack.sh              builds the preset cuda first; build/cuda/pack, .../pack.tar.xz
#   tests/gpu/pack.sh --emulated   the same of the preset emulated
#   ... --no-build                 takes what is built
#   ... --nccl FILE                and NCCL, for tests of K/V over it alone: 2.30.3 or later, which can
#                                  have two ranks on one GPU
# Fails if the archive is larger than 50 MiB, or if a program needs a library that a bare Debian system lacks.
set -euo pipefail
cd "$(dirname "$0")/../.."

preset=cuda
build=1
nccl=
while [ $# -gt 0 ]; do
  case "$1" in
    --emulated) preset=emulated ;;
    --no-build) build=0 ;;
    --nccl) nccl=$(cd "$OLDPWD" && realpath -e "${2:?--nccl needs a file}"); shift ;;
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "pack.sh: unknown option $1; see --help" >&2; exit 2 ;;
  esac
  shift
done
max_mib=50
tree=build/$preset
pack=$tree/pack
programs=(baton baton-router baton-prefill baton-decode)
# The C library's own, which every Debian system has.
system='^(ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libresolv)\.so'

if [ "$build" = 1 ]; then
  cmake --preset "$preset" >/dev/null
  cmake --build --preset "$preset" -j "${BATON_JOBS:-$(nproc)}" --target "${programs[@]}" gpu_tests
fi

rm -rf "$pack"
mkdir -p "$pack"/{bin,lib,tests/{bench,cluster,golden,gpu},deploy/models}
copy() {  # copy FILE FOLDER: without symbols that only debuggers read.
  strip -o "$2/$(basename "$1")" "$1"
}
for name in "${programs[@]}"; do copy "$tree/bin/$name" "$pack/bin"; done
copy "$tree/tests/gpu_tests" "$pack/tests"
linked=("$pack"/bin/* "$pack"/tests/gpu_tests)

# needed FILE...: the libraries that they name.
needed() { readelf -d "$@" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u; }
declare -A found
while read -r library path; do found[$library]=$path; done < <(
  ldd "${linked[@]}" | sed -n 's/^\t\(\S*\) => \(\/\S*\).*/\1 \2/p' | sort -u)
for library in "${!found[@]}"; do
  [[ $library =~ $system ]] || copy "${found[$library]}" "$pack/lib"
done
# Not in lib, where every worker would find it.
if [ -n "$nccl" ]; then
  mkdir "$pack/nccl"
  strip --strip-unneeded -o "$pack/nccl/libnccl.so.2" "$nccl"
  linked+=("$pack/nccl/libnccl.so.2")
fi
# By the files themselves, for ldd also takes what only this system has.
for library in $(needed "${linked[@]}" "$pack"/lib/*); do
  [[ $library =~ $system ]] || [ -e "$pack/lib/$library" ] ||
    { echo "pack.sh: nothing here gives $library" >&2; exit 1; }
done

cp -r deploy/models/tiny-kjv "$pack/deploy/models/"
cp -r tests/golden/models tests/golden/*.json "$pack/tests/golden/"
cp tests/cluster/{emulated_test,running_cluster,process_cluster,api_client,fault_proxy}.py \
  "$pack/tests/cluster/"
cp tests/gpu/{nccl_pair,serving,torch_rows}.py "$pack/tests/gpu/"
cp tests/bench/{report,streams}.py "$pack/tests/bench/"
cp tests/gpu/run.sh "$pack/"

# What the kernels of this build could reach, for the benchmarks to be read beside.
if [ "$preset" = cuda ]; then
  cubins=$(mktemp -d)
  trap 'rm -rf "$cubins"' EXIT
  cuobjdump=$(kernels/cuda/toolkit.sh)/bin/cuobjdump
  for object in "$PWD/$tree"/kernels/cuda/*.cu.o; do
    (cd "$cubins" && "$cuobjdump" -xelf all "$object" >/dev/null)
  done
  python3 -B tests/bench/gpu_model.py --cubins "$cubins" --json >"$pack/gpu_model.json"
fi

# Its programs have nearly all of their code in common: the window spans several of them.
tar -cf - -C "$tree" pack | xz -T1 --lzma2=preset=1,dict=64MiB >"$pack.tar.xz"
kib=$(($(stat -c %s "$pack.tar.xz") / 1024))
printf 'pack.sh: %s: %d.%d MiB\n' "$pack.tar.xz" $((kib / 1024)) $((kib % 1024 * 10 / 1024))
if [ "$kib" -ge $((max_mib * 1024)) ]; then
  echo "pack.sh: that is more than $max_mib MiB" >&2
  exit 1
fi
