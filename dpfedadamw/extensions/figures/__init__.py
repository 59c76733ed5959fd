"""Figures of mechanism: what happened inside finished runs, drawn from their files.

A run keeps a ledger, metrics, private evidence and its model. What these do not hold, such as every
client's second moment, is recomputed by running the rounds again (`reexecution`), bit for bit.

`reading` opens a run's files. `mechanism/` has one figure a file; each registers itself with what
it needs, measures and shows. `gallery` measures all that were asked for in one pass over a run.
`drawing` turns what they show into a picture. `publication` says who may see it, and writes it.
"""

from __future__ import annotations

COMMANDS = {
    "figures": ("Draw what happened inside finished runs: moments, drift, norms, curvature."),
}
