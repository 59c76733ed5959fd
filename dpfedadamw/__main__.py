"""``python -m dpfedadamw`` is the command ``dpfedadamw``."""

from __future__ import annotations

from dpfedadamw.cli import main

main()
