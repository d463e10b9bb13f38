#!/usr/bin/env bash
# From a clean clone to a running cluster and a streamed answer.
#   deploy/quickstart.sh          installs what is missing, builds, starts, asks; leaves it running
#   deploy/quickstart.sh --once   the same, and stops the cluster again
#   deploy/quickstart.sh --dir RUN   the cluster's folder (default: .baton in the checkout)
#   deploy/quickstart.sh --device cuda   builds for GPUs and starts on the first one
# Safe to run twice: a running cluster of the same build is used again.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

once=0
dir=$root/.baton
preset=release
up=()
while [ $# -gt 0 ]; do
  case "$1" in
    --once) once=1 ;;
    --dir) dir=${2:?--dir needs a folder}; shift ;;
    --device)
      case "${2:-}" in
        cpu) ;;
        cuda) preset=cuda ;;
        *) echo "quickstart: --device ${2:-}: must be cpu or cuda" >&2; exit 2 ;;
      esac
      up=(--device "$2")
      shift ;;
    -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "quickstart: unknown option $1; see --help" >&2; exit 2 ;;
  esac
  shift
done

begin=$SECONDS
step() { printf '\n==> [%d:%02d] %s\n' $(((SECONDS - begin) / 60)) $(((SECONDS - begin) % 60)) "$*"; }
trap 'echo "quickstart: FAILED while: $doing" >&2' ERR
check_gpu() { [ "$preset" != cuda ] || deploy/check_gpu.py || exit 2; }
if command -v python3 >/dev/null; then check_gpu; fi  # Before what takes minutes.

doing="checking packages"
step "Packages and Rust"
deploy/install_packages.sh
check_gpu
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"

doing="configuring"
step "Configure (build/$preset)"
mkdir -p build
cmake --preset "$preset" >build/configure.log 2>&1 || { tail -n 20 build/configure.log >&2; false; }

doing="building"
step "Build with $(nproc) jobs (some minutes the first time)"
NINJA_STATUS="[%f/%t, %es] " cmake --build --preset "$preset" -j "$(nproc)" \
  --target baton baton-router baton-prefill baton-decode

bin=$root/build/$preset/bin
programs=("$bin"/baton "$bin"/baton-router "$bin"/baton-prefill "$bin"/baton-decode)
built=$(sha256sum "${programs[@]}" | sha256sum)

doing="starting the cluster"
step "Start a router, a prefill worker and a decode worker with deploy/models/tiny-kjv"
if "$bin/baton" status --dir "$dir" >/dev/null 2>&1 && [ "$(cat "$dir/build.sha256" 2>/dev/null)" = "$built" ]; then
  echo "A healthy cluster of this build is already running in $dir: it is used again."
else
  "$bin/baton" down --dir "$dir"
  "$bin/baton" up --detach --dir "$dir" --model deploy/models/tiny-kjv ${up[@]+"${up[@]}"}
  echo "$built" >"$dir/build.sha256"
fi

doing="asking for a completion"
step "One completion, streamed"
"$bin/baton" complete --dir "$dir" --temperature 0 --max-tokens 40 "The LORD is my shepherd;"

echo
url=$(python3 - "$dir" <<'PY'
import json, sys
servers = json.load(open(sys.argv[1] + "/state.json"))["servers"]
router = next(s for s in servers if s["role"] == "router")
print(router["http_url"], router["address"])
PY
)
if [ "$once" = 1 ]; then
  doing="stopping the cluster"
  step "Stop"
  "$bin/baton" down --dir "$dir"
  printf '\nOK: built, started, answered and stopped in %d:%02d.\n' $(((SECONDS - begin) / 60)) $(((SECONDS - begin) % 60))
  exit 0
fi
http=${url% *}
cat <<TEXT
HTTP   $http/v1      gRPC ${url#* }      metrics $http/metrics
Ask    curl -N $http/v1/completions -H 'Content-Type: application/json' \\
         -d '{"model": "tiny-kjv", "prompt": "In the beginning", "max_tokens": 32, "stream": true}'
Watch  $bin/baton status --dir $dir --watch
Stop   $bin/baton down --dir $dir

TEXT
printf 'OK: the cluster is running at %s (built, started and answered in %d:%02d).\n' "$http" \
  $(((SECONDS - begin) / 60)) $(((SECONDS - begin) % 60))
