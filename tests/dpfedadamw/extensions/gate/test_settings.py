"""gate.yaml: ten lines, read strictly, each mistake in one line with its place."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

from dpfedadamw.errors import SpecError
from dpfedadamw.extensions.gate import settings
from dpfedadamw.extensions.gate.settings import Form
from tests.dpfedadamw.extensions.gate.conftest import GATE


def read(tmp_path, **changes):
    path = tmp_path / "gate.yaml"
    path.write_text(settings.write({**GATE, **changes}), encoding="utf-8")
    return settings.read(path)


def test_what_is_written_is_read(tmp_path):
    found = read(tmp_path)
    assert (found.unit, found.shards, found.clip, found.noise_multiplier) == ("record", 4, 0.5, 4.0)
    assert (found.epsilon, found.delta) == (1.8, 1e-5)
    assert dict(found.model) == {"weight": Form((3, 2), "float32"), "bias": Form((2,), "float64")}
    assert found.ledger == tmp_path / "ledger"
    assert found.anchor == tmp_path / "elsewhere" / "head.json"


def test_the_arrays_may_be_those_of_a_file(tmp_path):
    save_file(
        {"w": np.zeros((2, 3), "f4"), "scalar": np.zeros((), "f8")}, tmp_path / "m.safetensors"
    )
    found = read(tmp_path, model="m.safetensors")
    assert dict(found.model) == {"w": Form((2, 3), "float32"), "scalar": Form((), "float64")}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"unit": "patient"}, "unit: found the text \"patient\"; must be record, person or"),
        ({"shards": 0}, "shards: found 0; must be an integer from 1 to 4096"),
        ({"shards": 2.5}, "must be an integer"),
        ({"shards": True}, "must be an integer"),
        ({"unit": "site"}, "shards: found 4; must be 1 where the unit is the site"),
        ({"clip": "much"}, "clip: found the text \"much\"; must be a number"),
        ({"clip": -1.0}, "clip: found -1.0; must be from 1e-12 to 1e+12"),
        ({"noise_multiplier": 0.0}, "noise_multiplier: found 0.0; must be from 0.01"),
        ({"budget": {"epsilon": 2.0}}, "budget: the key delta is missing"),
        ({"budget": 2.0}, "budget: found 2.0; must be a mapping with the keys epsilon, delta"),
        ({"budget": {"epsilon": 2.0, "delta": 1.0}}, "budget.delta: found 1.0"),
        ({"model": {"w": "int64[3]"}}, "model.w: found the text \"int64[3]\"; must be a type"),
        ({"model": {}}, "must be arrays by name"),
        ({"model": {"w": "float32[0]"}}, "model: has 0 coordinates"),
        ({"model": "none.safetensors"}, "cannot be read as a .safetensors file"),
        ({"ledger": 5}, "ledger: found 5; must be a path"),
        ({"anchor": "ledger/head2.json"}, "must be outside the ledger's folder"),
        ({"sigma": 5}, "sigma: unknown key"),
        ({"clip": None}, "the key clip is missing"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_its_place(tmp_path, changes, said):
    with pytest.raises(SpecError) as error:
        read(tmp_path, **changes)
    assert said in str(error.value)
    assert "gate.yaml:" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_with_integers_cannot_be_noised(tmp_path):
    save_file({"steps": np.zeros(2, "i8")}, tmp_path / "m.safetensors")
    with pytest.raises(SpecError, match="steps has the type I64; only F32 and F64"):
        read(tmp_path, model="m.safetensors")
