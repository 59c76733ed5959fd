"""gate.yaml: ten lines, read strictly, each mistake in one line with its place."""

from __future__ import annotations

import json

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


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("clip", 1e-12, 1e12), ("noise_multiplier", 0.01, 1e6), ("epsilon", 1e-6, 1e6),
     ("delta", 1e-10, 0.5), ("shards", 1, 4096)],
)  # fmt: skip
def test_a_number_may_lie_anywhere_from_its_least_to_its_most_and_nowhere_else(
    tmp_path, name, least, most
):
    def with_value(value):
        in_budget = {"budget": {**GATE["budget"], name: value}}
        return read(tmp_path, **(in_budget if name in GATE["budget"] else {name: value}))

    for value in (least, most):
        assert getattr(with_value(value), name) == value
    beyond = (0, 4097) if name == "shards" else (least * 0.999, most * 1.001)
    for value in beyond:
        with pytest.raises(SpecError, match=f"{name}: found .*; must be .*from"):
            with_value(value)


def test_a_number_may_be_written_without_a_point(tmp_path):
    assert read(tmp_path, clip=2, budget={"epsilon": 2, "delta": 1e-5}).clip == 2.0
    with pytest.raises(SpecError, match="clip: found true; must be a number"):
        read(tmp_path, clip=True)


def test_each_key_that_is_written_says_what_it_means(tmp_path):
    lines = settings.write(GATE).splitlines()
    told = {line.partition(":")[0] for line in lines if "  # " in line}
    assert told == set(GATE)
    read(tmp_path)


def test_a_site_is_one_shard(tmp_path):
    assert read(tmp_path, unit="site", shards=1).shards == 1


def test_places_are_those_of_the_user_or_start_at_the_files_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    found = read(tmp_path, ledger="~/ledger", anchor="../anchor.json")
    assert found.ledger == tmp_path / "home" / "ledger"
    assert found.anchor == tmp_path.parent / "anchor.json"


def test_a_model_has_up_to_two_to_the_31_coordinates(tmp_path):
    most = read(tmp_path, model={"w": "float32[65536, 32767]", "b": "float64[65536]"})
    assert sum(map(settings.size_of, most.model.values())) == 2**31
    with pytest.raises(SpecError, match="has 2,147,549,184 coordinates; must have from 1 to 2,14"):
        read(tmp_path, model={"w": "float32[65536,32769]"})


def test_a_form_is_written_as_it_is_read(tmp_path):
    forms = {"scalar": "float64[]", "row": "float32[7]", "table": "float32[64, 10]"}
    assert {name: str(form) for name, form in read(tmp_path, model=forms).model.items()} == forms


def header_only(path, header):
    """A .safetensors file without values."""
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    return path


def array(*shape):
    return {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}


def test_a_file_gives_names_and_shapes_by_its_header_alone(tmp_path):
    made = header_only(
        tmp_path / "m.safetensors",
        {"__metadata__": {"format": "pt"}, "deep": array(*[1] * 64), "empty": array(0, 3)},
    )
    found = settings.model_of_file(made)
    assert found == {"deep": Form((1,) * 64, "float32"), "empty": Form((0, 3), "float32")}


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ([], "its header is no mapping"),
        ({"w": array(*[1] * 65)}, "shape is not a list of at most 64"),
        ({"w": array(-1)}, "shape"),
        ({"w": array(0)}, "has 0 coordinates"),
        ({}, "has 0 coordinates"),
    ],
)
def test_a_header_that_names_no_arrays_is_one_line(tmp_path, header, said):
    made = header_only(tmp_path / "m.safetensors", header)
    with pytest.raises(ValueError, match=said) as error:
        settings.model_of_file(made)
    assert str(error.value).startswith(f"{made}: ")


@pytest.mark.parametrize("content", [b"", bytes(8), (3).to_bytes(8, "little") + b"{}"])
def test_a_header_that_is_not_as_long_as_it_says_is_one_line(tmp_path, content):
    made = tmp_path / "m.safetensors"
    made.write_bytes(content)
    with pytest.raises(ValueError, match="its header has another length than it says"):
        settings.model_of_file(made)


def test_all_that_is_wrong_is_said_at_once_each_at_its_line(tmp_path):
    with pytest.raises(SpecError) as error:
        read(tmp_path, sigma=5, clip=None, shards="many", model={"w": "x", "v": 3})
    lines = {one.path: one.line for one in error.value.problems}
    text = (tmp_path / "gate.yaml").read_text("utf-8").splitlines()
    assert lines.keys() == {"sigma", "", "shards", "model.w", "model.v"}
    assert [text[lines[name] - 1].split(":")[0].strip() for name in ("sigma", "model.v")] == [
        "sigma", "v",
    ]  # fmt: skip


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
        ({"ledger": "~no-such-user/x"}, 'found the text "~no-such-user/x"; must be a path'),
        ({"anchor": "ledger/h"}, 'anchor: found the text "ledger/h"; must be outside the ledger'),
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


LINES = """\
unit: patient
shards: 4
clip: 0.5
noise_multiplier: 4.0
budget: {epsilon: 1.8, delta: 7}
model: {w: "int64[3]"}
ledger: ledger
anchor: 5
sigma: 5
"""


def test_a_mistake_stands_at_the_column_of_its_value_and_an_unknown_key_at_its_own(tmp_path):
    with pytest.raises(SpecError) as error:
        settings.parse(LINES, tmp_path / "gate.yaml")
    found = {one.path: (one.line, one.column) for one in error.value.problems}
    lines = LINES.splitlines()
    wanted = {
        "unit": "patient", "budget.delta": "7", "model.w": '"int64', "anchor": "5",
        "sigma": "sigma",
    }  # fmt: skip
    assert found.keys() == wanted.keys()
    for path, text in wanted.items():
        line, column = found[path]
        assert lines[line - 1].startswith(path.partition(".")[0])
        assert lines[line - 1].index(text) == column - 1


@pytest.mark.parametrize(
    ("form", "shape"),
    [
        ("float32[3,4]", (3, 4)),
        ("float64[]", ()),
        ("float32[999999999]", (999_999_999,)),
        ("float32[1000000000]", None),
        ("float32[3,]", None),
        ("float32[3,  4]", None),
        ("float32[-3]", None),
        ("float16[3]", None),
        ("float32[3] ", None),
        ("float32", None),
    ],
)
def test_a_form_is_a_type_and_a_shape_and_nothing_else(tmp_path, form, shape):
    if shape is None:
        with pytest.raises(SpecError, match=r"model\.w: found .*; must be a type and a shape"):
            read(tmp_path, model={"w": form})
    else:
        assert read(tmp_path, model={"w": form}).model["w"].shape == shape


def test_anchor_and_ledger_must_not_be_one_place_and_may_lie_side_by_side(tmp_path):
    for anchor in ("ledger", "ledger/deep/head.json", "other/../ledger/h"):
        with pytest.raises(SpecError, match="must be outside the ledger's folder"):
            read(tmp_path, anchor=anchor)
    assert read(tmp_path, anchor="ledger.json").anchor == tmp_path / "ledger.json"
