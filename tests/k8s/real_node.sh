#!/usr/bin/env bash
# The chart on a real control plane, kubelet and containers, under load: needs root and Debian's
# containerd, runc, containernetworking-plugins, iptables and conntrack.
#   tests/k8s/real_node.sh PROGRAMS PYTHON           up, test, down
#   tests/k8s/real_node.sh up|test|down|shell PROGRAMS PYTHON     one of these
# PROGRAMS has baton, baton-router, baton-prefill and baton-decode; PYTHON has openai (the tests'
# client-tools). Everything lies in build/real-node, and runs in namespaces of its own.
# Exit code: 0 good, 1 not, 2 it cannot be tried here, and the last line says why.
set -euo pipefail
cd "$(dirname "$0")/../.."
what=all
case "${1:-}" in up | test | down | shell) what=$1; shift ;; esac
[ $# = 2 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$PWD/tests/k8s folder=$PWD/build/real-node

cannot() { echo "real_node.sh: $*" >&2; exit 2; }

check() {
  [ "$(id -u)" = 0 ] || cannot "namespaces, mounts and containers need root"
  for program in containerd runc iptables conntrack unshare nsenter openssl cc; do
    PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null || cannot "$program is not installed"
  done
  [ -x /usr/lib/cni/bridge ] || cannot "containernetworking-plugins is not installed"
}

# The first process of the namespaces, as seen from here.
first() {
  local outer
  outer=$(cat "$folder/pid" 2>/dev/null) && cat "/proc/$outer/task/$outer/children" 2>/dev/null
}

inside() {
  env -u http_proxy -u https_proxy -u HTTP_PROXY -u HTTPS_PROXY PATH="$tools:$PATH:/usr/sbin:/sbin" \
    KUBECONFIG="$folder/pki/admin.kubeconfig" HELM_CACHE_HOME="$folder/helm" HELM_CONFIG_HOME="$folder/helm" \
    HELM_DATA_HOME="$folder/helm" \
    nsenter --target "$(first | tr -d ' ')" --mount --net --pid --wd="$PWD" "$@"
}

# What kubelet sets of the machine's kernel, for everybody.
settings=(vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys
  kernel.keys.root_maxbytes)
kernel() { PATH=$PATH:/usr/sbin:/sbin sysctl "$@"; }

down() {
  local outer=
  outer=$(cat "$folder/pid" 2>/dev/null) || true
  if [ -n "$outer" ] && [ -d "/proc/$outer" ]; then
    kill -KILL "$outer"  # Its child is killed with it, and with that all of the PID namespace.
    while [ -d "/proc/$outer" ]; do sleep 0.1; done
  fi
  for _ in $(seq 50); do
    for controller in /sys/fs/cgroup/*/; do
      [ ! -d "$controller/baton-k8s" ] || find "$controller/baton-k8s" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
    compgen -G '/sys/fs/cgroup/*/baton-k8s' >/dev/null || break
    sleep 0.1
  done
  [ ! -s "$folder/sysctl" ] || kernel -q -p "$folder/sysctl"
  rm -rf "$folder/sysctl" "$folder/containerd" "$folder/etcd" "$folder/kubelet" "$folder/pki" "$folder/pid" "$folder/ready"
}

up() {
  down
  rm -rf "$folder" && mkdir -p "$folder"
  kernel "${settings[@]}" >"$folder/sysctl"
  unshare --mount --net --pid --fork --kill-child --mount-proc \
    python3 -B "$here/node/node.py" "$folder" "$tools" "$programs" >"$folder/node.log" 2>&1 &
  echo $! >"$folder/pid"
  disown  # Its end is no news.
  until [ -e "$folder/ready" ]; do
    [ -d "/proc/$(cat "$folder/pid")" ] || { tail -n 5 "$folder/node.log" >&2; return 1; }
    sleep 0.2
  done
}

check
programs=$(realpath "$1") python=$(realpath -s "$2")
tools=$("$here/node/tools.sh" | tail -n 1)
case $what in
  up) up || { down; exit 1; } ;;
  down) down ;;
  test) inside "$python" -B "$here/real_node_test.py" "$programs" "$folder" ;;
  shell) inside bash ;;
  all)
    trap down EXIT
    up
    inside "$python" -B "$here/real_node_test.py" "$programs" "$folder"
    ;;
esac
