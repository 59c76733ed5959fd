"""A client's process that waits little.

python -m tests.dpfedadamw.extensions.deployment.served SITE
"""

from __future__ import annotations

import sys
from pathlib import Path

from dpfedadamw.extensions.deployment.listening import serve
from dpfedadamw.extensions.deployment.site import Site

PATIENCE = 1.0


def say(line: str) -> None:
    """Write a line for the client's owner."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    serve(Site(Path(sys.argv[1])), None, say, patience=PATIENCE)
