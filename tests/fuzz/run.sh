#!/usr/bin/env bash
# Fuzzes with libFuzzer; resumable, meant for each night.
#   tests/fuzz/run.sh [--minutes N] [--target T] [--jobs J]
#                            builds and fuzzes each target (or T) for its share of N minutes
#                            (default 60) with J processes (default: all cores), then harvests
#   tests/fuzz/run.sh --until HH:MM [...]
#                            the same, round after round until that time (UTC); left out are
#                            targets with a finding, and those with 10^7 executions while others
#                            have fewer; harvests nothing
#   tests/fuzz/run.sh --harvest
#                            adds the executions since the last harvest to executions.md and what
#                            reaches new code to corpus/, both to be committed
# The working corpora, counts and findings are in build/fuzz-corpus. Exits 1 on a finding, with its
# input and how to replay it.
set -euo pipefail
cd "$(dirname "$0")/../.."

minutes=60 jobs=$(nproc) until="" harvest_only=0 targets=()
while [ $# -gt 0 ]; do
  case "$1" in
    --minutes) minutes=${2:?--minutes needs a number}; shift ;;
    --target) targets+=("${2:?--target needs a name}"); shift ;;
    --jobs) jobs=${2:?--jobs needs a number}; shift ;;
    --until) until=${2:?--until needs HH:MM}; shift ;;
    --harvest) harvest_only=1 ;;
    -h | --help) sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "tests/fuzz/run.sh: unknown option $1; see --help" >&2; exit 2 ;;
  esac
  shift
done
mapfile -t known < <(sed -n 's/^fuzz_target(\([a-z_]*\) .*/\1/p' tests/fuzz/CMakeLists.txt)
if [ ${#targets[@]} = 0 ]; then targets=("${known[@]}"); fi
for target in "${targets[@]}"; do
  case " ${known[*]} " in
    *" $target "*) ;;
    *) echo "tests/fuzz/run.sh: unknown target $target; one of: ${known[*]}" >&2; exit 2 ;;
  esac
done

packages=(clang-19 libclang-rt-19-dev llvm-19)  # llvm-19: names in reports.
work=build/fuzz-corpus
export ASAN_SYMBOLIZER_PATH=/usr/bin/llvm-symbolizer-19
export UBSAN_OPTIONS=print_stacktrace=1
# An input frees little (what fits the caches of a core is kept aside), and a replay by hand shows
# who allocated it: less work for each allocation.
fast_asan=malloc_context_size=2:quarantine_size_mb=1:thread_local_quarantine_size_kb=64

build() {
  if ! dpkg-query -W "${packages[@]}" >/dev/null 2>&1; then
    [ "$(id -u)" = 0 ] || { echo "missing: sudo apt-get install ${packages[*]}" >&2; exit 1; }
    apt-get update -q && DEBIAN_FRONTEND=noninteractive \
      apt-get install --no-install-recommends -y -q "${packages[@]}"
  fi
  mkdir -p build
  cmake --preset fuzz >build/configure-fuzz.log 2>&1 || { tail build/configure-fuzz.log; exit 1; }
  cmake --build build/fuzz -j "$jobs" --target "${targets[@]/#/fuzz_}"
}

binary() { echo "build/fuzz/tests/fuzz_$1"; }

# limits TARGET [MAX_LEN]: long enough for the shapes in the corpus. No input may take
# a minute (beside other work) or 2 GiB.
limits() {
  local max_len=${2:-4096}
  case "$1" in
    generate_proto | control_message) max_len=${2:-2048} ;;
    transfer_frame) max_len=${2:-1024} ;;
  esac
  # A slow one (10 s by default) is one that waited for a core.
  echo "-max_len=$max_len -timeout=60 -report_slow_units=60 -rss_limit_mb=2048"
}

report() {
  echo "FINDING in $1: $2"
  echo "  replay: $(binary "$1") $2"
  echo "  when it is fixed: cp $2 tests/fuzz/corpus/$1/found-NAME"
}

has_findings() { [ -n "$(ls -A "$work/$1/findings" 2>/dev/null)" ]; }

