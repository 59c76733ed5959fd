"""Writes the schemas that are made from models into the package's folder."""

from pathlib import Path

from reports.schema import files

for name, text in files().items():
    (Path(__file__).parent / name).write_text(text, "utf-8")
