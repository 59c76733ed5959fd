"""The private gradient: plan, sampling, clipping, noise, oracle, accounting, ledger.

Sampler, clipper, noise and accounting event come from one plan and cannot disagree.
"""

from __future__ import annotations
