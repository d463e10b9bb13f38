"""Machines of a test: network namespaces that a bridge of their own joins, without the host's network.

Standard library and `ip`. Needs the right to make namespaces; `why_not()` says what is missing.
"""
import os
import shutil
import subprocess
import time


def run(*words, check=True):
    return subprocess.run([str(word) for word in words], check=check, capture_output=True,
                          text=True, timeout=60)


def why_not():
    """What keeps this machine from making namespaces, or "" if nothing does."""
    for program in ("ip", "unshare", "nsenter"):
        if not shutil.which(program):
            return f"there is no program `{program}`"
    done = run("unshare", "--net", "ip", "link", "add", "a0", "type", "veth", "peer", "name", "a1",
               check=False)
    return "" if done.returncode == 0 else f"no network namespace can be made: {done.stderr.strip()}"


class Machines:
    """Namespaces with an address each, 10.99.0.1 and on, joined in pairs through one that forwards
    nothing but frames. Use as a context manager: what it holds ends with it, by itself."""

    def __init__(self, names):
        self.names = names
        self.holders = {}  # A process that keeps each namespace alive.
        self.address = {name: f"10.99.0.{i + 1}" for i, name in enumerate(names)}

    def __enter__(self):
        try:
            for name in ["switch", *self.names]:
                self.holders[name] = self.hold()
            self.inside("switch", "ip", "link", "add", "br0", "type", "bridge")
            self.inside("switch", "ip", "link", "set", "br0", "up")
            for i, name in enumerate(self.names):
                self.join(name, f"port{i}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for holder in self.holders.values():
            holder.kill()
            holder.wait(10)

    @staticmethod
    def hold():
        holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"],
                                  stdin=subprocess.DEVNULL)
        own = os.readlink("/proc/self/ns/net")
        deadline = time.monotonic() + 30
        while os.readlink(f"/proc/{holder.pid}/ns/net") == own:
            if holder.poll() is not None or time.monotonic() > deadline:
                raise AssertionError("no network namespace came")
            time.sleep(0.01)
        return holder

    def join(self, name, port):
        pid = self.holders[name].pid
        self.inside("switch", "ip", "link", "add", port, "type", "veth", "peer", "name", "eth0",
                    "netns", pid)
        self.inside("switch", "ip", "link", "set", port, "master", "br0", "up")
        self.inside(name, "ip", "address", "add", f"{self.address[name]}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            self.inside(name, "ip", "link", "set", device, "up")

    def command(self, name, *words):
        """The command line that runs there."""
        return ["nsenter", f"--net=/proc/{self.holders[name].pid}/ns/net", "--",
                *[str(word) for word in words]]

    def inside(self, name, *words, check=True):
        return run(*self.command(name, *words), check=check)
