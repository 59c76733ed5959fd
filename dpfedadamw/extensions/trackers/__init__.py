"""Trackers of experiments: a file each, which registers itself; other packages bring their own."""

from __future__ import annotations
