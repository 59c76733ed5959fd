"""Claims of client-level runs, against dp-accounting called directly and Gaussians' own form."""

from __future__ import annotations

import math

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from scipy import optimize, stats

from dpfedadamw.accounting import client_level
from dpfedadamw.accounting.client_level import (
    ASSUMPTIONS,
    NOT_TUNED,
    client_level_claim,
    server_compositions,
    third_party_compositions,
)
from dpfedadamw.accounting.pld import privacy_profile
from dpfedadamw.accounting.registry import epsilons
from dpfedadamw.accounting.selection import TUNED, Trials, epsilon_of_selection
from dpfedadamw.accounting.trade_off import gaussian_dp
from dpfedadamw.privacy.composition import Composition


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


def epsilon_of_gaussian(sigma: float, delta: float) -> float:
    """ε of one Gaussian of this multiplier (Balle & Wang 2018), exact."""

    def excess(epsilon: float) -> float:
        upper = stats.norm.cdf(0.5 / sigma - epsilon * sigma)
        return upper - math.exp(epsilon) * stats.norm.cdf(-0.5 / sigma - epsilon * sigma) - delta

    return float(optimize.brentq(excess, 0.0, 100.0))


@pytest.mark.thorough
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
    # Gaussians add up to one: five of σ/2 and three of σ.
    one = epsilon_of_gaussian(1.1 / (5 * 4 + 3) ** 0.5, 1e-3)
    assert by_client[1]["epsilon"]["pld"] == pytest.approx(one, rel=2e-3)
    assert by_client[1]["participations"] == 8
    assert claim["server"]["epsilon"]["pld"] == by_client[1]["epsilon"]["pld"]
    assert claim["server"]["epsilon"]["pld"] > claim["third_party"]["epsilon"]["pld"]


def test_a_round_that_was_charged_twice_counts_twice():
    once = client_level_claim(spends(10, "server", []), 10, 1e-3)
    twice = client_level_claim(spends(11, "server", []), 10, 1e-3)
    assert twice["third_party"]["epsilon"]["pld"] > once["third_party"]["epsilon"]["pld"]


def test_rounds_are_added_up_by_noise_and_rate():
    lines = [
        *spends(2, "server", [], 2.0, 0.3),
        *spends(3, "server", [], 1.0, 1.0),
        *spends(1, "server", [], 2.0, 0.2),
        *spends(4, "server", [], 2.0, 0.3),
    ]
    assert third_party_compositions(lines) == (
        Composition(1.0, 1.0, 3, 1, "full"),
        Composition(2.0, 0.2, 1, 1, "poisson"),
        Composition(2.0, 0.3, 6, 1, "poisson"),
    )
    assert [part.steps for part in third_party_compositions(lines, 5)] == [15, 5, 30]


def test_uploads_are_added_up_by_client_and_by_the_noise_that_they_carry():
    lines = [
        *spends(2, "clients", [3, 1], 2.0),
        *spends(1, "clients", [1], 2.0),
        *spends(4, "clients", [3, 1], 2.0),
    ]
    pair, alone = 2.0 / 2**0.5, 2.0
    assert server_compositions(lines) == {
        1: (Composition(pair, 1.0, 6, 1, "full"), Composition(alone, 1.0, 1, 1, "full")),
        3: (Composition(pair, 1.0, 6, 1, "full"),),
    }
    assert server_compositions(lines, 3)[3] == (Composition(pair, 1.0, 18, 1, "full"),)


def test_the_claim_says_what_a_reader_needs_to_read_its_number():
    claim = client_level_claim(spends(4, "clients", [5, 2], 9.0, 0.25), 12, 1e-3, times=3)
    rounds = (Composition(9.0, 0.25, 12, 1, "poisson"),)
    assert (claim["view_headline"], claim["delta"]) == ("third-party", 1e-3)
    assert claim["third_party"] == {
        "epsilon": epsilons(rounds, 1e-3),
        "accountant": "pld",
        "participation": 0.25,
        "rounds": 12,
        "delta_clients": pytest.approx(0.012),
    }
    assert claim["profile"] == [list(point) for point in privacy_profile(rounds)]
    assert claim["gaussian_dp"] == gaussian_dp(rounds)
    assert "tuning" not in claim
    own = epsilons([Composition(9.0 / 2**0.5, 1.0, 12, 1, "full")], 1e-3)
    assert claim["server"] == {
        "epsilon": {"pld": own["pld"]},
        "accountant": "pld",
        "clients": [
            {"client": 2, "participations": 12, "epsilon": own},
            {"client": 5, "participations": 12, "epsilon": own},
        ],
    }


