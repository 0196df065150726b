#!/usr/bin/env python3
"""Writes what the fake driver takes from NVIDIA's headers and runtime: names alone.

usage: names.py HEADERS RUNTIME OUT

HEADERS is a folder with cuda.h and cudaTypedefs.h, RUNTIME a libcudart whose strings
name the functions that it asks a driver for. The folder OUT gets
  undef.h     #undef of the macros in cuda.h that rename functions
  names.h     NAME(name) of every function that a driver exports
  stubs.h     STUB(name) of those that no file beside this one has
  versions.h  VERSION(name, since, function, per_thread): what cuGetProcAddress gives for
              a name and a version of the interface
"""
import pathlib
import re
import sys

SUFFIXES = ["", "_v2", "_v3", "_v4", "_v5"]


def renamed(header: str) -> set[str]:
    return set(re.findall(r"^\s*#\s*define\s+(cu[A-Z]\w*)\s+\S", header, re.M))


def exported(header: str, runtime: bytes) -> set[str]:
    names = set(re.findall(r"CUDAAPI\s+(cu[A-Z]\w*)\s*\(", header))
    names |= set(re.findall(r"#\s*define\s+cu[A-Z]\w*\s+(cu[A-Z]\w+)\s*$", header, re.M))
    for kind, name in re.findall(r"#\s*define\s+cu[A-Z]\w*\s+__CUDA_API_(PTDS|PTSZ)\((cu\w+)\)", header):
        names |= {name, f"{name}_{kind.lower()}"}
    for s in re.findall(rb"(?<![\x20-\x7e])cu[A-Z]\w+(?![\x20-\x7e])", runtime):
        names.add(s.decode())
    return names


def implemented(folder: pathlib.Path) -> set[str]:
    names = set()
    for source in folder.glob("*.c"):
        names |= set(re.findall(r"^API CUresult\s+(cu[A-Z]\w+)\(", source.read_text(), re.M))
    return names


def versions(typedefs: str, names: set[str]):
    """Yields base name, version and symbol. The headers list the versions of a function
    and the symbols, but not which belongs to which: both are in order, the newest last."""
    since: dict[str, set[int]] = {}
    for name, version, per_thread in re.findall(r"PFN_(cu[A-Z]\w*?)_v(\d+)(_ptsz|_ptds)?\)", typedefs):
        if not per_thread:
            since.setdefault(name, set()).add(int(version))
    for base in sorted({re.sub(r"_v\d$", "", re.sub(r"_pt[sd][sz]$", "", n)) for n in names}):
        symbols = [base + s for s in SUFFIXES if base + s in names]
        numbers = sorted(since.get(base, {0}))
        symbols = symbols[-len(numbers):]
        symbols += symbols[-1:] * (len(numbers) - len(symbols))
        for number, symbol in zip(numbers, symbols):
            yield base, number, symbol


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    headers, runtime, out = map(pathlib.Path, sys.argv[1:])
    header = (headers / "cuda.h").read_text()
    have = implemented(pathlib.Path(__file__).parent)
    names = exported(header, runtime.read_bytes()) | have

    def write(name: str, lines) -> None:
        (out / name).write_text("".join(line + "\n" for line in lines))

    write("undef.h", (f"#undef {n}" for n in sorted(renamed(header))))
    write("names.h", (f"NAME({n})" for n in sorted(names)))
    write("stubs.h", (f"STUB({n})" for n in sorted(names - have)))
    rows = []
    for base, number, symbol in versions((headers / "cudaTypedefs.h").read_text(), names):
        per_thread = next((symbol + s for s in ("_ptds", "_ptsz") if symbol + s in names), symbol)
        rows.append(f"VERSION({base}, {number}, {symbol}, {per_thread})")
    write("versions.h", rows)
    print(f"driver: {len(have)} functions, {len(names - have)} stubs, {len(rows)} versions")


main()
