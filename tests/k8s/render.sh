#!/usr/bin/env bash
# Renders the chart deploy/helm/baton with Helm.
#   tests/k8s/render.sh           renders every set of values/, and checks each object against the
#                                 schemas of Kubernetes and of the custom resources; the renderings
#                                 that are committed must be those
#   tests/k8s/render.sh --write   renews the renderings that are committed
# Helm, kubeconform and the schemas come from the Go module proxy once, into ~/.cache/baton/k8s.
# Exit code: 0 good, 1 not, 2 it cannot be tried here, and the last line says why.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=tests/k8s chart=deploy/helm/baton
committed=(autoscaled demo everything existing_secret exposed gpu)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/baton/k8s
export PATH="$PATH:/usr/local/go/bin"
kubernetes=k8s.io/kubernetes@v1.36.3
resources=(github.com/cert-manager/cert-manager@v1.21.2 sigs.k8s.io/gateway-api@v1.6.3
  github.com/prometheus-operator/prometheus-operator@v0.85.0 github.com/kedacore/keda/v2@v2.21.0)

cannot() { echo "render.sh: $*" >&2; exit 2; }

# tool NAME MODULE: from PATH, or built into the cache.
tool() {
  if command -v "$1"; then return; fi
  if [ ! -x "$cache/bin/$1" ]; then
    command -v go >/dev/null || cannot "$1 is not installed, and no Go that could build it"
    GOBIN="$cache/bin" CGO_ENABLED=0 go install -trimpath -ldflags "-s -w" "$2" >&2 ||
      cannot "$1 cannot be built: no Go module proxy?"
  fi
  echo "$cache/bin/$1"
}

# folder MODULE: where its files are.
folder() {
  command -v go >/dev/null || cannot "no Go that could fetch the schemas of $1"
  go mod download -json "$1" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p'
}

# A Python that reads YAML.
python() {
  if python3 -c 'import yaml' 2>/dev/null; then echo python3; return; fi
  if [ ! -x "$cache/venv/bin/python" ]; then
    python3 -m venv "$cache/venv" && "$cache/venv/bin/pip" install --quiet PyYAML==6.0.3 >&2 ||
      { rm -rf "$cache/venv"; cannot "PyYAML is not installed, and cannot be"; }
  fi
  echo "$cache/venv/bin/python"
}

make_schemas() {
  local from to=$work/schemas python
  mkdir "$to"
  python=$(python)
  from=$(folder "$kubernetes")
  [ -d "$from" ] || cannot "$kubernetes cannot be fetched: no Go module proxy?"
  "$python" "$here/schemas.py" "$to" "$from"/api/openapi-spec/v3/*.json
  for module in "${resources[@]}"; do
    from=$(folder "$module")
    [ -d "$from" ] || cannot "$module cannot be fetched: no Go module proxy?"
    mapfile -t files < <(grep -rlE '^kind: CustomResourceDefinition' --include=*.yaml "$from" |
      grep -E '/(deploy/crds|config/crd/standard|config/crd/bases|prometheus-operator-crd)/')
    "$python" "$here/schemas.py" "$to" "${files[@]}"
  done
  cp -r "$to" "$cache/$schemas.new" && mv "$cache/$schemas.new" "$cache/$schemas"
}

mkdir -p "$cache/bin"
helm=$(tool helm helm.sh/helm/v4/cmd/helm@v4.3.1)
render() {
  "$helm" template baton "$chart" --namespace llm --kube-version 1.30.0 --values "$1" >"$2"
}

if [ "${1:-}" = --write ]; then
  mkdir -p "$here/renderings"
  for name in "${committed[@]}"; do
    render "$here/values/$name.yaml" "$here/renderings/$name.yaml"
  done
  python3 "$here/chart_hash.py" >"$here/renderings/HASH"
  exit
fi
[ $# = 0 ] || { echo "render.sh: unknown option $1" >&2; exit 2; }

kubeconform=$(tool kubeconform github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0)
schemas=schemas-$(printf '%s\n' "$kubernetes" "${resources[@]}" "$(cat "$here/schemas.py")" |
  sha256sum | cut -c1-12)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ -d "$cache/$schemas" ] || make_schemas
mkdir "$work/renderings"
failed=0
for values in "$here"/values/*.yaml; do
  name=$(basename "$values" .yaml)
  render "$values" "$work/renderings/$name.yaml" || { echo "$name: is not rendered"; failed=1; }
done
for name in "${committed[@]}"; do
  diff -u "$here/renderings/$name.yaml" "$work/renderings/$name.yaml" ||
    { echo "$name: the committed rendering is another; tests/k8s/render.sh --write"; failed=1; }
done
# Releases and namespaces of names that YAML would take for something else, and the longest.
for name in 123/2024 true/null 1e3/0x10 a.b/1.5 "$(printf 'x%.0s' {1..53})/$(printf 'n%.0s' {1..63})"; do
  "$helm" template "${name%/*}" "$chart" --namespace "${name#*/}" --kube-version 1.30.0 \
    --values "$here/values/service_monitor.yaml" >"$work/renderings/release-${name%/*}.yaml" || failed=1
done
digest=$(printf 'a%.0s' {1..64})
# What the schema cannot say: the templates fail, and name the value.
while IFS='|' read -r values message; do
  "$helm" template baton "$chart" --set "apiKeys.existingSecret=k,${values/@/$digest}" >"$work/out" 2>&1 &&
    { echo "rendered: $values"; failed=1; }
  grep -qF "$message" "$work/out" || { echo "$values: not '$message' but"; cat "$work/out"; failed=1; }
done <<'EOF'
decode.strategy.maxSurge=0|decode.strategy: maxUnavailable and maxSurge are both 0
decode.accelerator.type=nvidia,decode.strategy.maxUnavailable=0%|decode.strategy: maxUnavailable
router.strategy.maxSurge=0%,router.strategy.maxUnavailable=0|router.strategy: maxUnavailable
router.autoscaling.enabled=true,router.autoscaling.min=9|router.autoscaling.min: 9 is more than max
router.autoscaling.enabled=true,router.resources=null|router.resources.requests.cpu: needed
image.tag=sha256:@,decode.accelerator.type=nvidia|image.gpuTag: needed
decode.extraArgs={--drain-timeout-s=600}|decode.extraArgs: --drain-timeout-s=600 does not end within
decode.extraVolumeMounts[0].name=x,decode.extraVolumeMounts[0].mountPath=/x|decode.extraVolumeMounts: no volume is named x
decode.accelerator.type=nvidia,decode.resources.limits.nvidia\.com/gpu=2|decode.resources: nvidia.com/gpu is not
EOF
"$kubeconform" -strict -summary \
  -schema-location "$cache/$schemas/{{.ResourceKind}}{{.KindSuffix}}.json" "$work"/renderings/*.yaml || failed=1
echo "$(ls "$work/renderings" | wc -l) sets of values and names rendered"
exit $failed
