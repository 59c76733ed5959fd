"""Write the verifier's page: ``python -m reports.verifier [FILE]``."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from reports.verifier import PAGE, page


def main() -> None:
    """Write the page to the file that is named, or to its place in this package."""
    path, text = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE, page()
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        sys.exit(f"error: {path}: {error.strerror}")
    print(f"{path}: sha256 {hashlib.sha256(text.encode()).hexdigest()}")


if __name__ == "__main__":
    main()
