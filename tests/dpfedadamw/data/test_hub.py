"""The Hugging Face hub, played by a module in its place: what is asked of it, and what is told."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

from dpfedadamw.data.datasets import load
from dpfedadamw.data.registry import DATASETS
from dpfedadamw.errors import DataError
from tests.dpfedadamw.data import published
from tests.dpfedadamw.data.published import TOY_TEXT, data_spec

REVISION = "0123456789abcdef0123456789abcdef01234567"


class Split:
    """As much of a `datasets.Dataset` as is used."""

    def __init__(self, columns, classes):
        self.columns = columns
        self.features = {name: object() for name in columns}
        self.features["label"] = types.SimpleNamespace(num_classes=classes)

    def __len__(self):
        return len(self.columns["label"])

    def __getitem__(self, part):
        return {name: values[part] for name, values in self.columns.items()}

    def cast_column(self, name, feature):
        assert feature == "encoded"
        return self


@pytest.fixture
def hub(monkeypatch):
    """A hub that holds what a test puts into it, and a list of what was asked."""
    module = types.ModuleType("datasets")
    asked, held = [], {}

    def load_dataset(repository, configuration, revision):
        asked.append((repository, configuration, revision))
        if not held:
            raise ConnectionError("no route to host\nand more lines")
        return held

    module.load_dataset = load_dataset
    module.Image = lambda decode: "encoded" if not decode else "decoded"
    monkeypatch.setitem(sys.modules, "datasets", module)
    return types.SimpleNamespace(asked=asked, held=held)


def test_images_of_the_hub_are_decoded_and_kept(hub, tmp_path):
    pictures = [{"bytes": published.picture(n, (32, 32), form="PNG")} for n in range(6)]
    columns = {"img": pictures, "label": [0, 1, 2, 3, 4, 5]}
    hub.held |= {"train": Split(columns, 10), "test": Split(columns, 10)}
    spec = data_spec("cifar10", revision=REVISION, cache=str(tmp_path))
    data = load(spec)
    assert hub.asked == [("uoft-cs/cifar10", "plain_text", REVISION)]
    assert data.input_shape == (3, 32, 32)
    assert data.classes == 10
    # Kept under the pinned revision: a second run asks for nothing.
    assert load(spec).sha256 == data.sha256
    assert len(hub.asked) == 1
    assert len(data.sha256) == 64


def test_texts_of_the_hub_are_tokenised_and_a_mirror_may_be_named(hub, tmp_path):
    columns = {"sentence1": ["a b", "c"], "sentence2": ["d", "e f"], "label": [1, 0]}
    hub.held |= {name: Split(columns, 2) for name in ("train", "validation")}
    spec = data_spec("rte", revision=REVISION, repository="me/glue", cache=str(tmp_path))
    data = load(spec, TOY_TEXT)
    assert hub.asked == [("me/glue", "rte", REVISION)]
    expected = TOY_TEXT.encode(columns["sentence1"], columns["sentence2"])
    assert (np.asarray(data.train.inputs.values) == expected).all()


def test_withheld_labels_and_missing_columns_are_refused(hub, tmp_path):
    spec = data_spec("sst2", revision=REVISION, cache=str(tmp_path))
    columns = {"sentence": ["a"], "label": [-1]}
    hub.held |= {name: Split(columns, 2) for name in ("train", "validation")}
    with pytest.raises(DataError, match="records without a label"):
        load(spec, TOY_TEXT)
    hub.held |= {"train": Split({"text": ["a"], "label": [1]}, 2)}
    with pytest.raises(DataError, match="has no column 'sentence'"):
        load(spec, TOY_TEXT)
    del hub.held["validation"]
    with pytest.raises(DataError, match="has no split 'validation'"):
        load(spec, TOY_TEXT)


def test_without_a_network_one_line_says_what_to_do(hub, tmp_path):
    with pytest.raises(DataError) as caught:
        load(data_spec("mnist", revision=REVISION, cache=str(tmp_path)))
    assert "no route to host); check the network" in str(caught.value)
    assert "give data.path" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_the_package_one_line_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'dpfedadamw\[hub\]'"):
        load(data_spec("mnist", revision=REVISION, cache=str(tmp_path)))


GLUE = "nyu-mll/glue"
# Repository, configuration, columns, label, held-out split and, of images, channels.
PUBLISHED = {
    "mnist": ("ylecun/mnist", "mnist", ("image",), "label", "test", 1),
    "fashion-mnist": (
        "zalando-datasets/fashion_mnist", "fashion_mnist", ("image",), "label", "test", 1
    ),
    "cifar10": ("uoft-cs/cifar10", "plain_text", ("img",), "label", "test", 3),
    "cifar100": ("uoft-cs/cifar100", "cifar100", ("img",), "fine_label", "test", 3),
    "tiny-imagenet": ("zh-plus/tiny-imagenet", "default", ("image",), "label", "valid", 3),
    "sst2": (GLUE, "sst2", ("sentence",), "label", "validation"),
    "cola": (GLUE, "cola", ("sentence",), "label", "validation"),
    "mrpc": (GLUE, "mrpc", ("sentence1", "sentence2"), "label", "test"),
    "rte": (GLUE, "rte", ("sentence1", "sentence2"), "label", "validation"),
    "qnli": (GLUE, "qnli", ("question", "sentence"), "label", "validation"),
    "qqp": (GLUE, "qqp", ("question1", "question2"), "label", "validation"),
    "mnli-matched": (GLUE, "mnli", ("premise", "hypothesis"), "label", "validation_matched"),
    "mnli-mismatched": (GLUE, "mnli", ("premise", "hypothesis"), "label", "validation_mismatched"),
}  # fmt: skip


def test_every_data_set_of_the_hub_is_asked_for_as_its_page_names_it():
    found = {}
    for name, entry in DATASETS.items():
        if (one := entry.hub) is not None:
            assert (one.train, one.revision) == ("train", "")
            found[name] = one.repository, one.configuration, one.columns, one.label, one.test
            found[name] += (one.channels,) if one.images else ()
    assert found == PUBLISHED
