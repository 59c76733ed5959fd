"""Where parameters are used: which place is what, and that each sees its records one by one."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from dpfedadamw.clipping import layers
from dpfedadamw.clipping.sites import BookKeepingError, Pass, Record, Site, sites_of


class Scaled(nn.Module):
    """A layer that nobody knows."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), 2.0))
        self.shift = nn.Parameter(torch.zeros(4), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.scale + self.shift


class Whole(nn.Module):
    """Parameters of its own beside layers inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.ones(1, 4))
        self.inner = nn.Linear(4, 4)
        self.inner.bias.requires_grad_(False)
        self.scaled = Scaled()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.scaled(self.inner(inputs + self.token))


class Copied(Scaled):
    """A layer that works with a copy of its parameters a record."""

    accepts_copies: ClassVar[bool] = True


def described(model: nn.Module) -> list[tuple[str, str, dict[str, str]]]:
    return [(site.name, site.kind, dict(site.parameters)) for site in sites_of(model)]


def test_each_trained_parameter_has_its_place_by_the_kind_of_its_module():
    both = {"weight": "inner.weight"}
    assert described(Whole()) == [
        ("token", "copies", {"weight": "token"}),
        ("inner", "layer", both),
        ("scaled", "vmap", {"scale": "scaled.scale"}),
    ]
    assert described(Copied()) == [("scale", "copies", {"weight": "scale"})]
    assert described(Scaled()) == [("", "vmap", {"scale": "scale"})]
    frozen = Scaled().requires_grad_(False)
    assert described(frozen) == []


def test_known_layers_have_the_forward_that_knows_them():
    model = nn.Sequential(
        nn.Linear(4, 4),
        nn.Conv2d(1, 2, 3),
        nn.LayerNorm(4),
        nn.GroupNorm(2, 4),
        nn.Embedding(5, 4),
        nn.ReLU(),
    )
    assert [site.forward for site in sites_of(model)] == [
        layers.linear,
        layers.convolution,
        layers.layer_norm,
        layers.group_norm,
        layers.lookup,
    ]
    assert described(model)[0] == ("0", "layer", {"weight": "0.weight", "bias": "0.bias"})


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_tables_whose_rows_depend_on_a_batch_are_not_known(options):
    (site,) = sites_of(nn.Embedding(5, 4, **options))
    assert (site.kind, site.forward) == ("vmap", None)


class Louder(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return 2.0 * super().forward(inputs)


def test_a_layer_with_another_forward_or_a_computed_weight_is_not_the_one_it_is_made_of():
    (site,) = sites_of(Louder(4, 4))
    assert site.kind == "vmap"
    computed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    assert "layer" not in {site.kind for site in sites_of(computed)}


@pytest.mark.parametrize("module", [nn.MultiheadAttention(4, 2), nn.GRU(4, 4)])
def test_modules_that_use_what_is_inside_them_are_one_place(module):
    model = nn.ModuleDict({"deep": module, "deeper": nn.Linear(4, 4)})
    first, second = sites_of(model)
    assert (first.name, first.kind) == ("deep", "vmap")
    assert set(first.parameters) == {name for name, _ in module.named_parameters()}
    # A name that only begins alike lies outside.
    assert (second.name, second.kind) == ("deeper", "layer")


def test_after_one_such_place_another_may_follow():
    model = nn.Sequential(nn.MultiheadAttention(4, 2), nn.MultiheadAttention(4, 2), nn.Linear(4, 4))
    assert [(name, kind) for name, kind, _ in described(model)] == [
        ("0", "vmap"), ("1", "vmap"), ("2", "layer"),
    ]  # fmt: skip


def test_a_shared_parameter_and_a_replaced_forward_have_no_place():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    with pytest.raises(BookKeepingError, match=r"'0.weight' and '1.weight' are one parameter"):
        sites_of(model)
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].forward = lambda inputs: inputs
    with pytest.raises(BookKeepingError, match=r"the forward of '0' has been replaced"):
        sites_of(model)
    alone = nn.Linear(4, 4)
    alone.forward = lambda inputs: inputs
    with pytest.raises(BookKeepingError, match=r"the forward of 'the model' has been replaced"):
        sites_of(alone)


def test_uses_are_counted_and_a_receiver_is_told_which_parameters_are_trained():
    (site,) = sites_of(nn.Linear(4, 3))
    record = Record(site, Pass(2).short)
    first = record.receiver()
    assert (record.uses, first.weight, first.bias) == (1, True, True)
    record.receiver()
    assert record.uses == 2
    layer = nn.Linear(4, 3)
    layer.weight.requires_grad_(False)
    (site,) = sites_of(layer)
    told = Record(site, Pass(2).short).receiver()
    assert (told.weight, told.bias) == (False, True)
    # A parameter that has a record of its own is a weight, whatever its name.
    told = Record(site, Pass(2).short, "bias").receiver()
    assert (told.weight, told.bias) == (True, True)


def run(model: nn.Module, inputs: Tensor, batch: int) -> Pass:
    """One pass, forward and backward, of a sum."""
    found = Pass(batch)
    with found.watching(sites_of(model)):
        model(inputs).sum().backward()
    return found


def test_what_is_used_once_is_measured_at_once_and_what_is_used_twice_when_all_is_there():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.layer(self.layer(inputs))

    torch.manual_seed(1)
    once, twice, inputs = nn.Linear(30, 20), Twice(), torch.randn(5, 3)
    wide = torch.randn(5, 30)
    (record,) = run(once, wide, 5).records
    assert record.uses == 1
    (record,) = run(twice, inputs, 5).records
    assert record.uses == 2
    assert record.squared_norms is None
    together = record.finish()
    expected = []
    for one in inputs:
        grads = torch.autograd.grad(twice(one[None]).sum(), list(twice.parameters()))
        expected.append(sum(float(grad.double().square().sum()) for grad in grads))
    # Whatever is short stands apart from the record.
    found = Pass(5)
    with found.watching(sites_of(twice)):
        twice(inputs).sum().backward()
    of_short = found.records[0].finish(), found.short.squared_norms()
    total = sum(part for part in of_short if part is not None)
    assert total.tolist() == pytest.approx(expected, rel=1e-5)
    assert together is None or len(together) == 5


def test_the_forwards_and_parameters_are_put_back_whatever_happens():
    model = nn.ModuleDict({"deep": Whole()})
    before = {name: id(one) for name, one in model.named_parameters()}
    found = Pass(2)
    sites = sites_of(model)

    def interrupted() -> None:
        with found.watching(sites):
            assert "forward" in vars(model["deep"].inner)
            assert "forward" in vars(model["deep"].scaled)
            assert model["deep"]._parameters["token"].shape == (2, 4)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert {name: id(one) for name, one in model.named_parameters()} == before
    assert "forward" not in vars(model["deep"].inner)
    assert "forward" not in vars(model["deep"].scaled)
    assert [record.site for record in found.records] == list(sites)


def seen(model: nn.Module, inputs: Tensor, batch: int) -> str:
    found = Pass(batch)
    try:
        with found.watching(sites_of(model)):
            model(inputs)
    except BookKeepingError as error:
        return str(error)
    return "fine"


@pytest.mark.parametrize(
    ("model", "inputs", "batch", "said"),
    [
        (nn.Sequential(nn.Linear(4, 4)), torch.ones(3, 4), 3, "fine"),
        (nn.Sequential(nn.Linear(4, 4)), torch.ones(3, 4), 2, "(3, 4)"),
        # One dimension is one record's to a layer, though there are as many numbers as records.
        (nn.Sequential(nn.Linear(4, 4)), torch.ones(4), 4, "(4,)"),
        (nn.Sequential(Scaled()), torch.ones(4), 4, "fine"),
        (nn.Sequential(Scaled()), torch.ones(3, 4), 3, "fine"),
        (nn.Sequential(Scaled()), torch.ones(3, 4), 2, "(3, 4)"),
        (nn.Sequential(Scaled()), torch.tensor(1.0), 1, "()"),
        # Tokens have one dimension, and positions that all records share are one row.
        (nn.Sequential(nn.Embedding(9, 4)), torch.arange(3), 3, "fine"),
        (nn.Sequential(nn.Embedding(9, 4)), torch.arange(3), 2, "(3,)"),
        (nn.Sequential(nn.Embedding(9, 4)), torch.arange(5)[None], 3, "fine"),
        (nn.Sequential(nn.Linear(4, 4)), torch.ones(1, 4), 3, "(1, 4)"),
    ],
)
def test_every_place_sees_its_records_in_the_first_dimension(model, inputs, batch, said):
    name = "0"
    wrong = (
        f"layer '{name}' sees inputs of shape {said}, whose first dimension is not the {batch} "
        "records'"
    )
    assert seen(model, inputs, batch) == ("fine" if said == "fine" else wrong)


class Named(Scaled):
    def forward(self, inputs: Tensor, shift: Tensor | None = None, sign: int = 1) -> Tensor:
        return sign * super().forward(inputs)


def test_under_vmap_tensors_come_by_place_and_anything_else_by_name():
    class By(nn.Module):
        def __init__(self, **options: object) -> None:
            super().__init__()
            self.inner, self.options = Named(), options

        def forward(self, inputs: Tensor) -> Tensor:
            return self.inner(inputs, **self.options)

    inputs = torch.ones(3, 4)
    assert seen(By(sign=-1), inputs, 3) == "fine"
    assert seen(By(shift=inputs), inputs, 3) == "layer 'inner' takes tensors by name"
    assert seen(By(sign=-1, shift=inputs), inputs, 3) == "layer 'inner' takes tensors by name"
    found, model = Pass(3), By(sign=-1)
    with found.watching(sites_of(model)):
        assert torch.equal(model(inputs), -2.0 * inputs)


class Several(Scaled):
    """Hands back a structure of tensors and of what is none."""

    def forward(self, inputs: Tensor, times: int) -> dict[str, object]:
        return {"twice": (2 * inputs * self.scale, "text"), "times": times, "own": inputs}


def test_under_vmap_a_structure_of_tensors_and_others_comes_back_as_it_was():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Several()

        def forward(self, inputs: Tensor) -> dict[str, object]:
            return self.inner(inputs, 7)

    model, inputs = Model(), torch.randn(3, 4)
    found = Pass(3)
    with found.watching(sites_of(model)):
        told = model(inputs)
    assert told["times"] == 7
    assert told["twice"][1] == "text"
    assert torch.equal(told["twice"][0], 4.0 * inputs)
    assert torch.equal(told["own"], inputs)


def test_a_place_says_how_its_norms_were_found():
    def method(model: nn.Module, inputs: Tensor) -> list[str]:
        return [record.method for record in run(model, inputs, len(inputs)).records]

    assert method(nn.Sequential(Scaled()), torch.ones(3, 4)) == ["vmap"]
    # Copies, then a layer's own word, then vmap, in the order of the places.
    first, second, third = method(Whole(), torch.ones(3, 4))
    assert (first, third) == ("copies", "vmap")
    assert second not in ("copies", "vmap", "layer", "no gradient")
    site = Site("a", nn.Linear(1, 1), {"weight": "a.weight", "bias": "a.bias"}, "layer")
    silent = Record(site, Pass(1).short)
    assert (silent.method, silent.finish()) == ("no gradient", None)


def test_a_form_is_written_to_the_places_of_its_own_parameters():
    site = Site("a", nn.Linear(1, 1), {"weight": "a.weight", "bias": "a.bias"}, "layer")
    views = {name: torch.zeros(1) for name in ("a.weight", "a.bias", "b.weight")}
    every = Record(site, Pass(1).short).targets(views)
    assert {name: view is views[f"a.{name}"] for name, view in every.items()} == {
        "weight": True,
        "bias": True,
    }
    (only,) = Record(site, Pass(1).short, "bias").targets(views).items()
    assert only[0] == "weight"
    assert only[1] is views["a.bias"]


def test_layers_of_a_library_are_known_once_it_is_loaded():
    library = pytest.importorskip("transformers.pytorch_utils")
    (site,) = sites_of(library.Conv1D(3, 4))
    assert (site.kind, site.forward) == ("layer", layers.transposed_linear)
