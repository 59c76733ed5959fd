"""Claims of client-level runs, against dp-accounting called directly."""

from __future__ import annotations

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant

from dpfedadamw.privacy.accounting.client_level import client_level_claim


def spends(rounds: int, by: str, clients: list[int], noise: float = 1.1, rate: float = 0.3):
    shared = noise / len(clients) ** 0.5 if by == "clients" and clients else None
    return [
        {
            "noise_multiplier": noise,
            "sampling_rate": rate,
            "noise_added_by": by,
            "clients": clients,
            "upload_noise_multiplier": shared,
        }
    ] * rounds


def epsilon(event, delta: float) -> float:
    accountant = PLDAccountant()
    accountant.compose(event)
    return float(accountant.get_epsilon(delta))


def test_a_third_party_sees_poisson_subsampled_gaussians_over_clients():
    claim = client_level_claim(spends(25, "server", [1, 2, 3]), 10, 1e-3)
    expected = epsilon(
        dp_accounting.SelfComposedDpEvent(
            dp_accounting.PoissonSampledDpEvent(0.3, dp_accounting.GaussianDpEvent(1.1)), 25
        ),
        1e-3,
    )
    assert claim["third_party"]["epsilon"]["pld"] == pytest.approx(expected, rel=2e-3)
    assert claim["view_headline"] == "third-party"


def test_a_server_that_adds_the_noise_gets_no_guarantee():
    claim = client_level_claim(spends(25, "server", [1, 2, 3]), 10, 1e-3)
    assert claim["server"] == {"epsilon": None, "clients": []}
    assert any("no guarantee" in text for text in claim["assumptions"])


def test_a_server_that_sees_noised_uploads_gains_nothing_from_sampling():
    entries = [*spends(5, "clients", [1, 2, 3, 4]), *spends(3, "clients", [1])]
    claim = client_level_claim(entries, 10, 1e-3)
    by_client = {entry["client"]: entry for entry in claim["server"]["clients"]}
    one = epsilon(
        dp_accounting.ComposedDpEvent(
            [
                dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(1.1 / 2), 5),
                dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(1.1), 3),
            ]
        ),
        1e-3,
    )
    assert by_client[1]["epsilon"]["pld"] == pytest.approx(one, rel=2e-3)
    assert by_client[1]["participations"] == 8
    assert claim["server"]["epsilon"]["pld"] == by_client[1]["epsilon"]["pld"]
    assert claim["server"]["epsilon"]["pld"] > claim["third_party"]["epsilon"]["pld"]


def test_a_round_that_was_charged_twice_counts_twice():
    once = client_level_claim(spends(10, "server", []), 10, 1e-3)
    twice = client_level_claim(spends(11, "server", []), 10, 1e-3)
    assert twice["third_party"]["epsilon"]["pld"] > once["third_party"]["epsilon"]["pld"]
