"""The check "sensitivity" by hand: norms, uses of records, and what the probe must exercise."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audit.checks import sensitivity
from audit.checks.sensitivity import _gradients, _Norms, _participations, _probe
from audit.errors import UntrustedFileError, UnverifiedError
from audit.probe.probe_tally import UNEQUAL
from audit.probe.probing import PATH_KINDS
from audit.probe.update_probing import NONFINITE_KINDS
from audit.reading.bundle import Bundle
from audit.reading.evidence import Seen
from audit.statistics.batches import LAWS
from tests.audit.checks.opened import changed, judged, says

NAME = "sensitivity"


def norms_of(clip: float | None = 0.5) -> _Norms:
    bundle: Any = SimpleNamespace(header=SimpleNamespace(clipping_norm=clip))
    return _Norms(bundle, [])


def test_norms_are_counted_over_all_rounds_and_those_at_the_norm_are_not_clipped() -> None:
    norms = norms_of()
    assert norms.private("records") == {"records_used": 0, "share_clipped": None}
    above = float(np.nextafter(0.5, 1.0))
    norms.judge(0, np.array([0.25, 0.5]), np.array([0.25, 0.5]))
    assert norms.private("records") == {"records_used": 2, "share_clipped": 0.0}
    norms.judge(1, np.array([above, np.nan, np.inf, 0.1]), np.array([0.5, 0.0, 0.0, 0.1]))
    assert norms.private("updates") == {"updates_used": 6, "share_clipped": 0.5}
    assert norms.reasons == []
    norms.judge(7, np.array([0.7]), np.array([0.7]))
    assert norms.reasons
    assert all(reason.startswith("round 7: ") for reason in norms.reasons)
    with pytest.raises(UnverifiedError, match="lacks C"):
        norms_of(None)


def evidence_of(sizes: list[list[int]], raw: list[float], nonfinite: list[list[int]]) -> Any:
    """One round's norms; those that are not finite count zero after clipping."""
    offsets = np.concatenate([[0], np.cumsum(np.ravel(sizes))])
    norms = np.array(raw)
    return SimpleNamespace(
        record_offsets=offsets, batch_size=np.array(sizes), raw_norms=norms,
        clipped_norms=np.where(np.isfinite(norms), np.minimum(norms, 0.5), 0.0),
        nonfinite=np.array(nonfinite),
    )  # fmt: skip


COUNT = "round 4: the count of non-finite gradients is not that of the norms"
MANY = "round 4: as many norms as records are not recorded"


@pytest.mark.parametrize(
    ("sizes", "raw", "nonfinite", "said"),
    [
        # Batches of one, of two and of no records; the last one is empty.
        ([[1, 2], [0, 0]], [0.1, np.nan, np.inf], [[0, 2], [0, 0]], []),
        ([[1, 2], [0, 0]], [np.nan, 0.1, np.inf], [[1, 1], [0, 0]], []),
        ([[1, 2], [0, 0]], [np.nan, 0.1, np.inf], [[0, 2], [0, 0]], [COUNT]),
        ([[1, 2], [0, 0]], [0.1, 0.2, 0.3], [[0, 0], [0, 1]], [COUNT]),
        ([[2, 1], [1, 1]], [0.1] * 5, [[0, 0], [0, 0]], []),
    ],
)
def test_gradients_that_are_not_finite_are_counted_batch_by_batch(
    sizes: list[list[int]], raw: list[float], nonfinite: list[list[int]], said: list[str]
) -> None:
    norms = norms_of()
    _gradients(4, evidence_of(sizes, raw, nonfinite), norms)
    assert norms.reasons == said
    assert norms.private("records")["records_used"] == len(raw)


def test_one_batch_of_another_size_is_enough_to_be_told() -> None:
    norms = norms_of()
    evidence = evidence_of([[2, 1], [1, 1]], [0.1] * 5, [[0, 0], [0, 0]])
    evidence.batch_size = np.array([[2, 1], [1, 2]])
    _gradients(4, evidence, norms)
    assert norms.reasons == [MANY]


