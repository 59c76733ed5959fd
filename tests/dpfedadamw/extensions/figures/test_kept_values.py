"""Figures made of what a run keeps: ledger, evidence, model and test records."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load, load_file

from dpfedadamw.evidence.round_files import round_file
from dpfedadamw.extensions.figures.errors import FigureError
from dpfedadamw.extensions.figures.mechanism import hessian, loss_landscape, update_norms
from dpfedadamw.extensions.figures.registry import FIGURES, Measured, Settings
from tests.dpfedadamw.extensions.figures.opened import CPU, measured, opened


def lines(run, kind):
    return [
        line for line in map(json.loads, run.ledger.read_text().splitlines())
        if line["kind"] == kind
    ]  # fmt: skip


def test_tau_is_what_the_ledger_was_charged_in_each_round(small):
    run = small("ali-dpfl", rounds=4)
    charged = {line["round"]: line["steps"] for line in lines(run, "spend")}
    found = measured("iterations", run)
    assert dict(zip((found.rounds - 1).tolist(), found.steps.tolist(), strict=True)) == charged
    assert len(set(charged.values())) > 1, "it should adapt, or the test shows nothing"


def test_where_the_number_of_steps_is_fixed_there_is_no_tau_to_draw(noised):
    with pytest.raises(
        FigureError, match="dp-fedadamw takes as many local steps in every round, 3"
    ):
        FIGURES["iterations"].measure(opened(noised), Settings())


def test_the_bias_shift_is_that_of_the_gradients_handed_out(noised):
    """Round 1 starts from v = 0: v̂ follows from three gradients of each client."""
    found = measured("bias-shift", noised)
    charge = lines(noised, "spend")[0]
    phi = (
        charge["noise_multiplier"] * charge["clipping_norm"] / charge["expected_batch_size"]
    ) ** 2
    hats, floored = [], []
    for client in lines(noised, "round")[0]["clients"]:
        with np.load(noised.evidence / f"upload-00000-{client:05d}.npz") as file:
            gradients = file["gradients"].astype(np.float64)
        v = np.zeros(gradients.shape[1])
        for g in gradients:
            v = 0.999 * v + 0.001 * g**2
        hats.append(v / (1 - 0.999**3))
        floored.append(100 * np.mean(hats[-1] - phi < phi))
    assert found.noise_variance[0] == pytest.approx(phi)
    assert found.noised[0] == pytest.approx(np.mean(hats), rel=1e-5)
    assert found.debiased[0] == pytest.approx(np.mean(hats) - phi, rel=1e-3)
    # A coordinate may fall on either side of the floor by rounding.
    assert found.floored[0] == pytest.approx(np.mean(floored), abs=0.2)
    assert 0.0 < found.clean[0] < found.noised[0]


def test_without_debiasing_nothing_is_subtracted_and_there_is_no_floor(small):
    found = measured("bias-shift", small("dp-localadamw"))
    assert np.isnan(found.debiased).all()
    assert np.isnan(found.floored).all()
    drawing = FIGURES["bias-shift"].compose([_labelled(found)])
    assert len(drawing.chart.panels) == 1


def _labelled(numbers):
    from dpfedadamw.extensions.figures.registry import Measured

    return Measured(label="run", numbers=numbers)


@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [("dp-fedavg", "no second moment"), ("fedavg", "no noise is added to its gradients")],
)
def test_runs_without_noise_in_a_second_moment_have_no_bias_shift(small, algorithm, reason):
    with pytest.raises(FigureError, match=reason):
        FIGURES["bias-shift"].measure(opened(small(algorithm)), Settings())


def test_norms_of_whole_updates_are_those_of_the_evidence(small):
    run = small("blur", rounds=3)
    found, before, after = measured("update-norms", run), [], []
    for index in range(3):
        with np.load(run.evidence / round_file(index)) as file:
            before += file["raw_norms"].tolist()
            after += file["clipped_norms"].tolist()
    assert found.before.tolist() == before
    assert found.after.tolist() == after
    assert found.clipping_norm == 1.0
    assert len(before) > 0


def test_of_sparsified_updates_the_norm_before_is_that_of_the_whole_update(small):
    run = small("dp-fedsam-topk", rounds=3)
    found, kept, clipped = measured("update-norms", run), [], []
    for index in range(3):
        with np.load(run.evidence / round_file(index)) as file:
            kept += file["raw_norms"].tolist()
            clipped += file["clipped_norms"].tolist()
    assert found.sparsified
    assert found.after == pytest.approx(clipped, rel=1e-6)
    assert (found.before > np.array(kept)).all()


def test_norms_at_record_level_are_those_of_the_uploads_but_for_their_grid(noised):
    found = measured("update-norms", noised)
    sent = []
    for index, entry in enumerate(lines(noised, "round")):
        for client in entry["clients"]:
            with np.load(noised.evidence / f"upload-{index:05d}-{client:05d}.npz") as file:
                sent.append(
                    np.linalg.norm(load(file["upload"].tobytes())["parameters"].astype(float))
                )
    # 12 significant bits are sent.
    assert found.before == pytest.approx(sent, rel=2**-12)
    assert found.after is None


def test_the_band_of_norms_is_that_from_the_tenth_to_the_ninetieth_percentile_of_a_round():
    """Of 0, 10, …, 100 in the first round, and twice as much in the second."""
    before = np.concatenate([np.arange(0.0, 101.0, 10.0), np.arange(0.0, 201.0, 20.0)])
    after = np.minimum(before, 5.0)
    rounds = np.repeat([1.0, 2.0], 11)
    numbers = update_norms.UpdateNorms(rounds, before, after, clipping_norm=5.0)
    drawing = FIGURES["update-norms"].compose([_labelled(numbers)])
    whole, by_round = drawing.chart.panels
    raw, clipped, level = by_round.marks
    assert [one.tolist() for one in (raw.x, raw.y, raw.low, raw.high)] == [
        [1.0, 2.0], [50.0, 100.0], [10.0, 20.0], [90.0, 180.0],
    ]  # fmt: skip
    # One of the eleven is 0, all others are clipped to 5.
    assert clipped.y == pytest.approx([50 / 11, 50 / 11])
    assert level.value == 5.0
    assert "10th to 90th percentile" in by_round.title
    assert [mark.heights.sum() for mark in whole.marks[:2]] == pytest.approx([100.0, 100.0])
    assert whole.marks[0].edges[[0, -1]].tolist() == [0.0, 200.0]
    assert drawing.table.rows[1] == ("run", 1, 10.0, 5.0, 5.0)


def linear(run):
    """Weights [10, 64], bias [10] and test records of a run's linear model, float64."""
    tensors = {name: value.astype(np.float64) for name, value in load_file(run.weights).items()}
    bias, weights = sorted(tensors.values(), key=lambda one: one.ndim)
    test = opened(run).test_records(None)
    inputs = test.inputs[:].double().numpy().reshape(len(test), -1)
    return weights, bias, inputs, test.labels


