"""Writes what is made of the spec's definition, the reference page and the JSON Schema.

    python -m dpfedadamw.spec.reference docs/spec.md
    python -m dpfedadamw.spec.reference specs/schema/experiment.schema.json

The files are this module's output; a test keeps them the same.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from dpfedadamw.spec.fields import Field, describe
from dpfedadamw.spec.matrix.schema import describe_sweep, file_schema
from dpfedadamw.spec.reading import shipped, shipped_sweeps
from dpfedadamw.spec.vocabulary import resolve_reference, schema

_INTRODUCTION = """\
# The spec

One YAML file says all of an experiment. This page is written from the schema by
`python -m dpfedadamw.spec.reference docs/spec.md`; do not edit it by hand.

Check a spec with `dpfedadamw spec validate FILE`, and see it with every default written out with
`dpfedadamw spec show FILE`. Any single value can be replaced on the command line:

    dpfedadamw run quickstart --set federation.rounds=5 --set 'model.hidden=[64, 32]'

The value is YAML. A section whose choice changes is replaced as a whole, because the keys of one
choice are refused under another: `--set 'algorithm={name: dp-fedavg, learning_rate: 0.5}'`.

## YAML as it is read here

A spec is signed evidence and must mean the same to every reader. So there are no anchors, aliases,
merge keys, tags, tabs, duplicate keys or second documents, and no infinities. Only `true` and
`false` are booleans (`yes`, `no`, `on` and `off` are text). `1e-5` is a number; a date is
text. A file has at most 1 MiB of UTF-8 and 20,000 values, and so has the resolved spec with every
default written out: some 1,900 `data.columns`, or 10,000 `data.numbers`. A larger one is refused
before it trains.

## Noise multiplier and target epsilon

Give `privacy.noise_multiplier`, or `privacy.target_epsilon` to have the multiplier solved for. The
resolved spec that a run writes down then holds both, and loads again: both together mean that the
multiplier was solved for this target before. `--set` of one of them clears the other.

## Shipped specs
"""

_SWEEPS = """
## Keys of a sweep

A file with one of these means many runs: `dpfedadamw sweep FILE` ([sweeps.md](sweeps.md)).
"""


def page() -> str:
    """Return the reference page, Markdown."""
    parts = [_INTRODUCTION]
    parts += [f"* `{one.name}`: {one.title}. {one.description}" for one in shipped()]
    parts.append(
        f"\nIn addition, {len(shipped_sweeps())} sweeps are shipped, each of many runs "
        "([sweeps.md](sweeps.md)); `dpfedadamw list specs` names them."
    )
    whole = schema()
    rows = describe(whole)
    for section, group in groupby(rows, key=lambda row: row.path.partition(".")[0]):
        part = resolve_reference(whole["properties"][section])
        fields = list(group)
        if fields[0].path == section and len(fields) == 1:
            parts.append(f"\n## {section}\n")
        else:
            parts.append(f"\n## {section}\n\n{part['description']}\n")
        parts += _table(fields)
    parts.append(_SWEEPS)
    parts += _table(describe_sweep())
    return "\n".join(parts) + "\n"


def _table(fields: Sequence[Field]) -> list[str]:
    head = "| field | type | default | range | unit | meaning |"
    return [head, "|---|---|---|---|---|---|", *(_row(field) for field in fields)]


def _row(field: Field) -> str:
    meaning = field.description + (f" *Only when {field.when}.*" if field.when else "")
    code = [f"`{_cell(text)}`" if text else "" for text in (field.default, field.range)]
    if field.default == "required":
        code[0] = "required"
    cells = [f"`{field.path}`", field.type, *code, field.unit, _cell(meaning)]
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def schema_text() -> str:
    """Return the JSON Schema as it ships, for editors."""
    return json.dumps(file_schema(), ensure_ascii=False, indent=2) + "\n"


def main() -> None:
    """Write the page, or the schema where the only argument is the path of a JSON file."""
    parser = argparse.ArgumentParser(
        prog="python -m dpfedadamw.spec.reference", description=main.__doc__
    )
    parser.add_argument("path", type=Path, help="the page (.md) or schema (.json) to write")
    path = parser.parse_args().path
    if path.suffix not in (".md", ".json"):
        parser.error(f"{path}: neither a page (.md) nor a schema (.json)")
    path.write_text(schema_text() if path.suffix == ".json" else page(), encoding="utf-8")


if __name__ == "__main__":
    main()
