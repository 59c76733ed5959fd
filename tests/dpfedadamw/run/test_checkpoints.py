"""The state between two rounds as bytes, the final weights, and the list of what they hold."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save_file
from torch import Tensor, nn

from dpfedadamw.algorithms.base import ServerState
from dpfedadamw.run import checkpoints
from dpfedadamw.run.checkpoints import RoundNumbers, pack_state, unpack_state
from dpfedadamw.rundir import RunDirectoryError

NUMBERS = RoundNumbers(0.125, 300, None, False)


class Server:
    """Carries a momentum and a count from round to round."""

    def start(self, parameters: Tensor) -> ServerState:
        return ServerState(parameters, {"momentum": parameters * 0, "count": torch.zeros(())}, {})


def state() -> ServerState:
    return ServerState(
        torch.arange(5.0),
        {"momentum": torch.arange(5.0) * 2, "count": torch.tensor(7.0)},
        {3: {"control.own": torch.ones(5), "age": torch.tensor([4])}, 11: {"age": torch.zeros(1)}},
    )


@pytest.mark.parametrize(
    "numbers", [NUMBERS, RoundNumbers(1e-300, None, 2**40, True), RoundNumbers(0.1, 0, 0, False)]
)
def test_a_state_that_is_read_again_is_the_same(numbers: RoundNumbers) -> None:
    packed = pack_state(state(), numbers)
    found, told = unpack_state(packed, Server(), torch.zeros(5))
    assert told == numbers
    assert torch.equal(found.parameters, state().parameters)
    assert {name: one.tolist() for name, one in found.state.items()} == {
        "momentum": [0.0, 2.0, 4.0, 6.0, 8.0],
        "count": 7.0,
    }
    assert {
        client: {name: one.tolist() for name, one in memory.items()}
        for client, memory in found.memories.items()
    } == {3: {"control.own": [1.0] * 5, "age": [4]}, 11: {"age": [0.0]}}
    # The same state has the same bytes: a ledger names their digest.
    assert pack_state(found, told) == packed


def test_another_state_has_other_bytes() -> None:
    plain = pack_state(state(), NUMBERS)
    others = [
        pack_state(replace(state(), parameters=torch.ones(5)), NUMBERS),
        pack_state(replace(state(), memories={}), NUMBERS),
        *(
            pack_state(state(), replace(NUMBERS, **change))
            for change in (
                {"learning_rate": 0.25},
                {"bytes_up": None},
                {"bytes_down": 1},
                {"last": True},
            )
        ),
    ]
    assert len({plain, *others}) == 7


def without_momentum() -> ServerState:
    return replace(state(), state={"count": torch.tensor(7.0)})


def with_more() -> ServerState:
    return replace(state(), state={**state().state, "second": torch.zeros(5)})


@pytest.mark.parametrize(
    "content",
    [
        pack_state(replace(state(), parameters=torch.zeros(6)), NUMBERS),
        pack_state(without_momentum(), NUMBERS),
        pack_state(with_more(), NUMBERS),
    ],
)
def test_a_state_of_another_model_or_algorithm_is_refused(content: bytes) -> None:
    with pytest.raises(RunDirectoryError, match="belongs to another model or algorithm"):
        unpack_state(content, Server(), torch.zeros(5))


@pytest.mark.parametrize(
    "harm", [lambda c: b"", lambda c: c[:-1], lambda c: c[:40], lambda c: b"x" * 99]
)
def test_a_torn_state_is_refused_in_one_line(harm) -> None:
    with pytest.raises(RunDirectoryError, match="not a readable state") as caught:
        unpack_state(harm(pack_state(state(), NUMBERS)), Server(), torch.zeros(5))
    assert len(str(caught.value).splitlines()) == 1


def test_a_state_without_its_round_is_refused() -> None:
    from dpfedadamw.vectors.packing import packed

    with pytest.raises(RunDirectoryError, match="not a readable state"):
        unpack_state(packed({"parameters": torch.zeros(5)}, {}), Server(), torch.zeros(5))


def test_the_largest_state_counts_every_client_at_the_most_that_one_keeps() -> None:
    # Five and five float32 and one scalar; the larger memory has five float32 and one int64.
    assert checkpoints.largest_state(state(), 20) == 4 * 11 + 20 * (4 * 5 + 8)
    assert checkpoints.largest_state(state(), 0) == 4 * 11
    assert checkpoints.largest_state(replace(state(), memories={}), 20) == 4 * 11


class Model(nn.Module):
    """A trained layer, a frozen one, a buffer, a second name and one tensor from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(3, 2)
        self.body = nn.Linear(2, 2, bias=False).requires_grad_(False)
        self.again = self.head
        self.published = nn.Linear(4, 4)
        self.published.requires_grad_(False)
        self.fetched = frozenset({"published.weight", "published.bias"})
        self.register_buffer("count", torch.tensor([5], dtype=torch.int64))


NAMES = {"head.weight", "head.bias", "body.weight", "count"}


