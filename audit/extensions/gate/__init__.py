"""Judges the ledger of a gate (`dpfedadamw gate`), from its folder alone.

`reading` takes the ledger apart, `judgement` says whether it holds and what was spent.
"""

from __future__ import annotations

from audit.extensions.gate.judgement import judge_files, judge_gate
from audit.untrusted.files import folder_of_gate

__all__ = ["folder_of_gate", "judge_files", "judge_gate"]
