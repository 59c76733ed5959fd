"""The command that sets runs side by side; `reports.extensions.comparison` compares them."""

from __future__ import annotations

COMMANDS = {
    "compare": (
        "Set runs side by side: accuracy, ε, bytes, audit and signatures, ranked where comparable."
    ),
}
