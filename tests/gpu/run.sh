#!/usr/bin/env bash
# Runs a pack of tests/gpu/pack.sh on the machine it was brought to, whose GPU 0 it takes.
#   run.sh OUT             everything: 27 minutes at most
#   run.sh OUT --only X    only part X, by its name, or all of call 1 (arithmetic, operators), 2
#                          (attention, models), 3 (whole clusters, NCCL, sanitizer) or 4 (speed): each
#                          call ends within 10 minutes
#   run.sh OUT --quick     a few tests of each part, for packs whose GPU is emulated: limits are twice
#                          as long
#   run.sh OUT --limit S   each part is stopped after that many seconds, at most its own limit
# Writes OUT/log.txt and OUT/results.json: for each part what it says, its seconds, and "passed",
# "failed", "late" (stopped at its limit) or "skipped" with the reason; parts that measure add their
# rows so far. Needs bash and coreutils, and for clusters python3. Exits 1 unless every part passed or was skipped.
set -uo pipefail

out=${1:-}
[ -n "$out" ] && [ "${out#-}" = "$out" ] || { sed -n '2,15s/^# \{0,1\}//p' "$0"; exit 2; }
shift
only=
quick=0
most=600
while [ $# -gt 0 ]; do
  case "$1" in
    --only) only=${2:?--only needs a name}; shift ;;
    --limit) most=${2:?--limit needs seconds}; shift ;;
    --quick) quick=1 ;;
    *) echo "run.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")"
[ -x bin/baton-prefill ] || { echo "run.sh: no pack here: tests/gpu/pack.sh makes one" >&2; exit 2; }

log=$out/log.txt
rows=$out/rows.jsonl
: >"$log"
parts=()
bad=0

# As the inside of a JSON string.
escaped() { tr -d '\000-\010\013-\037' | sed 's/\\/\\\\/g; s/"/\\"/g; s/\t/ /g' | sed ':a;N;$!ba;s/\n/\\n/g'; }

# note NAME STATUS SECONDS TEXT, with what the part has measured, a row of JSON a line.
note() {
  local measured=
  [ ! -s "$rows" ] || measured=", \"rows\": [$(grep '}$' "$rows" | paste -sd,)]"
  parts+=("{\"part\": \"$1\", \"status\": \"$2\", \"seconds\": $3, \"says\": \"$(printf '%s' "$4" | escaped)\"$measured}")
  printf '%-10s %-8s %4d s  %s\n' "$1" "$2" "$3" "$(printf '%s' "$4" | head -n 1)"
}

# No test has the names that were asked for.
ran_nothing() { grep -qE '^(\[==========\]|Ran) 0 tests ' "$1"; }

# part CALL NAME LIMIT COMMAND...: of what it prints the last line of a pass, and what failed.
part() {
  local call=$1 name=$2 limit=$3 status=passed says begin=$SECONDS
  shift 3
  [ -z "$only" ] || [ "$only" = "$call" ] || [ "$only" = "$name" ] || return 0
  [ "$quick" = 0 ] || limit=$((2 * limit))
  [ "$limit" -lt "$most" ] || limit=$most
  rm -f "$rows"
  printf '\n==> %s: %s\n' "$name" "$*" >>"$log"
  timeout -k 5 "$limit" "$@" >"$out/part.txt" 2>&1
  case $? in
    0) ran_nothing "$out/part.txt" && status=failed
       says=$(grep -v '^ *$' "$out/part.txt" | tail -n 1) ;;
    124 | 137) status=late says=$(tail -n 5 "$out/part.txt") ;;
    77) status=skipped says=$(tail -n 1 "$out/part.txt") ;;
    *) status=failed
       says=$(grep -E '^\[  FAILED  \]|^(FAIL|ERROR):|lost|rror:|no NVIDIA' "$out/part.txt" | head -n 20)
       says=${says:-$(tail -n 5 "$out/part.txt")} ;;
  esac
  cat "$out/part.txt" >>"$log"
  [ "$status" = passed ] || [ "$status" = skipped ] || bad=$((bad + 1))
  note "$name" "$status" $((SECONDS - begin)) "$says"
}

