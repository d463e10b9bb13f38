#!/usr/bin/env bash
# Builds the simulator and runs N of its seeds from FIRST on, half of them on each of two cores.
# Usage: tests/sim/run_seeds.sh N [FIRST]
set -euo pipefail
cd "$(dirname "$0")/../.."
n=${1:?usage: tests/sim/run_seeds.sh N [FIRST]}
first=${2:-1}
test=build/emulated/tests/sim_test
cores=$(nproc)
mkdir -p build
{ cmake --preset emulated && cmake --build build/emulated -j "$cores" --target sim_test; } \
  >build/run_seeds.log 2>&1 || { tail -n 20 build/run_seeds.log; echo "FAIL: the build broke"; exit 1; }
pids=()
share=$(((n + cores - 1) / cores))
for ((i = 0; i < cores; ++i)); do
  BATON_SIM_SEEDS=$share BATON_SIM_FIRST_SEED=$((first + i * share)) \
    "$test" --gtest_filter='*EverySeed*' &
  pids+=($!)
done
failed=0
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
exit $failed
