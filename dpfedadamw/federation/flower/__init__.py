"""Flower: what travels as its messages, and its simulation of a run's clients.

Nothing here is imported unless a run asks for it: Flower is the extra ``dpfedadamw[flower]``.
"""

from __future__ import annotations
