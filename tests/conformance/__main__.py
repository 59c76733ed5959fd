"""Write the conformance suite: ``python -m tests.conformance FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.conformance import write

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("error: name a folder to write to: python -m tests.conformance FOLDER")
    print(f"{len(write(Path(sys.argv[1])))} folders in {sys.argv[1]}")