def test_each_clients_uses_are_as_many_as_it_was_charged_for() -> None:
    charges: Any = {(3, 5): SimpleNamespace(records=2), (3, 7): SimpleNamespace(records=4)}
    sizes = np.array([[1, 2], [3, 4]])

    def given(uses: int) -> tuple[list[Any], list[str]]:
        added: list[Any] = []
        batches: Any = SimpleNamespace(
            add=lambda where, charge, size, used, reasons, read: added.append(
                (where, charge, size.tolist(), used.tolist(), *([] if read is None else [read]))
            )
        )
        evidence: Any = SimpleNamespace(
            clients=np.array([5, 7]), inclusions=np.arange(uses), batch_size=sizes
        )
        reasons: list[str] = []
        _participations(3, evidence, charges, batches, reasons)
        return added, reasons

    first = ("round 3, client 5", charges[3, 5], [1, 2], [0, 1])
    second = ("round 3, client 7", charges[3, 7], [3, 4], [2, 3, 4, 5])
    counted = ["round 3: not every record's use is counted"]
    assert given(6) == ([first, second], [])
    assert given(7) == ([first, second], counted)
    assert given(5) == ([first], counted)
    assert given(1) == ([], counted)
    del charges[3, 7]
    with pytest.raises(UnverifiedError, match="round 3: client 7 was never charged"):
        given(6)


def test_each_client_has_the_batches_that_its_own_gradients_were_taken_of() -> None:
    charges: Any = {(3, 5): SimpleNamespace(records=1), (3, 7): SimpleNamespace(records=1)}
    digests = np.arange(24).reshape(3, 8)
    seen = Seen(np.array([7, 5, 7]), digests, np.zeros(3, int), np.zeros((3, 16), int))
    evidence: Any = SimpleNamespace(
        clients=np.array([5, 7]), inclusions=np.zeros(2), batch_size=np.zeros((2, 1)), seen=seen
    )
    given: list[Any] = []
    batches: Any = SimpleNamespace(add=lambda *all: given.append(all[-1]))
    _participations(3, evidence, charges, batches, [], True)
    assert [one.tolist() for one in given] == [digests[[1]].tolist(), digests[[0, 2]].tolist()]
    # Evidence of before, and records that are read one by one, tell none.
    for less in (None, replace(seen, batches=None)):
        evidence.seen, given[:] = less, []
        _participations(3, evidence, charges, batches, [], True)
        assert given == [None, None]


# The probe.


