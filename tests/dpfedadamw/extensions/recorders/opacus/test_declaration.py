"""What a loop's own objects say of it, and which loops are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from opacus import optimizers
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpfedadamw.extensions.recorders.opacus import RecorderError
from dpfedadamw.extensions.recorders.opacus.declaration import (
    accountant_of,
    declared,
    history_of,
    inner_of,
    refuse,
    sampling_rate,
    trained,
)

LOADER = DataLoader(TensorDataset(torch.zeros(10, 2)), batch_size=4)


def optimiser(kind: type = DPOptimizer, **changes: Any) -> Any:
    """One of Opacus' optimisers that trains nothing."""
    made = object.__new__(kind)
    vars(made).update({"max_grad_norm": 1.0, "noise_multiplier": 1.0, **changes})
    return made


def private(rule: Any, **changes: Any) -> DPOptimizer:
    given = {"noise_multiplier": 1.0, "max_grad_norm": 0.5, "expected_batch_size": 4, **changes}
    return DPOptimizer(rule, **given)


def weighing() -> Any:
    """A model that knows its records' norms."""
    model = nn.Linear(2, 1)
    model.get_norm_sample = lambda: None
    return model


def test_a_loop_of_one_process_with_noise_and_one_norm_is_not_refused() -> None:
    refuse(optimiser(max_grad_norm=1), LOADER, nn.Linear(2, 1))
    refuse(optimiser(noise_multiplier=1e-9), LOADER, weighing())
    refuse(optimiser(DPOptimizerFastGradientClipping), LOADER, weighing())


class Ours(optimizers.DistributedDPOptimizer):
    """Another name for it."""


class Sharded(optimizers.FSDPOptimizerFastGradientClipping):
    """Another name for it."""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((SimpleNamespace(), LOADER, nn.Linear(2, 1)), "not an Opacus optimiser"),
        ((optimiser(optimizers.DistributedDPOptimizer), LOADER, weighing()), "distributed loops"),
        ((optimiser(Ours), LOADER, weighing()), "distributed loops"),
        ((optimiser(Sharded), LOADER, weighing()), "distributed loops"),
        (
            (optimiser(optimizers.SimpleDistributedPerLayerOptimizer), LOADER, weighing()),
            "distributed loops",
        ),
        ((optimiser(optimizers.DPPerLayerOptimizer), LOADER, weighing()), "clipping per layer"),
        ((optimiser(optimizers.AdaClipDPOptimizer), LOADER, weighing()), "clipping per layer"),
        ((optimiser(max_grad_norm=[1.0]), LOADER, weighing()), "clipping per layer"),
        ((optimiser(max_grad_norm=None), LOADER, weighing()), "clipping per layer"),
        ((optimiser(noise_multiplier=0.0), LOADER, weighing()), "noise multiplier is 0"),
        ((optimiser(noise_multiplier=float("nan")), LOADER, weighing()), "noise multiplier is 0"),
        ((optimiser(), [1, 2], weighing()), "draws no batches"),
        ((optimiser(), DataLoader(LOADER.dataset, batch_size=None), weighing()), "no batches"),
        (
            (optimiser(), LOADER, object.__new__(nn.parallel.DistributedDataParallel)),
            "distributed models",
        ),
        ((optimiser(), LOADER, len), "is not a module"),
        ((optimiser(), DataLoader(LOADER.dataset, batch_sampler=[[0]]), weighing()), "observed"),
        ((optimiser(DPOptimizerFastGradientClipping), LOADER, nn.Linear(2, 1)), "wrap_model"),
    ],
)
def test_a_loop_that_cannot_be_judged_is_refused_with_the_reason(given: Any, said: str) -> None:
    with pytest.raises(RecorderError, match=said):
        refuse(*given)


class Mine(torch.optim.SGD):
    """An update of somebody's own."""


@pytest.mark.parametrize(
    ("rule", "more", "name"),
    [
        (torch.optim.SGD, {}, "sgd"),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}, "sgd"),
        (torch.optim.SGD, {"maximize": True}, "sgd in another form"),
        (torch.optim.SGD, {"differentiable": True}, "sgd in another form"),
        (torch.optim.Adam, {"weight_decay": 0.1}, "adam"),
        (torch.optim.Adam, {"amsgrad": True}, "adam in another form"),
        (torch.optim.AdamW, {}, "adamw"),
        (torch.optim.AdamW, {"amsgrad": True}, "adamw in another form"),
        (torch.optim.AdamW, {"maximize": True}, "adamw in another form"),
        (torch.optim.RMSprop, {}, "RMSprop"),
        (Mine, {}, "Mine"),
    ],
)
def test_an_update_is_named_so_that_the_auditor_replays_just_what_it_knows(
    rule: Any, more: dict[str, Any], name: str
) -> None:
    model = nn.Linear(2, 3)
    loop = declared(private(rule(model.parameters(), lr=0.1, **more)), LOADER, model, 1e-5)
    assert loop.optimizer == name


