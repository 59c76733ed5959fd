"""Whole clients: each number of spec, header and charges is held to the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from audit.reading.bundle import Bundle, open_bundle
from audit.reading.ledger_lines import Sparsification, Trial
from tests.audit.checks.opened import changed, charge, ended, judged, says
from tests.audit.synthetic_client_run import ClientSettings, build_client_run

Document = dict[str, Any]
OFF = 1.0 + 1.1e-9
WITHIN = 1.0 + 0.9e-9


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s["privacy"].update(clipping_norm=0.5 * OFF), "clipping_norm: the spec says"),
        (lambda s: s["privacy"].update(noise_multiplier=1.5 * OFF), "noise_multiplier: the spec"),
        (lambda s: s["privacy"].update(delta=1e-3 * OFF), "delta: the spec says"),
        (lambda s: s["privacy"].update(adjacency="replace-one"), "adjacency: the spec says"),
        (lambda s: s["privacy"].update(noise_added_by="clients"), "noise_added_by: the spec says"),
        (lambda s: s["privacy"]["sampling"].update(kind="poisson"), "sampling: the spec says"),
        (lambda s: s["privacy"].update(unit="record"), "unit: the spec says record"),
        (lambda s: s["federation"].update(rounds=25), "rounds: the spec says 25, the ledger 24"),
        (lambda s: s["federation"].update(local_steps=2), "local_steps: the spec says 2"),
        (lambda s: s["data"].update(clients=13), "clients: the spec says 13, the ledger 12"),
        (
            lambda s: s.update(tune={"selection": "private", "mean_trials": 3, "shape": 1.0}),
            "tuning: only one of spec and ledger says that this is a trial of a selection",
        ),
        (
            lambda s: s.update(budget={"file": "spent.db", "epsilon": 9.0, "delta": 1e-3}),
            "budget: only one of spec and ledger names one",
        ),
        (lambda s: s["federation"].update(max_epsilon=99.0), "max_epsilon: the spec says 99.0"),
    ],
)
def test_a_spec_that_promises_another_number_is_named(
    of_clients: Bundle, change: Callable[[Document], object], said: str
) -> None:
    verdict, text = says(changed(of_clients, spec=change), "promise")
    assert verdict == "FAIL"
    assert text.startswith(said)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"participation": 0.25 * OFF}, "participation: the ledger's is not clients_per_round / "),
        ({"participation": None}, "participation: the ledger's is not clients_per_round / clients"),
        (
            {"client_sampling": "fixed-size"},
            "only Poisson sampling of clients under add-remove has this accounting",
        ),
        (
            {"sparsification": Sparsification("random", 340, 170, 0)},
            "sparsification: the ledger's is not the spec's",
        ),
        (
            {"tuning": Trial(1, 3, "0" * 64)},
            "tuning: only one of spec and ledger says that this is a trial of a selection",
        ),
    ],
)
def test_a_header_that_declares_another_mechanism_is_named(
    of_clients: Bundle, header: Document, said: str
) -> None:
    verdict, text = says(changed(of_clients, header=header), "promise")
    assert verdict == "FAIL"
    assert said in text


def test_another_adjacency_than_add_remove_has_no_accounting(of_clients: Bundle) -> None:
    run = changed(
        of_clients,
        spec=lambda s: s["privacy"].update(adjacency="replace-one"),
        header={"adjacency": "replace-one"},
    )
    assert says(run, "promise") == (
        "FAIL",
        "only Poisson sampling of clients under add-remove has this accounting",
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"clipping_norm": 0.5 * OFF}, "clipping_norm differs from the header's"),
        ({"noise_multiplier": 1.5 * OFF}, "noise_multiplier differs from the header's"),
        ({"sampling_rate": 0.25 * OFF}, "sampling_rate differs from the header's"),
        ({"expected_clients": 3.0 * OFF}, "expected_clients differs from the header's"),
        ({"sampling": "fixed-size"}, "sampling differs from the header's client_sampling"),
        ({"upload_noise_multiplier": 1.5}, "upload_noise_multiplier where no upload carries noise"),
    ],
)
def test_each_number_of_a_charge_is_the_headers(
    of_clients: Bundle, change: Document, said: str
) -> None:
    run = charge(of_clients, 0, **change)
    line = of_clients.readable_ledger.round_spends[0].line
    assert says(run, "promise") == ("FAIL", f"ledger.jsonl:{line}: {said}")
    assert says(charge(of_clients, 0, noise_multiplier=1.5 * WITHIN), "promise")[0] == "PASS"


def test_each_upload_carries_a_share_of_sigma_over_the_root_of_m(
    noised_by_clients: Bundle,
) -> None:
    first = noised_by_clients.readable_ledger.round_spends[0]
    share = 1.5 / len(first.clients) ** 0.5
    assert first.upload_noise_multiplier == pytest.approx(share)
    wrong = f"ledger.jsonl:{first.line}: upload_noise_multiplier is not sigma over the root of m"
    for other, verdict in ((share * OFF, "FAIL"), (share * WITHIN, "PASS"), (None, "FAIL")):
        found = says(charge(noised_by_clients, 0, upload_noise_multiplier=other), "promise")
        assert found[0] == verdict
        assert verdict == "PASS" or found[1] == wrong
    adds = says(charge(noised_by_clients, 0, noise_added_by="server"), "promise")[1]
    assert f"ledger.jsonl:{first.line}: noise_added_by differs from the header's" in adds


def test_nobody_noises_an_upload_in_an_empty_round(noised_by_clients: Bundle) -> None:
    spends = noised_by_clients.readable_ledger.round_spends
    place = next(at for at, spend in enumerate(spends) if not spend.clients)
    assert says(noised_by_clients, "promise")[0] == "PASS"
    verdict, text = says(charge(noised_by_clients, place, upload_noise_multiplier=1.5), "promise")
    assert verdict == "FAIL"
    assert "upload_noise_multiplier where no upload carries noise" in text


def test_a_client_makes_no_more_steps_than_were_promised(of_clients: Bundle) -> None:
    first = of_clients.readable_ledger.rounds[0]
    steps = (4, *first.steps[1:])
    assert says(ended(of_clients, 0, steps=steps), "promise") == (
        "FAIL",
        f"ledger.jsonl:{first.line}: a client made more steps than promised",
    )
    assert says(ended(of_clients, 0, steps=(2, *first.steps[1:])), "promise")[0] == "PASS"


def test_delta_is_below_one_over_the_clients(of_clients: Bundle) -> None:
    def said(delta: float) -> str:
        def claim(one: Document) -> None:
            one["delta"] = delta

        spec = changed(
            of_clients,
            spec=lambda s: s["privacy"].update(delta=delta),
            header={"delta": delta},
            claim=claim,
        )
        return says(spec, "promise")[1]

    assert said(1 / 12) == "delta is not below 1/12, one over the number of clients"
    assert "delta is not below" not in said(0.99 / 12)
    details = judged(of_clients, "promise").details
    assert details["delta_clients"] == pytest.approx(12e-3)
    no_claim = changed(of_clients, ledger={"claim": None})
    assert says(no_claim, "promise")[1] == "there is no claim"


def test_a_target_that_a_restarted_round_exceeds_says_so(tmp_path: Path) -> None:
    run = open_bundle(build_client_run(tmp_path / "run", ClientSettings(resumed_round=5)))

    def said(bundle: Bundle) -> tuple[str, str]:
        return says(
            changed(bundle, spec=lambda s: s["privacy"].update(target_epsilon=0.5)), "promise"
        )

    once = (
        "FAIL",
        "the claimed epsilon exceeds the promised target of 0.5 (1 rounds were charged again "
        "after a crash)",
    )
    assert said(run) == once
    # Of a run that was never cut off there is nothing to explain.
    spends = [spend for spend in run.readable_ledger.round_spends if spend.attempt == 1]
    straight = changed(run, ledger={"round_spends": tuple(spends)})
    assert said(straight) == ("FAIL", "the claimed epsilon exceeds the promised target of 0.5")


@pytest.mark.parametrize(("factor", "verdict"), [(OFF, "FAIL"), (WITHIN, "PASS"), (0.5, "FAIL")])
def test_sums_are_divided_by_the_public_number_of_clients(
    of_clients: Bundle, factor: float, verdict: str
) -> None:
    run = changed(of_clients, evidence={7: {"divisor": 3.0 * factor}})
    found = says(run, "promise")
    assert found[0] == verdict
    if verdict == "FAIL":
        assert found[1].startswith("round 7: the noisy sum was not divided by")
