#!/usr/bin/env python3
"""New keys, certificates and a new CA while sixteen streams run: every answer is the known one, and
who has a certificate of the old CA is refused.

Usage: rotation_test.py PATH_OF_BATON [unittest arguments]
"""
import pathlib
import shutil
import socket
import ssl
import subprocess
import sys
import unittest

from known_answers import KnownAnswers, Load, make_requests
from process_cluster import await_true
from running_cluster import RunningCluster

BATON = None
STREAMS = 16
LIMIT_S = 60  # For all servers to take new files, and to refuse old ones.
SERVERS = ("router", "prefill-0", "decode-0", "decode-1")
TAKEN = " certificates identity="
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def is_served(address, certificates):
    """Whether a worker speaks to who presents that certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(certificates / "tls.crt", certificates / "tls.key")
    host, port = address.rsplit(":", 1)
    try:
        with context.wrap_socket(socket.create_connection((host, int(port)), 20)) as stream:
            stream.sendall(HTTP2_PREFACE)
            return bool(stream.recv(9))
    except OSError:
        return False


class RotationTest(unittest.TestCase):
    def certs(self, *arguments):
        """One step, and until every server has taken it and the router has moved."""
        before = {name: self.cluster.log(name).count(TAKEN) for name in SERVERS}
        subprocess.run([BATON, "certs", *arguments, "--dir", self.cluster.dir / "certs"], check=True,
                       capture_output=True, timeout=60)
        for name in SERVERS:
            await_true(lambda: self.cluster.log(name).count(TAKEN) > before[name],
                       LIMIT_S, f"{name} took what {arguments} made")
        for worker in self.workers:
            await_true(lambda: self.has_moved(worker), LIMIT_S,
                       f"the router moved to {worker} anew after {arguments}")

    def has_moved(self, worker):
        """Since the router took its files; a connection that was lost meanwhile is a new one too."""
        since = self.cluster.log("router").rpartition(TAKEN)[2]
        return (f"connection renewed worker={worker}" in since
                or f"worker is up address={worker}" in since)

    def test_no_request_notices_and_the_old_ca_is_refused(self):
        with RunningCluster(BATON, "rotation", prefill=1, decode=2, tls=True) as self.cluster:
            known = KnownAnswers(self.cluster, make_requests(STREAMS, max_tokens=900))
            old = self.cluster.dir / "old"
            shutil.copytree(self.cluster.dir / "certs" / "router", old, symlinks=False)
            self.workers = [worker["address"] for worker in self.cluster.workers()]
            with Load(self.cluster, known, clients=STREAMS) as load:
                await_true(lambda: len(load.outcomes) >= STREAMS, LIMIT_S * 2, "streams run")
                self.certs("renew", "--all")
                self.certs("rotate-ca", "--begin")
                self.assertEqual([is_served(worker, old) for worker in self.workers], [True] * 3)
                self.certs("renew", "--all")
                self.certs("rotate-ca", "--finish")
                for worker in self.workers:
                    await_true(lambda: not is_served(worker, old), LIMIT_S, f"{worker} refuses")
                new = self.cluster.dir / "certs" / "router"
                self.assertEqual([is_served(worker, new) for worker in self.workers], [True] * 3)
                ended = len(load.outcomes)
                await_true(lambda: len(load.outcomes) >= ended + STREAMS, LIMIT_S * 2,
                           "streams go on")
                load.stop()
                self.assertEqual(load.failures(allowed=("ok",)), [])


if __name__ == "__main__":
    BATON = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
