#!/usr/bin/env bash
# Builds Baton and runs its tests.
#   tests/run.sh               the default set: the unit tests, first, under ASan + UBSan; every other
#                              label below in an optimised build, whose GPU is emulated; then
#                              simulator, transport and golden tests under ASan + UBSan too, with
#                              the faults that only that build can place
#   tests/run.sh --label L     only this label (repeatable): unit optimised kernels golden transport
#                              sim planted tidy cluster clients bench emulated chart, asan for what
#                              the sanitizer build runs besides unit, tsan for transport, a whole
#                              cluster and the tests of threads under the thread sanitizer, or k8s
#                              for what needs the tools of Kubernetes (tests/k8s)
#   tests/run.sh --again       runs up to five tests that failed once more, alone: on a machine that
#                              others keep busy. One that passes then is named in the summary
#   tests/run.sh --nightly     the long set: more seeds, more shapes, more requests, the kernels too
#                              under ASan + UBSan, tsan, and the fuzzers (BATON_FUZZ_MINUTES, 90)
# Prints the time per label, the slowest steps and their CPU time, what could not run, and PASS or FAIL in its last line.
set -euo pipefail
cd "$(dirname "$0")/.."

labels=()
nightly=0
again=0
while [ $# -gt 0 ]; do
  case "$1" in
    --label) labels+=("${2:?--label needs a name}"); shift ;;
    --nightly) nightly=1 ;;
    --again) again=1 ;;
    -h | --help) sed -n '2,18s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "tests/run.sh: unknown option $1; see --help" >&2; exit 2 ;;
  esac
  shift
done
known=(unit optimised kernels golden transport sim planted tidy cluster clients bench emulated chart)
for label in ${labels[@]+"${labels[@]}"}; do
  case " ${known[*]} asan tsan k8s " in
    *" $label "*) ;;
    *) echo "tests/run.sh: unknown label $label; one of: ${known[*]} asan tsan k8s" >&2; exit 2 ;;
  esac
done

begin=$SECONDS
took() { printf '%d:%02d' $(((SECONDS - begin) / 60)) $(((SECONDS - begin) % 60)); }
steps=build/steps.txt  # Seconds, CPU seconds and name of each step, for the summary.
# CPU seconds of all that this shell has waited for; `times` knows them in this shell alone.
count_cpu() {
  times >build/times.txt
  cpu=$(awk -F '[ms ]+' 'NR == 2 {printf "%d", 60 * ($1 + $3) + $2 + $4}' build/times.txt)
}
step() {
  count_cpu
  if [ -n "${current:-}" ]; then echo "$((SECONDS - since)) $((cpu - spent)) $current" >>"$steps"; fi
  current=$* since=$SECONDS spent=$cpu
  printf '\n==> [%s] %s\n' "$(took)" "$*"
}
fail() { printf '\nFAIL: %s after %s\n' "$*" "$(took)"; exit 1; }
jobs=$(nproc)
export NINJA_STATUS="[%f/%t, %es] "
if [ "$nightly" = 1 ]; then
  export BATON_NIGHTLY=1
fi

# configure PRESET [OPTION...]
configure() {
  cmake --preset "$@" >"build/configure-$1.log" 2>&1 ||
    { tail -n 20 "build/configure-$1.log"; fail "configuring the $1 build"; }
}

# run_ctest PRESET NAME LABEL...: runs the tests; results go to build/PRESET/NAME.{log,xml}.
results=()
run_ctest() {
  local preset=$1 name=$2
  shift 2
  step "Test: $name: $*"
  rm -f "build/$preset/$name.xml" "build/$preset/$name-again.xml"
  # Two slots a core: tests that mostly wait take one, others two.
  ctest --test-dir "build/$preset" -L "^($(IFS='|'; echo "$*"))\$" -j $((2 * jobs)) \
    --output-on-failure --no-tests=error --test-output-size-passed 1000000 \
    --output-junit "$name.xml" 2>&1 |
    tee "build/$preset/$name.log" || true
  results+=("$preset/$name")
  local failed
  failed=$(grep -c 'status="fail"' "build/$preset/$name.xml" || true)
  if [ "$again" = 1 ] && [ "${failed:-0}" -gt 0 ] && [ "$failed" -le 5 ]; then
    step "Again, alone: $name: $failed that failed"
    ctest --test-dir "build/$preset" --rerun-failed -j 1 --output-on-failure \
      --test-output-size-passed 1000000 --output-junit "$name-again.xml" || true
  fi
}

