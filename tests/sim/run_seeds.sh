#!/usr/bin/env bash
# Runs N simulator seeds from FIRST on, half of them on each core, with the release build.
# Usage: tests/sim/run_seeds.sh N [FIRST] [BUILD_DIR]
set -euo pipefail
cd "$(dirname "$0")/../.."
n=${1:?usage: tests/sim/run_seeds.sh N [FIRST] [BUILD_DIR]}
first=${2:-1}
test=${3:-build/release}/tests/sim_test
cores=$(nproc)
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