# tests CALL NAME LIMIT TESTS FEW: all those tests, or few.
tests() {
  [ "$quick" = 0 ] || set -- "$1" "$2" "$3" "$5"
  part "$1" "$2" "$3" tests/gpu_tests --gtest_brief=1 --gtest_filter="$4"
}

# costs TESTS: what they print, and for the results last what they measured.
costs() {
  tests/gpu_tests --gtest_brief=1 --gtest_filter="$1" >"$out/costs.txt"
  local status=$?
  cat "$out/costs.txt"
  [ "$status" = 0 ] && grep '^{' "$out/costs.txt"
}

device() {
  bin/baton-prefill --list-gpus || return 1
  command -v nvidia-smi >/dev/null &&
    nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader
  # Last, for the results. GPU 0 is what all parts take.
  bin/baton-prefill --list-gpus | tee "$out/device.json" | grep -o '{[^{}]*"index":0,[^{}]*}' |
    grep -q '"unusable":""' && cat "$out/device.json"
}

# Only the programs: up, one answer, down.
start() {
  local dir=$out/cluster status=1
  bin/baton up --detach --dir "$dir" --device cuda --model deploy/models/tiny-kjv --num-blocks 64 \
    --max-model-len 256 --http 0 --grpc 0 &&
    bin/baton complete --dir "$dir" --temperature 0 --max-tokens 8 "In the beginning" && status=0
  bin/baton down --dir "$dir" || status=1
  [ "$status" = 0 ] || tail -n 5 "$dir"/logs/*.log
  rm -rf "$dir"
  return "$status"
}

# The tests of whole clusters that need no emulation.
cluster() {
  command -v python3 >/dev/null || { echo "no python3 here"; return 77; }
  local names=(prefix_hit gpu_chooses batch_chunks preemption answers_are_those killed_decode cpu_and_gpu)
  [ "$quick" = 0 ] || names=(answers_are_those)
  python3 -B tests/cluster/emulated_test.py bin "${names[@]/#/-k}"
}

# with_nccl COMMAND...: NCCL is the pack's unless another is named. Two ranks on one GPU need leave, and
# machines without a network the loopback interface.
with_nccl() {
  export BATON_NCCL_LIBRARY=${BATON_NCCL_LIBRARY:-$PWD/nccl/libnccl.so.2}
  [ -f "$BATON_NCCL_LIBRARY" ] ||
    { echo "no file $BATON_NCCL_LIBRARY: pack.sh --nccl FILE brings one"; return 77; }
  export NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_NVLS_ENABLE=0 \
    NCCL_RAS_ENABLE=0 NCCL_DEBUG="${NCCL_DEBUG:-INFO}" \
    NCCL_DEBUG_SUBSYS="${NCCL_DEBUG_SUBSYS:-INIT,P2P,SHM,NET}" BATON_EMULATED_NCCL=one_device=1
  "$@"
}

# What NCCL costs, without workers: what was measured is kept if it hangs then.
nccl_costs() {
  set -o pipefail
  tests/gpu_tests --gtest_brief=1 --gtest_filter='NcclCosts*' |
    while IFS= read -r line; do
      printf '%s\n' "$line"
      case "$line" in '{"name"'*) printf '%s\n' "$line" >>"$rows" ;; esac
    done
}

# K/V between workers over NCCL.
nccl() {
  command -v python3 >/dev/null || { echo "no python3 here"; return 77; }
  local options=(--out "$rows")
  [ "$quick" = 0 ] || options+=(--quick)
  python3 -B tests/gpu/nccl_pair.py . "${options[@]}"
}

sanitizer() {
  command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer here"; return 77; }
  local tool
  for tool in memcheck racecheck synccheck initcheck; do
    echo "$tool"
    compute-sanitizer --tool "$tool" --error-exitcode 9 tests/gpu_tests --gtest_brief=1 \
      --gtest_filter='SweepTest.OfNorms:*MmaTest*ordinary*:CopyPieces*:GemmOrder*' || return 1
  done
}

# bench GROUPS SECONDS: of the time that is left no row is begun.
bench() {
  local options=(--groups "$1" --seconds "$2" --out "$rows")
  [ ! -e gpu_model.json ] || options+=(--computed gpu_model.json)
  [ "$quick" = 0 ] || options+=(--quick)
  tests/gpu_tests bench "${options[@]}"
}

# serving MODEL: random weights through router, P and D.
serving() {
  command -v python3 >/dev/null || { echo "no python3 here"; return 77; }
  local size=(--model "$1")
  [ "$quick" = 0 ] || size=(--quick)
  [ "$quick$1" != 18B ] || { echo "--quick has one model"; return 77; }
  python3 -B tests/gpu/serving.py . "${size[@]}" --out "$rows"
}

libraries() {
  command -v python3 >/dev/null || { echo "no python3 here"; return 77; }
  python3 -B tests/gpu/torch_rows.py --seconds "$1" --out "$rows"
}
export -f device costs start cluster with_nccl nccl nccl_costs sanitizer bench serving libraries
export out quick rows

attention='*Attention*'
sampling='*Sample*:*Score*:*TakeTokens*:*PartsRandom*'
device_api='CudaDeviceTest.*:PackTest.*'
measured='LaunchCosts*:NcclCosts*:StepCosts*'
models='*CudaRunner*:*CudaModels*:*CudaGolden*:*CudaSmall*:*CudaSizes*'
part 1 device 30 bash -c device
tests 1 arithmetic 30 '*MmaTest*' '*MmaTest*'
part 1 launches 30 bash -c "costs 'LaunchCosts*'"
part 1 steps 30 bash -c "costs 'StepCosts*'"
tests 1 sweep 90 'SweepTest.*' SweepTest.OfNorms
tests 1 operators 150 "-$attention:$sampling:$device_api:$models:*MmaTest*:SweepTest.*:$measured" \
  '*GemmTest*BitsDepend*bf16_to_f32:*RowsTest*'
tests 2 attention 130 "$attention" '*Attention*Refus*'
tests 2 sampling 40 "$sampling" '*Sample*Refus*'
tests 2 device_api 40 "$device_api" "$device_api"
tests 2 models 150 "$models" '*CudaRunner*Chunks*'
part 3 start 50 bash -c start
part 3 cluster 190 bash -c cluster
part 3 nccl_costs 30 bash -c 'with_nccl nccl_costs'
part 3 nccl 90 bash -c 'with_nccl nccl'
part 3 sanitizer 100 bash -c sanitizer
part 4 products 80 bash -c 'bench gemm,copies,rows,sampling,graphs,load 60'
part 4 contexts 80 bash -c 'bench prefill,decode 60'
part 4 serving_1b 70 bash -c 'serving 1B'
part 4 serving_8b 150 bash -c 'serving 8B'
part 4 libraries 60 bash -c 'libraries 45'
rm -f "$out/part.txt" "$out/device.json" "$out/costs.txt" "$rows"

{
  printf '{"failed": %d, "parts": [\n' "$bad"
  for i in "${!parts[@]}"; do
    [ "$i" = 0 ] || printf ',\n'
    printf '  %s' "${parts[$i]}"
  done
  printf '\n]}\n'
} >"$out/results.json"
[ ${#parts[@]} -gt 0 ] || { echo "run.sh: no part $only" >&2; exit 2; }
printf '%s: %d parts, %d failed or late\n' "$([ "$bad" = 0 ] && echo PASS || echo FAIL)" ${#parts[@]} "$bad"
[ "$bad" = 0 ]