# build PRESET TARGET...
build() {
  local preset=$1
  shift
  step "Build: $preset: $*, $jobs jobs"
  cmake --build "build/$preset" -j "$jobs" --target "$@" || fail "the $preset build broke"
}

# Tests wait more than they compute, so what the next ones need is built behind them, as the rest of
# the machine allows. One such build at a time: build_behind PRESET TARGET..., then await_build.
build_behind() {
  behind="$*"
  set -m  # A group of its own, which ends with this script.
  nice -n 19 cmake --build "build/$1" -j "$jobs" --target "${@:2}" >build/behind.log 2>&1 &
  set +m
  builder=$!
}
builder=
trap '[ -z "$builder" ] || kill -- "-$builder" 2>/dev/null || true' EXIT
await_build() {
  step "Build, begun behind the tests: $behind"
  wait "$builder" || { tail -n 40 build/behind.log; fail "the build of $behind broke"; }
  builder=
  tail -n 1 build/behind.log
}

wants() { [[ " ${wanted[*]} " == *" $1 "* ]]; }
wanted=(${labels[@]+"${labels[@]}"})
if [ ${#labels[@]} = 0 ]; then
  wanted=("${known[@]}" asan)
  if [ "$nightly" = 1 ]; then wanted+=(tsan); fi
fi
optimised=()  # What the optimised build runs.
for label in "${wanted[@]}"; do
  case "$label" in
    unit | asan | tsan) ;;
    *) optimised+=("$label") ;;
  esac
done

mkdir -p build
: >"$steps"
step "Packages and Rust"
deploy/install_packages.sh || fail "packages are missing"
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"

instrumented=(sim transport golden faults)
if [ "$nightly" = 1 ]; then instrumented+=(kernels); fi
if wants unit || wants asan; then
  configure debug "-DBATON_SANITIZE_ALL=$([ "$nightly" = 1 ] && echo ON || echo OFF)"
fi
if [ ${#optimised[@]} -gt 0 ]; then configure emulated; fi
if wants unit; then build debug tests-unit; fi
if [ ${#optimised[@]} -gt 0 ]; then build_behind emulated all; fi
if wants unit; then run_ctest debug unit unit; fi
if [ ${#optimised[@]} -gt 0 ]; then
  await_build
  if wants asan; then build_behind debug "${instrumented[@]/#/tests-}"; fi
  # The sanitizer build keeps to the default number of seeds: it is ten times as slow.
  if [ "$nightly" = 1 ]; then export BATON_SIM_SEEDS="${BATON_SIM_SEEDS:-100000}"; fi
  run_ctest emulated optimised "${optimised[@]}"
  unset BATON_SIM_SEEDS
elif wants asan; then
  build_behind debug "${instrumented[@]/#/tests-}"
fi
if wants asan; then
  await_build
  run_ctest debug asan "${instrumented[@]}"
fi
if wants tsan; then
  configure tsan
  build tsan tests-transport tests-cluster
  run_ctest tsan tsan transport tsan
fi
if [ "$nightly" = 1 ]; then
  step "Mutations of the kernels"
  python3 -B tests/kernels/cuda/mutations.py || fail "the tests do not see a mutation"
  step "Fuzz: ${BATON_FUZZ_MINUTES:-90} minutes"
  tests/fuzz/run.sh --minutes "${BATON_FUZZ_MINUTES:-90}" || fail "a fuzz target found something"
fi

step "Summary"
python3 tests/summary.py "$(took)" "${results[@]}"
