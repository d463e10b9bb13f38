#!/usr/bin/env bash
# Builds Baton and runs its tests.
#   tests/run.sh               the default set: every label below in a release build, and the unit,
#                              simulator, transport and golden tests once more under ASan + UBSan,
#                              with the faults that only that build can place
#   tests/run.sh --label L     only this label (repeatable): unit kernels golden transport sim planted
#                              tidy cluster clients bench, asan for the sanitizer build, or tsan for
#                              transport and a whole cluster under the thread sanitizer
#   tests/run.sh --nightly     the long set: more seeds, more shapes, more requests, the kernels too
#                              under ASan + UBSan, tsan, and the fuzzers (BATON_FUZZ_MINUTES, 90)
# Prints the time per label, what could not run, and PASS or FAIL in its last line.
set -euo pipefail
cd "$(dirname "$0")/.."

labels=()
nightly=0
while [ $# -gt 0 ]; do
  case "$1" in
    --label) labels+=("${2:?--label needs a name}"); shift ;;
    --nightly) nightly=1 ;;
    -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "tests/run.sh: unknown option $1; see --help" >&2; exit 2 ;;
  esac
  shift
done
known=(unit kernels golden transport sim planted tidy cluster clients bench)
for label in ${labels[@]+"${labels[@]}"}; do
  case " ${known[*]} asan tsan " in
    *" $label "*) ;;
    *) echo "tests/run.sh: unknown label $label; one of: ${known[*]} asan tsan" >&2; exit 2 ;;
  esac
done

begin=$SECONDS
took() { printf '%d:%02d' $(((SECONDS - begin) / 60)) $(((SECONDS - begin) % 60)); }
step() { printf '\n==> [%s] %s\n' "$(took)" "$*"; }
fail() { printf '\nFAIL: %s after %s\n' "$*" "$(took)"; exit 1; }
jobs=$(nproc)
export NINJA_STATUS="[%f/%t, %es] "
if [ "$nightly" = 1 ]; then
  export BATON_NIGHTLY=1
fi

configure() {
  mkdir -p build
  cmake --preset "$1" >"build/configure-$1.log" 2>&1 ||
    { tail -n 20 "build/configure-$1.log"; fail "configuring the $1 build"; }
}

# run_ctest PRESET LABEL_REGEX: runs the tests; results go to build/PRESET/ctest.{log,xml}.
run_ctest() {
  ctest --test-dir "build/$1" -L "$2" -j "$jobs" --output-on-failure --no-tests=error \
    --test-output-size-passed 1000000 --output-junit ctest.xml 2>&1 | tee "build/$1/ctest.log" || true
}

join() { local IFS='|'; echo "^($*)\$"; }
wanted=()
want_asan=0
want_tsan=0
for label in ${labels[@]+"${labels[@]}"}; do
  case "$label" in
    asan) want_asan=1 ;;
    tsan) want_tsan=1 ;;
    *) wanted+=("$label") ;;
  esac
done
if [ ${#labels[@]} = 0 ]; then
  wanted=("${known[@]}")
  want_asan=1
  want_tsan=$nightly
fi

step "Packages and Rust"
deploy/install_packages.sh || fail "packages are missing"
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"

presets=()
if [ ${#wanted[@]} -gt 0 ]; then
  step "Build: release, $jobs jobs"
  configure release
  cmake --build build/release -j "$jobs" || fail "the release build broke"
  step "Test: ${wanted[*]}"
  rm -f build/release/ctest.xml
  # The sanitizer build keeps to the default number of seeds: it is ten times as slow.
  if [ "$nightly" = 1 ]; then export BATON_SIM_SEEDS="${BATON_SIM_SEEDS:-100000}"; fi
  run_ctest release "$(join "${wanted[@]}")"
  presets+=(release)
fi
if [ "$want_asan" = 1 ]; then
  instrumented=(unit sim transport golden faults)
  if [ "$nightly" = 1 ]; then instrumented+=(kernels); fi
  step "Build: ASan + UBSan: ${instrumented[*]}, $jobs jobs"
  configure debug
  cmake --build build/debug -j "$jobs" --target "${instrumented[@]/#/tests-}" ||
    fail "the ASan build broke"
  step "Test under ASan + UBSan: ${instrumented[*]}"
  rm -f build/debug/ctest.xml
  unset BATON_SIM_SEEDS
  run_ctest debug "$(join "${instrumented[@]}")"
  presets+=(debug)
fi

if [ "$want_tsan" = 1 ]; then
  step "Build: TSan: transport cluster, $jobs jobs"
  configure tsan
  cmake --build build/tsan -j "$jobs" --target tests-transport tests-cluster ||
    fail "the TSan build broke"
  step "Test under TSan: transport cluster"
  rm -f build/tsan/ctest.xml
  run_ctest tsan "$(join transport tsan)"
  presets+=(tsan)
fi

if [ "$nightly" = 1 ]; then
  step "Fuzz: ${BATON_FUZZ_MINUTES:-90} minutes"
  tests/fuzz/run.sh --minutes "${BATON_FUZZ_MINUTES:-90}" || fail "a fuzz target found something"
fi

step "Summary"
python3 tests/summary.py "$(took)" "${presets[@]}"
