#!/usr/bin/env python3
"""A cluster on two machines: router and prefill worker on one, decode worker on the other, joined by
a network that is nobody else's. Mutual TLS between them, and who has no part in it is refused.

Usage: two_machines_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""
import concurrent.futures
import hashlib
import json
import pathlib
import re
import shutil
import ssl
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

import network_namespaces
from process_cluster import MODEL, START_LIMIT_S, await_true

BIN = None
KEY = "correct horse"
HTTP_PORT, GRPC_PORT, OPS_PORT, CONTROL_PORT, DATA_PORT, METRICS_PORT = 8000, 8001, 9090, 7000, 7001, 9091
ADMIN_PORT = 7002  # Router and prefill worker are one machine's.
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def ask(url, body, key):
    """On the machine it runs on: prints the status and the body of the answer as JSON."""
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, body.encode() or None, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            print(json.dumps([answer.status, answer.read().decode()]))
    except urllib.error.HTTPError as error:
        print(json.dumps([error.code, error.read().decode()]))
    except OSError as error:
        print(json.dumps([0, str(error)]))


def shake_hands(host, port, certificates, version):
    """On the machine it runs on: says hello as HTTP/2 does, over TLS of that version, or over TCP
    ("plaintext"); prints "served" if a frame comes back. "PSK": of a server that knows nothing else,
    prints how it refuses."""
    import socket
    try:
        with socket.create_connection((host, int(port)), 20) as raw:
            raw.settimeout(20)
            stream = raw
            if version != "plaintext":
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                context.set_alpn_protocols(["h2"])
                if version != "PSK":
                    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
                if certificates:
                    context.load_cert_chain(f"{certificates}/tls.crt", f"{certificates}/tls.key")
                stream = context.wrap_socket(raw)
            stream.sendall(HTTP2_PREFACE)
            print("served" if stream.recv(9) else "refused")
    except ssl.SSLError as error:
        print(error.reason if version == "PSK" else "refused")
    except OSError:
        print("refused")


def capture(device):
    """On the machine it runs on: writes all frames that pass there, until its input ends."""
    import selectors
    import socket
    frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
    frames.bind((device, 0))
    frames.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
    selector = selectors.DefaultSelector()
    selector.register(frames, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    print("captures", file=sys.stderr, flush=True)
    while True:
        ready = [key.fileobj for key, _ in selector.select()]
        if frames in ready:
            sys.stdout.buffer.write(frames.recv(1 << 17))
        elif sys.stdin in ready:
            return


class TwoMachinesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if why := network_namespaces.why_not():
            raise unittest.SkipTest(why)
        cls.addClassCleanup(cls.end)
        cls.processes = {}
        cls.machines = network_namespaces.Machines(["a", "b"])
        cls.machines.__enter__()
        cls.folder = BIN.parent / "run" / "two_machines"
        shutil.rmtree(cls.folder, ignore_errors=True)
        cls.folder.mkdir(parents=True)
        for certs in ("certs", "foreign"):
            cls.certs("init", "--dir", cls.folder / certs)
            cls.certs("issue", "--dir", cls.folder / certs)
        (cls.folder / "keys").write_text(f"tenant {hashlib.sha256(KEY.encode()).hexdigest()}\n")
        cls.start("prefill", "a")
        cls.start("decode", "b")
        cls.start("router", "a")
        await_true(cls.is_ready, START_LIMIT_S, "the router has both workers")

    @classmethod
    def end(cls):
        for process in cls.processes.values():
            process.kill()
            process.wait(10)
        cls.machines.__exit__()

    @staticmethod
    def certs(*arguments):
        subprocess.run([BIN / "baton", "certs", *arguments], check=True, capture_output=True,
                       timeout=60)

    @classmethod
    def arguments(cls, role, machine):
        host = cls.machines.address[machine]
        shared = ["--model", MODEL, "--host", host, "--tls-dir", cls.folder / "certs" / role]
        if role != "router":
            return [*shared, "--threads", 1, "--num-blocks", 256, "--port", CONTROL_PORT,
                    "--data-port", DATA_PORT, "--metrics-port", METRICS_PORT]
        address = cls.machines.address
        return [*shared, "--http-port", HTTP_PORT, "--ops-port", OPS_PORT, "--grpc-port", GRPC_PORT,
                "--admin-port", ADMIN_PORT,
                "--api-plaintext", "--api-keys-file", cls.folder / "keys",
                "--prefill", f"{address['a']}:{CONTROL_PORT}",
                "--decode", f"{address['b']}:{CONTROL_PORT}"]

    @classmethod
    def start(cls, role, machine):
        command = cls.machines.command(machine, BIN / f"baton-{role}",
                                       *cls.arguments(role, machine))
        with open(cls.folder / f"{role}.log", "ab") as log:
            cls.processes[role] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log,
                                                   stderr=log)

    @classmethod
    def on(cls, machine, mode, *words):
        done = cls.machines.inside(machine, sys.executable, "-B", __file__, mode, *words)
        return done.stdout.strip()

    @classmethod
    def ask(cls, machine, path, body="", key=KEY, port=HTTP_PORT, of="a"):
        url = f"http://{cls.machines.address[of]}:{port}{path}"
        return json.loads(cls.on(machine, "ask", url, body, key))

    @classmethod
    def is_ready(cls):
        for role, process in cls.processes.items():
            assert process.poll() is None, f"{role} ended: {(cls.folder / f'{role}.log').read_text()}"
        return cls.ask("a", "/ready")[0] == 200

    @classmethod
    def complete(cls, prompt="In the beginning", client="b"):
        body = {"model": MODEL.name, "prompt": prompt, "max_tokens": 8, "temperature": 0}
        code, text = cls.ask(client, "/v1/completions", json.dumps(body))
        assert code == 200, text
        return json.loads(text)["choices"][0]["text"]

    def test_answers_come_from_both_machines(self):
        self.assertEqual(self.complete(), self.complete())
        code, metrics = self.ask("a", "/metrics", port=METRICS_PORT, of="b")
        self.assertEqual(code, 200)
        handoffs = [line for line in metrics.splitlines()
                    if line.startswith("baton_handoffs_total")]
        self.assertGreaterEqual(float(handoffs[0].split()[-1]), 1)

    def test_strangers_reach_neither_api_nor_control_plane(self):
        body = json.dumps({"model": MODEL.name, "prompt": "x"})
        self.assertEqual(self.ask("b", "/v1/completions", body, key="")[0], 401)
        self.assertEqual(self.ask("b", "/v1/completions", body, key="wrong")[0], 401)
        for path in ("/metrics", "/status", "/audit"):
            self.assertEqual(self.ask("b", path)[0], 403, path)
        for machine in ("a", "b"):
            for path, code in (("/health", 200), ("/metrics", 200), ("/status", 404)):
                with self.subTest(of=machine, path=path):
                    self.assertEqual(self.ask("b", path, port=METRICS_PORT, of=machine)[0], code)
        own, foreign = self.folder / "certs", self.folder / "foreign"
        table = [  # (certificates, version): what is said.
            (own / "router", "TLSv1_3", "served"),
            (own / "admin", "TLSv1_3", "served"),
            (own / "router", "TLSv1_2", "refused"),
            (foreign / "router", "TLSv1_3", "refused"),
            ("", "TLSv1_3", "refused"),
            ("", "plaintext", "refused"),
        ]
        for machine, port in (("a", CONTROL_PORT), ("b", CONTROL_PORT), ("a", ADMIN_PORT)):
            for certificates, version, said in table:
                with self.subTest(of=machine, port=port, certificates=certificates,
                                  version=version):
                    self.assertEqual(self.on("b", "shake_hands", self.machines.address[machine],
                                             port, certificates, version), said)

    def baton(self, machine, *words):
        """The tool, on that machine: its exit code, and what it says."""
        done = self.machines.inside(machine, BIN / "baton", *words, check=False)
        return done.returncode, done.stdout, done.stderr

    def test_an_operator_sees_the_cluster_from_any_machine_by_an_admins_certificate(self):
        self.complete()
        router = f"{self.machines.address['a']}:{ADMIN_PORT}"
        own, foreign = self.folder / "certs", self.folder / "foreign"
        by_admin = ("--router", router, "--tls-dir", own / "admin")
        code, out, err = self.baton("b", "status", "--json", *by_admin)
        self.assertEqual(code, 0, err)
        status = json.loads(out)
        self.assertEqual({(one["name"], one["address"], one["healthy"])
                          for one in status["workers"]},
                         {("prefill-0", f"{self.machines.address['a']}:{CONTROL_PORT}", True),
                          ("decode-0", f"{self.machines.address['b']}:{CONTROL_PORT}", True)})
        self.assertTrue(status["router"]["ready"])
        self.assertEqual([(one["transport"], one["security"]) for one in status["kv_pairs"]],
                         [("tcp", "tls")])
        path = "prefill-0 -> decode-0: K/V over TCP, TLS: the prefill worker has no NCCL: "
        for command in ("status", "doctor"):
            self.assertIn(path, self.baton("b", command, *by_admin)[1])
        code, out, err = self.baton("b", "audit", "--json", *by_admin)
        self.assertEqual(code, 0, err)
        audited = {one["name"]: one for one in json.loads(out)["workers"]}
        self.assertEqual(audited.keys(), {"prefill-0", "decode-0"})
        code, out, _ = self.baton("b", "doctor", *by_admin)
        self.assertIn(f"{router} is ready", out)
        self.assertEqual(out.count(" is healthy"), 2, out)
        self.assertEqual(set(re.findall(r"TLS +(\S+) at \S+: certificate ends \S+, in \d+ days", out)),
                         {"router", "prefill-0", "decode-0"}, out)
        for command in ("status", "audit"):
            for certificates, said in [
                    (own / "router", "is of role router, and admin is needed"),
                    (own / "none", "--tls-dir"),
                    (foreign / "admin", "takes no certificate of this CA and release")]:
                with self.subTest(command=command, certificates=certificates):
                    code, out, err = self.baton("b", command, "--router", router,
                                                "--tls-dir", certificates)
                    self.assertNotEqual(code, 0)
                    self.assertEqual(out, "")
                    self.assertIn(said, err)
            code, _, err = self.baton("b", command, "--router", router)
            self.assertNotEqual(code, 0)
            self.assertIn("--tls-dir", err)

    def test_the_tool_asks_an_api_with_tls_and_keys(self):
        api = self.folder / "api"
        api.mkdir()
        host = self.machines.address["b"]
        for name in ("tls", "other"):
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                            "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=api",
                            "-addext", f"subjectAltName=IP:{host}", "-keyout", api / f"{name}.key",
                            "-out", api / f"{name}.crt"], check=True, capture_output=True,
                           timeout=60)
        (api / "key").write_text("one-word\n")
        (api / "keys").write_text(f"tenant {hashlib.sha256(b'one-word').hexdigest()}\n")
        arguments = [str(one) for one in self.arguments("router", "b")]
        arguments[arguments.index("--api-plaintext")] = "--api-tls-dir"
        arguments.insert(arguments.index("--api-tls-dir") + 1, api)
        arguments[arguments.index("--api-keys-file") + 1] = api / "keys"
        with open(self.folder / "router-b.log", "ab") as log:
            second = subprocess.Popen(
                self.machines.command("b", BIN / "baton-router", *arguments),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            await_true(lambda: self.ask("a", "/ready", port=OPS_PORT, of="b")[0] == 200,
                       START_LIMIT_S, "a second router is ready")
            url, key = ("--url", f"https://{host}:{HTTP_PORT}"), ("--api-key-file", api / "key")
            asking = (*url, *key, "--ca", api / "tls.crt")
            for version, said in (("TLSv1_3", "served"), ("TLSv1_2", "refused"),
                                  ("plaintext", "refused")):
                self.assertEqual(self.on("a", "shake_hands", host, GRPC_PORT, "", version), said)
            prompt = "In the beginning"
            code, out, err = self.baton("a", "complete", *asking, "--max-tokens", 8,
                                        "--temperature", 0, prompt)
            self.assertEqual((code, out), (0, prompt + self.complete(prompt) + "\n"), err)
            code, out, err = self.baton("a", "bench", *asking, "--num-requests", 3,
                                        "--prompt-tokens", 8, "--max-tokens", 4)
            self.assertEqual(code, 0, err)
            self.assertIn("3 ok, 0 failed", out)
            for words, said in [((*url, *key, "--ca", api / "other.crt"), "verify failed"),
                                ((*url, *key), "verify failed"),  # By the system's CAs.
                                ((*url, "--ca", api / "tls.crt"), "An API key is needed")]:
                with self.subTest(words=words):
                    code, out, err = self.baton("a", "complete", *words, prompt)
                    self.assertEqual(code, 1, out)
                    self.assertIn(said, err)
        finally:
            second.kill()
            second.wait(10)

    def test_no_certificate_opens_the_port_of_the_keys_and_values(self):
        # An alert of TLS: what listens there speaks nothing else, and wants a key of a pair.
        alert, own = "SSLV3_ALERT_HANDSHAKE_FAILURE", self.folder / "certs"
        for machine in ("a", "b"):
            host = self.machines.address[machine]
            for certificates, version, said in (
                    (own / "router", "PSK", alert), (own / "prefill", "PSK", alert),
                    (own / "admin", "PSK", alert), ("", "PSK", alert),
                    (own / "prefill", "TLSv1_2", "refused"), ("", "plaintext", "refused")):
                with self.subTest(of=machine, certificates=certificates, version=version):
                    self.assertEqual(self.on("b", "shake_hands", host, DATA_PORT, certificates,
                                             version), said)
            for key in ("00", "00" * 32):
                done = self.machines.inside(
                    "b", "timeout", 30, "openssl", "s_client", "-connect", f"{host}:{DATA_PORT}",
                    "-tls1_3", "-psk", key, "-psk_identity", "prefill", check=False)
                self.assertNotEqual(done.returncode, 0, done.stdout)
                self.assertIn("alert", done.stderr)

    def captured(self, act):
        """What passes between the machines while `act` runs."""
        command = self.machines.command("switch", sys.executable, "-B", __file__, "capture", "port1")
        with open(self.folder / "frames", "w+b") as frames:
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=frames,
                                  stderr=subprocess.PIPE) as capturing:
                self.assertEqual(capturing.stderr.readline(), b"captures\n")
                act()
                capturing.stdin.close()
                self.assertEqual(capturing.wait(60), 0, capturing.stderr.read())
            frames.seek(0)
            return frames.read()

    def test_no_prompt_passes_between_the_machines_in_the_clear(self):
        secret = "the strong east wind"
        prompts = [f"And {n} times {secret} blew, and the waters were divided. " * 4
                   for n in ("nine", "seven")]
        # A client beside the router: calls and K/V cross, its request does not.
        frames = self.captured(lambda: self.complete(prompts[0], client="a"))
        self.assertGreater(len(frames), 20_000)
        self.assertNotIn(secret.encode(), frames)
        # It would be seen: a client's request to an API without TLS crosses.
        self.assertIn(secret.encode(), self.captured(lambda: self.complete(prompts[1])))

    def test_new_certificates_are_taken_while_requests_run(self):
        expected = self.complete()
        before = (self.folder / "certs" / "decode" / "tls.crt").read_text()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(self.complete) for _ in range(12)]
            self.certs("renew", "--all", "--dir", self.folder / "certs")
            self.assertEqual({answer.result() for answer in answers}, {expected})
        self.assertNotEqual((self.folder / "certs" / "decode" / "tls.crt").read_text(), before)
        for role in self.processes:
            log = self.folder / f"{role}.log"
            await_true(lambda log=log: log.read_text().count(" certificates identity=") > 1,
                       60, f"{role} took its new certificate")
        # A worker that starts anew meets a router that has never stopped.
        self.processes["decode"].kill()
        self.processes["decode"].wait(10)
        self.start("decode", "b")
        deadline = time.monotonic() + START_LIMIT_S
        while not self.is_ready() and time.monotonic() < deadline:
            time.sleep(0.1)
        self.assertEqual(self.complete(), expected)

    def test_a_server_without_security_does_not_start_beyond_loopback(self):
        def without(arguments, option, count=2):
            at = arguments.index(option)
            return arguments[:at] + arguments[at + count:]
        for role, option, count in (("decode", "--tls-dir", 2),
                                    ("router", "--api-keys-file", 2),
                                    ("router", "--api-plaintext", 1), ("router", "--tls-dir", 2)):
            arguments = without(self.arguments(role, "a"), option, count)
            done = self.machines.inside("a", BIN / f"baton-{role}", *arguments, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
            self.assertIn(option, done.stderr)


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        ask(*sys.argv[2:])
    elif sys.argv[1] == "capture":
        capture(*sys.argv[2:])
    elif sys.argv[1] == "shake_hands":
        shake_hands(*sys.argv[2:])
    else:
        BIN = pathlib.Path(sys.argv.pop(1)).resolve()
        unittest.main(verbosity=2)