def test_weights_that_are_read_again_are_the_same(tmp_path: Path) -> None:
    path, model = tmp_path / "model.safetensors", Model()
    checkpoints.write_weights(path, model)
    assert set(load(path.read_bytes())) == NAMES
    other = Model()
    for one in (*other.parameters(), other.count):
        one.data.zero_()
    checkpoints.read_weights(path, other)
    for name in ("head", "body"):
        assert torch.equal(getattr(other, name).weight, getattr(model, name).weight)
    assert other.count.tolist() == [5]
    # A file of before has second names too.
    tensors = load(path.read_bytes())
    tensors |= {f"again.{name}": tensors[f"head.{name}"].clone() for name in ("weight", "bias")}
    save_file(tensors, tmp_path / "before.safetensors")
    checkpoints.read_weights(tmp_path / "before.safetensors", other)
    # What was fetched is not in the file, and stays.
    assert not other.published.weight.any()
    before = path.read_bytes()
    checkpoints.write_weights(path, other)
    assert path.read_bytes() == before
    assert b'"__metadata__":{"format":"pt"}' in before


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.pop("count"),
        lambda t: t.update(more=torch.zeros(1)),
        lambda t: t.update(count=torch.zeros(2)),
    ],
)
def test_weights_of_another_model_are_refused(change, tmp_path: Path) -> None:
    path, model = tmp_path / "model.safetensors", Model()
    listed = checkpoints.tensor_list(model)
    checkpoints.write_weights(path, model)
    checkpoints.check_weights(path, listed)
    tensors = load(path.read_bytes())
    change(tensors)
    save_file(tensors, path)
    with pytest.raises(RunDirectoryError, match="its tensors are not those of the model"):
        checkpoints.read_weights(path, model)
    with pytest.raises(
        RunDirectoryError, match=r"its tensors are not those that model\.json names"
    ):
        checkpoints.check_weights(path, listed)


def test_weights_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    checkpoints.write_weights(path, Model())
    for listed in ([{"name": "head"}], 7, [7]):
        with pytest.raises(RunDirectoryError, match="not a readable safetensors file"):
            checkpoints.check_weights(path, listed)
    path.write_bytes(path.read_bytes()[:-1])
    for read in (
        lambda: checkpoints.read_weights(path, Model()),
        lambda: checkpoints.check_weights(path, checkpoints.tensor_list(Model())),
    ):
        with pytest.raises(RunDirectoryError, match="not a readable safetensors file") as caught:
            read()
        assert str(path) in str(caught.value)


def test_the_list_says_what_is_trained_and_what_training_must_not_change() -> None:
    model = Model()
    listed = {one["name"]: one for one in checkpoints.tensor_list(model)}
    # Trained ones in the order of the flat vector, all others by name.
    assert list(listed) == [
        "head.weight",
        "head.bias",
        "body.weight",
        "count",
    ]
    assert [name for name, one in listed.items() if one["trained"]] == ["head.weight", "head.bias"]
    assert listed["count"] == {
        "name": "count",
        "shape": [1],
        "dtype": "I64",
        "trained": False,
        "sha256": hashlib.sha256((5).to_bytes(8, "little")).hexdigest(),
    }
    frozen = model.body.weight.detach().numpy().tobytes()
    assert listed["body.weight"]["sha256"] == hashlib.sha256(frozen).hexdigest()
    assert listed["body.weight"]["shape"] == [2, 2]
    assert listed["head.weight"]["dtype"] == "F32"
    # What is trained moves.
    assert [name for name, one in listed.items() if "sha256" in one] == ["body.weight", "count"]
    assert json.loads(json.dumps(listed)) == listed


class ServerOfNames:
    """What it carries is named as a client's memory or the state itself might be."""

    def start(self, parameters: Tensor) -> ServerState:
        return ServerState(parameters, dict.fromkeys(("client.1", "state.1"), parameters * 0))


def test_names_of_the_rules_do_not_mix_with_those_of_the_parts() -> None:
    own = {"client.1": torch.ones(2), "state.1": torch.full((2,), 2.0)}
    memories = {12: {"state.1": torch.full((2,), 3.0)}}
    packed = pack_state(ServerState(torch.zeros(2), own, memories), NUMBERS)
    assert set(load(packed)) == {
        "parameters",
        "state.client.1",
        "state.state.1",
        "client.12.state.1",
    }
    found, _ = unpack_state(packed, ServerOfNames(), torch.ones(2))
    assert {name: one.tolist() for name, one in found.state.items()} == {
        "client.1": [1.0, 1.0],
        "state.1": [2.0, 2.0],
    }
    assert found.memories[12]["state.1"].tolist() == [3.0, 3.0]


def test_an_empty_trained_tensor_shares_its_place_with_no_other() -> None:
    model = nn.Module()
    model.none = nn.Parameter(torch.zeros(0))
    model.register_buffer("empty", torch.zeros(0))
    listed = {one["name"]: one for one in checkpoints.tensor_list(model)}
    assert listed["none"]["trained"]
    assert listed["empty"]["sha256"] == hashlib.sha256(b"").hexdigest()