def test_where_nobody_uploaded_nothing_was_spent_towards_the_server():
    lines = [{**one, "upload_noise_multiplier": None} for one in spends(2, "clients", [], 9.0)]
    assert client_level_claim(lines, 10, 1e-3)["server"] == {
        "epsilon": {"pld": 0.0},
        "accountant": "pld",
        "clients": [],
    }


@pytest.mark.parametrize(
    ("by", "words"),
    [
        ("server", ["it must be trusted"]),
        ("clients", ["nothing is gained from sampling clients", "not its presence"]),
    ],
)
def test_assumptions_name_the_choice_and_what_holds_towards_whom(by, words):
    for selection, told in (
        ("none", NOT_TUNED),
        ("public", TUNED["public"]),
        ("unaccounted", TUNED["unaccounted"]),
    ):
        claim = client_level_claim(spends(1, by, [1], 9.0), 10, 1e-3, selection=selection)
        found = claim["assumptions"]
        assert tuple(found[:4]) == ASSUMPTIONS[:4]
        assert found[4] == told
        assert found[5].startswith("third party: it sees models only")
        assert len(found) == 6 + len(words)
        for sentence, one in zip(found[6:], words, strict=True):
            assert sentence.startswith("server: ")
            assert one in sentence
    assert ASSUMPTIONS[4] == NOT_TUNED
    assert client_level_claim(spends(1, by, [1], 9.0), 10, 1e-3)["assumptions"][4] == NOT_TUNED


def test_what_was_foreseen_is_handed_to_the_accountants_towards_the_server_alone(monkeypatch):
    asked = []

    def noted(parts, delta, most=None):
        asked.append((parts, delta, most))
        return {"pld": float(len(asked))}

    monkeypatch.setattr(client_level, "epsilons", noted)
    most = (Composition(9.0, 1.0, 7, 1, "full"),)
    claim = client_level_claim(spends(1, "clients", [1, 2], 9.0), 10, 1e-3, most=most)
    assert [(one[1], one[2]) for one in asked] == [(1e-3, most), (1e-3, most), (1e-3, None)]
    # The server's is the largest of any client.
    assert claim["server"]["epsilon"] == {"pld": 2.0}
    assert claim["third_party"]["epsilon"] == {"pld": 3.0}


@pytest.mark.parametrize("drawn", [None, 3])
def test_of_a_trial_the_selection_is_claimed_and_all_trials_once_they_are_drawn(drawn):
    law = Trials(4.0, 1.0)
    lines = [*spends(2, "clients", [1], 9.0, 0.25), *spends(1, "clients", [1], 8.0, 0.25)]
    most = (Composition(9.0, 1.0, 7, 1, "full"),)
    plain = client_level_claim(lines, 10, 1e-3, most=most)
    claim = client_level_claim(lines, 10, 1e-3, most=most, trials=law, drawn=drawn)
    rounds = [(Composition(8.0, 0.25, 1), 1), (Composition(9.0, 0.25, 2), 1)]
    chosen = epsilon_of_selection(rounds, 1.0, 1e-3, law)
    assert claim["third_party"]["epsilon"] == {"rdp": chosen}
    assert claim["third_party"]["accountant"] == "rdp"
    assert claim["tuning"]["one_trial"]["epsilon"] == {
        "pld": plain["third_party"]["epsilon"]["pld"]
    }
    assert claim["server"] == plain["server"]
    if drawn is None:
        assert "server_all_trials" not in claim["tuning"]
        return
    # Seven rounds thrice are one Gaussian of σ/√21.
    every = epsilons([Composition(9.0 / 21**0.5, 1.0, 1, 1, "full")], 1e-3)["pld"]
    found = claim["tuning"]["server_all_trials"]["epsilon"]
    assert found == {"pld": pytest.approx(every, rel=1e-3)}


def test_rounds_that_the_winner_repeated_count_in_addition_to_the_other_trials():
    most = (Composition(9.0, 1.0, 7, 1, "full"),)
    lines = [*spends(9, "clients", [1], 9.0, 0.25), *spends(2, "clients", [2], 9.0, 0.25)]
    claim = client_level_claim(lines, 10, 1e-3, most=most, trials=Trials(4.0, 1.0), drawn=3)
    every = epsilons([Composition(9.0 / (7 + 7 + 9) ** 0.5, 1.0, 1, 1, "full")], 1e-3)["pld"]
    found = claim["tuning"]["server_all_trials"]["epsilon"]
    assert found == {"pld": pytest.approx(every, rel=1e-3)}