def loss_of(weights, bias, inputs, labels):
    scores = inputs @ weights.T + bias
    scores = scores - scores.max(1, keepdims=True)
    shares = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    return -shares[np.arange(len(labels)), labels].mean()


def test_the_landscape_is_the_loss_of_a_linear_model_worked_out_in_float64(noised):
    found = measured("loss-landscape", noised, Settings(seed=5))
    weights, bias, inputs, labels = linear(noised)
    middle = loss_landscape.POINTS // 2
    last = json.loads(noised.metrics.read_text().splitlines()[-1])["test_loss"]
    assert found.losses[middle, middle] == pytest.approx(last, rel=1e-6)
    generator = torch.Generator().manual_seed(5)
    across, down = (
        torch.randn(650, generator=generator, dtype=torch.float64).numpy()[:640].reshape(10, 64)
        for _ in range(2)
    )
    norms = np.linalg.norm(weights, axis=1, keepdims=True)
    across *= norms / np.linalg.norm(across, axis=1, keepdims=True)
    down *= norms / np.linalg.norm(down, axis=1, keepdims=True)
    for row, column in ((0, 0), (3, 17), (middle, 20)):
        moved = weights + found.offsets[column] * across + found.offsets[row] * down
        expected = loss_of(moved, bias, inputs, labels)
        assert found.losses[row, column] == pytest.approx(expected, rel=1e-5)
    assert (found.seed, found.records) == (5, len(labels))


