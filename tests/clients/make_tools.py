#!/usr/bin/env python3
"""Makes what the client tests need, once: a virtual environment with requirements.txt, and for the
nightly set grpcurl, where Go is installed. Usage: make_tools.py FOLDER"""
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
GRPCURL = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.1"


def make_venv(folder):
    wanted = hashlib.sha256((HERE / "requirements.txt").read_bytes()).hexdigest()
    stamp = folder / "venv" / "requirements.sha256"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    shutil.rmtree(folder / "venv", ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    subprocess.run([folder / "venv" / "bin" / "pip", "install", "--quiet",
                    "--disable-pip-version-check", "-r", HERE / "requirements.txt"], check=True)
    stamp.write_text(wanted)


def make_grpcurl(folder):
    if (folder / "grpcurl").exists() or "BATON_NIGHTLY" not in os.environ:
        return
    if shutil.which("go") is None:
        print("grpcurl is not built: Go is not installed; grpc_test.py covers the same calls")
        return
    subprocess.run(["go", "install", GRPCURL], check=True,
                   env={**os.environ, "GOBIN": str(folder)})


def main():
    folder = pathlib.Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    make_venv(folder)
    make_grpcurl(folder)


if __name__ == "__main__":
    main()
