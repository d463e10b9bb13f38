#!/usr/bin/env python3
"""Prints a hash of what the committed renderings are made of: the chart, and the sets of values."""
import hashlib
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ("deploy/helm/baton", "tests/k8s/values", "tests/k8s/render.sh")


def chart_hash():
    files = [path for source in SOURCES for path in
             ([ROOT / source] if (ROOT / source).is_file() else (ROOT / source).rglob("*"))]
    total = hashlib.sha256()
    for path in sorted(files):
        if path.is_file():
            content = path.read_bytes()
            total.update(f"{path.relative_to(ROOT)} {len(content)}\n".encode() + content)
    return total.hexdigest()


if __name__ == "__main__":
    print(chart_hash())