@pytest.mark.parametrize(
    ("kind", "one", "brought"),
    [("of_records", "record", "record"), ("of_clients", "client", "update")],
)
def test_a_probe_that_moves_nothing_exercised_no_clipping(
    kind: str,
    one: str,
    brought: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundle: Bundle = request.getfixturevalue(kind)
    asked: list[Any] = []

    def judge_probe(probe: Any, clip: float, word: str, reasons: list[str]) -> str:
        asked.append((clip, word))
        return "what was found"

    monkeypatch.setattr(sensitivity, "judge_probe", judge_probe)
    probe = bundle.probe_results()

    def moving(last: float) -> tuple[str, str]:
        moved = np.zeros(len(probe.names))
        moved[-1] = last
        other = replace(probe, difference_norm=moved)
        found = judged(changed(bundle, files={"probe_results": other}), NAME)
        assert found.details["probe"] == "what was found"
        return found.verdict.value, found.measurement

    nothing = f"no probe {brought} contributes anything, so clipping was not exercised"
    assert moving(0.0) == ("NOT VERIFIED", nothing)
    assert moving(1e-9)[0] == "PASS"
    assert set(asked) == {(0.5, one)}
    passed = moving(0.25)[1]
    assert f"{len(probe.names)} synthetic neighbouring" in passed


def test_a_probe_that_is_not_there_is_not_verified_and_has_no_power(of_records: Bundle) -> None:
    def run(**changes: Any) -> Bundle:
        found = changed(of_records, **changes)

        def missing() -> Any:
            raise UntrustedFileError("evidence/probe.npz", "is not there")

        found.probe_results = missing  # type: ignore[method-assign] # as if it lay there
        return found

    found = judged(run(), NAME)
    said = "no results of the active probe (evidence/probe.npz: is not there)"
    assert (found.verdict.value, found.measurement, found.power) == ("NOT VERIFIED", said, None)
    assert set(found.details) == {"steps", "clients_tested"}
    used = of_records.round_evidence(1).inclusions
    wrong = judged(run(evidence={1: {"inclusions": np.append(used, 0)}}), NAME)
    assert wrong.verdict.value == "FAIL"
    assert (wrong.power or "").startswith(f"{sensitivity.SENSITIVITY.power}; ")


def test_a_pass_tells_its_power_and_how_many_steps_and_clients_it_is_of(
    of_records: Bundle, of_clients: Bundle
) -> None:
    found = judged(of_records, NAME)
    assert found.verdict.value == "PASS"
    # Four rounds of three clients with three steps each.
    assert found.details["steps"] == 36
    took_part = {one for item in of_records.readable_ledger.rounds for one in item.clients}
    assert found.details["clients_tested"] == len(took_part)
    assert "norms of every record of 36 steps" in found.measurement
    assert LAWS["poisson"] in found.measurement
    assert (found.power or "").startswith(f"{sensitivity.SENSITIVITY.power}; ")
    assert {"records_used", "share_clipped"} < set(found.private)
    clients = judged(of_clients, NAME)
    assert clients.verdict.value == "PASS"
    assert set(clients.private) == {"updates_used", "share_clipped"}
    assert set(clients.details) == {"probe"}


def test_a_probe_of_the_clipped_sum_alone_is_not_verified(of_records: Bundle) -> None:
    probe = of_records.probe_results()
    for kind in PATH_KINDS:
        names = tuple("another" if one == kind else one for one in probe.kinds)
        run = changed(of_records, files={"probe_results": replace(probe, kinds=names)})
        verdict, text = says(run, NAME)
        assert verdict == "NOT VERIFIED"
        assert text.startswith("the probe called the clipped sum alone")


@pytest.mark.parametrize(
    ("model", "verdict"),
    [
        ({"name": "mlp"}, "PASS"),
        ({"name": "python", "vocabulary": 0, "length": 128}, "PASS"),
        ({"name": "python", "vocabulary": 60, "length": 128}, "NOT VERIFIED"),
        ({"name": "roberta-base", "length": 64}, "NOT VERIFIED"),
    ],
)
def test_a_model_of_texts_needs_probed_records_of_other_lengths(
    of_records: Bundle, of_clients: Bundle, model: dict[str, Any], verdict: str
) -> None:
    for bundle in (of_records, of_clients):
        probe = bundle.probe_results()
        kinds = tuple("another" if one == UNEQUAL else one for one in probe.kinds)
        files = {"probe_results": replace(probe, kinds=kinds)}
        read = replace(bundle, spec={**bundle.readable_spec, "model": model})
        found, text = says(changed(read, files=files), NAME)
        assert found == verdict
        assert ("padding was not exercised" in text) == (verdict != "PASS")


@pytest.mark.parametrize(
    ("moved", "wrong"),
    [
        (0.5 * 1e-4, False),
        (np.nextafter(0.5 * 1e-4, 1.0), True),
        (0.4, True),
        (np.nan, True),
        (np.inf, True),
        (0.0, False),
    ],
)
def test_an_update_that_is_not_finite_moves_nothing_but_by_rounding(
    of_clients: Bundle, moved: float, wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensitivity, "judge_probe", lambda *_: {})
    probe = of_clients.probe_results()
    for kind in NONFINITE_KINDS:
        own = [place for place, one in enumerate(probe.kinds) if one == kind]
        assert own
        other = np.full(len(probe.names), 0.4)
        other[[one in NONFINITE_KINDS for one in probe.kinds]] = 0.0
        other[own[0]] = moved
        run = changed(of_clients, files={"probe_results": replace(probe, difference_norm=other)})
        said = f"probe, {probe.names[own[0]]}: an update that is not finite does not count zero"
        found = judged(run, NAME)
        assert (found.verdict.value == "FAIL") is wrong
        assert not wrong or found.measurement == said


def test_why_a_probe_shows_nothing_is_told_before_that_it_moves_nothing() -> None:
    probe: Any = SimpleNamespace(names=("a", "b"), difference_norm=np.zeros(2))
    bundle: Any = SimpleNamespace(probe_results=lambda: probe)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sensitivity, "judge_probe", lambda *_: "found")
        told = _probe(bundle, norms_of(), "record", "record", lambda _: "another why")
        assert told == ({"probe": "found"}, 2, ["another why"])
        probe.difference_norm = np.array([0.0, 1.0])
        assert _probe(bundle, norms_of(), "record", "record", lambda _: None)[2] == []


def test_the_sampler_is_named_up_to_forty_characters(of_records: Bundle) -> None:
    text = says(changed(of_records, header={"sampling": "x" * 50}), NAME)[1]
    assert text == f"nothing is known of the sampler {'x' * 40!r}"