def test_the_first_test_records_alone_are_used_where_that_is_asked_for(noised):
    found = measured("loss-landscape", noised, Settings(records=20))
    weights, bias, inputs, labels = linear(noised)
    middle = loss_landscape.POINTS // 2
    expected = loss_of(weights, bias, inputs[:20], labels[:20])
    assert found.losses[middle, middle] == pytest.approx(expected, rel=1e-5)
    assert found.records == 20


@pytest.mark.parametrize(("nats", "unit"), [(True, "test loss, nats"), (False, "test loss")])
def test_only_a_cross_entropy_is_said_to_be_in_nats(nats, unit):
    offsets = np.linspace(-1.0, 1.0, 3)
    found = loss_landscape.Landscape(offsets, np.ones((3, 3)), seed=0, records=5, nats=nats)
    drawn = loss_landscape._compose([Measured(label="run", numbers=found)])
    assert drawn.chart.panels[0].marks[0].label == unit
    assert ("test_loss_nats" in drawn.table.head) == nats


class Few:
    """Records of four numbers in six classes."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.inputs = torch.randn(150, 4, generator=generator)
        self.labels = torch.randint(0, 6, (150,), generator=generator).numpy()

    def __len__(self) -> int:
        return len(self.labels)


def small_model() -> torch.nn.Module:
    """Thirty parameters."""
    torch.manual_seed(1)
    return torch.nn.Linear(4, 6).double()


def whole_hessian(model, records):
    names = [name for name, _ in model.named_parameters()]
    shapes = [one.shape for one in model.parameters()]
    start = torch.cat([one.detach().reshape(-1) for one in model.parameters()])

    def loss(vector):
        parts = vector.split([shape.numel() for shape in shapes])
        named = {n: p.view(s) for n, p, s in zip(names, parts, shapes, strict=True)}
        outputs = torch.func.functional_call(model, named, (records.inputs.double(),))
        return torch.nn.functional.cross_entropy(outputs, torch.from_numpy(records.labels))

    return torch.func.hessian(loss)(start)


def test_eigenvalues_and_products_are_those_of_the_whole_hessian():
    model, records = small_model(), Few()
    expected = whole_hessian(model, records)
    product = hessian.hessian_product(model, records, CPU)
    vector = torch.randn(30, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert torch.allclose(product(vector), expected @ vector, rtol=1e-10, atol=1e-12)
    values, errors, points, density, width = hessian.spectrum(product, 30, CPU, Settings())
    exact = torch.linalg.eigvalsh(expected).numpy()[::-1]
    assert values[:10] == pytest.approx(exact[:10], rel=1e-8)
    assert errors[:10] == pytest.approx(np.zeros(10), abs=1e-8)
    assert len(values) == hessian.SHOWN
    spacing = points[1] - points[0]
    assert density.sum() * spacing == pytest.approx(1.0, abs=1e-3)
    # The mean of the spectrum is the trace's share; four vectors of 30 see it to about a quarter.
    assert (points * density).sum() * spacing == pytest.approx(exact.mean(), rel=0.4)
    assert width == pytest.approx(0.01 * exact[0], rel=1e-6)


def test_lanczos_tells_how_far_off_it_is_before_it_has_converged():
    exact = np.linspace(1.0, 100.0, 300)
    matrix = torch.diag(torch.from_numpy(exact))
    start = torch.randn(300, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    values, weights, errors = hessian.lanczos(lambda vector: matrix @ vector, start, 40)
    assert len(values) == 40
    assert weights.sum() == pytest.approx(1.0)
    nearest = np.abs(values[:, None] - exact).min(1)
    assert (nearest <= errors + 1e-9).all()
    assert 10 * errors[0] < errors[20], "the ends converge first"


def test_equal_eigenvalues_end_lanczos_early_and_count_once():
    matrix = torch.diag(torch.tensor([3.0] * 5 + [1.0] * 5 + [0.0] * 10, dtype=torch.float64))
    start = torch.randn(20, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    values, weights, errors = hessian.lanczos(lambda vector: matrix @ vector, start, 20)
    assert values == pytest.approx([0.0, 1.0, 3.0], abs=1e-9)
    assert weights.sum() == pytest.approx(1.0)
    assert errors == pytest.approx(np.zeros(3), abs=1e-8)


def test_below_an_eigenvalue_that_has_not_converged_none_is_shown():
    """Of 300 equally spaced ones eighty steps find the ends alone."""
    exact = torch.linspace(1.0, 100.0, 300, dtype=torch.float64)
    values, errors, *_ = hessian.spectrum(lambda vector: exact * vector, 300, CPU, Settings())
    assert 0 < len(values) < 20
    assert values == pytest.approx(exact.numpy()[::-1][: len(values)], abs=1e-2)
    assert (errors <= 1e-2).all()


def test_eigenvalues_stand_at_their_places_the_largest_at_one_and_their_table_says_the_same():
    eigenvalues, errors = np.array([3.0, 2.0, 0.5]), np.array([0.0, 0.1, 0.2])
    points, density = np.array([-1.0, 0.0, 1.0, 2.0]), np.array([0.0, 0.5, 1e-9, 0.25])
    found = hessian.Spectrum(
        eigenvalues, errors, points, density, width=0.125, records=9, seed=4, nats=True
    )
    drawing = FIGURES["hessian"].compose([_labelled(found)])
    (largest,), (shares,) = (panel.marks for panel in drawing.chart.panels)
    assert (largest.x.tolist(), largest.y.tolist()) == ([1.0, 2.0, 3.0], [3.0, 2.0, 0.5])
    # A share beyond the kernels' reach is no point of the logarithm.
    assert shares.x.tolist() == points.tolist()
    np.testing.assert_array_equal(shares.y, [np.nan, 0.5, np.nan, 0.25])
    assert [dict(zip(drawing.table.head, row, strict=True)) for row in drawing.table.rows] == [
        {
            "run": "run", "test_records": 9, "probe_seed": 4, "quantity": "eigenvalue",
            "place": place, "curvature_nats_per_weight_squared": value,
            "error_nats_per_weight_squared": error, "density_share_per_curvature": None,
            "width_nats_per_weight_squared": None,
        }
        for place, value, error in ((1, 3.0, 0.0), (2, 2.0, 0.1), (3, 0.5, 0.2))
    ] + [
        {
            "run": "run", "test_records": 9, "probe_seed": 4, "quantity": "density",
            "place": place, "curvature_nats_per_weight_squared": value,
            "error_nats_per_weight_squared": None, "density_share_per_curvature": share,
            "width_nats_per_weight_squared": 0.125,
        }
        for place, value, share in ((1, -1.0, 0.0), (2, 0.0, 0.5), (3, 1.0, 1e-9), (4, 2.0, 0.25))
    ]  # fmt: skip


def test_a_large_model_is_refused_with_the_reason(noised, monkeypatch):
    monkeypatch.setattr(hessian, "MOST_PARAMETERS", 649)
    with pytest.raises(FigureError, match=r"650 trained parameters.*649 at most. 80 vectors"):
        FIGURES["hessian"].measure(opened(noised), Settings())
