"""Optimisation algorithms: pure functions over flat tensors and a gradient oracle.

Nothing here can read a record, a loss or a clean gradient, so adding an algorithm cannot add a
leak.
"""

from __future__ import annotations
