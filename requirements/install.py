"""Installs dpfedadamw from this folder, each download held to a SHA-256 of requirements/*.txt.

    python3 -m venv .venv && .venv/bin/python requirements/install.py [EXTRA ...] [--cuda]

Where pip is used by hand, these lines do the same:

    pip install --no-deps -r requirements/torch-cpu.txt --extra-index-url https://download.pytorch.org/whl/cpu
    pip install -r requirements/runtime.txt
    pip install --no-deps --no-build-isolation .

The backend that builds the package is in the lock too. Nothing is built but this package: a source
archive's own build would fetch what no lock names.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
OLDEST = (3, 11)
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
LOCKED = sorted(path.stem[len("extra-") :] for path in HERE.glob("extra-*.txt"))


def steps(extras: list[str], cuda: bool, index: str) -> list[list[str]]:
    """Return the arguments of each call of pip, in order.

    torch goes first and alone: an index that is asked for it is asked for nothing else.
    """
    held = ["--require-hashes", "--only-binary", ":all:"]
    lock = "flower" if "flower" in extras else "runtime"
    files = [lock, *(f"extra-{extra}" for extra in extras if extra != "flower")]
    named = [part for file in files for part in ("-r", str(HERE / f"{file}.txt"))]
    first = [*held, "--no-deps", "-r", str(HERE / "torch-cpu.txt")]
    if cuda:
        first = [*held, "--no-deps", "-r", str(HERE / "torch-cuda.txt")]
    elif index:
        first += ["--extra-index-url", index]
    return [first, [*held, *named], ["--no-deps", "--no-build-isolation", str(HERE.parent)]]


def main() -> int:
    """Install, and return pip's exit status; 2 where something else is wrong."""
    if sys.version_info < OLDEST:
        version = ".".join(map(str, sys.version_info[:2]))
        print(f"dpfedadamw needs Python 3.11 or newer; this is Python {version}", file=sys.stderr)
        return 2
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help=", ".join([*LOCKED, "flower"]))
    parser.add_argument("--cuda", action="store_true", help="torch as PyPI has it, with CUDA")
    parser.add_argument(
        "--torch-index",
        default=CPU_INDEX,
        help="where torch without CUDA is, if not in an index that pip knows already; empty: none",
    )
    asked = parser.parse_args()
    unknown = set(asked.extras) - {*LOCKED, "flower"}
    if unknown:
        parser.error(
            f"{', '.join(sorted(unknown))}: no lock has it; it must be one of "
            f"{', '.join([*LOCKED, 'flower'])}. Add others afterwards with pip install"
        )
    for arguments in steps(asked.extras, asked.cuda, asked.torch_index):
        done = subprocess.run([sys.executable, "-m", "pip", "install", "-q", *arguments])
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
