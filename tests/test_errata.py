"""ERRATA.md: every entry names what shows it, and that is there."""

from __future__ import annotations

import math
import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy import optimize, stats

import specs
from audit.checks import checks_of
from audit.extensions.claims.claim import shipped
from audit.reading.units import CLIENT, RECORD
from dpfedadamw.accounting.rdp import divergence
from dpfedadamw.algorithms.adaptive_iterations import best_local_steps
from dpfedadamw.algorithms.base import Upload
from dpfedadamw.algorithms.server import mean_update
from dpfedadamw.privacy.composition import Composition
from dpfedadamw.spec.matrix import load_sweep

ROOT = Path(__file__).parents[1]
ENTRIES = 53


def entries() -> dict[int, str]:
    """What shows each entry: the last cell of its row, by its number."""
    found = {}
    for line in (ROOT / "ERRATA.md").read_text(encoding="utf-8").splitlines():
        match = re.match(r"\| (\d+) \|.*\| (.+?) \|$", line)
        if match is not None:
            assert int(match[1]) not in found
            found[int(match[1])] = match[2]
    return found


@cache
def names_of_tests() -> set[str]:
    """Names of all tests."""
    files = (ROOT / "tests").rglob("test_*.py")
    return set(re.findall(r"^def (test_\w+)", "\n".join(f.read_text() for f in files), re.M))


def is_there(named: str) -> bool:
    """Whether what an entry names in backticks is there."""
    if named.startswith("tests/"):
        return (ROOT / named).exists()
    if named.startswith("test_"):
        return named in names_of_tests()
    command, _, name = named.partition(" ")
    if command == "--paper-claim":
        return name in shipped()
    if named.startswith("dpfedadamw sweep "):
        return name.split()[1] in specs.sweep_files()
    return named in {check.name for unit in (RECORD, CLIENT) for check in checks_of(unit)}


def test_every_entry_is_numbered_once_and_names_what_shows_it():
    found = entries()
    assert sorted(found) == list(range(1, ENTRIES + 1))
    for number, shown in found.items():
        named = [name for name in re.findall(r"`([^`]+)`", shown) if name != "local"]
        # Faults are named in the page that the entry links.
        page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
        named = [name for name in named if f"`{name}`" not in page or is_there(name)]
        assert named, (number, shown)
        assert all(is_there(name) for name in named), (number, named)
        for link in re.findall(r"\]\(([^)#]+)", shown):
            assert (ROOT / link).is_file(), (number, link)


def test_the_slip_in_ali_dpfl_moves_its_best_number_of_local_steps():
    """ERRATA 30: with η = β/t and β = 2/μ, A is multiplied by β² = 4/μ², and not β² added to A."""
    mu, gamma, total, square, energy, smooth, start = 0.5, 10.0, 300.0, 1.0, 0.7, 3.0, 2.0
    eta = 1 / (mu * total)
    curve = (2 + eta * mu) * (square + energy)

    def bound(steps: float, slip: bool) -> float:
        """G(τ) of equation (11) as it is printed, or as it follows."""
        beta = 4 / mu**2
        rest = 3 * square + 2 * gamma / eta + energy
        inner = curve * steps**2 - 2 * curve * steps + curve + rest
        inner = inner + beta if slip else beta * inner
        return smooth * (inner + start * steps) / (2 * steps)

    least = {
        slip: optimize.minimize_scalar(bound, bounds=(1.0, 500.0), args=(slip,)).x
        for slip in (True, False)
    }
    assert least[True] == pytest.approx(best_local_steps(mu, gamma, total, 1.0, energy), rel=1e-4)
    without = math.sqrt(1 + (3 * square + 2 * gamma * total * mu + energy) / curve)
    assert least[False] == pytest.approx(without, rel=1e-4)
    assert least[True] > least[False]


def test_a_sum_from_zero_to_t_charges_one_step_more_than_are_taken():
    """ERRATA 33: eq. (12) and (16), as printed, against T steps by dp-accounting."""
    steps, rate, noise, order = 20, 0.1, 1.5, 8

    def one_step() -> float:
        """A summand, with the logarithm that ERRATA 27 is about."""
        terms = [
            math.comb(order, k)
            * (1 - rate) ** (order - k)
            * rate**k
            * math.exp((k * k - k) / (2 * noise**2))
            for k in range(order + 1)
        ]
        return math.log(sum(terms)) / (order - 1)

    accountant = RdpAccountant([order])
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps)
    spent = divergence([Composition(noise, rate, steps)], order)
    assert spent == pytest.approx(accountant._rdp[0], rel=1e-9)
    assert spent == pytest.approx(sum(one_step() for _ in range(1, steps + 1)), rel=1e-9)
    as_printed = sum(one_step() for _ in range(steps + 1))
    assert as_printed == pytest.approx(spent * (steps + 1) / steps, rel=1e-9)


def test_weights_by_size_would_give_each_client_a_sensitivity_of_its_own():
    """ERRATA 35: what the mean moves by when one client's update, of norm C, is taken out."""
    sizes = torch.tensor([50.0, 100.0, 350.0])
    updates = torch.eye(3) * 2.0
    weights = sizes / sizes.sum()

    def moved(mean) -> list[float]:
        every = mean(updates)
        return [float((every - mean(updates * keep[:, None])).norm()) for keep in 1 - torch.eye(3)]

    ours = moved(lambda sent: mean_update([Upload(one, {}, {}) for one in sent]))
    assert ours == pytest.approx([2.0 / 3] * 3)
    by_size = moved(lambda sent: weights @ sent)
    assert by_size == pytest.approx([0.2, 0.4, 1.4])
    # Noise made for C/S protects the largest client by less than half of what is claimed.
    assert max(by_size) > 2 * max(ours)
    # And the weights themselves tell how many records a client has: an upload carries none.
    assert {field.name for field in fields(Upload)} == {"update", "state", "memory"}


