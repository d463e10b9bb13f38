#!/usr/bin/env python3
"""Stands in for baton-prefill, baton-decode and baton-router in supervisor_test.py.

It takes the servers' flags, writes the ready file and serves the router's HTTP. The model folder's
fake.json says how each server (by the stem of its ready file) shall behave:
{"decode-0": {"die_at_start": "reason", "refuse": "reason", "ignore_sigterm": true, "never_ready": true},
"router": {"not_ready": true}}. It is read at each start. Worker and router bind the ports they are given, as the servers do.
"""
import argparse
import http.server
import json
import os
import pathlib
import secrets
import signal
import socket
import sys
import threading


def parse_arguments():
    parser = argparse.ArgumentParser()
    for name in ("model", "host", "ready-file", "threads", "device", "gpu-memory-fraction",
                 "gpu-graphs", "max-batch-sequences", "tp", "kv-transport",
                 "compute-dtype", "served-model-name", "block-size", "drain-timeout-s", "port",
                 "data-port", "metrics-port", "http-port", "grpc-port", "ops-port"):
        parser.add_argument("--" + name)
    parser.add_argument("--prefill", action="append", default=[])
    parser.add_argument("--decode", action="append", default=[])
    return parser.parse_args()


def data_ports(arguments):
    """One of each rank, as they are given or any; a router has none."""
    if arguments.data_port is None:
        return []
    ports = arguments.data_port.split(",")
    return ports if len(ports) > 1 else ports * int(arguments.tp or 1)


class Router(http.server.BaseHTTPRequestHandler):
    arguments = None
    behaviour = {}

    def do_GET(self):
        if self.path == "/ready" and self.behaviour.get("not_ready"):
            return self.send(503, {"error": {"message": "no token yet"}})
        ready = [json.loads(file.read_text())
                 for file in pathlib.Path(self.arguments.ready_file).parent.glob("*.json")]
        incarnations = {r["address"]: r["incarnation"] for r in ready}
        workers = [{"role": role, "address": address, "healthy": True,
                    "incarnation": incarnations.get(address),
                    "blocks": {"free": 7, "cached": 1, "reserved": 0, "filling": 0, "ready": 0,
                               "draining": 0}, "running": 2, "waiting": 3}
                   for role in ("prefill", "decode")
                   for address in getattr(self.arguments, role)]
        answers = {"/ready": {}, "/v1/models": {"data": [{"id": "fake-model"}]},
                   "/status": {"workers": workers, "router": {"queued_requests": 5}}}
        if self.path not in answers:
            return self.send(404, {"error": {"message": "no such page"}})
        self.send(200, answers[self.path])

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("max_tokens") == 0:
            return self.send(400, {"error": {"message": "max_tokens 0: must be at least 1"}})
        pieces = ["an", "swer to ", str(body.get("prompt") or body["messages"][0]["content"])]
        if not body["stream"]:
            return self.send(200, {"choices": [{"text": "".join(pieces)}]})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for piece in pieces:
            chunk = {"choices": [{"text": piece}]}
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        if body.get("seed") != 13:  # Unlucky: the stream breaks off.
            self.wfile.write(b"data: [DONE]\n\n")

    def send(self, code, value):
        text = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def main():
    arguments = parse_arguments()
    ready_file = pathlib.Path(arguments.ready_file)
    name = ready_file.stem
    behaviour_file = pathlib.Path(arguments.model) / "fake.json"
    behaviour = {}
    if behaviour_file.exists():
        behaviour = json.loads(behaviour_file.read_text()).get(name, {})
    print(f"{name} starts with {' '.join(sys.argv[1:])}", flush=True)
    if "die_at_start" in behaviour:
        print(behaviour["die_at_start"], file=sys.stderr, flush=True)
        return 3
    if "refuse" in behaviour:
        print(f"{pathlib.Path(sys.argv[0]).name}: {behaviour['refuse']}", file=sys.stderr, flush=True)
        return 2
    stop = threading.Event()
    if behaviour.get("ignore_sigterm"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
    Router.arguments = arguments
    Router.behaviour = behaviour
    port = int(arguments.http_port or arguments.port or 0)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Router)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    data = [socket.create_server(("127.0.0.1", int(data_port)))
            for data_port in data_ports(arguments)]
    data_addresses = ["%s:%d" % listener.getsockname() for listener in data]
    if not behaviour.get("never_ready"):
        fresh = ready_file.with_suffix(".new")
        fresh.write_text(json.dumps({
            "pid": os.getpid(), "address": f"127.0.0.1:{port}", "data_addresses": data_addresses,
            "metrics_url": f"http://127.0.0.1:{port}/metrics",
            "http_url": f"http://127.0.0.1:{port}", "incarnation": secrets.token_hex(8)}))
        fresh.rename(ready_file)
    stop.wait()
    print(f"{name} drained", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
