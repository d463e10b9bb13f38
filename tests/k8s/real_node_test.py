#!/usr/bin/env python3
"""The chart on the node of real_node.sh, which starts this inside the node's namespaces: installed by
the README's lines in a namespace under Pod Security "restricted", upgraded, scaled, its workers
killed and its Secrets renewed under load through the Service, and uninstalled.

Usage: real_node_test.py PROGRAMS FOLDER
"""
import contextlib
import hashlib
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

from load import Load, known_answers
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))
from running_cluster import RunningCluster  # noqa: E402

CHART = pathlib.Path(__file__).resolve().parents[2] / "deploy/helm/baton"
NAMESPACE, ROLES = "default", ("router", "prefill", "decode")
PROGRAMS, FOLDER = None, None
# The node is small: requests of CPU that leave room for what a rolling upgrade adds.
VALUES = [f"{role}.resources.requests.cpu=50m" for role in ROLES]
VALUES += ["apiKeys.existingSecret=baton-keys", "tls.mode=existingSecret"]
# So that a long answer takes about a minute.
VALUES += ["decode.resources.limits.cpu=100m"]
LONG_TOKENS, SHORT_TOKENS = 1900, 16
PROMPTS = ["In the beginning", "The LORD is my shepherd;", "And it came to pass", "Blessed are they",
           "Now these are the names", "Hear, O Israel:"]


def run(*command, **more):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          timeout=600, **more)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def kubectl(*arguments, **more):
    return run("kubectl", "-n", NAMESPACE, *arguments, **more)


def objects(kind, *arguments):
    return json.loads(kubectl("get", kind, "-o", "json", *arguments))["items"]


def pods(*roles):
    return objects("pods", "-l", "app.kubernetes.io/instance=baton,app.kubernetes.io/component in "
                   f"({','.join(roles or ROLES)})")


def helm(*arguments):
    values = [word for value in VALUES for word in ("--set", value)]
    return run("helm", *arguments, "-n", NAMESPACE,
               *(values if arguments[0] in ("install", "upgrade") else []))


def wait_until(what, is_so, seconds):
    begin = time.monotonic()
    while not is_so():
        if time.monotonic() - begin > seconds:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.5)
    return time.monotonic() - begin


