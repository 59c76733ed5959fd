"""Data sets and how their records are divided among clients."""

from __future__ import annotations