def test_the_expected_rounds_of_the_review_are_exceeded_by_two_clients_in_five():
    """ERRATA 39: ε of a client in ten of 100 rounds bounds what 58 % of clients spend."""
    assert round(float(stats.binom.sf(10, 100, 0.1)), 2) == 0.42


def test_one_run_of_dp_fedsam_has_two_deviations():
    """ERRATA 47."""
    one, three = (load_sweep(f"paper-dp-fedsam-table-{n}", ["seeds=1"]) for n in (1, 3))
    digests = {cell.digest: cell for cell in one.cells}
    printed = [
        (table.of(cell.values), other.of(digests[cell.digest].values))
        for table, other in zip(three.expected, one.expected, strict=True)
        for cell in three.cells
    ]
    different = [(a.value, a.deviation, b.deviation) for a, b in printed if a != b]
    assert different == [(0.9587, 0.0052, 0.0152)]


def printed(sweep: str, measure: str = "test_accuracy") -> dict[str, list[Any]]:
    """The rows of a paper's table, as they are printed."""
    values = yaml.safe_load(specs.find(sweep).read_text(encoding="utf-8"))
    rows: dict[str, list[Any]] = values["expected"][measure]["values"]
    return rows


def means(row: list[Any]) -> list[float]:
    """The row without its deviations."""
    return [float(str(cell).partition(" ±")[0]) for cell in row]


def test_two_models_of_dp_fedadamw_table_2_have_the_same_deviations():
    """ERRATA 48: the first four columns are ResNet-18's, the last four ViT-Base's."""
    same = {}
    for method, row in printed("paper-dp-fedadamw-table-2").items():
        deviations = [cell.partition("± ")[2] for cell in row]
        pairs = zip(deviations[:4], deviations[4:], strict=True)
        same[method] = sum(one == other for one, other in pairs)
    assert {method: many for method, many in same.items() if many} == {
        "DP-FedAvg": 4, "DP-LocalAdamW": 4, "DP-FedAdamW": 3,
    }  # fmt: skip


def test_the_lead_of_fedadamw_on_qqp_is_over_the_third_best():
    """ERRATA 49: QQP is the fourth of the seven tasks."""
    qqp = {method: means(row)[3] for method, row in printed("paper-fedadamw-table-3").items()}
    first, second, third = sorted(qqp, key=lambda method: -qqp[method])[:3]
    assert (first, second, third) == ("FedAdamW", "Local AdamW", "FedLADA")
    assert qqp[first] - qqp[second] == pytest.approx(0.69)
    assert qqp[first] - qqp[third] == pytest.approx(1.74)


def test_two_rows_of_dp_fedsam_table_2_differ_by_a_constant():
    """ERRATA 50."""
    rows = {method: means(row) for method, row in printed("paper-dp-fedsam-table-2").items()}

    def lead(over: str, under: str) -> list[float]:
        return [round(a - b, 2) for a, b in zip(rows[over], rows[under], strict=True)]

    assert lead("DP-FedAvg-blurs", "Fed-SMP-top_k") == [0.4] * 4
    assert lead("DP-FedAvg-blur", "DP-FedAvg") == [0.0, 0.06, 0.0, 0.0]


def test_columns_of_dp_fedsam_table_1_repeat_each_other():
    """ERRATA 51: EMNIST's columns are 0 to 2 and CIFAR-10's 3 to 5, at 0.3, 0.6 and IID."""
    test = printed("paper-dp-fedsam-table-1")
    for column in (1, 4):
        assert test["Fed-SMP-top_k"][column] == test["DP-FedAvg-blurs"][column]
    train = printed("paper-dp-fedsam-table-1", "train_accuracy")
    repeated = {method for method, row in train.items() if means(row)[4] == means(row)[5]}
    assert repeated == {"DP-FedAvg", "Fed-SMP-rand_k", "Fed-SMP-top_k", "DP-FedSAM"}
    for method in ("DP-FedAvg-blur", "DP-FedAvg-blurs"):
        assert means(train[method])[1] == means(train[method])[4]


def test_local_adam_of_fedadamw_table_1_has_the_decay_of_its_number_in_table_6():
    """ERRATA 52."""
    six = {label: means([value])[0] for label, value in printed("paper-fedadamw-table-6").items()}
    cells = load_sweep("paper-fedadamw-table-1", ["seeds=1"]).cells
    wanted = {"setting": "ViT-Tiny, Dir-0.1", "method": "Local Adam"}
    (cell,) = [one for one in cells if wanted.items() <= one.values.items()]
    decay = cell.spec.algorithm.weight_decay
    number = means(printed("paper-fedadamw-table-1")["Local Adam"])[3]
    assert six[f"Local Adam, λ = {decay:g}"] == number
    assert six["Local Adam, λ = 0.010"] != number


def test_the_reviews_row_for_cifar_100_is_tiny_imagenets():
    """ERRATA 53: columns of Swin-Base at 0.1 are the fourth and the last."""
    rows = printed("paper-dp-fedadamw-table-3")
    ours, sam = means(rows["DP-FedAdamW"]), means(rows["DP-FedSAM"])
    assert (ours[7], sam[7]) == (50.76, 48.08)
    assert (ours[3], sam[3]) == (67.45, 66.28)
