"""Models that train per record: none of their layers mixes the records of a batch."""

from __future__ import annotations
