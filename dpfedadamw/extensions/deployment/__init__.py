"""A federation of machines: each client holds its own records, ledger, evidence and key.

The server leads a run and knows of its clients what `facts` says. A client (`client`) charges its
own ledger, computes, notes its evidence, signs what it sends. Flower carries the messages. After
the run `collect` makes one run directory of what clients hand in, which the auditor judges.
"""

from __future__ import annotations

GROUPS = {
    "flower": (
        "Federations of machines by Flower: each client holds its own records, ledger and key."
    ),
}
