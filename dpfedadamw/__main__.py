"""``python -m dpfedadamw`` is the command ``dpfedadamw``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn


def start() -> NoReturn:
    """The command, which may be interrupted while it is still being loaded."""
    from dpfedadamw.errors import taken_name

    taken = taken_name()
    if taken is not None:
        sys.stderr.write(f"error: {taken}\n")
        sys.exit(2)
    try:
        from dpfedadamw.cli import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()


def _leave_working_directory() -> None:
    """Stop looking for packages in the working directory, unless this one is there.

    ``python -m`` looks there first, and a user's folder `reports`, `audit` or `specs` is not ours.
    """
    here = Path(__file__).resolve().parents[1]
    if not sys.flags.safe_path and Path(sys.path[0]).resolve() != here:
        del sys.path[0]


if __name__ == "__main__":
    _leave_working_directory()
    start()
