"""Models of one's own: their source, what is changed of them before they are trained, tokens."""

from __future__ import annotations
