#!/usr/bin/env python3
"""Images without a daemon: archives that `ctr image import` takes, of one layer."""
import hashlib
import io
import json
import pathlib
import re
import subprocess
import tarfile
import tempfile

DOCKER = pathlib.Path(__file__).resolve().parents[3] / "deploy/docker"
PAUSE = """#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
static void end(int signal) { _exit(signal == SIGTERM ? 0 : 1); }
int main(void) { for (signal(SIGTERM, end), signal(SIGCHLD, SIG_IGN);;) pause(); }
"""


def last_stage():
    """(NAME, argument) of each instruction of the last stage of Dockerfile.cpu."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", (DOCKER / "Dockerfile.cpu").read_text(),
                                       flags=re.M))
    steps = [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]
    return steps[max(i for i, step in enumerate(steps) if step[0] == "FROM"):]


def baton_image(programs, name, out):
    """Does what the last stage of Dockerfile.cpu does; returns the bytes of the files."""
    config, owners = {}, {}
    for step, argument in last_stage():
        if step == "COPY":
            owner = re.search(r"--chown=(\d+):(\d+)", argument)
            if owner:
                owners[argument.split()[-1]] = (int(owner[1]), int(owner[2]))
        elif step in ("USER", "WORKDIR"):
            config[{"USER": "User", "WORKDIR": "WorkingDir"}[step]] = argument
        elif step == "CMD":
            config["Cmd"] = json.loads(argument)
        elif step != "FROM":
            raise ValueError(f"Dockerfile.cpu: {step} is not known here")
    with tempfile.TemporaryDirectory(prefix="baton-image-") as scratch:
        root = pathlib.Path(scratch) / "root"
        subprocess.run([DOCKER / "rootfs.sh", programs, root], check=True)
        write(root, name, config, owners, out)
        return sum(one.lstat().st_size for one in root.rglob("*") if one.is_file())


def pause_image(name, out):
    """What holds the namespaces of a pod."""
    with tempfile.TemporaryDirectory(prefix="baton-image-") as scratch:
        subprocess.run(["cc", "-static", "-Os", "-x", "c", "-", "-o", f"{scratch}/pause"],
                       input=PAUSE.encode(), check=True)
        write(pathlib.Path(scratch), name, {"Entrypoint": ["/pause"]}, {}, out)


def write(root, name, config, owners, out):
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for path in sorted(root.rglob("*")):
            info = tar.gettarinfo(path, arcname=str(path.relative_to(root)))
            info.uid, info.gid = owners.get("/" + info.name, (0, 0))
            info.uname = info.gname = ""
            if info.isreg():
                with path.open("rb") as file:
                    tar.addfile(info, file)
            else:
                tar.addfile(info)
    layer = layer.getvalue()
    described = json.dumps({
        "architecture": "amd64", "os": "linux", "config": config,
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
    }).encode()
    config_name = hashlib.sha256(described).hexdigest() + ".json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(out, "w") as tar:
        for member, data in ((config_name, described), ("layer.tar", layer),
                             ("manifest.json", json.dumps(manifest).encode())):
            info = tarfile.TarInfo(member)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
