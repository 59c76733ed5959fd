"""A sweep's cells at a size for a trial: two rounds of a small model on made-up records.

What a cell tries is its algorithm, its unit of privacy, its partition and their evidence and audit.
Published data sets, which may not be here, become random records of their shape and classes;
published models, which may have to be downloaded, their architecture with few parameters. Data and
models of one's own stay as they are.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpfedadamw.data.registry import DATASETS, Contents
from dpfedadamw.models.registry import MODELS
from dpfedadamw.spec import yamltext
from dpfedadamw.spec.matrix import Cell, with_spec
from dpfedadamw.spec.reading import loads
from dpfedadamw.spec.sections import Spec
from dpfedadamw.storage.disk import write_atomically

_ROUNDS, _STEPS, _BATCH = 2, 1, 4
_CLIENTS, _PARTICIPANTS = 6, 3
# Records in the mean of a client, and the fewest that one may hold.
_RECORDS, _FEWEST = 40, 8
_TEST = 40
_TOKENS = 64


def small(cells: Iterable[Cell], folder: Path) -> tuple[list[Cell], list[str]]:
    """Cells for a trial, one for each combination: seeds do not matter here.

    Args:
        cells: What is tried.
        folder: Where records and configurations are written.

    Returns:
        The cells, and what stands for what in them, a line each.
    """
    found, told = [], dict[str, None]()
    tried: set[tuple[str, ...]] = set()
    for cell in cells:
        if tuple(cell.labels.values()) in tried:
            continue
        tried.add(tuple(cell.labels.values()))
        made, notes = _cell(cell, folder)
        told |= dict.fromkeys(notes)
        found.append(made)
    return found, list(told)


def _cell(cell: Cell, folder: Path) -> tuple[Cell, list[str]]:
    spec, notes = _small(cell.spec, folder)
    if cell.released:
        released, more = small(cell.released, folder)
        cell, notes = replace(cell, released=tuple(released)), [*notes, *more]
    return with_spec(cell, spec), notes


def _small(spec: Spec, folder: Path) -> tuple[Spec, list[str]]:
    mapping = spec.to_mapping()
    notes = []
    mapping["federation"] |= {"rounds": _ROUNDS, "local_steps": _STEPS}
    mapping["evaluation"]["every"] = 1
    entry = MODELS[spec.model.name]
    if entry.small is not None:
        mapping["model"] = entry.small(spec.model, folder / "models").to_mapping()
        notes.append(f"{spec.model.name}: {_described(mapping['model'])}")
    published = DATASETS[spec.data.dataset]
    # What comes with the package needs no stand-in, and of one's own data nobody knows one.
    if published.contents is not None and published.bring is None:
        notes.append(_made_up(spec, mapping, published.contents(spec.data), folder))
    return loads(yamltext.write(mapping), "a cell made small"), notes


def _described(model: dict[str, Any]) -> str:
    """A stand-in's sizes in a few words."""
    if "weights" in model:
        return "its architecture with width 8 and one layer, random weights"
    sizes = {name: value for name, value in model.items() if name not in ("name", "seed")}
    return f"{model['name']} with " + ", ".join(f"{name} {value}" for name, value in sizes.items())


def _made_up(spec: Spec, mapping: dict[str, Any], contents: Contents, folder: Path) -> str:
    """Let made-up records stand for a published data set; says which."""
    data, federation, privacy = spec.data, spec.federation, spec.privacy
    clients = min(data.clients, _CLIENTS)
    drawn = round(federation.clients_per_round * clients / data.clients)
    participants = max(1, min(drawn, clients), _PARTICIPANTS if privacy.unit == "client" else 1)
    shape = contents.shape or (2, getattr(spec.model, "length", None) or 128)
    train = max(clients * _RECORDS, 2 * contents.classes)
    path = folder / "data" / f"{'x'.join(map(str, shape))}-{contents.classes}.npz"
    _write(path, shape, contents.classes, train)
    partition = mapping["data"]["partition"]
    if data.partition.kind == "column":
        partition = {"kind": "iid"}
    partition["minimum_records"] = min(_FEWEST, train // (2 * clients))
    mapping["data"] = {
        "dataset": "arrays", "path": str(path), "clients": clients, "partition": partition,
        "validation": mapping["data"]["validation"], "seed": data.seed,
        **({"augmentation": mapping["data"]["augmentation"]} if contents.shape else {}),
    }  # fmt: skip
    mapping["federation"]["clients_per_round"] = participants
    sampling = privacy.sampling
    if sampling.reference_size is not None:
        mapping["privacy"]["sampling"]["reference_size"] = train / clients
    for name in ("expected_batch_size", "batch_size"):
        size = getattr(sampling, name)
        # A stated rate holds whatever a client has, and B is what sums are divided by.
        if size is not None and sampling.rate is None:
            mapping["privacy"]["sampling"][name] = min(size, _BATCH)
    what = f"{train} random records of shape {'x'.join(map(str, shape))}"
    return f"{data.dataset}: {what} in {contents.classes} classes, {clients} clients"


def _write(path: Path, shape: Sequence[int], classes: int, train: int) -> None:
    """Random records, the same for every trial; the class of an image shows in its brightness."""
    if path.exists():
        return
    rng = np.random.default_rng(0)

    def records(count: int) -> tuple[Any, Any]:
        labels = np.arange(count) % classes
        if len(shape) == 2:
            tokens = rng.integers(5, _TOKENS, (count, *shape), dtype=np.int32)
            tokens[:, 1] = 0
            return tokens, labels
        levels = rng.integers(0, 200, (count, *shape), dtype=np.uint8)
        return levels + (50 * labels // classes).astype(np.uint8)[:, None, None, None], labels

    (x_train, y_train), (x_test, y_test) = records(train), records(max(_TEST, classes))
    content = io.BytesIO()
    np.savez_compressed(content, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content.getvalue())