def say(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def process_of(pod):
    """The process of the pod's only container, by its runtime."""
    name = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    listed = run("ctr", "-a", "/run/containerd.sock", "-n", "k8s.io", "tasks", "ls")
    return int(re.search(rf"^{name}\s+(\d+)", listed, flags=re.M)[1])


def metric(pod, name):
    """The values of a series of a pod."""
    with urllib.request.urlopen(f"http://{pod['status']['podIP']}:9090/metrics", timeout=5) as reply:
        return [float(line.rsplit(" ", 1)[1]) for line in reply.read().decode().splitlines()
                if re.match(rf"{name}[ {{]", line)]


def put_secret(name, *sources):
    made = kubectl("create", "secret", "generic", name, *sources, "--dry-run=client", "-o", "yaml")
    kubectl("apply", "-f", "-", input=made)


def put_certificates():
    for role in ROLES:
        put_secret(f"baton-{role}-tls", *(f"--from-file={FOLDER}/certs/{role}/{file}"
                                          for file in ("tls.key", "tls.crt", "ca.crt")))


def put_keys(client_key, *keys):
    lines = "\n".join(f"demo{i or ''} {hashlib.sha256(key.encode()).hexdigest()}"
                      for i, key in enumerate(keys))
    put_secret("baton-keys", f"--from-literal=client-key={client_key}", f"--from-literal=keys={lines}")


def roll_out():
    for role in ROLES:
        kubectl("rollout", "status", f"deployment/baton-{role}", "--timeout=400s")
    wait_until("what was replaced is gone", lambda: not any(
        "deletionTimestamp" in pod["metadata"] for pod in pods()), 600)


def answers_to(address, key):
    """The HTTP status of a request to one router."""
    request = urllib.request.Request(f"http://{address}:8000/v1/models",
                                     headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=5) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


class RealNodeTest(unittest.TestCase):
    """One story: each step stands on the one before it."""

    def test_the_chart_from_install_to_uninstall(self):
        kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
        wait_until("account", lambda: objects("serviceaccounts"), 60)
        before = self.everything()
        self.key = secrets.token_hex(32)
        self.install()
        self.check_confinement()
        self.check_start()
        say(helm("test", "baton", "--logs").strip().splitlines()[-1])
        self.know_answers()
        with Load(self.url, self.key, self.answers, num_long=6, num_short=3) as load:
            with self.step(load, "rolling upgrade of all roles"):
                old = {pod["metadata"]["name"] for pod in pods()}
                self.upgrade(*(f"{role}.podAnnotations.turn=second" for role in ROLES))
                self.assertFalse(old & {pod["metadata"]["name"] for pod in pods()})
            # Routers give up 2 s after they have lost the last pair: what fails then is told, not judged.
            with self.step(load, "kill -9 of the only decode worker"):
                load.outage = True
                self.kill("decode")
                wait_until("first completion", self.completes, 60)
                load.outage = False
            with self.step(load, "scaled up, 2 and 2 workers"):
                self.upgrade("prefill.replicas=2", "decode.replicas=2")
            for role in ("decode", "prefill"):
                with self.step(load, f"kill -9 of a {role} worker"):
                    self.kill(role)
            with self.step(load, "Secrets of the certificates renewed"):
                self.renew_certificates()
            with self.step(load, "API key replaced"):
                self.replace_key(load)
            with self.step(load, "scaled down, 1 and 1 worker"):
                self.upgrade("prefill.replicas=1", "decode.replicas=1")
        self.report(load)
        self.check_audit()
        self.uninstall(before)
        self.assertEqual(load.failed, [])
        self.assertEqual(load.changed, [])

    def install(self):
        shutil.rmtree(FOLDER / "certs", ignore_errors=True)
        run(PROGRAMS / "baton", "certs", "init", cwd=FOLDER)
        run(PROGRAMS / "baton", "certs", "issue", cwd=FOLDER)
        put_certificates()
        put_keys(self.key, self.key)
        begin = time.monotonic()
        helm("install", "baton", CHART)
        address = kubectl("get", "service", "baton-router", "-o", "jsonpath={.spec.clusterIP}")
        self.url = f"http://{address}:8000/v1"
        wait_until("first completion", self.completes, 180)
        say(f"helm install to first completion: {time.monotonic() - begin:.1f} s; "
            f"image: {int((FOLDER / 'image-bytes').read_text()) / 1e6:.1f} MB of files")
        roll_out()
        say(f"helm install until all pods are available: {time.monotonic() - begin:.1f} s")

    def completes(self):
        request = urllib.request.Request(
            f"{self.url}/completions", json.dumps({
                "model": "tiny-kjv", "prompt": PROMPTS[0], "max_tokens": 8}).encode(),
            {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=20) as reply:
                return bool(json.load(reply)["choices"][0]["text"])
        except OSError:
            return False

    def check_confinement(self):
        """What the kernel says of each container's process."""
        for pod in pods():
            process = pathlib.Path("/proc", str(process_of(pod)))
            status = dict(re.findall(r"^(\w+):\s*(.*)$", (process / "status").read_text(), flags=re.M))
            with self.subTest(pod["metadata"]["name"]):
                self.assertEqual(status["Uid"].split(), ["65532"] * 4)
                self.assertEqual(status["Gid"].split(), ["65532"] * 4)
                for sort in ("CapEff", "CapPrm", "CapBnd"):
                    self.assertEqual(int(status[sort], 16), 0, sort)
                self.assertEqual((status["NoNewPrivs"], status["Seccomp"]), ("1", "2"))
                root, = [line.split() for line in (process / "mountinfo").read_text().splitlines()
                         if line.split()[4] == "/"]
                self.assertIn("ro", root[5].split(","))

    def check_start(self):
        """What a container of the image takes from its runtime's call to its end, without a model."""
        name, = {pod["spec"]["containers"][0]["image"] for pod in pods()}
        begin = time.monotonic()
        run("ctr", "-a", "/run/containerd.sock", "-n", "k8s.io", "run", "--rm", "--read-only",
            "--cgroup", "/baton-k8s/start", f"docker.io/library/{name}", "start",
            "/usr/bin/baton-decode", "--help")
        say(f"a container from start to end of baton-decode --help: {time.monotonic() - begin:.2f} s")

    def know_answers(self):
        """From a cluster without Kubernetes."""
        with RunningCluster(PROGRAMS / "baton", "real-node") as cluster:
            self.answers = known_answers(cluster.url + "/v1", "-", PROMPTS, LONG_TOKENS, SHORT_TOKENS)
        self.assertEqual({one[1][1] for kind in self.answers.values() for one in kind.values()},
                         {"length"})

    @contextlib.contextmanager
    def step(self, load, what):
        answers, begin = load.count(), time.monotonic()
        wait_until("some answers end", lambda: load.count() > answers + 3 or load.failed, 300)
        failed = len(load.failed)
        yield
        ended = load.count()
        wait_until("some answers end", lambda: load.count() > ended + 3 or load.failed, 300)
        say(f"{what}: {time.monotonic() - begin:.0f} s, {load.count() - answers} answers, "
            f"{len(load.failed) - failed} failed, {len(load.changed)} changed so far")

    def upgrade(self, *values):
        VALUES.extend(values)
        helm("upgrade", "baton", CHART)
        roll_out()

    def kill(self, role):
        """SIGKILL to a worker's process; until kubelet has started it again and it is ready. It
        starts one at once the first time, then after 10 s, 20 s and so on."""
        count, name, pod = min((pod["status"]["containerStatuses"][0]["restartCount"],
                                pod["metadata"]["name"], pod) for pod in pods(role))
        os.kill(process_of(pod), signal.SIGKILL)

        def is_back():
            container = json.loads(kubectl("get", "pod", name, "-o", "json"))
            container = container["status"]["containerStatuses"][0]
            return container["restartCount"] > count and container["ready"]
        say(f"{name} was ready again after {wait_until('restart', is_back, 180):.1f} s")

    def renew_certificates(self):
        """Every server takes the new ones without a restart."""
        servers = pods()
        old = {pod["metadata"]["name"]: metric(pod, "baton_tls_not_after_seconds") for pod in servers}
        time.sleep(1.1)  # The ends of certificates are whole seconds.
        run(PROGRAMS / "baton", "certs", "renew", "--all", cwd=FOLDER)
        put_certificates()
        took = wait_until("all servers have the new certificates", lambda: all(
            metric(pod, "baton_tls_not_after_seconds") != old[pod["metadata"]["name"]]
            for pod in servers), 300)
        for pod in servers:
            self.assertEqual(sum(metric(pod, "baton_tls_refused_total")), 0)
        say(f"all servers had the new certificates after {took:.0f} s")

    def replace_key(self, load):
        old, new = self.key, secrets.token_hex(32)
        routers = [pod["status"]["podIP"] for pod in pods("router")]
        put_keys(new, old, new)
        wait_until("both keys count", lambda: all(answers_to(one, new) == 200 for one in routers), 300)
        load.key = self.key = new
        # Streams of the old key that began before go on to their end.
        wait_until("the old key is not shown any more", lambda: not load.shows(old), 300)
        put_keys(new, new)
        wait_until("the old key is refused", lambda: all(
            answers_to(one, old) == 401 for one in routers), 300)

    def check_audit(self):
        address = pods("router")[0]["status"]["podIP"]
        said = run(PROGRAMS / "baton", "audit", "--router", f"{address}:7000",
                   "--tls-dir", FOLDER / "certs/admin")
        say("audit: " + said.strip().splitlines()[-1])

    def report(self, load):
        for kind, seconds in load.seconds.items():
            seconds = sorted(seconds)
            say(f"{kind} answers: {len(seconds)}, seconds p50 {seconds[len(seconds) // 2]:.1f}, "
                f"max {seconds[-1]:.1f}")
        resets = [one for one in load.failed if "Connection" in one[3] or "Protocol" in one[4]]
        begun = sum(text > 0 for _, _, text, *_ in load.in_outage)
        say(f"failed while no decode worker was there: {len(load.in_outage)}, of these begun: {begun}")
        say(f"requests {load.count() + len(load.failed)}, failed {len(load.failed)} (of these resets "
            f"{len(resets)}), changed {len(load.changed)}; "
            f"longest pause within an answer {load.longest_pause:.1f} s")
        for one in load.failed + load.changed:
            say(str(one))

    def everything(self):
        """(kind, name) of all that is in the namespace, but for what tells of it."""
        kinds = kubectl("api-resources", "--namespaced", "--verbs=list", "-o", "name").split()
        kinds = [kind for kind in kinds if not kind.startswith("events")]
        return set(kubectl("get", ",".join(kinds), "-o", "name", "--ignore-not-found").split())

    def uninstall(self, before):
        helm("uninstall", "baton")
        for role in ROLES:
            kubectl("delete", "secret", f"baton-{role}-tls")
        kubectl("delete", "secret", "baton-keys")
        wait_until("nothing is left", lambda: self.everything() == before, 180)
        say("uninstalled: nothing is left")


if __name__ == "__main__":
    FOLDER = pathlib.Path(sys.argv.pop())
    PROGRAMS = pathlib.Path(sys.argv.pop())
    unittest.main(verbosity=0)
