"""A small table of people with several records, at several clients, and specs that read it."""

from __future__ import annotations

import functools
import io
import tempfile
from pathlib import Path

from dpfedadamw import spec as specs
from dpfedadamw.data.formats.visits import write_table
from dpfedadamw.spec import Spec

BY_HOSPITAL = "{kind: column, column: hospital}"
PEOPLE = "{unit: person, records_per_person: 3, "
RECORDS = "{unit: record, "
_SPEC = """
version: 1
name: people
data:
  {{dataset: table, path: {path}, cache: {cache}, label: label, numbers: [{numbers}],
   person: patient_id, clients: {clients}, partition: {partition}}}
model: {{name: mlp, hidden: [16]}}
algorithm: {{name: {algorithm}, learning_rate: 0.1}}
federation: {{rounds: 4, clients_per_round: {clients}, local_steps: 3, clients_per_person: {s}}}
privacy:
  {unit}clipping_norm: 1.0, noise_multiplier: 2.0, delta: 1.0e-5,
   sampling: {{kind: poisson, expected_batch_size: 24}}{more}}}
randomness: {{mode: reproducible, seed: 1}}
"""


def write_people(path: Path, names: str = "P") -> Path:
    """Write visits of 350 patients, most of them at several hospitals, called by these names."""
    text = io.StringIO()
    write_table(text)
    lines = text.getvalue().splitlines(keepends=True)
    kept = [line.replace("P", names, 1) for line in lines[1:] if line < "P00350"]
    path.write_text("".join([lines[0], *kept]))
    return path


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """A folder that lasts as long as the process."""
    return tempfile.TemporaryDirectory(prefix="people-")


@functools.cache
def people_table() -> Path:
    """The table, written once for all tests of this process."""
    return write_people(Path(_folder().name) / "visits.csv")


def people_spec(
    algorithm: str = "dp-fedavg",
    partition: str = "{kind: iid}",
    clients: int = 3,
    s: int = 1,
    more: str = "",
    unit: str = PEOPLE,
    table: Path | None = None,
    overrides: tuple[str, ...] = (),
) -> Spec:
    """A spec that protects people, and trains in well under a second."""
    path = people_table() if table is None else table
    text = _SPEC.format(
        path=path,
        cache=path.parent / "cache",
        numbers=", ".join(f"x{number}" for number in range(16)),
        algorithm=algorithm,
        partition=partition,
        clients=clients,
        s=s,
        more=more,
        unit=unit,
    )
    return specs.loads(text, overrides=overrides)
