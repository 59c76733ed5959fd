"""Each number of spec, header and charges is held to the others, and named where it is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from audit.checks.record import spec_conformance
from audit.checks.record.spec_conformance import _adapted
from audit.checks.shared import adaptive
from audit.errors import UntrustedFileError
from audit.reading.bundle import Bundle, open_bundle
from audit.reading.ledger import Header
from audit.reading.ledger_lines import Adaptation
from audit.reading.units import NONE
from tests.audit.checks.opened import changed, judged, says
from tests.audit.synthetic_run import Settings, build_run

Spec = dict[str, Any]
OFF = 1.0 + 1.1e-9
WITHIN = 1.0 + 0.9e-9


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A run whose batches are draws of exactly B records."""
    path = tmp_path_factory.mktemp("fixed") / "run"
    return open_bundle(build_run(path, Settings(sampling="fixed-size")))


@pytest.fixture(scope="module")
def stated(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A run whose spec states the sampling rate."""
    path = tmp_path_factory.mktemp("stated") / "run"
    return open_bundle(build_run(path, Settings(stated_rate=0.15)))


@pytest.mark.parametrize("kind", ["of_records", "fixed", "stated"])
def test_a_run_that_did_what_was_promised_passes(kind: str, request: pytest.FixtureRequest) -> None:
    assert judged(request.getfixturevalue(kind), "promise").verdict.value == "PASS"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda s: s["privacy"].update(clipping_norm=0.5 * OFF),
            "clipping_norm: the spec says 0.5, the ledger 0.5",
        ),
        (
            lambda s: s["privacy"].update(noise_multiplier=1.5 * OFF),
            "noise_multiplier: the spec says 1.5, the ledger 1.5",
        ),
        (
            lambda s: s["privacy"].update(delta=1e-5 * OFF),
            "delta: the spec says 1e-05, the ledger 1e-05",
        ),
        (
            lambda s: s["privacy"]["sampling"].update(expected_batch_size=12 * OFF),
            "batch size: the spec says 12, the ledger 12.0",
        ),
        (
            lambda s: s["privacy"].update(adjacency="replace-one"),
            "adjacency: the spec says replace-one, the ledger add-remove",
        ),
        (
            lambda s: s["privacy"]["sampling"].update(kind="fixed"),
            "sampling: the spec says fixed-size, the ledger poisson",
        ),
        (
            lambda s: s["federation"].update(client_sampling="poisson"),
            "client_sampling: the spec says poisson, the ledger fixed-size",
        ),
        (lambda s: s["federation"].update(rounds=5), "rounds: the spec says 5, the ledger 4"),
        (
            lambda s: s["federation"].update(local_steps=4),
            "local_steps: the spec says 4, the ledger 3",
        ),
        (
            lambda s: s["federation"].update(clients_per_round=2),
            "clients_per_round: the spec says 2, the ledger 3",
        ),
        (lambda s: s["data"].update(clients=6), "clients: the spec says 6, the ledger 5"),
        (
            lambda s: s["privacy"].update(unit="client"),
            "unit: the spec says client, the ledger record",
        ),
        (lambda s: s["privacy"].update(delta=1.1), "delta is not a number from 0 to 1"),
        (
            lambda s: s["privacy"]["sampling"].update(rate=0.15),
            "sampling_rate: only one of spec and ledger states one",
        ),
        (
            lambda s: s["privacy"]["sampling"].update(reference_size=100),
            "sampling_rate: only one of spec and ledger states one",
        ),
        (
            lambda s: s["privacy"]["sampling"].update(kind="full"),
            "kind is not one of poisson, fixed, shuffled",
        ),
        (
            lambda s: s["algorithm"].update(
                local_iterations={"maximum": 3, "estimate": False, "minimum": 1}
            ),
            "adaptation: the ledger's header does not declare the spec's iterations",
        ),
        (
            lambda s: s.update(budget={"file": "spent.db", "epsilon": 9.0, "delta": 1e-5}),
            "budget: only one of spec and ledger names one",
        ),
    ],
)
def test_a_spec_that_promises_another_number_is_named(
    of_records: Bundle, change: Callable[[Spec], object], said: str
) -> None:
    assert says(changed(of_records, spec=change), "promise") == ("FAIL", said)


@pytest.mark.parametrize("name", ["clipping_norm", "noise_multiplier", "delta"])
def test_numbers_that_were_written_in_decimal_may_be_off_by_their_last_digit(
    of_records: Bundle, name: str
) -> None:
    run = changed(
        of_records, spec=lambda s: s["privacy"].update({name: s["privacy"][name] * WITHIN})
    )
    assert says(run, "promise")[0] == "PASS"


@pytest.mark.parametrize(
    ("how", "spec", "header", "said"),
    [
        ("stated", lambda s: s.update(rate=0.15 * OFF), {}, "the ledger's is not the spec's"),
        ("stated", lambda s: s.update(rate=0.15 * WITHIN), {}, None),
        ("stated", lambda s: s.update(rate=1.1), {}, "rate is not a number from 0 to 1"),
        ("stated", lambda s: s.update(rate=None), {}, "only one of spec and ledger states one"),
        # B over a public size is a rate as well: 12/80.
        ("stated", lambda s: s.update(rate=None, reference_size=80), {}, None),
        (
            "stated",
            lambda s: s.update(rate=None, reference_size=81),
            {},
            "the ledger's is not the spec's",
        ),
        ("stated", lambda s: s.update(rate=0.15, reference_size=81), {}, None),
        (
            "fixed",
            lambda s: s.update(rate=0.15),
            {"sampling_rate": 0.15},
            "it is stated for batches that are not Poisson draws",
        ),
    ],
)
def test_a_sampling_rate_is_stated_by_both_alike_or_by_neither(
    how: str,
    spec: Callable[[Spec], object],
    header: dict[str, Any],
    said: str | None,
    request: pytest.FixtureRequest,
) -> None:
    run = changed(
        request.getfixturevalue(how),
        spec=lambda s: spec(s["privacy"]["sampling"]),
        header=header,
    )
    verdict, text = says(run, "promise")
    assert (verdict == "PASS") == (said is None)
    assert said is None or said in text


@pytest.mark.parametrize(
    ("spec", "header", "said"),
    [
        (12, {}, None),
        (0, {}, "batch_size is not a whole number from 1"),
        (12, {"expected_batch_size": 12.5}, "batches of an exact size need a whole number"),
        (13, {}, "batch size: the spec says 13, the ledger 12.0"),
    ],
)
def test_batches_of_an_exact_size_have_a_whole_one(
    fixed: Bundle, spec: int, header: dict[str, Any], said: str | None
) -> None:
    run = changed(
        fixed, spec=lambda s: s["privacy"]["sampling"].update(batch_size=spec), header=header
    )
    verdict, text = says(run, "promise")
    assert (verdict == "PASS") == (said is None)
    assert said is None or said in text


def test_batches_of_an_exact_size_may_have_an_odd_one(fixed: Bundle) -> None:
    run = changed(
        fixed,
        spec=lambda s: s["privacy"]["sampling"].update(batch_size=13),
        header={"expected_batch_size": 13.0},
    )
    text = says(run, "promise")[1]
    assert "expected_batch_size differs from the header's" in text
    assert "need a whole number" not in text


def test_poisson_draws_may_expect_a_fraction(tmp_path: Path) -> None:
    run = open_bundle(build_run(tmp_path / "run", Settings(expected_batch_size=12.5)))
    assert says(run, "promise")[0] == "PASS"


def test_a_sampler_is_accounted_under_one_adjacency_alone(of_records: Bundle) -> None:
    run = changed(
        of_records,
        spec=lambda s: s["privacy"].update(adjacency="replace-one"),
        header={"adjacency": "replace-one"},
        claim=lambda c: c.update(adjacency="replace-one"),
    )
    assert says(run, "promise") == ("FAIL", "poisson batches have no accounting under replace-one")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"records": 61}, "records of client 0 differ from the header's"),
        ({"clipping_norm": 0.5 * OFF}, "clipping_norm differs from the header's"),
        ({"expected_batch_size": 12.0 * OFF}, "expected_batch_size differs from the header's"),
        ({"noise_multiplier": 1.5 * OFF}, "noise_multiplier differs from the header's"),
        ({"steps": 4}, "steps differ from local_steps"),
        ({"sampling_rate": 0.2 * OFF}, "sampling_rate is not the 0.2 of its sampler"),
        ({"rate_stated": True}, "whether the sampling rate is stated differs from the header"),
        ({"sampling": "shuffled"}, "sampling differs from the header's"),
    ],
)
def test_each_number_of_a_charge_is_the_headers(
    of_records: Bundle, change: dict[str, Any], said: str
) -> None:
    spends = list(of_records.readable_ledger.spends)
    at = next(place for place, spend in enumerate(spends) if spend.client == 0)
    spends[at] = replace(spends[at], **change)
    verdict, text = says(changed(of_records, ledger={"spends": tuple(spends)}), "promise")
    assert verdict == "FAIL"
    assert f"ledger.jsonl:{spends[at].line}: {said}" in text


def test_a_client_makes_no_more_steps_or_queries_than_it_is_charged(of_records: Bundle) -> None:
    rounds = of_records.readable_ledger.rounds
    first = rounds[0]

    def said(**counts: tuple[int, ...]) -> str | None:
        ledger = {"rounds": (replace(first, **counts), *rounds[1:])}
        verdict, text = says(changed(of_records, ledger=ledger), "promise")
        return text if verdict == "FAIL" else None

    more = f"client {first.clients[0]} made more queries than were charged"
    assert said(queries=(4, 3, 3)) == f"ledger.jsonl:{first.line}: {more}"
    assert said(steps=(4, 3, 3)) == f"ledger.jsonl:{first.line}: {more}"
    # A client that was cut short made fewer.
    assert said(queries=(2, 3, 3), steps=(2, 3, 3)) is None


def test_a_client_that_was_never_charged_makes_no_query(of_records: Bundle) -> None:
    ledger = of_records.readable_ledger
    spends = tuple(one for one in ledger.spends if one != ledger.spends[0])
    verdict, text = says(changed(of_records, ledger={"spends": spends}), "promise")
    assert verdict == "FAIL"
    assert f"client {ledger.spends[0].client} made more queries than were charged" in text
    # Not even one.
    first = ledger.rounds[0]
    place = first.clients.index(ledger.spends[0].client)
    queries = tuple(1 if at == place else many for at, many in enumerate(first.queries))
    rounds = (replace(first, queries=queries, steps=queries), *ledger.rounds[1:])
    run = changed(of_records, ledger={"spends": spends, "rounds": rounds})
    assert f"client {ledger.spends[0].client} made more queries" in says(run, "promise")[1]


def test_delta_is_below_one_over_the_records_of_every_client(of_records: Bundle) -> None:
    def said(delta: float) -> str:
        return says(
            changed(
                of_records,
                spec=lambda s: s["privacy"].update(delta=delta),
                header={"delta": delta},
                claim=lambda c: c.update(delta=delta),
            ),
            "promise",
        )[1]

    # The largest client has 112 records.
    assert said(1 / 112) == "delta is not below 1/112, the records of client 4"
    assert "delta is not below" not in said(0.99 / 112)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(delta=1e-5 * OFF), "the claim's delta is not the header's"),
        (lambda c: c.update(adjacency="replace-one"), "the claim's adjacency is not the header's"),
    ],
)
def test_the_claim_is_made_at_the_headers_delta_and_adjacency(
    of_records: Bundle, change: Callable[[Spec], object], said: str
) -> None:
    assert says(changed(of_records, claim=change), "promise") == ("FAIL", said)


def test_a_run_without_a_claim_keeps_no_promise(of_records: Bundle) -> None:
    run = changed(of_records, ledger={"claim": None})
    assert says(run, "promise") == ("FAIL", "there is no claim")


def test_a_claim_may_lie_above_the_target_by_what_accountants_differ_in(
    of_records: Bundle,
) -> None:
    claimed = (of_records.readable_ledger.claim or {})["server"]["epsilon"]["pld"]

    def verdict(target: float) -> str:
        spec = changed(of_records, spec=lambda s: s["privacy"].update(target_epsilon=target))
        return says(spec, "promise")[0]

    # The claim may exceed it by 0.5 % and 0.001.
    least = (claimed - 1e-3) / 1.005
    assert verdict(least * 1.0001) == "PASS"
    assert verdict(least * 0.9999) == "FAIL"


def test_a_target_that_a_restarted_round_exceeds_says_so(of_records: Bundle) -> None:
    spends = of_records.readable_ledger.spends
    twice = tuple(replace(spend, attempt=2) for spend in spends if spend.round == 0)
    assert twice

    def said(bundle: Bundle) -> tuple[str, str]:
        return says(
            changed(bundle, spec=lambda s: s["privacy"].update(target_epsilon=0.01)), "promise"
        )

    once = "the claimed epsilon exceeds the promised target of 0.01"
    assert said(of_records) == ("FAIL", once)
    found = said(changed(of_records, ledger={"spends": (*spends, *twice)}))
    assert found == (
        "FAIL",
        f"{once} ({len(twice)} participations were charged again after a crash)",
    )


def test_sums_are_divided_by_the_public_number_to_the_last_digit(of_records: Bundle) -> None:
    divisor = of_records.round_evidence(2).divisor

    def verdict(factor: float, steps: slice = slice(0, 1)) -> str:
        other = divisor.copy()
        other[-1, steps] *= factor
        return says(changed(of_records, evidence={2: {"divisor": other}}), "promise")[0]

    assert [verdict(OFF), verdict(WITHIN), verdict(2.0 - OFF), verdict(2.0 - WITHIN)] == [
        "FAIL", "PASS", "FAIL", "PASS",
    ]  # fmt: skip


def test_the_record_that_delta_concerns_most_is_that_of_the_largest_client(
    of_records: Bundle,
) -> None:
    details = judged(of_records, "promise").details
    assert details == {
        "delta_records": pytest.approx(1e-5 * 112),
        "largest_client_records": 112,
        "charges": 12,
    }


def test_without_privacy_only_counts_are_compared_and_nothing_is_claimed(
    of_records: Bundle,
) -> None:
    def run(headline: str | None, **spec: Any) -> Bundle:
        def change(promised: Spec) -> None:
            promised["privacy"] = {"unit": "none"}
            promised["federation"].update(spec)

        header: dict[str, Any] = {"unit": NONE, "noise_multiplier": None, "delta": None}
        bundle = changed(of_records, spec=change)
        claim = None if headline is None else {"view_headline": headline}
        ledger = bundle.readable_ledger
        found: Header = replace(bundle.header, **header)
        return replace(
            bundle, ledger=replace(ledger, header=found, claim=claim, spends=()), _layout=None
        )

    passed = judged(run("none"), "promise")
    assert (passed.verdict.value, passed.measurement, passed.qualifications) == (
        "PASS",
        "spec and ledger agree that no privacy is claimed",
        ("no differential privacy",),
    )
    wrong = "the claim of a run without privacy is not none"
    assert says(run("server"), "promise") == ("FAIL", wrong)
    # Without a delta it concerns no record.
    assert judged(run("server"), "promise").details == {
        "delta_records": 0.0, "largest_client_records": 112, "charges": 0,
    }  # fmt: skip
    assert says(run(None), "promise") == ("FAIL", wrong)
    assert says(run("none", rounds=5), "promise") == (
        "FAIL",
        "rounds: the spec says 5, the ledger 4",
    )


def test_what_other_parts_find_stands_in_the_verdict(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = {0: "what 0 spent", 2: "what 2 spent"}
    asked: list[tuple[str, tuple[Any, ...]]] = []

    def part(name: str, unreadable: bool = False) -> None:
        def finds(*given: Any, **_explained: str) -> None:
            asked.append((name, given[: -1 - unreadable]))
            given[-1].append(f"found by {name}")

        monkeypatch.setattr(spec_conformance, name, finds)

    monkeypatch.setattr(spec_conformance, "histories", lambda *_: past)
    spec, ledger = of_records.readable_spec, of_records.readable_ledger
    part("trial_faults", unreadable=True)
    assert says(of_records, "promise") == ("NOT VERIFIED", "found by trial_faults")
    assert asked[0][1] == (of_records,)
    for name in ("target_fault", "limit_faults", "budget_faults"):
        asked.clear()
        part(name)
        text = says(of_records, "promise")[1]
        assert f"found by {name}" in text
    assert ("target_fault", (spec, ledger, "server")) in asked
    assert ("limit_faults", (spec, ledger, "server", past)) in asked
    budget = next(given for name, given in asked if name == "budget_faults")
    assert (*budget[:2], list(budget[2])) == (spec, ledger, list(past.values()))


def test_a_fault_of_the_trials_fails(of_records: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def finds(bundle: Bundle, reasons: list[str], unreadable: list[str]) -> None:
        reasons.append("another trial was published")

    monkeypatch.setattr(spec_conformance, "trial_faults", finds)
    assert says(of_records, "promise") == ("FAIL", "another trial was published")


def test_rounds_that_cannot_be_read_are_not_verified(of_records: Bundle) -> None:
    run = changed(of_records)

    def unreadable() -> Any:
        raise UntrustedFileError("evidence/round-00001.npz", "is not there")

    run.all_rounds = unreadable  # type: ignore[method-assign] # as if it lay there
    assert says(run, "promise") == ("NOT VERIFIED", "evidence/round-00001.npz: is not there")


def test_a_rule_that_adapts_is_told_with_its_limit(of_records: Bundle) -> None:
    said = "where steps and noise of every round are those that the adaptive rule gives"
    header = of_records.header
    assert _adapted(header) == ""
    free = replace(header, adaptation=Adaptation(7, None, False, None))
    assert _adapted(free) == f", {said}"
    limited = replace(header, adaptation=Adaptation(7, 40, False, None))
    assert _adapted(limited) == f", {said}, 40 steps in all at most"


def test_steps_and_noise_that_adapt_are_held_to_the_rule_and_not_to_the_header(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for name in ("declared", "turns", "affordable"):
        monkeypatch.setattr(adaptive, name, lambda *_, name=name: asked.append(name))
    spends = list(of_records.readable_ledger.spends)
    spends[0] = replace(spends[0], steps=4, noise_multiplier=3.0)
    charged = {"spends": tuple(spends)}
    faults = ("noise_multiplier differs from the header's", "steps differ from local_steps")
    text = says(changed(of_records, ledger=charged), "promise")[1]
    assert all(fault in text for fault in faults)
    assert asked == []
    asked.clear()
    header = {"adaptation": Adaptation(7, 40, False, None)}
    text = says(changed(of_records, ledger=charged, header=header), "promise")[1]
    assert not any(fault in text for fault in faults)
    assert asked == ["declared", "turns", "affordable"]


def test_a_step_of_two_queries_is_charged_for_both(of_records: Bundle) -> None:
    ledger = of_records.readable_ledger
    spends = tuple(replace(one, queries_per_step=2) for one in ledger.spends)

    def said(queries: int) -> str:
        rounds = tuple(replace(one, queries=(queries,) * len(one.clients)) for one in ledger.rounds)
        return says(changed(of_records, ledger={"spends": spends, "rounds": rounds}), "promise")[1]

    more = "made more queries than were charged"
    assert more not in said(6)
    assert more in said(7)


def test_every_charge_is_held_to_the_header_also_behind_one_that_adapts(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("declared", "turns", "affordable"):
        monkeypatch.setattr(adaptive, name, lambda *_: None)
    spends = list(of_records.readable_ledger.spends)
    spends[-1] = replace(spends[-1], clipping_norm=0.6)
    header = {"adaptation": Adaptation(7, 40, False, None)}
    run = changed(of_records, ledger={"spends": tuple(spends)}, header=header)
    assert f"ledger.jsonl:{spends[-1].line}: clipping_norm differs" in says(run, "promise")[1]


def test_a_charge_of_a_client_that_there_is_not_has_no_number_of_records(
    of_records: Bundle,
) -> None:
    spends = list(of_records.readable_ledger.spends)
    spends[0] = replace(spends[0], client=of_records.header.clients)
    text = says(changed(of_records, ledger={"spends": tuple(spends)}), "promise")[1]
    assert "made more queries than were charged" in text
