"""Rules that do not fit into the file of one family: long, or shared by several."""

from __future__ import annotations
