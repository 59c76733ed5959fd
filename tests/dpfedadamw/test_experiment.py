"""A spec becomes an experiment; where only its plan is asked for, the model has no weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpfedadamw import spec as specs
from dpfedadamw.data import datasets
from dpfedadamw.errors import ModelError, SpecError
from dpfedadamw.experiment import RunError, check, foresee, pick_device, prepare
from dpfedadamw.spec import yamltext
from tests.limits import measured
from tests.runs import call, small_spec


@pytest.mark.parametrize(
    "name", ["quickstart", "digits-cnn", "digits-vit", "digits-fed-smp", "digits-dp-fedsam-topk"]
)
def test_a_plan_needs_no_weights(name):
    spec = specs.load(name)
    outline, whole = (prepare(spec, torch.device(kind)) for kind in ("meta", "cpu"))
    assert outline.plan == whole.plan
    assert outline.plan.expected_claim() == whole.plan.expected_claim()
    assert {one.device.type for one in outline.model.parameters()} == {"meta"}
    assert {one.device.type for one in whole.model.parameters()} == {"cpu"}
    shapes = [[tuple(p.shape) for p in one.model.parameters()] for one in (outline, whole)]
    assert shapes[0] == shapes[1]


def test_metal_is_refused_in_one_line_where_it_is_not_or_has_no_float64(monkeypatch):
    metal = torch.backends.mps
    monkeypatch.setattr(metal, "is_available", lambda: False)
    with pytest.raises(RunError, match=r"^--device mps: torch sees no Apple GPU .* --device cpu$"):
        pick_device("mps")
    monkeypatch.setattr(metal, "is_available", lambda: True)

    def without_float64(*_shape, dtype, device):
        assert (dtype, device) == (torch.float64, "mps")
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype")

    monkeypatch.setattr(torch, "zeros", without_float64)
    with pytest.raises(RunError, match=r"no float64 on Metal, .* noise are computed; use"):
        pick_device("mps")
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    assert pick_device("mps").type == "mps"


def test_what_a_model_of_thousands_of_millions_of_weights_costs_is_told_in_little_memory(capsys):
    change = "model={name: mlp, hidden: [65536, 65536, 65536]}"  # 34 GB in float32
    with measured() as spent:
        check(specs.load("quickstart", [change]))
        assert call("epsilon", "quickstart", "--set", change) == 0
    assert spent.bytes < 2**28


@pytest.mark.parametrize(
    "name", ["quickstart", "digits-cnn", "digits-vit", "digits-dp-fedsam", "digits-dp-fedsam-topk"]
)
def test_what_is_foreseen_without_a_model_is_the_plan_of_the_run(name):
    assert foresee(specs.load(name)) == prepare(specs.load(name), torch.device("meta")).plan


def test_records_that_a_model_cannot_read_are_refused_without_one():
    # Images of 8 x 8 pixels have no whole number of patches of 3.
    spec = specs.load("digits-vit").replace(model=specs.load("digits-vit").model.replace(patch=3))
    for refused in (foresee, check, lambda spec: prepare(spec, torch.device("meta"))):
        with pytest.raises(ModelError, match="3 does not divide the images' size 8 x 8"):
            refused(spec)


@pytest.mark.parametrize("absent", [None, "train.csv"])
def test_a_spec_that_no_reader_accepts_once_it_is_resolved_is_refused_before_it_runs(
    monkeypatch, absent
):
    """Such a run trained, spent its ε, and could never be audited or resumed."""
    spec = small_spec()
    check(spec)
    monkeypatch.setattr(yamltext, "MAXIMUM_NODES", 40)
    monkeypatch.setattr(datasets, "absent", lambda _: absent)
    for refused in (foresee, check, lambda spec: prepare(spec, torch.device("meta"))):
        if refused is check or absent is None:
            with pytest.raises(SpecError, match="a run keeps at most 40 in 1 MiB"):
                refused(spec)


def test_a_cost_of_few_clients_claims_what_that_of_all_does():
    plan = foresee(specs.load("quickstart"))
    whole, dearest = plan.expected_claim(), plan.expected_claim(3)
    clients = whole["server"].pop("clients")
    most = sorted(clients, key=lambda one: -one["epsilon"]["pld"])[:3]
    assert dearest["server"].pop("clients") == sorted(most, key=lambda one: one["client"])
    assert dearest == whole


@pytest.mark.parametrize("own", [True, False])
def test_where_the_data_bring_test_records_the_resolved_spec_holds_none_out(own):
    """The auditor draws them again by test_fraction, and failed runs that held none out."""
    from dpfedadamw.data.handed_over import handed_over

    mapping = small_spec().to_mapping()
    mapping["data"] = {"dataset": "given", "clients": 5, "partition": {"kind": "iid"}}
    rng = np.random.default_rng(0)
    part = rng.normal(size=(300, 3)).astype(np.float32), rng.integers(0, 2, 300)
    with handed_over({"train": part, "test": part} if own else part):
        found = prepare(specs.from_mapping(mapping), torch.device("cpu"))
    assert found.spec.data.test_fraction == (None if own else 0.2)
    assert len(found.dataset.train) == (300 if own else 240)
