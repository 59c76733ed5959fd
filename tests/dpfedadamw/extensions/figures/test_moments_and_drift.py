"""Figures made by running rounds again, against local training written out in NumPy, float64."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from safetensors.numpy import load

from dpfedadamw.evidence.round_files import round_file
from dpfedadamw.extensions.figures.errors import FigureError
from dpfedadamw.extensions.figures.mechanism.moments import MomentsObserver
from dpfedadamw.extensions.figures.registry import FIGURES, Measured, Settings
from dpfedadamw.reexecution.history import ReexecutionError
from dpfedadamw.reexecution.observation import RoundObserver, RoundObservers
from tests.dpfedadamw.extensions.figures.opened import measured, opened

BETA1, BETA2 = 0.9, 0.999
# Float32 keeps seven digits; three steps of a softmax regression lose one or two of them.
CLOSE = {"rel": 1e-4}


def reference(run) -> dict[str, np.ndarray]:
    """Two clients' local AdamW on a linear model: m, v and update of each after the first round."""
    finished = opened(run)
    experiment = finished.rerun.experiment
    spec, data = experiment.spec, experiment.dataset.train
    start = finished.rerun.initial_state().parameters.double().numpy()
    rate, steps = spec.algorithm.learning_rate, spec.federation.local_steps
    found = {"m": [], "v": [], "update": []}
    for client in finished.past.rounds[0].entry["clients"]:
        rows = np.flatnonzero(experiment.owner == client)
        inputs = data.inputs.select(rows)[:].double().numpy().reshape(len(rows), -1)
        targets = np.eye(10)[data.labels[rows]]
        theta, m, v = start.copy(), np.zeros_like(start), np.zeros_like(start)
        for k in range(1, steps + 1):
            weights, bias = theta[:640].reshape(10, 64), theta[640:]
            scores = inputs @ weights.T + bias
            shares = np.exp(scores - scores.max(1, keepdims=True))
            off = (shares / shares.sum(1, keepdims=True) - targets) / len(rows)
            g = np.concatenate([(off.T @ inputs).ravel(), off.sum(0)])
            m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g**2
            step = m / (1 - BETA1**k) / (np.sqrt(v / (1 - BETA2**k)) + 1e-8)
            theta = theta - rate * step - rate * spec.algorithm.weight_decay * theta
        for name, value in (("m", m), ("v", v), ("update", theta - start)):
            found[name].append(value)
    return {name: np.array(values) for name, values in found.items()}


@pytest.fixture(scope="module")
def two_clients(small):
    """One round of two clients with a linear model and whole batches, without privacy."""
    return small("local-adamw", "algorithm.learning_rate=0.01", rounds=1)


@pytest.fixture(scope="module")
def by_hand(two_clients):
    return reference(two_clients)


def test_the_variance_of_v_across_two_clients_is_that_worked_out_by_hand(two_clients, by_hand):
    found = measured("second-moment-variance", two_clients)
    one, other = by_hand["v"]
    assert found.variances == pytest.approx([((one - other) ** 2 / 2).mean()], **CLOSE)
    assert (found.rounds.tolist(), found.clients.tolist()) == ([1.0], [2.0])


def test_distances_and_cosine_are_those_of_the_clients_updates(two_clients, by_hand):
    found = measured("drift", two_clients)
    one, other = by_hand["update"]
    lengths = np.linalg.norm(one), np.linalg.norm(other)
    assert found.mean_distance == pytest.approx([np.mean(lengths)], **CLOSE)
    assert found.least_distance == pytest.approx([min(lengths)], **CLOSE)
    assert found.greatest_distance == pytest.approx([max(lengths)], **CLOSE)
    assert found.cosine == pytest.approx([one @ other / lengths[0] / lengths[1]], **CLOSE)


def test_moments_without_noise_are_the_rule_s_own(two_clients, by_hand):
    found = measured("moments", two_clients)
    assert found.first == pytest.approx(by_hand["m"].ravel(), rel=1e-4, abs=1e-7)
    assert found.root == pytest.approx(np.sqrt(by_hand["v"]).ravel(), rel=1e-4, abs=1e-7)
    assert found.clean_first is None
    assert (found.clients, found.of) == (2, 2)