def test_one_group_in_another_form_is_a_loop_in_another_form() -> None:
    model = nn.Linear(2, 3)
    groups = [{"params": [model.weight]}, {"params": [model.bias], "maximize": True}]
    loop = declared(private(torch.optim.SGD(groups, lr=0.1)), LOADER, model, 1e-5)
    assert loop.optimizer == "sgd in another form"


@pytest.mark.skipif(
    "decoupled_weight_decay" not in torch.optim.Adam.__init__.__code__.co_varnames,
    reason="this version's Adam has no such form",
)
def test_adam_with_the_weight_decay_of_adamw_is_adam_in_another_form() -> None:
    model = nn.Linear(2, 3)
    rule = torch.optim.Adam(model.parameters(), decoupled_weight_decay=True)
    assert declared(private(rule), LOADER, model, 1e-5).optimizer == "adam in another form"


def test_a_loop_declares_what_its_objects_are() -> None:
    model = nn.Linear(2, 3)
    model.bias.requires_grad_(False)
    plain = private(torch.optim.SGD([model.weight], lr=0.1))
    loop = declared(plain, LOADER, model, 1e-5)
    import opacus

    assert (loop.producer, loop.version, loop.mode) == ("opacus", opacus.__version__, "per-sample")
    assert (loop.secure, loop.generator) == (False, "torch's default generator")
    assert (loop.records, loop.delta, loop.tensors) == (10, 1e-5, (("weight", 6),))
    assert [(one["name"], one["trained"]) for one in loop.model_tensors] == [
        ("weight", True),
        ("bias", False),
    ]
    assert (loop.sampling, loop.unit, loop.mechanism) == ("poisson", "record", "gaussian")
    ghost = DPOptimizerFastGradientClipping(
        torch.optim.SGD([model.weight], lr=0.1), noise_multiplier=1.0, max_grad_norm=0.5,
        expected_batch_size=4, secure_mode=True,
    )  # fmt: skip
    loop = declared(ghost, LOADER, model, 1e-5)
    assert (loop.mode, loop.secure, loop.generator) == (
        "ghost", True, "cryptographic (secure_mode)",
    )  # fmt: skip


def test_what_is_trained_is_what_the_optimiser_has_of_the_model() -> None:
    model, other = nn.Linear(2, 3), nn.Linear(2, 3)

    def names(*parameters: Any) -> list[str]:
        optimizer = SimpleNamespace(param_groups=[{"params": [one]} for one in parameters])
        return [name for name, _ in trained(optimizer, model)]

    assert names(model.weight, model.bias) == names(model.bias, model.weight) == ["weight", "bias"]
    assert names(model.bias) == ["bias"]
    # An earlier copy's: what is published counts, all of it.
    assert names(other.weight) == names(model.bias, other.bias) == ["weight", "bias"]
    model.weight.requires_grad_(False)
    assert names(model.weight, model.bias) == names(other.bias) == ["bias"]


def test_the_module_inside_is_the_one_that_opacus_wraps_or_the_model_itself() -> None:
    inner = nn.Linear(2, 3)
    outer = nn.Module()
    outer._module = inner
    assert inner_of(outer) is inner
    assert inner_of(inner) is inner


def test_the_accountant_is_the_one_that_hears_of_each_step() -> None:
    accountant = SimpleNamespace(get_epsilon=lambda delta: 1.0)
    other = SimpleNamespace()

    def hook(optimizer: Any) -> None:
        raise AssertionError(other, accountant)

    assert accountant_of(SimpleNamespace(step_hook=hook)) is accountant
    assert accountant_of(SimpleNamespace(step_hook=lambda _: other)) is None
    assert accountant_of(SimpleNamespace(step_hook=len)) is None
    assert accountant_of(SimpleNamespace(step_hook=None)) is None


def test_the_history_is_that_of_all_accountants_one_after_another() -> None:
    one, other = SimpleNamespace(history=[(1, 1, 7.0)]), SimpleNamespace(history=[(2.0, 0.5, 3)])
    found = history_of([one, SimpleNamespace(), other])
    assert found == [(1.0, 1.0, 7), (2.0, 0.5, 3)]
    assert [type(part) for part in found[0]] == [float, float, int]
    assert history_of([SimpleNamespace()]) == []
    assert history_of([]) is None


def test_the_rate_is_the_samplers_own_or_one_over_the_number_of_batches() -> None:
    sampler = UniformWithReplacementSampler(num_samples=10, sample_rate=0.3)
    assert sampling_rate(DataLoader(LOADER.dataset, batch_sampler=sampler)) == 0.3
    assert sampling_rate(LOADER) == pytest.approx(1.0 / 3.0)
    assert sampling_rate(DataLoader(LOADER.dataset, batch_size=10)) == 1.0
    empty = DataLoader(LOADER.dataset, batch_size=99, drop_last=True)
    assert (len(empty), sampling_rate(empty)) == (0, 1.0)
