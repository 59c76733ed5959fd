"""The cache of prepared records: used, private, keyed by what matters, mended when damaged."""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path

import numpy as np
import pytest

from dpfedadamw.data import cache
from dpfedadamw.data.datasets import load
from dpfedadamw.data.formats import idx
from dpfedadamw.errors import DataError
from dpfedadamw.preprocessing import ImagePreprocessing
from tests.dpfedadamw.data import published
from tests.dpfedadamw.data.published import data_spec


@pytest.fixture
def spec(tmp_path):
    published.write_mnist(tmp_path / "mnist")
    return data_spec("mnist", tmp_path / "mnist", cache=str(tmp_path / "cache"))


def entries(spec) -> list[Path]:
    return sorted(Path(spec.cache).iterdir())


def test_records_are_decoded_once(spec, monkeypatch):
    first = load(spec)
    monkeypatch.setattr(idx, "_chunks", lambda *_, **__: pytest.fail("decoded again"))
    second = load(spec)
    assert isinstance(second.train.inputs.values, np.memmap)
    assert (second.train.inputs.values == first.train.inputs.values).all()
    # A mean belongs to each batch, a smaller size to what is stored.
    load(spec, ImagePreprocessing(mean=(0.5,)))
    with pytest.raises(pytest.fail.Exception):
        load(spec, ImagePreprocessing(size=14))


def test_entries_are_their_owners_alone(spec):
    load(spec)
    (entry,) = entries(spec)
    assert stat.S_IMODE(entry.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in entry.iterdir()} == {0o600}


@pytest.mark.parametrize("file", ["train.records", "test.labels", "entry.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_entry_is_made_again(spec, file, damage):
    expected = load(spec)
    kept = np.array(expected.train.inputs.values)
    target = entries(spec)[0] / file
    content = bytearray(target.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
    if damage == "gone":
        target.unlink()
    else:
        target.write_bytes(content[:-3] if damage == "cut" else content)
    data = load(spec)
    assert (data.train.inputs.values == kept).all()
    assert (data.test.labels == expected.test.labels).all()
    assert len(entries(spec)) == 1


def test_a_reader_that_fails_leaves_nothing_behind(spec):
    labels = Path(spec.path) / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(labels.read_bytes()[:-10])
    with pytest.raises(DataError):
        load(spec)
    assert entries(spec) == []


def test_data_that_change_while_they_are_read_are_refused(spec, monkeypatch):
    labels = Path(spec.path) / "train-labels-idx1-ubyte.gz"
    prepared = cache.prepared

    def meanwhile(*arguments):
        labels.write_bytes(labels.read_bytes() + b"\0")
        return prepared(*arguments)

    monkeypatch.setattr(cache, "prepared", meanwhile)
    with pytest.raises(DataError, match="was changed while it was read"):
        load(spec)


def test_a_folder_that_cannot_be_written_is_told(spec, tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(DataError, match=r"data\.cache: .*give data\.cache a folder"):
        load(spec)


def test_the_users_own_cache_is_where_the_standard_says(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.folder(None) == Path("/somewhere/dpfedadamw")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.folder(None) == Path.home() / ".cache" / "dpfedadamw"
    assert cache.folder("/mine") == Path("/mine")


@pytest.mark.parametrize("other", [1, 3, None])
def test_an_entry_of_another_format_is_made_again(spec, other):
    """Whole as it is: another version wrote it, and meant something else by it."""
    load(spec)
    file = entries(spec)[0] / "entry.json"
    described = json.loads(file.read_text())
    assert described.pop("format") == 2
    del described["sha256"]
    described |= {} if other is None else {"format": other}
    seal = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
    file.write_text(json.dumps({**described, "sha256": seal}))
    load(spec)
    assert json.loads(file.read_text())["format"] == 2
