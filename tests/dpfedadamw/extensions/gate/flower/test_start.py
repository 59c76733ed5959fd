"""What `gate supernode` refuses before it starts anything: one line each, exit code 2."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.runs import call

pytest.importorskip("flwr.app", reason="Flower has an environment of its own: tox run -e flower")

pytestmark = pytest.mark.flower


@pytest.fixture
def settings(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "keys"))
    save_file({"weights": np.zeros(3, np.float32)}, tmp_path / "model.safetensors")
    made = (
        "gate", "init", tmp_path / "gate", "--unit", "record", "--shards", 2, "--model",
        tmp_path / "model.safetensors", "--clip", 1, "--epsilon", 2, "--delta", 1e-5,
        "--releases", 3, "--anchor", tmp_path / "anchor" / "head.json",
    )  # fmt: skip
    assert call(*map(str, made)) == 0
    for shard in range(2):
        (tmp_path / "data" / f"shard-{shard}").mkdir(parents=True)
    capsys.readouterr()
    return tmp_path / "gate" / "gate.yaml"


def refused(capsys, settings, *changes):
    data = str(settings.parents[1] / "data")
    command = ("gate", "supernode", str(settings), "--superlink", "127.0.0.1:9", "--data", data)
    assert call(*command, *map(str, changes)) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


def test_shards_that_are_not_as_many_as_the_settings_say(settings, capsys):
    (settings.parents[1] / "data" / "shard-2").mkdir()
    assert "holds 3 folders; must hold one a shard, of which gate.yaml has 2" in refused(
        capsys, settings
    )


def test_a_folder_of_data_that_is_not_there(settings, tmp_path, capsys):
    line = refused(capsys, settings, "--data", tmp_path / "none")
    assert f"{tmp_path / 'none'}: holds 0 folders" in line


def test_no_time_in_which_shards_could_train(settings, capsys):
    line = refused(capsys, settings, "--reply-after", 0.5)
    assert (
        "--reply-after: found 0.5; must be more than the 1 seconds that a release may take" in line
    )


def test_settings_that_are_not_there(settings, tmp_path, capsys):
    assert "none.yaml" in refused(capsys, tmp_path / "gate" / "none.yaml")
