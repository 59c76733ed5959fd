"""The Hugging Face hub, at a pinned revision; the package `datasets` is loaded only for it.

Repositories that need code of their own to be read are refused by that package. Images are taken in
their encoded form and decoded here, as those of a folder are.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from dpfedadamw.data.images import decode_stream
from dpfedadamw.data.source import CHUNK, Chunk, Images, Reading, Source, Texts
from dpfedadamw.errors import DataError


@dataclass(frozen=True)
class Published:
    """A data set on the hub.

    Attributes:
        repository: OWNER/NAME.
        configuration: Which of the repository's data sets.
        columns: One column of images, or one or two of text.
        label: Column of the class.
        train: Its training split.
        test: Its labelled held-out split.
        channels: Of images: 1 for grey, 3 for colour.
        revision: Commit, 40 hexadecimal digits; empty until pinned.
    """

    repository: str
    configuration: str
    columns: tuple[str, ...]
    label: str
    train: str = "train"
    test: str = "test"
    channels: int = 3
    revision: str = ""

    @property
    def images(self) -> bool:
        """Whether records are images."""
        return self.columns in (("image",), ("img",))

    def at(self, repository: str | None, revision: str) -> Published:
        """The same, pinned; perhaps in another repository, such as a mirror."""
        return replace(self, repository=repository or self.repository, revision=revision)


def source(published: Published) -> Source:
    """A pinned data set; it is fetched when it is read."""

    def read() -> Reading:
        loaded = _load(published)
        for split in (published.train, published.test):
            if split not in loaded:
                raise DataError(f"{_where(published)}: has no split {split!r}")
        labels = loaded[published.train].features[published.label]
        parts = {
            "train": _chunks(loaded[published.train], published),
            "test": _chunks(loaded[published.test], published),
        }
        names = tuple(map(str, getattr(labels, "names", None) or ()))
        return Reading(parts, getattr(labels, "num_classes", None), names)

    return Source(Path(published.repository), (), repr(published), read)


def _where(published: Published) -> str:
    return f"data.revision: {published.repository} at {published.revision[:12]}"


def _load(published: Published) -> Any:
    try:
        library = importlib.import_module("datasets")
    except ImportError:
        raise DataError(
            "data.revision: reading from the hub needs the package datasets: pip install "
            "'dpfedadamw[hub]', or download the publisher's files and give data.path"
        ) from None
    try:
        return library.load_dataset(
            published.repository, published.configuration, revision=published.revision
        )
    except Exception as error:
        # Whatever fails in there, from the network to the repository, is one line to the user.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise DataError(
            f"{_where(published)}: cannot be fetched ({type(error).__name__}: {reason}); check the "
            "network and the revision, or download the publisher's files and give data.path"
        ) from None


def _chunks(split: Any, published: Published) -> Iterator[Chunk]:
    wanted = [*published.columns, published.label]
    missing = [column for column in wanted if column not in split.features]
    if missing:
        raise DataError(f"{_where(published)}: has no column {missing[0]!r}")
    if published.images:
        library = importlib.import_module("datasets")
        split = split.cast_column(published.columns[0], library.Image(decode=False))
    for start in range(0, len(split), CHUNK):
        part = split[start : start + CHUNK]
        labels = np.array(part[published.label], np.int64)
        if len(labels) and labels.min() < 0:
            raise DataError(f"{_where(published)}: holds records without a label")
        if published.images:
            pixels = [
                decode_stream(BytesIO(one["bytes"]), _where(published), published.channels, None)
                for one in part[published.columns[0]]
            ]
            if len({picture.shape for picture in pixels}) > 1:
                raise DataError(f"{_where(published)}: images differ in size")
            yield Chunk(Images(np.stack(pixels)), labels)
        else:
            first, *rest = (tuple(part[column]) for column in published.columns)
            yield Chunk(Texts(first, rest[0] if rest else None), labels)
