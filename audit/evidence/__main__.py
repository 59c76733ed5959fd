"""Writes the schemas of a recorded loop's files into this folder."""

from audit.evidence.schema import NAMES, path, text

for name in NAMES:
    path(name).write_text(text(name), "utf-8")
