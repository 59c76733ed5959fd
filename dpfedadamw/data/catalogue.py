"""Every data set that a spec can name: what it is, where it comes from, and who reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dpfedadamw.data import arrays, cifar, folders, glue, hub, idx, tables
from dpfedadamw.data.errors import DataError
from dpfedadamw.data.folders import ImageFormat
from dpfedadamw.data.source import Source
from dpfedadamw.preprocessing import ImagePreprocessing, Preprocessing
from dpfedadamw.spec import DataSpec


@dataclass(frozen=True)
class Entry:
    """A data set.

    Attributes:
        summary: What it is.
        origin: Where to get it.
        licence: A hint at its licence; the publisher's own words count.
        find: Finds it at a path; None where nothing is read.
        hub: The same on the Hugging Face hub, or None.
    """

    summary: str
    origin: str
    licence: str
    find: Callable[[Path, DataSpec, Preprocessing], Source] | None
    hub: hub.Published | None = None


def _form(spec: DataSpec, preprocessing: Preprocessing, channels: int) -> ImageFormat:
    """What image files are decoded to: the model's size, unless the spec asks for one."""
    form = preprocessing if isinstance(preprocessing, ImagePreprocessing) else ImagePreprocessing()
    return ImageFormat(channels, spec.size or form.size, form.interpolation)


def _tiny(path: Path, spec: DataSpec, preprocessing: Preprocessing) -> Source:
    # All its images are 64 x 64, so that only a model that reads smaller ones needs them resized.
    form = _form(spec, preprocessing, channels=3)
    size = form.size if form.size is not None and form.size < folders.TINY_SIDE else None
    return folders.tiny_imagenet(path, ImageFormat(3, size, form.interpolation))


def _table(path: Path, spec: DataSpec, _: Preprocessing) -> Source:
    kind = spec.partition.kind
    columns = tables.Columns(
        label=spec.label or "",
        text=spec.text or (),
        numbers=spec.numbers or (),
        client=spec.partition.column if kind == "column" else None,
        classes=spec.classes or (),
    )
    return tables.table(path, Path(spec.test_path) if spec.test_path else None, columns)


def _glue(
    name: str, summary: str, configuration: str, columns: tuple[str, ...], test: str = "validation"
) -> Entry:
    return Entry(
        f"{summary}; GLUE",
        "gluebenchmark.com",
        "see the task's page",
        lambda path, _, __: glue.glue(path, name),
        hub.Published("nyu-mll/glue", configuration, columns, "label", "train", test),
    )


_PAIR = ("sentence1", "sentence2")
CATALOGUE: dict[str, Entry] = {
    "digits": Entry(
        "scikit-learn's 1,797 handwritten digits, 8x8 grey, 10 classes; needs no download",
        "comes with scikit-learn",
        "CC BY 4.0 (UCI)",
        None,
    ),
    "mnist": Entry(
        "handwritten digits, 60,000 + 10,000, 28x28 grey, 10 classes; IDX",
        "yann.lecun.com/exdb/mnist",
        "CC BY-SA 3.0",
        lambda path, _, __: idx.mnist(path),
        hub.Published("ylecun/mnist", "mnist", ("image",), "label", channels=1),
    ),
    "fashion-mnist": Entry(
        "Zalando's articles, 60,000 + 10,000, 28x28 grey, 10 classes; IDX",
        "github.com/zalandoresearch/fashion-mnist",
        "MIT",
        lambda path, _, __: idx.mnist(path),
        hub.Published(
            "zalando-datasets/fashion_mnist", "fashion_mnist", ("image",), "label", channels=1
        ),
    ),
    "emnist": Entry(
        "handwritten letters and digits, 28x28 grey, six splits of 10 to 62 classes; IDX",
        "nist.gov, EMNIST dataset",
        "public domain (NIST)",
        lambda path, spec, _: idx.emnist(path, spec.split or "balanced"),
    ),
    "cifar10": Entry(
        "small photographs, 50,000 + 10,000, 32x32 colour, 10 classes; binary version",
        "cs.toronto.edu/~kriz/cifar.html",
        "not stated",
        lambda path, _, __: cifar.cifar(path, "cifar10"),
        hub.Published("uoft-cs/cifar10", "plain_text", ("img",), "label"),
    ),
    "cifar100": Entry(
        "small photographs, 50,000 + 10,000, 32x32 colour, 100 classes; binary version",
        "cs.toronto.edu/~kriz/cifar.html",
        "not stated",
        lambda path, _, __: cifar.cifar(path, "cifar100"),
        hub.Published("uoft-cs/cifar100", "cifar100", ("img",), "fine_label"),
    ),
    "tiny-imagenet": Entry(
        "photographs, 100,000 + 10,000, 64x64 colour, 200 classes; its val is the test split",
        "cs231n.stanford.edu",
        "ImageNet's terms",
        _tiny,
        hub.Published("zh-plus/tiny-imagenet", "default", ("image",), "label", test="valid"),
    ),
    "sst2": _glue("sst2", "sentiment of sentences, 67,349 + 872", "sst2", ("sentence",)),
    "cola": _glue("cola", "acceptability of sentences, 8,551 + 1,043", "cola", ("sentence",)),
    "mrpc": _glue("mrpc", "paraphrases, 4,076 + 1,725", "mrpc", _PAIR, "test"),
    "rte": _glue("rte", "entailment, 2,490 + 277", "rte", _PAIR),
    "qnli": _glue(
        "qnli", "answers to questions, 104,743 + 5,463", "qnli", ("question", "sentence")
    ),
    "qqp": _glue("qqp", "duplicate questions, 363,846 + 40,430", "qqp", ("question1", "question2")),
    "mnli-matched": _glue(
        "mnli-matched",
        "entailment in three classes, 392,702 + 9,815",
        "mnli",
        ("premise", "hypothesis"),
        "validation_matched",
    ),
    "mnli-mismatched": _glue(
        "mnli-mismatched",
        "the same, tested on other genres, 392,702 + 9,832",
        "mnli",
        ("premise", "hypothesis"),
        "validation_mismatched",
    ),
    "image-folder": Entry(
        "your own image files in class folders: CLASS/*, or train/CLASS/* and test/CLASS/*",
        "yours",
        "yours",
        lambda path, spec, form: folders.image_folder(path, _form(spec, form, spec.channels or 3)),
    ),
    "table": Entry(
        "your own CSV or TSV: one or two columns of text, or columns of numbers, and a label",
        "yours",
        "yours",
        _table,
    ),
    "arrays": Entry(
        "your own .npz with x_train, y_train, x_test, y_test (numbers only)",
        "yours",
        "yours",
        lambda path, _, __: arrays.arrays(path),
    ),
}


def source(spec: DataSpec, preprocessing: Preprocessing) -> Source:
    """Find the data set that a spec names.

    Raises:
        DataError: If it is not there.
    """
    entry = CATALOGUE[spec.dataset]
    assert entry.find is not None
    if spec.path is not None:
        try:
            return entry.find(Path(spec.path), spec, preprocessing)
        except OSError as error:
            reason = error.strerror or str(error)
            raise DataError(f"data.path: {spec.path}: cannot be read ({reason})") from None
    if entry.hub is None or spec.revision is None:
        raise DataError(f"data.path: missing; {spec.dataset} is read from a path")
    return hub.source(entry.hub.at(spec.repository, spec.revision))
