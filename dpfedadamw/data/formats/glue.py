"""The tasks of GLUE (Wang et al. 2019) in the TSV files of their publishers.

The labels of GLUE's own test files are withheld, so the development file is the held-out test
split, as in the papers. Quotes mean nothing in these files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dpfedadamw.data import hub
from dpfedadamw.data.files import find, folder, where
from dpfedadamw.data.lines import close_to, rows
from dpfedadamw.data.registry import Contents, DatasetEntry, path_or_revision, register
from dpfedadamw.data.source import CHUNK, Chunk, Reading, Source, Texts
from dpfedadamw.errors import DataError
from dpfedadamw.spec.data_section import PublishedSpec

_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")


class GlueSpec(PublishedSpec, title="GLUE"):
    """A task of GLUE (Wang et al. 2019) in its publisher's TSV files, for models of texts."""


@dataclass(frozen=True)
class _Task:
    """Files and columns of one task.

    Attributes:
        summary: What it is.
        records: How many are for training, and how many are held out.
        hub: The same on the hub.
        text: Names of one or two columns, or their places where there is no header.
        label: Name or place of the label's column.
        labels: Its values, in the order of their numbers.
        train: Names that the training file may have.
        test: Names that the labelled held-out file may have.
        more: A second training file that some editions have.
        incomplete: Whether lines with too few cells are left out, as everybody does with QQP,
            whose publisher's files hold a few.
    """

    summary: str
    records: tuple[int, int]
    hub: hub.Published
    text: tuple[str | int, ...]
    label: str | int
    labels: tuple[str, ...]
    train: tuple[str, ...] = ("train.tsv",)
    test: tuple[str, ...] = ("dev.tsv",)
    more: str | None = None
    incomplete: bool = False

    @property
    def header(self) -> bool:
        return isinstance(self.label, str)


def _published(
    configuration: str, columns: tuple[str, ...], test: str = "validation"
) -> hub.Published:
    return hub.Published("nyu-mll/glue", configuration, columns, "label", "train", test)


_PAIR = ("sentence1", "sentence2")
_MNLI = _Task(
    "entailment in three classes",
    (392_702, 9_815),
    _published("mnli", ("premise", "hypothesis"), "validation_matched"),
    _PAIR,
    "gold_label",
    ("entailment", "neutral", "contradiction"),
    test=("dev_matched.tsv",),
)
TASKS = {
    "sst2": _Task(
        "sentiment of sentences",
        (67_349, 872),
        _published("sst2", ("sentence",)),
        ("sentence",),
        "label",
        _BINARY,
    ),
    "cola": _Task(
        "acceptability of sentences",
        (8_551, 1_043),
        _published("cola", ("sentence",)),
        (3,),
        1,
        _BINARY,
        more="val.tsv",
    ),
    "mrpc": _Task(
        "paraphrases",
        (4_076, 1_725),
        _published("mrpc", _PAIR, "test"),
        ("#1 String", "#2 String"),
        "Quality",
        _BINARY,
        ("msr_paraphrase_train.txt",),
        ("msr_paraphrase_test.txt",),
    ),
    "rte": _Task(
        "entailment",
        (2_490, 277),
        _published("rte", _PAIR),
        _PAIR,
        "label",
        _ENTAILMENT,
        ("train.tsv", "train_full.tsv"),
    ),
    "qnli": _Task(
        "answers to questions",
        (104_743, 5_463),
        _published("qnli", ("question", "sentence")),
        ("question", "sentence"),
        "label",
        _ENTAILMENT,
    ),
    "qqp": _Task(
        "duplicate questions",
        (363_846, 40_430),
        _published("qqp", ("question1", "question2")),
        ("question1", "question2"),
        "is_duplicate",
        _BINARY,
        incomplete=True,
    ),
    "mnli-matched": _MNLI,
    "mnli-mismatched": replace(
        _MNLI,
        summary="the same, tested on other genres",
        records=(392_702, 9_832),
        hub=replace(_MNLI.hub, test="validation_mismatched"),
        test=("dev_mismatched.tsv",),
    ),
}
# More incomplete lines than this share mean that the file is another one.
_MOST_INCOMPLETE = 1e-3


def glue(path: Path, name: str) -> Source:
    """One task in its folder."""
    task, root = TASKS[name], folder(path)
    train = [find(root, task.train)]
    if task.more is not None and (root / task.more).exists():
        train.append(root / task.more)
    test = find(root, task.test)

    def read() -> Reading:
        chunks = {"train": _all(train, task), "test": _chunks(test, task)}
        return Reading(chunks, len(task.labels), task.labels)

    return Source(root, (*train, test), name, read)


def _all(files: list[Path], task: _Task) -> Iterator[Chunk]:
    for file in files:
        yield from _chunks(file, task)


def _chunks(path: Path, task: _Task) -> Iterator[Chunk]:
    numbers = {label: number for number, label in enumerate(task.labels)}
    places: list[int] = []
    width = total = incomplete = 0
    texts: list[list[str]] = []
    labels: list[int] = []
    for number, cells in rows(path, quoting=False):
        place = f"{where(path)}: line {number}"
        if cells == [""]:
            continue
        if not places:
            places, width = _places(cells, task, path)
            if task.header:
                continue
        total += 1
        if len(cells) != width:
            incomplete += 1
            if task.incomplete and incomplete <= max(1, _MOST_INCOMPLETE * total):
                continue
            raise DataError(f"{place}: {len(cells)} cells, expected {width}; the file is damaged")
        label = cells[places[-1]]
        if label not in numbers:
            raise DataError(f"{place}: its label is not one of {', '.join(task.labels)}")
        texts.append([cells[column] for column in places[:-1]])
        labels.append(numbers[label])
        if len(labels) == CHUNK:
            yield _chunk(texts, labels)
            texts, labels = [], []
    if labels:
        yield _chunk(texts, labels)
    if total == incomplete:
        raise DataError(f"{where(path)}: holds no records")


def _places(cells: list[str], task: _Task, path: Path) -> tuple[list[int], int]:
    """Places of the text columns and of the label, and how many cells a line has."""
    wanted = (*task.text, task.label)
    if not task.header:
        width = 4
        return [int(column) for column in wanted], width
    missing = [column for column in wanted if column not in cells]
    if missing:
        raise DataError(
            f"{where(path)}: its first line names no column {missing[0]!r}"
            f"{close_to(str(missing[0]), cells)}; give the task's labelled file, which begins with "
            f"the names {', '.join(map(str, wanted))}"
        )
    return [cells.index(str(column)) for column in wanted], len(cells)


def _chunk(texts: list[list[str]], labels: list[int]) -> Chunk:
    second = tuple(one[1] for one in texts) if len(texts[0]) == 2 else None
    return Chunk(Texts(tuple(one[0] for one in texts), second), np.array(labels, np.int64))


def _entry(name: str) -> DatasetEntry[GlueSpec]:
    task = TASKS[name]
    return DatasetEntry(
        name=name,
        keys=GlueSpec,
        summary=f"{task.summary}, {task.records[0]:,} + {task.records[1]:,}; GLUE",
        origin="gluebenchmark.com",
        published=True,
        licence="see the task's page",
        find=lambda path, _, __: glue(path, name),
        hub=task.hub,
        contents=lambda _: Contents((), len(task.labels), *task.records),
        check=path_or_revision,
        place=5,
    )


for _name in TASKS:
    register(_entry(_name))
