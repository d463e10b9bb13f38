"""nginx as the yardstick of a router: one process that proxies streams, on the router's core.
Debian's package, unpacked into the benchmarks' cache folder when nginx is not installed.
"""
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from programs import cache_folder  # noqa: E402

CONFIG = """daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 16384; }}
worker_rlimit_nofile 40000;
http {{
  access_log off; client_body_buffer_size 1m; client_max_body_size 16m;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  keepalive_requests 1000000;
  upstream mock {{ server {upstream}; keepalive 4096; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port};
    location = /refused {{ return 503; }}
    location / {{
      proxy_pass http://mock; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 600s;
    }}
  }}
}}
"""


def program():
    """The installed nginx, or the unpacked one; None if there is neither."""
    unpacked = cache_folder() / "nginx" / "usr" / "sbin" / "nginx"
    if found := shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin"):
        return pathlib.Path(found)
    return unpacked if unpacked.exists() else None


def fetch():
    """Unpacks Debian's package; RuntimeError if it cannot be had."""
    folder = cache_folder() / "nginx"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder()) as download:
        done = subprocess.run(["apt-get", "download", "-q", "nginx"], cwd=download, check=False,
                              stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
        packages = list(pathlib.Path(download).glob("nginx_*.deb"))
        if done.returncode != 0 or not packages:
            raise RuntimeError(f"nginx cannot be fetched; install it, or --no-nginx: {done.stderr}")
        subprocess.run(["dpkg-deb", "-x", packages[0], folder], check=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Nginx:
    """Use as a context manager; `pin` are words that are put before the command."""

    def __init__(self, folder, upstream, pin):
        self.folder, self.upstream, self.pin = pathlib.Path(folder), upstream, pin
        self.port = free_port()

    def __enter__(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "nginx.conf"
        config.write_text(CONFIG.format(folder=self.folder, port=self.port,
                                        upstream=self.upstream.removeprefix("http://")))
        self.process = subprocess.Popen([*self.pin, program(), "-c", config, "-p", self.folder],
                                        stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while socket.socket().connect_ex(("127.0.0.1", self.port)) != 0:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise RuntimeError(f"nginx does not start; see {self.folder}/error.log")
            time.sleep(0.02)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(10)
