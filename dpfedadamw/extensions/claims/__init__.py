"""The command that judges printed claims; `audit.extensions.claims` judges them."""

from __future__ import annotations

COMMANDS = {
    "claim": ("Judge a printed privacy claim without a run, as `audit --paper-claim`."),
}