def test_noised_moments_follow_from_the_gradients_that_were_handed_out(noised):
    found = measured("moments", noised)
    last, clients = 1, opened(noised).past.rounds[1].entry["clients"]
    firsts, seconds = [], []
    for client in clients:
        with np.load(noised.evidence / f"upload-{last:05d}-{client:05d}.npz") as file:
            gradients = file["gradients"].astype(np.float64)
            start = load(file["broadcast"].tobytes())["state.second_moment"].astype(np.float64)
        m, v = np.zeros(gradients.shape[1]), np.repeat(start, gradients.shape[1] // len(start))
        for g in gradients:
            m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g**2
        firsts.append(m)
        seconds.append(v)
    assert found.first == pytest.approx(np.concatenate(firsts), rel=1e-4, abs=1e-7)
    assert found.root == pytest.approx(np.sqrt(np.concatenate(seconds)), rel=1e-4, abs=1e-7)


def test_the_second_moment_without_noise_is_carried_as_the_evidence_carries_it(noised):
    """Its block means are in the evidence, which follows block sums alone."""
    found = measured("moments", noised)
    with np.load(noised.evidence / round_file(1)) as file:
        kept = file["v_clean"]
    clean = (found.clean_root**2).reshape(len(kept), -1)
    assert kept.shape[1] == 1, "one block, or means of coordinates would not be means of blocks"
    assert clean.mean(1) == pytest.approx(kept[:, 0], rel=1e-5)
    # It goes on from the round before: of a single round it would be about half.
    assert clean.mean() > 1.5 * (1 - BETA2) * 3 * np.square(found.clean_first).mean()
    assert np.abs(found.clean_first).mean() < np.abs(found.first).mean()


class Collected(RoundObserver):
    """Every gradient without noise, by round and client."""

    def __init__(self):
        self.rounds, self.clients = [], []

    def begins(self, broadcast):
        self.clients.append([])

    def answered(self, noised, clean):
        self.clients[-1].append(clean.double().numpy().copy())

    def closes(self, current):
        self.rounds.append(np.array(self.clients))
        self.clients = []


def test_moments_without_noise_are_those_of_the_gradients_before_noise(small):
    """Blocks of several coordinates: the bias's mean is not that of the weights."""
    run = small("dp-fedadamw", "algorithm.second_moment.aggregation=tensor", clients=3)
    finished, gradients = opened(run), Collected()
    moments = FIGURES["moments"].measure(finished, Settings())
    finished.rerun.observe(RoundObservers((gradients, moments)))
    layout = json.loads((run.evidence / "layout.json").read_text())
    sampled, sizes = layout["sample_coordinates"], layout["blocks"]["sizes"]
    assert sizes == [640, 10]
    for index, of_clients in enumerate(gradients.rounds):
        for client, clean in zip(
            finished.past.rounds[index].entry["clients"], of_clients, strict=True
        ):
            with np.load(run.evidence / f"upload-{index:05d}-{client:05d}.npz") as file:
                # Clipped sums, to be divided by B = 24.
                assert clean[:, sampled] == pytest.approx(file["clean_sample"] / 24, rel=1e-6)
    start = np.zeros(650)
    for of_clients in gradients.rounds:
        firsts, seconds = np.zeros((3, 650)), np.tile(start, (3, 1))
        for step in range(of_clients.shape[1]):
            g = of_clients[:, step]
            firsts = BETA1 * firsts + (1 - BETA1) * g
            seconds = BETA2 * seconds + (1 - BETA2) * g**2
        mean = seconds.mean(0)
        start = np.repeat([mean[:640].mean(), mean[640:].mean()], sizes)
    found = moments.found()
    assert found.clean_first == pytest.approx(firsts.ravel(), rel=1e-5, abs=1e-9)
    assert found.clean_root == pytest.approx(np.sqrt(seconds).ravel(), rel=1e-5, abs=1e-9)


def test_every_coordinate_is_in_a_row_of_the_histogram_s_numbers(noised):
    """The picture has the central 99 % alone; what lies outside has rows without an end."""
    table = FIGURES["moments"].compose([Measured(label="a", numbers=measured("moments", noised))])
    shares, open_ended = {}, 0
    for _, quantity, noise, _, low, high, share in table.table.rows:
        shares[quantity, noise] = shares.get((quantity, noise), 0.0) + share
        open_ended += low is None or high is None
    assert shares == pytest.approx(
        {(q, n): 100.0 for q in ("m", "sqrt_v") for n in ("yes", "taken out")}
    )
    assert open_ended == 8


def test_what_does_not_fit_is_left_out_and_counted(noised):
    finished = opened(noised)
    observer = MomentsObserver(finished.rerun.experiment.algorithm.local, noised=True, most=2 * 650)
    finished.rerun.observe(observer)
    found = observer.found()
    assert (found.clients, found.of, len(found.first)) == (2, 3, 2 * 650)


@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [
        ("dp-fedavg", "dp-fedavg keeps no second moment"),
        ("local-adam", "mixes weight decay into its moments"),
    ],
)
def test_rules_without_moments_of_the_gradients_are_named(small, algorithm, reason):
    run = small(algorithm)
    for name in ("second-moment-variance", "moments"):
        with pytest.raises(FigureError, match=reason):
            FIGURES[name].measure(opened(run), Settings())


def test_a_single_client_has_no_variance_across_clients(small):
    run = small("local-adamw", rounds=1, clients=1)
    with pytest.raises(FigureError, match="no round has two clients"):
        measured("second-moment-variance", run)
    assert np.isnan(measured("drift", run).cosine).all()


def test_a_run_that_comes_out_otherwise_is_not_drawn(noised):
    class Nobody(MomentsObserver):
        pass

    finished = opened(noised, seed=2)
    observer = Nobody(finished.rerun.experiment.algorithm.local, noised=True)
    with pytest.raises(ReexecutionError, match="does not lead to the state that the ledger names"):
        finished.rerun.observe(observer)


def test_the_reference_would_notice_another_decay(two_clients, by_hand):
    """The tolerance is narrow: β2 of 0.998 doubles v."""
    ledger = json.loads(io.StringIO(two_clients.ledger.read_text().splitlines()[0]).read())
    assert ledger["unit"] == "none"
    doubled = 2 * by_hand["v"]
    assert measured("moments", two_clients).root != pytest.approx(np.sqrt(doubled).ravel(), rel=0.1)
