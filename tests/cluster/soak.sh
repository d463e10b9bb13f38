#!/usr/bin/env bash
# Kills, stops and cuts live workers at random under clients that know every answer; then busy
# cores, then a rolling restart. Builds what it needs; prints a table and PASS or FAIL.
#   tests/cluster/soak.sh --kills 1000 [--seed S] [--minutes M] [--saturated-s T] [--json FILE]
set -euo pipefail
cd "$(dirname "$0")/../.."
for argument in "$@"; do
  case "$argument" in
    -h | --help) sed -n '2,4s/^# \{0,1\}//p' "$0"; exit 0 ;;
  esac
done
mkdir -p build
{ cmake --preset release && cmake --build build/release -j "$(nproc)" \
  --target baton baton-prefill baton-decode baton-router; } >build/soak-build.log 2>&1 ||
  { tail -n 20 build/soak-build.log; echo "FAIL: the build broke"; exit 1; }
exec python3 -B tests/cluster/kill_soak.py --bin build/release/bin "$@"
