"""Folders of image files: Tiny-ImageNet as published, and one of your own, a class a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from dpfedadamw.data import hub
from dpfedadamw.data.files import find, folder, where
from dpfedadamw.data.images import ENDINGS, decode
from dpfedadamw.data.lines import lines
from dpfedadamw.data.registry import Contents, DatasetEntry, path_or_revision, register
from dpfedadamw.data.source import Chunk, Images, Reading, Source
from dpfedadamw.errors import DataError
from dpfedadamw.preprocessing import ImagePreprocessing, Preprocessing
from dpfedadamw.spec.data_section import (
    Augmentation,
    CacheFolder,
    DataSpec,
    HeldOut,
    MostRecordsPerPerson,
    PublishedImagesSpec,
    RequiredPath,
)
from dpfedadamw.spec.section import Contradictions, Values, key

_TINY_SIDE = 64
# What a partition by column calls the folder that a client's images lie in.
_FOLDER = "folder"
# Images are larger than the records of other data sets.
_CHUNK = 128


class ImageFolderSpec(DataSpec, title="Image folder"):
    """Image files of your own, a folder a class: CLASS/*, or train/CLASS/* and test/CLASS/*.

    With partition {kind: column, column: folder}, a folder a client: CLIENT/CLASS/*.
    """

    key_order: ClassVar[tuple[str, ...]] = (
        "dataset",
        "path",
        "size",
        "channels",
        "person",
        "most_records_per_person",
    )

    dataset: Literal["image-folder"] = "image-folder"
    path: RequiredPath
    size: int | None = key(
        None,
        "Side of the square that images are resized to; null for the model's size, or where all "
        "images have one size.",
        unit="pixels",
        ge=1,
        le=4096,
        examples=(None, 64),
    )
    channels: Literal[1, 3] = key(3, "3 for colour, 1 for grey.")
    person: str | None = key(
        None,
        "How a file's name says whom the image is about: a text with {person}, such as "
        "'scan-{person}_'. The person is what stands between the text before it and the "
        "first occurrence of the text after it (the name's ending where there is none). Splits and "
        "claims then go by person, as with a column of a table. Null where each image is about "
        "somebody else.",
        title="Person in file names",
        pattern=r"^[ -.0-z|~]{0,100}\{person\}[ -.0-z|~]{0,100}$",
        expected="a text with {person} once, and without / or other braces; or null",
        examples=(None, "{person}_"),
    )
    most_records_per_person: MostRecordsPerPerson = None
    cache: CacheFolder = None
    test_fraction: HeldOut = 0.2
    augmentation: Augmentation = ()


@dataclass(frozen=True)
class ImageFormat:
    """What image files are turned into.

    Attributes:
        channels: 1 for grey, 3 for colour.
        size: Side of the square that they are resized to; None if all have one size.
        interpolation: "bilinear" or "bicubic".
    """

    channels: int
    size: int | None
    interpolation: str


def image_folder(path: Path, form: ImageFormat, person: str | None = None) -> Source:
    """``train/CLASS/*`` and ``test/CLASS/*``, or ``CLASS/*`` alone; classes in order of name.

    A class that occurs in one of the two only is a class all the same.
    """
    root = folder(path)
    split = (root / "train").is_dir() and (root / "test").is_dir()
    roots = {name: root / name for name in ("train", "test")} if split else {"train": root}
    found = {part: _class_folders(base) for part, base in roots.items()}
    classes = sorted({name for names in found.values() for name in names})
    if len(classes) < 2:
        raise DataError(
            f"{where(root)}: holds {len(classes)} class folders with images; needed are two or "
            "more: CLASS/image.png, or train/CLASS/… and test/CLASS/…"
        )
    numbers = {name: number for number, name in enumerate(classes)}
    items = {
        part: [(file, numbers[name]) for name, files in names.items() for file in files]
        for part, names in found.items()
    }
    return _source(root, items, classes, form, str(form), person=person)


def client_folders(path: Path, form: ImageFormat, person: str | None = None) -> Source:
    """``CLIENT/CLASS/*``: a folder a client, named by it; or ``train/CLIENT/…`` and ``test/…``."""
    root = folder(path)
    split = (root / "train").is_dir() and (root / "test").is_dir()
    base = root / "train" if split else root
    held = {
        entry.name: _class_folders(entry)
        for entry in sorted(folder(base).iterdir())
        if entry.is_dir() and not entry.name.startswith(".")
    }
    held = {client: names for client, names in held.items() if names}
    tested = _class_folders(root / "test") if split else {}
    classes = sorted({name for names in (*held.values(), tested) for name in names})
    if not held or len(classes) < 2:
        raise DataError(
            f"{where(root)}: holds {len(held)} client folders and {len(classes)} classes in them; "
            "needed are one client or more, and two classes: CLIENT/CLASS/image.png, or "
            "train/CLIENT/CLASS/… and test/CLASS/…"
        )
    numbers = {name: number for number, name in enumerate(classes)}
    owners: list[str] = []
    items: dict[str, list[tuple[Path, int]]] = {"train": []}
    for client, names in held.items():
        for name, files in names.items():
            items["train"] += [(file, numbers[name]) for file in files]
            owners += [client] * len(files)
    if split:
        items["test"] = [(file, numbers[name]) for name, files in tested.items() for file in files]
    return _source(root, items, classes, form, f"{form} by client", owners, person)


def tiny_imagenet(path: Path, form: ImageFormat) -> Source:
    """Tiny-ImageNet-200: ``train/WNID/images/*.JPEG``; its val folder is the test split."""
    root = folder(path)
    names = [line.strip() for line in lines(find(root, ["wnids.txt"])) if line.strip()]
    numbers = {name: number for number, name in enumerate(sorted(names))}
    if len(numbers) != len(names) or len(names) < 2:
        raise DataError(f"{where(root / 'wnids.txt')}: needs two or more classes, each once")
    train = [
        (file, numbers[name])
        for name in sorted(names)
        for file in _images(folder(root / "train" / name / "images"))
    ]
    annotations = find(root, ["val/val_annotations.txt"])
    test = []
    for number, line in enumerate(lines(annotations), start=1):
        fields = line.split("\t")
        place = f"{where(annotations)}: line {number}"
        if len(fields) < 2 or "/" in fields[0] or not fields[0] or fields[0].startswith("."):
            raise DataError(f"{place}: needed are a file's name, a tab and its class")
        if fields[1] not in numbers:
            raise DataError(f"{place}: its class is not in wnids.txt")
        test.append((root / "val" / "images" / fields[0], numbers[fields[1]]))
    source = _source(root, {"train": train, "test": test}, sorted(names), form, str(form))
    listed = (root / "wnids.txt", annotations)
    return Source(source.root, (*source.files, *listed), source.options, source.read)


def _class_folders(base: Path) -> dict[str, list[Path]]:
    return {
        entry.name: _images(entry)
        for entry in sorted(folder(base).iterdir())
        if entry.is_dir() and not entry.name.startswith(".") and _images(folder(entry))
    }


def _images(base: Path) -> list[Path]:
    return sorted(
        Path(entry)
        for entry in os.scandir(base)
        if entry.name.lower().endswith(ENDINGS) and not entry.name.startswith(".")
    )


def _source(
    root: Path,
    items: dict[str, list[tuple[Path, int]]],
    classes: Sequence[str],
    form: ImageFormat,
    options: str,
    owners: Sequence[str] | None = None,
    person: str | None = None,
) -> Source:
    for part, files in items.items():
        if not files:
            raise DataError(f"{where(root)}: holds no {part} images; see docs/data.md")

    def read() -> Reading:
        parts = {
            part: _chunks(files, form, owners if part == "train" else None, person)
            for part, files in items.items()
        }
        return Reading(parts, len(classes), tuple(classes))

    options += "" if person is None else f" {person}"
    return Source(root, tuple(file for one in items.values() for file, _ in one), options, read)


def _person_of(file: Path, pattern: str) -> str:
    """Whom an image is about, by its file's name.

    Raises:
        DataError: If the name does not say it.
    """
    before, _, after = pattern.partition("{person}")
    name = file.name.removeprefix(before)
    person = (name.partition(after)[0] if after in name else "") if after else Path(name).stem
    if not file.name.startswith(before) or not person.strip():
        raise DataError(
            f"{where(file.parent)}: the name of an image does not follow data.person ({pattern}); "
            "rename it, or give the pattern that all names follow"
        )
    return person.strip()


def _chunks(
    items: Sequence[tuple[Path, int]],
    form: ImageFormat,
    owners: Sequence[str] | None = None,
    person: str | None = None,
) -> Iterator[Chunk]:
    shape: tuple[int, ...] | None = None
    for start in range(0, len(items), _CHUNK):
        part = items[start : start + _CHUNK]
        pictures = []
        for file, _ in part:
            picture = decode(file, form.channels, form.size, form.interpolation)
            shape = shape or picture.shape
            if picture.shape != shape:
                raise DataError(
                    f"{where(file)}: {picture.shape[2]} x {picture.shape[1]} pixels, others are "
                    f"{shape[2]} x {shape[1]}; all must have one; an image-folder takes data.size"
                )
            pictures.append(picture)
        labels = np.array([label for _, label in part], np.int64)
        whose = None if owners is None else tuple(owners[start : start + _CHUNK])
        people = None if person is None else tuple(_person_of(file, person) for file, _ in part)
        yield Chunk(Images(np.stack(pictures)), labels, whose, people)


def _wanted(preprocessing: Preprocessing) -> ImagePreprocessing:
    return preprocessing if isinstance(preprocessing, ImagePreprocessing) else ImagePreprocessing()


def _find_folder(path: Path, keys: ImageFolderSpec, preprocessing: Preprocessing) -> Source:
    form = _wanted(preprocessing)
    # The model's size, unless the spec asks for one.
    shaped = ImageFormat(keys.channels, keys.size or form.size, form.interpolation)
    by_client = keys.partition.kind == "column" and keys.partition.column is not None
    return (client_folders if by_client else image_folder)(path, shaped, keys.person)


def _check_column(get: Values) -> Contradictions:
    """Of folders, only the folder that an image lies in can say whose it is."""
    column = ("data", "partition", "column")
    if get("data", "partition", "kind") == "column" and get(*column) not in (None, _FOLDER):
        yield column, f'found {get(*column)}; image-folder has no column but "{_FOLDER}"'


def _find_tiny(path: Path, _: PublishedImagesSpec, preprocessing: Preprocessing) -> Source:
    form = _wanted(preprocessing)
    # All its images are 64 x 64, so that only a model that reads smaller ones needs them resized.
    size = form.size if form.size is not None and form.size < _TINY_SIDE else None
    return tiny_imagenet(path, ImageFormat(3, size, form.interpolation))


register(
    DatasetEntry(
        name="tiny-imagenet",
        keys=PublishedImagesSpec,
        summary="photographs, 100,000 + 10,000, 64x64 colour, 200 classes; its val is the test "
        "split",
        origin="cs231n.stanford.edu",
        published=True,
        licence="ImageNet's terms",
        find=_find_tiny,
        hub=hub.Published("zh-plus/tiny-imagenet", "default", ("image",), "label", test="valid"),
        contents=lambda _: Contents((3, _TINY_SIDE, _TINY_SIDE), 200, 100_000, 10_000),
        check=path_or_revision,
        place=3,
    ),
    DatasetEntry(
        name="image-folder",
        keys=ImageFolderSpec,
        summary="your own image files in class folders: CLASS/*, or train/CLASS/* and "
        "test/CLASS/*; or CLIENT/CLASS/*, one folder per client",
        origin="yours",
        licence="yours",
        find=_find_folder,
        check=_check_column,
        has_columns=True,
        place=6,
    ),
)
