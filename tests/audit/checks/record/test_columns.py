"""Bounds of columns: noise, counts, edges and charges are each held to what they must be."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audit.accounting.budget import ThirdParty, budget
from audit.accounting.registry import Steps
from audit.accounting.sampling import most_spent, queried
from audit.checks.record.accounting import histories
from audit.checks.record.columns import COLUMNS, caught_scales, edges_of, shared_alpha, unit_of
from audit.checks.shared.columns import query_faults
from audit.reading.bundle import open_bundle
from audit.reading.columns import Promised
from tests.audit.checks.opened import judged
from tests.audit.synthetic_run import (
    Settings,
    build_run,
    canonical,
    read_entries,
    rewrite_ledger,
    rewrite_spec,
    save,
)

SIGMA = 6.0
BINS = (40, 24)
Edit = Callable[[Path], None]


def counts_of(records: int, seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed)
    return np.concatenate(
        [
            np.bincount(np.clip(drawn.normal(bins / 2, 2, records), 0, bins - 1).astype(int),
                        minlength=bins)
            for bins in BINS
        ]
    )  # fmt: skip


def columns() -> list[dict[str, Any]]:
    """Items of the spec, all keys written out."""
    age = {"name": "age", "low": 0.0, "high": 80.0, "scale": "linear", "learn_bins": 40}
    dose = {"name": "dose", "low": -10.0, "high": 1e4, "scale": "log", "learn_bins": 24}
    return [
        {**age, "kind": "number", "learn_quantiles": [0.1, 0.9]},
        {"name": "ward", "kind": "category", "categories": ["A", "B"]},
        {**dose, "kind": "number", "learn_quantiles": [0.1, 0.9]},
    ]


def add_bounds(run: Path, scale: float = 1.0, seed: int = 4) -> Path:
    """Let a synthetic run learn the bounds of two columns, by rules written out here once more."""
    entries = read_entries(run)
    records = entries[0]["records"]
    counts = np.stack([counts_of(n, 10 + client) for client, n in enumerate(records)])
    drawn = np.random.default_rng([31, seed])
    noised = counts + scale * SIGMA * drawn.normal(size=counts.shape)
    write_histograms(run, counts, noised)
    rewrite_spec(
        run,
        lambda spec: spec["data"].update(columns=columns(), column_noise_multiplier=SIGMA),
    )
    told = []
    for (place, start, bins), item in zip(
        [(0, 0, 40), (3, 40, 24)], [columns()[0], columns()[2]], strict=True
    ):
        first, last = by_hand(noised[:, start : start + bins].sum(axis=0), len(records), bins)
        low, high = (in_unit(item, edge, bins) for edge in (first, last))
        told.append(
            {
                "column": item["name"], "place": place, "bins": bins, "first": first, "last": last,
                "low": low, "high": high,
            }
        )  # fmt: skip
    section = {"columns": ["age", "dose"], "bins": list(BINS), "noise_multiplier": SIGMA}
    charges = [
        {"kind": "query", "client": client, "attempt": 1, "records": n, "sensitivity": 1.0}
        | section
        for client, n in enumerate(records)
    ]
    digest = hashlib.sha256(noised.astype("<f8").tobytes()).hexdigest()
    answer = {"kind": "bounds", "columns": told, "noised_sha256": digest}

    def change(lines: list[dict[str, Any]]) -> None:
        lines[0]["column_queries"] = section
        lines[1:1] = [*charges, answer]
        lines[-1]["assumptions"] = [
            *lines[-1].get("assumptions", []),
            "bounds of columns were learnt before the first round: by a histogram of each",
        ]
        alone = budget([Steps(1.0, SIGMA, 2)], lines[0]["delta"]).headline
        lines[-1]["columns"] = {"learnt": 2, "epsilon": alone}

    rewrite_ledger(run, change)
    edit_model(run, lambda model: model.update(learnt=told))
    return run


def by_hand(sums: np.ndarray, clients: int, bins: int) -> tuple[int, int]:
    least = SIGMA * math.sqrt(clients) * math.sqrt(2 * math.log(2 * bins))
    kept = np.where(sums >= least, sums, 0.0)
    shares = np.concatenate([[0.0], np.cumsum(kept)]) / kept.sum()
    return int(np.flatnonzero(shares <= 0.1)[-1]), int(np.flatnonzero(shares >= 0.9)[0])


def in_unit(item: dict[str, Any], edge: int, bins: int) -> float:
    ends = np.array([item["low"], item["high"]])
    if item["scale"] == "log":
        ends = np.sign(ends) * np.log1p(np.abs(ends))
    at = ends[0] + edge / bins * (ends[1] - ends[0])
    return float(np.sign(at) * np.expm1(abs(at)) if item["scale"] == "log" else at)


def write_histograms(run: Path, counts: np.ndarray, noised: np.ndarray) -> None:
    save(run / "evidence" / "columns.npz", {"counts": counts, "noised": noised})


def histograms(run: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(run / "evidence" / "columns.npz") as file:
        return file["counts"], file["noised"]


def edit_model(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = run / "model.json"
    model = json.loads(path.read_text()) if path.exists() else {}
    change(model)
    path.write_bytes(canonical(model))


def edit_answer(**changes: Any) -> Edit:
    def change(run: Path) -> None:
        def one(lines: list[dict[str, Any]]) -> None:
            (answer,) = [line for line in lines if line["kind"] == "bounds"]
            answer["columns"][0].update(changes)

        rewrite_ledger(run, one)

    return change


def edit_queries(**changes: Any) -> Edit:
    def change(run: Path) -> None:
        def one(lines: list[dict[str, Any]]) -> None:
            for line in lines:
                if line["kind"] == "query":
                    line.update(changes)

        rewrite_ledger(run, one)

    return change


def on_ledger(change: Callable[[list[dict[str, Any]]], Any]) -> Edit:
    def edit(run: Path) -> None:
        rewrite_ledger(run, lambda lines: change(lines) and None)

    return edit


def on_counts(change: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]) -> Edit:
    """Change counts and what was sent, with a digest in the ledger that fits."""

    def edit(run: Path) -> None:
        counts, noised = change(*histograms(run))
        write_histograms(run, counts, noised)
        digest = hashlib.sha256(noised.astype("<f8").tobytes()).hexdigest()

        def named(lines: list[dict[str, Any]]) -> None:
            (answer,) = [line for line in lines if line["kind"] == "bounds"]
            answer["noised_sha256"] = digest

        rewrite_ledger(run, named)

    return edit


@pytest.fixture(scope="module")
def _built_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_bounds(build_run(tmp_path_factory.mktemp("bounds") / "run", Settings(smallest=400)))


@pytest.fixture
def run(_built_run: Path, tmp_path: Path) -> Path:
    """A correct run that the test may change."""
    return Path(shutil.copytree(_built_run, tmp_path / "run"))


def judgement(run: Path, name: str) -> Any:
    return judged(open_bundle(run), name)


def test_bounds_that_follow_from_noised_counts_pass(run: Path) -> None:
    found = judgement(run, "columns")
    assert found.verdict.value == "PASS", found.measurement
    assert found.details["cells"] == 5 * 64
    assert judgement(run, "promise").verdict.value == "PASS"


def test_only_runs_that_learn_bounds_are_asked(run: Path, tmp_path: Path) -> None:
    plain = open_bundle(build_run(tmp_path / "plain", Settings()))
    assert not COLUMNS.concerns(plain.header)
    assert not COLUMNS.concerns(None)
    assert COLUMNS.concerns(open_bundle(run).header)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (on_counts(lambda c, n: (c, c + 0.5 * (n - c))), "less than the standard deviation"),
        (on_counts(lambda c, n: (c, c.astype(float))), "less than the standard deviation"),
        (on_counts(lambda c, n: (c, c + 1.5 * (n - c))), "more than the standard deviation"),
        (
            on_counts(lambda c, n: (c, c + SIGMA * np.sign(n - c))),
            "not Gaussian with the charged",
        ),
        (on_counts(lambda c, n: (c, c + (n - c)[:1])), "two clients' histograms have the same"),
        (on_counts(lambda c, n: (2 * c, n + c)), "does not count each record of a client once"),
        (
            on_counts(lambda c, n: (c + np.eye(1, c.shape[1], dtype=c.dtype), n)),
            "does not count each record",
        ),
        (edit_answer(first=0), "the ledger: the bounds of 'age' are not those"),
        (edit_answer(low=1.0), "low or high of 'age' is not at its edge"),
        (edit_answer(column="dose"), "its columns or cells are not"),
        (
            lambda run: edit_model(run, lambda m: m["learnt"][1].update(last=24)),
            "model.json: the bounds of 'dose' are not those",
        ),
        (
            lambda run: edit_model(run, lambda m: m["learnt"].pop()),
            "model.json: does not name the bounds of each column",
        ),
        (lambda run: edit_model(run, lambda m: m.pop("learnt")), "learnt is missing"),
        (
            lambda run: write_histograms(run, *(a.T.copy() for a in histograms(run))),
            "counts",
        ),
        (
            on_ledger(lambda lines: lines[-1].update(assumptions=["nothing"])),
            "the claim does not say that bounds of columns were learnt",
        ),
        (
            on_ledger(lambda lines: lines[-1]["columns"].update(epsilon=0.1)),
            "the histograms alone are claimed to cost 0.1, but cost",
        ),
        (
            on_ledger(lambda lines: lines[-1]["columns"].update(learnt=1)),
            "a different number of columns",
        ),
        (on_ledger(lambda lines: lines[-1].pop("columns")), "claim: columns"),
        (
            lambda run: rewrite_spec(run, lambda s: s["data"]["columns"][0].update(learn_bins=41)),
            "the header's columns and cells are not the spec's",
        ),
    ],
)
def test_what_is_wrong_is_said(run: Path, edit: Edit, said: str) -> None:
    edit(run)
    found = judgement(run, "columns")
    assert found.verdict.value in ("FAIL", "NOT VERIFIED")
    assert said in found.measurement


def test_evidence_that_is_missing_is_not_verified(run: Path) -> None:
    (run / "evidence" / "columns.npz").unlink()
    assert judgement(run, "columns").verdict.value == "NOT VERIFIED"


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (on_ledger(lambda lines: lines.pop(1)), "not every client is charged once"),
        (
            on_ledger(lambda lines: lines.insert(1, dict(lines[1]))),
            "not every client is charged once",
        ),
        (edit_queries(noise_multiplier=7.0), "noise_multiplier is not the spec's"),
        (edit_queries(sensitivity=0.5), "a record moves a histogram by 1"),
        (edit_queries(bins=[40, 25]), "charges columns or cells that are not"),
        (edit_queries(records=3), "records of client 0 differ from the header's"),
        (
            on_ledger(lambda lines: lines[0].pop("column_queries")),
            "the ledger's header has none",
        ),
        (
            on_ledger(lambda lines: lines[0]["column_queries"].update(noise_multiplier=9.0)),
            "the header's noise_multiplier is not the spec's",
        ),
        (
            lambda run: rewrite_spec(
                run, lambda s: [one.pop("learn_quantiles", 0) for one in s["data"]["columns"]]
            ),
            "the ledger has learnt bounds, but the spec has none",
        ),
        (
            on_ledger(lambda lines: lines.insert(len(lines) - 1, lines.pop(6))),
            "bounds of columns are learnt after a round had begun",
        ),
        (
            on_ledger(lambda lines: lines.insert(1, lines.pop(6))),
            "charged after their bounds were learnt",
        ),
        (on_ledger(lambda lines: lines.pop(6)), "does not state exactly once which bounds"),
    ],
)
def test_charges_that_are_not_the_specs_fail_the_promise(run: Path, edit: Edit, said: str) -> None:
    edit(run)
    found = judgement(run, "promise")
    assert found.verdict.value == "FAIL"
    assert said in found.measurement


def test_a_ledger_that_is_silent_on_what_the_spec_learns_fails_the_promise(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", Settings())
    rewrite_spec(
        run, lambda spec: spec["data"].update(columns=columns(), column_noise_multiplier=SIGMA)
    )
    found = judgement(run, "promise")
    assert found.verdict.value == "FAIL"
    assert "not every client is charged" in found.measurement


def test_every_history_and_view_has_the_histograms_in_it(run: Path) -> None:
    bundle = open_bundle(run)
    header, ledger = bundle.header, bundle.readable_ledger
    assert queried(ledger) == (Steps(1.0, SIGMA, 2),)
    past = histories(ledger, header)
    assert all(Steps(1.0, SIGMA, 2) in history for history in past.values())
    # A claim that does not count them is understated.
    assert judgement(run, "accounting").verdict.value == "FAIL"
    assert judgement(run, "views").verdict.value == "FAIL"
    most = most_spent(ledger, header)
    assert Steps(1.0, SIGMA, 2) in most.everything(3)
    kinds = most.kinds(header.rounds)
    counts = [count for _, count in kinds]
    beside = ThirdParty(kinds, 0.6, 1e-5, always=most.queries).epsilon(counts)
    without = ThirdParty(kinds, 0.6, 1e-5).epsilon(counts)
    certain = ThirdParty(kinds, 1.0, 1e-5, always=most.queries).epsilon(counts)
    assert without < beside < certain
    whole = budget(most.everything(header.rounds), 1e-5).headline
    assert certain == pytest.approx(whole, rel=1e-3)


def test_histograms_of_the_kind_of_a_rounds_steps_are_composed_too() -> None:
    step = Steps(1.0, 5.0, 3)
    found = ThirdParty([(step, 4)], 1.0, 1e-5, always=[Steps(1.0, 5.0, 2)]).epsilon([4])
    assert found == pytest.approx(budget([Steps(1.0, 5.0, 14)], 1e-5).headline, rel=1e-3)


def test_bounds_in_runs_of_whole_clients_are_no_part_of_them(of_clients: Any) -> None:
    reasons: list[str] = []
    query_faults({"data": {}}, of_clients.ledger, of_clients.header, reasons)
    assert reasons == ["the ledger has learnt bounds, but the spec has none"]


def test_edges_and_their_units() -> None:
    column = Promised("age", 4, 0.0, 8.0, False, (0.25, 0.75))
    assert edges_of([1.0, 1.0, 1.0, 1.0], 1e-9, column) == (1, 3)
    assert edges_of([0.0, 0.0, 0.0, 0.0], 1e-9, column) == (0, 4)
    assert edges_of([1.0, 0.1, 0.1, 1.0], 0.2, column) == (0, 4)
    assert [unit_of(column, edge) for edge in range(5)] == [0.0, 2.0, 4.0, 6.0, 8.0]


@pytest.mark.parametrize(("counts", "columns"), [(128, 1), (640, 2)])
def test_noise_is_caught_as_often_as_promised_and_right_noise_is_not(
    counts: int, columns: int
) -> None:
    from audit.statistics.intervals import chi_square_interval

    _, small, large = caught_scales(counts, columns)
    low, high = chi_square_interval(counts, shared_alpha(columns))
    draws = np.random.default_rng(counts).chisquare(counts, 100_000) / counts
    for scale in (small, large):
        ratio = scale**2 * draws
        missed = np.mean((low <= ratio) & (ratio <= high))
        # One in a thousand, give or take five standard errors of 100,000 draws.
        assert 0.0005 < missed < 0.0015
    alarms = np.mean((draws < low) | (draws > high))
    assert alarms < 2.0 * shared_alpha(columns)


# At 1/1000, more has a probability below 3e-4.
@pytest.mark.parametrize(
    ("runs", "most"), [(1000, 6), pytest.param(3000, 10, marks=pytest.mark.slow)]
)
def test_correct_runs_fail_once_in_a_thousand_at_most(runs: int, most: int) -> None:
    from audit.checks.record import columns as check
    from audit.reading.columns import Queries

    queries = Queries(("a", "b"), (16, 16), 1.0)
    drawn = np.random.default_rng(8)
    failed = 0
    for _ in range(runs):
        reasons: list[str] = []
        check._noise(drawn.normal(size=(4, 32)), queries, reasons)
        failed += bool(reasons)
    assert failed <= most
