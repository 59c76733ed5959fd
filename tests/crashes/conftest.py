"""Where there is no fork, nothing of this can be run."""

from __future__ import annotations

import os

collect_ignore_glob = [] if hasattr(os, "fork") else ["test_*.py"]
