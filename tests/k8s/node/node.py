#!/usr/bin/env python3
"""A Kubernetes control plane and one node, of real programs. It must be process 1 of its own PID,
network and mount namespaces (../real_node.sh makes them): the node's network is a bridge without a
way out, and all that it starts ends with it.

Usage: node.py FOLDER TOOLS PROGRAMS    starts it; FOLDER/ready says when it takes pods, and
                                        FOLDER/LOG.log what each program said
"""
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.request

import image

NODE_IP, PODS, SERVICES = "10.88.0.1", "10.88.0.0/24", "10.96.0.0/16"
BRIDGE, API = "baton0", "https://127.0.0.1:6443"
CGROUP = "baton-k8s"
IMAGE = "docker.io/library/baton:"
SUBJECTS = {"apiserver": "/CN=kube-apiserver", "admin": "/O=system:masters/CN=admin",
            "manager": "/CN=system:kube-controller-manager", "scheduler": "/CN=system:kube-scheduler",
            "proxy": "/CN=system:kube-proxy", "node": "/O=system:nodes/CN=system:node:node"}


def run(*command, **more):
    return subprocess.run([str(word) for word in command], check=True, **more)


class Node:
    def __init__(self, folder, tools, programs):
        self.folder, self.tools, self.programs = folder, tools, programs
        self.pki = folder / "pki"
        self.running = {}

    def start(self, name, *command):
        log = (self.folder / f"{name}.log").open("wb")
        command = [str(word) for word in command]
        self.running[name] = subprocess.Popen(command, stdout=log, stderr=log,
                                              stdin=subprocess.DEVNULL)

    def wait(self, what, is_there, seconds=180):
        until = time.monotonic() + seconds
        while not is_there():
            for name, process in self.running.items():
                if process.poll() is not None:
                    sys.exit(f"node.py: {name} has ended: {self.folder}/{name}.log")
            if time.monotonic() > until:
                sys.exit(f"node.py: {what} is not there after {seconds} s")
            time.sleep(0.2)
        print(f"node.py: {what}", flush=True)

    def kubectl(self, *arguments, **more):
        return subprocess.run([str(self.tools / "kubectl"), "--kubeconfig",
                               str(self.pki / "admin.kubeconfig"), *arguments],
                              capture_output=True, text=True, **more)

    def make_network(self):
        for hidden in ("/run", "/var/lib", "/var/log"):
            run("mount", "-t", "tmpfs", "tmpfs", hidden)
        for command in ("link set lo up", f"link add {BRIDGE} type bridge",
                        f"addr add {NODE_IP}/24 dev {BRIDGE}", f"link set {BRIDGE} up",
                        # Services have addresses only in kube-proxy's rules; nobody else answers.
                        f"route add {SERVICES} dev {BRIDGE}"):
            run("ip", *command.split())
        for switch in ("ipv4/ip_forward", "bridge/bridge-nf-call-iptables"):
            pathlib.Path("/proc/sys/net", switch).write_text("1")

    def make_certificates(self):
        self.pki.mkdir()
        quiet = {"cwd": self.pki, "stderr": subprocess.DEVNULL}
        run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
            "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt", **quiet)
        run("openssl", "genrsa", "-out", "accounts.key", "2048", **quiet)
        run("openssl", "rsa", "-in", "accounts.key", "-pubout", "-out", "accounts.pub", **quiet)
        names = f"IP:127.0.0.1,IP:{NODE_IP},IP:10.96.0.1,DNS:node,DNS:kubernetes.default.svc"
        (self.pki / "extensions").write_text(
            f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n")
        for name, subject in SUBJECTS.items():
            run("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", subject,
                "-keyout", f"{name}.key", "-out", f"{name}.csr", **quiet)
            run("openssl", "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
                "-CAcreateserial", "-days", "2", "-out", f"{name}.crt",
                "-extfile", "extensions", **quiet)
            self.write_kubeconfig(name)

    def write_kubeconfig(self, name):
        cluster = {"server": API, "certificate-authority": str(self.pki / "ca.crt")}
        user = {"client-certificate": str(self.pki / f"{name}.crt"),
                "client-key": str(self.pki / f"{name}.key")}
        (self.pki / f"{name}.kubeconfig").write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "node",
            "clusters": [{"name": "node", "cluster": cluster}],
            "users": [{"name": "user", "user": user}],
            "contexts": [{"name": "node", "context": {"cluster": "node", "user": "user"}}]}))

    def start_control_plane(self):
        pki = self.pki
        self.start("etcd", self.tools / "etcd", "--data-dir", self.folder / "etcd",
                   "--unsafe-no-fsync", "--log-level", "warn")
        self.start("apiserver", self.tools / "kube-apiserver",
                   "--etcd-servers", "http://127.0.0.1:2379", "--bind-address", "127.0.0.1",
                   "--advertise-address", NODE_IP, "--endpoint-reconciler-type", "none",
                   "--kubelet-preferred-address-types", "InternalIP",
                   "--tls-cert-file", pki / "apiserver.crt",
                   "--tls-private-key-file", pki / "apiserver.key",
                   "--client-ca-file", pki / "ca.crt",
                   "--kubelet-client-certificate", pki / "admin.crt",
                   "--kubelet-client-key", pki / "admin.key",
                   "--kubelet-certificate-authority", pki / "ca.crt",
                   "--service-account-issuer", "https://kubernetes.default.svc",
                   "--service-account-key-file", pki / "accounts.pub",
                   "--service-account-signing-key-file", pki / "accounts.key",
                   "--service-cluster-ip-range", SERVICES,
                   "--authorization-mode", "Node,RBAC",
                   "--enable-admission-plugins", "NodeRestriction")
        self.wait("API server", lambda: self.kubectl("get", "--raw", "/readyz").stdout == "ok")
        self.start("manager", self.tools / "kube-controller-manager",
                   "--kubeconfig", pki / "manager.kubeconfig", "--root-ca-file", pki / "ca.crt",
                   "--service-account-private-key-file", pki / "accounts.key",
                   "--use-service-account-credentials", "--bind-address", "127.0.0.1",
                   "--leader-elect=false")
        self.start("scheduler", self.tools / "kube-scheduler",
                   "--kubeconfig", pki / "scheduler.kubeconfig", "--bind-address", "127.0.0.1",
                   "--leader-elect=false")

    def start_containerd(self):
        (self.folder / "cni").mkdir()
        (self.folder / "cni/10-bridge.conflist").write_text(json.dumps({
            "cniVersion": "0.4.0", "name": "pods", "plugins": [{
                "type": "bridge", "bridge": BRIDGE, "isGateway": True, "hairpinMode": True,
                "ipam": {"type": "host-local", "ranges": [[{"subnet": PODS}]],
                         "routes": [{"dst": "0.0.0.0/0"}]}}]}))
        # Without CAP_SYS_RESOURCE, as in a container, nothing may lower its OOM score.
        (self.folder / "containerd.toml").write_text(f"""version = 2
root = "{self.folder}/containerd"
state = "/run/containerd-state"
[grpc]
  address = "/run/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "localhost/pause:1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{self.folder}/cni"
""")
        self.start("containerd", "containerd", "-c", self.folder / "containerd.toml")
        self.wait("containerd", lambda: pathlib.Path("/run/containerd.sock").exists())

    def import_images(self):
        chart = (pathlib.Path(__file__).resolve().parents[3] / "deploy/helm/baton/Chart.yaml").read_text()
        version = [line.split()[1].strip('"') for line in chart.splitlines()
                   if line.startswith("appVersion:")]
        image.pause_image("localhost/pause:1", self.folder / "pause.tar")
        size = image.baton_image(self.programs, IMAGE + version[0], self.folder / "baton.tar")
        for name in ("pause", "baton"):
            run("ctr", "-a", "/run/containerd.sock", "-n", "k8s.io", "images", "import",
                self.folder / f"{name}.tar", stdout=subprocess.DEVNULL)
            (self.folder / f"{name}.tar").unlink()
        (self.folder / "image-bytes").write_text(str(size))

    def start_kubelet(self):
        for controller in pathlib.Path("/sys/fs/cgroup").iterdir():
            (controller / CGROUP).mkdir(exist_ok=True)
        (self.folder / "kubelet.json").write_text(json.dumps({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "address": NODE_IP,
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False},
                               "x509": {"clientCAFile": str(self.pki / "ca.crt")}},
            "authorization": {"mode": "AlwaysAllow"},
            "tlsCertFile": str(self.pki / "node.crt"),
            "tlsPrivateKeyFile": str(self.pki / "node.key"),
            "cgroupDriver": "cgroupfs", "cgroupRoot": "/" + CGROUP, "failCgroupV1": False,
            "failSwapOn": False, "oomScoreAdj": 0, "enforceNodeAllocatable": [],
            "containerRuntimeEndpoint": "unix:///run/containerd.sock",
            "clusterDNS": [NODE_IP], "clusterDomain": "cluster.local", "resolvConf": "",
            "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
            "evictionHard": {"imagefs.available": "1%", "nodefs.available": "1%",
                             "memory.available": "100Mi"}}))
        self.start("kubelet", self.tools / "kubelet", "--config", self.folder / "kubelet.json",
                   "--kubeconfig", self.pki / "node.kubeconfig", "--hostname-override", "node",
                   "--node-ip", NODE_IP, "--root-dir", self.folder / "kubelet",
                   "--cert-dir", self.folder / "kubelet-certs")

    def start_services(self):
        """What makes Services' addresses and names true."""
        self.start("proxy", self.tools / "kube-proxy", "--kubeconfig", self.pki / "proxy.kubeconfig",
                   "--hostname-override", "node", "--proxy-mode", "iptables",
                   "--cluster-cidr", PODS, "--conntrack-max-per-core", "0")
        (self.folder / "Corefile").write_text(f""". {{
  bind {NODE_IP}
  errors
  ready 127.0.0.1:8181
  kubernetes cluster.local {{
    kubeconfig {self.pki}/admin.kubeconfig
  }}
}}
""")
        self.start("coredns", self.tools / "coredns", "-conf", self.folder / "Corefile")
        self.wait("DNS", lambda: answers("http://127.0.0.1:8181/ready"))
        self.wait("kube-proxy", lambda: answers("http://127.0.0.1:10256/livez"))
        self.wait("node", lambda: "=True" in self.kubectl(
            "get", "node", "node", "-o",
            "jsonpath={range .status.conditions[?(@.type=='Ready')]}={.status}{end}").stdout)


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return reply.status == 200
    except OSError:
        return False


def main():
    if os.getpid() != 1:
        sys.exit("node.py: not process 1 of its own namespaces: start it by ../real_node.sh")
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    for proxy in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        os.environ.pop(proxy, None)
    folder, tools, programs = (pathlib.Path(one).resolve() for one in sys.argv[1:])
    node = Node(folder, tools, programs)
    node.make_network()
    node.make_certificates()
    node.start_control_plane()
    node.start_containerd()
    node.import_images()
    node.start_kubelet()
    node.start_services()
    (folder / "ready").write_text("")
    while True:  # Shims and containers whose parents have ended come here.
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(1)


if __name__ == "__main__":
    main()
