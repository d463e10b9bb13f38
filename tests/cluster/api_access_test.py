#!/usr/bin/env python3
"""Who may use a router's API: keys by `baton keys`, daily tokens, TLS by files of `baton certs`; all of
it changed while the router runs. No worker is needed: echoed prompts take tokens of the day.

Usage: api_access_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""
import collections
import concurrent.futures
import json
import pathlib
import shutil
import ssl
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

from process_cluster import MODEL, START_LIMIT_S, await_true

BIN = None
LIMIT_S = 60


class ApiAccessTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = BIN.parent / "run" / "api_access"
        shutil.rmtree(cls.folder, ignore_errors=True)
        cls.folder.mkdir(parents=True)
        cls.keys_file = cls.folder / "keys"
        cls.certs("init")
        cls.certs("issue", "--role", "router")
        cls.alice = cls.baton("keys", "add", cls.keys_file, "alice", "quota=8/day").stdout.strip()
        cls.bob = cls.baton("keys", "add", cls.keys_file, "bob").stdout.strip()
        ready = cls.folder / "ready.json"
        with open(cls.folder / "router.log", "ab") as log:
            cls.router = subprocess.Popen(
                [BIN / "baton-router", "--model", MODEL, "--prefill", "127.0.0.1:1", "--decode",
                 "127.0.0.1:2", "--http-port", "0", "--grpc-port", "0", "--ready-file", ready,
                 "--api-keys-file", cls.keys_file, "--api-tls-dir", cls.folder / "certs" / "router"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        cls.addClassCleanup(cls.end)
        await_true(ready.exists, START_LIMIT_S, "the router listens")
        cls.url = json.loads(ready.read_text())["http_url"]

    @classmethod
    def end(cls):
        cls.router.kill()
        cls.router.wait(10)

    @classmethod
    def baton(cls, *arguments, code=0):
        done = subprocess.run([BIN / "baton", *map(str, arguments)], capture_output=True, text=True,
                              timeout=60)
        assert done.returncode == code, done
        return done

    @classmethod
    def certs(cls, *arguments):
        return cls.baton("certs", *arguments, "--dir", cls.folder / "certs")

    @classmethod
    def ask(cls, path, key, body=None):
        """(status, headers, the error's code or None)."""
        trusting = ssl.create_default_context(cafile=cls.folder / "certs" / "ca" / "ca.crt")
        trusting.check_hostname = False  # Certificates of `baton certs` name no host.
        request = urllib.request.Request(cls.url + path, json.dumps(body).encode() if body else None,
                                         {"Authorization": f"Bearer {key}"})
        try:
            with urllib.request.urlopen(request, timeout=60, context=trusting) as answer:
                return answer.status, answer.headers, None
        except urllib.error.HTTPError as error:
            return error.code, error.headers, json.loads(error.read())["error"]["code"]

    @classmethod
    def echo(cls, key):
        """Takes four tokens."""
        return cls.ask("/v1/completions", key, {"model": MODEL.name, "prompt": [1, 2, 3, 4],
                                                "max_tokens": 0, "echo": True})

    def test_keys_of_a_tenant_share_its_day_and_come_and_go(self):
        self.assertEqual(self.ask("/v1/models", "wrong")[::2], (401, "invalid_api_key"))
        self.assertEqual([self.echo(self.alice)[0] for _ in range(2)], [200, 200])
        second = self.baton("keys", "add", self.keys_file, "alice").stdout.strip()
        await_true(lambda: self.ask("/v1/models", second)[0] == 200, LIMIT_S, "the new key holds")
        for key in (self.alice, second):
            code, headers, why = self.echo(key)
            self.assertEqual((code, why), (429, "insufficient_quota"))
            left_s = 86400 - time.time() % 86400
            self.assertAlmostEqual(int(headers["Retry-After"]), left_s, delta=60)
            self.assertEqual(headers["x-should-retry"], "false" if left_s > 62 else headers["x-should-retry"])
        self.assertEqual(self.echo(self.bob)[0], 200)
        listed = self.baton("keys", "list", self.keys_file).stdout
        rows = [line.split() for line in listed.splitlines()[1:]]
        self.assertEqual([row[1] for row in rows], ["alice", "bob", "alice"])
        for line in self.keys_file.read_text().splitlines():
            self.assertNotIn(line.split()[1], listed)
        self.baton("keys", "remove", self.keys_file, rows[0][0])
        await_true(lambda: self.ask("/v1/models", self.alice)[0] == 401, LIMIT_S,
                   "the removed key is refused")
        self.assertEqual(self.echo(second)[0], 429)
        # A bad line anywhere: nothing of the file is taken.
        good = self.keys_file.read_text()
        self.keys_file.write_text(good.replace("bob", "carl") + "dora 12\nemil 13\n")
        said = self.baton("keys", "check", self.keys_file, code=2).stderr
        self.assertEqual([word for word in said.split() if word.isdigit()][::2], ["3", "4"])
        log = self.folder / "router.log"
        await_true(lambda: "new API keys not taken" in log.read_text(), LIMIT_S, "it is told")
        self.assertEqual(self.ask("/v1/models", self.bob)[0], 200)
        self.keys_file.write_text(good)
        self.baton("keys", "check", self.keys_file)

    def test_ten_tenants_at_once_get_what_their_days_allow_and_429_for_all_else(self):
        allowed, tries = range(1, 11), 12
        keys = [self.baton("keys", "add", self.keys_file, f"tenant{n}", f"quota={4 * n}/day").stdout.strip()
                for n in allowed]
        for key in keys:
            await_true(lambda key=key: self.ask("/v1/models", key)[0] == 200, LIMIT_S, "it holds")
        with concurrent.futures.ThreadPoolExecutor(30) as pool:
            answers = [(n, pool.submit(self.echo, keys[n - 1])) for _ in range(tries) for n in allowed]
            codes = collections.Counter((n, answer.result()[0]) for n, answer in answers)
        self.assertEqual(codes, collections.Counter(
            {(n, code): count for n in allowed
             for code, count in ((200, n), (429, tries - n)) if count}))

    def test_a_new_certificate_is_taken_while_the_router_runs(self):
        host, port = self.url.removeprefix("https://").split(":")
        before = ssl.get_server_certificate((host, int(port)))
        self.certs("renew", "--all")
        await_true(lambda: ssl.get_server_certificate((host, int(port))) != before, LIMIT_S,
                   "the new certificate is shown")
        self.assertEqual(self.ask("/v1/models", self.bob)[0], 200)


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
