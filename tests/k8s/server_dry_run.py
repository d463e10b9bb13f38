#!/usr/bin/env python3
"""Applies the chart with every set of values to the API server of $KUBECONFIG, as a dry run in
namespaces under Pod Security "restricted", which are deleted again. Needs kubectl and PyYAML; Helm
from PATH or from the cache of render.sh. Custom resources that the server does not know are left out,
and named.

Usage: server_dry_run.py      exit code: 0 all was taken that should be, 1 something was not
"""
import os
import pathlib
import shutil
import subprocess
import sys

import yaml

HERE = pathlib.Path(__file__).resolve().parent
CHART = HERE.parents[1] / "deploy/helm/baton"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
HELM = shutil.which("helm") or CACHE / "baton/k8s/bin/helm"
# What these ask for "restricted" refuses: the pods of these roles.
REFUSED = {"gpu": {"prefill"}, "host_path": {"router", "prefill", "decode"},
           "host_network": {"router", "prefill", "decode"}}


def kubectl(*arguments, objects=None):
    return subprocess.run(["kubectl", *arguments], capture_output=True, text=True, timeout=300,
                          input=None if objects is None else yaml.dump_all(objects))


def apply(namespace, objects):
    """How many were taken, and what was said."""
    done = kubectl("-n", namespace, "apply", "--dry-run=server", "--validate=strict", "-f", "-",
                   objects=objects)
    return done.stdout.count("(server dry run)"), done.stderr


def pod_of(deployment):
    """The pod as its ReplicaSet would ask for it; classes are the cluster's own."""
    template = deployment["spec"]["template"]
    spec = {key: value for key, value in template["spec"].items()
            if key not in ("runtimeClassName", "priorityClassName")}
    return {"apiVersion": "v1", "kind": "Pod", "spec": spec,
            "metadata": {**template["metadata"], "name": deployment["metadata"]["name"]}}


def check(name, namespace, versions):
    """Whether the server takes this set; prints what it does not."""
    rendered = subprocess.run([HELM, "template", "baton", CHART, "-n", namespace, "-f",
                               HERE / "values" / f"{name}.yaml"], capture_output=True, text=True,
                              check=True, timeout=60).stdout
    objects = [one for one in yaml.safe_load_all(rendered) if one]
    known = [one for one in objects if one["apiVersion"] in versions]
    unknown = {one["kind"] for one in objects} - {one["kind"] for one in known}
    # Pods are admitted only where their account is; no controller may have made `default` yet.
    accounts = [one["metadata"]["name"] for one in known if one["kind"] == "ServiceAccount"]
    for account in [*accounts, "default"]:
        kubectl("-n", namespace, "create", "serviceaccount", account)
    taken, said = apply(namespace, known)
    good = taken == len(known)
    for deployment in [one for one in known if one["kind"] == "Deployment"]:
        role = deployment["metadata"]["name"].removeprefix("baton-")
        admitted, why = apply(namespace, [pod_of(deployment)])
        if bool(admitted) == (role in REFUSED.get(name, set())):
            good = False
            said += f"pod of {role}: {why or 'is admitted under restricted'}"
    left_out = f"; without {', '.join(sorted(unknown))}" if unknown else ""
    print(f"{name}: {taken} of {len(known)} objects{left_out}")
    if not good:
        print(said)
    return good


def main():
    versions = set(kubectl("api-versions").stdout.split())
    if "apps/v1" not in versions:
        sys.exit("no API server answers: set KUBECONFIG")
    bad = 0
    for path in sorted((HERE / "values").glob("*.yaml")):
        namespace = "baton-dry-" + path.stem.replace("_", "-")
        kubectl("create", "namespace", namespace)
        kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
        try:
            bad += not check(path.stem, namespace, versions)
        finally:
            kubectl("delete", "namespace", namespace, "--wait=false")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