# What was found before and still fails is a finding; the rest was fixed.
replay_findings() {
  local target=$1 file
  for file in "$work/$target/findings"/*; do
    [ -e "$file" ] || continue
    # shellcheck disable=SC2046
    if "$(binary "$target")" $(limits "$target") "$file" >/dev/null 2>&1; then
      rm "$file"
    else
      report "$target" "$file"; found=1
    fi
  done
}

# fuzz TARGET SECONDS [MAX_LEN]: $jobs processes share the corpus; their executions go to `pending`.
fuzz() {
  local target=$1 seconds=$2 max_len=${3:-} dir=$work/$1 job pids=() pid file
  mkdir -p "$dir/corpus" "$dir/findings" "$dir/log"
  python3 tests/fuzz/executions.py count "$dir"  # Of a run that was killed.
  touch "$dir/started"
  for ((job = 0; job < jobs; ++job)); do
    local dict=()
    if [ -e "tests/fuzz/$target.dict" ]; then dict=("-dict=tests/fuzz/$target.dict"); fi
    # shellcheck disable=SC2046
    ASAN_OPTIONS=$fast_asan nice -n 19 "$(binary "$target")" $(limits "$target" $max_len) \
      "${dict[@]}" -reload=30 -max_total_time="$seconds" -print_final_stats=1 -print_funcs=0 \
      -entropic_scale_per_exec_time=1 \
      -artifact_prefix="$dir/findings/" "$dir/corpus" "tests/fuzz/corpus/$target" \
      >"$dir/log/$job" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || true; done
  python3 tests/fuzz/executions.py count "$dir"
  for file in "$dir/findings"/*; do
    if [ "$file" -nt "$dir/started" ]; then report "$target" "$file"; found=1; fi
  done
}

# The committed corpus becomes what covers the most in at most 200 KB; findings stay in any case.
harvest() {
  local target=$1 dir=$work/$1 merged=$work/$1/merged committed=tests/fuzz/corpus/$1
  rm -rf "$merged" && mkdir -p "$merged" "$dir/corpus" "$dir/log"
  python3 tests/fuzz/executions.py count "$dir"
  # shellcheck disable=SC2046
  nice -n 19 "$(binary "$target")" $(limits "$target") -set_cover_merge=1 \
    -artifact_prefix="$dir/merge-" "$merged" "$committed" \
    "$dir/corpus" >"$dir/log-merge" 2>&1 || { tail "$dir/log-merge"; return 1; }
  python3 tests/fuzz/executions.py keep "$merged" "$committed"
}

# libFuzzer ends without destructors, so the tokenizer's folder stays behind.
find /dev/shm /tmp -maxdepth 1 -name 'baton-fuzz-??????' -mmin +600 -exec rm -rf {} + 2>/dev/null ||
  true

found=0
build
if [ "$harvest_only" = 0 ]; then
  for target in "${targets[@]}"; do replay_findings "$target"; done
  if [ -n "$until" ]; then
    end=$(date -u -d "$until" +%s)
    if [ "$end" -le "$(date +%s)" ]; then end=$((end + 86400)); fi  # Tomorrow.
    ran=1
    for ((round = 0; ran == 1; ++round)); do
      ran=0
      sound=()
      for target in "${targets[@]}"; do has_findings "$target" || sound+=("$target"); done
      [ ${#sound[@]} -gt 0 ] || break
      behind=$(python3 tests/fuzz/executions.py behind "$work" tests/fuzz/executions.md \
        "${sound[@]}")
      # Most of what there is to find fits into little, which runs many times as fast.
      short=$((round % 4 == 3 ? 0 : 256))
      for target in $behind; do
        left=$((end - $(date +%s)))
        if [ "$left" -gt 0 ]; then
          fuzz "$target" $((left < 100 ? left : 100)) "${short#0}"; ran=1
        fi
      done
    done
    exit "$found"
  fi
  for target in "${targets[@]}"; do
    fuzz "$target" $((minutes * 60 / ${#targets[@]} + 1))
  done
fi
for target in "${targets[@]}"; do harvest "$target"; done
python3 tests/fuzz/executions.py table "$work" tests/fuzz/executions.md
exit "$found"
